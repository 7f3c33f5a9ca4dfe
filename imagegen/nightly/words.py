"""The difference between two locks of one cell, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from imagegen.lock.model import Lock
from imagegen.nightly.propose import rank
from imagegen.text import counted

_NAMED = 12  # packages that no component is, by name


def sentences(before: Lock | None, after: Lock) -> list[str]:
    """What `after` has otherwise than `before`; components first."""
    if before is None:
        return [f"locked for the first time: {counted(len(after.packages), 'package')}"]
    old = {each.name: each.version for each in before.packages}
    new = {each.name: each.version for each in after.packages}
    components = {each.name for each in after.packages if each.because}
    moved = _moved(old, new)
    own = sorted(moved.keys() & components, key=lambda name: (rank(name), name))
    rest = [moved[name] for name in sorted(moved.keys() - components)]
    more = [f"{len(rest) - _NAMED} more"] if len(rest) > _NAMED else []
    keys = {each.key for each in before.builds}
    return [
        *(moved[name] for name in own),
        *([f"{'with them ' if own else ''}{', '.join([*rest[:_NAMED], *more])}"] if rest else []),
        *(f"{each.name} {each.version} must be compiled anew" for each in after.builds if each.key not in keys),
        *_base(before, after),
        *_bytes(before, after),
        *_matrix(before, after),
    ]


def _moved(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    gone = {name: f"{name} {old[name]} is gone" for name in old.keys() - new.keys()}
    come = {name: f"{name} {new[name]} is new" for name in new.keys() - old.keys()}
    both = {name: f"{name} {old[name]} -> {new[name]}" for name in old.keys() & new.keys() if old[name] != new[name]}
    return gone | come | both


def _base(before: Lock, after: Lock) -> Iterable[str]:
    if before.base.content != after.base.content or before.base.image != after.base.image:
        yield f"the base {after.base.image or after.base.name} is another image"
    security = {deb.name for deb in after.base.debs if deb.archive.endswith("security")}
    old = {deb.name: deb.version for deb in before.base.debs}
    moved = _moved(old, {deb.name: deb.version for deb in after.base.debs})
    for names, of in ((moved.keys() & security, "Debian security"), (moved.keys() - security, "Debian")):
        if names:
            yield f"{of}: {', '.join(moved[name] for name in sorted(names))}"


def _bytes(before: Lock, after: Lock) -> Iterable[str]:
    had = {wheel.file.sha256 for wheel in before.wheels}
    new = [wheel.file for wheel in after.wheels if wheel.file.sha256 not in had]
    if new:
        yield f"{counted(len(new), 'wheel')} to fetch, {sum(file.size for file in new) / 1e6:.1f} MB"


def _matrix(before: Lock, after: Lock) -> Iterable[str]:
    names = before.inputs.keys() | after.inputs.keys()
    moved = sorted(name for name in names if before.inputs.get(name) != after.inputs.get(name))
    if moved:
        yield f"the matrix says otherwise about {', '.join(moved)}"
    if before.uv.version != after.uv.version:
        yield f"resolved by uv {after.uv.version}, before by {before.uv.version}"
