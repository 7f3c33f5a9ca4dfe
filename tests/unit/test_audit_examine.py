"""Open files are scanned in parts, with the same result as for their bytes in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagegen.audit.examine import examine
from imagegen.audit.model import CodeTarget
from imagegen.audit.window import OnDisk, Unreadable, Window
from tests.fuzz.binaries import seeds
from tests.support.elf_files import make_elf, make_fatbin
from tests.support.golden import Golden

LARGE = make_elf(
    needed=["libc10.so"],
    undefined=["a"],
    exported=["b"],
    fatbin=make_fatbin([[CodeTarget("sass", 90)], [CodeTarget("sass", 80)]], bytes(1 << 18)),
)


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


@pytest.mark.parametrize("data", [*seeds().values(), LARGE, LARGE[:-100]], ids=[*seeds(), "large", "cut"])
def test_an_open_file_is_what_its_bytes_are(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with descriptor(path) as number:
        assert examine(OnDisk(number, len(data)), size=len(data)) == examine(data, size=len(data))


def test_little_of_a_large_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(LARGE)
    read, pread = [], os.pread

    def counting(number: int, size: int, at: int) -> bytes:
        read.append(size)
        return pread(number, size, at)

    monkeypatch.setattr(os, "pread", counting)
    with descriptor(path) as number:
        found = examine(OnDisk(number, len(LARGE)), size=len(LARGE))
    assert [group.count for group in found.code] == [1, 1]
    assert sum(read) < 16 << 10 < len(LARGE)


def test_a_file_that_becomes_shorter_is_unreadable(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "x"
    path.write_bytes(LARGE)
    with descriptor(path) as number:
        data = OnDisk(number, len(LARGE))
        assert data[10:20] == LARGE[10:20]
        os.truncate(path, 5000)
        with pytest.raises(Unreadable, match="became shorter"):
            Window(data).take(4990, 20, "its header")
        found = examine(data, size=len(LARGE))
    golden.check(found.unreadable)
