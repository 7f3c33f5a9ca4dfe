"""Why a file that was made again differs: a function for each cause that is known, in the order of trying.

Source: what was measured to differ between two builds of one set (docs/explanation/determinism.md); PEP 552 for the
header of byte-code; PEP 376 and PEP 610 for what installers leave behind.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from imagegen.core.text import counted
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.plan.lock.model import LockedBuild, LockedWheel
from imagegen.supply.compare.contents import Pair
from imagegen.supply.compare.difference import CORES, Change, Difference, Pull, Rebuild, rank
from imagegen.wheels.throttle import duration

_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_LEFT = (".lock", *_INSTALLERS)
_STATE = ("/var/cache/", "/var/log/", "/var/lib/apt/", "/etc/ssh/ssh_host_", "/etc/machine-id", "/var/lib/dpkg/")
_FLAGS = {0: "by time", 1: "unchecked, by hash", 3: "checked, by hash"}


@dataclass(frozen=True)
class Clue:
    """The first file that differs; `packages` are those of its layer, `layer_format` is the one that was recorded."""

    layer: str
    pair: Pair
    layer_format: int | None
    packages: Sequence[LockedWheel | LockedBuild] = ()


def likely_cause(clue: Clue) -> str:
    """The cause in words."""
    return next(filter(None, (cause(clue) for cause in _CAUSES)), "nothing that is known explains it")


def _format(clue: Clue) -> str | None:
    if clue.layer_format in (None, LAYER_FORMAT):
        return None
    return f"the layer was written in format {clue.layer_format}, and this imagegen writes {LAYER_FORMAT}"


def _order(clue: Clue) -> str | None:
    return "the same files come in another order: another program wrote the layer" if clue.pair.order else None


def _one_sided(clue: Clue) -> str | None:
    pair = clue.pair
    if pair.there and pair.here:
        return None
    where = "only the published image has it" if pair.there else "only the image that was made again has it"
    name = posixpath.basename(pair.path)
    if name.startswith(".wh."):
        return f"{where}: it says that a command removed a file, and imagegen's layers remove none"
    if name.endswith(".pyc"):
        return f"{where}: byte-code that was written while something ran, or was left out"
    if name in _LEFT:
        return f"{where}: an installer leaves it behind, with its own time and paths"
    if _is_state(pair.path):
        return f"{where}: a program of the system writes it when it runs"
    return f"{where}: what the layer is made of holds another set of files"


def _times(clue: Clue) -> str | None:
    pair = clue.pair
    if not pair.there or not pair.here or pair.there.timeless() != pair.here.timeless():
        return None
    return f"times are not fixed: {pair.there.mtime:.0f} in the published layer, {pair.here.mtime:.0f} here"


def _owner(clue: Clue) -> str | None:
    if not {"uid", "gid", "names"} & set(clue.pair.fields) or "sha256" in clue.pair.fields:
        return None
    there, here = clue.pair.there, clue.pair.here
    return f"its owner is another: {there and (there.uid, there.gid)}, here {here and (here.uid, here.gid)}"


def _mode(clue: Clue) -> str | None:
    pair = clue.pair
    if "mode" not in pair.fields or "sha256" in pair.fields or not pair.there or not pair.here:
        return None
    return f"its mode is another, as under another umask: {pair.there.mode:04o}, here {pair.here.mode:04o}"


def _byte_code(clue: Clue) -> str | None:
    pair = clue.pair
    if not pair.path.endswith(".pyc") or not pair.there or not pair.here or "sha256" not in pair.fields:
        return None
    there, here = pair.there.head, pair.here.head
    if there[:4] != here[:4]:
        return "another version of Python compiled the byte-code"
    if there[4:8] != here[4:8]:
        kinds = [_FLAGS.get(int.from_bytes(head[4:8], "little"), "unknown") for head in (there, here)]
        return f"the byte-code is validated otherwise: {kinds[0]}, here {kinds[1]}"
    if there[8:16] != here[8:16]:
        return "the byte-code is of another source, or keeps its time"
    return "the byte-code was compiled in another order or under another path: compilers are not deterministic in that"


def _records(clue: Clue) -> str | None:
    name = posixpath.basename(clue.pair.path)
    if name not in _INSTALLERS or "sha256" not in clue.pair.fields:
        return None
    return f"{name} tells of the installation: another installer wrote it, or other files were installed"


def _state(clue: Clue) -> str | None:
    if not _is_state(clue.pair.path):
        return None
    return "the system's own caches and logs differ from run to run: the base was not made by imagegen's steps"


def _link(clue: Clue) -> str | None:
    if not {"kind", "target"} & set(clue.pair.fields):
        return None
    return "it is a link to elsewhere, or no link: another interpreter or another layout of the environment"


def _compiled(clue: Clue) -> str | None:
    if "sha256" not in clue.pair.fields:
        return None
    made = [
        package.name
        for package in clue.packages
        if isinstance(package, LockedBuild) or package.build or package.sdist is not None
    ]
    return f"{', '.join(made)} was built again, and the compiler or the backend wrote other bytes" if made else None


def _wheel(clue: Clue) -> str | None:
    if "sha256" not in clue.pair.fields:
        return None
    # Of several in one layer, the one whose directory it is in, where that has its name.
    parts = {part.partition("-")[0] for part in clue.pair.path.split("/")}
    own = [package for package in clue.packages if package.name.replace("-", "_") in parts] or clue.packages
    names = ", ".join(f"{each.name} {each.version}" for each in own) or "what the lock pins"
    return f"its bytes are not those of {names}: the published layer was made of something else, or changed"


def _is_state(path: str) -> bool:
    return f"/{path.lstrip('./')}".startswith(_STATE)


_CAUSES: tuple[Callable[[Clue], str | None], ...] = (
    *(_format, _order, _one_sided, _times, _owner, _mode, _byte_code, _records, _state, _link, _compiled, _wheel),
)


# A difference as sentences, for a changelog and a pull request. Pure; the same difference gives the same sentences.
#
# A sentence has no capital and no full stop, so that several make one line: "; ".join(sentences(difference)).

_NAMED = 3  # of what users do not choose, before the rest is counted


def sentences(difference: Difference) -> list[str]:
    """Return sentences: what changes and why, what must be compiled, what a host needs, and what there is to pull."""
    if difference.empty:
        digests = (difference.before.digest, difference.after.digest)
        same = None in digests or digests[0] == digests[1]
        return ["nothing changed" if same else "packages and layers are the same, labels alone differ"]
    pull = difference.pull
    changes = [
        *_packages(difference),
        *(_rebuild(rebuild) for rebuild in difference.rebuilds),
        *_rest(
            "environment",
            [replace(environment, name=f"environment {environment.name}") for environment in difference.environments],
        ),
        *_rest("Debian package", difference.debs),
        *_rest(
            "override",
            [replace(override, name=f"the override of {override.name}") for override in difference.overrides],
        ),
        *_surroundings(difference),
        *_rest("config field", difference.config),
        *_rest("copied file", difference.files),
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
        return f"{change.name} {change.after}{f': {change.cause}' if change.cause else ' comes as another file'}"
    if change.back:
        return f"{change.name} goes back from {change.before} to {change.after}"
    return f"{change.name} {change.before} -> {change.after}"


def amount(size: int) -> str:
    """Bytes as exact as users want them: 640 MB, 1.2 GB."""
    if size < 1000:
        return counted(size, "byte")
    number, unit = size / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if number >= 999.5:
            number, unit = number / 1000, larger
    return f"{number:.1f} {unit}" if number < 9.95 and unit != "kB" else f"{number:.0f} {unit}"


def _packages(difference: Difference) -> Iterator[str]:
    """Yield the changes of chosen packages with their consequences, and the number of the other changes."""
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
    aside: list[Change] = []
    for name in sorted(roots, key=lambda name: (name not in chosen, rank(name))):
        brought = [root for root in roots[name] if root.name != name]
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
    came = _with_rest([_short(each) for each in shown if each.after], sum(other.after is not None for other in others))
    went = _with_rest([each.name for each in shown if not each.after], sum(other.after is None for other in others))
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
        back = [change for change in changes if change.back]
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
        floor = f"the driver must be {driver.after} or newer" if driver.after else "no driver is required any more"
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
