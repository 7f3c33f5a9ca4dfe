"""A standalone interpreter in a lock: its table, where its archive comes from, and the tree that it becomes part of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from imagegen import lock, mirror
from imagegen.core import net
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, LockError
from imagegen.core.net import MissingFiles
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base, file_tree, inputs
from imagegen.image.file_tree import libpython_link, sdist_builder
from imagegen.image.layers.base_layers import plan_base
from imagegen.image.layers.plan import layer_key, plan
from imagegen.lock import sources
from imagegen.lock.file import loads
from imagegen.lock.interpreter import MIRROR, InterpreterArchive, LockedInterpreter, own_python, resolve_interpreter
from imagegen.lock.model import Foundation, Lock, LockedDeb
from imagegen.lock.sources import fetch_interpreter
from imagegen.mirror import listing as mirror_listing
from imagegen.oci.registry.mirror import place
from imagegen.spec.foundation import Interpreter, InterpreterFile
from tests.support import lock_samples
from tests.support.interpreter_archives import SOUND, archive
from tests.support.interpreters import ARCHIVE, LOCKED, STANDALONE

PATH = "20260814/cpython-3.12.14%2B20260814-x.tar.gz"
OF_312 = replace(lock_samples.LOCK, interpreter=STANDALONE, axes={**lock_samples.LOCK.axes, "python": "3.12"})


def settings_of(tmp_path: Path, **env: str) -> Settings:
    nothing = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "UV_HTTP_RETRIES": "0"}
    return Settings.from_environment({**nothing, **env})


@pytest.fixture
def made(tmp_path: Path) -> tuple[bytes, LockedInterpreter]:
    """An archive, and an interpreter of which nothing answers at its own address."""
    elsewhere = Store(tmp_path / "elsewhere")
    data = elsewhere.read(archive(elsewhere, *SOUND).digest)
    file = InterpreterArchive(
        "cpython-3.12.14+20260814-x.tar.gz", hashlib.sha256(data).hexdigest(), f"http://127.0.0.1:9/{PATH}"
    )
    return data, replace(STANDALONE, file=file)


def test_the_table_is_read_as_it_was_written() -> None:
    assert loads(lock.dumps(OF_312)).interpreter == STANDALONE
    assert loads(lock.dumps(lock_samples.LOCK)).interpreter == LOCKED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f'sha256 = "{ARCHIVE.sha256}"\n', ""),
        (ARCHIVE.sha256, "../x"),
        ("/opt/python/3.12/bin/python3.12", "/usr/bin/python3.12"),
        ("/opt/python/3.12/bin/python3.12", "/opt/python/3.12/bin/python3.11"),
        ('version = "3.12.14"', 'version = "3.13.1"'),
        ("https://downloads", "http://downloads"),
        (f'file = "{ARCHIVE.filename}"', 'file = "other.tar.gz"'),
        ('python = "3.12"', 'python = "3.11"'),
    ],
)
def test_an_edited_table_is_refused(old: str, new: str) -> None:
    text = lock.dumps(OF_312)
    assert text.count(old) >= 1
    with pytest.raises(LockError):
        loads(text.replace(old, new))


def test_a_lock_repeats_the_matrix() -> None:
    files = {"linux/amd64": InterpreterFile(PATH, "c" * 64)}
    requested = Interpreter("standalone-3.12", "3.12", STANDALONE.path, (), "3.12.14", "20260814", files)
    found = resolve_interpreter(requested, "linux/amd64", ())
    assert found.file and (found.file.filename, found.file.sha256) == ("cpython-3.12.14+20260814-x.tar.gz", "c" * 64)
    assert found.file.url.endswith(f"/releases/download/{PATH}")
    own = Interpreter("debian12-3.11", "3.11", "/usr/bin/python3.11", ("debian12",))
    assert resolve_interpreter(own, "linux/amd64", ()) == LockedInterpreter("debian12-3.11", "3.11", own.path)
    deb = LockedDeb("python3.11", "3.11.2-6+deb12u6", "amd64", 1, "a" * 64, "debian", "pool/x.deb")
    assert resolve_interpreter(own, "linux/amd64", [deb]).version == "3.11.2"


def lacks_archive(locked: LockedInterpreter, store: Store) -> bool:
    """Return whether an error about other missing files names the interpreter's archive too."""
    lock = replace(OF_312, interpreter=locked, wheels=())
    missing = inputs.complete(MissingFiles([], store.root), lock, store)
    return bool(locked.file) and locked.file.sha256 in {file.sha256 for file in missing.files}


def variables(tmp_path: Path, data: bytes) -> Mapping[str, dict[str, str]]:
    links, mirrored = tmp_path / "links", tmp_path / "mirror/20260814"
    links.mkdir()
    mirrored.mkdir(parents=True)
    (links / "cpython-3.12.14+20260814-x.tar.gz").write_bytes(data)
    (mirrored / "cpython-3.12.14+20260814-x.tar.gz").write_bytes(data)
    return {
        "find-links": {"PIP_FIND_LINKS": str(links)},
        "uv's mirror": {MIRROR: (tmp_path / "mirror").as_uri() + "/"},
    }


@pytest.mark.parametrize("source", ["find-links", "uv's mirror"])
def test_the_archive_comes_from_any_source_that_has_it(
    tmp_path: Path, made: tuple[bytes, LockedInterpreter], source: str
) -> None:
    data, locked = made
    assert locked.file
    store, env = Store(tmp_path / "store"), variables(tmp_path, data)[source]
    assert lacks_archive(locked, store)
    fetch_interpreter(locked, Context(store, settings_of(tmp_path, **env), Quiet()))
    assert store.read(locked.file.digest) == data
    assert not lacks_archive(locked, store)
    fetch_interpreter(locked, Context(store, settings_of(tmp_path), Quiet()))  # it is there, and nothing is asked


@pytest.mark.parametrize("source", ["find-links", "uv's mirror"])
def test_other_bytes_are_refused(
    tmp_path: Path, made: tuple[bytes, LockedInterpreter], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "Client", partial(net.Client, backoff=0.01))
    data, locked = made
    env = variables(tmp_path, data[:-1] + b"!")[source]
    with pytest.raises(MissingFiles) as raised:
        fetch_interpreter(locked, Context(Store(tmp_path / "store"), settings_of(tmp_path, **env), Quiet()))
    (file,) = raised.value.files
    assert locked.file and (file.filename, file.sha256) == (locked.file.filename, locked.file.sha256)
    assert locked.file.url in file.fix
    assert len(file.tried) == 2


def test_a_mirror_of_ones_own_has_it(tmp_path: Path, made: tuple[bytes, LockedInterpreter]) -> None:
    data, locked = made
    store = Store(tmp_path / "store")
    store.write(data)
    of_312 = replace(OF_312, interpreter=locked, wheels=(), builds=(), file_conflicts=(), record=None)
    (listing, *_) = mirror_listing.listings(of_312, store)
    assert locked.file and locked.file.filename in {name for name, _ in listing.files}
    only = replace(listing, files=tuple(each for each in listing.files if each[0] == locked.file.filename))
    mirror.fill(place(str(tmp_path / "own"), "--to"), [only], Context(store, settings_of(tmp_path), Quiet()))
    other = Store(tmp_path / "other")
    fetch_interpreter(locked, Context(other, settings_of(tmp_path, IMAGEGEN_MIRROR=str(tmp_path / "own")), Quiet()))
    assert other.read(locked.file.digest) == data


def test_a_base_brings_its_own_and_nothing_is_missing(tmp_path: Path) -> None:
    assert not lacks_archive(LOCKED, Store(tmp_path / "store"))
    fetch_interpreter(LOCKED, Context(Store(tmp_path / "store"), settings_of(tmp_path), Quiet()))


def a_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bottom = tmp_path / "bottom"
    (bottom / "usr/bin").mkdir(parents=True)
    (bottom / "usr/bin/true").write_bytes(b"true")
    (bottom / "bin").symlink_to("usr/bin")
    monkeypatch.setattr("imagegen.image.base.rootfs", lambda *_: bottom)
    return bottom


def below(locked: LockedInterpreter) -> Foundation:
    return Foundation(OF_312.base, locked)


def test_the_tree_is_the_base_with_the_interpreter(
    tmp_path: Path, made: tuple[bytes, LockedInterpreter], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, locked = made
    bottom, store = a_base(tmp_path, monkeypatch), Store(tmp_path / "store")
    store.write(data)
    tree = file_tree.tree(below(locked), Context(store, settings_of(tmp_path), Quiet()))
    assert (tree / "bin/true").read_bytes() == b"true"
    assert (tree / "usr/bin/true").samefile(bottom / "usr/bin/true")
    assert (tree / "opt/python/3.12/bin/python3").resolve() == tree / "opt/python/3.12/bin/python3.12"
    assert not (bottom / "opt").exists()
    assert file_tree.tree(below(locked), Context(store, settings_of(tmp_path), Quiet())) == tree
    assert tree.name == file_tree.tree_key(below(locked)).removeprefix("sha256:")
    assert inputs.contents(replace(OF_312, interpreter=locked))[f"sha256:{tree.name}"]
    assert file_tree.tree(below(LOCKED), Context(store, settings_of(tmp_path), Quiet())) == bottom


@pytest.mark.parametrize("path", ["opt/python/3.12", "opt/python", "opt"])
def test_a_base_that_has_something_in_its_place_is_refused(
    tmp_path: Path, made: tuple[bytes, LockedInterpreter], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    data, locked = made
    bottom, store = a_base(tmp_path, monkeypatch), Store(tmp_path / "store")
    store.write(data)
    (bottom / path).parent.mkdir(parents=True, exist_ok=True)
    (bottom / path).symlink_to("/tmp")
    with pytest.raises(BaseError) as raised:
        file_tree.tree(below(locked), Context(store, settings_of(tmp_path), Quiet()))
    assert raised.value.where == f"/{path}"
    assert not list((store.root / "rootfs").glob("*"))


def test_sdists_are_built_by_the_bases_own_python(tmp_path: Path) -> None:
    store, settings = Store(tmp_path / "store"), settings_of(tmp_path)
    deb = LockedDeb("python3.11", "3.11.2-6", "amd64", 1, "a" * 64, "debian", "pool/x.deb")
    others = [replace(deb, name=name) for name in ("libpython3.11-stdlib", "python3.11-minimal", "python3")]
    bare = replace(OF_312.base, debs=())
    with_python = replace(bare, debs=(*others, deb))
    assert (own_python(bare), own_python(with_python)) == (None, "/usr/bin/python3.11")
    first = sdist_builder(Foundation(with_python, LOCKED), Context(store, settings, Quiet()))
    second = sdist_builder(Foundation(with_python, STANDALONE), Context(store, settings, Quiet()))
    assert (first.interpreter, first.key) == (second.interpreter, second.key) == (LOCKED.path, base.key(with_python))
    third = sdist_builder(Foundation(bare, STANDALONE), Context(store, settings, Quiet()))
    assert third.interpreter == STANDALONE.path
    assert third.key not in (base.key(bare), base.key(with_python))


def keys_of(locked: Lock) -> list[str]:
    return [part.key for part in plan_base(locked)]


def names_of(locked: Lock) -> list[str]:
    return [part.name for part in plan_base(locked)]


def test_its_layer_lies_between_base_and_venv() -> None:
    assert names_of(OF_312) == ["base", "interpreter"]
    assert names_of(replace(OF_312, interpreter=LOCKED)) == ["base"]
    other = replace(OF_312, interpreter=replace(STANDALONE, file=replace(ARCHIVE, sha256="d" * 64)))
    (lower, upper), (same, moved) = keys_of(OF_312), keys_of(other)
    assert lower == same
    assert upper != moved
    assert layer_key(OF_312, OF_312.wheels) != layer_key(other, OF_312.wheels)


def test_stacks_on_one_standalone_interpreter_share_layers_whatever_the_base() -> None:
    """A distribution's interpreter is its base's packages; a standalone one is the same on every base."""
    elsewhere = replace(OF_312, base=replace(OF_312.base, debs=OF_312.base.debs[:-1]))
    assert [part.key for part in plan(OF_312)] == [part.key for part in plan(elsewhere)]
    (lower, upper), (moved, same) = keys_of(OF_312), keys_of(elsewhere)
    assert lower != moved
    assert upper == same


@pytest.mark.parametrize("has_library", [True, False])
def test_the_loader_finds_the_library_of_a_standalone_interpreter(tmp_path: Path, has_library: bool) -> None:
    library = tmp_path / "opt/python/3.12/lib/libpython3.12.so.1.0"
    library.parent.mkdir(parents=True)
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    if has_library:
        library.touch()
    link = libpython_link(tmp_path, STANDALONE)
    expected = ("usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0", "/opt/python/3.12/lib/libpython3.12.so.1.0")
    assert link == (expected if has_library else None)
