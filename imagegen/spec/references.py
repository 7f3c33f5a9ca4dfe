"""Do the names that entries use exist? Checked on what was written, so that a faulty entry hides no wrong name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from imagegen.compat.rule import ENV, SURROUNDINGS, condition_error
from imagegen.core.errors import ErrorList, Location, MatrixError
from imagegen.core.text import counted, did_you_mean
from imagegen.spec.document import YamlDocument


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

    def error(self, message: str, *inside: str | int, fix: str | None = None, key: bool = True) -> MatrixError:
        return MatrixError(message, where=self.where(*inside, key=key), fix=fix)


_LISTED = 50  # names that an error repeats
_SECTION = {"index": "indexes"}  # where the plural is not as usual

Entries = dict[str, dict[str, PlacedEntry]]  # section -> name -> entry


def check_references(entries: Entries, errors: ErrorList[MatrixError]) -> set[tuple[str, str]]:
    """Add an error for every name in an entry that no entry defines; return the paths of the entries that use one."""
    index = _NameIndex(entries, errors)
    checks = {"bases": _base, "components": _component, "stacks": _part, "images": _image, "rules": _rule}
    checks["builds"] = _build
    checks |= {"recipes": _recipe, "interpreters": _interpreter}
    unresolved = set()
    for section, check in checks.items():
        for entry in entries[section].values():
            for error in check(entry, index):
                errors.append(error)
                unresolved.add(entry.path)
    return unresolved


def _base(entry: PlacedEntry, index: _NameIndex) -> Iterator[MatrixError]:
    return _name(entry, "system", index)


def _interpreter(entry: PlacedEntry, index: _NameIndex) -> Iterator[MatrixError]:
    return _names(entry, "system", _list(entry.written, "systems"), index, "systems")


def _recipe(entry: PlacedEntry, index: _NameIndex) -> Iterator[MatrixError]:
    if entry.name not in index.names["components"]:
        near = None if index.errors.is_full else did_you_mean(entry.name, index.names["components"])
        yield entry.error(f'there is no component "{entry.name}"', fix=near or "describe it under components")


def _rule(entry: PlacedEntry, index: _NameIndex) -> Iterator[MatrixError]:
    for side in ("when", "then", "conflict"):
        yield from _conditions(entry, side, index)
    yield from _names(entry, "component", _list(entry.written, "same"), index, "same")
    for name in _mapping(entry.written, "unless"):
        yield from index.missing(entry, "component", name, index.names["components"], "unless", name)


def _build(entry: PlacedEntry, index: _NameIndex) -> Iterator[MatrixError]:
    if isinstance(entry.written, dict) and "package" in entry.written:
        name = entry.written["package"]
        yield from index.missing(entry, "component", name, index.names["components"], "package", name)


_DECLARED_ALONE = frozenset({"git", "from_source", "uv_lock", "groups"})  # keys that need a component's entry
_ASKED = ("linux/amd64", "linux/arm64")  # platforms that queries name, whether the matrix has them or not


class _NameIndex:
    """The names that entries define, each kind collected once: many entries name one of many."""

    def __init__(self, entries: Entries, errors: ErrorList[MatrixError]) -> None:
        self.names = {section: set(named_entries) for section, named_entries in entries.items()}
        self.subjects = self.names["components"] | set(SURROUNDINGS)
        self.values = cache(self._values)
        self.errors = errors
        self._axes = entries["axes"]
        self._components = entries["components"]
        self._gpus = entries["gpus"]

    def missing(
        self,
        entry: PlacedEntry,
        kind: str,
        name: Any,
        defined: Collection[str],
        *inside: str | int,
        fix: str | None = None,
    ) -> Iterator[MatrixError]:
        """Return an error if `name` is text that is not `defined`; a value of another type has its own error."""
        broken = (*entry.path, *inside) in entry.document.broken
        if isinstance(name, str) and name not in defined and not broken:
            if not self.errors.is_full:
                fix = fix or did_you_mean(name, defined) or _known_here(defined)
            yield entry.error(f'there is no {kind} "{name}"', *inside, fix=fix, key=name == inside[-1])

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
            product.casefold(): name
            for name, entry in reversed(self._gpus.items())
            for product in _list(entry.written, "products")
            if isinstance(product, str)
        }

    def commits(self, component: str) -> set[str]:
        return set(_mapping(self._components[component].written, "git"))


def _component(entry: PlacedEntry, index: _NameIndex) -> Iterator[MatrixError]:
    for key in ("index", "local"):
        for value in _mapping(entry.written, key):
            yield from index.missing(entry, "value of the cuda axis", value, index.values("cuda"), key, value)
    for value, alias in _mapping(entry.written, "index").items():
        yield from index.missing(entry, "index", alias, index.names["indexes"], "index", value)
    leader = entry.written.get("pypi_build") if isinstance(entry.written, dict) else None
    if leader is not None:
        yield from index.missing(entry, "component", leader, index.names["components"], "pypi_build")


_WHOLE = "only an image that extends another one (`extends: NAME`) may leave it out"
_EXTENDS = "name that image as `extends:`; `without:` of a variant removes for some cells"


def _image(entry: PlacedEntry, index: _NameIndex) -> Iterator[MatrixError]:
    written = entry.written if isinstance(entry.written, dict) else {}
    if "environments" in written:
        yield from _missing_keys(entry, written, ("description", "purpose"))
        return
    if "extends" in written:
        yield from index.missing(entry, "image", written["extends"], index.names["images"], "extends")
    elif written:
        yield from _missing_keys(entry, written, ("description", "purpose", "base"))
        if "without" in written:
            yield entry.error("it removes from an image that it extends, and extends none", "without", fix=_EXTENDS)
    yield from _name(entry, "base", index)
    yield from _name(entry, "interpreter", index)
    yield from _gpus(entry, index)
    yield from _names(entry, "stack", _list(entry.written, "stacks"), index, "stacks")
    yield from _axes(entry, _mapping(entry.written, "axes"), index, "axes")
    for position, excluded in enumerate(_list(entry.written, "exclude")):
        if isinstance(excluded, dict):
            yield from _axes(entry, excluded, index, "exclude", position)
    yield from _part(entry, index)


def _missing_keys(entry: PlacedEntry, written: dict[str, Any], keys: tuple[str, ...]) -> Iterator[MatrixError]:
    for key in keys:
        if key not in written:
            message = f'the key "{key}" is missing'
            yield MatrixError(message, code="matrix-missing-key", where=entry.where(), fix=_WHOLE)
        elif written[key] is None:
            where = entry.where(key, key=False)
            yield MatrixError(f"{key}: is empty", code="matrix-invalid-value", where=where, fix=_WHOLE)


def _gpus(entry: PlacedEntry, index: _NameIndex, written: Any = None, *inside: str | int) -> Iterator[MatrixError]:
    """Check the architectures that an image or a variant names; the error for a product's name has its architecture."""
    for position, name in enumerate(_list(entry.written if written is None else written, "gpus")):
        architecture = index.architecture(name) if isinstance(name, str) else None
        fix = f"{name} is {architecture}: write {architecture}" if architecture else None
        yield from index.missing(entry, "gpu", name, index.names["gpus"], *inside, "gpus", position, fix=fix)


def _part(entry: PlacedEntry, index: _NameIndex, written: Any = None, *inside: str | int) -> Iterator[MatrixError]:
    """Yield errors for unknown names in a stack, an image or a variant: components, their indexes, and more."""
    written = entry.written if written is None else written
    for name, use in _mapping(written, "components").items():
        path = (*inside, "components", name)
        yield from _name(entry, "index", index, use, *path)
        if not isinstance(use, dict):
            continue
        if name not in index.names["components"]:
            yield from _undeclared(entry, index, use, *path)
            continue
        if use.get("because") is None:
            message = 'the key "because" is missing'
            yield MatrixError(message, code="matrix-missing-key", where=entry.where(*path))
        if "git" in use:
            yield from index.missing(entry, f"commit of {name}", use["git"], index.commits(name), *path, "git")
        if use.get("from_source") is True and not index.is_compiled(name):
            yield entry.error(f'the component "{name}" needs no compiler', *path, "from_source")
    for position, variant in enumerate(_list(written, "variants")):
        path = (*inside, "variants", position)
        yield from _axes(entry, _mapping(variant, "when"), index, *path, "when")
        yield from _name(entry, "base", index, variant, *path)
        yield from _gpus(entry, index, variant, *path)
        yield from _name(entry, "interpreter", index, variant, *path)
        yield from _names(entry, "component", _list(variant, "without"), index, *path, "without")
        yield from _part(entry, index, variant, *path)


def _undeclared(entry: PlacedEntry, index: _NameIndex, use: dict[str, Any], *path: str | int) -> Iterator[MatrixError]:
    """Yield errors for a component that no entry declares and that is not an ordinary package of an index."""
    name = str(path[-1])
    if "." in name:
        fix = f"write {name.replace('.', '-')}, the normalised name (PEP 503)"
        yield entry.error(f'"{name}" is neither a component nor a package name', *path, fix=fix)
    for key in _DECLARED_ALONE & use.keys():
        fix = did_you_mean(name, index.names["components"]) or f"declare {name} under `components`"
        yield entry.error(f'there is no component "{name}", so it has no `{key}`', *path, key, fix=fix)


def _axes(entry: PlacedEntry, axes: dict[str, Any], index: _NameIndex, *inside: str | int) -> Iterator[MatrixError]:
    for axis, values in axes.items():
        yield from index.missing(entry, "axis", axis, index.names["axes"], *inside, axis)
        if axis in index.names["axes"] and isinstance(values, list):
            for position, value in enumerate(values):
                kind = f"value of the {axis} axis"
                yield from index.missing(entry, kind, value, index.values(axis), *inside, axis, position)


def _name(
    entry: PlacedEntry, kind: str, index: _NameIndex, written: Any = None, *inside: str | int
) -> Iterator[MatrixError]:
    """Yield an error if the key `kind` is given and names a missing entry."""
    written = entry.written if written is None else written
    if isinstance(written, dict) and kind in written:
        defined = index.names[_SECTION.get(kind, f"{kind}s")]
        yield from index.missing(entry, kind, written[kind], defined, *inside, kind)


def _names(
    entry: PlacedEntry, kind: str, names: list[Any], index: _NameIndex, *inside: str | int
) -> Iterator[MatrixError]:
    for position, name in enumerate(names):
        yield from index.missing(entry, kind, name, index.names[f"{kind}s"], *inside, position)


def _conditions(entry: PlacedEntry, side: str, index: _NameIndex) -> Iterator[MatrixError]:
    closed = {"base": index.names["bases"], "platform": {*index.values("platform"), *_ASKED}}
    for name, value in _mapping(entry.written, side).items():
        if name in closed:
            yield from index.missing(entry, f"{name} value", value, closed[name], side, name)
            continue
        if not name.startswith(ENV):
            yield from index.missing(entry, "component", name, index.subjects, side, name)
        wrong = condition_error(name, value) if isinstance(value, str) else None
        if wrong:
            yield entry.error(f"{side}.{name}: {wrong}", side, name, key=False)


def _known_here(names: Collection[str]) -> str:
    suffix = [counted(len(names) - _LISTED, "other")] if len(names) > _LISTED else []
    return f"known here: {', '.join([*sorted(names)[:_LISTED], *suffix]) or 'none'}"


def _mapping(written: Any, key: str) -> dict[str, Any]:
    value = written.get(key) if isinstance(written, dict) else None
    return value if isinstance(value, dict) else {}


def _list(written: Any, key: str) -> list[Any]:
    value = written.get(key) if isinstance(written, dict) else None
    return value if isinstance(value, list) else []
