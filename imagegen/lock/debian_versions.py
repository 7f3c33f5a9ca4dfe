"""The order of Debian's versions. Source: deb-version(7), dpkg 1.21, "Sorting algorithm"."""

from __future__ import annotations

import re
from typing import TypeAlias

_VersionPart: TypeAlias = tuple[tuple[int, ...], tuple[int, str]]  # text without digits, and the number after it
VersionKey: TypeAlias = tuple[tuple[int, str], tuple[_VersionPart, ...], tuple[_VersionPart, ...]]

_NOTHING: _VersionPart = ((0,), (0, ""))


def version_key(version: str) -> VersionKey:
    """Sorts as dpkg does: epoch, upstream's version, Debian's revision. Any text has its place; none is refused."""
    epoch, colon, remainder = version.partition(":")
    if not colon:
        epoch, remainder = "", version
    upstream, dash, revision = remainder.rpartition("-")
    if not dash:
        upstream, revision = remainder, ""
    return _number(epoch), _parts(upstream), _parts(revision)


def _parts(text: str) -> tuple[_VersionPart, ...]:
    pairs = re.findall(r"([^0-9]*)([0-9]*)", text)
    segments = [((*map(_weight, words), 0), _number(digits)) for words, digits in pairs]
    while segments and segments[-1] == _NOTHING:
        segments.pop()
    # Where one ends, the other may go on with a tilde, and be older: also after a first part that says nothing ("0~").
    return (*(segments or [_NOTHING]), _NOTHING)


def _weight(character: str) -> int:
    """A tilde comes before the end of the text, which is 0; letters before all else."""
    if character == "~":
        return -1
    return ord(character) if character.isascii() and character.isalpha() else ord(character) + 256


def _number(digits: str) -> tuple[int, str]:
    """Numbers of any length."""
    plain = digits.lstrip("0")
    return len(plain), plain
