"""The examples of docs/how-to/replace-a-dockerfile.md: they load, and do what the page says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from imagegen import spec as matrix
from imagegen.audit.readers.installation import site_packages
from imagegen.core.data import shipped
from imagegen.core.store import Store
from imagegen.image.layers.image_config import image
from imagegen.image.layers.support import ENTRYPOINT, loader_configuration
from imagegen.lock.make import copies, patches
from imagegen.spec.model import Cell
from tests.support.tiny_lock import LOCK

PAGE = (Path(__file__).parents[2] / "docs/how-to/replace-a-dockerfile.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n# matrices/own.yaml\n(.*?)```", PAGE, re.DOTALL)


def example(project: Path, image: str) -> Cell:
    """Return the cell of the example that defines `image`."""
    (text,) = (each for each in EXAMPLES if f"  {image}:\n" in each)
    (project / "matrices").mkdir()
    (project / "matrices/own.yaml").write_text(text, encoding="utf-8")
    return matrix.load([shipped("matrices"), shipped("wheels"), project / "matrices"]).select_one(image)


def test_overrides(tmp_path: Path) -> None:
    cell = example(tmp_path, "my-overrides")
    assert [(each.package, each.specifier, bool(each.source)) for each in cell.overrides] == [
        ("fsspec", "==2026.2.*", True),
        ("hf-xet", None, False),
    ]
    lines = (tmp_path / "matrices/own.yaml").read_text().splitlines()
    assert {name: lines[(where.line or 0) - 1].strip() for name, where in cell.override_places.items()} == {
        "fsspec": "fsspec:",
        "hf-xet": "hf-xet:",
    }


def test_config(tmp_path: Path) -> None:
    cell = example(tmp_path, "my-config")
    lock = replace(LOCK, config=cell.config, labels=cell.labels, ports=cell.ports)
    config = json.loads(image(lock, ()).config)["config"]
    assert config["Entrypoint"] == [ENTRYPOINT, "python", "-m", "http.server"]
    assert (config["Cmd"], config["User"], config["WorkingDir"]) == (["8000"], "1000:1000", "/srv")
    assert (config["Labels"]["com.example.team"], config["ExposedPorts"]) == ("alignment", {"8000/tcp": {}})


def test_patches(tmp_path: Path) -> None:
    cell = example(tmp_path, "my-patches")
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/trl-padding.patch").write_text(diff)
    ((package, (locked,)),) = patches.read(cell, Store(tmp_path / "store")).items()
    assert (package, locked.path, bool(locked.source)) == ("trl", "patches/trl-padding.patch", True)


def test_files(tmp_path: Path) -> None:
    cell = example(tmp_path, "my-files")
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/cluster.yaml").write_text("address: 10.0.0.1")
    (tmp_path / "prompts/math").mkdir(parents=True)
    (tmp_path / "prompts/math/a.txt").write_text("1 + 1")
    locked = copies.read(cell, Store(tmp_path / "store"))
    assert [(each.path, [file.path for file in each.files]) for each in locked] == [
        ("/etc/ray/cluster.yaml", ["/etc/ray/cluster.yaml"]),
        ("/srv/prompts", ["/srv/prompts/math/a.txt"]),
    ]


def test_directories_of_the_loader(tmp_path: Path) -> None:
    lock = replace(LOCK, ldconfig=example(tmp_path, "my-libraries").ldconfig)
    (directory,) = (line for line in loader_configuration(lock).splitlines() if not line.startswith("#"))
    assert directory.startswith(site_packages(lock.python))


def test_a_wheel_by_its_address(tmp_path: Path) -> None:
    (found,) = (each for each in example(tmp_path, "my-wheel").requirements if each.address)
    assert found.address
    assert (found.component.package, str(found.address.version), found.component.declared) == (
        "math-verify",
        "0.8.0",
        False,
    )
