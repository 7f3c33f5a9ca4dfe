"""Types that all packages share: the time of files, GPU architectures, submodules, validated strings of inputs."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import InitVar, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias
from urllib.parse import unquote

from packaging.version import Version

from imagegen.core.deferred import dataclass
from imagegen.core.text import cut, redact, unprintable

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

# 1980-01-01, the oldest date that zip files can hold, so zipping a tree from an image works. It is part of the formats
# of layers and bases: a SOURCE_DATE_EPOCH that moves would change all layers at each relock.
EPOCH = 315532800

PREFIX = "/opt/venv"  # the environment: wheels, and their data, are installed there

# Compressions of the layers of published images; digests in locks are of zstd.
Compression: TypeAlias = Literal["zstd", "gzip"]


# Validated string types of all files that imagegen reads, each defined once, and the base class of their tables.
#
# Each type admits one narrow form, because a value may reach a Dockerfile, an image config, a path or a command line.
# Where two types differ in one point, a comment has the reason. Messages use `meaning`, else they show the pattern.

RESERVED_ENV = {"VIRTUAL_ENV"}  # the image's layout decides it
# Lists of directories: the values of an image, its stacks and its base are joined, in this order.
SEARCH_PATHS = {"LD_LIBRARY_PATH", "LIBRARY_PATH", "PATH"}
# Variables that the machine of a source build decides, so that no recipe can: parallelism and directories.
BUILD_ENV = {
    *("CMAKE_BUILD_PARALLEL_LEVEL", "MAKEFLAGS", "MAX_JOBS", "NINJAFLAGS", "NVCC_THREADS"),
    *("CUDA_HOME", "HOME", "LANG", "PATH", "PYTHONPATH", "SOURCE_DATE_EPOCH", "TMPDIR"),
}
LONGEST_REQUIREMENT = 2000  # characters
_SHOWN = 200  # characters of a requirement that an error repeats
_MEANINGS: dict[str, str] = {}  # anchored pattern -> noun phrase that messages use in its place


class Part:
    """The base class of dataclasses that files hold: pydantic checks their annotations where it reads a file.

    A value that a program makes is not checked. Strictness is that of the types: a dataclass cannot have it.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}


class _Limits:
    """Limits of a string or a number in an annotation, by the names that pydantic's core schemas have for them.

    Like `Check` it stands for an annotation of pydantic, which is imported at the first validation.
    """

    def __init__(self, **limits: Any) -> None:
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(source) | {"strict": True} | self._limits


class Check:
    """A function in an annotation that returns the value to take in place of a valid one, or raises ValueError.

    With `before`, it gets the value as the file has it, which is validated afterwards.
    """

    def __init__(self, function: Callable[[Any], Any], *, before: bool = False) -> None:
        self._function, self._before = function, before

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        if self._before:
            return core_schema.no_info_before_validator_function(self._function, handler(source))
        return core_schema.no_info_after_validator_function(self._function, handler(source))


class Written:
    """The type of a field in a file, and the function that returns the field's value for one of that type."""

    def __init__(self, written: Any, convert: Callable[[Any], Any]) -> None:
        self._written, self._convert = written, convert

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._convert, handler.generate_schema(self._written))


def _refuse_key(_: Any) -> Any:
    raise ValueError("no file has this key")


class _Unwritten:
    """Makes pydantic refuse the key of a field, of whatever type, in a file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(_refuse_key, core_schema.any_schema())


# In the annotation of a field that files do not have, since a digest of the written form does not cover it.
UNWRITTEN = _Unwritten()


def field_info(*keys: str, **options: Any) -> Any:
    """Return what pydantic's `Field` does: of a dataclass's field with these keys in a file, the first one for writing.

    Annotations that are text are evaluated at the first validation, and pydantic is imported then.
    """
    from pydantic import AliasChoices, Field

    alias = {"alias": keys[0]} if len(keys) == 1 else {"validation_alias": AliasChoices(*keys)} if keys else {}
    return Field(**alias, **options)


EMPTY: dict[str, Any] = {"json_schema_extra": {"default": {}}}  # for a field whose default is an empty mapping


def doc(description: str, **options: Any) -> Any:
    """Return `field_info` with a description, for the JSON schema of a file and its reference page."""
    return field_info(description=description, **options)


def string(pattern: str, maximum: int | None = 100, *, meaning: str = "") -> Any:
    """Return the constraint of a string that `pattern` matches whole; `meaning`, a noun phrase, is for messages."""
    whole = f"^(?:{pattern})$"
    if meaning:
        _MEANINGS[whole] = meaning
    return _Limits(pattern=whole, min_length=1, **({} if maximum is None else {"max_length": maximum}))


def explain_mismatch(context: Mapping[str, Any]) -> str:
    """Return the message for pydantic's error `string_pattern_mismatch` with this context."""
    pattern = context["pattern"]
    return f"must be {_MEANINGS[pattern]}" if pattern in _MEANINGS else f"must match {pattern.strip('^$')}"


@cache
def parse_requirement(text: str) -> Requirement:
    """Parse a PEP 508 requirement, each text once: releases of a package share most of theirs. Raises ValueError."""
    if len(text) > LONGEST_REQUIREMENT:  # so no number in it is too long for int(), which packaging calls
        raise ValueError(f"a requirement is longer than {LONGEST_REQUIREMENT} characters")
    from packaging.requirements import Requirement  # late, here and below: few commands parse one

    try:
        return Requirement(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'"{cut(redact(text), _SHOWN)}" is not a PEP 508 requirement') from error


def parse_specifier(text: str) -> SpecifierSet:
    """Parse a PEP 440 specifier. Raises ValueError if it is malformed, matches no version, or compares text (===)."""
    if "===" in text:  # before it is parsed: packaging 26.4 rejects it without a version, 26.3 takes it
        raise ValueError("=== compares text, not versions: use ==")
    from packaging.specifiers import SpecifierSet

    try:
        specifier = SpecifierSet(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is not a PEP 440 version specifier, such as "==2.13.0" or ">=5.9,<5.11"') from error
    if specifier.is_unsatisfiable():
        raise ValueError(f'no version satisfies "{text}"')
    return specifier


def url_path(text: str) -> str:
    """Return `text` if it is a path of a URL without host, root and dot segments. Raises ValueError."""
    components = text.split("/")
    if not re.fullmatch(r"[A-Za-z0-9._~%!$&'()+,;=@/-]+", text) or any(part in ("", ".", "..") for part in components):
        raise ValueError(f"{text!r} is not a plain relative path")
    return text


def names_file(address: str, filename: str) -> bool:
    """Return whether the last segment of a URL or path is `filename`, percent-encoded or not.

    File hosts keep the files of all projects; an address that ends otherwise is of another project's file.
    """
    return unquote(address.rpartition("/")[2]) == filename


def _line(text: str) -> str:
    if bad := unprintable(text):
        raise ValueError(f"must be one line, and holds the control character {bad!r}")
    return text


def _text(text: str) -> str:
    if unprintable(text):
        raise ValueError("must be one line without control characters; in YAML, write long text as a folded block (>-)")
    if text != text.strip():
        raise ValueError("must not begin or end with white space")
    return text


def _env_value(value: str) -> str:
    if unprintable(value):
        raise ValueError("must not contain line breaks or control characters")
    if characters := sorted({c for c in value if c in '$"\\`'}):
        raise ValueError(
            f"must not contain {' '.join(characters)}: a Dockerfile would expand it, an image config would not"
        )
    return value


def _env_name(name: str) -> str:
    if name in RESERVED_ENV:
        raise ValueError(f"{name} is set by the image's own layout")
    return name


def _build_env_name(name: str) -> str:
    if name in BUILD_ENV:
        raise ValueError(f"{name} is set by the machine that builds: it never depends on the cell")
    return _env_name(name)


def join_paths(*values: str) -> str:
    """Return the directories of all `values`, lists as in PATH, each once.

    Empty entries are left out: programs read them as the working directory.
    """
    return ":".join(dict.fromkeys(directory for value in values for directory in value.split(":") if directory))


def require_absolute(name: str, value: str) -> None:
    """Raise ValueError if the variable is one of SEARCH_PATHS and names a directory that is not absolute."""
    relative = [directory for directory in value.split(":") if directory and not directory.startswith("/")]
    if name in SEARCH_PATHS and relative:
        raise ValueError(f'{name} is a list of absolute directories, and "{relative[0]}" is not absolute')


def _specifier(text: str) -> str:
    parse_specifier(text)
    return text


def _version(text: str) -> str:
    try:
        Version(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is not a PEP 440 version') from error
    if text != text.strip():  # which Version allows
        raise ValueError(f'"{text}" is not a PEP 440 version: it has white space around it')
    return text


def _canonical_version(text: str) -> str:
    if str(Version(_version(text))) != text:
        raise ValueError(f'write the normalised version "{Version(text)}"')
    return text


def _requirement(text: str) -> str:
    if parse_requirement(_line(text)).url:
        raise ValueError("a requirement by URL is not allowed here")
    return text


def _exact_pin(text: str) -> str:
    specifiers = list(parse_requirement(_requirement(text)).specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or specifiers[0].version.endswith(".*"):
        raise ValueError(f'"{text}" is not an exact pin, such as "setuptools==84.2.1"')
    return text


def _date(text: str) -> str:
    try:
        dt.date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is not a date such as "2026-11-20"') from error
    return text


def _time(text: str) -> str:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time in UTC, such as 2026-11-20T00:00:00Z") from error
    return text


def _url_with_plain_path(url: str) -> str:
    url_path(url.partition("://")[2].partition("/")[2])
    return url


_LINKED = frozenset({"bin", "lib", "lib32", "lib64", "libx32", "sbin"})
_MOUNTED = frozenset({"dev", "proc", "sys"})
_OWN_LABELS = r"org\.opencontainers\.image\.(title|created|version|base\.(name|digest))"


def _port(text: str) -> str:
    number, _, protocol = text.partition("/")
    if not 0 < int(number) < 1 << 16:
        raise ValueError(f"{number} is not a port")
    return f"{number}/{protocol or 'tcp'}"


def _label_name(name: str) -> str:
    if name.startswith("dev.imagegen.") or re.fullmatch(_OWN_LABELS, name):
        raise ValueError(f"imagegen sets the label {name}")
    return name


def _target(path: str) -> str:
    top = path.split("/")[1]
    if top in _LINKED:
        raise ValueError(f"/{top} is a link to /usr/{top} in most images: write /usr{path}")
    if top in _MOUNTED:
        raise ValueError(f"a mount hides /{top} in every container")
    return _copied(path)


def _copied(path: str) -> str:
    _line(path)
    if not path.startswith("/") or not {"", ".", ".."}.isdisjoint(path[1:].split("/")):
        raise ValueError(f"{path!r} is not a normalised absolute path")
    return path


def _wheel_url(url: str) -> str:
    from packaging.utils import parse_wheel_filename

    filename = unquote(url.rpartition("/")[2])
    try:
        parse_wheel_filename(filename)
    except ValueError as error:
        raise ValueError(f"{filename!r} is not the name of a wheel: {error}") from error
    return url


# Text is prose; Line may be empty or begin with white space, as values and reasons in a lock may.
Text = Annotated[str, _Limits(min_length=1, max_length=1000), Check(_text)]
Line = Annotated[str, _Limits(), Check(_line)]

# Names that a matrix gives. Word is a name made of names: a cell's id, a layer's name, Debian's architectures.
Name = Annotated[str, string(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", 60)]
EnvironmentName = Annotated[str, string(r"[a-z0-9]+(?:-[a-z0-9]+)*", 30)]
Word = Annotated[str, string(r"[a-z0-9][a-z0-9._-]*", None, meaning="a name of lower-case letters, digits, ., _ and -")]
Alias = Annotated[str, string(r"[A-Za-z0-9]+(?:[ ._-][A-Za-z0-9]+)*", 60)]
PartName = Annotated[
    str, string(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", meaning="the name of a component, a variable or a Debian package")
]
AxisValue = Annotated[str, string(r"[a-z0-9]+(?:[./-][a-z0-9]+)*", 40)]
# A rule's subject: a surrounding, a component, or env.NAME. Its condition: see spec/model.py.
Subject = Annotated[str, string(r"[a-z0-9]+(?:[.-][a-z0-9]+)*|env\.[A-Za-z_][A-Za-z0-9_]*", 100)]
Condition = Annotated[str, _Limits(max_length=200), Check(_text)]
Count = Annotated[str, string(r"[1-9][0-9]{0,9}")]
Seconds = Annotated[str, string(r"[0-9]{1,6}(?:\.[0-9]{1,3})?")]
Gigabytes = Annotated[str, string(r"[0-9]{1,3}(?:\.[0-9]{1,3})? GB")]
Date = Annotated[str, string(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), Check(_date)]
Time = Annotated[  # RFC 3339
    str,
    string(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?Z",
        meaning="a time in UTC, such as 2026-11-20T00:00:00Z",
    ),
    Check(_time),
]

# Contents: OCI image-spec v1.1 (descriptor.md) for digests.
Sha256 = Annotated[str, string(r"[0-9a-f]{64}", meaning="a sha256: 64 lower-case hex digits")]
Digest = Annotated[str, string(r"sha256:[0-9a-f]{64}", meaning="a digest: sha256: and 64 lower-case hex digits")]
Number = Annotated[int, _Limits()]
Flag = Annotated[bool, _Limits()]
Size = Annotated[int, _Limits(ge=0, lt=1 << 50)]  # bytes

# Python packages: PEP 503 (names), PEP 440 (versions), PEP 508 (requirements), PEP 427 and 625 (file names).
Distribution = Annotated[str, string(r"[a-z0-9]+(?:-[a-z0-9]+)*", meaning="a normalised package name (PEP 503)")]
PackageVersion = Annotated[str, _Limits(), Check(_version)]
CanonicalVersion = Annotated[str, _Limits(max_length=60), Check(_canonical_version)]
LocalLabel = Annotated[str, string(r"[a-z0-9]+(?:\.[a-z0-9]+)*", 40)]
Specifier = Annotated[str, _Limits(max_length=200), Check(_specifier)]
RequirementText = Annotated[str, _Limits(), Check(_requirement)]
ExactPin = Annotated[str, _Limits(), Check(_exact_pin)]
Module = Annotated[str, string(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")]
FileName = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", 250, meaning="a file name")]  # file systems: 255
SdistName = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.tar\.gz", 200)]
WheelName = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl", 300)]

# PythonVersion may be the minor version if no package says more.
Minor = Annotated[str, string(r"[0-9]+\.[0-9]+")]
PythonVersion = Annotated[str, string(r"3\.[0-9]{1,2}(?:\.[0-9]{1,2})?", meaning="a version of Python, as in 3.12")]
PythonRelease = Annotated[str, string(r"3\.[0-9]{1,2}\.[0-9]{1,2}", meaning="a release of Python, as in 3.12.14")]
# Percent-encoded, as of a release: "20260814/cpython-3.12.14%2B20260814-x86_64-unknown-linux-gnu-....tar.gz"
ReleaseFile = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9](?:[A-Za-z0-9._+-]|%2B)*\.tar\.gz", 200)]

# GPUs: compute capabilities, names of architectures as nvcc has them, versions of NVIDIA's driver.
Capability = Annotated[str, string(r"[1-9][0-9]?\.[0-9]", meaning="a compute capability, as in 9.0")]
GpuName = Annotated[str, string(r"sm_[1-9][0-9]{1,2}")]
DriverVersion = Annotated[str, string(r"[0-9]{1,5}(?:\.[0-9]{1,5}){0,3}", meaning="a version of a driver")]

# Environment variables. Variable is one of an image config (OCI image-spec v1.1, config.md): NAME=value.
EnvName = Annotated[str, string(r"[A-Za-z_][A-Za-z0-9_]*"), Check(_env_name)]
EnvValue = Annotated[str, _Limits(max_length=1000), Check(_env_value)]
BuildEnvName = Annotated[str, string(r"[A-Za-z_][A-Za-z0-9_]*"), Check(_build_env_name)]
Variable = Annotated[
    str, string(r"[A-Za-z_][A-Za-z0-9_.-]*=(?s:.*)", None, meaning="a variable (NAME=value)"), Check(_line)
]

# Fields of an image's config (OCI image-spec v1.1, config.md). A user by number: programs need no entry in /etc/passwd.
Argument = Annotated[str, _Limits(min_length=1, max_length=1000), Check(_line)]
User = Annotated[str, string(r"[0-9]{1,9}(?::[0-9]{1,9})?", meaning="a user id, with or without a group: 1000:1000")]
Port = Annotated[
    str, string(r"[0-9]{1,5}(?:/(?:tcp|udp|sctp))?", meaning="a port, as in 8265 or 4791/udp"), Check(_port)
]
LabelName = Annotated[
    str, string(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", meaning="a name as in com.example.team"), Check(_label_name)
]

# Paths: below a directory; the same with leading ../; absolute in an image, a file or a glob; of a URL.
PathBelow = Annotated[str, string(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)*", 200)]
TreeName = Annotated[str, string(r"[A-Za-z0-9_.][A-Za-z0-9._+-]*", 200, meaning="a name without a slash")]
ProjectFile = Annotated[
    str,
    string(
        r"(?:\./)?[A-Za-z0-9_][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)*",
        200,
        meaning="a path below the project's directory, as in ./uv.lock",
    ),
]
RelativePath = Annotated[str, string(r"(?:\.\./)*[A-Za-z0-9_][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)*", 300)]
ProjectPath = Annotated[
    str,
    string(
        r"\.|[A-Za-z0-9_][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)*",
        200,
        meaning='a path below the project\'s directory, as in packages/mypkg, or "." for the directory itself',
    ),
]
ProjectWheel = Annotated[
    str,
    string(
        r"(?:[A-Za-z0-9_][A-Za-z0-9._+-]*/)*[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl",
        300,
        meaning="a wheel file below the project's directory, as in packages/mypkg-1.0-py3-none-any.whl",
    ),
]
AbsolutePath = Annotated[str, string(r"(?:/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)+", 200, meaning="an absolute path")]
TargetPath = Annotated[str, string(r"(?:/[A-Za-z0-9_.+@-]+)+", 200, meaning="an absolute path"), Check(_target)]
CopiedPath = Annotated[str, _Limits(), Check(_copied)]
PathGlob = Annotated[str, string(r"(?:\*/|/)(?:[A-Za-z0-9_.+*/-]|\[!?[A-Za-z0-9_.-]+\])*(?:[A-Za-z0-9_.+*-]|\])", 200)]
UrlPath = Annotated[str, _Limits(), Check(url_path)]

# Addresses (RFC 3986): no credentials and no query. Plain HTTP is for a server on this machine, but for packages that
# a signature or a hash in another file covers: indexes (their files are locked by hash) and archives of Debian.
HTTPS = "an https address (http for 127.0.0.1 alone) without user, password or query"
HOST = r"(?:https://[A-Za-z0-9.-]+|http://127\.0\.0\.1)(?::[0-9]+)?"
Url = Annotated[
    str,
    string(
        r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[A-Za-z0-9._~+%-]+)*/?",
        300,
        meaning="an http or https address without user, password or query, as in https://packages.example.com/simple",
    ),
]
FileUrl = Annotated[
    str,
    string(rf"{HOST}/[A-Za-z0-9._~%!$&'()+,;=@/-]+", None, meaning=HTTPS),
    Check(_url_with_plain_path),
]
WheelUrl = Annotated[FileUrl, Check(_wheel_url)]
ImageReference = Annotated[  # registry host[:port]/path:tag; the lock adds the digest
    str,
    string(
        r"[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)+:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", 300
    ),
]

# Git: gitrevisions(7). GitName is a matrix's name of a commit; GitRef may be a tag or branch, which have slashes.
GitUrl = Annotated[
    str,
    string(
        HOST + r"(?:/[A-Za-z0-9._~+-]+)+",
        300,
        meaning=f"{HTTPS}, as in https://github.com/acme/rewards.git",
    ),
]
GitObject = Annotated[str, string(r"[0-9a-f]{40}")]
GitName = Annotated[str, string(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*", 60)]
GitRef = Annotated[str, string(r"[A-Za-z0-9]+(?:[._/-][A-Za-z0-9]+)*")]

# Debian: deb-control(7), deb-version(7), sources.list(5). apt takes "x-" for the removal of x.
DebianPackage = Annotated[str, string(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")]
DebianVersion = Annotated[str, string(r"[0-9][A-Za-z0-9.+:~-]*", 200, meaning="a Debian version")]
DebianSuite = Annotated[str, string(r"[a-z][a-z0-9-]*")]  # of a base: "bookworm"
_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9._+~-]*"
Suite = Annotated[
    str, string(rf"/|(?:\./)?{_SEGMENT}(?:/{_SEGMENT})*/?|\./", None, meaning="a suite")
]  # of any archive
ArchivePart = Annotated[  # "debian/bookworm", "main", "updates/main"
    str, string(r"[a-z0-9][a-z0-9._/-]*", None, meaning="the name of a suite or component")
]
_ARCHIVE = r"[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?(?:/[A-Za-z0-9_~%+=@:-][A-Za-z0-9._~%+=@:-]*)*"
ArchiveName = Annotated[str, string(_ARCHIVE, None, meaning="the name of an archive, or its address without scheme")]
ArchiveUrl = Annotated[
    str, string(rf"https?://{_ARCHIVE}", None, meaning="the http or https address of an archive, without user")
]


@dataclass(frozen=True)
class Submodule(Part):
    """The submodule at `path` of a commit's tree: a commit of another repository, and its tree."""

    path: PathBelow
    url: GitUrl
    commit: GitObject
    tree: GitObject


def minor(version: str) -> str:
    """Return the version within which torch keeps its C++ ABI: "2.8" of "2.8.0+cu128"."""
    major, second = (*Version(version).release, 0)[:2]
    return f"{major}.{second}"


def with_check(schema: Any) -> Any:
    """Return pydantic's schema of a class, extended by a call of the `check` method of each instance."""
    from pydantic_core import core_schema  # late: a value that an earlier run has parsed is not validated again

    def check(instance: Any) -> Any:
        instance.check()
        return instance

    return core_schema.no_info_after_validator_function(check, schema)


# Named entries of matrix files.


@dataclass(frozen=True)
class MatrixEntry(Part):
    """The base class of a matrix file's named entries. The first field is the name, which is the entry's key there."""

    REQUIRED: ClassVar[tuple[str, ...]] = ()  # fields that a file must have, and a program need not
    UNWRITTEN: ClassVar[tuple[str, ...]] = ()  # fields that a file cannot have

    override: InitVar[Annotated[Flag, doc("Replaces the entry of this name from an earlier directory.")]] = field(
        default=False, kw_only=True
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        schema = handler(source)
        reference, unwritten = schema.pop("ref"), (fields(cls)[0].name, *cls.UNWRITTEN)
        written = [item for item in schema["schema"]["fields"] if item["name"] not in unwritten]
        for item in written:
            if item["name"] in cls.REQUIRED:
                item["schema"] = item["schema"]["schema"]  # without the default
        schema["schema"]["fields"] = written
        return with_check(schema) | {"ref": reference}

    def check(self) -> None:
        """Raise ValueError if the fields contradict each other."""

    def named(self, name: str) -> Self:
        """Return the entry with its name, which validation leaves out."""
        changes: dict[str, Any] = {fields(self)[0].name: name}
        return replace(self, **changes)


@dataclass(frozen=True)
class Gpu(MatrixEntry):
    """A GPU architecture, by the name that compilers give it: sm_90."""

    REQUIRED = ("source",)

    name: str  # "sm_120"
    capability: Annotated[Capability, doc("Compute capability.")]  # "12.0"
    family: Name  # "blackwell"
    products: Annotated[  # "RTX 5090"
        tuple[Alias, ...], doc("Names by which users call the cards.", default=())
    ]
    # "10.1", as CUDA 12.8 calls 11.0
    aliases: Annotated[tuple[Alias, ...], doc("Other names that users type.")] = ()
    amd64: Annotated[  # "B200"
        tuple[Alias, ...], doc("The products and aliases that only x86-64 hosts have.")
    ] = ()
    arm64: Annotated[  # "GH200"
        tuple[Alias, ...], doc("The products and aliases that only arm64 hosts have.")
    ] = ()
    source: Text = ""

    def platform_of(self, product: str) -> str:
        """Return the platform of a product's hosts. A card for a PCIe slot fits others too, but x86-64 is usual."""
        return "linux/arm64" if product in self.arm64 else "linux/amd64"
