"""An interpreter as it stands in a lock. Nothing here reads a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote

from pydantic import Field, model_validator

from imagegen.core import types as t
from imagegen.core.store import digest_of
from imagegen.plan.lock.base import Deb, LockedBase
from imagegen.plan.lock.tables import Table, inlined
from imagegen.plan.matrix.interpreters import prefix
from imagegen.plan.matrix.model import Interpreter

# Of python-build-standalone; uv's UV_PYTHON_INSTALL_MIRROR replaces it.
DOWNLOADS = "https://github.com/astral-sh/python-build-standalone/releases/download"
FORMAT = 1  # raise it with every change to what is unpacked of an archive, or how it is patched
_OWN_PYTHON = re.compile(r"python3\.[0-9]+")


@dataclass(frozen=True)
class InterpreterArchive(Table):
    """The archive of a standalone interpreter, identified by its hash. Its publisher's lists do not give its size."""

    filename: Annotated[t.FileName, Field(alias="file")]  # "cpython-3.12.14+20260814-...-install_only_stripped.tar.gz"
    sha256: t.Sha256
    url: t.FileUrl  # "https://github.com/astral-sh/python-build-standalone/releases/download/20260814/cpython-..."

    @property
    def digest(self) -> str:
        """The digest of the archive as a blob of the store."""
        return f"sha256:{self.sha256}"


@dataclass(frozen=True)
class LockedInterpreter(Table):
    """The Python that the stack rests on: of the base's packages, or a standalone build, which has a `file`."""

    name: t.Word  # as in the matrix: "debian12-3.11", "standalone-3.12"
    version: t.PythonVersion  # "3.12.14"; the minor version alone where no package of the base tells more
    path: t.AbsolutePath  # of the program in the image: "/opt/python/3.12/bin/python3.12"
    release: t.GitName | None = None  # of a standalone build: "20260814"
    file: Annotated[InterpreterArchive | None, Field(alias=".file")] = None

    @property
    def minor(self) -> str:
        """The minor version: "3.12"."""
        return ".".join(self.version.split(".")[:2])

    _nest = inlined(file=("file", "sha256", "url"))

    @model_validator(mode="after")
    def _is_of_its_provider(self) -> LockedInterpreter:
        if (self.release is None) != (self.file is None):
            raise ValueError("a standalone interpreter has release, file, sha256 and url, another none of them")
        if self.file and self.path != f"{prefix(self.minor)}/bin/python{self.minor}":
            raise ValueError(f"a standalone Python {self.version} lies in {prefix(self.minor)}, not at {self.path}")
        if self.file and not t.names_file(self.file.url, self.file.filename):
            raise ValueError(f"{self.file.url} is not the address of {self.file.filename}")
        return self

    def __str__(self) -> str:
        """Return the name for messages: "Python 3.12.14 of python-build-standalone 20260814"."""
        return f"Python {self.version}" + (f" of python-build-standalone {self.release}" if self.file else "")


def lock_interpreter(asked: Interpreter, platform: str, debs: Iterable[Deb]) -> LockedInterpreter:
    """Return the interpreter of a cell as its lock repeats it; its `debs` know the version of a distribution's."""
    if file := asked.files.get(platform):
        name = unquote(file.path.rpartition("/")[2])
        archive = InterpreterArchive(name, file.sha256, f"{DOWNLOADS}/{file.path}")
        return LockedInterpreter(asked.name, str(asked.version), asked.path, asked.release, archive)
    versions = {deb.name: deb.version for deb in debs}
    exact = re.match(r"(?:\d+:)?(\d+\.\d+\.\d+)", versions.get(f"python{asked.python}", ""))
    return LockedInterpreter(asked.name, exact[1] if exact else asked.python, asked.path)


def interpreter_key(locked: LockedInterpreter) -> str:
    """Return the digest of all that decides the files of a standalone interpreter: archive, place, and the patches."""
    inputs = {"format": FORMAT, "path": locked.path, "sha256": locked.file.sha256 if locked.file else None}
    return digest_of(json.dumps(inputs, sort_keys=True).encode())


def directory(locked: LockedInterpreter) -> str:
    """Return the directory of a standalone interpreter in an image: /opt/python/3.12."""
    return locked.path.rpartition("/bin/")[0]


def own_python(base: LockedBase) -> str | None:
    """Return the path of the Python that the base's Debian packages bring; None where they bring none."""
    names = sorted(deb.name for deb in base.debs if _OWN_PYTHON.fullmatch(deb.name))
    return f"/usr/bin/{names[0]}" if names else None
