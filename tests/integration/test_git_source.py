"""A component from git, from the lock to its wheel: real git on loopback, the real sandbox."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import SandboxError, WheelError
from imagegen.core.progress import Quiet
from imagegen.lock import sdist
from imagegen.lock.model import GIT, LockedFile, LockedGit, LockedSdist
from imagegen.lock.sdist import SdistBuilder
from tests.support.git_server import LINK, Bare, GitServer
from tests.support.git_workspace import LFS
from tests.support.machines import Debian
from tests.support.sdists import PYPROJECT

pytestmark = pytest.mark.integration

# It puts every .py file of the tree into the wheel, as a real backend does, through links too.
BACKEND = b"""\
import pathlib, zipfile
def build_wheel(out, *_):
    name = "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{out}/{name}", "w") as wheel:
        for path in sorted(pathlib.Path("demo").rglob("*")):
            if path.is_file():
                wheel.writestr(zipfile.ZipInfo(str(path)), path.read_bytes())
    return name
"""


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    return Bare(tmp_path / "demo.git")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    server = GitServer(tmp_path)
    yield server
    server.close()


def build(
    bare: Bare,
    server: GitServer,
    debian: Debian,
    files: dict[str, bytes | tuple[str, bytes]],
    folder: str = "",
) -> dict[str, bytes]:
    """The members of the wheel that the project below `folder` of the tree gives."""
    project = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND, **files}
    tree = bare.tree({f"{folder}/{path}" if folder else path: data for path, data in project.items()})
    commit = bare.commit(tree)
    settings = Settings.from_environment({"HOME": "/nonexistent", "PATH": os.environ["PATH"]})
    url = f"{server.url}/demo.git"
    archive = git.archive(git.TreeSource(url, commit, tree), "demo-1.0", Context(debian.store, settings, Quiet()))
    file = LockedFile("demo-1.0.tar", archive.size, archive.digest.removeprefix("sha256:"), GIT)
    workshop = SdistBuilder(debian.layer.diff_id, "/usr/bin/python3.11", lambda: debian.rootfs, debian.store, Quiet())
    made = sdist.build("demo", "1.0", LockedSdist(file, (), git=LockedGit("main", url, commit, tree, folder)), workshop)
    assert made.index == GIT
    with zipfile.ZipFile(io.BytesIO(debian.store.read(made.digest))) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_a_commit_becomes_a_wheel(bare: Bare, server: GitServer, debian: Debian) -> None:
    files = {"demo/__init__.py": b"X = 1\n", "demo/README": b"1", "demo/readme": b"2", "demo/l.py": (LINK, b"../x.py")}
    assert build(bare, server, debian, {**files, "x.py": b"Y = 2\n"}) == {
        "demo/README": b"1", "demo/__init__.py": b"X = 1\n", "demo/l.py": b"Y = 2\n", "demo/readme": b"2"
    }  # fmt: skip


def test_a_project_in_a_folder_of_a_commit(bare: Bare, server: GitServer, debian: Debian) -> None:
    assert build(bare, server, debian, {"demo/__init__.py": b"X = 1\n"}, "packages/demo") == {
        "demo/__init__.py": b"X = 1\n"
    }


def test_a_version_that_git_would_derive_is_the_matrixs(bare: Bare, server: GitServer, debian: Debian) -> None:
    backend = BACKEND.replace(
        b"    return name",
        b"""\
        import os
        wheel.writestr(zipfile.ZipInfo("demo/version"), os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"])
    return name""",
    )
    files: dict[str, bytes | tuple[str, bytes]] = {"demo/__init__.py": b"", "backend.py": backend}
    assert build(bare, server, debian, files)["demo/version"] == b"1.0"


def test_what_git_lfs_keeps_is_missed(bare: Bare, server: GitServer, debian: Debian) -> None:
    with pytest.raises(WheelError, match=r"demo-1\.0\.tar lacks files that Git LFS stores") as caught:
        build(bare, server, debian, {"demo/__init__.py": b"", "demo/weights": LFS})
    assert "demo/weights" in str(caught.value)
    assert build(bare, server, debian, {"demo/__init__.py": b"", "picture": LFS}) == {"demo/__init__.py": b""}


def test_a_backend_finds_no_repository(bare: Bare, server: GitServer, debian: Debian) -> None:
    """Nothing of git is there to be asked for a version, and no network to fetch a submodule."""
    backend = BACKEND + b"import socket\nsocket.create_connection(('127.0.0.1', 80), 2)\n"
    with pytest.raises(SandboxError, match=r"demo-1\.0\.tar could not be made into a wheel"):
        build(bare, server, debian, {"demo/__init__.py": b"", "backend.py": backend})
