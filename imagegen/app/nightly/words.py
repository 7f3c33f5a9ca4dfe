"""Sentences about what an update changed in a lock."""

from __future__ import annotations

from imagegen.core.text import counted
from imagegen.plan.lock.model import Lock
from imagegen.supply.compare import words
from imagegen.supply.compare.difference import Known, difference
from imagegen.supply.compare.side import of_lock

_NOTHING = Known()


def sentences(before: Lock | None, after: Lock, known: Known = _NOTHING) -> list[str]:
    """Return sentences about the differences of two locks, Debian security updates, and changes of the matrix."""
    if before is None:
        return [f"locked for the first time: {counted(len(after.packages), 'package')}"]
    found = difference(of_lock("before", "lock", before), of_lock("after", "lock", after), known)
    return [*([] if found.empty else words.sentences(found)), *_security(before, after), *_matrix(before, after)]


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
    said = [f"the matrix says otherwise about {', '.join(moved)}"] if moved else []
    if before.uv.version != after.uv.version:
        said.append(f"resolved by uv {after.uv.version}, before by {before.uv.version}")
    return said
