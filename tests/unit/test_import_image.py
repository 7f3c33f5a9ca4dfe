"""Importing an image: what pip and dpkg have in its final tree, its variables and its entry point."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from imagegen.app.import_image import import_image, is_image
from imagegen.app.import_project import Imported
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.errors import MatrixErrors, UsageError
from imagegen.core.progress import Quiet
from imagegen.image.inventory.freeze import requested_debs
from tests.support.errors import raises
from tests.support.file_trees import Things, To, as_tar, below, layered, site_of
from tests.support.timing import within

SITE = "usr/local/lib/python3.12/site-packages"
STATUS = """\
Package: dash
Essential: yes
Status: install ok installed
Version: 1

Package: ffmpeg
Priority: optional
Status: install ok installed
Version: 7:4
Depends: libavcodec58 (>= 7), libc6 | libc6.1

Package: libavcodec58
Status: install ok installed
Version: 1

Package: gone
Status: deinstall ok config-files
Version: 1

Package: python3
Status: install ok installed
Version: 1

Package: cuda-nvtx-12-4
Status: install ok installed
Version: 1
Maintainer: cudatools <cudatools@nvidia.com>

Package: liblz4-1
Status: install ok installed
Version: 1
"""
BASE: Things = {
    "usr/local/bin/python3.12": b"\x7fELF",
    "usr/local/bin/python": To("python3.12"),
    "usr/lib/os-release": b'ID=ubuntu\nVERSION_ID="22.04"\n',
    "etc/os-release": To("../usr/lib/os-release"),
    "var/lib/dpkg/status": STATUS.encode(),
    "var/lib/apt/extended_states": b"Package: liblz4-1\nArchitecture: amd64\nAuto-Installed: 1\n",
    **below("usr/lib/python3/dist-packages", site_of(apt={"apt.py": b""})),
}


def pip(name: str, version: str = "1.0", **files: str) -> Things:
    """Return a distribution as pip installs it, with further files of its metadata."""
    found = below(SITE, site_of(**{name: {f"{name}.py": b""}}))
    info = f"{SITE}/{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\ntext\n".encode()
    more = {f"{info}/{file}": text.encode() for file, text in files.items()}
    return {**found, f"{info}/METADATA": metadata, f"{info}/INSTALLER": b"pip\n", **more}


def direct(**fields: Any) -> dict[str, str]:
    return {"direct_url.json": json.dumps(fields)}


STACK: Things = {
    **pip("Torch", "2.8.0+cu128"),
    **pip("numpy", "2.2.6"),
    **pip("dropped"),
    **pip("own", **direct(url="file:///src", dir_info={"editable": True})),
    **pip("commit", **direct(url="https://u:secret@example.org/c", vcs_info={"vcs": "git", "commit_id": "1" * 40})),
    **pip("address", **direct(url="https://example.org/address-1.0-py3-none-any.whl", archive_info={})),
    **below(SITE, site_of(copied={"copied.py": b""})),
}
ABOVE: Things = {f"{SITE}/.wh.dropped-1.0.dist-info": b"", f"{SITE}/.wh.dropped.py": b""}
CONFIG = {
    "Env": [
        "PATH=/usr/local/bin:/usr/bin",
        "CUDA_VERSION=12.6.2",
        "NV_X=1",
        "LD_LIBRARY_PATH=/opt/lib",
        "HF_HOME=/data",
        "HF_TOKEN",
    ],
    "Entrypoint": ["/opt/entry.sh"],
    "Cmd": ["serve"],
    "WorkingDir": "/app",
    "User": "1000",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def saved(path: Path, layers: list[Things], config: dict[str, Any]) -> Path:
    """Write an archive as `docker save` does."""
    tars = [as_tar(each) for each in layers]
    digests = [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in tars]
    rootfs = {"type": "layers", "diff_ids": digests}
    text = json.dumps({"os": "linux", "architecture": "amd64", "rootfs": rootfs, "config": config}).encode()
    names = [f"{number}/layer.tar" for number in range(len(tars))]
    manifest = [{"Config": "c.json", "RepoTags": ["demo:1"], "Layers": names}]
    tree: Things = {
        **dict(zip(names, tars, strict=True)),
        "c.json": text,
        "manifest.json": json.dumps(manifest).encode(),
    }
    path.write_bytes(as_tar(tree))
    return path


def run(project: Path, config: dict[str, Any] = CONFIG, *layers: Things) -> Imported:
    archive = saved(project / "image.tar", list(layers or (BASE, STACK, ABOVE)), config)
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(project.parent / "cache")}, project, Quiet()))
    return import_image(session, str(archive), "my-rl")


def test_metadata_beyond_the_limits_of_python_is_left_out(project: Path) -> None:
    digits, nested = "9" * 5000, "[" * 200_000
    odd = {
        **pip("numpy"),
        **pip("digits", digits),
        **pip("nested", **{"direct_url.json": nested}),
        **pip("number", **{"direct_url.json": f'{{"url": {digits}}}'}),
    }
    imported = run(project, CONFIG, BASE, odd)
    assert {pin.package for pin in imported.found.pins} == {"numpy", "nested", "number"}
    named = " ".join(each.what for each in imported.omissions)
    assert all(text in named for text in ("digits 999", "unknown of nested", "unknown of number"))


def test_what_is_recovered_and_what_is_not(project: Path) -> None:
    imported = run(project)
    assert {pin.package: pin.specifier for pin in imported.found.pins} == {
        "address": "==1.0",
        "numpy": "==2.2.6",
        "torch": "==2.8.0+cu128",
    }
    missing = {each.what.split()[0] for each in imported.omissions if each.is_package}
    assert missing == {"commit", "copied", "own"}
    others = [each.what for each in imported.omissions if not each.is_package]
    assert len(others) == 5  # the address, NVIDIA's Debian package, the system, a variable, and the entry point
    assert "the variable LD_LIBRARY_PATH" in others
    assert "secret" not in str(imported.omissions)
    cell = imported.cell
    assert (cell.cuda, cell.python, cell.base.name) == ("cu128", "3.12", "debian12-gpu")
    assert list(cell.packages) == ["ffmpeg"]
    assert {each.name: each.value for each in cell.env if "image.tar" in each.because} == {"HF_HOME": "/data"}
    assert {each.name: each.value for each in cell.config} == {"user": ("1000",), "workdir": ("/app",)}
    assert imported.path.read_text().count("version:") == 3


def test_an_entry_point_that_needs_no_file_is_kept(project: Path) -> None:
    config = {"Env": ["PATH=/usr/local/bin"], "Entrypoint": ["/opt/imagegen/entrypoint", "python"], "Cmd": ["-m", "x"]}
    cell = run(project, config, BASE, pip("numpy")).cell
    assert {each.name: each.value for each in cell.config} == {"entrypoint": ("python",), "cmd": ("-m", "x")}
    assert (cell.cuda, cell.base.name) == ("cpu", "debian12")


def test_an_image_without_packages_is_refused(project: Path) -> None:
    with raises("usage-no-packages"):
        run(project, CONFIG, {"etc/x": b""})
    assert not (project / "matrices").exists()


def test_an_image_has_a_name_of_its_own(project: Path) -> None:
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(project.parent / "cache")}, project, Quiet()))
    with pytest.raises(UsageError) as raised:
        import_image(session, "demo:1", None)
    assert raised.value.code == "usage-name-missing"


def test_debian_packages_that_were_asked_for(tmp_path: Path) -> None:
    assert requested_debs(layered(tmp_path, BASE), ["python3"]) == (["ffmpeg"], ["cuda-nvtx-12-4"])


def test_names_of_images_and_of_files(project: Path) -> None:
    archive = saved(project / "image.tar", [BASE], CONFIG)
    (project / "requirements.txt").write_text("numpy\n")
    (project / "layout").mkdir()
    (project / "layout/index.json").write_text("{}")
    images = [
        "oci:x",
        "demo:1",
        "ghcr.io/a/b@sha256:1",
        "vllm/vllm-openai:v0.11.0",
        str(archive),
        str(project / "layout"),
    ]
    assert all(map(is_image, images))
    files = [
        str(project / "requirements.txt"),
        "gone/requirements.txt",
        "gone/uv.lock",
        str(project),
        "Dockerfile.gone",
    ]
    assert not any(map(is_image, files))


def test_a_malformed_matrix_is_refused_before_the_image_is_read(project: Path) -> None:
    (project / "matrices").mkdir()
    (project / "matrices" / "mine.yaml").write_text("images: [")
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(project.parent / "cache")}, project, Quiet()))
    (project / "odd.tar").write_bytes(b"no image")
    with pytest.raises(MatrixErrors):
        import_image(session, str(project / "odd.tar"), "my-rl")


@pytest.mark.fault("Matrices, rules, locks", "an image with 200,000 variables", "refused at once")
def test_an_image_with_too_many_variables_is_refused(project: Path) -> None:
    config = {"Env": [f"V{number}=a" for number in range(200_000)]}
    with within(4), raises("project-malformed", where="image.tar"):
        run(project, config)
