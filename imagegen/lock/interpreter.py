"""The table of an interpreter in a lock."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import unquote

from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.validation import field_info
from imagegen.lock.foundation import LockedBase, LockedDeb
from imagegen.lock.tables import HashedFile, LockTable, inline
from imagegen.lock.wheels import INTERPRETER, LockedFile
from imagegen.oci.documents import digest_of
from imagegen.spec.foundation import Interpreter, interpreter_prefix

# The releases of python-build-standalone; uv's UV_PYTHON_INSTALL_MIRROR replaces this address.
DOWNLOADS = "https://github.com/astral-sh/python-build-standalone/releases/download"
MIRROR = "UV_PYTHON_INSTALL_MIRROR"
FORMAT = 1  # raise it with every change of the unpacked files or their patches
_OWN_PYTHON = re.compile(r"python3\.[0-9]+")


@dataclass(frozen=True)
class InterpreterArchive(HashedFile, LockTable):
    """The archive of a standalone interpreter, identified by its hash. Its publisher's lists do not give its size."""

    filename: Annotated[t.FileName, field_info("file")]  # "cpython-3.12.14+20260814-...-install_only_stripped.tar.gz"
    sha256: t.Sha256
    url: t.FileUrl  # "https://github.com/astral-sh/python-build-standalone/releases/download/20260814/cpython-..."

    @property
    def locked_file(self) -> LockedFile:
        return LockedFile(self.filename, None, self.sha256, INTERPRETER, url=self.url)


@dataclass(frozen=True)
class LockedInterpreter(LockTable):
    """The Python that the stack rests on: of the base's packages, or a standalone build, which has a `file`."""

    name: t.Word  # as in the matrix: "debian12-3.11", "standalone-3.12"
    version: t.PythonVersion  # "3.12.14"; only the minor version if no package of the base states more
    path: t.AbsolutePath  # of the program in the image: "/opt/python/3.12/bin/python3.12"
    release: t.GitName | None = None  # of a standalone build: "20260814"
    file: Annotated[InterpreterArchive | None, field_info(".file")] = None

    @property
    def minor(self) -> str:
        """The minor version: "3.12"."""
        return ".".join(self.version.split(".")[:2])

    nest = staticmethod(inline(file=("file", "sha256", "url")))

    def check(self) -> None:
        if (self.release is None) != (self.file is None):
            raise ValueError("a standalone interpreter has release, file, sha256 and url, another none of them")
        prefix = interpreter_prefix(self.minor)
        if self.file and self.path != f"{prefix}/bin/python{self.minor}":
            raise ValueError(f"a standalone Python {self.version} lies in {prefix}, not at {self.path}")
        if self.file and not t.names_file(self.file.url, self.file.filename):
            raise ValueError(f"{self.file.url} is not the address of {self.file.filename}")

    def __str__(self) -> str:
        """Return the name for messages: "Python 3.12.14 of python-build-standalone 20260814"."""
        return f"Python {self.version}" + (f" of python-build-standalone {self.release}" if self.file else "")


def resolve_interpreter(requested: Interpreter, platform: str, debs: Iterable[LockedDeb]) -> LockedInterpreter:
    """Return the interpreter of a cell for its lock; the version of a distribution's Python is taken from `debs`."""
    if file := requested.files.get(platform):
        name = unquote(file.path.rpartition("/")[2])
        archive = InterpreterArchive(name, file.sha256, f"{DOWNLOADS}/{file.path}")
        return LockedInterpreter(requested.name, str(requested.version), requested.path, requested.release, archive)
    versions = {deb.name: deb.version for deb in debs}
    exact = re.match(r"(?:\d+:)?(\d+\.\d+\.\d+)", versions.get(f"python{requested.python}", ""))
    return LockedInterpreter(requested.name, exact[1] if exact else requested.python, requested.path)


def interpreter_key(locked: LockedInterpreter) -> str:
    """Return the digest of all inputs of a standalone interpreter's files: archive, path, and the patches."""
    inputs = {"format": FORMAT, "path": locked.path, "sha256": locked.file.sha256 if locked.file else None}
    return digest_of(json.dumps(inputs, sort_keys=True).encode())


def directory(locked: LockedInterpreter) -> str:
    """Return the directory of a standalone interpreter in an image: /opt/python/3.12."""
    return locked.path.rpartition("/bin/")[0]


def own_python(base: LockedBase) -> str | None:
    """Return the path of the Python that the base's Debian packages install; None if they install none."""
    names = sorted(deb.name for deb in base.debs if _OWN_PYTHON.fullmatch(deb.name))
    return f"/usr/bin/{names[0]}" if names else None
