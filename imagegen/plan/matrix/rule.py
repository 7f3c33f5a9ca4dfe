"""Rules as data, complete and frozen: names are resolved, the sense is left to imagegen.plan.rules and the layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from imagegen.plan.matrix.conditions import is_surrounding


@dataclass(frozen=True)
class Rule:
    """A rule: when all of `when` holds, so does all of `then`, or not all of `conflict` does, or all of `same` agree.

    Keys are package names, surroundings (conditions.NAMED and VERSIONED) or env.NAME for a variable. Values are PEP 440
    specifiers for packages and VERSIONED surroundings ("" is any version; gpu's is the compute capability, cuda's may
    also be "cpu"), for packages also "+" and a glob over the local version label (condition_parts), a glob for
    a variable's value (unset is the empty text), and plain text for NAMED surroundings. A package that is not
    installed breaks no rule.
    """

    id: str
    when: Mapping[str, str]
    then: Mapping[str, str]
    conflict: Mapping[str, str]
    because: str
    source: str
    date: str  # ISO 8601, when the source was read or the measurement made
    severity: Literal["error", "warning"]
    evidence: Literal["measured", "documented", "remembered"]
    fix: str
    same: tuple[str, ...] = ()  # packages that share their public version, labels aside, with the one in `when`

    @property
    def reason(self) -> str:
        """`because`, preceded by the packages of the rule if it names none of them ("Its label says ...")."""
        text = self.because.casefold().replace("-", "")  # TransformerEngine is transformer-engine
        named = any(name.replace("-", "") in text for name in self.leaders)
        return self.because if named or not self.leaders else f"{', '.join(self.leaders)}: {self.because}"

    @property
    def binding(self) -> bool:
        """Return whether the rule can refuse a build: warnings and what is only remembered cannot."""
        return self.severity == "error" and self.evidence != "remembered"

    @property
    def names(self) -> frozenset[str]:
        """Every package and surrounding in the rule."""
        return frozenset({*self.when, *self.then, *self.conflict, *self.same})

    @cached_property  # every cell asks every rule
    def packages(self) -> frozenset[str]:
        """The names in the rule that are packages."""
        return frozenset(name for name in self.names if not is_surrounding(name))

    @property
    def leaders(self) -> tuple[str, ...]:
        """The packages in `when`; where there is `same`, it is the one."""
        return tuple(name for name in self.when if not is_surrounding(name))


@dataclass(frozen=True)
class FileConflictRule:
    """A file-conflict override of the matrix: of equal paths in several distributions, the owner's are installed."""

    id: str
    owner: str  # normalised name of a distribution
    over: tuple[str, ...]  # those that leave these files out, sorted
    paths: str  # glob over absolute paths in the image; `*` goes over slashes
    because: str
    source: str
    date: str  # as in Rule
    versions: str = ""  # PEP 440 specifier: the owner's releases to which it applies; empty: all
