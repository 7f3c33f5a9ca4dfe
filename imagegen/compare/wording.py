"""Describe a difference in sentences, for a changelog and a pull request. Pure.

A sentence has no capital and no full stop, so that several fit into one line: "; ".join(sentences(difference)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from imagegen.compare.difference import Change, Difference, Pull, Rebuild, rank
from imagegen.core.text import counted
from imagegen.wheels.throttle import CORES, duration

_MAX_NAMED = 3  # changes of a kind that are named; more are counted


def sentences(difference: Difference) -> list[str]:
    """Describe the changes with their reasons, the wheels to compile, the host's requirements, and the pull size."""
    if difference.empty:
        digests = (difference.before.digest, difference.after.digest)
        same = None in digests or digests[0] == digests[1]
        return ["nothing changed" if same else "packages and layers are the same, only labels differ"]
    pull = difference.pull
    changes = [
        *_packages(difference),
        *(_rebuild(rebuild) for rebuild in difference.rebuilds),
        *_changes(
            "environment",
            [replace(environment, name=f"environment {environment.name}") for environment in difference.environments],
        ),
        *_changes("Debian package", difference.debs),
        *_changes(
            "override",
            [replace(override, name=f"the override of {override.name}") for override in difference.overrides],
        ),
        *_surroundings(difference),
        *_changes("config field", difference.config),
        *_changes("copied file", difference.files),
    ]
    if not changes and pull:
        changes = ["the same packages are in other layers"]
    return [*changes, _to_pull(pull) if pull else "the bytes to pull are not known"]


def arrow(change: Change) -> str:
    """Describe a change, as vllm 0.31.0 -> 0.32.0."""
    if change.before is None:
        return f"{change.name} {change.after} is new"
    if change.after is None:
        return f"{change.name} {change.before} is gone"
    if change.before == change.after:
        return f"{change.name} {change.after}{f': {change.cause}' if change.cause else ' has another file'}"
    if change.back:
        return f"{change.name} goes back from {change.before} to {change.after}"
    return f"{change.name} {change.before} -> {change.after}"


def amount(size: int) -> str:
    """Return bytes in two or three digits, as 640 MB or 1.2 GB."""
    if size < 1000:
        return counted(size, "byte")
    number, unit = size / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if number >= 999.5:
            number, unit = number / 1000, larger
    return f"{number:.1f} {unit}" if number < 9.95 and unit != "kB" else f"{number:.0f} {unit}"


def _packages(difference: Difference) -> Iterator[str]:
    """Yield the changes of chosen packages with the changes that they cause, and the number of other changes."""
    rebuilt = {rebuild.name for rebuild in difference.rebuilds}
    changes = {
        component.name: component
        for component in (*difference.components, *difference.packages)
        if component.before != component.after or component.name not in rebuilt
    }
    chosen = {component.name for component in difference.components}
    roots: dict[str, list[Change]] = {}
    for name in sorted(changes, key=lambda name: (name not in chosen, rank(name))):
        roots.setdefault(_root(name, changes), []).append(changes[name])
    others: list[Change] = []
    for name in sorted(roots, key=lambda name: (name not in chosen, rank(name))):
        caused = [change for change in roots[name] if change.name != name]
        shown = [change for change in caused if change.name in chosen]
        if name in chosen or shown:
            hidden = [change for change in caused if change.name not in chosen]
            yield arrow(changes[name]) + _consequences(changes[name], shown, hidden)
        else:
            others += roots[name]
    noun = "other package" if roots.keys() & chosen else "package"
    yield from _changes(noun, sorted(others, key=lambda other: other.name))


def _root(name: str, changes: dict[str, Change]) -> str:
    """Return the root cause, which is an ancestor without a cause, or a member of a root cycle."""
    roots = [
        cause
        for cause in _causes(name, changes)
        if all(cause in _causes(earlier, changes) for earlier in _causes(cause, changes))
    ]
    return min(roots, key=rank)


def _causes(name: str, changes: dict[str, Change]) -> set[str]:
    """Return the names of the change and of all changes that lead to it."""
    names, pending = {name}, [name]
    while pending:
        new_names = {cause for cause in changes[pending.pop()].by if cause in changes} - names
        names |= new_names
        pending += new_names
    return names


def _consequences(root: Change, shown: Sequence[Change], hidden: Sequence[Change]) -> str:
    new_count = sum(change.after is not None for change in hidden)
    new = _with_count([_short(change) for change in shown if change.after], new_count)
    removed = _with_count([change.name for change in shown if not change.after], len(hidden) - new_count)
    words = [f"{verb} {_listed(names)}" for verb, names in (("brings", new), ("drops", removed)) if names]
    moves = root.before is not None and root.after is not None and not root.back
    return f"{'' if moves else ' and'} {', and '.join(words)}" if words else ""


def _with_count(names: list[str], count: int) -> list[str]:
    return names + ([f"{count} more" if names else counted(count, "package")] if count else [])


def _short(change: Change) -> str:
    version = f"{change.name} {change.after}"
    return f"{version} (before {change.before})" if change.back else version


def _changes(noun: str, changes: Sequence[Change]) -> Iterator[str]:
    """Yield a few changes by name, or the number of many changes."""
    if 0 < len(changes) <= _MAX_NAMED:
        yield from map(arrow, changes)
    elif changes:
        back = [change for change in changes if change.back]
        kinds: tuple[tuple[str, Callable[[Change], bool]], ...] = (
            ("new", lambda item: item.before is None),
            ("gone", lambda item: item.after is None),
        )
        counts = [f"{n} {word}" for word, is_kind in kinds if (n := sum(map(is_kind, changes)))]
        inside = f" ({', '.join(counts)})" if counts else ""
        predicate = next((f"are {word}" for word, is_kind in kinds if all(map(is_kind, changes))), f"change{inside}")
        yield f"{counted(len(changes), noun)} {predicate}"
        yield from map(arrow, back)


def _rebuild(rebuild: Rebuild) -> str:
    if rebuild.kept:
        return f"{rebuild.name} is another build, which is already compiled"
    must = f"{rebuild.name} must be {'rebuilt' if rebuild.again else 'compiled'}"
    if rebuild.seconds is None:
        return f"{must}, which takes an unmeasured time"
    return f"{must}, about {duration(rebuild.seconds)} on {CORES} cores"


def _surroundings(difference: Difference) -> Iterator[str]:
    for change in (*difference.axes, *filter(None, (difference.base, difference.interpreter))):
        yield arrow(change)
    if gpus := difference.capabilities:
        yield f"it is for GPUs of {gpus.after or 'no kind'}, before for {gpus.before or 'none'}"
    if driver := difference.driver:
        minimum = f"the driver must be {driver.after} or newer" if driver.after else "no driver is required any more"
        yield minimum + (f", before {driver.before}" if driver.before else "")
    if difference.env:
        names = [variable.name for variable in difference.env]
        remainder = [f"{len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
        yield f"its environment changes in {_listed([*names[:_MAX_NAMED], *remainder])}"


def _to_pull(pull: Pull) -> str:
    if not pull.size and not pull.unknown:
        return "nothing to pull"
    size = f"{'' if pull.exact else 'about '}{amount(pull.size)} to pull"
    if not pull.unknown:
        return size
    unknown = f"{_listed(pull.unknown)}, of unknown size"
    return f"{size}, and {unknown}" if pull.size else f"{unknown}, to pull"


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
