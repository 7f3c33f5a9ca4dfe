"""Sentences about what an update changed in a lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from imagegen.app.nightly.changes import short_inputs
from imagegen.app.nightly.propose import Proposal
from imagegen.compare import wording
from imagegen.compare.difference import ComparisonFacts, difference, pairs
from imagegen.compare.operands import of_lock
from imagegen.core.text import counted
from imagegen.lock import inputs_hash
from imagegen.lock.environments import CombinedFile
from imagegen.lock.model import Lock

_NOTHING = ComparisonFacts()


def sentences(proposal: Proposal, facts: ComparisonFacts = _NOTHING) -> list[str]:
    """Return sentences about what a proposal changes: versions, Debian security updates, and changes of the matrix.

    Sentences about an environment that is not the default one begin with its name.
    """
    before, after = proposal.before, proposal.after
    if not proposal.changed:
        return []
    if before is None:
        return [f"locked for the first time: {counted(len(after.packages), 'package')}"]
    earlier = [*_moved_before(proposal.file, before)]
    comparable = replace(before, record=None) if earlier else before  # it is of other locks, and so are its layers
    changed = difference(of_lock("before", "lock", comparable), of_lock("after", "lock", after), facts)
    summary = [] if changed.empty else wording.sentences(changed)
    unnamed = [change for change in changed.packages if not any(f"{change.name} " in sentence for sentence in summary)]
    return [
        *earlier,
        *summary,
        *([f"packages: {', '.join(map(wording.arrow, unnamed))}"] if unnamed else []),
        *_security(before, after),
        *dict.fromkeys(
            f"{prefix}{sentence}" for prefix, old, new in pairs(before, after) for sentence in _matrix(old, new)
        ),
    ]


def _moved_before(file: CombinedFile | None, before: Lock) -> Iterator[str]:
    """Yield sentences about environments that `file` did not describe when the update began.

    The lock that `file` names is not in the project then, so nothing can be compared with it.
    """
    if not (file and before.has_several):
        return
    rows = {row.name: row for row in file.environments}
    locks = {environment.name: environment.lock for environment in before.environments}
    for name in before.moved:
        if name in rows and name in locks and (inputs := inputs_hash(locks[name])) != rows[name].lock:
            step = f"{short_inputs(rows[name].lock)} to {short_inputs(inputs)}"
            yield f"{name}: {locks[name].cell} was locked again before this update ({step})"
        else:
            yield f"the matrix says otherwise about environment {name}"


def _security(before: Lock, after: Lock) -> list[str]:
    old = {deb.name: deb.version for deb in before.debs}
    moved = [
        f"{deb.name} {deb.version}"
        for deb in after.debs
        if deb.archive == "debian-security" and old.get(deb.name) != deb.version
    ]
    return [f"security updates of Debian: {', '.join(moved)}"] if moved else []


def _matrix(before: Lock, after: Lock) -> list[str]:
    names = before.inputs.keys() | after.inputs.keys()
    moved = sorted(name for name in names if before.inputs.get(name) != after.inputs.get(name))
    texts = [f"the matrix says otherwise about {', '.join(moved)}"] if moved else []
    if before.uv.version != after.uv.version:
        texts.append(f"resolved by uv {after.uv.version}, before by {before.uv.version}")
    return texts
