"""What is shown: no credentials, no character that acts on a terminal, and the rest as it is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.errors import ErrorGroup, FetchError, Location, MatrixError
from imagegen.text import nearest, redact, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see https://u:p@host/x and http://host/@y", "see https://***@host/x and http://host/@y"),
        ("http://u:p/ss@host/x", "http://***@host/x"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("http://[::1]:8080/a@b", "http://[::1]:8080/a@b"),
        ("https://cdn/x.whl?X-Signature=s3cret&y=1#sha256=0", "https://cdn/x.whl?***#sha256=0"),
        ("why? because", "why? because"),
        ("git+ssh://git@host/x", "git+ssh://git@host/x"),  # a user alone is no secret, where no token stands for one
        ("`ssh -nNT ssh://me@far:22`", "`ssh -nNT ssh://me@far:22`"),
        ("ssh://me:s3cret@far/x", "ssh://***@far/x"),
        ("ssh://me:s3/cret@far/x", "ssh://***@far/x"),
        ("ssh://me@s3cret@far/x", "ssh://***@far/x"),
        ("ssh://me@far:s3cret@near", "ssh://***@near"),
        ("https://t0ken@host/x", "https://***@host/x"),
    ],
)
def test_credentials_go(text: str, expected: str) -> None:
    assert redact(text) == expected


@given(st.text())
def test_nothing_that_is_shown_acts_on_a_terminal(text: str) -> None:
    out = shown(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\u200b\ud800-\udfff]", out)
    assert shown(out) == out
    if text.isprintable() and "://" not in text:
        assert out == text


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a name, a value or a path holds terminal escape sequences",
    "they are shown as text, as in \\x1b: nothing acts on the terminal",
)
def test_an_error_is_fit_to_be_shown_wherever_its_parts_come_from() -> None:
    evil = "\x1b]0;owned\x07 https://me:s3cret@host/"
    error = FetchError(evil, where=Location(f"x{evil}", 3), why=evil, fix=evil)
    for each in (error, ErrorGroup([error, MatrixError("\x9b31m\u202etxt")])):
        assert "\x1b" not in str(each)
        assert "\x9b" not in str(each)
        assert "\u202e" not in str(each)
        assert "s3cret" not in str(each)
    assert "\\x1b]0;owned\\x07" in str(error)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("torch-mis", "torch-mismatch"),
        ("torch-mismach", "torch-mismatch"),
        ("gpu", "gpu-code"),
        ("ptx_only", "ptx-only"),
        ("gp", None),
        ("", None),
    ],
)
def test_what_a_word_begins_is_nearer_than_what_it_resembles(word: str, found: str | None) -> None:
    assert nearest(word, ["torch-fits", "torch-mismatch", "gpu-code-gated", "gpu-code", "ptx-only"]) == found
