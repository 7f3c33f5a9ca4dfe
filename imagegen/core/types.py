"""Validated string types of all files that imagegen reads, each defined once.

Each type admits one narrow form, because a value may reach a Dockerfile, an image config, a path or a command line.
Where two types differ in one point, a comment has the reason. Messages use `meaning`, else they show the pattern.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias
from urllib.parse import unquote

from packaging.version import Version

from imagegen.core.text import cut, redact, unprintable

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
from imagegen.core.validation import Check, ValueRange, string

# Compressions of the layers of published images; digests in locks are of zstd.
Compression: TypeAlias = Literal["zstd", "gzip"]

RESERVED_ENV = {"VIRTUAL_ENV"}  # the image's layout decides it
# Lists of directories. The values of an image, its stacks and its base are joined, in this order.
SEARCH_PATHS = {"LD_LIBRARY_PATH", "LIBRARY_PATH", "PATH"}
# Variables that the machine of a source build decides, so that no recipe can: parallelism and directories.
BUILD_ENV = {
    *("CMAKE_BUILD_PARALLEL_LEVEL", "MAKEFLAGS", "MAX_JOBS", "NINJAFLAGS", "NVCC_THREADS"),
    *("CUDA_HOME", "HOME", "LANG", "PATH", "PYTHONPATH", "SOURCE_DATE_EPOCH", "TMPDIR"),
}
LONGEST_REQUIREMENT = 2000  # characters
_SHOWN = 200  # characters of a requirement that an error repeats


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
Text = Annotated[str, ValueRange(min_length=1, max_length=1000), Check(_text)]
Line = Annotated[str, ValueRange(), Check(_line)]

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
Condition = Annotated[str, ValueRange(max_length=200), Check(_text)]
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
Number = Annotated[int, ValueRange()]
Flag = Annotated[bool, ValueRange()]
Size = Annotated[int, ValueRange(ge=0, lt=1 << 50)]  # bytes

# Python packages: PEP 503 (names), PEP 440 (versions), PEP 508 (requirements), PEP 427 and 625 (file names).
Distribution = Annotated[str, string(r"[a-z0-9]+(?:-[a-z0-9]+)*", meaning="a normalised package name (PEP 503)")]
PackageVersion = Annotated[str, ValueRange(), Check(_version)]
CanonicalVersion = Annotated[str, ValueRange(max_length=60), Check(_canonical_version)]
LocalLabel = Annotated[str, string(r"[a-z0-9]+(?:\.[a-z0-9]+)*", 40)]
Specifier = Annotated[str, ValueRange(max_length=200), Check(_specifier)]
RequirementText = Annotated[str, ValueRange(), Check(_requirement)]
ExactPin = Annotated[str, ValueRange(), Check(_exact_pin)]
Module = Annotated[str, string(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")]
FileName = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", 250, meaning="a file name")]  # file systems: 255
SdistName = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.tar\.gz", 200)]
WheelName = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl", 300)]

# PythonVersion may be the minor version if no package says more.
Minor = Annotated[str, string(r"[0-9]+\.[0-9]+")]
NodeVersion = Annotated[str, string(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}")]  # of a version node: 3.4.30 of GLIBCXX_3.4.30
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
EnvValue = Annotated[str, ValueRange(max_length=1000), Check(_env_value)]
BuildEnvName = Annotated[str, string(r"[A-Za-z_][A-Za-z0-9_]*"), Check(_build_env_name)]
Variable = Annotated[
    str, string(r"[A-Za-z_][A-Za-z0-9_.-]*=(?s:.*)", None, meaning="a variable (NAME=value)"), Check(_line)
]

# Fields of an image's config (OCI image-spec v1.1, config.md). A user by number: programs need no entry in /etc/passwd.
Argument = Annotated[str, ValueRange(min_length=1, max_length=1000), Check(_line)]
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
CopiedPath = Annotated[str, ValueRange(), Check(_copied)]
PathGlob = Annotated[str, string(r"(?:\*/|/)(?:[A-Za-z0-9_.+*/-]|\[!?[A-Za-z0-9_.-]+\])*(?:[A-Za-z0-9_.+*-]|\])", 200)]
UrlPath = Annotated[str, ValueRange(), Check(url_path)]

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
    str, string(rf"{HOST}/[A-Za-z0-9._~%!$&'()+,;=@/-]+", None, meaning=HTTPS), Check(_url_with_plain_path)
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
    str, string(HOST + r"(?:/[A-Za-z0-9._~+-]+)+", 300, meaning=f"{HTTPS}, as in https://github.com/acme/rewards.git")
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


def minor(version: str) -> str:
    """Return the version within which torch keeps its C++ ABI: "2.8" of "2.8.0+cu128"."""
    major, second = (*Version(version).release, 0)[:2]
    return f"{major}.{second}"
