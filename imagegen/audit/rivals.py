"""Check for libraries that conflict in a process: two of one kind, and stand-ins for the driver's."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from imagegen.audit.catalogue import Single, cuda_major, is_driver, singles
from imagegen.audit.closure import How, Library, Loader
from imagegen.audit.model import Finding, Severity

_LIBRARIES_SHOWN = 20  # lines of one finding
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
    yield Finding(Severity.WARNING, "several-libraries", "", None, evidence, tuple(choices)[:_LIBRARIES_SHOWN])


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
        yield Finding(Severity.WARNING, "cuda-majors-mixed", "", None, evidence, tuple(details[:_LIBRARIES_SHOWN]))


def _drivers(loader: Loader) -> Iterator[Finding]:
    """Yield findings about files that the loader would use instead of the host's driver."""
    paths_by_kind: dict[tuple[Severity, str, str], dict[str, str]] = {}
    for name, library in sorted(loader.system.items()):
        if is_driver(name):
            paths_by_kind.setdefault(_stand_in(library, loader.forced(name)), {})[name] = library.path
    for (severity, id_, description), paths in paths_by_kind.items():
        name, path = next(iter(paths.items()))
        evidence = f"{name}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {description}"
        yield Finding(severity, id_, "", path, evidence, tuple(paths.values())[:_LIBRARIES_SHOWN])
    led: dict[Library, dict[str, None]] = {}
    for requester in loader.libraries:
        for name in requester.elf.needed:
            resolution = loader.find(requester, name)
            if is_driver(name) and resolution.how is How.PATH and resolution.library and resolution.library.package:
                led.setdefault(resolution.library, {})[requester.path] = None
    for library, askers in led.items():
        id_ = "driver-stub" if _STUBS in posixpath.dirname(library.path).split("/") else "driver-in-image"
        evidence = f"{next(iter(askers))} finds it by its own path, instead of the host's"
        yield Finding(Severity.ERROR, id_, library.package, library.path, evidence, tuple(askers)[:_LIBRARIES_SHOWN])


def _stand_in(library: Library, forced: bool) -> tuple[Severity, str, str]:
    """Return (severity, id, description) of a system library that has the name of a driver library."""
    folders = posixpath.dirname(library.path).split("/")
    lookup = "LD_LIBRARY_PATH leads to it" if forced else "the loader finds it"
    if _STUBS in folders:
        return Severity.ERROR if forced else Severity.WARNING, "driver-stub", f"the toolkit's stub, and {lookup}"
    if _COMPAT in folders:
        return Severity.WARNING, "cuda-compat", f"of cuda-compat, and {lookup}"
    return Severity.INFO, "driver-in-image", "a driver's, right on a host and wrong in an image"
