"""Do the names that entries use exist? Checked on what was written, so that a faulty entry hides no wrong name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from imagegen.core.errors import ErrorList, Location, MatrixError
from imagegen.core.text import counted, did_you_mean
from imagegen.plan.matrix.document import YamlDocument
from imagegen.plan.matrix.model import ENV, SURROUNDINGS, condition_error


@dataclass(frozen=True)
class PlacedEntry:
    """An entry and its place; `entry` is None when it has an error of its own."""

    name: str
    entry: Any
    document: YamlDocument
    path: tuple[str, str]
    layer: int  # which of the directories
    replaces: PlacedEntry | None = None

    @property
    def written(self) -> Any:
        section, name = self.path
        return self.document.data[section][name]

    def where(self, *inside: str | int, key: bool = True) -> Location:
        return self.document.where((*self.path, *inside), key=key)

    def error(self, what: str, *inside: str | int, fix: str | None = None, key: bool = True) -> MatrixError:
        return MatrixError(what, where=self.where(*inside, key=key), fix=fix)


_LISTED = 50  # names that an error repeats
_SECTION = {"index": "indexes"}  # where the plural is not as usual

Entries = dict[str, dict[str, PlacedEntry]]  # section -> name -> entry


def check_references(entries: Entries, errors: ErrorList[MatrixError]) -> set[tuple[str, str]]:
    """Add an error for every name in an entry that no entry defines; return the paths of the entries that use one."""
    known = _Known(entries, errors)
    checks = {"bases": _base, "components": _component, "stacks": _part, "images": _image, "rules": _rule}
    checks["builds"] = _build
    checks |= {"recipes": _recipe, "interpreters": _interpreter}
    unresolved = set()
    for section, check in checks.items():
        for entry in entries[section].values():
            for error in check(entry, known):
                errors.append(error)
                unresolved.add(entry.path)
    return unresolved


def _base(found: PlacedEntry, known: _Known) -> Iterator[MatrixError]:
    return _name(found, "system", known)


def _interpreter(found: PlacedEntry, known: _Known) -> Iterator[MatrixError]:
    return _names(found, "system", _list(found.written, "systems"), known, "systems")


def _recipe(found: PlacedEntry, known: _Known) -> Iterator[MatrixError]:
    if found.name not in known.names["components"]:
        near = None if known.errors.is_full else did_you_mean(found.name, known.names["components"])
        yield found.error(f'there is no component "{found.name}"', fix=near or "say under components what it is")


def _rule(found: PlacedEntry, known: _Known) -> Iterator[MatrixError]:
    for side in ("when", "then", "conflict"):
        yield from _conditions(found, side, known)
    yield from _names(found, "component", _list(found.written, "same"), known, "same")
    for name in _mapping(found.written, "unless"):
        yield from known.missing(found, "component", name, known.names["components"], "unless", name)


def _build(found: PlacedEntry, known: _Known) -> Iterator[MatrixError]:
    if isinstance(found.written, dict) and "package" in found.written:
        name = found.written["package"]
        yield from known.missing(found, "component", name, known.names["components"], "package", name)


_DECLARED_ALONE = frozenset({"git", "from_source", "uv_lock", "groups"})  # keys that need a component's entry
_ASKED = ("linux/amd64", "linux/arm64")  # platforms that queries name, whether the matrix has them or not


class _Known:
    """The names that entries define, each kind collected once: many entries name one of many."""

    def __init__(self, entries: Entries, errors: ErrorList[MatrixError]) -> None:
        self.names = {section: set(known) for section, known in entries.items()}
        self.subjects = self.names["components"] | set(SURROUNDINGS)
        self.values = cache(self._values)
        self.errors = errors
        self._axes = entries["axes"]
        self._components = entries["components"]
        self._gpus = entries["gpus"]

    def missing(
        self,
        found: PlacedEntry,
        kind: str,
        name: Any,
        defined: Collection[str],
        *inside: str | int,
        fix: str | None = None,
    ) -> Iterator[MatrixError]:
        """Return an error if `name` is text that is not `defined`; a value of another type already has
        its own error.
        """
        broken = (*found.path, *inside) in found.document.broken
        if isinstance(name, str) and name not in defined and not broken:
            if not self.errors.is_full:
                fix = fix or did_you_mean(name, defined) or _known_here(defined)
            yield found.error(f'there is no {kind} "{name}"', *inside, fix=fix, key=name == inside[-1])

    def _values(self, axis: str) -> set[str]:
        written = self._axes[axis].written if axis in self._axes else None
        values = written.get("values") if isinstance(written, dict) else None
        return {value for value in values if isinstance(value, str)} if isinstance(values, list) else set()

    def is_compiled(self, component: str) -> bool:
        written = self._components[component].written
        return isinstance(written, dict) and written.get("compiled") is True

    def architecture(self, product: str) -> str | None:
        """Return the name in `gpus` of this product's architecture, as "sm_90" of an H100."""
        return self._products.get(product.casefold())

    @cached_property
    def _products(self) -> dict[str, str]:
        return {
            each.casefold(): name
            for name, found in reversed(self._gpus.items())
            for each in _list(found.written, "products")
            if isinstance(each, str)
        }

    def commits(self, component: str) -> set[str]:
        return set(_mapping(self._components[component].written, "git"))


def _component(found: PlacedEntry, known: _Known) -> Iterator[MatrixError]:
    for key in ("index", "local"):
        for value in _mapping(found.written, key):
            yield from known.missing(found, "value of the cuda axis", value, known.values("cuda"), key, value)
    for value, alias in _mapping(found.written, "index").items():
        yield from known.missing(found, "index", alias, known.names["indexes"], "index", value)
    leader = found.written.get("pypi_build") if isinstance(found.written, dict) else None
    if leader is not None:
        yield from known.missing(found, "component", leader, known.names["components"], "pypi_build")


_WHOLE = "only an image that extends another one (`extends: NAME`) may leave it out"
_EXTENDS = "name that image as `extends:`; `without:` of a variant removes for some cells"


def _image(found: PlacedEntry, known: _Known) -> Iterator[MatrixError]:
    written = found.written if isinstance(found.written, dict) else {}
    if "environments" in written:
        yield from _missing_keys(found, written, ("description", "purpose"))
        return
    if "extends" in written:
        yield from known.missing(found, "image", written["extends"], known.names["images"], "extends")
    elif written:
        yield from _missing_keys(found, written, ("description", "purpose", "base"))
        if "without" in written:
            yield found.error("it removes from an image that it extends, and extends none", "without", fix=_EXTENDS)
    yield from _name(found, "base", known)
    yield from _name(found, "interpreter", known)
    yield from _gpus(found, known)
    yield from _names(found, "stack", _list(found.written, "stacks"), known, "stacks")
    yield from _axes(found, _mapping(found.written, "axes"), known, "axes")
    for position, excluded in enumerate(_list(found.written, "exclude")):
        if isinstance(excluded, dict):
            yield from _axes(found, excluded, known, "exclude", position)
    yield from _part(found, known)


def _missing_keys(found: PlacedEntry, written: dict[str, Any], keys: tuple[str, ...]) -> Iterator[MatrixError]:
    for key in keys:
        if key not in written:
            what = f'the key "{key}" is missing'
            yield MatrixError(what, code="matrix-missing-key", where=found.where(), fix=_WHOLE)
        elif written[key] is None:
            where = found.where(key, key=False)
            yield MatrixError(f"{key}: is empty", code="matrix-invalid-value", where=where, fix=_WHOLE)


def _gpus(found: PlacedEntry, known: _Known, written: Any = None, *inside: str | int) -> Iterator[MatrixError]:
    """Check the architectures that an image or a variant names; the error for a product's name has its architecture."""
    for position, name in enumerate(_list(found.written if written is None else written, "gpus")):
        architecture = known.architecture(name) if isinstance(name, str) else None
        fix = f"{name} is {architecture}: write {architecture}" if architecture else None
        yield from known.missing(found, "gpu", name, known.names["gpus"], *inside, "gpus", position, fix=fix)


def _part(found: PlacedEntry, known: _Known, written: Any = None, *inside: str | int) -> Iterator[MatrixError]:
    """Yield errors for unknown names in a stack, an image or a variant: components, their indexes, and more."""
    written = found.written if written is None else written
    for name, use in _mapping(written, "components").items():
        here = (*inside, "components", name)
        yield from _name(found, "index", known, use, *here)
        if not isinstance(use, dict):
            continue
        if name not in known.names["components"]:
            yield from _undeclared(found, known, use, *here)
            continue
        if use.get("because") is None:
            what = 'the key "because" is missing'
            yield MatrixError(what, code="matrix-missing-key", where=found.where(*here))
        if "git" in use:
            yield from known.missing(found, f"commit of {name}", use["git"], known.commits(name), *here, "git")
        if use.get("from_source") is True and not known.is_compiled(name):
            yield found.error(f'the component "{name}" needs no compiler', *here, "from_source")
    for position, variant in enumerate(_list(written, "variants")):
        here = (*inside, "variants", position)
        yield from _axes(found, _mapping(variant, "when"), known, *here, "when")
        yield from _name(found, "base", known, variant, *here)
        yield from _gpus(found, known, variant, *here)
        yield from _name(found, "interpreter", known, variant, *here)
        yield from _names(found, "component", _list(variant, "without"), known, *here, "without")
        yield from _part(found, known, variant, *here)


def _undeclared(found: PlacedEntry, known: _Known, use: dict[str, Any], *here: str | int) -> Iterator[MatrixError]:
    """Yield errors for a component that no entry declares and that is not an ordinary package of an index."""
    name = str(here[-1])
    if "." in name:
        fix = f"write {name.replace('.', '-')}, the normalised name (PEP 503)"
        yield found.error(f'"{name}" is no component, and no package name', *here, fix=fix)
    for key in _DECLARED_ALONE & use.keys():
        fix = did_you_mean(name, known.names["components"]) or f"declare {name} under `components`"
        yield found.error(f'there is no component "{name}", so it has no `{key}`', *here, key, fix=fix)


def _axes(found: PlacedEntry, axes: dict[str, Any], known: _Known, *inside: str | int) -> Iterator[MatrixError]:
    for axis, values in axes.items():
        yield from known.missing(found, "axis", axis, known.names["axes"], *inside, axis)
        if axis in known.names["axes"] and isinstance(values, list):
            for position, value in enumerate(values):
                kind = f"value of the {axis} axis"
                yield from known.missing(found, kind, value, known.values(axis), *inside, axis, position)


def _name(
    found: PlacedEntry, kind: str, known: _Known, written: Any = None, *inside: str | int
) -> Iterator[MatrixError]:
    """The one entry that the key `kind` names, where it is given."""
    written = found.written if written is None else written
    if isinstance(written, dict) and kind in written:
        defined = known.names[_SECTION.get(kind, f"{kind}s")]
        yield from known.missing(found, kind, written[kind], defined, *inside, kind)


def _names(found: PlacedEntry, kind: str, names: list[Any], known: _Known, *inside: str | int) -> Iterator[MatrixError]:
    for position, name in enumerate(names):
        yield from known.missing(found, kind, name, known.names[f"{kind}s"], *inside, position)


def _conditions(found: PlacedEntry, side: str, known: _Known) -> Iterator[MatrixError]:
    closed = {"base": known.names["bases"], "platform": {*known.values("platform"), *_ASKED}}
    for name, value in _mapping(found.written, side).items():
        if name in closed:
            yield from known.missing(found, f"{name} value", value, closed[name], side, name)
            continue
        if not name.startswith(ENV):
            yield from known.missing(found, "component", name, known.subjects, side, name)
        wrong = condition_error(name, value) if isinstance(value, str) else None
        if wrong:
            yield found.error(f"{side}.{name}: {wrong}", side, name, key=False)


def _known_here(names: Collection[str]) -> str:
    more = [counted(len(names) - _LISTED, "other")] if len(names) > _LISTED else []
    return f"known here: {', '.join([*sorted(names)[:_LISTED], *more]) or 'none'}"


def _mapping(written: Any, key: str) -> dict[str, Any]:
    value = written.get(key) if isinstance(written, dict) else None
    return value if isinstance(value, dict) else {}


def _list(written: Any, key: str) -> list[Any]:
    value = written.get(key) if isinstance(written, dict) else None
    return value if isinstance(value, list) else []
