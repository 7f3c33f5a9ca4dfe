"""The audit's data about the field: data/*.yaml, each entry with its source and date; the catalogue of libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml


@cache
def data(name: str) -> Any:
    """Return a data file, parsed but not validated. It is shipped, so an error in it is a bug."""
    path = Path(__file__).parent / "data" / f"{name}.yaml"
    return yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)


@dataclass(frozen=True)
class Single:
    """A family of libraries of which a process must have one."""

    name: str  # "cuDNN"
    pattern: str


@cache
def is_driver(library: str) -> bool:
    """Return whether the library comes with the host's driver, which the container runtime mounts at start."""
    return any(re.fullmatch(pattern, library) for pattern in data("libraries")["driver"]["libraries"])


@cache
def is_standard(library: str) -> bool:
    """Return whether every Linux with glibc has the library."""
    return re.fullmatch(data("libraries")["standard"]["libraries"], library) is not None


@cache
def is_required(library: str) -> bool:
    """Return whether a stack must have the library in the requested version, as CUDA's and torch's libraries."""
    return any(re.fullmatch(pattern, library) for pattern in data("libraries")["required"]["libraries"])


@lru_cache(1 << 14)  # three checks ask it of every library, some for each GPU
def is_module(exported: frozenset[str]) -> bool:
    """Return whether Python can import a library that exports these symbols. One text is searched: symbols are many."""
    return "\0PyInit_" in "\0".join(("", *exported))


@cache
def driver_symbols() -> re.Pattern[str]:
    return re.compile(data("libraries")["driver"]["symbols"])


@cache
def cuda_major(library: str) -> tuple[str, int] | None:
    """Return the stem and CUDA major of a library's name, ("cudart", 13) of libcudart.so.13; None for other names."""
    match = re.fullmatch(data("libraries")["cuda-major"]["libraries"], library)
    return (match[1], int(match["major"])) if match and len(match["major"]) < 10 else None


@cache
def singles() -> tuple[Single, ...]:
    return tuple(Single(entry["name"], entry["pattern"]) for entry in data("libraries")["single"])


def optional(package: str, path: str) -> str | None:
    """Return why a file of a package, "numba", may lack a library; None without a rule."""
    return next(
        (
            entry["because"]
            for entry in data("libraries")["optional"]
            if re.fullmatch(entry["package"], package) and re.fullmatch(entry["files"], path)
        ),
        None,
    )


def oldest_releases(nodes: Iterable[str]) -> tuple[str, ...] | None:
    """Return the oldest Debian and the oldest Ubuntu whose C and C++ libraries have the version nodes ("GLIBC_2.38").

    Return None if no release defines a node, because it is private or belongs to another library. Return an empty
    tuple if all releases are older.
    """
    required: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        match = re.fullmatch(r"(GLIBC|GLIBCXX|CXXABI)_(\d{1,9}(?:\.\d{1,9})*)", node)
        if match is None:
            return None
        required[match[1]] = max(required.get(match[1], ()), _numbers(match[2]))
    oldest: dict[str, str] = {}
    for release in data("libraries")["releases"]["nodes"]:
        if all(_numbers(release[family]) >= least for family, least in required.items()):
            oldest.setdefault(release["name"].split()[0], release["name"])
    return tuple(sorted(oldest.values()))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
