"""The symbols that each torch release exports, so that no torch is needed to check a wheel.

data/torch-exports.zst is made of PyPI's wheels for x86-64 Linux, CPython 3.11 (`tools.harvest --torch-exports`), and
data/torch-exports-aarch64.zst of those for arm64, which have CUDA from 2.11.0 on: for each release the names of torch's
own that the libraries in torch/lib export, all together. It is text, compressed with zstd. Its lines are the format,
the releases, and for each set of releases its bits in hexadecimal (bit i is the i-th release) and the names that
exactly these releases export, each after a space:

    imagegen torch-exports 1
    2.7.0 2.7.1 2.8.0
    3
     _ZN2at4oldName
    7
     aoti_torch_delete_tensor_object

Here 2.7.0 and 2.7.1 export the first name, and all three the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

import zstandard
from packaging.version import Version

from imagegen.core.types import minor

_DATA = Path(__file__).parent / "data"
PATHS = {"x86_64": _DATA / "torch-exports.zst", "aarch64": _DATA / "torch-exports-aarch64.zst"}  # by processor

FORM = "imagegen torch-exports 1"
_LONGEST = 64 << 20  # bytes of text; there are 8 MB

# Entities of torch's namespaces by Itanium mangling (functions, variables, and the vtables, type information, thunks
# and guards of classes), the THP... names of torch's Python bindings, and the stable ABI's C names.
_OWNED = re.compile(
    r"_Z(?:T[VTISHWC]|GV|GR|Th[n\d]+_|Tv[n\d]+_[n\d]+_|Tc(?:[hv][n_\d]+)+)?Z*N[rVK]*[RO]?(?:2at|3c10|4c10d|5torch|6caffe2)"
    r"|(?:_Z\d+)?THP[A-Z]"
    r"|aoti_torch_|torch_"
)
_SHIM = ("aoti_torch_", "torch_")
_GROUPS = re.compile(r"\n(?! )")  # between two sets of releases


def owned(symbol: str) -> bool:
    """Return whether only torch may define the symbol."""
    return _OWNED.match(symbol) is not None


@lru_cache(1 << 14)  # the check and the verdicts of packages call it
def owned_symbols(symbols: frozenset[str]) -> frozenset[str]:
    """Return the symbols that only torch may define."""
    return frozenset(filter(_OWNED.match, symbols))


def is_shim(symbol: str) -> bool:
    """Return whether a symbol of torch's own is a C name of its stable ABI, which later releases keep."""
    return symbol.startswith(_SHIM)


@dataclass(frozen=True)
class ExportIndex:
    """Releases, oldest first, and for each name the releases that export it: bit i for the i-th."""

    releases: tuple[str, ...] = ()
    names: Mapping[str, int] = field(default_factory=dict)

    def lacks(self, release: str, symbols: Iterable[str]) -> frozenset[str]:
        """Return the symbols that a release of the index does not export."""
        bit = 1 << self.releases.index(release)
        return frozenset(symbol for symbol in symbols if not self.names.get(symbol, 0) & bit)

    def of_release(self, release: str) -> frozenset[str]:
        bit = 1 << self.releases.index(release)
        return frozenset(name for name, bits in self.names.items() if bits & bit)

    def of(self, version: str) -> str | None:
        """Return the release whose exports a version of torch has, else the last release of its minor, else None."""
        required = Version(version)
        same = [release for release in self.releases if minor(release) == minor(version)]
        exact = [candidate for candidate in same if Version(candidate).release == required.release]
        return next(iter([*exact, *reversed(same)]), None)


def shipped(machine: str = "x86_64") -> ExportIndex:
    """Return the index for a processor that comes with imagegen, which is read at the first call."""
    return _load(PATHS[machine])


@cache
def _load(path: Path) -> ExportIndex:
    return loads(path.read_bytes())


def loads(data: bytes) -> ExportIndex:
    """Parse the bytes that `dumps` returns. Raises ValueError for any other bytes."""
    try:
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=_LONGEST).decode()
    except (zstandard.ZstdError, UnicodeDecodeError) as error:
        raise ValueError(f"not an index of torch's exports: {error}") from error
    form, _, body = text.partition("\n")
    if form != FORM:
        raise ValueError(f'not an index of torch\'s exports: the file begins with "{form[:40]}"')
    releases, _, body = body.partition("\n")
    names: dict[str, int] = {}
    for group in _GROUPS.split(body.removesuffix("\n")) if body else ():
        bits, *members = group.split("\n ")
        names.update(dict.fromkeys(members, int(bits, 16)))
    return ExportIndex(tuple(releases.split()), names)
