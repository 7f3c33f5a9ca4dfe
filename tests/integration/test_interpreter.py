"""A standalone interpreter under a small cell: twice the same image, and one in which users compile extensions.

Its archive is a stand-in, written from the specification of python-build-standalone's `install_only` archives: the
CPython of Debian's packages in that layout, with prefix /install.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import zstandard

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.engine import Engine
from imagegen.image import base, file_tree, layers
from imagegen.lock.interpreter import InterpreterArchive, LockedInterpreter
from imagegen.lock.model import Lock
from tests.support.container_shell import Shell
from tests.support.machines import Debian
from tests.support.small_cell import write_project

pytestmark = pytest.mark.integration

HOME = "/opt/python/3.11"
NAME = "cpython-3.11.2+20260814-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
PROGRAM = """\
import json, sys, sysconfig, _bisect
names = ("CC", "prefix", "INCLUDEPY")
print(json.dumps([sys.prefix, sys.base_prefix, json.__cached__, *sysconfig.get_config_vars(*names)]))
"""


@dataclass(frozen=True)
class Small:
    """A cell on the stand-in, and where its files are."""

    lock: Lock
    settings: Settings


def pack(root: Path, target: Path) -> None:
    """Write the stand-in of Debian's CPython 3.11 below `root`, a base's tree."""
    places = {"usr/bin/python3.11": "bin/python3.11", "usr/lib/python3.11": "lib/python3.11"}
    with tarfile.open(target, "w:gz") as tar:
        for source, name in places.items():
            tar.add(root / source, f"python/{name}", filter=_as_built)
        link = tarfile.TarInfo("python/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, "python3.11"
        tar.addfile(link)
        name = "_sysconfigdata__x86_64-linux-gnu.py"
        text = (root / "usr/lib/python3.11" / name).read_text()
        text = text.replace("x86_64-linux-gnu-gcc", "clang").replace("'/usr", "'/install")
        info = tarfile.TarInfo(f"python/lib/python3.11/{name}")
        info.size = len(text.encode())
        tar.addfile(info, io.BytesIO(text.encode()))


def _as_built(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "_sysconfigdata_" in member.name or (member.issym() and member.linkname.startswith(("/", ".."))):
        return None  # the one is rewritten; links of Debian's leave the directory
    member.uid = member.gid = 0
    return member


@pytest.fixture(scope="module")
def small(debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> Small:
    work_dir = tmp_path_factory.mktemp("interpreter")
    made = write_project(work_dir / "project", work_dir / "links", debian)
    pack(debian.rootfs, work_dir / "links" / NAME)
    sha256 = hashlib.sha256((work_dir / "links" / NAME).read_bytes()).hexdigest()
    file = InterpreterArchive(NAME, sha256, f"http://127.0.0.1:9/20260814/{NAME}")
    python = LockedInterpreter("standalone-3.11", "3.11.2", f"{HOME}/bin/python3.11", "20260814", file)
    env = {**os.environ, "PIP_FIND_LINKS": str(work_dir / "links")}
    return Small(replace(made, interpreter=python), Settings.from_environment(env))


def assembled(small: Small, debian: Debian, at: Path) -> tuple[Store, layers.Image]:
    """The image, made in a store that has the base alone."""
    store = Store(at)
    os.link(debian.store.path(debian.layer.diff_id), store.path(debian.layer.diff_id))
    Cache("base", dict).put(store, base.key(debian.locked), asdict(debian.layer))
    settings = replace(small.settings, store=at)
    return store, layers.assemble(small.lock, Context(store, settings, Quiet()))


@pytest.fixture(scope="module")
def built(small: Small, debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, layers.Image]:
    return assembled(small, debian, tmp_path_factory.mktemp("first") / "store")


def files_of(store: Store, layer: layers.Layer) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    raw = zstandard.ZstdDecompressor().stream_reader(store.read(layer.digest), read_across_frames=True).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            yield member, content.read() if content else b""


def test_its_layer_lies_on_the_base(built: tuple[Store, layers.Image]) -> None:
    store, image = built
    assert [layer.name for layer in image.layers[:3]] == ["base", "interpreter", "venv"]
    found = {f"/{member.name}": (member, content) for member, content in files_of(store, image.layers[1])}
    assert all(path.startswith(HOME) or path in {"/opt", "/opt/python"} for path in found)
    assert {(member.uid, member.gid, member.mtime) for member, _ in found.values()} == {(0, 0, found[HOME][0].mtime)}
    sources = [path for path in found if path.startswith(f"{HOME}/lib/python3.11/json/") and path.endswith(".py")]
    assert sources
    for path in sources:
        folder, _, name = path.rpartition("/")
        pyc = found[f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-311.pyc"][1]
        assert struct.unpack("<I", pyc[4:8]) == (1,)  # PEP 552: by hash, unchecked
    data = found[f"{HOME}/lib/python3.11/_sysconfigdata__x86_64-linux-gnu.py"][1].decode()
    assert f"'prefix': '{HOME}'" in data
    assert "clang" not in data.split("'CC': ")[1].split("\n")[0]


def test_two_stores_give_one_image(
    small: Small, debian: Debian, built: tuple[Store, layers.Image], tmp_path: Path
) -> None:
    _, again = assembled(small, debian, tmp_path / "store")
    assert again.digest == built[1].digest


def test_containers_run_on_it(small: Small, built: tuple[Store, layers.Image], engine: Engine) -> None:
    store, image = built
    ref = "imagegen-tests/interpreter:1"
    try:
        engine.load(store, image.digest, ref)
        found = json.loads(Shell(engine, ref).python(PROGRAM))
        cached = f"{HOME}/lib/python3.11/json/__pycache__/__init__.cpython-311.pyc"
        assert found == ["/opt/venv", HOME, cached, "cc", HOME, f"{HOME}/include/python3.11"]
    finally:
        engine.client.api.remove_image(ref, force=True)
    assert file_tree.tree(
        small.lock.foundation, Context(store, replace(small.settings, store=store.root), Quiet())
    ).is_dir()
