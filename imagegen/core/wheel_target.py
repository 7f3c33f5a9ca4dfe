"""The machine and interpreter that a wheel must fit, and the manylinux platforms that it has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from imagegen.core.deferred import dataclass
from imagegen.core.errors import LockError
from imagegen.oci.documents import MACHINES

if TYPE_CHECKING:
    from packaging.tags import Tag

LEGACY_MANYLINUX = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}  # minor version of glibc 2 (PEP 600)
_OLDEST = {"x86_64": 5, "aarch64": 17}  # minor versions of glibc 2 at which manylinux begins (PEP 513, 599)
_UV_GLIBC = (17, 28, *range(31, 41))  # glibc 2 of the values of `uv pip compile --python-platform`, uv 0.13.8

T = TypeVar("T")


@dataclass(frozen=True)
class WheelTarget:
    """The interpreter and machine that a wheel must fit. `python` is the interpreter's full version, "3.11.2",
    if it is known; else "3.11".
    """

    python: str
    machine: str  # "x86_64"
    glibc: int  # minor version: 36 for 2.36

    @classmethod
    def of(cls, platform: str, glibc: str, python: str) -> WheelTarget:
        """Raises LockError for a platform or a glibc that wheels have no name for."""
        match = re.fullmatch(r"2\.(\d+)", glibc)
        if platform not in MACHINES or not match:
            raise LockError(
                f"no wheel can be chosen for {platform} with glibc {glibc}",
                code="lock-glibc-unsupported",
                why=f"known are {', '.join(MACHINES)} and glibc 2.x",
            )
        return cls(python, MACHINES[platform], int(match[1]))

    @property
    def uv_platform(self) -> str:
        minor = max(release for release in _UV_GLIBC if release <= self.glibc)
        return f"{self.machine}-manylinux_2_{minor}"

    @cached_property
    def ranks(self) -> dict[Tag, int]:
        """Every tag that fits -> its rank, 0 for the most specific."""
        return {tag: rank for rank, tag in reversed(list(enumerate(self.tags)))}

    @property
    def tags(self) -> list[Tag]:
        """Every tag that fits, the most specific first (PEP 425 and 600)."""
        from packaging.tags import compatible_tags, cpython_tags  # late, here and below: a kept lock has its wheels

        version = tuple(int(part) for part in self.python.split(".")[:2])
        platforms = list(self._platforms())
        return [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
        ]

    def _platforms(self) -> Iterator[str]:
        for minor in range(self.glibc, _OLDEST[self.machine] - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            yield from (f"{name}_{self.machine}" for name, legacy in LEGACY_MANYLINUX.items() if legacy == minor)
        yield f"linux_{self.machine}"

    def best(self, wheels: Iterable[tuple[str, T]]) -> T | None:
        """Return the value of the file name that fits best, then has the highest build tag; or None."""
        fitting = [(key, item) for name, item in wheels if (key := self._fitness(name)) is not None]
        return max(fitting, key=lambda pair: pair[0])[1] if fitting else None

    def _fitness(self, filename: str) -> tuple[int, tuple[int, str] | tuple[()], str] | None:
        from packaging.utils import parse_wheel_filename

        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except ValueError:
            return None
        ranks = [self.ranks[tag] for tag in tags if tag in self.ranks]
        return (-min(ranks), build, filename) if ranks else None
