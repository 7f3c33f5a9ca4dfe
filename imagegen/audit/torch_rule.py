"""Check that the torch beside a package is the one that its extensions were built for, by the symbols they need.

The rule, checked against what dlopen does (2026-11-21, nine wheels on torch 2.8 and 2.9): torch keeps its C++ ABI
within a minor release, so a file that uses any C++ symbol of torch's runs with the minor that it was built for, and one
that uses only the C names of the stable ABI with every later torch that has them all. A file that lacks one symbol is
not loaded at all. A package is judged by all of its files together: those that lack nothing can still abort while
loading, when the package was built for another minor.
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
_NAMED = re.compile(r"(?:torch|(?<![a-z])pt)[-_.]?2[._]?(\d{1,2})(?!\d)", re.IGNORECASE)
_TORCH_LIBRARY = "_ZN5torch7LibraryC"  # constructors of torch::Library, which TORCH_LIBRARY runs
_NONE_SO_OLD, _NONE_SO_NEW = "0.1", "999.0"  # versions of torch that a requirement without a bound lets in
_LONGEST = 1000  # characters of a requirement; a number of more than 4,300 digits is an error of Python's
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}


@dataclass(frozen=True)
class Fit:
    """The torch that a package was built for, by its symbols, its version and its metadata."""

    stable: bool  # it uses nothing of torch but the C names of the stable ABI
    minors: tuple[str, ...]  # "2.8", "2.9": those of the index that export all that it wants, oldest first
    declared: str | None  # the one minor that its version or its metadata names


@dataclass(frozen=True)
class User:
    """A package that uses torch: for each of its files the symbols that it requires and the package does not define.

    The files are those for `machine`, an ELF file's e_machine.
    """

    package: Package
    python: str | None
    machine: int
    required: Mapping[str, frozenset[str]]

    def on(self, one_minor: str | None) -> Mapping[str, frozenset[str]]:
        """Return the needed symbols on a minor of torch: a package may bring one build of a file for each of several.

        On one whose version cannot be read (None), all of it.
        """
        if one_minor is None:
            return self.required
        return {path: symbols for path, symbols in self.required.items() if _named(path) in (None, one_minor)}

    @property
    def index(self) -> ExportIndex:
        """The exports of torch's releases for the processor; empty for one without an index."""
        return _index(self.machine)

    @cached_property
    def stable(self) -> bool:
        return all(is_shim(symbol) for symbols in self.required.values() for symbol in symbols)

    @cached_property
    def registers(self) -> bool:
        """Return whether it registers operators, as it is loaded, in objects whose layout moves with torch's minor
        release.
        """
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
        return _named(label)

    @cached_property
    def requirement(self) -> str | None:
        """Return the metadata's requirement on torch on Linux: "torch==2.8.0"; None without one."""
        found = sorted(str(each.specifier) for each in _requirements(self.package, self.python))
        return "torch" + ",".join(filter(None, found)) if found else None

    @cached_property
    def pinned(self) -> str | None:
        """The one minor that the metadata lets in."""
        found = _requirements(self.package, self.python)
        releases = (_NONE_SO_OLD, *torch_exports.shipped().releases, _NONE_SO_NEW)
        let_in = {minor(release) for release in releases if all(release in one.specifier for one in found)}
        exact = {
            minor(each.version.removesuffix(".*"))
            for one in found
            for each in one.specifier
            if _is_exact(each.operator, each.version)
        }
        one = exact or let_in  # a release that the index does not know yet may be named
        return next(iter(one)) if len(one) == 1 else None

    @property
    def fit(self) -> Fit:
        return Fit(self.stable, self.minors, self.named or self.pinned)


def user(package: Package, python: str | None, machine: int | None = None) -> User | None:
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
    return User(package, python, machine, required) if required else None


def _index(machine: int) -> ExportIndex:
    return torch_exports.shipped(MACHINES[machine]) if machine in MACHINES else ExportIndex()


def _machine(package: Package) -> int:
    """Return the e_machine of most of its files, of those that an index of torch's exports is for."""
    machines = (file.elf.machine for file in package.binaries.values() if file.elf)
    found = Counter(machine for machine in machines if machine in MACHINES)
    return max(found, key=lambda machine: (found[machine], -machine), default=X86_64)


def _named(text: str) -> str | None:
    match = _NAMED.search(posixpath.basename(text))
    return f"2.{match[1]}" if match else None


def _requirements(package: Package, python: str | None) -> list[Requirement]:
    """Return the metadata's requirements on torch on Linux."""
    return [one for text in package.requires if (one := _requirement(text, python)) is not None]


def _requirement(text: str, python: str | None) -> Requirement | None:
    if len(text) > _LONGEST or required_name(text) != "torch":
        return None
    try:
        found = Requirement(text)
        place = _LINUX | {"extra": ""} | ({"python_version": python} if python else {})
        return found if found.marker is None or found.marker.evaluate(place) else None
    except (ValueError, RecursionError):  # what only a broken or hostile package says
        return None


def _is_exact(operator: str, version: str) -> bool:
    """Return whether it names a minor: `==2.8.0`, `==2.8.*`, `~=2.8.0`, and not `==2.*` or `~=2.8`."""
    numbers = {"==": 2, "~=": 3}.get(operator)
    return numbers is not None and len(Version(version.removesuffix(".*")).release) >= numbers


# Check that the torch beside a package is the one that its extensions were built for, by the symbols they need.

__all__ = ["Fit", "check", "fits", "owned"]

_LIBRARY = re.compile(r"lib(?:torch|c10)(?:_\w+)?\.so")
_NEW_STRING = "7__cxx11"  # in a mangled name: the namespace of the new std::string
_LENGTH = re.compile("[0-9]{1,5}")
_OLD_STRING = "Ss"  # Itanium C++ ABI, 5.1.10: the substitution for the old one
_FILES = 8


def fits(package: Package, python: str | None = None) -> Fit | None:
    """Return the torch that `package` fits; None when it uses no symbol of torch.

    `python` ("3.11") leaves out what its extension modules for other interpreters want.
    """
    found = user(package, python)
    return found.fit if found else None


def check(subject: Subject) -> Iterator[Finding]:
    """Packages whose extensions do not fit the torch beside them; of loose wheels, which torch they fit."""
    package = next((each for each in subject.packages if each.name == "torch"), None)
    installed = _installed(package) if package else None
    machine = installed.machine if installed else None
    users = [found for each in subject.packages if (found := user(each, subject.python, machine))]
    unknown: set[int] = set()
    for each in users:
        torch = installed or (_released(subject.torch, each.machine) if subject.torch and not package else None)
        if subject.torch and torch is None and each.machine not in unknown:
            unknown.add(each.machine)
            says = f"torch {subject.torch} is not among those known: {_known(each.index)}"
            yield Finding(Severity.WARNING, "torch-unknown", "", None, says)
        wrong = _wrong(each, torch) if torch else None
        if wrong:
            yield wrong
        if package is None:
            yield _fitting(each)
        elif not wrong and not each.stable and each.fit.declared is None and (not torch or each.on(torch.minor)):
            yield _unpinned(each)


@dataclass(frozen=True)
class _Torch:
    """The torch that packages have to run with."""

    version: str
    machine: int
    exported: tuple[frozenset[str], ...]  # by each of its libraries, or by all together
    libraries: frozenset[str] | None  # the names of its own: a CPU build lacks libtorch_cuda.so; None: not known

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
        """Return those of `symbols` that it does not export."""
        for exported in self.exported:
            symbols -= exported
        return symbols


def _installed(package: Package) -> _Torch | None:
    """Return the installed torch; None where its libraries are absent or one cannot be parsed (another check reports
    that).
    """
    if any(file.unreadable and not file.elf and _is_own(path) for path, file in package.binaries.items()):
        return None
    there = {path: file.elf for path, file in package.binaries.items() if file.elf and file.elf.exported}
    if not there:
        return None
    machine = Counter(elf.machine for elf in there.values()).most_common(1)[0][0]
    exported = tuple(elf.exported for elf in there.values())
    names = {posixpath.basename(path) for path in there} | {elf.soname for elf in there.values() if elf.soname}
    return _Torch(package.version, machine, exported, frozenset(names))


def _is_own(path: str) -> bool:
    return _LIBRARY.fullmatch(posixpath.basename(path)) is not None


@lru_cache(8)
def _released(version: str, machine: int) -> _Torch | None:
    """PyPI's for a processor, by the index; None for a version that it does not know."""
    index = _index(machine)
    try:
        release = index.of(version)
    except ValueError:  # no version at all, or one with thousands of digits
        return None
    return _Torch(version, machine, (index.of_release(release),), None) if release else None


def _wrong(one: User, torch: _Torch) -> Finding | None:
    missing = {path: lacks for path, symbols in one.on(torch.minor).items() if (lacks := torch.lacks(symbols))}
    missing = {path: lacks for path, lacks in missing.items() if not _lacks_library(one, path, torch)}
    if missing:
        return _mismatch(one, torch, missing)
    if one.stable or one.fit.declared in (None, torch.minor):
        return None
    source = "as its version says" if one.named else _says(one)
    says = f"built for torch {one.fit.declared}, {source}, this is {torch.version}; no symbol is missing"
    return Finding(Severity.WARNING, "torch-other-minor", str(one.package), None, says)


def _lacks_library(one: User, path: str, torch: _Torch) -> bool:
    """Return whether the file requires a library of torch that this torch lacks: the missing library
    is the fault then.
    """
    elf = one.package.files[path].elf
    if elf is None or torch.libraries is None:
        return False
    own = {posixpath.basename(file) for file in one.package.files}
    return any(_LIBRARY.fullmatch(name) and name not in torch.libraries and name not in own for name in elf.needed)


def _mismatch(one: User, torch: _Torch, missing: Mapping[str, frozenset[str]]) -> Finding:
    every = frozenset().union(*missing.values())
    flipped = _flipped(every, torch)
    if flipped:
        id_, first = "torch-abi-flip", flipped
        why = f"{_built(one)}, with {_abi(not torch.new_strings)}"
        why += f"; this is {torch.version}, with {_abi(torch.new_strings)}"
    else:
        id_, first = "torch-mismatch", min(next(iter(missing.values())))
        why = f"{_built(one)}, this is {torch.version}"
    path = next(path for path, lacks in missing.items() if first in lacks)
    evidence = f"{why}; {counted(len(every), 'symbol')} missing, first {demangle(first)}"
    details = few(list(missing.items()), _FILES, lambda file: f"{file[0]}: {listed(file[1])}", "files")
    if one.fit.declared is None:
        details += (_says(one),)
    severity = Severity.WARNING if one.package.name in data("torch")["go-on"] else Severity.ERROR
    return Finding(severity, id_, str(one.package), path, evidence, details)


def _flipped(missing: frozenset[str], torch: _Torch) -> str | None:
    """Return the first symbol that is missing because its strings are of the other C++ ABI; None without one."""
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
        if number := _LENGTH.match(symbol, position):  # an identifier with its length: what it says is no type
            position = number.end() + int(number[0])
        elif symbol.startswith(_OLD_STRING, position):
            return True
        else:
            position += 1
    return False


def _abi(new: bool) -> str:
    return f"the {'new' if new else 'old'} C++ ABI (_GLIBCXX_USE_CXX11_ABI={int(new)})"


def _built(one: User) -> str:
    if one.minors:
        built = "built for one of" if len(one.minors) > 1 else "built for"
        return f"{'needs the stable ABI of' if one.stable else built} torch {_there(one)}"
    if one.fit.declared:
        return f"built for torch {one.fit.declared}, as it says"
    return f"built for none of torch {_known(one.index)}"


def _unpinned(one: User) -> Finding:
    """Return a warning where symbols do not identify the torch and the loader would not report a wrong one, else a
    note.
    """
    says = f"{_says(one)}; it {_evidence(one)}"
    if len(one.minors) > 1 and one.registers:
        says += "; built for another of them, it aborts while it is loaded"
        return Finding(Severity.WARNING, "torch-unpinned", str(one.package), None, says)
    return Finding(Severity.INFO, "torch-unpinned", str(one.package), None, says)


def _fitting(one: User) -> Finding:
    details = () if one.fit.declared else (_says(one),)
    return Finding(Severity.INFO, "torch-fits", str(one.package), None, _evidence(one), details)


def _evidence(one: User) -> str:
    """Return the evidence of its symbols."""
    count = len(frozenset().union(*one.required.values()))
    if one.minors:
        return f"fits torch {_there(one)} ({counted(count, 'symbol')}, {'stable' if one.stable else 'C++'} ABI)"
    lacks = {release: lacks for release, lacks in one.lacks.items() if lacks is not None}
    if not lacks:
        return f"has nothing for torch {_known(one.index)}"
    nearest = min(reversed(lacks), key=lambda release: len(lacks[release]))
    says = f"{nearest} lacks {len(lacks[nearest])} of {count} symbols, first {demangle(min(lacks[nearest]))}"
    return f"fits no torch from {_known(one.index)}; {says}"


def _says(one: User) -> str:
    return f'its metadata says "{one.requirement}"' if one.requirement else "its metadata says nothing of torch"


def _there(one: User) -> str:
    """Format the minors that have everything that the package requires; symbols of the stable ABI stay
    in later ones.
    """
    newest = one.minors[-1] == minor(one.index.releases[-1])
    return f"{one.minors[0]} or newer" if one.stable and newest else _runs(one)


def _runs(one: User) -> str:
    """Return its minors as ranges of the index: "2.4 to 2.6, 2.8, 2.9"."""
    known = list(dict.fromkeys(map(minor, one.index.releases)))
    runs: list[list[str]] = []
    for each in one.minors:
        if runs and known.index(each) == known.index(runs[-1][-1]) + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _known(index: ExportIndex) -> str:
    return f"{minor(index.releases[0])} to {minor(index.releases[-1])}" if index.releases else "none"
