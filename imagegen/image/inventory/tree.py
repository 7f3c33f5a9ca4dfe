"""A file tree as a process sees it that has the tree as its root, and the Python environments in it.

Links mean what they mean inside: an absolute one begins at the tree's root, and `..` ends there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from imagegen.audit.model import File

MAX_LINKS = 40  # as Linux follows at most
_MAX_DEPTH = 64  # directories below the one that is walked: environments have a dozen
_MAX_PATH = 4096  # characters, Linux's PATH_MAX


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class Directory:
    pass


@dataclass(frozen=True, slots=True)
class Regular:
    """A regular file; `size` in bytes."""

    size: int
    executable: bool = False


Node: TypeAlias = SymbolicLink | Directory | Regular


class FileTree(Protocol):
    """Paths are absolute in the tree and lead through no link: see `place`. What is no file, link or directory is not
    there. Nothing here raises for what cannot be read: that is a file which is unreadable, or nothing.
    """

    def look(self, path: str) -> Node | None:
        """Return the node at a path; for a link, the link itself."""

    def entries(self, path: str) -> Iterable[tuple[str, Node]]:
        """Names and nodes in a directory, in no order."""

    def read(self, path: str, limit: int) -> bytes | None:
        """A whole file of text; None where it is longer than `limit` bytes, or cannot be read."""

    def examine(self, files: Mapping[str, Regular]) -> Mapping[str, File]:
        """Scan each of these files. One that is no ELF file has neither `elf` nor `unreadable`."""


def place(tree: FileTree, path: str, *, follow_last: bool = True) -> str | None:
    """The path that `path` means, with no link in it; None where nothing is there, or links run in circles."""
    parts = steps(path)
    found, followed = "/", 0
    while parts:
        part = parts.pop()
        if part == "..":
            found = parent(found)
            continue
        node = tree.look(path := join(found, part))
        if isinstance(node, SymbolicLink) and (parts or follow_last):
            followed += 1
            if followed > MAX_LINKS:
                return None
            found = "/" if node.target.startswith("/") else found
            parts += steps(node.target)
        elif node is None or (parts and not isinstance(node, Directory)) or len(path) > _MAX_PATH:
            return None
        else:
            found = path
    return found


def walk(tree: FileTree, top: str) -> Iterator[tuple[str, Node]]:
    """Everything below `top` but its directories, in no order; links are not followed, and `top` leads through none."""
    waiting = [(top, 0)]
    while waiting:
        directory, depth = waiting.pop()
        inside = join(directory, "")
        for name, node in tree.entries(directory):
            path = inside + name
            if not isinstance(node, Directory):
                yield path, node
            elif depth < _MAX_DEPTH:
                waiting.append((path, depth + 1))


def join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def steps(path: str) -> list[str]:
    """The names on the way, the last one first; of a path longer than any can be, its beginning."""
    return [part for part in reversed(path[: _MAX_PATH + 1].split("/")) if part not in ("", ".")]


# Python environments in a file tree: where modules are imported from, and by which program.
#
# Sources: CPython's documentation of sys.prefix, `site` and `venv` (pyvenv.cfg beside the program or one directory up);
# Debian's Python policy for dist-packages; sysconfig's schemes for lib64.

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("python", "python3")
_SITES = ("site-packages", "dist-packages")
_VERSIONED = re.compile(r"python(3\.[0-9]{1,2})t?")
_METADATA = (".dist-info", ".egg-info")
_MAX_CONFIGURATION = 1 << 16  # bytes


@dataclass(frozen=True)
class Environment:
    """`sites` lead through no link; files are named relative to the first. `program` is None where none is there."""

    prefix: str
    sites: tuple[str, ...]
    python: str | None  # "3.11"
    program: str | None

    @property
    def site(self) -> str:
        return self.sites[0]


def environment_of_path(tree: FileTree, variables: Mapping[str, str]) -> Environment | None:
    """The environment of the `python`, or else `python3`, that a shell with these variables would start."""
    directories = [each for each in (variables.get("PATH") or _PATH).split(":") if each.startswith("/")]
    for name in _PROGRAMS:
        for directory in directories:
            program = join(directory, name)
            if (found := place(tree, program)) and isinstance(tree.look(found), Regular):
                return environment_of_program(tree, program, variables.get("PYTHONPATH", ""))
    return None


def environment_of_program(tree: FileTree, program: str, python_path: str = "") -> Environment | None:
    """The environment of the program at this path, which may be a link; None where it has no directory of modules."""
    for prefix in (parent(program), parent(parent(program))):
        if (settings := configuration(tree, prefix)) is not None:
            return _virtual(tree, prefix, settings, program, python_path)
    real = place(tree, program)
    if real is None:
        return None
    prefix = parent(parent(real))
    version = _VERSIONED.fullmatch(real.rpartition("/")[2])
    python = version[1] if version else next(_versions(tree, prefix), None)
    return _environment(tree, prefix, _system_sites(prefix, python), python, program, python_path)


def environment_of_site(tree: FileTree, site: str) -> Environment:
    """The environment that a directory of modules, which leads through no link, belongs to."""
    above = parent(site)
    prefix = parent(parent(above))
    if site.rpartition("/")[2] not in _SITES or not above.rpartition("/")[2].startswith("python"):
        return Environment(site, (site,), None, None)
    version = _VERSIONED.fullmatch(above.rpartition("/")[2])
    settings = configuration(tree, prefix)
    python = version[1] if version else _configured_version(settings or {})
    homes = [prefix] if prefix != "/usr/local" else [prefix, "/usr"]
    names = [f"python{python}", *_PROGRAMS] if settings is None else ["python", "python3"]
    programs = [join(home, f"bin/{name}") for name in names for home in homes]
    program = next((each for each in programs if _is_file(tree, each)), None)
    whole = environment_of_program(tree, program) if program else None
    others = [each for each in whole.sites if each != site] if whole and site in whole.sites else []
    return Environment(prefix, (site, *others), python, program)


def all_sites(tree: FileTree) -> list[str]:
    """Return every directory of modules with distributions in it, each once: links are not followed."""
    found: dict[str, None] = {}
    for path, _ in walk(tree, "/"):
        site, _, rest = path.rpartition("-packages/")
        top = rest.partition("/")[0]
        if top.endswith(_METADATA) and site.endswith(("/site", "/dist")):
            found[f"{site}-packages"] = None
    return sorted(found)


def is_site(tree: FileTree, directory: str) -> bool:
    """Return whether distributions are installed in it."""
    return any(name.endswith(_METADATA) for name, _ in tree.entries(directory))


def configuration(tree: FileTree, prefix: str) -> dict[str, str] | None:
    """Parse pyvenv.cfg; None where there is none."""
    path = place(tree, join(prefix, "pyvenv.cfg"))
    text = tree.read(path, _MAX_CONFIGURATION) if path else None
    if text is None:
        return None
    lines = (line.partition("=") for line in text.decode(errors="replace").splitlines())
    return {key.strip().lower(): value.strip() for key, equals, value in lines if equals}


def _virtual(
    tree: FileTree, prefix: str, settings: Mapping[str, str], program: str, python_path: str
) -> Environment | None:
    python = next(_versions(tree, prefix), None) or _configured_version(settings)
    sites = _sites(prefix, python)
    if settings.get("include-system-site-packages", "").lower() == "true":
        real = place(tree, program)
        home = place(tree, settings.get("home", "")) or (parent(real) if real else None)
        sites += _system_sites(parent(home), python) if home else []
    return _environment(tree, prefix, sites, python, program, python_path)


def _environment(
    tree: FileTree, prefix: str, sites: Iterable[str], python: str | None, program: str, python_path: str
) -> Environment | None:
    extra_sites = [each for each in python_path.split(":") if each.startswith("/")]
    placed = [(found, each in extra_sites) for each in (*sites, *extra_sites) if (found := place(tree, each))]
    # A directory of PYTHONPATH is often a project's whole tree.
    real = [
        each for each, extra in placed if isinstance(tree.look(each), Directory) and (not extra or is_site(tree, each))
    ]
    return Environment(prefix, tuple(dict.fromkeys(real)), python, program) if real else None


def _system_sites(prefix: str, python: str | None) -> list[str]:
    """Return the site directories of a Python installed under `prefix`.

    The distribution's own leaves /usr/local to pip.
    """
    if prefix not in ("/usr", "/"):
        return _sites(prefix, python)
    return [*_sites("/usr/local", python), *_sites("/usr", python), "/usr/lib/python3/dist-packages"]


def _sites(prefix: str, python: str | None) -> list[str]:
    return (
        [join(prefix, f"{lib}/python{python}/{name}") for lib in ("lib", "lib64") for name in _SITES] if python else []
    )


def _versions(tree: FileTree, prefix: str) -> Iterator[str]:
    """The Pythons for which something lies under `prefix`, the newest first."""
    found = place(tree, join(prefix, "lib"))
    names = [match[1] for name, _ in tree.entries(found) if (match := _VERSIONED.fullmatch(name))] if found else []
    yield from sorted(names, key=lambda version: int(version.partition(".")[2]), reverse=True)


def _configured_version(settings: Mapping[str, str]) -> str | None:
    found = re.match(r"3\.[0-9]{1,2}", settings.get("version_info") or settings.get("version") or "")
    return found[0] if found else None


def _is_file(tree: FileTree, path: str) -> bool:
    found = place(tree, path)
    return found is not None and isinstance(tree.look(found), Regular)
