"""Do the names that entries use exist? Checked on what was written, so that a faulty entry hides no wrong name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from imagegen.errors import Location, MatrixError
from imagegen.matrix.document import Document
from imagegen.matrix.schema import SURROUNDINGS, condition_error
from imagegen.text import did_you_mean


@dataclass(frozen=True)
class Found:
    """An entry and the place where it stands; `entry` is None when it has an error of its own."""

    name: str
    entry: Any
    document: Document
    path: tuple[str, str]
    layer: int  # which of the directories
    replaces: Found | None = None

    @property
    def written(self) -> Any:
        section, name = self.path
        return self.document.data[section][name]

    def where(self, *inside: str | int, key: bool = True) -> Location:
        return self.document.where((*self.path, *inside), key=key)

    def error(self, what: str, *inside: str | int, fix: str | None = None, key: bool = True) -> MatrixError:
        return MatrixError(what, where=self.where(*inside, key=key), fix=fix)


Entries = dict[str, dict[str, Found]]  # section -> name -> entry


def check_references(entries: Entries) -> Iterator[MatrixError]:
    """Every name in a component, an image or a rule that no entry defines."""
    known = _Known(entries)
    for found in entries["components"].values():
        yield from _component(found, known)
    for found in entries["images"].values():
        yield from _image(found, known)
    for found in entries["rules"].values():
        for side in ("when", "then", "conflict"):
            yield from _conditions(found, side, known)


class _Known:
    def __init__(self, entries: Entries) -> None:
        self.names = {section: set(known) for section, known in entries.items()}
        self._axes = entries["axes"]

    def values(self, axis: str) -> set[str]:
        written = self._axes[axis].written if axis in self._axes else None
        values = written.get("values") if isinstance(written, dict) else None
        return {value for value in values if isinstance(value, str)} if isinstance(values, list) else set()


def _component(found: Found, known: _Known) -> Iterator[MatrixError]:
    for key in ("index", "local"):
        for value in _mapping(found.written, key):
            yield from _missing(found, "value of the cuda axis", value, known.values("cuda"), key, value)
    for value, alias in _mapping(found.written, "index").items():
        yield from _missing(found, "index", alias, known.names["indexes"], "index", value)


def _image(found: Found, known: _Known) -> Iterator[MatrixError]:
    if isinstance(found.written, dict) and "base" in found.written:
        yield from _missing(found, "base", found.written["base"], known.names["bases"], "base")
    for name in _mapping(found.written, "components"):
        yield from _missing(found, "component", name, known.names["components"], "components", name)
    for axis, values in _mapping(found.written, "axes").items():
        yield from _missing(found, "axis", axis, known.names["axes"], "axes", axis)
        if axis in known.names["axes"] and isinstance(values, list):
            for position, value in enumerate(values):
                kind = f"value of the {axis} axis"
                yield from _missing(found, kind, value, known.values(axis), "axes", axis, position)


def _conditions(found: Found, side: str, known: _Known) -> Iterator[MatrixError]:
    closed = {"base": known.names["bases"], "cuda": known.values("cuda"), "platform": known.values("platform")}
    components = known.names["components"] | set(SURROUNDINGS)
    for name, value in _mapping(found.written, side).items():
        if name in closed:
            yield from _missing(found, f"{name} value", value, closed[name], side, name)
            continue
        yield from _missing(found, "component", name, components, side, name)
        wrong = condition_error(value, local=name not in SURROUNDINGS) if isinstance(value, str) else None
        if wrong:
            yield found.error(f"{side}.{name}: {wrong}", side, name, key=False)


def _mapping(written: Any, key: str) -> dict[str, Any]:
    value = written.get(key) if isinstance(written, dict) else None
    return value if isinstance(value, dict) else {}


def _missing(found: Found, kind: str, name: Any, known: Iterable[str], *inside: str | int) -> Iterator[MatrixError]:
    """An error if `name` is text that nothing defines; anything but text has an error of its own already."""
    known = sorted(known)
    broken = (*found.path, *inside) in found.document.broken
    if isinstance(name, str) and name not in known and not broken:
        fix = did_you_mean(name, known) or f"known here: {', '.join(known) or 'none'}"
        yield found.error(f'there is no {kind} "{name}"', *inside, fix=fix, key=name == inside[-1])
