"""Archives and releases of Debian and its derivatives (data/distributions.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

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
