"""Advisories from files: records of known vulnerabilities in the Open Source Vulnerability format.

A file, a directory of such, or an archive as osv.dev publishes one for each ecosystem (all.zip). Nothing is fetched.
Source: the OSV schema 1.7, https://ossf.github.io/osv-schema/, with its "Evaluation" algorithm.
"""

from __future__ import annotations

import datetime as dt
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from imagegen.core.errors import UsageError
from imagegen.core.text import counted

_LONGEST = 32 << 20  # bytes of one record; the longest, of kernels, have some 5 MB
_FIX = "fetch the ecosystem's all.zip from osv.dev again, or name a directory that holds OSV records alone"
_OPEN = (("introduced", "0"), ("limit", "*"))  # no versions, but no bounds
_KINDS = ("introduced", "fixed", "last_affected", "limit")

Event: TypeAlias = tuple[str, str]  # one of _KINDS, and a version; "0" comes before all
Order: TypeAlias = Callable[[str], Any]  # a version's sort key; raises ValueError for what is no version


@dataclass(frozen=True)
class Affected:
    """A package that an advisory is about: versions by name, and ranges of them."""

    ecosystem: str  # "PyPI", "Debian:12"
    name: str
    versions: frozenset[str]
    ranges: tuple[tuple[Event, ...], ...]
    severity: tuple[str, ...]  # of this package alone


@dataclass(frozen=True)
class Advisory:
    """One record. `names` are its id and what else it is called; severities are as given: CVSS vectors, or words.

    `upstream` are the vulnerabilities that a distribution's advisory gathers, where they are several: DSA-5417-1.
    """

    id: str
    names: frozenset[str]
    upstream: frozenset[str]
    summary: str
    severity: tuple[str, ...]
    affected: tuple[Affected, ...]


@dataclass(frozen=True)
class Advisories:
    """What was read. `newest` is when a record was last changed, RFC 3339; None where no record was read."""

    advisories: tuple[Advisory, ...]  # in force, about a package that was asked for; by id
    records: int  # all that were read
    newest: str | None
    ecosystems: frozenset[str]  # of all records, without their release: "Debian"


def read(paths: Iterable[Path], wanted: Callable[[str, str], bool]) -> Advisories:
    """The advisories about packages that are `wanted` (ecosystem, name). Withdrawn ones are left out.

    Raises UsageError for a file that is not there, cannot be read, or is no OSV record.
    """
    found: dict[str, Advisory] = {}
    records, newest, ecosystems = 0, "", set()
    for where, content in (each for path in paths for each in _files(path)):
        for record in _records(where, content):
            records += 1
            newest = max(newest, str(record["modified"]))
            try:
                advisory = None if record.get("withdrawn") else _advisory(record, wanted)
                ecosystems |= {_of(each["package"]["ecosystem"]) for each in _rows(record, "affected")}
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise _no_osv(where, f"the record {record['id']}: {error!r}") from error
            if advisory and advisory.affected:
                found[advisory.id] = advisory
    return Advisories(tuple(found[each] for each in sorted(found)), records, newest or None, frozenset(ecosystems))


def is_affected(affected: Affected, version: str, order: Order) -> bool:
    """Whether the version is named, or lies in a range. A range that cannot be read counts: nobody knows better."""
    named = version in affected.versions or any(_equal(each, version, order) for each in affected.versions)
    return named or any(_within(events, version, order) for events in affected.ranges)


def fixed_in(affected: Affected, version: str, order: Order) -> str | None:
    """The lowest version that is said to be fixed and comes after this one; None where there is none."""
    fixes = {told for events in affected.ranges for kind, told in events if kind == "fixed"}
    try:
        later = [(order(each), each) for each in fixes if order(each) > order(version)]
    except ValueError:
        return None
    return min(later)[1] if later else None


def _equal(one: str, other: str, order: Order) -> bool:
    try:
        return bool(order(one) == order(other))
    except ValueError:
        return False


def _within(events: tuple[Event, ...], version: str, order: Order) -> bool:
    try:
        own = order(version)
        bounds = [(kind, None if (kind, told) in _OPEN else order(told)) for kind, told in events]
    except ValueError:
        return True
    limits = [bound for kind, bound in bounds if kind == "limit"]
    if limits and all(limit is not None and own >= limit for limit in limits):
        return False
    inside = any(kind == "introduced" and bound is None for kind, bound in bounds)
    steps = [(bound, _KINDS.index(kind)) for kind, bound in bounds if bound is not None]
    for bound, kind in sorted(steps):  # of one version's events, the one that opens comes first
        if _KINDS[kind] == "introduced" and own >= bound:
            inside = True
        elif (_KINDS[kind] == "fixed" and own >= bound) or (_KINDS[kind] == "last_affected" and own > bound):
            inside = False
    return inside


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """The JSON files at a path, each with what errors call it."""
    try:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix in (".json", ".zip") and each.is_file())
            if not inside:
                raise UsageError(
                    f"{path} holds no advisories",
                    code="usage-advisories-invalid",
                    why="no *.json, and no *.zip of such",
                    fix=_FIX,
                )
            for each in inside:
                yield from _files(each)
        elif zipfile.is_zipfile(path):
            yield from _archived(path)
        else:
            with path.open("rb") as file:
                content = file.read(_LONGEST + 1)
            yield str(path), content
    except OSError as error:
        raise UsageError(
            "the advisories cannot be read",
            code="usage-advisories-invalid",
            where=str(path),
            why=error.strerror or str(error),
        ) from error


def _archived(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".json"):
                    with archive.open(info) as file:
                        yield f"{path}: {info.filename}", file.read(_LONGEST + 1)
    # What zipfile and zlib raise over archives that are damaged, encrypted, or of a future version.
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise UsageError(
            "the archive of advisories cannot be read",
            code="usage-advisories-invalid",
            where=str(path),
            why=str(error),
            fix=_FIX,
        ) from error


def _records(where: str, content: bytes) -> Iterator[dict[str, Any]]:
    """The records of a file: one, or a list of them."""
    if len(content) > _LONGEST:
        raise _no_osv(where, f"it is longer than {_LONGEST >> 20} MiB")
    try:
        told = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _no_osv(where, f"it is no JSON: {error}") from error
    for record in told if isinstance(told, list) else [told]:
        if not isinstance(record, dict) or not all(isinstance(record.get(each), str) for each in ("id", "modified")):
            raise _no_osv(where, "a record has an id and a time of its last change, `modified`")
        yield record


def _advisory(record: dict[str, Any], wanted: Callable[[str, str], bool]) -> Advisory:
    upstream = frozenset(each.removeprefix("DEBIAN-") for each in _texts(record, "upstream"))
    names = {record["id"], *_texts(record, "aliases")}
    if len(upstream) == 1:
        names, upstream = names | upstream, frozenset()
    severity = tuple(str(each["score"]) for each in _rows(record, "severity"))
    word = (record.get("database_specific") or {}).get("severity")
    affected = tuple(
        found
        for each in _rows(record, "affected")
        if wanted(each["package"]["ecosystem"], each["package"]["name"])
        if (found := _affected(each))
    )
    summary = str(record.get("summary") or record.get("details") or "").strip().partition("\n")[0]
    return Advisory(
        record["id"], frozenset(names), upstream, summary, severity or ((str(word),) if word else ()), affected
    )


def _affected(row: dict[str, Any]) -> Affected:
    ranges = []
    for each in _rows(row, "ranges"):
        if each["type"] != "GIT":  # of commits, which packages do not tell
            events = [(kind, str(told)) for event in each["events"] for kind, told in event.items() if kind in _KINDS]
            ranges.append(tuple(events))
    specific = row.get("ecosystem_specific") or {}
    severity = [str(each["score"]) for each in _rows(row, "severity")]
    severity += [str(specific["urgency"])] if isinstance(specific.get("urgency"), str) else []
    package = row["package"]
    versions = frozenset(_texts(row, "versions"))
    return Affected(package["ecosystem"], package["name"], versions, tuple(ranges), tuple(severity))


def _rows(record: dict[str, Any], field: str) -> list[dict[str, Any]]:
    rows = record.get(field) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError(f"`{field}` is no list of objects")
    return rows


def _texts(record: dict[str, Any], field: str) -> list[str]:
    texts = record.get(field) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"`{field}` is no list of texts")
    return texts


def _of(ecosystem: str) -> str:
    return ecosystem.partition(":")[0]


def _no_osv(where: str, why: str) -> UsageError:
    return UsageError("this is no OSV advisory", code="usage-advisories-invalid", where=where, why=why, fix=_FIX)


def told(found: Advisories, today: str) -> str:
    """How many there are and how old they are: "20,311 records, the newest of 2026-11-20 (2 days old)"."""
    text = counted(found.records, "record")
    if found.newest is None:
        return text
    day = found.newest[:10]
    try:
        days = (dt.date.fromisoformat(today) - dt.date.fromisoformat(day)).days
    except ValueError:
        return f"{text}, the newest of {found.newest}"
    age = f"{counted(days, 'day')} old" if days > 0 else "of today" if days == 0 else "after today"
    return f"{text}, the newest of {day} ({age})"
