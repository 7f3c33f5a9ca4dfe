"""The system of a tree, its Debian packages, and the licences that their copyright files name.

Sources: os-release(5); dpkg(1) and deb-control(5) for /var/lib/dpkg/status; Debian Policy 4.9, 12.5, for copyright
files, and its "Machine-readable debian/copyright file" 1.0 (DEP-5) for those that programs can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagegen.audit.model import InstalledDeb, OsRelease
from imagegen.image.inventory.tree import FileTree, read_file

_OS_RELEASE = "/etc/os-release"
_MAX_OS_RELEASE = 1 << 16
_STATUS = "/var/lib/dpkg/status"
_MAX_STATUS = 64 << 20  # bytes; a desktop's has some 5 MB
_MAX_COPYRIGHT = 4 << 20
_MAX_NAME = 200  # characters of a licence's name, or of a system's
_SOURCE = re.compile(r"(\S+)(?:\s+\(([^)\s]+)\))?")
_FORMAT = re.compile(r"https?://www\.debian\.org/doc/packaging-manuals/copyright-format/1\.0/?")


def release(tree: FileTree) -> OsRelease | None:
    """Parse os-release; None where there is none, or it does not name the system."""
    fields = {}
    for line in (read_text(tree, _OS_RELEASE, _MAX_OS_RELEASE) or "").splitlines():
        name, _, value = line.partition("=")
        fields[name.strip()] = value.strip().strip("\"'")[:_MAX_NAME]
    os_release = OsRelease(*(fields.get(name, "") for name in ("ID", "VERSION_ID", "VERSION_CODENAME")))
    return os_release if os_release.id else None


def installed(tree: FileTree) -> dict[str, InstalledDeb]:
    """Name -> package, of all that are unpacked. Empty where there is no dpkg."""
    packages = {}
    for fields in paragraphs(read_text(tree, _STATUS, _MAX_STATUS) or ""):
        name, version, architecture = (fields.get(key, "") for key in ("package", "version", "architecture"))
        if not (name and version) or fields.get("status", "").split()[-1:] in ([], ["config-files"], ["not-installed"]):
            continue
        source = _SOURCE.fullmatch(fields.get("source", ""))
        source_package = (source[1], source[2] or version) if source else (name, version)
        copyright_file = read_text(tree, f"/usr/share/doc/{name}/copyright", _MAX_COPYRIGHT)
        stated = None if copyright_file is None else licences(copyright_file)
        packages[name] = InstalledDeb(version, architecture, *source_package, stated)
    return packages


def licences(copyright_file: str) -> tuple[str, ...]:
    """The short names that a machine-readable copyright file gives to files and to the whole; else nothing.

    A paragraph of a licence without files is its text.
    """
    names = set()
    for number, fields in enumerate(paragraphs(copyright_file)):
        if number == 0 and not _FORMAT.fullmatch(fields.get("format", "")):
            return ()
        if number == 0 or "files" in fields:
            names.add(" ".join(fields.get("license", "").split())[:_MAX_NAME])
    return tuple(sorted(names - {""}))


def read_text(tree: FileTree, path: str, limit: int) -> str | None:
    """Return the text of a file behind all links; None where there is none, or it has more than `limit` bytes."""
    content = read_file(tree, path, limit)
    return None if content is None else content.decode(errors="replace")


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield each paragraph's fields: name in lower case -> the first line."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif not line[0].isspace() and not line.startswith("#"):
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
    if fields:
        yield fields
