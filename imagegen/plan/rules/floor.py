"""The minimum version of an open fact that the rules allow: the oldest driver that a stack works with."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.core.gpu import Gpu
from imagegen.plan.matrix.rule import Rule
from imagegen.plan.rules.clauses import Literal
from imagegen.plan.rules.evaluate import forced
from imagegen.plan.rules.facts import Facts, on_each

_BOUNDS = {">=", ">", "==", "~="}


def floor(rules: Iterable[Rule], facts: Facts, name: str, gpus: Iterable[Gpu] = ()) -> str | None:
    """Return the highest lower bound that binding rules put on `name`, as the rule writes it; None without one.

    A rule counts when the facts decide everything else in it: then its bound on `name` must hold. Of several GPUs, the
    one with the lowest bound decides: below that, the stack works on none.
    """
    binding = sorted((rule for rule in rules if rule.binding), key=lambda rule: rule.id)
    each = [_highest(forced(binding, one, lambda about: about == name)) for one in on_each(gpus, facts)]
    known = [bound for bound in each if bound is not None]
    return min(known, key=Version) if len(known) == len(each) else None


def _highest(literals: Iterable[Literal]) -> str | None:
    bounds = {
        each.version
        for literal in literals
        for each in SpecifierSet(literal.specifier or "")
        if each.operator in _BOUNDS
    }
    return max(bounds, key=lambda bound: (Version(bound), bound), default=None)
