"""Work that waits for a first use: a command pays at its start for no more than it needs.

Frozen dataclasses get their methods then. `dataclasses.dataclass` compiles six methods of each class when its module is
imported, half a millisecond. A command that reads a matrix and a lock from the cache of results (compiled.py) uses
nearly none, because it unpickles instances and reads their attributes. Here the standard library's decorator runs at
the first call of a method, or at the first look at the fields.

`lazy_names` imports the modules behind a package's names.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_METHODS = ("__init__", "__repr__", "__eq__", "__hash__")
_ATTRIBUTES = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_OF_EACH = ("__dict__", "__weakref__")  # descriptors that every class has of its own
_LOCK = RLock()  # finishing a class finishes its bases first


class _Attribute:
    """Stands for an attribute of the class that the standard library sets."""

    def __init__(self, finish: Callable[[], None], name: str) -> None:
        self._finish, self._name = finish, name

    def __get__(self, instance: object, owner: type) -> Any:
        self._finish()
        return getattr(owner, self._name)


def _method(cls: type, finish: Callable[[], None], name: str) -> Callable[..., Any]:
    """Return the method that stands for one that the standard library writes."""

    def first(self: object, *args: Any, **options: Any) -> Any:
        finish()
        return getattr(cls, name)(self, *args, **options)

    return first


def _refuse(_: object, name: str, *value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _deferred(cls: type, *, kw_only: bool = False) -> type:
    """Let the class stand for the frozen dataclass that it becomes at its first use.

    A copy of the class becomes the dataclass, and what it got is set here one by one: another thread that uses the
    class meanwhile finds each method either finished, or one that waits until it is.
    """
    attributes = {name: value for name, value in vars(cls).items() if name not in _OF_EACH}

    def finish() -> None:
        with _LOCK:
            if isinstance(vars(cls)["__dataclass_fields__"], _Attribute):
                decorate = dataclasses.dataclass(frozen=True, kw_only=kw_only)
                finished = vars(decorate(type(cls)(cls.__name__, cls.__bases__, dict(attributes))))
                for name in attributes.keys() - finished.keys():  # of a field without a default
                    delattr(cls, name)
                for name in finished.keys() - {*_OF_EACH, "__setattr__", "__delattr__"}:
                    if vars(cls).get(name) is not finished[name]:
                        setattr(cls, name, finished[name])

    for name in _METHODS:
        if name not in attributes:
            setattr(cls, name, _method(cls, finish, name))
    for name in _ATTRIBUTES:
        setattr(cls, name, _Attribute(finish, name))
    for name in ("__setattr__", "__delattr__"):
        setattr(cls, name, _refuse)
    return cls


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, **options: Any) -> Any:
        """Decorate as `dataclasses.dataclass`. Classes that are not frozen, or have other options than `kw_only`,
        are finished at once.
        """
        if cls is None and frozen and not options.keys() - {"kw_only"}:
            return partial(_deferred, **options)
        return dataclasses.dataclass(cls, frozen=frozen, **options)


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of a package: `modules` maps each of its modules to names of it."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    return load
