"""Files and directories that killed processes left outside of the store: removed by the next run, unless in use."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from imagegen.core import data, temporary

WRITE = """
import os, signal, sys
from pathlib import Path
from imagegen.core import data
from imagegen.core import temporary
def content():
    yield b"half"
    os.kill(os.getpid(), signal.SIGKILL)
with temporary.temporary_directory() as folder:
    (folder / "file").write_text("x")
    data.write(Path(sys.argv[1]), content())
"""


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that a process was killed at while it wrote it, with a temporary directory in TMPDIR."""
    file, tmpdir = tmp_path / "locks" / "demo.toml", tmp_path / "tmp"
    tmpdir.mkdir()
    file.parent.mkdir()
    file.write_bytes(b"before")
    monkeypatch.setattr(tempfile, "tempdir", str(tmpdir))
    command = [sys.executable, "-c", WRITE, str(file)]
    assert subprocess.run(command, env={"TMPDIR": str(tmpdir)}, check=False).returncode == -signal.SIGKILL
    assert file.read_bytes() == b"before"
    assert [len(list(folder.glob(".imagegen-tmp-*"))) for folder in (file.parent, tmpdir)] == [1, 1]
    return file


@pytest.mark.fault(
    "Killed and damaged", "SIGKILL while a lock, a changelog or a mirror's blob is written",
    "the next run removes the unfinished file and the temporary directory",
)  # fmt: skip
def test_what_a_killed_process_left_goes_with_the_next_write(killed: Path, tmp_path: Path) -> None:
    data.write(killed.with_name("other.toml"), b"after")
    assert {path.name for path in killed.parent.iterdir()} == {"demo.toml", "other.toml"}
    with temporary.temporary_directory() as folder:
        assert list((tmp_path / "tmp").iterdir()) == [folder]
    assert not list((tmp_path / "tmp").iterdir())


def test_files_in_use_and_files_of_the_user_stay(tmp_path: Path) -> None:
    kept = [".imagegen-tmp-notes", ".imagegen-tmp-abcdefgh.txt", ".demo.toml-abcdefgh"]
    for name in kept:
        (tmp_path / name).write_text("mine")
    handle, used = temporary.new_file(tmp_path, temporary.UNFINISHED)
    with temporary.new_directory(tmp_path, temporary.UNFINISHED) as folder:
        (folder / "file").write_text("x")
        (tmp_path / ".imagegen-tmp-abcdefgh").symlink_to(folder)
        data.write(tmp_path / "file", b"content")
        assert (folder / "file").exists()
        assert {path.name for path in tmp_path.iterdir()} == {
            *kept, used.name, folder.name, "file", ".imagegen-tmp-abcdefgh",
        }  # fmt: skip
    open(handle).close()


def test_a_file_is_written_where_no_file_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    data.write(tmp_path / "file", b"content")
    with temporary.temporary_directory(tmp_path):
        pass
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"content"]
