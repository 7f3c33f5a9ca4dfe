"""Files of matrices/ that a command writes: one image each, tried before it is written, and never another one's."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from imagegen.app.session import Session
from imagegen.core import data
from imagegen.core import types as t
from imagegen.core.errors import UsageError


def entry_path(session: Session, name: str, mark: str) -> Path:
    """Return the path of the file that holds the image `name`: a new one, or one that begins with `mark`.

    Raises UsageError for a name that is malformed, or that of another image.
    """
    try:
        TypeAdapter(t.Name).validate_python(name)
    except ValidationError as error:
        fix = "lower-case letters and digits, with - and . between them, as in my-rl"
        raise UsageError(f'"{name}" cannot name an image', code="usage-name-invalid", fix=fix) from error
    path = session.project / "matrices" / f"{name}.yaml"
    there = path.exists()
    is_ours = there and data.read(path).decode(errors="replace").startswith(mark)
    if not is_ours and (there or name in session.matrix.defaults):
        why = f"this command did not write {path}" if there else "a file of the matrix defines it"
        raise UsageError(f'"{name}" is an image already', code="usage-name-taken", why=why)
    return path


@contextlib.contextmanager
def trial(session: Session, path: Path, text: str) -> Iterator[Session]:
    """Give a session in which `text` is the contents of the matrix file at `path`, which is not written."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "matrices", path.name)
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
        yield session.with_matrices(file.parent)


def write_entry(path: Path, text: str) -> None:
    """Write the file. Raises UsageError where it cannot be written; then it is as it was."""
    try:
        path.parent.mkdir(exist_ok=True)
        data.write(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written", code="usage-unwritable", why=error.strerror) from error
