"""matrices/api/<package>.json: names that releases of a package require of others, and the releases that lack them.

`tools.harvest --api` writes these files. A name that every release of the other package has, among those that were
read, is not in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from functools import cache
from typing import TYPE_CHECKING

from packaging.version import Version

from imagegen.compat import harvested
from imagegen.core.deferred import dataclass
from imagegen.core.text import runs

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, order=True)
class SharedName:
    """A name that some releases of a package require, and that some releases of another one lack.

    Releases are PEP 440 specifiers, each for one span of them.
    """

    provider: str  # "sglang"
    name: str  # "sglang.srt.managers.io_struct.ContinueGenerationReqInput"
    module: bool  # an import statement needs a module of this name
    path: str  # of the file that requires it, in the newest of these releases
    line: int
    certain: bool  # normal use imports that file, and the statement is at module level there
    required_by: tuple[str, ...]
    lacked_by: tuple[str, ...]
    keyword: str = ""  # an argument that calls of the name pass by keyword; then releases lack this, not the name


@dataclass(frozen=True)
class PackageNames:
    """The names that a package shares with others. `wheels` maps package -> release -> sha256 of the wheel read."""

    package: str
    read: str  # the day of that, ISO 8601
    wheels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    names: tuple[SharedName, ...] = ()


@cache
def _adapter() -> TypeAdapter[PackageNames]:
    from pydantic import TypeAdapter  # late, here and below: results of earlier runs stand for most files

    return TypeAdapter(PackageNames)


def parse(raw: bytes) -> PackageNames:
    """Raises ValueError for anything that `dumps` does not write."""
    from packaging.specifiers import SpecifierSet
    from pydantic import ValidationError

    try:
        package_names = _adapter().validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{' > '.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}") from error
    for name in package_names.names:
        for specifier in (*name.required_by, *name.lacked_by):
            SpecifierSet(specifier)
    return package_names


def dumps(names: PackageNames) -> bytes:
    """The file of a package: one line for each wheel and name, so that changes are readable."""
    wheels = {
        package: {version: hashes[version] for version in sorted(hashes, key=Version)}
        for package, hashes in sorted(names.wheels.items())
    }
    lines = [f'  "package": {json.dumps(names.package)}', f'  "read": {json.dumps(names.read)}']
    tables = (
        f"    {json.dumps(package)}: "
        + _block(
            "{}", (f"      {json.dumps(version)}: {json.dumps(sha256)}" for version, sha256 in releases.items()), 4
        )
        for package, releases in wheels.items()
    )
    lines.append(f'  "wheels": {_block("{}", tables, 2)}')
    lines.append(f'  "names": {_block("[]", (f"    {json.dumps(_fields(name))}" for name in sorted(names.names)), 2)}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _fields(name: SharedName) -> dict[str, object]:
    return {key: value for key, value in asdict(name).items() if key != "keyword" or value}


def _block(brackets: str, items: Iterable[str], indent: int) -> str:
    text = ",\n".join(items)
    return f"{brackets[0]}\n{text}\n{' ' * indent}{brackets[1]}" if text else brackets


_FILES = harvested.Folder("api", lambda raw, *_: parse(raw))
load, names, path_of = _FILES.load, _FILES.names, _FILES.path_of


def spans(chosen: Iterable[str], versions: Sequence[str], *, open_ended: bool) -> tuple[str, ...]:
    """Return releases as specifiers, one for each span of the `known` ones (oldest first) that are all chosen.

    With `open_ended`, a span from the oldest or to the newest known release goes on there, and ends before the next
    known release; else it is bounded by its first and last release.
    """
    positions = {version: index for index, version in enumerate(versions)}
    chosen_runs = runs(sorted(positions[version] for version in chosen))
    return tuple(_specifier(first, last, versions, open_ended=open_ended) for first, last in chosen_runs)


def _specifier(first: int, last: int, versions: Sequence[str], *, open_ended: bool) -> str:
    if open_ended:
        lower = [f">={versions[first]}"] if first else []
        return ",".join([*lower, *([f"<{versions[last + 1]}"] if last + 1 < len(versions) else [])])
    return f"=={versions[first]}" if first == last else f">={versions[first]},<={versions[last]}"
