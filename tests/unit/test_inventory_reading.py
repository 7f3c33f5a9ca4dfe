"""Many files, read by two processes: what they find is what one finds, also when the second one ends too early."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from imagegen.audit.model import Target
from imagegen.inventory import reading
from imagegen.inventory.reading import Told
from imagegen.inventory.tree import Regular
from tests.elf_samples import make_elf

PTX = b".version 8.7\n.target sm_90a\n"

# In a process that has threads, forking is what nobody should do; a test's may have some of its runner's.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture
def files(tmp_path: Path) -> list[Told]:
    contents = {"a.so": make_elf(undefined=["f"], exported=["g"]), "b.cubin": b"\x7fELF", "c.ptx": PTX, "d": b"text"}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "d").chmod(0o755)
    found = [(str(tmp_path / name), Regular(len(data))) for name, data in contents.items()]
    return [*found, (str(tmp_path / "gone"), Regular(1))]


def test_two_processes_find_what_one_finds(files: list[Told]) -> None:
    found = reading._halved(files[1:], files[:1])
    assert found == reading.examined(files)
    library, cubin, ptx, text, gone = (found[path] for path, _ in files)
    assert library.elf is not None
    assert (library.elf.undefined, library.elf.exported) == ({"f"}, {"g"})
    assert cubin.unreadable is not None
    assert [group.targets for group in ptx.code] == [(Target("ptx", 90, "a", (8, 7)),)]
    assert (text.executable, text.elf, text.unreadable) == (True, None, None)
    assert gone.unreadable == "it cannot be opened: No such file or directory"


def test_a_second_process_that_is_ended_loses_nothing(files: list[Told], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(told: Sequence[Told], sender: Connection) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    whole = reading.examined(files)
    monkeypatch.setattr(reading, "_tell", killed)
    assert reading._halved(files[1:], files[:1]) == whole
