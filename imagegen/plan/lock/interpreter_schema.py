"""The part of a lock file that says on which interpreter the stack rests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator

from imagegen.plan.lock import forms as f
from imagegen.plan.lock.forms import CONFIG, names_file
from imagegen.plan.lock.interpreter import InterpreterArchive, LockedInterpreter
from imagegen.plan.matrix.interpreters import prefix


class Interpreter(BaseModel):
    """The table `interpreter`; a standalone build has release, file, sha256 and url, a distribution's none of them."""

    model_config = CONFIG

    name: f.Word
    version: f.PythonVersion
    path: f.Interpreter
    release: f.GitName | None = None
    file: f.FileName | None = None
    sha256: f.Sha256 | None = None
    url: f.FileUrl | None = None

    @property
    def python(self) -> str:
        """The minor version."""
        return ".".join(self.version.split(".")[:2])

    @model_validator(mode="after")
    def _of_its_provider(self) -> Interpreter:
        given = [each is not None for each in (self.release, self.file, self.sha256, self.url)]
        if any(given) != all(given):
            raise ValueError("a standalone interpreter has release, file, sha256 and url, another none of them")
        if self.file and self.path != f"{prefix(self.python)}/bin/python{self.python}":
            raise ValueError(f"a standalone Python {self.version} lies in {prefix(self.python)}, not at {self.path}")
        if self.file and self.url and not names_file(self.url, self.file):
            raise ValueError(f"{self.url} is not the address of {self.file}")
        return self

    def to_model(self) -> LockedInterpreter:
        archive = None
        if self.file and self.sha256 and self.url:
            archive = InterpreterArchive(self.file, self.sha256, self.url)
        return LockedInterpreter(self.name, self.version, self.path, archive, self.release)


def interpreter_table(locked: LockedInterpreter) -> dict[str, Any]:
    """Return the table as the file has it; what is None is left out."""
    table = {"name": locked.name, "version": locked.version, "path": locked.path}
    if locked.file is None:
        return table
    file = {"file": locked.file.filename, "sha256": locked.file.sha256, "url": locked.file.url}
    return table | {"release": locked.release} | file
