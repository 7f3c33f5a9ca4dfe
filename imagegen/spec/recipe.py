"""Recipes of source builds, complete and frozen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

from imagegen.core import types as t
from imagegen.core import validation
from imagegen.core.deferred import dataclass
from imagegen.core.errors import Location
from imagegen.core.git.submodule import Submodule
from imagegen.core.validation import Part
from imagegen.spec.model import EnvVar
from imagegen.spec.prefix import Prefix, backend_patch

PREFIX_JOBS = "MAX_JOBS"  # of which the backend of a prefix takes {jobs}


def _by_path(submodules: tuple[Submodule, ...]) -> tuple[Submodule, ...]:
    return tuple(sorted(submodules, key=lambda submodule: submodule.path))


def _in_bytes(gigabytes: str) -> int:
    return round(float(gigabytes.removesuffix(" GB")) * 1e9)


@dataclass(frozen=True)
class SdistFile(Part):
    """A source distribution of the default index."""

    filename: Annotated[t.SdistName, validation.field_info("file")]
    sha256: t.Sha256
    size: Annotated[int, validation.Written(t.Count, int), validation.doc("Bytes.")]


@dataclass(frozen=True)
class Commit(Part):
    """A commit, with every submodule that the build reads."""

    url: t.GitUrl
    commit: t.GitObject
    tree: t.GitObject
    ref: Annotated[t.GitRef | None, validation.doc("A tag or branch that must still lead to the commit.", default=None)]
    submodules: Annotated[tuple[Submodule, ...], validation.field_info(default=()), validation.Check(_by_path)]


@dataclass(frozen=True)
class LocalSource:
    """An sdist, or a directory with sources, on the disk of the building machine; the lock pins its hash."""

    path: Path
    where: Location | None = field(default=None, compare=False)  # the line that names it


@dataclass(frozen=True)
class Patch:
    """A unified diff in the recipe's directory, applied with `patch -p1` in the order given."""

    path: Path
    sha256: str
    because: str
    content: bytes | None = field(default=None, repr=False)  # of a patch that no file has


@dataclass(frozen=True)
class Architectures(Part):
    """The variable that gives a build its GPUs: their names, ascending, joined by `separator`. Two may share a name."""

    variable: t.BuildEnvName  # "TORCH_CUDA_ARCH_LIST", "FLASH_ATTN_CUDA_ARCHS"
    separator: Annotated[str, validation.string(r"[;, ]", 1)]
    names: Annotated[  # compute capability -> its name there: "10.3" -> "100"
        Mapping[t.Capability, Annotated[str, validation.string(r"[0-9]{1,3}(?:\.[0-9])?[af]?")]],
        validation.field_info(min_length=1),
    ]


@dataclass(frozen=True)
class Cost(Part):
    """The cost of compiling, measured with one nvcc thread for one architecture."""

    units: Annotated[int, validation.Written(t.Count, int), validation.doc("Files that ninja compiles.")]
    seconds: Annotated[float, validation.Written(t.Seconds, float), validation.doc("Processor time of a unit.")]
    memory: Annotated[  # bytes
        int, validation.Written(t.Gigabytes, _in_bytes), validation.doc("Average of a thread at the build's peak.")
    ]
    largest: Annotated[
        int, validation.Written(t.Gigabytes, _in_bytes), validation.doc("Memory of the largest process.")
    ]  # bytes
    source: t.Text  # with place and date of the measurement


@dataclass(frozen=True)
class ReleaseOverride:
    """The overrides of one release; None means the recipe's own value."""

    requires: tuple[str, ...] | None
    patches: tuple[Patch, ...] | None


@dataclass(frozen=True)
class Recipe:
    """The recipe of one component, for every cell. `of` returns it for one release."""

    component: str
    releases: Mapping[str, SdistFile | Commit | LocalSource]  # version -> its source
    requires: tuple[str, ...]  # PEP 508 requirements of the wheel; the resolution reads them here
    build_requires: tuple[str, ...]  # exact pins, kept apart from the cell's own packages
    against: tuple[str, ...]  # packages of the cell whose headers, libraries or modules the build reads: ("torch",)
    patches: tuple[Patch, ...]
    env: tuple[EnvVar, ...]
    architectures: Architectures | None  # None: nothing in it is for a GPU
    modules: tuple[str, ...]  # extension modules that the wheel must hold: ("flash_attn_2_cuda",)
    jobs: str | None  # the variable for the number of jobs; None if it compiles one file at a time
    threads: str | None  # the variable for nvcc's threads per job, if it has one
    toolkit: str  # PEP 440 specifier of the CUDA toolkits that it takes, may be empty
    cost: Cost | None  # None: not measured
    source: str  # where the facts come from
    own: Mapping[str, ReleaseOverride] = field(default_factory=dict)  # version -> where that release differs
    prefix: Prefix | None = None  # None if the sources have a build backend
    where: Location | None = field(default=None, compare=False)  # its entry

    def of(self, version: str) -> Recipe:
        """Return the recipe of one release; an unknown release has no sources.

        If the sources are installed below a prefix, the patches include the one that makes a wheel of them.
        """
        overrides = self.own.get(version, ReleaseOverride(None, None))
        requires = self.requires if overrides.requires is None else overrides.requires
        patches = self.patches if overrides.patches is None else overrides.patches
        return replace(
            self,
            releases={release: source for release, source in self.releases.items() if release == version},
            requires=requires,
            patches=(*patches, _prefix_patch(self.prefix, version, requires)) if self.prefix else patches,
            own={},
            prefix=None,
        )


def _prefix_patch(prefix: Prefix, version: str, requires: tuple[str, ...]) -> Patch:
    content = backend_patch(prefix, version, requires)
    name = Path(f"imagegen-prefix-{prefix.package}.patch")
    return Patch(name, hashlib.sha256(content).hexdigest(), "It installs the sources below a prefix.", content)
