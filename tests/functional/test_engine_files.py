"""Files that are copied into a container, and how a program in it ended."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.engine.containers import Outcome, tar_of


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z ]{1,8}){0,2}", fullmatch=True), st.binary(), max_size=5))
def test_tar_of_holds_the_files_and_nothing_else(files: dict[str, bytes]) -> None:
    archive = tar_of(files)
    assert tar_of(dict(reversed(files.items()))) == archive
    if not files:
        assert archive == b""
        return
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        assert {each.name: (tar.extractfile(each) or io.BytesIO()).read() for each in members} == files
        assert {(each.uid, each.gid, each.mtime, each.mode) for each in members} == {(0, 0, 315532800, 0o644)}


@pytest.mark.parametrize(
    ("code", "name"), [(0, None), (1, None), (128, None), (137, "SIGKILL"), (139, "SIGSEGV"), (255, None)]
)
def test_death_by_signal_has_a_name(code: int, name: str | None) -> None:
    assert Outcome(code, b"", b"").signal == name
