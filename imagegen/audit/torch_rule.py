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
from operator import itemgetter

from packaging.requirements import Requirement
from packaging.version import Version

from imagegen.audit import torch_exports
from imagegen.audit.catalogue import data
from imagegen.audit.demangle import demangle
from imagegen.audit.model import Finding, Package, Severity, Subject, few, listed, required_name
from imagegen.audit.tags import MACHINES, for_another_python
from imagegen.audit.torch_exports import ExportIndex, is_shim, owned, owned_symbols
from imagegen.core.text import counted
from imagegen.core.types import minor

# The symbols that a package's extensions need of torch, the releases that have them, and the one it names.

X86_64 = 62  # e_machine

# "2.8.0.post2+cu12torch2.8cxx11abitrue", "2.1.2+pt28cu128", "libtorch_c_dlpack_addon_torch29-cuda.so"
_MINOR_IN_NAME = re.compile(r"(?:torch|(?<![a-z])pt)[-_.]?2[._]?(\d{1,2})(?!\d)", re.IGNORECASE)
_TORCH_LIBRARY = "_ZN5torch7LibraryC"  # constructors of torch::Library, which TORCH_LIBRARY runs
_NONE_SO_OLD, _NONE_SO_NEW = "0.1", "999.0"  # versions of torch that a requirement without a bound lets in
_LONGEST = 1000  # characters of a requirement; a number of more than 4,300 digits is an error of Python's
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}


@dataclass(frozen=True)
class Fit:
    """The torch that a package was built for, by its symbols, its version and its metadata."""

    stable: bool  # it uses nothing of torch but the C names of the stable ABI
    minors: tuple[str, ...]  # "2.8", "2.9": minors of the index that export all required symbols, oldest first
    declared: str | None  # the one minor that its version or its metadata names


@dataclass(frozen=True)
class TorchUser:
    """A package that uses torch: for each of its files the symbols that it requires and the package does not define.

    The files are those for `machine`, an ELF file's e_machine.
    """

    package: Package
    python: str | None
    machine: int
    required: Mapping[str, frozenset[str]]

    def on(self, torch_minor: str | None) -> Mapping[str, frozenset[str]]:
        """Return the required symbols for a minor of torch, because a package may bring one build of a file for each
        minor.

        If the minor is not known (None), return the symbols of all files.
        """
        if torch_minor is None:
            return self.required
        return {path: symbols for path, symbols in self.required.items() if _minor_in_name(path) in (None, torch_minor)}

    @property
    def index(self) -> ExportIndex:
        """The exports of torch's releases for the processor; empty for one without an index."""
        return _index(self.machine)

    @cached_property
    def stable(self) -> bool:
        return all(is_shim(symbol) for symbols in self.required.values() for symbol in symbols)

    @cached_property
    def registers(self) -> bool:
        """Return whether loading it registers operators in objects whose layout changes with torch's minor release."""
        return any(symbol.startswith(_TORCH_LIBRARY) for symbols in self.required.values() for symbol in symbols)

    @cached_property
    def minors(self) -> tuple[str, ...]:
        """Return the minors of the index that export all needed symbols."""
        return tuple(dict.fromkeys(minor(release) for release, lacks in self.lacks.items() if lacks == frozenset()))

    @cached_property
    def lacks(self) -> Mapping[str, frozenset[str] | None]:
        """The missing symbols by release of the index; None where the package has no files for its minor."""
        index = self.index
        on = {release: self.on(minor(release)) for release in index.releases}
        return {
            release: index.lacks(release, frozenset().union(*files.values())) if files else None
            for release, files in on.items()
        }

    @cached_property
    def named(self) -> str | None:
        """The torch minor in the version's local label, which the package's builder sets."""
        label = self.package.version.partition("+")[2]
        return _minor_in_name(label)

    @cached_property
    def requirement(self) -> str | None:
        """Return the metadata's requirement on torch on Linux: "torch==2.8.0"; None without one."""
        specifiers = sorted(str(requirement.specifier) for requirement in _requirements(self.package, self.python))
        return "torch" + ",".join(filter(None, specifiers)) if specifiers else None

    @cached_property
    def pinned(self) -> str | None:
        """Return the one minor that the metadata allows; None if it allows several or none."""
        requirements = _requirements(self.package, self.python)
        releases = (_NONE_SO_OLD, *torch_exports.shipped().releases, _NONE_SO_NEW)
        allowed = {
            minor(release)
            for release in releases
            if all(release in requirement.specifier for requirement in requirements)
        }
        exact = {
            minor(specifier.version.removesuffix(".*"))
            for requirement in requirements
            for specifier in requirement.specifier
            if _is_exact(specifier.operator, specifier.version)
        }
        minors = exact or allowed  # a release that the index does not know yet may be named
        return next(iter(minors)) if len(minors) == 1 else None

    @property
    def fit(self) -> Fit:
        return Fit(self.stable, self.minors, self.named or self.pinned)


def find_torch_user(package: Package, python: str | None, machine: int | None = None) -> TorchUser | None:
    """Return the package as a user of torch; None if it uses nothing of torch, and for torch itself.

    Files for other machines are left out (None: than the one that most of its files are for), and extension modules for
    other interpreters than `python` ("3.11").
    """
    if package.name == "torch":
        return None
    machine = machine or _machine(package)
    required = {}
    for path, file in sorted(package.binaries.items(), key=itemgetter(0)):
        elf = file.elf
        if elf and elf.machine == machine and not for_another_python(path, python):
            symbols = owned_symbols(elf.undefined)
            if symbols:
                required[path] = symbols
    if not required:
        return None
    for binary in package.binaries.values():
        if binary.elf and binary.elf.exported:
            required = {path: symbols - binary.elf.exported for path, symbols in required.items()}
    required = {path: symbols for path, symbols in required.items() if symbols}
    return TorchUser(package, python, machine, required) if required else None


def _index(machine: int) -> ExportIndex:
    return torch_exports.shipped(MACHINES[machine]) if machine in MACHINES else ExportIndex()


def _machine(package: Package) -> int:
    """Return the e_machine of most of its files, of those that an index of torch's exports is for."""
    machines = (file.elf.machine for file in package.binaries.values() if file.elf)
    counts = Counter(machine for machine in machines if machine in MACHINES)
    return max(counts, key=lambda machine: (counts[machine], -machine), default=X86_64)


def _minor_in_name(text: str) -> str | None:
    match = _MINOR_IN_NAME.search(posixpath.basename(text))
    return f"2.{match[1]}" if match else None


def _requirements(package: Package, python: str | None) -> list[Requirement]:
    """Return the metadata's requirements on torch on Linux."""
    return [requirement for text in package.requires if (requirement := _requirement(text, python)) is not None]


def _requirement(text: str, python: str | None) -> Requirement | None:
    if len(text) > _LONGEST or required_name(text) != "torch":
        return None
    try:
        requirement = Requirement(text)
        environment = _LINUX | {"extra": ""} | ({"python_version": python} if python else {})
        return requirement if requirement.marker is None or requirement.marker.evaluate(environment) else None
    except (ValueError, RecursionError):  # only in a broken or hostile package
        return None


def _is_exact(operator: str, version: str) -> bool:
    """Return whether it names a minor: `==2.8.0`, `==2.8.*`, `~=2.8.0`, and not `==2.*` or `~=2.8`."""
    numbers = {"==": 2, "~=": 3}.get(operator)
    return numbers is not None and len(Version(version.removesuffix(".*")).release) >= numbers


# Check that the installed torch is the one that a package's extensions were built for, by the symbols that they need.

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
    index = _index(machine)
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
    details = few(list(missing.items()), _FILES, lambda file: f"{file[0]}: {listed(file[1])}", "files")
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
    """Return a warning where symbols do not identify the torch and the loader would not report a wrong one, else a
    note.
    """
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
    """Format the minors that have everything that the package requires; symbols of the stable ABI stay
    in later ones.
    """
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
