"""A difference as sentences, for a changelog and a pull request. Pure; the same difference gives the same sentences.

A sentence has no capital and no full stop, so that several make one line: "; ".join(sentences(difference)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from imagegen.core.text import counted
from imagegen.supply.compare.difference import CORES, Change, Difference, Pull, Rebuild, rank
from imagegen.wheels.throttle import duration

_NAMED = 3  # of what people do not choose, before the rest is counted


def sentences(difference: Difference) -> list[str]:
    """Return sentences: what changes and why, what must be compiled, what a host needs, and what there is to pull."""
    if difference.empty:
        digests = (difference.before.digest, difference.after.digest)
        same = None in digests or digests[0] == digests[1]
        return ["nothing changed" if same else "packages and layers are the same, labels alone differ"]
    pull = difference.pull
    changes = [
        *_packages(difference),
        *(_rebuild(each) for each in difference.rebuilds),
        *_rest("Debian package", difference.debs),
        *_surroundings(difference),
    ]
    if not changes and pull:
        changes = ["the same packages in other layers"]
    return [*changes, _to_pull(pull) if pull else "what there is to pull is not known"]


def arrow(change: Change) -> str:
    """Vllm 0.31.0 -> 0.32.0, and as much for what comes, goes, or goes back."""
    if change.before is None:
        return f"{change.name} {change.after} is new"
    if change.after is None:
        return f"{change.name} {change.before} is gone"
    if change.before == change.after:
        return f"{change.name} {change.after} comes as another file"
    if change.back:
        return f"{change.name} goes back from {change.before} to {change.after}"
    return f"{change.name} {change.before} -> {change.after}"


def amount(size: int) -> str:
    """Bytes as exact as people want them: 640 MB, 1.2 GB."""
    if size < 1000:
        return counted(size, "byte")
    number, unit = size / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if number >= 999.5:
            number, unit = number / 1000, larger
    return f"{number:.1f} {unit}" if number < 9.95 and unit != "kB" else f"{number:.0f} {unit}"


def _packages(difference: Difference) -> Iterator[str]:
    """Yield the changes of chosen packages with their consequences, and the number of the other changes."""
    rebuilt = {each.name for each in difference.rebuilds}
    changes = {
        each.name: each
        for each in (*difference.components, *difference.packages)
        if each.before != each.after or each.name not in rebuilt
    }
    chosen = {each.name for each in difference.components}
    roots: dict[str, list[Change]] = {}
    for name in sorted(changes, key=lambda name: (name not in chosen, rank(name))):
        roots.setdefault(_root(name, changes), []).append(changes[name])
    aside: list[Change] = []
    for name in sorted(roots, key=lambda name: (name not in chosen, rank(name))):
        brought = [each for each in roots[name] if each.name != name]
        shown = [each for each in brought if each.name in chosen]
        if name in chosen or shown:
            others = [each for each in brought if each.name not in chosen]
            yield arrow(changes[name]) + _brings(changes[name], shown, others)
        else:
            aside += roots[name]
    yield from _rest("other package" if roots.keys() & chosen else "package", sorted(aside, key=lambda each: each.name))


def _root(name: str, changes: dict[str, Change]) -> str:
    """Return the root cause: an ancestor with no cause of its own, or a member of a root cycle."""
    before = _followed(name, changes)
    first = [each for each in before if all(each in _followed(other, changes) for other in _followed(each, changes))]
    return min(first, key=rank)


def _followed(name: str, changes: dict[str, Change]) -> set[str]:
    """The change itself and all that lead to it."""
    found, left = {name}, [name]
    while left:
        more = {each for each in changes[left.pop()].by if each in changes} - found
        found |= more
        left += more
    return found


def _brings(root: Change, shown: Sequence[Change], others: Sequence[Change]) -> str:
    came = _with_rest([_short(each) for each in shown if each.after], sum(each.after is not None for each in others))
    went = _with_rest([each.name for each in shown if not each.after], sum(each.after is None for each in others))
    words = [f"{verb} {_listed(names)}" for verb, names in (("brings", came), ("drops", went)) if names]
    moves = root.before is not None and root.after is not None and not root.back
    return f"{'' if moves else ' and'} {', and '.join(words)}" if words else ""


def _with_rest(names: list[str], rest: int) -> list[str]:
    return names + ([f"{rest} more" if names else counted(rest, "package")] if rest else [])


def _short(change: Change) -> str:
    version = f"{change.name} {change.after}"
    return f"{version} (before {change.before})" if change.back else version


def _rest(noun: str, changes: Sequence[Change]) -> Iterator[str]:
    """A few by name, many by their number."""
    if 0 < len(changes) <= _NAMED:
        yield from map(arrow, changes)
    elif changes:
        back = [each for each in changes if each.back]
        kinds: tuple[tuple[str, Callable[[Change], bool]], ...] = (
            ("new", lambda each: each.before is None),
            ("gone", lambda each: each.after is None),
        )
        counts = [f"{n} {word}" for word, holds in kinds if (n := sum(map(holds, changes)))]
        inside = f" ({', '.join(counts)})" if counts else ""
        whole = next((f"are {word}" for word, holds in kinds if all(map(holds, changes))), f"change{inside}")
        yield f"{counted(len(changes), noun)} {whole}"
        yield from map(arrow, back)


def _rebuild(each: Rebuild) -> str:
    if each.kept:
        return f"{each.name} is another build, which is here already"
    must = f"{each.name} must be {'rebuilt' if each.again else 'compiled'}"
    if each.seconds is None:
        return f"{must}, which takes an unmeasured time"
    return f"{must}, about {duration(each.seconds)} on {CORES} cores"


def _surroundings(difference: Difference) -> Iterator[str]:
    for change in (*difference.axes, *filter(None, (difference.base, difference.interpreter))):
        yield arrow(change)
    if gpus := difference.capabilities:
        yield f"it is for GPUs of {gpus.after or 'no kind'}, before for {gpus.before or 'none'}"
    if driver := difference.driver:
        floor = f"the driver must be {driver.after} or newer" if driver.after else "no driver is asked for any more"
        yield floor + (f", before {driver.before}" if driver.before else "")
    if difference.env:
        names = [each.name for each in difference.env]
        more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        yield f"its environment changes in {_listed([*names[:_NAMED], *more])}"


def _to_pull(pull: Pull) -> str:
    if not pull.size and not pull.unknown:
        return "nothing to pull"
    size = f"{'' if pull.exact else 'about '}{amount(pull.size)} to pull"
    if not pull.unknown:
        return size
    unknown = f"{_listed(pull.unknown)}, of a size that is not known yet"
    return f"{size}, and {unknown}" if pull.size else f"{unknown}, to pull"


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
