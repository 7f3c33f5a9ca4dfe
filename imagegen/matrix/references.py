"""Do the names that entries use exist? Checked on what was written, so that a faulty entry hides no wrong name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from imagegen.errors import Location, MatrixError
from imagegen.matrix.document import Document
from imagegen.matrix.fields import ENV, SURROUNDINGS, condition_error
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


_SECTION = {"index": "indexes"}  # where the plural is not as usual

Entries = dict[str, dict[str, Found]]  # section -> name -> entry


def check_references(entries: Entries) -> Iterator[tuple[Found, MatrixError]]:
    """Every name in an entry that no entry defines, with the entry that uses it."""
    known = _Known(entries)
    checks = {"bases": _base, "components": _component, "stacks": _part, "images": _image, "rules": _rule}
    checks["recipes"] = _recipe
    for section, check in checks.items():
        for found in entries[section].values():
            yield from ((found, error) for error in check(found, known))


def _base(found: Found, known: _Known) -> Iterator[MatrixError]:
    return _name(found, "system", known)


def _recipe(found: Found, known: _Known) -> Iterator[MatrixError]:
    if found.name not in known.names["components"]:
        fix = did_you_mean(found.name, known.names["components"]) or "say under components what it is"
        yield found.error(f'there is no component "{found.name}"', fix=fix)


def _rule(found: Found, known: _Known) -> Iterator[MatrixError]:
    for side in ("when", "then", "conflict"):
        yield from _conditions(found, side, known)
    yield from _names(found, "component", _list(found.written, "same"), known, "same")


class _Known:
    def __init__(self, entries: Entries) -> None:
        self.names = {section: set(known) for section, known in entries.items()}
        self._axes = entries["axes"]
        self._components = entries["components"]
        self._gpus = entries["gpus"]

    def values(self, axis: str) -> set[str]:
        written = self._axes[axis].written if axis in self._axes else None
        values = written.get("values") if isinstance(written, dict) else None
        return {value for value in values if isinstance(value, str)} if isinstance(values, list) else set()

    def is_compiled(self, component: str) -> bool:
        written = self._components[component].written
        return isinstance(written, dict) and written.get("compiled") is True

    def architecture(self, product: str) -> str | None:
        """What `gpus` calls the architecture of this product, as "sm_90" of an H100."""
        wanted = product.casefold()
        for name, found in self._gpus.items():
            if wanted in [each.casefold() for each in _list(found.written, "products") if isinstance(each, str)]:
                return name
        return None

    def commits(self, component: str) -> set[str]:
        return set(_mapping(self._components[component].written, "git"))


def _component(found: Found, known: _Known) -> Iterator[MatrixError]:
    for key in ("index", "local"):
        for value in _mapping(found.written, key):
            yield from _missing(found, "value of the cuda axis", value, known.values("cuda"), key, value)
    for value, alias in _mapping(found.written, "index").items():
        yield from _missing(found, "index", alias, known.names["indexes"], "index", value)


def _image(found: Found, known: _Known) -> Iterator[MatrixError]:
    yield from _name(found, "base", known)
    yield from _gpus(found, known)
    yield from _names(found, "stack", _list(found.written, "stacks"), known, "stacks")
    yield from _axes(found, _mapping(found.written, "axes"), known, "axes")
    yield from _part(found, known)


def _gpus(found: Found, known: _Known) -> Iterator[MatrixError]:
    """The architectures that an image names; whoever names a product instead is told its architecture."""
    for position, name in enumerate(_list(found.written, "gpus")):
        architecture = known.architecture(name) if isinstance(name, str) else None
        fix = f"{name} is {architecture}: write {architecture}" if architecture else None
        yield from _missing(found, "gpu", name, known.names["gpus"], "gpus", position, fix=fix)


def _part(found: Found, known: _Known, written: Any = None, *inside: str | int) -> Iterator[MatrixError]:
    """Components and variants of a stack or an image; what a variant says of itself."""
    written = found.written if written is None else written
    for name, use in _mapping(written, "components").items():
        here = (*inside, "components", name)
        yield from _missing(found, "component", name, known.names["components"], *here)
        yield from _name(found, "index", known, use, *here)
        if not isinstance(use, dict) or name not in known.names["components"]:
            continue
        if "git" in use:
            yield from _missing(found, f"commit of {name}", use["git"], known.commits(name), *here, "git")
        if use.get("from_source") is True and not known.is_compiled(name):
            yield found.error(f'the component "{name}" needs no compiler', *here, "from_source")
    for position, variant in enumerate(_list(written, "variants")):
        here = (*inside, "variants", position)
        yield from _axes(found, _mapping(variant, "when"), known, *here, "when")
        yield from _name(found, "base", known, variant, *here)
        yield from _names(found, "component", _list(variant, "without"), known, *here, "without")
        yield from _part(found, known, variant, *here)


def _axes(found: Found, axes: dict[str, Any], known: _Known, *inside: str | int) -> Iterator[MatrixError]:
    for axis, values in axes.items():
        yield from _missing(found, "axis", axis, known.names["axes"], *inside, axis)
        if axis in known.names["axes"] and isinstance(values, list):
            for position, value in enumerate(values):
                kind = f"value of the {axis} axis"
                yield from _missing(found, kind, value, known.values(axis), *inside, axis, position)


def _name(found: Found, kind: str, known: _Known, written: Any = None, *inside: str | int) -> Iterator[MatrixError]:
    """The one entry that the key `kind` names, where it is given."""
    written = found.written if written is None else written
    if isinstance(written, dict) and kind in written:
        yield from _missing(found, kind, written[kind], known.names[_SECTION.get(kind, f"{kind}s")], *inside, kind)


def _names(found: Found, kind: str, names: list[Any], known: _Known, *inside: str | int) -> Iterator[MatrixError]:
    for position, name in enumerate(names):
        yield from _missing(found, kind, name, known.names[f"{kind}s"], *inside, position)


def _conditions(found: Found, side: str, known: _Known) -> Iterator[MatrixError]:
    closed = {"base": known.names["bases"], "platform": known.values("platform")}
    components = known.names["components"] | set(SURROUNDINGS)
    for name, value in _mapping(found.written, side).items():
        if name in closed:
            yield from _missing(found, f"{name} value", value, closed[name], side, name)
            continue
        if not name.startswith(ENV):
            yield from _missing(found, "component", name, components, side, name)
        wrong = condition_error(name, value) if isinstance(value, str) else None
        if wrong:
            yield found.error(f"{side}.{name}: {wrong}", side, name, key=False)


def _mapping(written: Any, key: str) -> dict[str, Any]:
    value = written.get(key) if isinstance(written, dict) else None
    return value if isinstance(value, dict) else {}


def _list(written: Any, key: str) -> list[Any]:
    value = written.get(key) if isinstance(written, dict) else None
    return value if isinstance(value, list) else []


def _missing(
    found: Found, kind: str, name: Any, known: Iterable[str], *inside: str | int, fix: str | None = None
) -> Iterator[MatrixError]:
    """An error if `name` is text that nothing defines; anything but text has an error of its own already."""
    known = sorted(known)
    broken = (*found.path, *inside) in found.document.broken
    if isinstance(name, str) and name not in known and not broken:
        fix = fix or did_you_mean(name, known) or f"known here: {', '.join(known) or 'none'}"
        yield found.error(f'there is no {kind} "{name}"', *inside, fix=fix, key=name == inside[-1])
