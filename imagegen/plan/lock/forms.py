"""The forms that texts in a lock may have: each kind of text one narrow form, since they end up in files and paths."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from imagegen.core import registry
from imagegen.core.text import unprintable
from imagegen.plan.matrix import metadata
from imagegen.plan.matrix.fields import BUILD_ENV, RESERVED_ENV


def _form(pattern: str, what: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"{value!r} is no {what}")
        return value

    return AfterValidator(check)


def _plain(value: str) -> str:
    """One line of visible text: it is shown, and stands in comments of Dockerfiles."""
    bad = unprintable(value)
    if bad is not None:
        raise ValueError(f"holds the control character {bad!r}")
    return value


def _version(value: str) -> str:
    try:
        Version(value)
    except ValueError:
        raise ValueError(f"{value!r} is no version (PEP 440)") from None
    if value != value.strip():  # which Version allows
        raise ValueError(f"{value!r} is no version (PEP 440): it has white space around it")
    return value


def _package(value: str) -> str:
    if canonicalize_name(value) != value or not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", value):
        raise ValueError(f"{value!r} is no normalised package name (PEP 503)")
    return value


def _time(value: str) -> str:
    try:
        # datetime takes any character between date and time
        form = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z", value)
        valid = form is not None and datetime.fromisoformat(value) is not None
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{value!r} is no time in UTC (RFC 3339, with a trailing Z)")
    return value


def relative_path(value: str) -> str:
    """`value` if it is a plain path of a URL, without host, root or dots; else ValueError."""
    parts = value.split("/")
    if not re.fullmatch(r"[A-Za-z0-9._~%!$&'()+,;=@/-]+", value) or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{value!r} is no plain relative path")
    return value


def names_file(address: str, filename: str) -> bool:
    """Return whether the last part of a URL or path is this file name, percent-encoded or not.

    File hosts keep the files of all projects; an address that ends otherwise is of another project's file.
    """
    return unquote(address.rpartition("/")[2]) == filename


def _plain_path(url: str) -> str:
    relative_path(url.partition("://")[2].partition("/")[2])
    return url


def _requirement(value: str) -> str:
    if metadata.requirement(_plain(value)).url:
        raise ValueError(f"{value!r} is a requirement by address, which no index can answer")
    return value


Sha256 = Annotated[str, _form(r"[0-9a-f]{64}", "sha256 (64 lower-case hex digits)")]
Digest = Annotated[str, _form(r"sha256:[0-9a-f]{64}", "digest (sha256: and 64 lower-case hex digits)")]
Size = Annotated[int, Field(ge=0, lt=1 << 50)]
Text = Annotated[str, AfterValidator(_plain)]
Package = Annotated[str, AfterValidator(_package)]
PackageVersion = Annotated[str, AfterValidator(_version)]
Time = Annotated[str, AfterValidator(_time)]
RelativePath = Annotated[str, AfterValidator(relative_path)]
Word = Annotated[str, _form(r"[a-z0-9][a-z0-9._-]*", "name (lower-case letters, digits, dot, dash)")]
AxisValue = Annotated[str, _form(r"[a-z0-9][a-z0-9._/-]*", "value of an axis")]
FileName = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,249}", "file name")]  # file systems take 255 bytes
EnvName = Annotated[
    str, _form(r"(?!(PATH|VIRTUAL_ENV)$)[A-Za-z_][A-Za-z0-9_]*", "name of an environment variable that a lock may set")
]
BuildVariable = Annotated[
    str,
    _form(
        rf"(?!({'|'.join(sorted(BUILD_ENV | RESERVED_ENV))})$)[A-Za-z_][A-Za-z0-9_]*", "variable that a build may set"
    ),
]
Module = Annotated[str, _form(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", "name of a module")]
Requirement = Annotated[str, AfterValidator(_requirement)]
PythonVersion = Annotated[str, _form(r"3\.[0-9]{1,2}(\.[0-9]{1,2})?", "version of Python")]
Interpreter = Annotated[str, _form(r"(/[A-Za-z0-9_][A-Za-z0-9._+-]*)+", "absolute path of an interpreter")]
Capability = Annotated[str, _form(r"[0-9]{1,2}\.[0-9]", "compute capability")]
DriverVersion = Annotated[str, _form(r"[0-9]{1,5}(\.[0-9]{1,5}){0,3}", "version of a driver")]
PathGlob = Annotated[str, _form(r"(\*/|/)[A-Za-z0-9_.+*/-]+", "glob over absolute paths")]
GitName = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9._-]*", "name of a commit")]
GitRef = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "tag, branch or commit")]
GitUrl = Annotated[
    str,
    _form(r"(https://[A-Za-z0-9.-]+|http://127\.0\.0\.1)(:[0-9]+)?(/[A-Za-z0-9._~+-]+)+", "address of a repository"),
]
FileUrl = Annotated[
    str,
    _form(
        r"(https://[A-Za-z0-9.-]+|http://127\.0\.0\.1)(:[0-9]+)?/[A-Za-z0-9._~%!$&'()+,;=@/-]+",
        "address of a file (https, without user or query)",
    ),
    AfterValidator(_plain_path),
]
GitObject = Annotated[str, _form(r"[0-9a-f]{40}", "hash of a git object (40 lower-case hex digits)")]
ImageName = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "name of an image")]
MediaType = Annotated[str, _form("|".join(map(re.escape, registry.LAYERS)), "media type of a layer")]
Variable = Annotated[str, _form(r"(?s:[A-Za-z_][A-Za-z0-9_.-]*=.*)", "variable (NAME=value)"), AfterValidator(_plain)]
DebName = Annotated[str, _form(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]", "Debian package name")]  # apt: "x-" removes x
_ARCHIVE = r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[A-Za-z0-9_~%+=@:-][A-Za-z0-9._~%+=@:-]*)*"
ArchiveName = Annotated[str, _form(_ARCHIVE, "name of an archive")]
ArchiveUrl = Annotated[
    str, _form(rf"https?://{_ARCHIVE}", "address of an archive of Debian packages (http or https, without user)")
]
Suite = Annotated[str, _form(r"/|(\./)?[A-Za-z0-9][A-Za-z0-9._+~-]*(/[A-Za-z0-9][A-Za-z0-9._+~-]*)*/?|\./", "suite")]
DebVersion = Annotated[str, _form(r"[0-9][A-Za-z0-9.+:~-]*", "Debian version")]


CONFIG = ConfigDict(
    extra="forbid",
    strict=True,
    frozen=True,
    alias_generator=lambda name: name.replace("_", "-"),
    defer_build=True,  # schema.LockFile builds them all, once
)


def fields(value: object, table: type[BaseModel]) -> dict[str, Any]:
    return {name.replace("_", "-"): getattr(value, name) for name in table.model_fields}
