"""Unified diffs: what applies exactly, and what is refused with the line of the patch."""

from __future__ import annotations

import contextlib
import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.patch import PatchError, apply, parse

OLD = b"one\ntwo\nthree\n"
PATCH = b"""\
From: someone
diff --git a/pkg/x.py b/pkg/x.py
index 1..2 100644
--- a/pkg/x.py
+++ b/pkg/x.py
@@ -1,3 +1,3 @@ def f():
 one
-two
+2
 three
"""


def run(patch: bytes, files: dict[str, bytes]) -> dict[str, bytes | None]:
    return {each.path: apply(each, files.get) for each in parse(patch)}


def test_a_patch_of_git() -> None:
    assert run(PATCH, {"pkg/x.py": OLD}) == {"pkg/x.py": b"one\n2\nthree\n"}


def test_new_and_deleted_files_and_a_missing_newline() -> None:
    text = b"""\
--- /dev/null
+++ b/new.py
@@ -0,0 +1,2 @@
+a
+b
\\ No newline at end of file
--- a/old.py
+++ /dev/null
@@ -1 +0,0 @@
-x
"""
    assert run(text, {"old.py": b"x\n"}) == {"new.py": b"a\nb", "old.py": None}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PATCH.replace(b"-two", b"-tw0"), 6),
        (PATCH.replace(b"-1,3 +1,3", b"-2,3 +2,3"), 6),  # an offset
        (PATCH.replace(b" three\n", b""), 9),
        (PATCH.replace(b"+++ b/pkg/x.py", b"+++ b/pkg/y.py"), 4),
        (PATCH.replace(b"a/pkg/x.py\n+++", b"../x.py\n+++"), 4),
        (PATCH.replace(b"--- a/pkg/x.py", b"--- /dev/null"), 4),
        (b"rename from a\n", 1),
        (b"@@ -1 +1 @@\n", 1),
        (b"text\n", 1),
        (b"--- a/x\n+++ b/x\n", 1),
        (b"--- a/x\nx\n", 1),
    ],
)
def test_what_does_not_apply(text: bytes, line: int) -> None:
    with pytest.raises(PatchError) as raised:
        run(text, {"pkg/x.py": OLD, "pkg/y.py": OLD})
    assert raised.value.line == line


LINES = st.lists(st.sampled_from(["a", "b", "c", "d\r", "-e", "+f", "@@", ""]), max_size=12)


@given(LINES, LINES, st.integers(0, 3))
def test_the_diff_of_two_files_makes_one_of_the_other(old: list[str], new: list[str], context: int) -> None:
    before, after = (("".join(f"{line}\n" for line in lines)).encode() for lines in (old, new))
    first, second = ([f"{line}\n" for line in lines] for lines in (old, new))
    text = "".join(difflib.unified_diff(first, second, "a/x", "b/x", n=context)).encode()
    assert run(text, {"x": before}) == {"x": after} if text else before == after


@given(st.binary(max_size=80))
def test_any_bytes_are_a_patch_or_refused(content: bytes) -> None:
    with contextlib.suppress(PatchError):
        assert list(run(b"--- a/x\n+++ b/x\n" + content, {"x": OLD})) == ["x"]
