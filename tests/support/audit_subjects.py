"""Subjects for tests of the audit's loader: files by path, each as short as its test allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from imagegen.audit.closure import Library, Loader
from imagegen.audit.model import Elf, File, Package, Subject, SystemLibraries

LIBC = Elf(62, "libc.so.6", exported=frozenset({"malloc", "free"}), provides=frozenset({"GLIBC_2.17", "GLIBC_2.36"}))
LIBM = Elf(62, "libm.so.6", exported=frozenset({"pow"}), provides=frozenset({"GLIBC_2.29"}))
PYTHON = Elf(62, needed=("libc.so.6",), exported=frozenset({"PyObject_Call", "PyLong_FromLong"}), program=True)


def elf(*needed: str, **facts: Any) -> Elf:
    """Strings for `undefined`, `exported` and `provides` are split at spaces; `machine` is x86-64."""
    for name in ("undefined", "exported", "provides"):
        if isinstance(facts.get(name), str):
            facts[name] = frozenset(facts[name].split())
    for name in ("rpath", "runpath"):
        if isinstance(facts.get(name), str):
            facts[name] = tuple(facts[name].split(":"))
    return replace(Elf(62, needed=needed), **facts)


def module(*needed: str, exported: str = "", **facts: Any) -> Elf:
    """An extension module."""
    return elf(*needed, exported=f"PyInit_it {exported}", **facts)


def package(name: str, files: Mapping[str, Elf], version: str = "1.0") -> Package:
    return Package(name, version, {path: File(1, elf=found) for path, found in files.items()})


def system(
    libraries: Mapping[str, Elf] | None = None,
    paths: Mapping[str, str] | None = None,
    preloaded: tuple[str, ...] = (),
    interpreter: Elf | None = PYTHON,
) -> SystemLibraries:
    """Return a system with the named libraries, libc and libm, in Debian's directory unless `paths` says otherwise."""
    there = {"libc.so.6": LIBC, "libm.so.6": LIBM, **(libraries or {})}
    places = {name: f"/lib/x86_64-linux-gnu/{name}" for name in there} | dict(paths or {})
    python = File(1, elf=interpreter) if interpreter else None
    return SystemLibraries({name: File(1, elf=found) for name, found in there.items()}, places, preloaded, python)


def subject(
    *packages: Package, base: SystemLibraries | None = None, python: str | None = "3.11", known: bool = True
) -> Subject:
    return Subject("test", packages, base or (system() if known else None), python)


def at(loader: Loader, path: str) -> Library:
    return next(library for library in loader.libraries if library.path == path)
