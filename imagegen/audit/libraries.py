"""Libraries that files ask for: whether they are there, in the requested version, and once."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from imagegen.audit import gpu
from imagegen.audit.catalogue import Single, cuda_major, is_driver, is_required, oldest_releases, optional, singles
from imagegen.audit.closure import How, Library, Loader
from imagegen.audit.lists import few
from imagegen.audit.model import Finding, Severity, Subject, required_name
from imagegen.core.text import counted

_SHOWN = 20  # files or lines in one finding
AARCH64, _PAGE = 183, 1 << 16  # e_machine; bytes of the largest page of its kernels
_VARIANTS = 100  # files of one package that are compared with each other; no real package has so many variants
# Parts of a name that distinguish the variants of one file: "_cu13", "-cuda12", "torch24", "7", "-cpu".
_VERSION = re.compile(r"[-_.]?(?:cuda|cu|torch)?\d+|[-_.](?:cuda|cpu)(?![a-z])")
_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)

_STUBS, _COMPAT = "stubs", "compat"  # directories of a CUDA toolkit, as NVIDIA lays it out


def rivals(loader: Loader) -> Iterator[Finding]:
    for single in singles():
        yield from _several(loader, single)
    yield from _majors(loader)
    yield from _drivers(loader)


def _several(loader: Loader, single: Single) -> Iterator[Finding]:
    """Yield findings about one kind of library in several directories."""
    libraries = dict.fromkeys([*loader.libraries, *loader.system.values()])
    by_directory: dict[str, Library] = {}
    for library in libraries:
        name = library.elf.soname or library.name
        if re.fullmatch(single.pattern, name):
            by_directory.setdefault(posixpath.dirname(library.path), library)
    if len(by_directory) < 2:
        return
    described = [f"{directory} ({library.package or library.name})" for directory, library in by_directory.items()]
    choices: dict[str, None] = {}
    for requester in loader.libraries:
        for name in requester.elf.needed:
            if re.fullmatch(single.pattern, name) and (taker := loader.find(requester, name).library):
                choices[f"{requester.package} takes {name} from {posixpath.dirname(taker.path)}"] = None
    evidence = f"{single.name} lies in {len(by_directory)} places: {', '.join(described)}"
    yield Finding(Severity.WARNING, "several-libraries", "", None, evidence, tuple(choices)[:_SHOWN])


def _majors(loader: Loader) -> Iterator[Finding]:
    """Yield a finding if one process loads two major versions of CUDA."""
    requested: dict[int, dict[str, str]] = {}
    for library in loader.libraries:
        majors = {name: stem_and_major[1] for name in library.elf.needed if (stem_and_major := cuda_major(name))}
        if not majors or not loader.imported(library):
            continue
        for name, major in majors.items():
            if loader.find(library, name).library:
                requested.setdefault(major, {}).setdefault(name, f"{library.package}: {library.path}")
    if len(requested) > 1:
        names = [min(requested[major]) for major in sorted(requested)]
        details = [
            f"{name}: {requester}"
            for major in sorted(requested)
            for name, requester in sorted(requested[major].items())
        ]
        evidence = f"one process loads {' and '.join(names)}"
        yield Finding(Severity.WARNING, "cuda-majors-mixed", "", None, evidence, tuple(details[:_SHOWN]))


def _drivers(loader: Loader) -> Iterator[Finding]:
    """Yield findings about files that the loader would use instead of the host's driver."""
    paths_by_kind: dict[tuple[Severity, str, str], dict[str, str]] = {}
    for name, library in sorted(loader.system.items()):
        if is_driver(name):
            paths_by_kind.setdefault(_stand_in(library, loader.forced(name)), {})[name] = library.path
    for (severity, id_, description), paths in paths_by_kind.items():
        name, path = next(iter(paths.items()))
        evidence = f"{name}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {description}"
        yield Finding(severity, id_, "", path, evidence, tuple(paths.values())[:_SHOWN])
    led: dict[Library, dict[str, None]] = {}
    for requester in loader.libraries:
        for name in requester.elf.needed:
            resolution = loader.find(requester, name)
            if is_driver(name) and resolution.how is How.PATH and resolution.library and resolution.library.package:
                led.setdefault(resolution.library, {})[requester.path] = None
    for library, askers in led.items():
        id_ = "driver-stub" if _STUBS in posixpath.dirname(library.path).split("/") else "driver-in-image"
        evidence = f"{next(iter(askers))} finds it by its own path, instead of the host's"
        yield Finding(Severity.ERROR, id_, library.package, library.path, evidence, tuple(askers)[:_SHOWN])


def _stand_in(library: Library, forced: bool) -> tuple[Severity, str, str]:
    """Return (severity, id, description) of a system library that has the name of a driver library."""
    folders = posixpath.dirname(library.path).split("/")
    lookup = "LD_LIBRARY_PATH leads to it" if forced else "the loader finds it"
    if _STUBS in folders:
        return Severity.ERROR if forced else Severity.WARNING, "driver-stub", f"the toolkit's stub, and {lookup}"
    if _COMPAT in folders:
        return Severity.WARNING, "cuda-compat", f"of cuda-compat, and {lookup}"
    return Severity.INFO, "driver-in-image", "a driver's, right on a host and wrong in an image"


def check(loader: Loader) -> Iterator[Finding]:
    """Yield findings about libraries that are missing, too old, found by accident, or duplicated."""
    packages: dict[str, list[Library]] = {}
    for library in loader.libraries:
        packages.setdefault(library.package, []).append(library)
    names = {str(package): package.name for package in loader.subject.packages}
    for package, files in packages.items():
        yield from _missing(loader, package, names[package], files)
        yield from _versions(loader, package, files)
        if loader.machine == AARCH64:
            yield from _pages(package, files)
    if loader.known:  # otherwise it may lie in the base
        yield from _preloads(loader)
    yield from rivals(loader)


@dataclass(frozen=True)
class _Absent:
    """The libraries that one file requires and that are missing."""

    library: Library
    names: tuple[str, ...]
    severity: Severity
    because: str = ""  # why it is not an error


def _pages(package: str, files: list[Library]) -> Iterator[Finding]:
    """Yield a warning for files that a kernel with pages of 64 KiB cannot map, which only arm64 has.

    Source: glibc, elf/dl-load.c: up to 2.34 p_align has to be a multiple of the page, since 2.35 p_vaddr - p_offset.
    """
    small = [library for library in files if 0 < library.elf.alignment < _PAGE]
    if small:
        first = small[0]
        evidence = f"its segments are aligned for pages of {first.elf.alignment} bytes"
        if len(small) > 1:
            evidence += f", as in {counted(len(small) - 1, 'more file')}"
        lines = few([f"{library.path}: {library.elf.alignment} bytes" for library in small], _SHOWN, "files")
        yield Finding(Severity.WARNING, "page-size", package, first.path, evidence, lines if len(small) > 1 else ())


def _missing(loader: Loader, package: str, name: str, files: list[Library]) -> Iterator[Finding]:
    absent = {}
    for library in files:
        gone = tuple(n for n in library.elf.needed if loader.find(library, n).how is How.MISSING)
        if gone:
            absent[library] = gone
    by_stem: dict[str, list[Library]] = {}
    for library in files:
        if len(alike := by_stem.setdefault(_stem(library.path), [])) < _VARIANTS:
            alike.append(library)
    useless = all(_lacks(loader, file, absent) for file in files if loader.module(file)) if absent else False
    judged = [_judged(loader, name, absent, library, by_stem[_stem(library.path)], useless) for library in absent]
    for id_, asks_cuda in (("cuda-major", True), ("missing-library", False)):
        for severity in _ORDER:
            group = [
                absence
                for absence in judged
                if absence.severity is severity and any(_other_major(loader, n) for n in absence.names) is asks_cuda
            ]
            if group:
                yield _missing_finding(loader, severity, id_, package, group)


def _judged(
    loader: Loader,
    package: str,
    absent: Mapping[Library, tuple[str, ...]],
    library: Library,
    alike: list[Library],
    useless: bool,
) -> _Absent:
    """Return the severity of a `library` without the symbols that it needs.

    `absent` holds all such files of its package, `alike` those that may be its variants; the package is `useless` where
    none of its extension modules loads.
    """
    names = absent[library]
    variants = [file for file in alike if file is not library and _variants(names, file)]
    sound = [file for file in variants if file not in absent]
    severity, because = Severity.ERROR, ""
    imported = loader.imported(library)
    if sound:
        severity, because = Severity.INFO, f"{sound[0].name} is the variant for the present library"
    elif reason := optional(package, library.path):
        severity, because = Severity.INFO, reason
    elif library.program:
        severity, because = _of_program(loader, names)
    elif any(is_required(name) for name in names) and (imported or not (variants or loader.for_cpu)):
        pass
    elif variants:
        severity, because = Severity.WARNING, "none of its variants finds its library"
    elif not imported:
        severity, because = Severity.INFO, "no extension module loads it, so it is a plugin for users of the library"
    elif not useless:
        severity, because = Severity.WARNING, "other modules of the package load without it"
    return _Absent(library, names, severity, because)


def _of_program(loader: Loader, names: tuple[str, ...]) -> tuple[Severity, str]:
    if all(loader.providers(name) for name in names):
        return Severity.INFO, "a program that needs LD_LIBRARY_PATH to find them"
    return Severity.WARNING, "a program that does not start"


def _lacks(loader: Loader, module: Library, absent: Mapping[Library, tuple[str, ...]]) -> bool:
    return any(library in absent for library in loader.closure(module).libraries)


def _variants(names: tuple[str, ...], other: Library) -> bool:
    """Return whether a file is made for another version of a library of which one like it lacks `names`."""
    lacking = {_stem(name) for name in names}
    return any(_stem(name) in lacking and name not in names for name in other.elf.needed)


@lru_cache(1 << 14)
def _stem(path: str) -> str:
    return _VERSION.sub("", path)


def _other_major(loader: Loader, name: str) -> str | None:
    """Return the same CUDA library in another major version, if there is one."""
    requested = cuda_major(name)
    if requested is None:
        return None
    return next((n for major, n in loader.cuda.get(requested[0], {}).items() if major != requested[1]), None)


def _missing_finding(loader: Loader, severity: Severity, id_: str, package: str, files: list[_Absent]) -> Finding:
    names = list(dict.fromkeys(name for file in files for name in file.names))
    first = names[0]
    evidence = f"{first} is not there"
    if id_ == "cuda-major":
        first = next(name for name in names if _other_major(loader, name))
        evidence = f"{first} is requested, and {_other_major(loader, first)} is there"
    elif len(names) > 1:
        evidence += ", nor is 1 other" if len(names) == 2 else f", nor are {len(names) - 1} others"
    if len(files) > 1:
        evidence += f" ({len(files)} files)"
    if reasons := list(dict.fromkeys(file.because for file in files if file.because)):
        evidence += f"; {reasons[0]}"
    lines = [f"{file.library.path}: asks for {', '.join(file.names)}" for file in files]
    details = [*few(lines, _SHOWN, "files")]
    details += [f"searched for {first}: {step}" for step in _search_steps(loader, files[0].library)]
    return Finding(severity, id_, package, files[0].library.path, evidence, tuple(details))


def _search_steps(loader: Loader, library: Library) -> Iterator[str]:
    rpath, runpath = loader.directories(library)
    if paths := (*rpath, *runpath):
        yield f"the file's own path ({', '.join(paths)})"
    if loader.loaded and not library.program:
        yield "libraries that torch has loaded"
    yield "the system's libraries"
    if not library.program:
        yield "all of site-packages"


def _versions(loader: Loader, package: str, files: list[Library]) -> Iterator[Finding]:
    """Yield findings about version nodes (GLIBC_2.38) that a file requires and that the library there lacks."""
    short: dict[tuple[Severity, Library], dict[Library, frozenset[str]]] = {}
    for library in files:
        for name, nodes in library.elf.requires.items():
            provider = loader.find(library, name).library
            # ld.so takes a library without version nodes for every version.
            if provider is None or not provider.elf.provides or nodes <= provider.elf.provides:
                continue
            cuda = gpu.cuda_of_build(library.path) if loader.torch_cuda and gpu.is_essential(library.path) else ""
            if cuda and not f"{loader.torch_cuda}.".startswith(f"{cuda}."):
                continue  # the package loads its build for torch's CUDA
            severity = Severity.ERROR if cuda or loader.imported(library) else Severity.WARNING
            lacking = short.setdefault((severity, provider), {})
            lacking[library] = nodes - provider.elf.provides
    for (severity, provider), lacking in short.items():
        yield _version_finding(severity, package, provider, lacking)


def _version_finding(
    severity: Severity, package: str, provider: Library, lacking: Mapping[Library, frozenset[str]]
) -> Finding:
    nodes = frozenset().union(*lacking.values())
    highest = max(nodes, key=node_order)
    file = next(library for library in lacking if highest in lacking[library])
    family = highest.rpartition("_")[0]
    newest = max((n for n in provider.elf.provides if n.rpartition("_")[0] == family), key=node_order, default=None)
    provided = f"up to {newest}" if newest else "none such"
    evidence = f"needs {highest} of {provider.elf.soname or provider.name}, which has {provided}"
    releases = oldest_releases(nodes) if not provider.package else None
    if releases is not None:
        evidence += f"; {' or '.join(releases)} would do" if releases else "; no Debian or Ubuntu known here would do"
    details = [
        f"{library.path}: {', '.join(sorted(file_nodes, key=node_order))}" for library, file_nodes in lacking.items()
    ]
    owner = f"{provider.package}: {provider.path}" if provider.package else provider.path
    details_with_owner = (*few(details, _SHOWN, "files"), f"the library: {owner}")
    return Finding(severity, "library-too-old", package, file.path, evidence, details_with_owner)


def node_order(node: str) -> tuple[str, tuple[int, ...], str]:
    """Return the sort key of a version node such as GLIBC_2.34: family, numbers, text."""
    family, _, version = node.rpartition("_")
    return family, tuple(int(part) for part in re.findall(r"\d{1,9}", version)), node


def _preloads(loader: Loader) -> Iterator[Finding]:
    """Yield findings about libraries on no search path of their users, which something must load beforehand.

    A package that depends on the library's package loads it. Another one works by accident at best.
    """
    requested: dict[str, dict[str, Library]] = {}
    for root in loader.libraries:
        if root in loader.users or root.program:  # other files load it, with the libraries that it needs
            continue
        for resolution in loader.closure(root).resolutions:
            if resolution.how is not How.ELSEWHERE or resolution.library is None or not resolution.requester.package:
                continue
            if resolution.requester.package != resolution.library.package:  # a package loads its own libraries
                requested.setdefault(resolution.requester.package, {})[resolution.name] = resolution.library
    for package, names in requested.items():
        depended = _depended(loader.subject, package)
        for severity in (Severity.WARNING, Severity.INFO):
            group = {
                n: library
                for n, library in names.items()
                if (library.package in depended) is (severity is Severity.INFO)
            }
            if group:
                yield _preload_finding(severity, package, group)


def _preload_finding(severity: Severity, package: str, names: Mapping[str, Library]) -> Finding:
    first = next(iter(names))
    evidence = f"{first}{f' (and {len(names) - 1} more)' if len(names) > 1 else ''} is on no search path of its user"
    if severity is Severity.WARNING:
        evidence += f", and the package does not depend on {names[first].package}, which has it"
    details = tuple(f"{name}: {library.path} of {library.package}" for name, library in names.items())
    return Finding(severity, "needs-preload", package, None, evidence, details[:_SHOWN])


def _depended(subject: Subject, package: str) -> frozenset[str]:
    """Return the package's direct and indirect dependencies, whatever the extra or marker."""
    by_name = {distribution.name: distribution for distribution in subject.packages}
    queue = [distribution.name for distribution in subject.packages if str(distribution) == package]
    seen = set(queue)
    for name in queue:
        for requirement in by_name[name].requires:
            other = required_name(requirement)
            if other in by_name and other not in seen:
                seen.add(other)
                queue.append(other)
    return frozenset(str(by_name[name]) for name in seen)
