"""Scans of files in a directory, and of files that cannot be read."""

from __future__ import annotations

from pathlib import Path

from imagegen.audit.model import CodeTarget
from imagegen.image.inventory import disk
from imagegen.image.inventory.tree import Regular
from tests.support.elf_files import make_elf
from tests.support.golden import Golden


def test_each_file_is_scanned_for_itself(tmp_path: Path, golden: Golden) -> None:
    ptx = b".version 8.7\n.target sm_90a\n"
    contents = {"a.so": make_elf(undefined=["f"], exported=["g"]), "b.cubin": b"\x7fELF", "c.ptx": ptx, "d": b"text"}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "d").chmod(0o755)
    files = [(str(tmp_path / name), Regular(len(data))) for name, data in contents.items()]
    found = disk.examined([*files, (str(tmp_path / "gone"), Regular(1))])
    library, cubin, text_code, text, gone = (found[str(tmp_path / name)] for name in (*contents, "gone"))
    assert library.elf is not None
    assert (library.elf.undefined, library.elf.exported) == ({"f"}, {"g"})
    assert cubin.unreadable is not None
    assert [group.targets for group in text_code.code] == [(CodeTarget("ptx", 90, "a", (8, 7)),)]
    assert (text.executable, text.elf, text.unreadable) == (True, None, None)
    golden.check(gone.unreadable)
