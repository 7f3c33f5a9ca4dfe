"""An index that asks for a password: pypiserver with an htpasswd file, whose pages have no upload times."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from imagegen import lock
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.net import MissingFiles, with_indexes
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import inputs
from imagegen.spec.model import Index
from tests.support.machines import Place, committed
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.integration

USER, PASSWORD = "trainer", "s3cret-of-a-team"
CELL = "mine-cpu-py311"
MATRIX = """\
indexes:
  ours: {{description: D., url: "{url}"}}
images:
  mine:
    description: D.
    purpose: P.
    base: debian12
    components:
      mypkg: {{index: ours}}
"""


@dataclass(frozen=True)
class PrivateIndex:
    """A server of packages on loopback: its port, and the directory of its files."""

    port: int
    root: Path

    def url(self, credentials: str = "") -> str:
        """Return the address of the index, with credentials in it where they are given."""
        return f"http://{credentials}127.0.0.1:{self.port}/simple"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateIndex]:
    root = tmp_path_factory.mktemp("private")
    packages, passwords = root / "packages", root / "htpasswd"
    packages.mkdir()
    make_wheel(packages, {}, filename="mypkg-0.3.0-py3-none-any.whl", info="mypkg-0.3.0.dist-info")
    digest = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode()
    passwords.write_text(f"{USER}:{{SHA}}{digest}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pypiserver", "run", "--interface", "127.0.0.1", "--port", str(port)]
    command += ["--passwords", str(passwords), "--authenticate", "list,download,update", "--disable-fallback"]
    server = subprocess.Popen([*command, str(packages)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port)
        yield PrivateIndex(port, packages)
    finally:
        server.terminate()
        server.wait()


def _wait(port: int) -> None:
    """Wait until something listens. Raises OSError after a minute."""
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise OSError("pypiserver did not start")


def place(index: PrivateIndex, root: Path, env: dict[str, str]) -> Place:
    """Return a machine with a project that takes a package of the index.

    Its lock has a base and no package yet: resolving the base is most of the work of a first lock.
    """
    (root / "matrices").mkdir(parents=True)
    (root / "matrices/mine.yaml").write_text(MATRIX.format(url=index.url()))
    based = replace(committed("cpu-grpo-cpu-py311"), cell=CELL, image="mine", wheels=(), record=None)
    lock.write(based, root / "locks" / f"{CELL}.toml")
    return Place(root, None, env={"NETRC": "/nonexistent", **env})


def given(how: str, index: PrivateIndex, root: Path, password: str = PASSWORD) -> dict[str, str]:
    """Return the variables that give the credentials in one of the documented ways."""
    if how == "netrc":
        file = root / "netrc"
        file.write_text(f"machine 127.0.0.1 login {USER} password {password}\n")
        file.chmod(0o600)
        return {"NETRC": str(file)}
    if how == "address":
        return {"IMAGEGEN_INDEX_OURS": index.url(f"{USER}:{password}@")}
    return {"UV_INDEX_OURS_USERNAME": USER, "UV_INDEX_OURS_PASSWORD": password}


def addressed(settings: Settings, index: PrivateIndex) -> Settings:
    """Return the settings with the address that the matrix gives."""
    return with_indexes(settings, {"ours": Index("ours", index.url(), "")})


def files_with(text: str, root: Path) -> list[Path]:
    """Return the files below `root` that contain a text."""
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.parametrize("how", ["netrc", "variables", "address"])
def test_credentials_reach_the_index_and_nothing_else(how: str, index: PrivateIndex, tmp_path: Path) -> None:
    env = given(how, index, tmp_path)
    here = place(index, tmp_path / "project", env)
    done = here.call("lock", "mine")
    locked = lock.read(here.root / "locks" / f"{CELL}.toml")
    own = replace(locked, wheels=tuple(wheel for wheel in locked.wheels if wheel.name == "mypkg"))
    assert [(wheel.version, wheel.file.index) for wheel in own.wheels] == [("0.3.0", "ours")]
    said = done.stdout + done.stderr
    assert "ours" in said  # the note about upload times
    assert PASSWORD not in said
    assert not files_with(PASSWORD, here.root)
    settings = replace(Settings.from_environment({"HOME": str(tmp_path), **env}), find_links=())
    context = Context(Store(tmp_path / "store"), addressed(settings, index), Quiet())
    inputs.fetch(own, context)
    assert context.store.has(own.wheels[0].file.digest)


@pytest.mark.parametrize("how", ["none", "netrc", "variables", "address"])
def test_a_refused_password_is_an_error_that_does_not_show_it(how: str, index: PrivateIndex, tmp_path: Path) -> None:
    env = {} if how == "none" else given(how, index, tmp_path, "wr0ng-password")
    here = place(index, tmp_path / "project", env)
    (locked,) = (here.root / "locks").iterdir()
    before = locked.read_bytes()
    done = here.call("lock", "mine", code=68)
    assert re.search(r"error\[fetch-[a-z-]+\]", done.stderr)
    assert f"127.0.0.1:{index.port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert "wr0ng-password" not in done.stdout + done.stderr
    assert not files_with("wr0ng-password", here.root)
    assert locked.read_bytes() == before


def test_a_wheel_without_credentials_is_missing(index: PrivateIndex, tmp_path: Path) -> None:
    env = given("netrc", index, tmp_path)
    here = place(index, tmp_path / "project", env)
    here.call("lock", "mine")
    locked = lock.read(here.root / "locks" / f"{CELL}.toml")
    settings = replace(Settings.from_environment({"HOME": str(tmp_path / "empty")}), find_links=())
    context = Context(Store(tmp_path / "store"), addressed(settings, index), Quiet())
    with pytest.raises(MissingFiles):
        inputs.fetch(replace(locked, wheels=tuple(w for w in locked.wheels if w.name == "mypkg")), context)
