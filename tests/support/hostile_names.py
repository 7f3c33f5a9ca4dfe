"""Names of members that leave their tree, or that mean a path in more than one way."""

from __future__ import annotations

NAMES = (
    "..",
    "../x",
    "a/../..",
    "a/../../x",
    "./../x",
    "/..",
    "/../x",
    "a/..",
    "a//b",
    "//a",
    ".//a",
    "a/./b",
    "././a",
    "/./a",
    "a/../b",
    ".wh.",
    ".wh..",
    ".wh...",
    "d/.wh...",
    ".wh.../x",
)
