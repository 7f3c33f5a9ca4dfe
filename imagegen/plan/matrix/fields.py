"""The kinds of text that a matrix may hold, each with what it must look like.

Every string that can reach a Dockerfile, an image config or a file name is held to a pattern here, so that nothing in
a matrix can inject an instruction.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated, Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, StringConstraints

from imagegen.core.text import unprintable
from imagegen.plan.matrix.metadata import requirement

# What a rule may name besides components and env.NAME: the first by name, the others by a version or a range.
NAMED = ("base", "platform")
VERSIONED = ("cuda", "driver", "glibc", "gpu", "python")
SURROUNDINGS = (*NAMED, *VERSIONED)
ENV = "env."  # begins the name of an environment variable in a rule
NO_CUDA = "cpu"  # the cuda axis's value for stacks without it
RESERVED_ENV = {"PATH", "VIRTUAL_ENV"}  # the image's layout decides these
# What whoever runs a build says, so that no recipe can: how much at a time, and where things are.
BUILD_ENV = {
    *("CMAKE_BUILD_PARALLEL_LEVEL", "MAKEFLAGS", "MAX_JOBS", "NINJAFLAGS", "NVCC_THREADS"),
    *("CUDA_HOME", "HOME", "LANG", "PYTHONPATH", "SOURCE_DATE_EPOCH", "TMPDIR"),
}


def is_surrounding(name: str) -> bool:
    """Whether a rule that says `name` means something besides components."""
    return name in SURROUNDINGS or name.startswith(ENV)


def _one_line(text: str) -> str:
    if unprintable(text):
        raise ValueError("must be one line without control characters; in YAML, write long text as a folded block (>-)")
    if text != text.strip():
        raise ValueError("must not begin or end with white space")
    return text


def _env_value(value: str) -> str:
    if unprintable(value):
        raise ValueError("must not contain line breaks or control characters")
    if found := sorted({c for c in value if c in '$"\\`'}):
        raise ValueError(f"must not contain {' '.join(found)}: a Dockerfile would expand it, an image config would not")
    return value


def _env_name(name: str) -> str:
    if name in RESERVED_ENV:
        raise ValueError(f"{name} is set by the image's own layout")
    return name


def _build_env_name(name: str) -> str:
    if name in BUILD_ENV:
        raise ValueError(
            f"{name} is for whoever runs the build to say: it depends on the machine, and never on the cell"
        )
    return _env_name(name)


def specifier_set(text: str) -> SpecifierSet:
    """Parse a PEP 440 specifier. ValueError when it is malformed, can match nothing, or compares raw strings (===)."""
    try:
        specifier = SpecifierSet(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is not a PEP 440 version specifier, such as "==2.13.0" or ">=5.9,<5.11"') from error
    if any(each.operator == "===" for each in specifier):
        raise ValueError("=== compares text, not versions: use ==")
    if specifier.is_unsatisfiable():
        raise ValueError(f'no version satisfies "{text}"')
    return specifier


def _specifier(text: str) -> str:
    specifier_set(text)
    return text


def condition_error(name: str, text: str) -> str | None:
    """What is wrong with one side of a rule: versions, a component's local version label, or a variable's glob."""
    if name.startswith(ENV) or (name == "cuda" and text == NO_CUDA):
        return None
    for part in condition_parts(text):
        if part.startswith("+"):
            if name in SURROUNDINGS or not re.fullmatch(r"\+[a-z0-9.*?]*", part):
                return f'"{part}" is not a local version label of a component'
            continue
        try:
            specifier_set(part)
        except ValueError as error:
            return str(error)
    return None


def condition_parts(text: str) -> tuple[str, ...]:
    """The parts of a condition, all of which must hold: a specifier, "+" and a glob over the label, or both.

    "+cpu" is that label, "+*torch2.8*" one like it, "+?*" any, and "+" alone is none: the version has no label.
    """
    specifier, both, label = text.partition(" +")
    return (specifier, f"+{label}") if both else (text,)


def _version(text: str) -> str:
    try:
        Version(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is not a PEP 440 version') from error
    return text


def _pep508(text: str) -> str:
    if requirement(text).url:
        raise ValueError("a requirement by URL is not allowed here")
    return text


def _exact_pin(text: str) -> str:
    specifiers = list(requirement(_pep508(text)).specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or specifiers[0].version.endswith(".*"):
        raise ValueError(f'"{text}" is not an exact pin, such as "setuptools==84.2.1"')
    return text


def _canonical_version(text: str) -> str:
    if str(Version(_version(text))) != text:
        raise ValueError(f'write the normalised version "{Version(text)}"')
    return text


def _distribution(name: str) -> str:
    if name != canonicalize_name(name):
        raise ValueError(f'write the normalised name "{canonicalize_name(name)}"')
    return name


def _date(text: str) -> str:
    try:
        dt.date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is not a date such as "2026-11-20"') from error
    return text


MEANINGS: dict[str, str] = {}  # pattern, as `string` anchors it -> what messages say in its place


def string(pattern: str, maximum: int = 100, *, meaning: str = "") -> Any:
    """The constraint of a text that `pattern` matches whole; `meaning`, a noun phrase, replaces it in messages."""
    whole = f"^(?:{pattern})$"
    if meaning:
        MEANINGS[whole] = meaning
    return StringConstraints(pattern=whole, min_length=1, max_length=maximum)


Name = Annotated[str, string(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", 60)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_one_line)]
Specifier = Annotated[str, StringConstraints(max_length=200), AfterValidator(_specifier)]
Distribution = Annotated[str, string(r"[a-z0-9]+(?:-[a-z0-9]+)*"), AfterValidator(_distribution)]
Module = Annotated[str, string(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")]
LocalLabel = Annotated[str, string(r"[a-z0-9]+(?:\.[a-z0-9]+)*", 40)]
AxisValue = Annotated[str, string(r"[a-z0-9]+(?:[./-][a-z0-9]+)*", 40)]
Minor = Annotated[str, string(r"[0-9]+\.[0-9]+")]
PythonVersion = Annotated[str, string(r"3\.[0-9]{1,2}\.[0-9]{1,2}", meaning="a release of Python, as in 3.12.14")]
AbsolutePath = Annotated[str, string(r"(?:/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)+", 200)]
DebianPackage = Annotated[str, string(r"[a-z0-9][a-z0-9+.-]+")]
EnvName = Annotated[str, string(r"[A-Za-z_][A-Za-z0-9_]*"), AfterValidator(_env_name)]
EnvValue = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_env_value)]
# No credentials, and nothing that a shell or a Dockerfile could read as more than an address.
Url = Annotated[
    str,
    string(
        r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[A-Za-z0-9._~+%-]+)*/?",
        300,
        meaning="an http or https address without user, password or query, as in https://packages.example.com/simple",
    ),
]
PathGlob = Annotated[str, string(r"(?:\*/|/)[A-Za-z0-9_.+*/-]*[A-Za-z0-9_.+*-]", 200)]
Date = Annotated[str, string(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), AfterValidator(_date)]
# A component's version range, or its local version label, or both (condition_parts); or a surrounding's value.
Condition = Annotated[str, StringConstraints(max_length=200), AfterValidator(_one_line)]
# A surrounding, a component, or env.NAME: what a rule may speak of.
Subject = Annotated[str, string(r"[a-z0-9]+(?:[.-][a-z0-9]+)*|env\.[A-Za-z_][A-Za-z0-9_]*", 100)]
Capability = Annotated[str, string(r"[1-9][0-9]?\.[0-9]")]
Alias = Annotated[str, string(r"[A-Za-z0-9]+(?:[ ._-][A-Za-z0-9]+)*", 60)]
# Plain HTTP is for a server on this machine.
HTTPS = "an https address (http for 127.0.0.1 alone) without user, password or query"
GitUrl = Annotated[
    str,
    string(
        r"(?:https://[A-Za-z0-9.-]+|http://127\.0\.0\.1)(?::[0-9]+)?(?:/[A-Za-z0-9._~+-]+)+",
        300,
        meaning=f"{HTTPS}, as in https://github.com/acme/rewards.git",
    ),
]
GitObject = Annotated[str, string(r"[0-9a-f]{40}")]
# registry host[:port] / path : tag; the digest is the lock's to say
ImageReference = Annotated[
    str,
    string(
        r"[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)+:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", 300
    ),
]
GpuName = Annotated[str, string(r"sm_[1-9][0-9]{1,2}")]
GitRef = Annotated[str, string(r"[A-Za-z0-9]+(?:[._/-][A-Za-z0-9]+)*")]
Sha256 = Annotated[str, string(r"[0-9a-f]{64}")]
# Percent-encoded, as of a release: "20260814/cpython-3.12.14%2B20260814-x86_64-unknown-linux-gnu-....tar.gz"
ReleaseFile = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9](?:[A-Za-z0-9._+-]|%2B)*\.tar\.gz", 200)]
GitName = Annotated[str, string(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*", 60)]
VersionText = Annotated[str, AfterValidator(_version)]
Release = Annotated[str, StringConstraints(max_length=60), AfterValidator(_canonical_version)]
RequirementText = Annotated[str, AfterValidator(_pep508)]
ExactPin = Annotated[str, AfterValidator(_exact_pin)]
BuildEnvName = Annotated[str, string(r"[A-Za-z_][A-Za-z0-9_]*"), AfterValidator(_build_env_name)]
SdistName = Annotated[str, string(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.tar\.gz", 200)]
# Numbers are text here: YAML's own have too many spellings.
Count = Annotated[str, string(r"[1-9][0-9]{0,9}")]
Seconds = Annotated[str, string(r"[0-9]{1,6}(?:\.[0-9]{1,3})?")]
Gigabytes = Annotated[str, string(r"[0-9]{1,3}(?:\.[0-9]{1,3})? GB")]
PathBelow = Annotated[str, string(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)*", 200)]
RelativePath = Annotated[str, string(r"(?:\.\./)*[A-Za-z0-9_][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)*", 300)]
