"""The archives and releases that data/distributions.yaml describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

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
    """A release of a distribution: what apt reads to make a base of it."""

    name: str  # code name: "bookworm"
    suites: Mapping[str, tuple[str, ...]]  # archive -> its suites
    components: tuple[str, ...]
    keyrings: tuple[str, ...]  # paths on this machine; the first that exists is used
    keyring_package: str
    packages: tuple[str, ...]  # that every base of it holds
    sources: str  # the file of the image that names the archives
    example: str  # the file in which the release's apt has their addresses
    proven: bool  # whether a base was built with its real archive


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
    """Return the name of the archive at an address: a known one's, else the address without its scheme."""
    address = uri.partition("://")[2].rstrip("/")
    return next((each.name for each in archives().values() if re.fullmatch(each.addresses, address)), address)


@cache
def _read() -> tuple[dict[str, DebianArchive], dict[str, DebianRelease]]:
    data: dict[str, Any] = yaml.load(_FILE.read_bytes(), Loader=yaml.CSafeLoader)
    found = {
        name: DebianArchive(name, each["addresses"], each.get("address"), each["snapshots"])
        for name, each in data["archives"].items()
    }
    releases = {
        name: DebianRelease(
            name,
            {archive: tuple(suites) for archive, suites in each["suites"].items()},
            tuple(each["components"]),
            tuple(each["keyrings"]),
            each["keyring_package"],
            tuple(each["packages"]),
            each["sources"],
            each["example"],
            each["proven"],
        )
        for name, each in data["releases"].items()
    }
    return found, releases
