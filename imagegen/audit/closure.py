"""Library resolution as the dynamic loader does it, and the symbols that a file then sees. Pure: nothing is read.

The order is ld.so(8)'s: DT_RPATH of the requesting file and of those that loaded it (a DT_RUNPATH replaces both),
LD_LIBRARY_PATH, DT_RUNPATH of only the requesting file, the system's directories. A name that is already loaded is not
searched again, which is why extensions find torch's libraries without any path to them. A library that cannot be found
in one of these ways but exists in site-packages counts as found, because packages that are built so load it when they
are imported.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from imagegen.audit.catalogue import cuda_major, is_driver, is_module
from imagegen.audit.model import Elf, Subject, SystemLibraries
from imagegen.audit.tags import MACHINES, for_another_python

_SITE = re.compile(r"^\.\./\.\./\.\./lib/python3\.\d+/site-packages/")  # of a path that leads out and back: from bin/
_ORIGIN, _LIB, _PLATFORM = (re.compile(rf"\$(?:{name}\b|\{{{name}\}})") for name in ("ORIGIN", "LIB", "PLATFORM"))
_LIB_NAMES = (
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "lib",
)  # Debian's two directories, and the directories of other distributions
_TORCH = "torch/lib/"
_OF_TORCH = re.compile(r"lib(?:torch|c10)(?:_\w+)?\.so")
MAX_STEPS = 2_000_000  # of all closures together; a stack of 650 files takes 20,000, a tenth of a second
_RUNTIME = "nvidia-cuda-runtime"  # begins the names of the distributions of which torch requires one exactly
MAX_DIRECTORIES = 100  # that are searched for one file; libtorch_cuda.so's path has 6
# Libraries of every Python process: its interpreter needs them, or they are part of the C library. libm matters most,
# because pillow calls it without a DT_NEEDED entry.
_ALWAYS = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1"),
    *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
)


class How(Enum):
    """In which way a library is found."""

    PATH = "path"  # DT_RPATH or DT_RUNPATH
    PRELOADED = "LD_LIBRARY_PATH"
    LOADED = "loaded"  # torch has loaded it
    SYSTEM = "system"
    DRIVER = "driver"  # the host's driver brings it when a container starts
    ELSEWHERE = "elsewhere"  # in site-packages, on no path: something must load it beforehand
    UNKNOWN = "unknown"  # it cannot be read; or it is in no package, and the base is not known
    MISSING = "missing"


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """A file that the loader may map. Each file has one object, so identity decides equality."""

    package: str  # "torch 2.11.0"; "" for the system's
    path: str  # relative to site-packages; absolute in the system
    elf: Elf

    @property
    def program(self) -> bool:
        """Return whether the file is a program. Some libraries name an interpreter too, to print their version."""
        return self.elf.program and self.elf.soname is None and ".so" not in self.name

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)


class ResolvedLibrary(NamedTuple):  # 30,000 of a stack
    """The resolution of one DT_NEEDED entry of `requester`."""

    requester: Library
    name: str
    how: How
    library: Library | None = None


@dataclass(frozen=True)
class Closure:
    """The files that are loaded with a file, in the loader's order: itself first."""

    libraries: tuple[Library, ...]
    resolutions: tuple[ResolvedLibrary, ...]  # one for each DT_NEEDED entry of each of them

    @cached_property
    def whole(self) -> bool:
        """Return whether every library was found or is the driver's: then a symbol that none of them has is missing."""
        return all(resolution.library is not None or resolution.how is How.DRIVER for resolution in self.resolutions)


class Loader:
    """ld.so over a subject's files: finds libraries, and follows them. It remembers its answers."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        system = subject.system or SystemLibraries({})
        self.known = subject.system is not None  # the libraries below the packages
        self.for_cpu = subject.cuda is False
        self.torch = any(package.name == "torch" and package.files for package in subject.packages)
        self.machine = _machine(subject)
        self.libraries = tuple(_of_packages(subject, self.machine))
        self._by_path = {posixpath.normpath(library.path): library for library in reversed(self.libraries)}
        self.system = _of_system(system, self.machine, self._by_path)
        file = system.interpreter
        self.interpreter = Library("", "the interpreter", file.elf) if file and file.elf else None
        self._by_system_path = {_unmerged(library.path): library for library in self.system.values()}
        self._by_name = _by_name(self.libraries)
        self._names = {posixpath.basename(path) for path in (*self._by_path, *self._by_system_path)}
        self._unread = _unread(subject, system)
        forced = {_unmerged(posixpath.normpath(directory)) for directory in system.preloaded}
        self._forced = {n: lib for n, lib in self.system.items() if _unmerged(posixpath.dirname(lib.path)) in forced}
        self._directories: dict[Library, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._answers: dict[tuple[Library, str, tuple[str, ...]], ResolvedLibrary] = {}
        self._closures: dict[Library, Closure] = {}
        self._steps = 0
        self.loaded: Mapping[str, Library] = {}
        self.loaded = self._loaded_by_torch()

    def closure(self, root: Library) -> Closure:
        """Return all libraries that loading `root` loads into a process that has loaded only torch."""
        if root not in self._closures:
            self._closures[root] = self._follow(root)
        return self._closures[root]

    def find(self, requester: Library, name: str, inherited: tuple[str, ...] | None = None) -> ResolvedLibrary:
        """Return the library that the loader resolves a DT_NEEDED `name` of `requester` to.

        `inherited` are the DT_RPATH directories of `requester` and of the libraries that loaded it. If it is None, only
        the directories of `requester` are searched.
        """
        rpath, runpath = self.directories(requester)
        rpath = () if requester.elf.runpath else rpath if inherited is None else inherited
        key = (requester, name, rpath)
        if key not in self._answers:
            self._answers[key] = ResolvedLibrary(requester, name, *self._search(requester, name, rpath, runpath))
        return self._answers[key]

    def directories(self, library: Library) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return DT_RPATH and DT_RUNPATH of a file, tokens replaced. DT_RPATH counts only without DT_RUNPATH."""
        if library not in self._directories:
            rpath = () if library.elf.runpath else library.elf.rpath
            self._directories[library] = (_expanded(library, rpath), _expanded(library, library.elf.runpath))
        return self._directories[library]

    def providers(self, name: str) -> tuple[Library, ...]:
        """Return the packages' files whose file name or SONAME is `name`."""
        return self._by_name.get(name, ())

    def forced(self, name: str) -> bool:
        """Return whether LD_LIBRARY_PATH leads to the system's library of that name."""
        return name in self._forced

    @cached_property
    def users(self) -> Mapping[Library, tuple[Library, ...]]:
        """Return, for each library, the packages' files that load it, except itself."""
        roots_by_library: dict[Library, list[Library]] = {}
        for root in self.libraries:
            for library in self.closure(root).libraries[1:]:
                roots_by_library.setdefault(library, []).append(root)
        return {library: tuple(roots) for library, roots in roots_by_library.items()}

    def module(self, library: Library) -> bool:
        """Return whether Python can import the library, which extensions for torch.ops or ctypes need not allow."""
        init_function = f"PyInit_{library.name.partition('.')[0]}"  # of nearly all modules; quicker than all names
        return init_function in library.elf.exported or is_module(library.elf.exported)

    def imported(self, library: Library) -> bool:
        """Return whether importing some extension module maps the file."""
        return self.module(library) or any(self.module(user) for user in self.users.get(library, ()))

    @cached_property
    def cuda(self) -> Mapping[str, Mapping[int, str]]:
        """Return the present CUDA libraries: stem -> major -> name, as in "cudart", 13, libcudart.so.13."""
        names: dict[str, dict[int, str]] = {}
        for name in (*self.system, *(library.elf.soname or library.name for library in self.libraries)):
            if stem_and_major := cuda_major(name):
                names.setdefault(stem_and_major[0], {}).setdefault(stem_and_major[1], name)
        return names

    @cached_property
    def torch_cuda(self) -> str:
        """Return the CUDA release of torch, "12.6", by its label or the CUDA runtime; "" if neither is known."""
        versions = {package.name: package.version for package in self.subject.packages}
        label = re.search(r"\+cu(\d\d)(\d)$", versions.get("torch", ""))
        runtime = next((version for name, version in versions.items() if name.startswith(_RUNTIME)), "")
        return ".".join(label.groups() if label else runtime.split(".")[:2])

    @property
    def exhausted(self) -> bool:
        """Return whether the search reached its limit of lookups."""
        return self._steps > MAX_STEPS

    @cached_property
    def everywhere(self) -> tuple[Library, ...]:
        """Return the libraries that every Python process has loaded."""
        always = [self.system[name] for name in _ALWAYS if name in self.system]
        interpreter_libraries = self.closure(self.interpreter).libraries if self.interpreter else ()
        return tuple(dict.fromkeys([*interpreter_libraries, *always]))

    def _loaded_by_torch(self) -> dict[str, Library]:
        """Return the libraries, by name, that are loaded once torch is imported."""
        torch_libraries = [library for library in self.libraries if library.path.startswith(_TORCH)]
        loaded = {library.elf.soname or library.name: library for library in torch_libraries}
        self.loaded = dict(loaded)
        for root in torch_libraries:
            for resolution in self.closure(root).resolutions:
                if resolution.library is not None and resolution.library.package:
                    loaded.setdefault(resolution.name, resolution.library)
        self._answers.clear()  # computed before the loaded libraries were known
        self._closures.clear()
        return loaded

    def _follow(self, root: Library) -> Closure:
        # ld.so knows a file by the names under which it was requested and by its SONAME.
        names = {root.elf.soname: root} if root.elf.soname else {}
        inherited = {root: self.directories(root)[0]}
        order, resolutions = [root], []
        for requester in order:  # the list grows
            self._steps += len(requester.elf.needed)
            if self.exhausted:
                return Closure((root,), (ResolvedLibrary(root, "", How.UNKNOWN),))
            for name in requester.elf.needed:
                if name in names:
                    resolutions.append(ResolvedLibrary(requester, name, How.LOADED, names[name]))
                    continue
                resolution = self.find(requester, name, inherited[requester])
                resolutions.append(resolution)
                library = resolution.library
                if library is None:
                    continue
                names[name] = library
                if library not in inherited:
                    names.setdefault(library.elf.soname or name, library)
                    searched = dict.fromkeys((*self.directories(library)[0], *inherited[requester]))
                    inherited[library] = tuple(searched)[:MAX_DIRECTORIES]
                    order.append(library)
        return Closure(tuple(order), tuple(resolutions))

    def _search(
        self, requester: Library, name: str, rpath: tuple[str, ...], runpath: tuple[str, ...]
    ) -> tuple[How, Library | None]:
        if "/" in name:
            library = next((candidate for path in _expanded(requester, (name,)) if (candidate := self._at(path))), None)
            return (How.PATH if library else self._nowhere(name)), library
        if library := self._in(rpath, name):
            return How.PATH, library
        if name in self._forced:
            return How.PRELOADED, self._forced[name]
        if library := self._in(runpath, name):
            return How.PATH, library
        return self._off_paths(requester, name)

    def _off_paths(self, requester: Library, name: str) -> tuple[How, Library | None]:
        isolated = (
            requester.program or not requester.package
        )  # nothing was loaded before a program or for the system's own sake
        if name in self.loaded and not isolated:
            return How.LOADED, self.loaded[name]
        if name in self.system:
            return How.SYSTEM, self.system[name]
        if (candidates := self.providers(name)) and not isolated and not is_driver(name):
            return How.ELSEWHERE, next(
                (other for other in candidates if other.package == requester.package), candidates[0]
            )
        return self._nowhere(name), None

    def _nowhere(self, name: str) -> How:
        if is_driver(name):
            return How.DRIVER
        certain = self.known or (self.torch and _OF_TORCH.fullmatch(name))  # torch's own lie in no system
        return How.MISSING if certain and posixpath.basename(name) not in self._unread else How.UNKNOWN

    def _in(self, directories: tuple[str, ...], name: str) -> Library | None:
        if name not in self._names:
            return None
        return next((candidate for directory in directories if (candidate := self._at(f"{directory}/{name}"))), None)

    def _at(self, path: str) -> Library | None:
        if path.startswith("/"):
            return self._by_system_path.get(_unmerged(path))
        return self._by_path.get(path.removeprefix("./"))


def _machine(subject: Subject) -> int:
    """Return the ELF machine of the subject's C library, else of its interpreter, else of most of its files."""
    system = subject.system or SystemLibraries({})
    for file in (system.libraries.get("libc.so.6"), system.interpreter):
        if file and file.elf:
            return file.elf.machine
    files = (file.elf for package in subject.packages for file in package.binaries.values() if file.elf)
    counts = Counter(elf.machine for elf in files if elf.machine in MACHINES)
    return max(sorted(counts), key=counts.__getitem__, default=62)


def _of_packages(subject: Subject, machine: int) -> Iterator[Library]:
    for package in subject.packages:
        name = str(package)
        for path, file in sorted(package.binaries.items(), key=itemgetter(0)):
            elf = file.elf
            if elf is not None and elf.machine == machine and not for_another_python(path, subject.python):
                yield Library(name, path, elf)


def _of_system(system: SystemLibraries, machine: int, packaged: Mapping[str, Library]) -> dict[str, Library]:
    """Return the system's libraries by the names under which they are found; two names of one file are one library.

    `packaged` are the packages' libraries by path, because the loader's cache may lead to them.
    """
    by_path = dict(packaged)
    by_name = {}
    for name, file in system.libraries.items():
        if file.elf is not None and file.elf.machine == machine:
            path = system.paths.get(name, f"/{name}")
            by_name[name] = by_path.setdefault(path, Library("", path, file.elf))
    return by_name


def _unread(subject: Subject, system: SystemLibraries) -> frozenset[str]:
    """Return the names of files that exist but cannot be read."""
    files = [*system.libraries.items(), *(item for package in subject.packages for item in package.binaries.items())]
    return frozenset(posixpath.basename(path) for path, file in files if file.unreadable and file.elf is None)


def _by_name(libraries: tuple[Library, ...]) -> dict[str, tuple[Library, ...]]:
    by_name: dict[str, list[Library]] = {}
    for library in libraries:
        for name in sorted({library.name, library.elf.soname or library.name}):
            by_name.setdefault(name, []).append(library)
    return {name: tuple(providers) for name, providers in by_name.items()}


def _unmerged(path: str) -> str:
    """Return one spelling for /lib and /usr/lib, because Debian's /lib is a link to /usr/lib."""
    return path.removeprefix("/usr") if path.startswith("/usr/lib") else path


def _expanded(library: Library, entries: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries of a path with $ORIGIN, $LIB and $PLATFORM replaced, without entries that are relative."""
    expanded: list[str] = []
    origin = posixpath.dirname(library.path)
    for entry in entries[:MAX_DIRECTORIES]:
        path, at_origin = _ORIGIN.subn(lambda _: origin or ".", entry)
        if not at_origin and not path.startswith("/"):
            continue
        path = _PLATFORM.sub(MACHINES.get(library.elf.machine, ""), path)
        names = _LIB_NAMES if _LIB.search(path) else ("",)
        expanded += [_SITE.sub("", posixpath.normpath(_LIB.sub(name, path))) for name in names]
    return tuple(dict.fromkeys(expanded))[:MAX_DIRECTORIES]
