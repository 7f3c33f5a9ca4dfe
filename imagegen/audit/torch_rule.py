"""Which torch a wheel's extensions were built for, read off the symbols that they want of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from imagegen.audit.model import Finding, Package, Subject

# Entities of torch's namespaces by Itanium mangling, and the C names of its stable ABI.
_OWNED = re.compile(
    r"_Z(?:T[VTISHWC]|GV|GR|Th[n\d]+_|Tv[n\d]+_[n\d]+_|Tc(?:[hv][n_\d]+)+)?Z*N[rVK]*[RO]?(?:2at|3c10|4c10d|5torch|6caffe2)"
    r"|aoti_torch_|torch_"
)


def owned(symbol: str) -> bool:
    """Whether torch alone may define it: one of its C++ namespaces, or of the C names of its stable ABI."""
    return _OWNED.match(symbol) is not None


@dataclass(frozen=True)
class Fit:
    """What torch a package was built for, as far as its symbols and its metadata say."""

    stable: bool  # it uses nothing of torch but the C names of the stable ABI
    minors: tuple[str, ...]  # "2.8", "2.9": those of the index that export all that it wants, oldest first
    declared: str | None  # the one minor that its version or its metadata names


def fits(package: Package) -> Fit | None:
    """What torch `package` fits; None when it uses no symbol of torch."""
    raise NotImplementedError


def check(subject: Subject) -> Iterator[Finding]:
    """Packages whose extensions do not fit the torch beside them, or for loose wheels what they fit."""
    yield from ()
