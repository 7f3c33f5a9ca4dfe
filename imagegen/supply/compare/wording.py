"""Find the likely cause why a rebuilt file differs, with a function for each known cause.

Sources: measured differences between two builds of a set (docs/explanation/determinism.md); PEP 552 for the header of
byte-code; PEP 376 and PEP 610 for files of installers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from imagegen.core.text import counted
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.plan.lock.model import LockedBuild, LockedWheel
from imagegen.supply.compare.contents import EntryDifference
from imagegen.supply.compare.difference import CORES, Change, Difference, Pull, Rebuild, rank
from imagegen.wheels.throttle import duration

_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_INSTALLER_FILES = (".lock", *_INSTALLERS)
_STATE = ("/var/cache/", "/var/log/", "/var/lib/apt/", "/etc/ssh/ssh_host_", "/etc/machine-id", "/var/lib/dpkg/")
_FLAGS = {0: "by time", 1: "unchecked, by hash", 3: "checked, by hash"}


@dataclass(frozen=True)
class Clue:
    """The first file that differs, with the packages of its layer and the recorded layer format."""

    layer: str
    entry: EntryDifference
    layer_format: int | None
    packages: Sequence[LockedWheel | LockedBuild] = ()


def likely_cause(clue: Clue) -> str:
    """Return the first cause that explains the difference."""
    return next(filter(None, (cause(clue) for cause in _CAUSES)), "no known cause explains it")


def _format(clue: Clue) -> str | None:
    if clue.layer_format in (None, LAYER_FORMAT):
        return None
    return f"the layer was written in format {clue.layer_format}, and this imagegen writes {LAYER_FORMAT}"


def _order(clue: Clue) -> str | None:
    return "another program wrote the layer, with the same files in another order" if clue.entry.order else None


def _one_sided(clue: Clue) -> str | None:
    entry = clue.entry
    if entry.published and entry.rebuilt:
        return None
    where = "only the published image has it" if entry.published else "only the rebuilt image has it"
    name = posixpath.basename(entry.path)
    if name.startswith(".wh."):
        return f"{where}: a command removed a file, and imagegen's layers remove no files"
    if name.endswith(".pyc"):
        return f"{where}: a program wrote byte-code when it ran, or byte-code was not compiled"
    if name in _INSTALLER_FILES:
        return f"{where}: an installer writes it, with the time and paths of the installation"
    if _is_state(entry.path):
        return f"{where}: a system program writes it when it runs"
    return f"{where}: the packages of the layer have other files"


def _times(clue: Clue) -> str | None:
    published, rebuilt = clue.entry.published, clue.entry.rebuilt
    if not published or not rebuilt or published.timeless() != rebuilt.timeless():
        return None
    return f"times are not fixed: {published.mtime:.0f} in the published layer, {rebuilt.mtime:.0f} in the rebuilt one"


def _owner(clue: Clue) -> str | None:
    if not {"uid", "gid", "names"} & set(clue.entry.fields) or "sha256" in clue.entry.fields:
        return None
    owners = [entry and (entry.uid, entry.gid) for entry in (clue.entry.published, clue.entry.rebuilt)]
    return f"its owner differs: {owners[0]}, rebuilt {owners[1]}"


def _mode(clue: Clue) -> str | None:
    entry = clue.entry
    if "mode" not in entry.fields or "sha256" in entry.fields or not entry.published or not entry.rebuilt:
        return None
    modes = f"{entry.published.mode:04o}, rebuilt {entry.rebuilt.mode:04o}"
    return f"its mode differs, as with another umask: {modes}"


def _byte_code(clue: Clue) -> str | None:
    entry = clue.entry
    if not entry.path.endswith(".pyc") or not entry.published or not entry.rebuilt or "sha256" not in entry.fields:
        return None
    published, rebuilt = entry.published.head, entry.rebuilt.head
    if published[:4] != rebuilt[:4]:
        return "another version of Python compiled the byte-code"
    if published[4:8] != rebuilt[4:8]:
        kinds = [_FLAGS.get(int.from_bytes(head[4:8], "little"), "unknown") for head in (published, rebuilt)]
        return f"the byte-code is validated {kinds[0]}, the rebuilt one {kinds[1]}"
    if published[8:16] != rebuilt[8:16]:
        return "the byte-code was compiled from another source, or has the time of its source"
    return "the byte-code was compiled in another order or under another path, which changes its bytes"


def _records(clue: Clue) -> str | None:
    name = posixpath.basename(clue.entry.path)
    if name not in _INSTALLERS or "sha256" not in clue.entry.fields:
        return None
    return f"another installer wrote {name}, or other files were installed"


def _state(clue: Clue) -> str | None:
    if not _is_state(clue.entry.path):
        return None
    return "caches and logs of the system differ in each run, so imagegen did not build this base"


def _link(clue: Clue) -> str | None:
    if not {"kind", "target"} & set(clue.entry.fields):
        return None
    return "it is not a link to the same path, so the interpreter or the layout of the environment differs"


def _compiled(clue: Clue) -> str | None:
    if "sha256" not in clue.entry.fields:
        return None
    names = [
        package.name
        for package in clue.packages
        if isinstance(package, LockedBuild) or package.build or package.sdist is not None
    ]
    return f"{', '.join(names)} was built again, and the compiler or the backend wrote other bytes" if names else None


def _wheel(clue: Clue) -> str | None:
    if "sha256" not in clue.entry.fields:
        return None
    # If a layer has several packages, prefer the package that the directory is named after.
    path_parts = {part.partition("-")[0] for part in clue.entry.path.split("/")}
    candidates = [package for package in clue.packages if package.name.replace("-", "_") in path_parts] or clue.packages
    names = ", ".join(f"{package.name} {package.version}" for package in candidates) or "the packages of the lock"
    return f"its bytes differ from {names}: the published layer was built from other files, or changed later"


def _is_state(path: str) -> bool:
    return f"/{path.lstrip('./')}".startswith(_STATE)


_CAUSES: tuple[Callable[[Clue], str | None], ...] = (
    *(_format, _order, _one_sided, _times, _owner, _mode, _byte_code, _records, _state, _link, _compiled, _wheel),
)


# Describe a difference in sentences, for a changelog and a pull request. Pure.
#
# A sentence has no capital and no full stop, so that several fit into one line: "; ".join(sentences(difference)).

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
