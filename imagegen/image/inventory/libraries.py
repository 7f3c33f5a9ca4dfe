"""The base under the packages: a root's libraries, by the names under which the dynamic loader finds them.

Sources: ld.so(8) for the order of the search, ldconfig(8) for /etc/ld.so.conf; Debian's multiarch directories as its
glibc has them built in, /lib64 and /usr/lib64 as in Red Hat's and SUSE's glibc. The loader's cache is not read, since
it may be older than the directories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from imagegen.audit.model import Elf, File, SystemLibraries
from imagegen.image.inventory.disk import Disk
from imagegen.image.inventory.tree import Directory, FileTree, Regular, file_at, join, parent, place, read_file

_BUILT_IN = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
)
_CONFIGURATION = "/etc/ld.so.conf"
_MAX_CONFIGURATION = 1 << 16  # bytes of one file
_MAX_FILES = 100  # of the configuration
_MAX_DIRECTORIES = 100  # of one file's RPATH
_MAX_ROUNDS = 16  # of libraries that are found through others' RUNPATHs


def from_directories(
    root: Path, *, environment: Mapping[str, str] | None = None, interpreter: str | None = None
) -> SystemLibraries:
    """Scan the directories of this machine below `root` as `of`; "/" is the machine's own."""
    return of(Disk(root), environment=environment, interpreter=interpreter)


def of(
    tree: FileTree, *, environment: Mapping[str, str] | None = None, interpreter: str | None = None
) -> SystemLibraries:
    """The system in a tree. `environment` are its variables, `interpreter` its Python's absolute path."""
    preloaded = tuple(
        directory for directory in (environment or {}).get("LD_LIBRARY_PATH", "").split(":") if directory[:1] == "/"
    )
    program, path = _program(tree, interpreter)
    # DT_RPATH of the program counts for whatever the process loads, before all else: so conda's Python finds its own.
    program_directories = _expanded(program.elf.rpath, path) if program and program.elf else []
    libraries, paths = _libraries(
        tree,
        [*program_directories, *preloaded, *configured(tree), *_BUILT_IN],
        program.elf.machine if program and program.elf else None,
    )
    if program:
        _add_private(tree, {path: program}, libraries, paths)
    _add_private(tree, {paths[name]: library for name, library in libraries.items()}, libraries, paths)
    return SystemLibraries(libraries, paths, preloaded, _python(program, libraries))


def configured(tree: FileTree) -> list[str]:
    """The directories that /etc/ld.so.conf and the files that it includes name, in their order."""
    directories: dict[str, None] = {}
    waiting, read = [(_CONFIGURATION, True)], set[str]()  # paths, the next one last, and whether each is to be read
    while waiting:
        path, is_file = waiting.pop()
        if not is_file:
            directories[path] = None
        elif path not in read and len(read) < _MAX_FILES:
            read.add(path)
            waiting += reversed(list(_said(tree, path)))
    return list(directories)


def _said(tree: FileTree, path: str) -> Iterator[tuple[str, bool]]:
    """Yield the directories and further files that a file of the loader's configuration names."""
    text = read_file(tree, path, _MAX_CONFIGURATION)
    for line in (text or b"").decode(errors="replace").splitlines():
        words = line.partition("#")[0].replace(",", " ").replace(":", " ").split()
        if words[:1] == ["include"]:
            yield from ((path_of_file, True) for pattern in words[1:] for path_of_file in _matching(tree, pattern))
        elif words[:1] != ["hwcap"]:
            yield from ((word, False) for word in words if word.startswith("/"))


def _matching(tree: FileTree, pattern: str) -> list[str]:
    """The files that an `include` names; wildcards in their directories' names are not known to occur."""
    directory, _, name = join("/etc", pattern).rpartition("/") if pattern[:1] != "/" else pattern.rpartition("/")
    real = place(tree, directory)
    names = [file_name for file_name, _ in tree.entries(real)] if real else []
    return [join(directory, file_name) for file_name in sorted(names) if fnmatchcase(file_name, name)]


def _program(tree: FileTree, interpreter: str | None) -> tuple[File | None, str]:
    """The program, and its path with no link in it."""
    file = file_at(tree, interpreter) if interpreter else None
    if file is None:
        return None, ""
    real, node = file
    return tree.examine({real: node})[real], real


def _libraries(
    tree: FileTree, directories: Iterable[str], machine: int | None
) -> tuple[dict[str, File], dict[str, str]]:
    """Libraries by name, and where they were found; of one name, the first that is for this machine."""
    ways: list[tuple[str, str, str]] = []  # name, path, path of the file behind all links
    nodes: dict[str, Regular] = {}
    searched: set[str] = set()
    for directory in directories:
        real = place(tree, directory)
        if real is None or real in searched:
            continue
        searched.add(real)
        for name, node in sorted(tree.entries(real), key=lambda entry: entry[0]):
            if ".so" not in name or isinstance(node, Directory):
                continue
            path = join(real, name)
            if file := (path, node) if isinstance(node, Regular) else file_at(tree, path):
                nodes |= [file]
                ways.append((name, join(directory, name), file[0]))
    files = tree.examine(nodes)
    libraries: dict[str, File] = {}
    paths: dict[str, str] = {}
    for name, path, behind in ways:
        if name not in libraries and _loads(files[behind], machine):
            libraries[name], paths[name] = files[behind], path
    return libraries, paths


def _loads(file: File, machine: int | None) -> bool:
    """Return whether the loader would not pass it over: scripts of the linker, and libraries of other processors."""
    if file.elf is None:
        return file.unreadable is not None
    return machine in (None, file.elf.machine)


def _add_private(tree: FileTree, users: Mapping[str, File], libraries: dict[str, File], paths: dict[str, str]) -> None:
    """Add the libraries that these files, by path, find only through their own RPATH or RUNPATH, recursively."""
    for _ in range(_MAX_ROUNDS):
        fresh: dict[str, File] = {}
        for user, file in users.items():
            lacking = {name for name in file.elf.needed if name not in libraries} if file.elf else set()
            ways = _expanded(file.elf.rpath + file.elf.runpath, user) if file.elf and lacking else []
            private, where = _libraries_of(tree, ways, lacking, file.elf)
            for name in sorted(private.keys() - libraries.keys()):
                libraries[name], paths[name] = private[name], where[name]
                fresh[where[name]] = private[name]
        if not fresh:
            return
        users = fresh


def _libraries_of(
    tree: FileTree, directories: Sequence[str], names: set[str], user: Elf | None
) -> tuple[dict[str, File], dict[str, str]]:
    """Return the libraries with these names."""
    libraries: dict[str, File] = {}
    paths: dict[str, str] = {}
    for directory in directories:
        for name in sorted(names - libraries.keys()):
            if located := file_at(tree, join(directory, name)):
                real, node = located
                file = tree.examine({real: node})[real]
                if _loads(file, user.machine if user else None):
                    libraries[name], paths[name] = file, join(directory, name)
    return libraries, paths


def _expanded(directories: Iterable[str], path: str) -> list[str]:
    """The absolute ones of a RPATH of the file at `path`, $ORIGIN put in."""
    origin = parent(path)
    some = islice(directories, _MAX_DIRECTORIES)
    expanded = (directory.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for directory in some)
    return [directory for directory in expanded if directory.startswith("/")]


def _python(program: File | None, libraries: Mapping[str, File]) -> File | None:
    """Return the file that defines Python's functions, which is the program or its libpython."""
    if program is None or program.elf is None or "Py_Initialize" in program.elf.exported:
        return program
    needed = (libraries.get(name) for name in program.elf.needed if name.startswith("libpython"))
    return next((library for library in needed if library), program)
