"""The distributions of an environment and their recorded files, and the files that no record names.

Sources: "Recording installed projects" and "Core metadata" of packaging.python.org; setuptools' documentation of
.egg-info. Installed metadata is untrusted: names and paths are escaped and never followed outside the tree.
"""

from __future__ import annotations

import binascii
import csv
import email.parser
import io
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message

from packaging.utils import canonicalize_name

from imagegen.audit.model import File, Package, required_name
from imagegen.audit.tags import one_python, python_of_module
from imagegen.core.data import parse_json
from imagegen.image.inventory.environments import Environment
from imagegen.image.inventory.tree import FileTree, Node, Regular, file_at, join, parent, place, read_file, walk

UNOWNED = "(unowned)"
_MAX_TEXT = 4 << 20  # bytes of a metadata file
_MAX_RECORD = 64 << 20
_LONGEST = 200  # characters of a name or a version
_METADATA_FILES = {"dist-info": "METADATA", "egg-info": "PKG-INFO"}
_ABOVE = 3  # directories from site-packages to the environment's prefix: files lie there too, in bin and share


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


def installed(tree: FileTree, environment: Environment) -> tuple[tuple[Package, ...], dict[str, str]]:
    """Return every distribution of the environment, by name; of a duplicate, the one that is imported.

    Also return the names of distributions whose files lie elsewhere, with the stated locations.
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
    packages = (_package(distribution, files, behind, environment.site) for distribution in by_name.values())
    editables = {distribution.name: distribution.editable for distribution in by_name.values() if distribution.editable}
    return tuple(sorted(packages, key=lambda package: package.name)), editables


def python_of(packages: Iterable[Package]) -> str | None:
    """Return the Python that packages are installed for, if no path states it; None if two are as likely.

    It is the one that most single-Python wheels are for, since pip installs only fitting ones. Without such wheels, it
    is the one for which most packages have extension modules: some have modules for several, or only for another one.
    """
    installed_packages = list(packages)
    votes = Counter(version for package in installed_packages if (version := one_python(package.tags)))
    votes = votes or Counter(
        version for package in installed_packages for version in {*filter(None, map(python_of_module, package.files))}
    )
    most = [python for python, count in votes.items() if count == max(votes.values())]
    return most[0] if len(most) == 1 else None


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


def _package(distribution: _Distribution, scans: Mapping[str, File], behind: Mapping[str, str], site: str) -> Package:
    files: dict[str, File] = {}
    for path, sha256 in distribution.files.items():
        if file := scans.get(behind[path]):
            if sha256:  # as `_replace`, in half the time, since environments have 60,000 files
                file = File(file.size, sha256, file.executable, file.elf, file.code, file.unreadable)
            files[_plain(_relative(path, site))] = file
    if distribution.unreadable:
        name = _plain(_relative(join(distribution.metadata, "RECORD"), site))
        files[name] = files.get(name, File(0))._replace(unreadable=distribution.unreadable)
    return Package(distribution.name, distribution.version, files, distribution.requires, distribution.tags)


def _relative(path: str, site: str) -> str:
    inside = site.rstrip("/") + "/"
    return path.removeprefix(inside) if path.startswith(inside) else posixpath.relpath(path, site)


def _plain(text: str) -> str:
    """Text that can be written: a name on Linux is any bytes."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="backslashreplace")
