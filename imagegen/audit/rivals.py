"""Libraries that get into each other's way: two of one kind in a process, and stand-ins for the driver's."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from imagegen.audit.closure import How, Library, Loader
from imagegen.audit.known import Single, cuda_major, is_driver, singles
from imagegen.audit.model import Finding, Severity

_SHOWN = 20  # lines of one finding
_STUBS, _COMPAT = "stubs", "compat"  # directories of a CUDA toolkit, as NVIDIA lays it out


def rivals(loader: Loader) -> Iterator[Finding]:
    for single in singles():
        yield from _several(loader, single)
    yield from _majors(loader)
    yield from _drivers(loader)


def _several(loader: Loader, single: Single) -> Iterator[Finding]:
    """Yield findings about one kind of library in several directories."""
    there = [*loader.libraries, *dict.fromkeys(loader.system.values())]
    places: dict[str, Library] = {}
    for library in there:
        name = library.elf.soname or library.name
        if single.pattern.fullmatch(name):
            places.setdefault(posixpath.dirname(library.path), library)
    if len(places) < 2:
        return
    described = [f"{place} ({library.package or library.name})" for place, library in places.items()]
    taken: dict[str, None] = {}
    for asker in loader.libraries:
        for name in asker.elf.needed:
            if single.pattern.fullmatch(name) and (taker := loader.find(asker, name).library):
                taken[f"{asker.package} takes {name} from {posixpath.dirname(taker.path)}"] = None
    evidence = f"{single.name} lies in {len(places)} places: {', '.join(described)}"
    yield Finding(Severity.WARNING, "several-libraries", "", None, evidence, tuple(taken)[:_SHOWN])


def _majors(loader: Loader) -> Iterator[Finding]:
    """Two major versions of CUDA in one process, each found where it was asked for."""
    asked: dict[int, dict[str, str]] = {}
    for library in loader.libraries:
        if not loader.imported(library):
            continue
        for name in library.elf.needed:
            known = cuda_major(name)
            if known is not None and loader.find(library, name).library:
                asked.setdefault(known[1], {}).setdefault(name, f"{library.package}: {library.path}")
    if len(asked) > 1:
        names = [min(asked[major]) for major in sorted(asked)]
        details = [f"{name}: {asker}" for major in sorted(asked) for name, asker in sorted(asked[major].items())]
        evidence = f"one process loads {' and '.join(names)}"
        yield Finding(Severity.WARNING, "cuda-majors-mixed", "", None, evidence, tuple(details[:_SHOWN]))


def _drivers(loader: Loader) -> Iterator[Finding]:
    """Yield findings about files that the loader would use in place of the host's driver."""
    there: dict[tuple[Severity, str, str], dict[str, str]] = {}
    for name, library in sorted(loader.system.items()):
        if is_driver(name):
            there.setdefault(_stand_in(library, loader.forced(name)), {})[name] = library.path
    for (severity, id_, what), paths in there.items():
        name, path = next(iter(paths.items()))
        evidence = f"{name}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {what}"
        yield Finding(severity, id_, "", path, evidence, tuple(paths.values())[:_SHOWN])
    led: dict[Library, dict[str, None]] = {}
    for asker in loader.libraries:
        for name in asker.elf.needed:
            found = loader.find(asker, name)
            if is_driver(name) and found.how is How.PATH and found.library and found.library.package:
                led.setdefault(found.library, {})[asker.path] = None
    for library, askers in led.items():
        id_ = "driver-stub" if _STUBS in posixpath.dirname(library.path).split("/") else "driver-in-image"
        evidence = f"{next(iter(askers))} finds it by its own path, in place of the host's"
        yield Finding(Severity.ERROR, id_, library.package, library.path, evidence, tuple(askers)[:_SHOWN])


def _stand_in(library: Library, forced: bool) -> tuple[Severity, str, str]:
    """(severity, id, what it is) of a library of the system that is called like the driver's."""
    folders = posixpath.dirname(library.path).split("/")
    found = "LD_LIBRARY_PATH leads to it" if forced else "the loader finds it"
    if _STUBS in folders:
        return Severity.ERROR if forced else Severity.WARNING, "driver-stub", f"the toolkit's stub, and {found}"
    if _COMPAT in folders:
        return Severity.WARNING, "cuda-compat", f"of cuda-compat, and {found}"
    return Severity.INFO, "driver-in-image", "a driver's, right on a host and wrong in an image"
