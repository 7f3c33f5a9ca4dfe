"""Text for a terminal: without credentials and control characters, and otherwise unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import SHOWN, ErrorGroup, FetchError, Location, MatrixError
from imagegen.core.net.reason import reason_of
from imagegen.core.text import nearest, redact, shown
from imagegen.core.types import parse_requirement
from imagegen.wheels.builds.stage import LogParser
from tests.support.timing import within


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
        ("http://u:1/x@h http://u:p/x@h", "http://u:1/x@h http://***@h"),
        ("http://u:p/x@h:p/y@z?a@b", "http://***@b"),
        ("http://a?b#c?d", "http://a?***#c?***"),
        ("'http://u:p@h'@x?y", "'http://***@h'@x?y"),
    ],
)
def test_credentials_go(text: str, expected: str) -> None:
    assert redact(text) == expected


_SECRET = "s3cret"
_ADDRESSES = st.sampled_from(
    [
        f"https://me:{_SECRET}@host/x",
        f"https://{_SECRET}@host/x",
        f"https://me:{_SECRET}/a/b@host",
        f"https://host/x?token={_SECRET}",
        f"https://host/x#y?token={_SECRET}",
        f"git+ssh://me:a/b/{_SECRET}@host/x?y={_SECRET}",
    ]
)
# Every address begins after white space: one whose text is glued to another's is no longer that address.
_TEXTS = st.lists(st.text("ab:/@?#[1 '\n", max_size=8) | _ADDRESSES.map(lambda each: f" {each} ")).map("".join)


@given(_TEXTS)
def test_no_secret_of_an_address_is_shown(text: str) -> None:
    assert _SECRET not in redact(text)
    assert redact(redact(text)) == redact(text)


@given(st.integers(SHOWN - 60, SHOWN + 10), _ADDRESSES)
def test_a_long_text_is_cut_and_no_secret_is_shown_where_the_cut_goes_through_it(before: int, address: str) -> None:
    error = str(FetchError("x" * before + f" {address} " + "y" * SHOWN, why="z" * 3 * SHOWN))
    assert _SECRET[:2] not in error
    assert len(error) < 2 * SHOWN + 100


def _build_log(text: str) -> str:
    ear = LogParser()
    ear.feed(f"#7 1.5 {text}")
    return ear.ending(1)


def _requirement(text: str) -> str:
    with pytest.raises(ValueError, match="not a PEP 508 requirement") as caught:
        parse_requirement(text)
    return str(caught.value)


@pytest.mark.parametrize("quote", [lambda text: reason_of(OSError(text)), _build_log, _requirement])
@given(before=st.integers(150, 300), address=_ADDRESSES)
def test_no_secret_is_shown_where_a_quoted_text_is_cut(quote: Callable[[str], str], before: int, address: str) -> None:
    assert _SECRET[:2] not in quote("x" * before + f" {address}")


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a text of 1 MB that looks like the beginnings of many addresses is shown",
    "credentials are looked for in a time that grows with the text's length alone, and the message is cut",
)
def test_looking_for_credentials_takes_linear_time() -> None:
    parts = ["://", "http://a:", "://a:@/", "://a:1/", "://?#", "://a?b", "@", ":/", "://[", "://a@:"]
    with within(30):  # a second of the processor's where it is linear, an hour where it is quadratic
        for part in parts:
            redact(part * ((1 << 20) // len(part)))


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
