"""The tables of data/projects.yaml: conda's names, packages for GPUs, and architectures by CUDA release."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

_FILE = Path(__file__).parents[1] / "data" / "projects.yaml"


@dataclass(frozen=True)
class CondaNames:
    """The equals of conda's packages. Keys and names are as conda writes them."""

    pypi: Mapping[str, str]  # -> normalised name
    debian: Mapping[str, tuple[str, ...]]
    cuda: frozenset[str]  # whose version is that of CUDA
    base: frozenset[str]  # that every base has


@cache
def conda_names() -> CondaNames:
    """Return the equals of conda's packages."""
    table = _read()["conda"]
    return CondaNames(
        {**{name: canonicalize_name(name) for name in table["same"]}, **table["pypi"]},
        {name: tuple(packages) for name, packages in table["debian"].items()},
        frozenset(table["cuda"]),
        frozenset(table["base"]),
    )


def needs_gpu(package: str) -> bool:
    """Return whether a package is of use with a GPU alone."""
    return any(fnmatch.fnmatchcase(package, pattern) for pattern in _read()["gpu"])


def gpus_for(cuda: str) -> tuple[str, ...]:
    """Return the GPU architectures of an imported image with this CUDA release ("12.8")."""
    known = _read()["gpus"]
    fitting = [release for release in known if Version(release) <= Version(cuda)]
    return tuple(known[max(fitting or known, key=Version)])


@cache
def _read() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return table
