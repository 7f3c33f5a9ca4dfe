"""TOML of bounded shape. tomllib needs gigabytes for a key of many parts, and has no limit for nesting."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

TOMLLIB = Path(tomllib.__file__).parent  # for the sandbox's Python before 3.11
LONGEST = 16 << 20  # characters; the longest lock has some hundred thousand
_MAX_PARTS = 16  # of a dotted key
_MAX_DEPTH = 64  # of arrays and inline tables
_MAX_WORD = 1000  # characters of a bare key or number; Python converts numbers of 4,300 digits at most

# TOML 1.0. Quantifiers are possessive, so that the scan is linear: a string without its end reaches to the line's end,
# or the text's, and is then for tomllib to refuse.
_TOKEN = re.compile(
    r'(?P<part>"""(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5})?+'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?+"
    r"""|[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"?+|'[^'\n]*+'?+)"""
    r"|(?P<dot>\.)|(?P<open>[\[{])|(?P<close>[\]}])|\#[^\n]*+",
    re.DOTALL,
)


class TomlError(ValueError):
    """Text that is not TOML, or exceeds a bound. `line` and `column` count from 1; None if they are unknown."""

    def __init__(self, why: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(why)
        self.line, self.column = line, column


def loads(text: str, longest: int = LONGEST) -> dict[str, Any]:
    """Return the table of a TOML document of at most `longest` characters. Raises TomlError."""
    if len(text) > longest:
        raise TomlError(f"it is longer than {longest >> 20} Mi characters")
    require_bounded(text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = re.search(r"line (\d+), column (\d+)", str(error))
        line, column = (int(position[1]), int(position[2])) if position else (len(text.splitlines()), None)
        raise TomlError(str(error), line, column) from error


def require_bounded(text: str) -> None:
    """Raise TomlError for text beyond the bounds, in a time that grows with its length."""
    depth = dots = 0
    previous = None
    for token in _TOKEN.finditer(text):
        kind, why = token.lastgroup, None
        if kind == "part":
            dots = dots if previous == "dot" else 0
            if token.end() - token.start() > _MAX_WORD and text[token.start()] not in "\"'":
                why = f"a key or number has more than {_MAX_WORD} characters"
        elif kind == "dot":
            dots += 1
            why = f"a key has more than {_MAX_PARTS} parts" if dots >= _MAX_PARTS else None
        else:
            depth += (kind == "open") - (kind == "close")
            why = f"arrays and tables are nested more than {_MAX_DEPTH} deep" if depth > _MAX_DEPTH else None
        if why:
            begin = token.start()
            line = text.count("\n", 0, begin) + 1
            raise TomlError(why, line, begin - text.rfind("\n", 0, begin))
        previous = kind
