"""What users write under matrices/, as pydantic models: the validator and the editors' JSON schema come from one place.

Every string that can reach a Dockerfile, an image config or a file name is held to a pattern here, so that nothing in
a matrix can inject an instruction. Unknown keys are errors.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated, Any, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from imagegen.text import unprintable

SURROUNDINGS = ("base", "cuda", "glibc", "platform", "python")  # what a rule may name besides components
RESERVED_ENV = {"PATH", "VIRTUAL_ENV"}  # the image's layout decides these


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


def specifier_set(text: str) -> SpecifierSet:
    """Parse a PEP 440 specifier. ValueError when it is malformed, can match nothing, or compares raw strings (===)."""
    try:
        specifier = SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f'"{text}" is not a PEP 440 version specifier, such as "==2.13.0" or ">=5.9,<5.11"') from error
    if any(each.operator == "===" for each in specifier):
        raise ValueError("=== compares text, not versions: use ==")
    if specifier.is_unsatisfiable():
        raise ValueError(f'no version satisfies "{text}"')
    return specifier


def _specifier(text: str) -> str:
    specifier_set(text)
    return text


def condition_error(text: str, *, local: bool) -> str | None:
    """What is wrong with one side of a rule: a specifier, or "+label" where `local` version labels make sense."""
    if text.startswith("+"):
        label = re.fullmatch(r"\+[a-z0-9]+(?:\.[a-z0-9]+)*", text)
        return None if local and label else f'"{text}" is not a local version label of a component'
    try:
        specifier_set(text)
    except ValueError as error:
        return str(error)
    return None


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion as error:
        raise ValueError(f'"{text}" is not a PEP 440 version') from error
    return text


def _pep508(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f'"{text}" is not a PEP 508 requirement') from error
    if requirement.url:
        raise ValueError("a requirement by URL is not allowed here")
    return text


def _exact_pin(text: str) -> str:
    specifiers = list(Requirement(_pep508(text)).specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or specifiers[0].version.endswith(".*"):
        raise ValueError(f'"{text}" is not an exact pin, such as "setuptools==84.2.1"')
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


def _string(pattern: str, maximum: int = 100) -> Any:
    return StringConstraints(pattern=f"^(?:{pattern})$", min_length=1, max_length=maximum)


Name = Annotated[str, _string(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", 60)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_one_line)]
Specifier = Annotated[str, StringConstraints(max_length=200), AfterValidator(_specifier)]
Distribution = Annotated[str, _string(r"[a-z0-9]+(?:-[a-z0-9]+)*"), AfterValidator(_distribution)]
Module = Annotated[str, _string(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")]
LocalLabel = Annotated[str, _string(r"[a-z0-9]+(?:\.[a-z0-9]+)*", 40)]
AxisValue = Annotated[str, _string(r"[a-z0-9]+(?:[./-][a-z0-9]+)*", 40)]
Minor = Annotated[str, _string(r"[0-9]+\.[0-9]+")]
AbsolutePath = Annotated[str, _string(r"(?:/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)+", 200)]
DebianPackage = Annotated[str, _string(r"[a-z0-9][a-z0-9+.-]+")]
EnvName = Annotated[str, _string(r"[A-Za-z_][A-Za-z0-9_]*"), AfterValidator(_env_name)]
EnvValue = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_env_value)]
# No credentials, and nothing that a shell or a Dockerfile could read as more than an address.
Url = Annotated[str, _string(r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[A-Za-z0-9._~+%-]+)*/?", 300)]
PathGlob = Annotated[str, _string(r"(?:\*/|/)[A-Za-z0-9_.+*/-]*[A-Za-z0-9_.+*-]", 200)]
Date = Annotated[str, _string(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), AfterValidator(_date)]
# A component's version range; or "+cpu": its build for that local version label; or a surrounding's value.
Condition = Annotated[str, StringConstraints(max_length=200), AfterValidator(_one_line)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)  # MatrixFile builds them all


class _Entry(_Strict):
    override: bool = Field(default=False, description="Replaces the entry of this name from an earlier directory.")


class IndexEntry(_Entry):
    """A package index. Only `pypi` has no url: its address comes from the user's environment."""

    description: Text
    url: Url | None = None


class EnvEntry(_Strict):
    value: EnvValue
    because: Text


class BaseEntry(_Entry):
    """The operating-system layers under the stack."""

    description: Text
    kind: Literal["debian"]
    suite: Annotated[str, _string(r"[a-z][a-z0-9-]*")]
    python: Minor = Field(description="The Python that the base holds.")
    interpreter: AbsolutePath
    glibc: Minor = Field(description="Decides which manylinux wheels fit.")
    packages: dict[DebianPackage, Text] = Field(description="Package -> why it is in the base.")
    env: dict[EnvName, EnvEntry] = Field(default={}, description="Set in every image on this base.")


class AxisEntry(_Entry):
    """One dimension of the matrix."""

    description: Text
    values: Annotated[list[AxisValue], Field(min_length=1)]
    default: AxisValue

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.default not in self.values:
            raise ValueError(f'the default "{self.default}" is not among the values')
        if len(set(self.values)) < len(self.values):
            raise ValueError("a value is listed twice")
        return self


class SdistEntry(_Strict):
    """Static metadata of a release that has no wheel, so that resolving it runs none of its code."""

    version: Annotated[str, AfterValidator(_version)]
    requires: list[Annotated[str, AfterValidator(_pep508)]] = []
    build_requires: list[Annotated[str, AfterValidator(_exact_pin)]]


class ComponentEntry(_Entry):
    """Something with a version that the matrix chooses."""

    description: Text
    package: Distribution | None = Field(default=None, description="Name on the index, if not the entry's.")
    imports: list[Module] = Field(default=[], description="Modules that must import where this is installed.")
    index: dict[AxisValue, Name] = Field(default={}, description="Value of the cuda axis -> index alias.")
    local: dict[AxisValue, LocalLabel] = Field(default={}, description="Value of the cuda axis -> local version.")
    sdist: SdistEntry | None = None
    source: Text | None = Field(default=None, description="Where the facts in this entry come from.")


class ComponentUse(_Strict):
    version: Specifier = Field(default="", description="PEP 440; none: any version that resolves.")
    because: Text


class ImageEntry(_Entry):
    """A named member of the matrix, as the user types it."""

    description: Text
    purpose: Text
    base: Name
    axes: dict[Name, Annotated[list[AxisValue], Field(min_length=1)]] = Field(
        default={}, description="Axis -> the values that this image is made for; the axis's default alone if absent."
    )
    components: Annotated[dict[Name, ComponentUse], Field(min_length=1)]
    env: dict[EnvName, EnvEntry] = {}


class RuleEntry(_Entry):
    """A compatibility fact: when all of `when` holds, so does all of `then`, or `conflict` does not."""

    when: Annotated[dict[Name, Condition], Field(min_length=1)]
    then: dict[Name, Condition] = {}
    conflict: dict[Name, Condition] = {}
    because: Text
    source: Text
    date: Date
    severity: Literal["error", "warning"]
    evidence: Literal["measured", "documented", "remembered"]
    fix: Text

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if bool(self.then) == bool(self.conflict):
            raise ValueError("a rule has either `then` or `conflict`")
        if both := sorted(set(self.when) & set(self.then or self.conflict)):
            raise ValueError(f"{', '.join(both)}: stands on both sides of the rule; a rule ties different things")
        return self


class WinnerEntry(_Entry):
    """Of the files at `paths`, the winner's are installed; the packages in `over` leave theirs out."""

    winner: Distribution
    over: Annotated[list[Distribution], Field(min_length=1)]
    paths: PathGlob = Field(description="Glob over absolute paths in the image; * goes over slashes.")
    because: Text
    source: Text
    date: Date

    @model_validator(mode="after")
    def _not_over_itself(self) -> Self:
        if self.winner in self.over:
            raise ValueError(f"{self.winner} cannot win over itself")
        return self


class MisrecordedEntry(_Entry):
    """A wheel whose RECORD contradicts it, taken as it is: its sha256 is known, its files' hashes are its own."""

    file: Annotated[str, _string(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl", 300)]
    sha256: Annotated[str, _string(r"[0-9a-f]{64}")]
    because: Text
    source: Text
    date: Date


class MatrixFile(_Strict):
    """One YAML file of a matrix; each entry by name."""

    indexes: dict[Name, IndexEntry] = {}
    bases: dict[Name, BaseEntry] = {}
    axes: dict[Name, AxisEntry] = {}
    components: dict[Distribution, ComponentEntry] = {}
    images: dict[Name, ImageEntry] = {}
    rules: dict[Name, RuleEntry] = {}
    winners: dict[Name, WinnerEntry] = {}
    misrecorded: dict[Name, MisrecordedEntry] = {}


SECTIONS = tuple(MatrixFile.model_fields)


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a matrix file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **MatrixFile.model_json_schema()}
