"""A wheel of imagegen contains all that imagegen needs: code, shipped data, types."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uv

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
UV = {**os.environ, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    command = [uv.find_uv_bin(), "build", "-q", "--wheel", "--out-dir", str(directory), str(ROOT)]
    subprocess.run(command, check=True, env=UV)
    (wheel,) = directory.glob("*.whl")
    return wheel


def _tracked() -> list[str]:
    """Paths of the files that git tracks, relative to ROOT."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_the_wheel_holds_code_and_data_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = [name for name in _tracked() if not name.endswith(".gitkeep")]
    code = {name for name in tracked if name.startswith("imagegen/")}
    folders = ("matrices/", "wheels/", "dockerfiles/", "locks/", "pages/")
    data = {f"imagegen/_data/{name}" for name in tracked if name.startswith(folders)}
    assert data
    assert "imagegen/py.typed" in names
    assert names == code | data


def test_an_installed_imagegen_runs_in_its_own_source_tree(wheel: Path, tmp_path: Path) -> None:
    """With equal data as anywhere; with the data of another version it says so in one error."""
    site, clone = tmp_path / "site", tmp_path / "clone"
    python = ["--python", sys.executable]
    subprocess.run(
        [uv.find_uv_bin(), "pip", "install", "-q", "--no-deps", *python, "--target", str(site), str(wheel)],
        check=True,
        env=UV,
    )
    for name in _tracked():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
    env = {**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def imagegen(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(site / "bin/imagegen"), *arguments]
        return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False)

    anywhere, here = imagegen(tmp_path, "list", "--json"), imagegen(clone, "list", "--json")
    assert anywhere.returncode == here.returncode == 0, here.stderr
    assert here.stdout == anywhere.stdout
    matrices = clone / "matrices" / "images"
    for file in matrices.glob("*.yaml"):
        file.write_text(re.sub(r"purpose: (>-\n *)?", r"\g<0>Another ", file.read_text()))
    other = imagegen(clone, "list")
    assert other.returncode == 65
    assert len(re.findall("^  fix: ", other.stderr, re.MULTILINE)) == 1
    assert str(site) not in other.stderr
    assert imagegen(tmp_path, "--project", str(clone), "list").returncode == 65
    assert imagegen(clone, "--project", str(tmp_path), "list").returncode == 0
