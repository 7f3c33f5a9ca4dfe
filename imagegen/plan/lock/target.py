"""The machine that an image is made for: which wheels fit it, and what uv calls it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from imagegen.core.errors import LockError
from imagegen.plan.matrix.model import Base

MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_OLDEST = {"x86_64": 5, "aarch64": 17}  # minor versions of glibc 2 at which manylinux begins (PEP 513, 599)
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_UV_GLIBC = (17, 28, *range(31, 41))  # what `uv pip compile --python-platform` knows, uv 0.13.8

T = TypeVar("T")


@dataclass(frozen=True)
class WheelTarget:
    """`python` is the interpreter's full version, "3.11.2", where it is known; else "3.11"."""

    python: str
    machine: str  # "x86_64"
    glibc: int  # minor version: 36 for 2.36

    @classmethod
    def of(cls, platform: str, base: Base, python: str) -> WheelTarget:
        """Raises LockError for a platform or a base that wheels have no name for."""
        glibc = re.fullmatch(r"2\.(\d+)", base.glibc)
        if platform not in MACHINES or not glibc:
            raise LockError(
                f"no wheel can be chosen for {platform} with glibc {base.glibc}",
                code="lock-glibc-unsupported",
                why=f"known are {', '.join(MACHINES)} and glibc 2.x",
            )
        return cls(python, MACHINES[platform], int(glibc[1]))

    @property
    def uv_platform(self) -> str:
        minor = max(known for known in _UV_GLIBC if known <= self.glibc)
        return f"{self.machine}-manylinux_2_{minor}"

    @cached_property
    def ranks(self) -> dict[Tag, int]:
        """Every tag that fits -> its rank, 0 for the most specific (PEP 425 and 600)."""
        version = tuple(int(part) for part in self.python.split(".")[:2])
        platforms = list(self._platforms())
        tags = [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}

    def _platforms(self) -> Iterator[str]:
        for minor in range(self.glibc, _OLDEST[self.machine] - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{self.machine}"
        yield f"linux_{self.machine}"

    def best(self, wheels: Iterable[tuple[str, T]]) -> T | None:
        """Return the value beside the file name that fits best, then has the highest build tag; or None."""
        fitting = [(key, item) for name, item in wheels if (key := self._fitness(name)) is not None]
        return max(fitting, key=lambda pair: pair[0])[1] if fitting else None

    def _fitness(self, filename: str) -> tuple[int, tuple[int, str] | tuple[()], str] | None:
        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except ValueError:
            return None
        ranks = [self.ranks[tag] for tag in tags if tag in self.ranks]
        return (-min(ranks), build, filename) if ranks else None
