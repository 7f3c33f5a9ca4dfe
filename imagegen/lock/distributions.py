"""Archives and releases of Debian and its derivatives (data/distributions.yaml), and the order of Debian's versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from imagegen.core.deferred import dataclass
from imagegen.core.errors import BaseError

_FILE = Path(__file__).parent / "data" / "distributions.yaml"


@dataclass(frozen=True)
class DebianArchive:
    """An archive that locks call by its name."""

    name: str
    addresses: str  # regular expression of its addresses without scheme
    address: str | None  # to fetch from; None: only mirrors that the host or the user names
    snapshots: str  # address below which the archive lies as it was at a time


@dataclass(frozen=True)
class DebianRelease:
    """A release of a distribution, with the fields that apt needs to make a base of it."""

    name: str  # code name: "bookworm"
    suites: Mapping[str, tuple[str, ...]]  # archive -> its suites
    components: tuple[str, ...]
    keyrings: tuple[str, ...]  # paths on this machine; the first that exists is used
    keyring_package: str
    packages: tuple[str, ...]  # that every base of it holds
    sources: str  # the file of the image that names the archives
    example: str  # the file in which the release's apt has their addresses


def archives() -> Mapping[str, DebianArchive]:
    """Return the archives by name."""
    return _read()[0]


def release(suite: str) -> DebianRelease:
    """Return the release with this code name. Raises BaseError for one that the table lacks."""
    releases = _read()[1]
    if suite not in releases:
        raise BaseError(
            f"{suite!r} is not a release that imagegen can make a base of",
            code="base-unknown-suite",
            why=f"it can make {', '.join(releases)}",
            fix="name the suite by its code name, as in bookworm: names such as stable move",
        )
    return releases[suite]


def archive_at(uri: str) -> str:
    """Return the name of the known archive at an address, or the address without its scheme."""
    address = uri.partition("://")[2].rstrip("/")
    return next((archive.name for archive in archives().values() if re.fullmatch(archive.addresses, address)), address)


@cache
def _read() -> tuple[dict[str, DebianArchive], dict[str, DebianRelease]]:
    import yaml  # late, since a lock that earlier runs parsed needs none of it

    data: dict[str, Any] = yaml.load(_FILE.read_bytes(), Loader=yaml.CSafeLoader)
    archive_table = {
        name: DebianArchive(name, fields["addresses"], fields.get("address"), fields["snapshots"])
        for name, fields in data["archives"].items()
    }
    releases = {
        name: DebianRelease(
            name,
            {archive: tuple(suites) for archive, suites in fields["suites"].items()},
            tuple(fields["components"]),
            tuple(fields["keyrings"]),
            fields["keyring_package"],
            tuple(fields["packages"]),
            fields["sources"],
            fields["example"],
        )
        for name, fields in data["releases"].items()
    }
    return archive_table, releases


# The order of Debian's versions. Source: deb-version(7), dpkg 1.21, "Sorting algorithm".

_VersionPart: TypeAlias = tuple[tuple[int, ...], tuple[int, str]]  # text without digits, and the number after it
VersionKey: TypeAlias = tuple[tuple[int, str], tuple[_VersionPart, ...], tuple[_VersionPart, ...]]

_NOTHING: _VersionPart = ((0,), (0, ""))


def version_key(version: str) -> VersionKey:
    """Sorts as dpkg does: epoch, upstream's version, Debian's revision. Any text has its place; none is refused."""
    epoch, colon, remainder = version.partition(":")
    if not colon:
        epoch, remainder = "", version
    upstream, dash, revision = remainder.rpartition("-")
    if not dash:
        upstream, revision = remainder, ""
    return _number(epoch), _parts(upstream), _parts(revision)


def _parts(text: str) -> tuple[_VersionPart, ...]:
    pairs = re.findall(r"([^0-9]*)([0-9]*)", text)
    segments = [((*map(_weight, words), 0), _number(digits)) for words, digits in pairs]
    while segments and segments[-1] == _NOTHING:
        segments.pop()
    # Where one ends, the other may go on with a tilde, and be older: also after a first part that says nothing ("0~").
    return (*(segments or [_NOTHING]), _NOTHING)


def _weight(character: str) -> int:
    """A tilde comes before the end of the text, which is 0; letters before all else."""
    if character == "~":
        return -1
    return ord(character) if character.isascii() and character.isalpha() else ord(character) + 256


def _number(digits: str) -> tuple[int, str]:
    """Numbers of any length."""
    plain = digits.lstrip("0")
    return len(plain), plain
