"""The data that an audit reads and the findings that it reports. Frozen; nothing here reads a file.

Paths of a package's files are relative to site-packages, as in RECORD: "torch/lib/libtorch.so", "../../../bin/ray".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

from imagegen.audit.api.exports import Module
from imagegen.audit.api.import_time import ImportTime
from imagegen.audit.api.required import RequiredName
from imagegen.core.gpu import Gpu


class Severity(StrEnum):
    ERROR = "error"  # it will not work
    WARNING = "warning"  # it will not work on some hosts, or only slowly
    INFO = "info"


@dataclass(frozen=True, order=True)
class Finding:
    """One finding. `id` is an entry of the catalogue, which has its meaning and fix."""

    severity: Severity
    id: str  # "undefined-symbol"
    package: str  # "vllm 0.24.0"; "" for the subject as a whole
    path: str | None  # of the file, relative to site-packages or absolute in the system; None for the whole package
    evidence: str  # one line
    details: tuple[str, ...] = ()  # more lines, as further symbols or the searched directories


CUDA = 190  # e_machine of a cubin, of which nothing else is read. Source: EM_CUDA in the ELF registry


@dataclass(frozen=True, slots=True)
class Elf:
    """The loader's parts of an ELF64 file. Source: System V ABI, chapters 4 and 5; the LSB's symbol versioning."""

    machine: int  # e_machine: 62 for x86-64, 183 for AArch64, 190 for CUDA
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()  # DT_RPATH split at colons, with $ORIGIN unexpanded
    runpath: tuple[str, ...] = ()
    undefined: frozenset[str] = frozenset()  # only GLOBAL symbols, because WEAK ones may be missing
    exported: frozenset[str] = frozenset()  # GLOBAL, WEAK and UNIQUE, of default or protected visibility
    requires: Mapping[str, frozenset[str]] = field(default_factory=dict)  # "libc.so.6" -> nodes of it: "GLIBC_2.34"
    provides: frozenset[str] = frozenset()  # version nodes that it defines
    program: bool = False  # it names an interpreter (PT_INTERP), so it is a program and not a library
    alignment: int = 0  # smallest p_align of the mapped segments in bytes; 0 if not known


class CodeTarget(NamedTuple):
    """The architecture that one piece of GPU code was compiled for."""

    kind: Literal["sass", "ptx"]
    arch: int  # 90 for sm_90 and compute_90, 120 for sm_120
    variant: Literal["", "a", "f"] = ""
    isa: tuple[int, int] | None = None  # PTX ISA version; None for SASS

    def __str__(self) -> str:
        name = "sm" if self.kind == "sass" else "compute"
        isa = f" (PTX {self.isa[0]}.{self.isa[1]})" if self.isa else ""
        return f"{name}_{self.arch}{self.variant}{isa}"


@dataclass(frozen=True, slots=True)
class CodeGroup:
    """All containers of one file that hold code for the same targets. One of them is enough to run a kernel."""

    targets: tuple[CodeTarget, ...]  # sorted
    count: int  # containers
    sizes: tuple[int, ...]  # bytes in the file for each target, over all these containers


class File(NamedTuple):  # an audit reads 90,000; a frozen dataclass takes three times as long to make
    """One file. `sha256` is hex, None if not known; `unreadable` is the reason why an ELF file could not be parsed."""

    size: int  # bytes
    sha256: str | None = None
    executable: bool = False
    elf: Elf | None = None
    code: tuple[CodeGroup, ...] = ()  # GPU code, sorted by targets; also of a loose cubin
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class Licence:
    """The licence fields of a distribution's metadata, unchanged."""

    expression: str | None = None  # License-Expression (PEP 639)
    text: str | None = None  # License: a name, or the whole licence
    classifiers: tuple[str, ...] = ()  # below "License :: ", without this prefix: "OSI Approved :: MIT License"


@dataclass(frozen=True, slots=True)
class InstalledDeb:
    """A Debian package as dpkg has it. `licences` are the short names of a machine-readable copyright file, sorted.

    It is empty if the file is only for human readers, and None if there is no such file.
    """

    version: str
    architecture: str
    source: str  # the source package that it is built of, by whose name advisories know it
    source_version: str
    licences: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class OsRelease:
    """The system as its os-release names it: "ubuntu", "22.04", "jammy"; "" for a missing field."""

    id: str
    version: str
    codename: str


@dataclass(frozen=True, slots=True)
class OptionalImport:
    """The first statement in a Python file that imports a module of a distribution that only an extra names."""

    distribution: str  # normalised
    path: str  # relative to site-packages
    line: int
    lazy: bool  # inside a function
    guarded: bool  # inside `try` or a condition, so the code may do without it


@dataclass(frozen=True)
class Package:
    """An installed distribution, or a wheel as it would be installed."""

    name: str  # normalised (PEP 503)
    version: str
    files: Mapping[str, File]
    requires: tuple[str, ...] = ()  # Requires-Dist, unchanged
    tags: tuple[str, ...] = ()  # of its WHEEL file: "cp311-cp311-manylinux_2_28_x86_64"
    imports: tuple[str, ...] = ()  # modules that the matrix says it has
    licence: Licence = Licence()
    entry_points: tuple[str, ...] = ()  # modules that the matrix says users start
    optional_imports: tuple[OptionalImport, ...] = ()  # sorted by path
    exports: Mapping[str, Module] = field(default_factory=dict)  # of distributions in data/api.yaml: its Python modules
    required_names: tuple[RequiredName, ...] = ()  # of distributions in data/api.yaml: names of others, sorted

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()  # a package that was never released has no version

    @cached_property
    def binaries(self) -> Mapping[str, File]:
        """The ELF files and files with GPU code, also unreadable ones (a fifth of a stack's files), in the same order.

        Nearly all checks need only these; without this list each would go through all files of all packages.
        """
        return {path: file for path, file in self.files.items() if file.elf or file.code or file.unreadable is not None}

    @cached_property
    def needed(self) -> frozenset[str]:
        """The names of the libraries that its files need (DT_NEEDED)."""
        return frozenset([name for file in self.binaries.values() if file.elf for name in file.elf.needed])

    @cached_property
    def code_sizes(self) -> Mapping[CodeTarget, int]:
        """The bytes of GPU code in all files, by the target that it is for."""
        sizes: Counter[CodeTarget] = Counter()
        for file in self.binaries.values():
            for group in file.code:
                for target, size in zip(group.targets, group.sizes, strict=True):
                    sizes[target] += size
        return sizes

    @cached_property
    def tops(self) -> frozenset[str]:
        """The first names of all paths: "torch", "torch-2.11.0.dist-info", "..", "six.py"."""
        return frozenset([path.partition("/")[0] for path in self.files])


@dataclass(frozen=True)
class SystemLibraries:
    """The base under the packages: its libraries, by the name under which the loader finds them."""

    libraries: Mapping[str, File]  # "libc.so.6" -> the file behind all links, of the directory that is searched first
    # "libc.so.6" -> "/lib/x86_64-linux-gnu/libc.so.6"; of a package's file to which the loader's cache leads, relative
    # to site-packages
    paths: Mapping[str, str] = field(default_factory=dict)
    preloaded: tuple[str, ...] = ()  # directories of LD_LIBRARY_PATH
    interpreter: File | None = None  # the Python program
    debs: Mapping[str, InstalledDeb] = field(default_factory=dict)  # installed Debian packages by name, from dpkg
    release: OsRelease | None = None


class ModuleReader(Protocol):
    """Reads the Python sources of packages."""

    def read(self, package: Package, path: str) -> ImportTime | None:
        """Return the module at a path relative to site-packages; None if it has no source."""

    def importing(self, package: Package, tops: Collection[str]) -> Collection[str]:
        """Return the paths of a package's sources that may import one of the top-level modules."""

    @property
    def unread(self) -> Collection[str]:
        """The packages of which a source was not available."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Subject:
    """The input of an audit. An unknown field is None or empty, and no check guesses it."""

    name: str  # "blackwell-vllm-cu130-py311", a reference, a directory, a wheel's file name
    packages: tuple[Package, ...]  # by name
    system: SystemLibraries | None = None
    python: str | None = None  # "3.11"
    gpus: tuple[Gpu, ...] = ()  # the GPUs that it must run on
    driver: str | None = None  # the oldest driver it is promised for: "580.65.06"
    torch: str | None = None  # the release that loose wheels are to run with
    cuda: bool | None = None  # whether it is meant for CUDA; False for a cell whose cuda axis is cpu
    excused: frozenset[str] = frozenset()  # paths that packages leave out because of a file-conflict override
    omits: Mapping[str, str] = field(default_factory=dict)  # distribution that the matrix leaves out -> why
    modules: ModuleReader | None = field(default=None, compare=False, repr=False)  # None: no sources are available


def required_name(requirement: str) -> str:
    """Return the normalised name (PEP 503) of the distribution in a Requires-Dist; "" if there is none."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""
