"""Names of members that leave their tree, or that mean a path in more than one way."""

from __future__ import annotations

PATHS = (
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
)
NAMES = (*PATHS, ".wh.", ".wh..", ".wh...", "d/.wh...", ".wh.../x")  # whiteouts of no name, of "." and ".."
