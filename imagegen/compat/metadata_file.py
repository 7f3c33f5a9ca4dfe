"""matrices/metadata/<package>.json: package metadata from an index, release by release.

`tools.harvest` writes these files; only `since` and `extras` are edited. One line per release, newest first, so that
a new release is one new line in a diff.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag
from packaging.version import Version
from pydantic import AfterValidator, Field, ValidationError

from imagegen.compat import harvested
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata
from imagegen.core import data
from imagegen.core import types as t
from imagegen.core.data import parse_json
from imagegen.core.errors import Location, MatrixError
from imagegen.core.strict import Strict

_LONGEST_TAG = 255  # characters, the limit of a file's name; the tags of a name are the product of its parts


def dumps(package: PackageReleases) -> bytes:
    """Return the file of a package. Equal facts give equal bytes, in any order."""
    newest_first = sorted(package.releases.values(), key=lambda release: Version(release.version), reverse=True)
    lines = [f"    {json.dumps(entry.version)}: {json.dumps(_table(entry))}" for entry in newest_first]
    head: dict[str, Any] = {"package": package.name, "index": package.index, "read": package.read}
    head |= {"since": package.since} if package.since else {}
    head |= {"extras": sorted(package.extras)} if package.extras else {}
    top = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    versions = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    return f'{{\n{top}  "versions": {versions}\n}}\n'.encode()


def _table(release: ReleaseMetadata) -> dict[str, Any]:
    table: dict[str, Any] = {"uploaded": release.uploaded} if release.uploaded else {}
    table |= {"python": release.python} if release.python else {}
    table["requires"] = None if release.requires is None else sorted(release.requires)
    table |= (
        {"extras": {name: sorted(release.extras[name]) for name in sorted(release.extras)}} if release.extras else {}
    )
    table |= {"wheels": sorted(release.wheels)} if release.wheels else {}
    table |= {"cuda": release.cuda} if release.cuda else {}
    return table | ({"yanked": True} if release.yanked else {})


def parse(raw: bytes, path: Path | str = "<metadata>", name: str | None = None) -> PackageReleases:
    """Return the package in a file's bytes; errors name `path`, and the file must be about package `name`.

    Raises MatrixError for anything that `dumps` does not write, up to order and white space.
    """
    try:
        table = _FileTable.model_validate(parse_json(raw.decode(), object_pairs_hook=data.unique_keys))
        if name and table.package != name:
            raise ValueError(f"it is about {table.package}")  # noqa: TRY301 - the parsers raise the same error
    except json.JSONDecodeError as error:
        where = Location(path, error.lineno, error.colno)
        raise MatrixError(
            "this is not valid JSON", code="matrix-metadata-malformed", where=where, why=error.msg, fix=_fix(path)
        ) from error
    except ValidationError as error:
        key_path, why = harvested.first_fault(error)
        raise _malformed(Location(path, _line(raw, key_path)), why) from error
    except ValueError as error:  # ValueError: no UTF-8, a number that is too long, a key given twice
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise _malformed(Location(path), why) from error
    newest_first = sorted(table.versions, key=Version, reverse=True)
    return PackageReleases(
        name=table.package,
        index=table.index,
        read=table.read,
        since=table.since,
        extras=tuple(sorted(table.extras)),
        releases={version: _release(version, table.versions[version]) for version in newest_first},
    )


def _malformed(where: Location, why: str) -> MatrixError:
    return MatrixError(
        "this is not harvested metadata", code="matrix-metadata-malformed", where=where, why=why, fix=_fix(where.file)
    )


def _fix(path: Path | str) -> str:
    again = f"in a checkout delete it and run `python -m tools.harvest {Path(path).stem}`"
    return f"restore it from version control, or {again}"


def _line(raw: bytes, path: tuple[int | str, ...]) -> int | None:
    """The line of the version, or of the key, that `path` leads to."""
    key = path[1] if path[:1] == ("versions",) and len(path) > 1 else path[0] if path else None
    before, separator, _ = raw.partition(json.dumps(key).encode() + b":")
    return before.count(b"\n") + 1 if separator else None


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is not a PEP 440 version specifier') from error
    return text


@cache
def _tag(text: str) -> str:
    if len(text) > _LONGEST_TAG or text.count("-") != 2 or not parse_tag(text):
        raise ValueError(f'"{text}" is not the tag of a wheel')
    return sys.intern(text)  # as below


def _requirement(text: str) -> str:
    t.parse_requirement(text)
    return sys.intern(text)  # releases have most in common, and a result that is kept has each object once


_Requirement = Annotated[str, AfterValidator(_requirement)]  # of any package; it may have a URL


class _ReleaseTable(Strict):
    uploaded: t.Date | None = None
    python: Annotated[str, AfterValidator(_specifier)] = ""
    requires: list[_Requirement] | None
    extras: dict[t.Distribution, list[_Requirement]] = {}
    wheels: list[Annotated[str, AfterValidator(_tag)]] = []
    cuda: Annotated[str, Field(pattern="^[0-9]{1,4}[.][0-9]{1,4}$")] | None = None
    yanked: bool = False


class _FileTable(Strict):
    package: t.Distribution
    index: t.Name
    read: t.Date | None = None
    since: t.CanonicalVersion | None = None
    extras: list[t.Distribution] = []
    versions: dict[t.CanonicalVersion, _ReleaseTable]


def _release(version: str, table: _ReleaseTable) -> ReleaseMetadata:
    return ReleaseMetadata(
        version=version,
        uploaded=table.uploaded,
        python=table.python,
        requires=None if table.requires is None else tuple(sorted(table.requires)),
        wheels=tuple(sorted(table.wheels)),
        extras={name: tuple(sorted(table.extras[name])) for name in sorted(table.extras)},
        cuda=table.cuda,
        yanked=table.yanked,
    )
