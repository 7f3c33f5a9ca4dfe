"""Write entries below matrices/. Each has one image, is tried before it is written, and replaces no other image.

`lock_changed` writes an image with changes as an entry that extends it, together with its first lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from imagegen.app.check_locks import LockedImage
from imagegen.app.make_locks import lock_image
from imagegen.app.matrices import Matrices
from imagegen.app.session import Session
from imagegen.core import data, temporary
from imagegen.core import types as t
from imagegen.core.errors import MatrixErrors, UsageError
from imagegen.core.types import parse_requirement
from imagegen.lock.make.options import LockOptions
from imagegen.spec.model import Cell


def entry_path(matrices: Matrices, name: str, mark: str) -> Path:
    """Return the path of the file that holds the image `name`: a new one, or one that begins with `mark`.

    Raises UsageError for a name that is malformed or that another image has.
    """
    try:
        TypeAdapter(t.Name).validate_python(name)
    except ValidationError as error:
        fix = "lower-case letters and digits, with - and . between them, as in my-rl"
        raise UsageError(f'"{name}" cannot name an image', code="usage-name-invalid", fix=fix) from error
    path = matrices.project.directory / "matrices" / f"{name}.yaml"
    exists = path.exists()
    is_ours = exists and data.read(path).decode(errors="replace").startswith(mark)
    if not is_ours and (exists or name in matrices.matrix.defaults):
        why = f"this command did not write {path}" if exists else "a file of the matrix defines it"
        raise UsageError(f'"{name}" is an image already', code="usage-name-taken", why=why)
    return path


@contextlib.contextmanager
def trial(session: Session, path: Path, text: str) -> Iterator[Session]:
    """Give a session in which `text` is the contents of the matrix file at `path`, which is not written."""
    with temporary.temporary_directory() as folder:
        file = folder / "matrices" / path.name
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
        yield session.with_matrices(file.parent)


def write_entry(path: Path, text: str) -> None:
    """Write the file. Raises UsageError if it cannot be written; then it is unchanged."""
    try:
        path.parent.mkdir(exist_ok=True)
        data.write(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written", code="usage-unwritable", why=error.strerror) from error


_MARK = "# Written by `imagegen lock --name`, which replaces this file; remove this line to keep it as your own.\n"


@dataclass(frozen=True)
class Changes:
    """Changes of an image, as the options of `imagegen lock` give them: PEP 508 requirements, and names."""

    pins: tuple[str, ...] = ()  # with a version
    additions: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # of Debian
    removals: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


def lock_changed(
    session: Session, parent: Cell, name: str, changes: Changes, options: LockOptions, *, record: bool
) -> LockedImage:
    """Lock the image `name`, which is `parent` with the changes, and write its entry to matrices/<name>.yaml.

    The entry is written after the lock, so that a lock that fails leaves nothing. Raises UsageError for changes that do
    not fit the parent, and for a name that is taken; and as `lock_image`.
    """
    path = entry_path(session.matrices, name, _MARK)
    entry = _entry(session.matrices, parent, changes)
    text = _text(name, {"override": True, **entry} if path.exists() else entry)
    with trial(session, path, text) as derived:
        try:
            cell = derived.matrices.matrix.select_one(name)
        except MatrixErrors as error:
            raise UsageError(
                f"the changes do not fit {parent.image}",
                code="usage-changes-invalid",
                why="; ".join(matrix_error.what for matrix_error in error.errors),
                fix=error.errors[0].fix,
            ) from error
        lock_path = session.lock_files.path(cell)
        before = lock_path.read_bytes() if lock_path.exists() else None
        locked = lock_image(derived, cell, options, record=record)
    try:
        write_entry(path, _MARK + _text(name, entry))
    except UsageError:
        if before is None:
            lock_path.unlink()
        else:
            data.write(lock_path, before)
        raise
    session.project.progress.say(f"{path}: {cell.description}")
    return locked


def _text(name: str, entry: dict[str, Any]) -> str:
    return yaml.safe_dump({"images": {name: entry}}, sort_keys=False, allow_unicode=True, width=110)


def _entry(matrices: Matrices, parent: Cell, changes: Changes) -> dict[str, Any]:
    """Return the entry of the changed image. It has the parent's axes unless the parent is the default cell."""
    default = matrices.matrix.select_one(parent.image)
    axes = {axis: [value] for axis, value in parent.axes.items() if value != default.axes[axis]}
    pins, additions, overrides = (
        [_parse(option, text) for text in texts]
        for option, texts in (
            ("--set", changes.pins),
            ("--add", changes.additions),
            ("--override", changes.overrides),
        )
    )
    versions = {pin.name: str(pin.specifier).removeprefix("==").removesuffix(".*") for pin in pins}
    axes |= {"python": [versions["python"]]} if "python" in versions else {}
    pins = [pin for pin in pins if pin.name != "python"]
    reason = f"{{}} {parent.image} with `imagegen lock {{}}`."
    fields = {
        "axes": axes,
        "components": dict(_components(matrices, parent, pins, reason.format("Changed in", "--set")))
        | dict(_components(matrices, parent, additions, reason.format("Added to", "--add"))),
        "packages": dict.fromkeys(changes.packages, reason.format("Added to", "--package")),
        "overrides": {
            canonicalize_name(override.name): {
                "version": str(override.specifier),
                "because": reason.format("Changed in", "--override"),
            }
            for override in overrides
        },
        "without": list(changes.removals),
    }
    return {"extends": parent.image, **{key: value for key, value in fields.items() if value}}


def _parse(option: str, text: str) -> Requirement:
    """Return the requirement that an option gives. Raises UsageError."""
    try:
        required = parse_requirement(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", code="usage-changes-invalid") from error
    if required.url or required.marker or (option != "--add" and not required.specifier):
        fix = "as in vllm==0.26.0; a package without a version is added with --add"
        message = f"{option} takes a name and a version, not {text!r}"
        raise UsageError(message, code="usage-changes-invalid", fix=fix)
    return required


def _components(
    matrices: Matrices, parent: Cell, requirements: Iterable[Requirement], reason: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    names = {component.package: name for name, component in matrices.matrix.components.items()}
    before = {requirement.component.package: requirement for requirement in parent.requirements}
    for required in requirements:
        package = canonicalize_name(required.name)
        old = before.get(package)
        use: dict[str, Any] = {"version": str(required.specifier)} if required.specifier else {}
        if extras := sorted({*required.extras, *(old.extras if old else ())}):
            use["extras"] = extras
        if old and old.from_source:
            use["from_source"] = True
        if package in names:
            use["because"] = reason
        yield names.get(package, package), use
