"""A compatibility rule and its conditions, a project's override, and the names that rules use besides packages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Literal

from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.matrix_entry import MatrixEntry
from imagegen.core.types import parse_specifier
from imagegen.core.validation import EMPTY, Part, doc, field_info

# Names that a rule may use besides components and env.NAME: NAMED by a name, VERSIONED by a version or a range.
NAMED = ("base", "platform")
BASE_LIBRARIES = ("glibc", "libstdcxx")  # of the base, with which they change
VERSIONED = ("cuda", "driver", "glibc", "gpu", "libstdcxx", "python")
SURROUNDINGS = (*NAMED, *VERSIONED)
ENV = "env."  # begins the name of an environment variable in a rule
NO_GLIBC = "0.0"  # the glibc of a system with musl
NO_CUDA = "cpu"  # the cuda axis's value for stacks without it


def is_surrounding(name: str) -> bool:
    """Return whether `name` in a rule is a surrounding or a variable, and not a component."""
    return name in SURROUNDINGS or name.startswith(ENV)


def condition_error(name: str, text: str) -> str | None:
    """Return the error in one condition of a rule: versions, a component's local version label, a variable's glob."""
    if name.startswith(ENV) or (name == "cuda" and text == NO_CUDA):
        return None
    for part in condition_parts(text):
        if part.startswith("+"):
            if name in SURROUNDINGS or not re.fullmatch(r"\+[a-z0-9.*?]*", part):
                return f'"{part}" is not a local version label of a component'
            continue
        try:
            parse_specifier(part)
        except ValueError as error:
            return str(error)
    return None


def condition_parts(text: str) -> tuple[str, ...]:
    """Return the parts of a condition, all of which must hold: a specifier, "+" and a glob over the label, or both.

    "+cpu" is that label, "+*torch2.8*" one like it, "+?*" any; "+" means that the version has no label.
    """
    specifier, both, label = text.partition(" +")
    return (specifier, f"+{label}") if both else (text,)


def cuda_version(label: str) -> str | None:
    """The CUDA version behind a label as wheels carry it: "13.0" for cu130, None for anything else."""
    match = re.fullmatch(r"cu([1-9][0-9])([0-9])", label)
    return f"{match[1]}.{match[2]}" if match else None


Kind = Literal["pip-refuses", "breaks", "degrades"]  # the effect on a combination that breaks a rule


@dataclass(frozen=True)
class Rule(MatrixEntry):
    """A compatibility fact: when all of `when` holds, so does all of `then`, or `conflict` does not, or `same` are."""

    # Keys are package names, surroundings (NAMED and VERSIONED) or env.NAME for a variable. Values are PEP 440
    # specifiers for packages and VERSIONED surroundings ("" is any version; gpu's is the compute capability, cuda's may
    # also be "cpu"), for packages also "+" and a glob over the local version label (condition_parts), a glob for
    # a variable's value (unset is the empty text), and plain text for NAMED surroundings. A package that is not
    # installed breaks no rule.

    REQUIRED = ("kind",)

    id: str
    when: Annotated[Mapping[t.Subject, t.Condition], field_info(min_length=1)]
    then: Annotated[Mapping[t.Subject, t.Condition], field_info(default={})]
    conflict: Annotated[Mapping[t.Subject, t.Condition], field_info(default={})]
    because: t.Text
    source: t.Text
    date: t.Date  # when the source was read or the measurement made
    severity: Literal["error", "warning"]
    evidence: Literal["measured", "documented", "remembered"]
    fix: t.Text
    same: Annotated[  # they share their public version, labels aside
        tuple[t.Name, ...], doc("Have the version of the one component in `when`.")
    ] = ()
    kind: Annotated[
        Kind,
        doc(
            "`pip-refuses`: a declared requirement, which an override ignores. `breaks`: it fails. "
            "`degrades`: it works with less speed or exactness."
        ),
    ] = "breaks"
    message: Annotated[t.Text, doc("The error that users see, if it is known.")] = ""
    direct: Annotated[t.Flag, doc("Only warns if its packages come as requirements of others, not by name.")] = False
    unless: Annotated[
        Mapping[t.Name, t.Specifier],
        doc("Components -> releases that repair it: if one is installed, the rule does not count.", **EMPTY),
    ] = field(default_factory=dict)
    warns_with: Annotated[
        Mapping[t.Name, t.Specifier],
        doc("Components -> releases that do not reach the fault: if one is installed, the rule only warns.", **EMPTY),
    ] = field(default_factory=dict)
    checked: Annotated[t.Date | None, doc("The day of the last confirmation, if later than `date`.")] = None

    def check(self) -> None:
        if [bool(self.then), bool(self.conflict), bool(self.same)].count(True) != 1:
            raise ValueError("a rule has either `then` or `conflict` or `same`")
        if both := sorted(set(self.when) & {*self.then, *self.conflict, *self.same, *self.unless}):
            raise ValueError(f"{', '.join(both)}: stands on both sides of the rule; a rule ties different things")
        if self.same and len(self.leaders) != 1:
            raise ValueError("with `same`, `when` names the one component whose version the others share")
        if self.checked and self.checked < self.date:
            raise ValueError("`checked` is before `date`: a rule is confirmed after its source was read")
        if self.kind == "degrades" and self.severity != "warning":
            raise ValueError("a rule of kind `degrades` has the severity `warning`")

    @property
    def last_checked(self) -> str:
        return self.checked or self.date

    @property
    def reason(self) -> str:
        """Return `because`, after the packages of the rule if it names none of them ("Its label says ...")."""
        text = self.because.casefold().replace("-", "")  # TransformerEngine is transformer-engine
        names_package = any(name.replace("-", "") in text for name in self.leaders)
        return self.because if names_package or not self.leaders else f"{', '.join(self.leaders)}: {self.because}"

    @property
    def binding(self) -> bool:
        """Return whether the rule can refuse a build: warnings and what is only remembered cannot."""
        return self.severity == "error" and self.evidence != "remembered"

    @property
    def names(self) -> frozenset[str]:
        """Every package and surrounding in the rule."""
        return frozenset({*self.when, *self.then, *self.conflict, *self.same, *self.unless})

    @cached_property  # every cell asks every rule
    def packages(self) -> frozenset[str]:
        """The names in the rule that are packages."""
        return frozenset(name for name in self.names if not is_surrounding(name))

    @property
    def leaders(self) -> tuple[str, ...]:
        """The packages in `when`; exactly one if the rule has `same`."""
        return tuple(name for name in self.when if not is_surrounding(name))


@dataclass(frozen=True)
class PinOverride(MatrixEntry):
    """A project that ships a combination in spite of a declared requirement."""

    name: str
    project: Annotated[t.Text, doc("The project and the release that was read.")]
    package: Annotated[t.Distribution, doc("Declares the requirement.")]
    releases: Annotated[t.Specifier, doc("Releases of `package`; without it, all.", default="")]
    requires: t.Distribution
    installs: Annotated[
        t.Specifier, doc("Versions of `requires` that the project installs; without it, any.", default="")
    ]
    how: t.Text
    source: t.Text
    date: t.Date


@dataclass(frozen=True)
class Override(Part):
    """A requirement that replaces all others of `package`; without a `specifier`, the image does not hold it."""

    package: t.Distribution
    specifier: t.Specifier | None = None  # "" is any version
    because: t.Line = field(kw_only=True)
    source: t.Line | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        if self.specifier is None:
            return f"without {self.package}"
        return f"{self.package}{self.specifier} whatever packages require"

    @property
    def reason(self) -> str:
        return f"{self.because} [{self.source}]" if self.source else self.because
