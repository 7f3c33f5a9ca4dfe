"""Conditions of statements: comparisons of installed versions, kept as data, and tests of the operating system."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from imagegen.audit.api.source import dotted, texts

PYTHON = "python"  # the name of the interpreter in tests of versions


def _is_of_major(installed: Version, version: Version) -> bool:
    return installed.major == version.major


COMPARISONS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_OPERATORS: dict[str, Callable[[Version, Version], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "major": _is_of_major,
    "not major": lambda installed, version: not _is_of_major(installed, version),
}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_OPPOSITE |= {"major": "not major", "not major": "major"}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
PARSERS = {"Version", "parse", "LooseVersion", "StrictVersion", "parse_version"}
# Functions of accelerate, transformers, peft, diffusers and others that compare an installed release.
_ASKED_COMPARISONS = {"greater_or_equal": ">=", "less_or_equal": "<="}
_ASKED = re.compile(rf"is_(?P<name>\w+?)_(?P<function>version|{'|'.join(_ASKED_COMPARISONS)})")
# Functions that raise ImportError if their first argument, a requirement of PEP 508, is not satisfied.
REQUIRING = {"require_version", "require_version_core"}


class VersionTest(NamedTuple):
    """A comparison of an installed release: of a distribution, of a top-level module's, or of `PYTHON`."""

    name: str  # "torch"; "scikit-learn", or "sklearn" as the module is called
    comparison: str  # "<"; "major" for the same first number
    version: str

    def holds(self, installed: Version) -> bool:
        return _OPERATORS[self.comparison](installed, Version(self.version))

    def opposite(self) -> VersionTest:
        return self._replace(comparison=_OPPOSITE[self.comparison])


Tests = tuple[VersionTest, ...]
Decision = bool | Tests | None  # None if the source does not decide it


def opposite(decision: Decision) -> Decision:
    """Return the opposite of a decision; None for several tests, of which one must fail."""
    if isinstance(decision, tuple):
        return (decision[0].opposite(),) if len(decision) == 1 else None
    return None if decision is None else not decision


def all_of(decisions: Iterable[Decision]) -> Decision:
    tests: list[VersionTest] = []
    unknown = False
    for decision in decisions:
        if decision is False:
            return False
        if decision is None:
            unknown = True
        elif isinstance(decision, tuple):
            tests += decision
    return None if unknown else tuple(tests) or True


def of_platform(test: ast.expr) -> bool | None:
    """Return whether a constant or a test of the operating system holds on Linux; None for any other test."""
    match test:
        case ast.Constant(value=bool(value)):
            return value
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=str(system))]):
            subject = ".".join(dotted(left.func if isinstance(left, ast.Call) else left) or [])
            linux = {"sys.platform": "linux", "os.name": "posix", "platform.system": "Linux"}.get(subject)
            return None if linux is None else system == linux
        case ast.Call(func=function, args=[ast.Constant(value=str(system))]):
            return "linux".startswith(system) if dotted(function) == ["sys", "platform", "startswith"] else None
        case _:
            return None


def asked_version(call: ast.Call) -> VersionTest | None:
    """Return the test that a function of a usual name makes: `is_torch_version("<", "2.1")`, as in accelerate."""
    called = (dotted(call.func) or [""])[-1]
    match (_ASKED.fullmatch(called), texts(call.args)):
        case (re.Match() as asked, [comparison, version]) if asked["function"] == "version":
            name = asked["name"]
        case (re.Match() as asked, [version]) if asked["function"] in _ASKED_COMPARISONS:
            name, comparison = asked["name"], _ASKED_COMPARISONS[asked["function"]]
        case (_, [name, comparison, version]) if called == "compare_versions":
            pass
        case _:
            return None
    return (
        VersionTest(name.replace("_", "-"), comparison, version)
        if comparison in _OPPOSITE and is_version(version)
        else None
    )


def required_tests(text: str) -> list[VersionTest]:
    """Return the tests of a requirement, each of which must hold."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return []
    specifiers = [specifier for specifier in requirement.specifier if specifier.operator in _OPPOSITE]
    return [VersionTest(requirement.name, specifier.operator, specifier.version) for specifier in specifiers]


def is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
