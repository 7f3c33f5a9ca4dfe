"""Serialise modules as bytes, so that a source is parsed once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import zstandard

from imagegen.audit.api.conditions import VersionTest
from imagegen.audit.api.exports import Module
from imagegen.audit.api.import_time import ImportedName, ImportTime, Refusal, RequiredRows

# Raise it whenever `import_time` returns something else for the same source, or `failures` for the same modules.
MODULES_FORMAT = 13
_LEVEL = 3


def packed_modules(modules: Mapping[str, ImportTime]) -> bytes:
    """Return modules by path as bytes, equal for equal modules in any order."""
    rows = {path: _row(modules[path]) for path in sorted(modules)}
    return zstandard.ZstdCompressor(level=_LEVEL).compress(json.dumps(rows, separators=(",", ":")).encode())


def read_modules(data: bytes) -> dict[str, ImportTime]:
    """Return the modules of which `packed_modules` made the bytes. Bytes of another origin raise any exception."""
    rows = json.loads(zstandard.ZstdDecompressor().decompress(data))
    return {path: _module(row) for path, row in rows.items()}


def _row(module: ImportTime) -> list[Any]:
    defined = module.defined
    return [
        sorted(defined.names),
        defined.stars,
        defined.open,
        defined.below,
        module.names,
        module.refusals,
        module.lazy,
        module.required,
        module.tables,
    ]


def _module(row: list[Any]) -> ImportTime:
    names, stars, is_open, below, imported, refusals, lazy, required, tables = row
    return ImportTime(
        Module(frozenset(names), tuple(stars), is_open, below),
        tuple(ImportedName(name, depth, line, _tests(tests)) for name, depth, line, tests in imported),
        tuple(Refusal(line, _tests(tests)) for line, tests in refusals),
        lazy,
        tuple(RequiredRows(line, table, tuple(keys)) for line, table, keys in required),
        tables,
    )


def _tests(rows: list[list[str]]) -> tuple[VersionTest, ...]:
    return tuple(VersionTest(*row) for row in rows)
