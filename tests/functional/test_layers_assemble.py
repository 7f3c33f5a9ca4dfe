"""Assembling: what happens when parts fail, and what is checked when nothing has to be made."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base as image_base
from imagegen.image.layers import LayerStack, resolve_layers
from imagegen.image.layers import assembly as assembling
from imagegen.image.layers.byte_code import Compiler
from imagegen.image.layers.ownership import OwnershipErrors
from imagegen.image.layers.plan import plan
from imagegen.image.layers.sizes import layer_sizes, package_sizes, shared
from imagegen.lock.model import FileConflict, LockedWheel
from tests.support.errors import raises
from tests.support.layer_inputs import lock_of, locked

pytestmark = pytest.mark.usefixtures("compiled_on_host")


@pytest.mark.usefixtures("empty_base")
def test_layers_that_are_known_one_by_one_may_still_clash(store: Store, tmp_path: Path, settings: Settings) -> None:
    one = locked(store, tmp_path, "one", {"shared.py": b"x = 1\n"})
    two = locked(store, tmp_path, "two", {"shared.py": b"x = 2\n"})
    assert len([part for part in plan(lock_of(one, two)) if part.wheels]) == 2, "the two must lie in different layers"
    for wheel in (one, two):
        assembling.assemble(lock_of(wheel), Context(store, settings, Quiet()))
    with pytest.raises(OwnershipErrors, match=r"shared\.py"):
        assembling.assemble(lock_of(one, two), Context(store, settings, Quiet()))


@pytest.mark.usefixtures("empty_base")
def test_known_layers_are_checked_without_their_wheels(store: Store, tmp_path: Path, settings: Settings) -> None:
    lock = lock_of(locked(store, tmp_path, "one", {"one.py": b"x = 1\n"}))
    built = assembling.assemble(lock, Context(store, settings, Quiet()))
    store.path("sha256:" + lock.wheels[0].file.sha256).unlink()
    assert assembling.assemble(lock, Context(store, settings, Quiet())) == built


def test_a_base_that_fails_ends_the_downloads(
    store: Store, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [locked(store, tmp_path, name, {f"{name}.py": b""}) for name in ("one", "two", "three")]
    log: list[str] = []
    begun = threading.Event()

    def arrivals(*_: Any) -> Iterator[LockedWheel]:
        try:
            for wheel in wheels:
                log.append(wheel.name)
                begun.set()
                time.sleep(0.1)
                yield wheel
        finally:
            log.append("stopped")

    def broken(*_: Any) -> Path:
        begun.wait(10)
        raise BaseError("mmdebstrap is not installed")

    monkeypatch.setattr(assembling, "fetch_each", arrivals)
    monkeypatch.setattr(image_base, "rootfs", broken)
    with pytest.raises(BaseError, match="mmdebstrap"):
        assembling.assemble(lock_of(*wheels), Context(store, settings, Quiet()))
    assert log[-1] == "stopped"
    assert "three" not in log


def test_a_compiler_that_dies_is_named_and_replaced(tmp_path: Path) -> None:
    rootfs: Future[Path] = Future()
    rootfs.set_result(tmp_path)
    source = ("/opt/venv/x.py", b"x = 1\n")
    with Compiler(rootfs, "python", 1) as compiler:
        first = compiler.submit([source]).result()
        compiler.processes[0].kill()
        compiler.processes[0].wait()
        with raises("sandbox-compiler-stopped"):
            compiler.submit([source]).result()
        assert compiler.submit([source]).result() == first


@pytest.mark.usefixtures("empty_base")
def test_byte_code_is_kept_for_when_a_neighbour_changes(
    store: Store, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"pack{number}" for number in range(12)]
    stay, move, *_ = next(
        part.wheels
        for part in plan(lock_of(*(locked(store, tmp_path, name, {f"{name}.py": b"x = 1\n"}) for name in names)))
        if len(part.wheels) > 1
    )
    changed = locked(store, tmp_path, move.name, {f"{move.name}.py": b"y = 2\n"})
    compiled: list[str] = []
    submit = Compiler.submit

    def counted(self: Compiler, sources: Any) -> Any:
        compiled.extend(path.rpartition("/")[2] for path, _ in sources if "/site-packages/" in path)
        return submit(self, sources)

    monkeypatch.setattr(Compiler, "submit", counted)
    assembling.assemble(lock_of(stay, move), Context(store, settings, Quiet()))
    assert sorted(compiled) == sorted([f"{stay.name}.py", f"{move.name}.py"])
    compiled.clear()
    second = assembling.assemble(lock_of(stay, changed), Context(store, settings, Quiet()))
    assert compiled == [f"{move.name}.py"]

    other = Store(tmp_path / "other")
    for wheel in (stay, changed):
        other.write(store.read(wheel.file.digest))
    other.write(bytes(1024))
    assert assembling.assemble(lock_of(stay, changed), Context(other, settings, Quiet())).digest == second.digest


@pytest.mark.usefixtures("empty_base")
def test_the_bottom_of_the_stack_grows_as_layers_are_built(store: Store, tmp_path: Path, settings: Settings) -> None:
    lock = lock_of(*(locked(store, tmp_path, name, {f"{name}.py": b""}) for name in ("one", "two", "three")))
    resolved = resolve_layers(lock, store)
    stack, bottoms = LayerStack(resolved), []
    for layer in assembling.ensure_layers(resolved, Context(store, settings, Quiet())):
        stack.add(layer)
        bottoms.append([each.name for each in stack.bottom()])
    whole = [layer.name for layer in stack.layers()]
    assert bottoms[-1] == whole
    assert all(names == whole[: len(names)] for names in bottoms)
    assert [len(names) for names in bottoms] == sorted(len(names) for names in bottoms)


@pytest.mark.usefixtures("empty_base")
def test_the_owners_file_alone_is_in_the_layers(store: Store, tmp_path: Path, settings: Settings) -> None:
    wheels = [locked(store, tmp_path, name, {"s.py": name.encode(), f"{name}.py": b""}) for name in ("one", "two")]
    lock = lock_of(*wheels)
    with pytest.raises(OwnershipErrors):
        assembling.assemble(lock, Context(store, settings, Quiet()))
    keys = {part.key for part in plan(lock)}
    lock = replace(lock, file_conflicts=(FileConflict("r", "two", ("one",), "*/site-packages/s.py", "b"),))
    assert len({part.key for part in plan(lock)} - keys) == 1, "the layer that leaves out, and no other, is another"
    built = assembling.assemble(lock, Context(store, settings, Quiet()))
    found: dict[str, bytes] = {}
    for layer in built.layers[1:]:
        raw = zstandard.ZstdDecompressor().stream_reader(store.path(layer.digest).read_bytes(), read_across_frames=True)
        with tarfile.open(fileobj=io.BytesIO(raw.read())) as tar:
            for member in tar:
                if member.isreg() and "/s." in member.name:
                    assert member.name not in found
                    found[member.name] = tar.extractfile(member).read()  # type: ignore[union-attr]
    assert found.pop("opt/venv/lib/python3.11/site-packages/s.py") == b"two"
    assert list(found) == ["opt/venv/lib/python3.11/site-packages/__pycache__/s.cpython-311.pyc"]


@pytest.mark.usefixtures("empty_base")
def test_what_an_image_weighs_is_what_its_layers_and_wheels_say(
    store: Store, tmp_path: Path, settings: Settings
) -> None:
    one = locked(store, tmp_path, "one", {"one.py": b"x = 1\n" * 1000})
    two = locked(store, tmp_path, "two", {"two.py": b""})
    lock = lock_of(one, two)
    assert {size.unpacked for size in layer_sizes(lock, store)} == {None}  # nothing is made yet
    built = assembling.assemble(lock, Context(store, settings, Quiet()))
    assert [(size.packed, size.unpacked) for size in layer_sizes(lock, store)] == [
        (layer.size, layer.unpacked) for layer in built.layers
    ]
    store.path(two.file.digest).unlink()
    heaviest, other = package_sizes(lock, store)
    with zipfile.ZipFile(store.path(one.file.digest)) as wheel:
        assert heaviest.unpacked == sum(member.file_size for member in wheel.infolist()) > 6000
    assert (heaviest.name, other.name, other.packed, other.unpacked) == ("one", "two", two.file.size, None)

    damaged = store.write(b"PK")
    broken = replace(one, file=replace(one.file, sha256=damaged.removeprefix("sha256:"), size=2))
    assert [size.unpacked for size in package_sizes(lock_of(broken), store)] == [None]

    recorded = replace(lock, record=assembling.record_of(built))
    sibling = assembling.assemble(lock_of(one), Context(store, settings, Quiet()))
    with_sibling = replace(lock_of(one), cell="sibling", record=assembling.record_of(sibling))
    common = [layer for layer in built.layers if layer.digest in {each.digest for each in sibling.layers}]
    assert len(common) == 3  # the base, the environment's skeleton, and the first wheel
    assert shared(recorded, [with_sibling]) == {"sibling": (3, sum(layer.size for layer in common))}


@pytest.mark.slow
@pytest.mark.usefixtures("empty_base")
def test_a_wheel_of_100_000_files(store: Store, tmp_path: Path, settings: Settings) -> None:
    files = {f"many/d{number % 100}/f{number}.txt": b"%d" % number for number in range(100_000)}
    wheel = locked(store, tmp_path, "many", files)
    built = assembling.assemble(lock_of(wheel), Context(store, settings, Quiet()))
    (layer,) = [each for each in built.layers if each.name == "many"]
    assert layer.unpacked is not None
    assert layer.unpacked > 100_000 * 1024


# Starts threads that allocate at the same time, and prints how many arenas glibc has then (malloc_info(3)).
ARENAS = """
import ctypes, sys, threading
from imagegen.image.layers.assembly import limit_heap

limit_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes, libc.fclose.argtypes = (ctypes.c_int, ctypes.c_void_p), (ctypes.c_void_p,)
together = threading.Barrier(4)

def allocate():
    together.wait()
    for _ in range(1000):
        libc.malloc(1 << 10)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
print(open(sys.argv[1]).read().count("<heap nr="))
"""


@pytest.mark.parametrize(("program", "arenas"), [(ARENAS, 1), (ARENAS.replace("\nlimit_heap()\n", "\n"), 5)])
def test_threads_that_convert_share_one_heap(program: str, arenas: int, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", program, str(tmp_path / "heaps.xml")]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == arenas
