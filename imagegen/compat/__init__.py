"""Compatibility: rules and facts -> verdict (design, section 4.6)."""

from imagegen.compat.constraints import constraints
from imagegen.compat.evaluate import judge
from imagegen.compat.facts import Fact, Facts, facts_of_cell, facts_of_lock
from imagegen.compat.nearest import nearest
from imagegen.compat.verdict import Conflict, Verdict

__all__ = ["Conflict", "Fact", "Facts", "Verdict", "constraints", "facts_of_cell", "facts_of_lock", "judge", "nearest"]
