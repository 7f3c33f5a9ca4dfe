"""matrices/api/<package>.json: names that releases of a package require of others, and the releases that lack them.

`tools.harvest --api` writes these files. A name that every release of the other package has, among those that were
read, is not in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING

from imagegen.compat import harvested
from imagegen.core.deferred import dataclass

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
    """Raises ValueError for anything that `tools.harvest` does not write."""
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


_FILES = harvested.Folder("api", lambda raw, *_: parse(raw))
load, names, path_of = _FILES.load, _FILES.names, _FILES.path_of
