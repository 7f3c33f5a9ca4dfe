"""A file tree as a process sees it that has the tree as its root, and the Python environments in it.

Links are followed inside the tree: an absolute one begins at its root, and `..` ends there.
"""

from __future__ import annotations

import binascii
import csv
import email.parser
import io
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Protocol, TypeAlias

from packaging.utils import canonicalize_name

from imagegen.audit.model import File, Package, required_name
from imagegen.audit.tags import one_python, python_of_module
from imagegen.core.data import parse_json
from imagegen.core.layer_tar import PATH_MAX
from imagegen.core.layer_tree import SymbolicLink, follow_links

_MAX_DEPTH = 64  # directories below the one that is walked: environments have a dozen


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
    """Paths are absolute in the tree and lead through no link: see `place`. Devices and pipes are left out. No method
    raises for an unreadable file, which is absent or has a scan with the reason.
    """

    def look(self, path: str) -> Node | None:
        """Return the node at a path; for a link, the link itself."""

    def entries(self, path: str) -> Iterable[tuple[str, Node]]:
        """Names and nodes in a directory, in no order."""

    def read(self, path: str, limit: int) -> bytes | None:
        """A whole file of text; None where it is longer than `limit` bytes, or cannot be read."""

    def examine(self, files: Mapping[str, Regular]) -> Mapping[str, File]:
        """Scan each of these files. One that is not an ELF file has neither `elf` nor `unreadable`."""


def place(tree: FileTree, path: str) -> str | None:
    """Return the path that `path` means, with no link in it; None if nothing is there, or links run in circles."""

    def look(directory: str, name: str, is_last: bool) -> str | SymbolicLink:
        node = tree.look(child := join(directory, name))
        if isinstance(node, SymbolicLink):
            return node
        if node is None or not (is_last or isinstance(node, Directory)) or len(child) > PATH_MAX:
            raise ValueError(child)
        return child

    try:
        return follow_links(path, "/", look)[-1]
    except ValueError:
        return None


def file_at(tree: FileTree, path: str) -> tuple[str, Regular] | None:
    """Return the file that `path` means, with the path without links; None if there is no file."""
    real = place(tree, path)
    node = tree.look(real) if real else None
    return (real, node) if real and isinstance(node, Regular) else None


def read_file(tree: FileTree, path: str, limit: int) -> bytes | None:
    """Return the contents of the file that `path` means; None if it is missing, or longer than `limit` bytes."""
    real = place(tree, path)
    return tree.read(real, limit) if real else None


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


# Python environments in a file tree: where modules are imported from, and by which program.
#
# Sources: CPython's documentation of sys.prefix, `site` and `venv` (pyvenv.cfg next to the program or one level up);
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
    directories = [path for path in (variables.get("PATH") or _PATH).split(":") if path.startswith("/")]
    for name in _PROGRAMS:
        for directory in directories:
            program = join(directory, name)
            if file_at(tree, program):
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
    program = next((path for path in programs if file_at(tree, path)), None)
    whole = environment_of_program(tree, program) if program else None
    other_sites = (
        [other_site for other_site in whole.sites if other_site != site] if whole and site in whole.sites else []
    )
    return Environment(prefix, (site, *other_sites), python, program)


def all_sites(tree: FileTree) -> list[str]:
    """Return every directory of modules with distributions in it, each once: links are not followed."""
    sites: dict[str, None] = {}
    for path, _ in walk(tree, "/"):
        site, _, below_site = path.rpartition("-packages/")
        top = below_site.partition("/")[0]
        if top.endswith(_METADATA) and site.endswith(("/site", "/dist")):
            sites[f"{site}-packages"] = None
    return sorted(sites)


def is_site(tree: FileTree, directory: str) -> bool:
    """Return whether distributions are installed in it."""
    return any(name.endswith(_METADATA) for name, _ in tree.entries(directory))


def configuration(tree: FileTree, prefix: str) -> dict[str, str] | None:
    """Parse pyvenv.cfg; None where there is none."""
    text = read_file(tree, join(prefix, "pyvenv.cfg"), _MAX_CONFIGURATION)
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
    extra_sites = [directory for directory in python_path.split(":") if directory.startswith("/")]
    placed = [(directory, site in extra_sites) for site in (*sites, *extra_sites) if (directory := place(tree, site))]
    # A directory of PYTHONPATH is often a project's whole tree.
    real = [
        directory
        for directory, extra in placed
        if isinstance(tree.look(directory), Directory) and (not extra or is_site(tree, directory))
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
    library = place(tree, join(prefix, "lib"))
    names = [match[1] for name, _ in tree.entries(library) if (match := _VERSIONED.fullmatch(name))] if library else []
    yield from sorted(names, key=lambda version: int(version.partition(".")[2]), reverse=True)


def _configured_version(settings: Mapping[str, str]) -> str | None:
    match = re.match(r"3\.[0-9]{1,2}", settings.get("version_info") or settings.get("version") or "")
    return match[0] if match else None


# The distributions of an environment and their recorded files, and the files that no record names.
#
# Sources: "Recording installed projects" and "Core metadata" of packaging.python.org; setuptools' documentation of
# .egg-info. Installed metadata is untrusted: names and paths are escaped and never followed outside the tree.

UNOWNED = "(unowned)"
_MAX_TEXT = 4 << 20  # bytes of a metadata file
_MAX_RECORD = 64 << 20
_LONGEST = 200  # characters of a name or a version
_METADATA_FILES = {"dist-info": "METADATA", "egg-info": "PKG-INFO"}
_ABOVE = 3  # directories from site-packages to the environment's prefix: files lie there too, in bin and share


@dataclass(frozen=True)
class InstalledSet:
    """The packages; `editable` maps the name of each distribution whose files lie elsewhere to their
    stated location.
    """

    packages: tuple[Package, ...]
    editable: Mapping[str, str]


@dataclass
class _Distribution:
    """On its way: `files` are by path in the tree, with the sha256 that the record promises."""

    name: str
    version: str
    metadata: str  # path of its .dist-info or .egg-info
    requires: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    editable: str | None = None
    files: dict[str, str | None] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # bytes, of files whose record says so
    unreadable: str | None = None  # why its record is


def installed(tree: FileTree, environment: Environment) -> InstalledSet:
    """Return every distribution of the environment, by name; of a duplicate, the one that is imported.

    Files in a directory of modules that belong to none are packages called "(unowned) NAME" by their first directory.
    """
    by_name: dict[str, _Distribution] = {}
    behind: dict[str, str] = {}
    nodes: dict[str, Regular] = {}
    for site in environment.sites:
        modules = _Modules(tree, site)
        for distribution in modules.distributions():
            by_name.setdefault(distribution.name, distribution)
        behind |= modules.behind
        nodes |= modules.nodes
    required = {behind[path] for distribution in by_name.values() for path in distribution.files}
    files = tree.examine({path: node for path, node in nodes.items() if path in required})
    for loser, paths in _given_way(by_name, {path: node.size for path in behind if (node := nodes.get(behind[path]))}):
        loser.files |= dict.fromkeys(paths)  # the files there differ from its record
    packages = (
        _package(distribution, lambda path: files.get(behind[path]), environment.site)
        for distribution in by_name.values()
    )
    editables = {distribution.name: distribution.editable for distribution in by_name.values() if distribution.editable}
    return InstalledSet(tuple(sorted(packages, key=lambda package: package.name)), editables)


def python_of(packages: Iterable[Package]) -> str | None:
    """Return the Python that packages are installed for, if no path states it; None if two are as likely.

    It is the one that most single-Python wheels are for, since pip installs only fitting ones. Without such wheels, it
    is the one for which most packages have extension modules: some have modules for several, or only for another one.
    """
    installed_packages = list(packages)
    votes = Counter(version for package in installed_packages if (version := one_python(package.tags)))
    votes = votes or Counter(module for package in installed_packages for module in _of_modules(package))
    most = [python for python, count in votes.items() if count == max(votes.values())]
    return most[0] if len(most) == 1 else None


def _of_modules(package: Package) -> set[str]:
    return {version for path in package.files if (version := python_of_module(path))}


class _Modules:
    """One directory of modules.

    `behind` maps the paths of its files, and of files elsewhere that its records name, to their real paths; `nodes`
    maps real paths to files.
    """

    def __init__(self, tree: FileTree, site: str) -> None:
        self._tree, self._site = tree, site
        self.behind: dict[str, str] = {}
        self.nodes: dict[str, Regular] = {}
        self._by_top: dict[str, list[str]] = {}  # first name below the site -> paths without an owner
        for path, node in walk(tree, site):
            if not path.endswith(".pyc") and self._add(path, node):
                self._by_top.setdefault(self._top(path), []).append(path)

    def distributions(self) -> list[_Distribution]:
        """Return all distributions; those without a record own the unowned files under their module names."""
        names = sorted(name for name, _ in self._tree.entries(self._site))
        installed = [
            distribution for name in names if (distribution := _distribution(self._tree, join(self._site, name)))
        ]
        unrecorded = [distribution for distribution in installed if not self._claim_recorded(distribution)]
        owned = {path for distribution in installed for path in distribution.files}
        self._by_top = {
            top: unowned_paths
            for top, paths in self._by_top.items()
            if (unowned_paths := [path for path in paths if path not in owned])
        }
        for distribution in unrecorded:
            for top in _tops(self._tree, distribution, self._by_top):
                distribution.files |= dict.fromkeys(self._by_top.pop(top))
        return installed + self._unowned()

    def _unowned(self) -> list[_Distribution]:
        unowned: dict[str, _Distribution] = {}
        for top, paths in sorted(self._by_top.items()):
            if top.endswith((".dist-info", ".egg-info")):
                continue
            alone = paths == [join(self._site, top)]
            name = UNOWNED if alone else f"{UNOWNED} {_plain(top)}"
            unowned.setdefault(name, _Distribution(name, "", self._site)).files.update(dict.fromkeys(sorted(paths)))
        return list(unowned.values())

    def _claim_recorded(self, distribution: _Distribution) -> bool:
        """Give it the existing files of its record; return whether it has a record."""
        distribution.files |= dict.fromkeys(self._by_top.get(self._top(distribution.metadata), ()))
        try:
            rows = _record(self._tree, distribution.metadata)
        except (csv.Error, ValueError) as error:
            distribution.unreadable, rows = f"it is not a list of files: {error}", None
        home = join(posixpath.normpath(join(self._site, "../" * _ABOVE)), "")
        for row, sha256, size in rows or ():
            path = row if row in self.behind else posixpath.normpath(row)
            inside = path.startswith(home) and not path.endswith(".pyc")
            if path in self.behind or (inside and self._add(path, None)):
                distribution.files[path] = sha256
                if size is not None:
                    distribution.sizes[path] = size
        return rows is not None

    def _add(self, path: str, node: Node | None) -> bool:
        """Register the file at `path`, if there is one, and return whether there is; `node` is its node, None if not
        looked up yet.
        """
        file = (path, node) if isinstance(node, Regular) else file_at(self._tree, path)
        if file:
            self.behind[path], self.nodes[file[0]] = file
        return file is not None

    def _top(self, path: str) -> str:
        return path[len(self._site.rstrip("/")) + 1 :].partition("/")[0]


def _distribution(tree: FileTree, path: str) -> _Distribution | None:
    """Return the distribution that a name in a directory of modules belongs to; None where it is about none."""
    stem, dot, kind = path.rpartition("/")[2].rpartition(".")
    if not dot or kind not in ("dist-info", "egg-info"):
        return None
    name, _, version_part = stem.partition("-")
    metadata_path = path if isinstance(tree.look(path), Regular) else join(path, _METADATA_FILES[kind])
    if not any(place(tree, candidate) for candidate in (metadata_path, join(path, "RECORD"))):
        return None  # uninstalling leaves such directories
    headers, wheel = _headers(tree, metadata_path), _headers(tree, join(path, "WHEEL"))
    return _Distribution(
        name=_plain(canonicalize_name(_value(headers, "Name") or name))[:_LONGEST],
        version=_plain(_value(headers, "Version") or version_part.partition("-")[0])[:_LONGEST],
        metadata=path,
        requires=tuple(_plain(str(requirement)) for requirement in headers.get_all("Requires-Dist") or ()),
        tags=tuple(_plain(str(tag)) for tag in wheel.get_all("Tag") or ()),
        editable=_editable(tree, path),
    )


def _headers(tree: FileTree, path: str) -> Message:
    text = read_file(tree, path, _MAX_TEXT) or b""
    head = re.split(rb"\r?\n\r?\n", text, maxsplit=1)[0]  # a description may follow, of any length
    return email.parser.HeaderParser().parsestr(head.decode(errors="replace"))


def _value(headers: Message, name: str) -> str:
    return " ".join(str(headers.get(name, "")).split())


def _editable(tree: FileTree, metadata: str) -> str | None:
    """Return the source directory of an editable install, from PEP 610's direct_url.json; None for others."""
    try:
        direct_url = parse_json(read_file(tree, join(metadata, "direct_url.json"), _MAX_TEXT) or b"null")
        return _plain(str(direct_url["url"])) if direct_url["dir_info"]["editable"] is True else None
    except (ValueError, TypeError, KeyError):
        return None


def _record(tree: FileTree, metadata: str) -> list[tuple[str, str | None, int | None]] | None:
    """Return the recorded paths with sha256 and size; None without a record. Raises csv.Error, ValueError."""
    if (text := read_file(tree, join(metadata, "RECORD"), _MAX_RECORD)) is not None:
        rows = csv.reader(io.StringIO(text.decode(), newline=""))
        padded = ([*row, "", ""] for row in rows if row)
        return [(join(parent(metadata), row[0]), _sha256(row[1]), _size(row[2])) for row in padded]
    if (text := read_file(tree, join(metadata, "installed-files.txt"), _MAX_RECORD)) is not None:
        return [(join(metadata, line), None, None) for line in text.decode().splitlines() if line]
    return None


def _tops(tree: FileTree, distribution: _Distribution, candidates: Iterable[str]) -> list[str]:
    """Return the top-level names in `candidates` that are this distribution's modules or packages."""
    text = (read_file(tree, join(distribution.metadata, "top_level.txt"), _MAX_TEXT) or b"").decode(errors="replace")
    names = set(text.split()) or {distribution.name.replace("-", "_")}
    return [
        top for top in candidates if top in names or (top.endswith((".py", ".so")) and top.partition(".")[0] in names)
    ]


def _sha256(column: str) -> str | None:
    """Convert RECORD's "sha256=" with unpadded base64url to hex; None for other algorithms."""
    algorithm, _, encoded = column.partition("=")
    if algorithm != "sha256":
        return None
    try:
        return binascii.a2b_base64(encoded.replace("-", "+").replace("_", "/") + "=" * (-len(encoded) % 4)).hex()
    except ValueError:
        return None


def _size(column: str) -> int | None:
    return int(column) if re.fullmatch("[0-9]{1,15}", column) else None


def _given_way(
    distributions: Mapping[str, _Distribution], sizes: Mapping[str, int]
) -> list[tuple[_Distribution, list[str]]]:
    """Return the distributions that a dependent one overwrote, with the paths at which their contents differ.

    Decided by the sizes of the installed files. If they match the overwritten distribution at any of these paths, the
    order of installation was wrong, and the pair is left out.
    """
    owners: dict[str, str] = {}
    pairs: dict[tuple[str, str], list[str]] = {}
    for distribution in distributions.values():
        for path, sha256 in distribution.files.items():
            first = owners.setdefault(path, distribution.name)
            if first != distribution.name and sha256 and distributions[first].files[path] not in (None, sha256):
                pairs.setdefault((first, distribution.name), []).append(path)
    overwritten = []
    for pair, paths in pairs.items():
        for owner, other in (pair, pair[::-1]):
            owner_sizes, other_sizes = distributions[owner].sizes, distributions[other].sizes
            distinct = [path for path in paths if owner_sizes.get(path) != other_sizes.get(path)]
            over = distinct and all(owner_sizes.get(path) == sizes.get(path) for path in distinct)
            if over and other in map(required_name, distributions[owner].requires):
                overwritten.append((distributions[other], paths))
    return overwritten


def _package(distribution: _Distribution, file_at: Callable[[str], File | None], site: str) -> Package:
    files: dict[str, File] = {}
    for path, sha256 in distribution.files.items():
        if file := file_at(path):
            files[_plain(_relative(path, site))] = _hashed(file, sha256) if sha256 else file
    if distribution.unreadable:
        name = _plain(_relative(join(distribution.metadata, "RECORD"), site))
        files[name] = files.get(name, File(0))._replace(unreadable=distribution.unreadable)
    return Package(distribution.name, distribution.version, files, distribution.requires, distribution.tags)


def _hashed(file: File, sha256: str) -> File:
    """Return the file with its hash: as `replace`, in half the time, since environments have 60 000 files."""
    return File(file.size, sha256, file.executable, file.elf, file.code, file.unreadable)


def _relative(path: str, site: str) -> str:
    inside = site.rstrip("/") + "/"
    return path.removeprefix(inside) if path.startswith(inside) else posixpath.relpath(path, site)


def _plain(text: str) -> str:
    """Text that can be written: a name on Linux is any bytes."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="backslashreplace")
