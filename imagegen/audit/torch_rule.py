"""Check that the installed torch is the one that a package's extensions were built for, by the symbols that they need.

The rule was compared with dlopen (2026-11-21, nine wheels on torch 2.8 and 2.9). torch keeps its C++ ABI within a minor
release. A file that uses a C++ symbol of torch runs with the minor that it was built for. A file that uses only the C
names of the stable ABI runs with every later torch that has all of them. A file that lacks one symbol is not loaded at
all. All files of a package are judged together, because a file that lacks nothing can still abort while loading if the
package was built for another minor.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from imagegen.audit.catalogue import data
from imagegen.audit.demangle import demangle
from imagegen.audit.lists import few, listed
from imagegen.audit.model import Finding, Package, Severity, Subject
from imagegen.audit.torch_exports import ExportIndex, owned
from imagegen.audit.torch_users import Fit, TorchUser, export_index, find_torch_user
from imagegen.core.text import counted
from imagegen.core.types import minor

__all__ = ["Fit", "check", "fits", "owned"]

_LIBRARY = re.compile(r"lib(?:torch|c10)(?:_\w+)?\.so")
_NEW_STRING = "7__cxx11"  # the namespace of the new std::string in a mangled name
_LENGTH = re.compile("[0-9]{1,5}")
_OLD_STRING = "Ss"  # the substitution for the old std::string; Itanium C++ ABI, 5.1.10
_FILES = 8


def fits(package: Package, python: str | None = None) -> Fit | None:
    """Return the torch that `package` fits; None when it uses no symbol of torch.

    If `python` ("3.11") is given, extension modules for other interpreters are left out.
    """
    user = find_torch_user(package, python)
    return user.fit if user else None


def check(subject: Subject) -> Iterator[Finding]:
    """Yield findings about extensions that do not fit the installed torch, and the torch that loose wheels fit."""
    package = next((candidate for candidate in subject.packages if candidate.name == "torch"), None)
    installed = _installed(package) if package else None
    machine = installed.machine if installed else None
    users = [
        consumer for candidate in subject.packages if (consumer := find_torch_user(candidate, subject.python, machine))
    ]
    unknown: set[int] = set()
    for user in users:
        torch = installed or (_released(subject.torch, user.machine) if subject.torch and not package else None)
        if subject.torch and torch is None and user.machine not in unknown:
            unknown.add(user.machine)
            evidence = f"torch {subject.torch} is not among those known: {_index_range(user.index)}"
            yield Finding(Severity.WARNING, "torch-unknown", "", None, evidence)
        wrong = _check_release(user, torch) if torch else None
        if wrong:
            yield wrong
        if package is None:
            yield _fitting_note(user)
        elif not wrong and not user.stable and user.fit.declared is None and (not torch or user.on(torch.minor)):
            yield _unpinned_finding(user)


@dataclass(frozen=True)
class _Torch:
    """The torch that packages have to run with."""

    version: str
    machine: int
    exported: tuple[frozenset[str], ...]  # by each of its libraries, or by all together
    libraries: frozenset[str] | None  # its names; a CPU build lacks libtorch_cuda.so; None if not known

    @cached_property
    def minor(self) -> str | None:
        try:
            return minor(self.version)
        except ValueError:  # no version at all, or one with thousands of digits
            return None

    @cached_property
    def new_strings(self) -> bool:
        """Return whether it was built with the new C++ ABI: its functions take std::__cxx11::basic_string."""
        return any(has_new_string(symbol) for exported in self.exported for symbol in exported)

    def lacks(self, symbols: frozenset[str]) -> frozenset[str]:
        """Return the symbols that it does not export."""
        for exported in self.exported:
            symbols -= exported
        return symbols


def _installed(package: Package) -> _Torch | None:
    """Return the installed torch; None if its libraries are absent or unreadable, which another check reports."""
    if any(file.unreadable and not file.elf and _is_own(path) for path, file in package.binaries.items()):
        return None
    libraries = {path: file.elf for path, file in package.binaries.items() if file.elf and file.elf.exported}
    if not libraries:
        return None
    machine = Counter(elf.machine for elf in libraries.values()).most_common(1)[0][0]
    exported = tuple(elf.exported for elf in libraries.values())
    names = {posixpath.basename(path) for path in libraries} | {elf.soname for elf in libraries.values() if elf.soname}
    return _Torch(package.version, machine, exported, frozenset(names))


def _is_own(path: str) -> bool:
    return _LIBRARY.fullmatch(posixpath.basename(path)) is not None


@lru_cache(8)
def _released(version: str, machine: int) -> _Torch | None:
    """Return PyPI's torch for a processor from the index; None for a version that the index does not have."""
    index = export_index(machine)
    try:
        release = index.of(version)
    except ValueError:  # no version at all, or one with thousands of digits
        return None
    return _Torch(version, machine, (index.of_release(release),), None) if release else None


def _check_release(user: TorchUser, torch: _Torch) -> Finding | None:
    missing = {path: lacks for path, symbols in user.on(torch.minor).items() if (lacks := torch.lacks(symbols))}
    missing = {path: lacks for path, lacks in missing.items() if not _lacks_library(user, path, torch)}
    if missing:
        return _mismatch_finding(user, torch, missing)
    if user.stable or user.fit.declared in (None, torch.minor):
        return None
    source = "as its version says" if user.named else _metadata_evidence(user)
    evidence = f"built for torch {user.fit.declared}, {source}, this is {torch.version}; no symbol is missing"
    return Finding(Severity.WARNING, "torch-other-minor", str(user.package), None, evidence)


def _lacks_library(user: TorchUser, path: str, torch: _Torch) -> bool:
    """Return whether the file requires a library that this torch lacks, which another check reports."""
    elf = user.package.files[path].elf
    if elf is None or torch.libraries is None:
        return False
    own_names = {posixpath.basename(file) for file in user.package.files}
    return any(
        _LIBRARY.fullmatch(name) and name not in torch.libraries and name not in own_names for name in elf.needed
    )


def _mismatch_finding(user: TorchUser, torch: _Torch, missing: Mapping[str, frozenset[str]]) -> Finding:
    symbols = frozenset().union(*missing.values())
    flipped = _first_flipped(symbols, torch)
    if flipped:
        id_, first = "torch-abi-flip", flipped
        why = f"{_build_evidence(user)}, with {_abi(not torch.new_strings)}"
        why += f"; this is {torch.version}, with {_abi(torch.new_strings)}"
    else:
        id_, first = "torch-mismatch", min(next(iter(missing.values())))
        why = f"{_build_evidence(user)}, this is {torch.version}"
    path = next(path for path, lacks in missing.items() if first in lacks)
    evidence = f"{why}; {counted(len(symbols), 'symbol')} missing, first {demangle(first)}"
    details = few([f"{path}: {listed(lacks)}" for path, lacks in missing.items()], _FILES, "files")
    if user.fit.declared is None:
        details += (_metadata_evidence(user),)
    severity = Severity.WARNING if user.package.name in data("torch")["go-on"] else Severity.ERROR
    return Finding(severity, id_, str(user.package), path, evidence, details)


def _first_flipped(missing: frozenset[str], torch: _Torch) -> str | None:
    """Return the first symbol that is missing because its strings are of the other C++ ABI; None if there is none."""
    is_other = has_old_string if torch.new_strings else has_new_string
    return next(filter(is_other, sorted(missing)), None)


def has_new_string(symbol: str) -> bool:
    """Return whether a mangled name mentions the std::string of the new C++ ABI."""
    return _NEW_STRING in symbol


def has_old_string(symbol: str) -> bool:
    """Return whether a mangled name mentions the std::string of the old C++ ABI, and not the new one."""
    if not symbol.startswith("_Z") or has_new_string(symbol):
        return False
    position = 2
    while position < len(symbol):
        if number := _LENGTH.match(symbol, position):  # an identifier with its length, which is not a type
            position = number.end() + int(number[0])
        elif symbol.startswith(_OLD_STRING, position):
            return True
        else:
            position += 1
    return False


def _abi(new: bool) -> str:
    return f"the {'new' if new else 'old'} C++ ABI (_GLIBCXX_USE_CXX11_ABI={int(new)})"


def _build_evidence(user: TorchUser) -> str:
    if user.minors:
        built = "built for one of" if len(user.minors) > 1 else "built for"
        return f"{'needs the stable ABI of' if user.stable else built} torch {_format_minors(user)}"
    if user.fit.declared:
        return f"built for torch {user.fit.declared}, as it says"
    return f"built for none of torch {_index_range(user.index)}"


def _unpinned_finding(user: TorchUser) -> Finding:
    """Return a warning if symbols do not identify the torch and the loader reports no wrong one, else a note."""
    evidence = f"{_metadata_evidence(user)}; it {_symbol_evidence(user)}"
    if len(user.minors) > 1 and user.registers:
        evidence += "; built for another of them, it aborts while it is loaded"
        return Finding(Severity.WARNING, "torch-unpinned", str(user.package), None, evidence)
    return Finding(Severity.INFO, "torch-unpinned", str(user.package), None, evidence)


def _fitting_note(user: TorchUser) -> Finding:
    details = () if user.fit.declared else (_metadata_evidence(user),)
    return Finding(Severity.INFO, "torch-fits", str(user.package), None, _symbol_evidence(user), details)


def _symbol_evidence(user: TorchUser) -> str:
    """Return the evidence of its symbols."""
    count = len(frozenset().union(*user.required.values()))
    if user.minors:
        return (
            f"fits torch {_format_minors(user)} ({counted(count, 'symbol')}, {'stable' if user.stable else 'C++'} ABI)"
        )
    lacks = {release: lacks for release, lacks in user.lacks.items() if lacks is not None}
    if not lacks:
        return f"has nothing for torch {_index_range(user.index)}"
    nearest = min(reversed(lacks), key=lambda release: len(lacks[release]))
    evidence = f"{nearest} lacks {len(lacks[nearest])} of {count} symbols, first {demangle(min(lacks[nearest]))}"
    return f"fits no torch from {_index_range(user.index)}; {evidence}"


def _metadata_evidence(user: TorchUser) -> str:
    return f'its metadata says "{user.requirement}"' if user.requirement else "its metadata says nothing of torch"


def _format_minors(user: TorchUser) -> str:
    """Format the minors that have everything a package requires; symbols of the stable ABI stay in later ones."""
    newest = user.minors[-1] == minor(user.index.releases[-1])
    return f"{user.minors[0]} or newer" if user.stable and newest else _format_ranges(user)


def _format_ranges(user: TorchUser) -> str:
    """Return its minors as ranges of the index: "2.4 to 2.6, 2.8, 2.9"."""
    index_minors = list(dict.fromkeys(map(minor, user.index.releases)))
    runs: list[list[str]] = []
    for torch_minor in user.minors:
        if runs and index_minors.index(torch_minor) == index_minors.index(runs[-1][-1]) + 1:
            runs[-1].append(torch_minor)
        else:
            runs.append([torch_minor])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _index_range(index: ExportIndex) -> str:
    return f"{minor(index.releases[0])} to {minor(index.releases[-1])}" if index.releases else "none"
