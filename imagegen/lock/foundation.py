"""The tables of base and interpreter in a lock."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Literal
from urllib.parse import unquote

from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.lock.distributions import archive_at
from imagegen.lock.distributions import archives as named_archives
from imagegen.lock.tables import INTERPRETER, HashedFile, LockedFile, LockTable, inline
from imagegen.oci.documents import RemoteImage, digest_of
from imagegen.spec.foundation import Interpreter, interpreter_prefix

_nest_config = inline(config=("env", "entrypoint", "command", "user", "directory"), required=True)


@dataclass(frozen=True)
class LockedDeb(HashedFile, LockTable):
    name: t.DebianPackage
    version: t.DebianVersion
    architecture: t.Word
    size: t.Size
    sha256: t.Sha256
    archive: t.ArchiveName  # "debian", "debian-security", "ubuntu", or an address without scheme
    path: t.UrlPath  # below the archive's root: "pool/main/p/python3.11/python3.11_3.11.2-6_amd64.deb"


@dataclass(frozen=True)
class LockedBase(LockTable):
    """The base, resolved. `archives` maps an archive's suite to the Date of its signed Release file.

    In a base of kind registry, `content` is the platform's image that the registry had under the name `image`.
    """

    name: t.Word
    kind: Literal["debian", "registry"]
    suite: t.Word | None = None
    archives: Mapping[t.ArchivePart, t.Time] = field(default_factory=dict)  # by "debian/bookworm"
    debs: tuple[LockedDeb, ...] = ()  # sorted by name
    image: t.ImageReference | None = None
    content: Annotated[RemoteImage, t.Check(_nest_config, before=True)] | None = None

    def check(self) -> None:
        registered = (self.image is not None, self.content is not None)
        if registered != (self.kind == "registry",) * 2 or (self.suite is None) != (self.kind == "registry"):
            raise ValueError("a base of kind debian has a suite, one of kind registry an image and its content")
        if self.kind == "registry" and (self.debs or self.archives):
            raise ValueError("a base of kind registry has no locked Debian packages")
        archive_names = {suite.partition("/")[0] for suite in self.archives}
        for name, archives in (
            ("debs", {deb.archive for deb in self.debs} - archive_names),
            ("archives", archive_names - named_archives().keys()),
        ):
            if archives:
                raise ValueError(f"{name} name an unknown archive: {', '.join(sorted(archives))}")


@dataclass(frozen=True)
class LockedArchive(LockTable):
    """One suite of an archive that packages were resolved from. A flat archive's suite ends in a slash."""

    archive: t.ArchiveName  # as in LockedDeb
    suite: t.Suite  # "jammy-updates"
    components: tuple[t.ArchivePart, ...]
    date: t.Time  # of its signed Release file
    address: t.ArchiveUrl | None = None  # as the image's sources have it; None: of an archive that has a name


@dataclass(frozen=True)
class LockedPackages(LockTable):
    """Packages that are added above a base, resolved: those requested, and the debs that the base lacks for them."""

    requested: Mapping[t.DebianPackage, t.Line]  # package -> reason; by name
    archives: tuple[LockedArchive, ...]  # those that debs come from, sorted
    debs: tuple[LockedDeb, ...]  # sorted by name

    def check(self) -> None:
        for archive in self.archives:
            is_named = archive.archive in named_archives()
            if is_named == bool(archive.address) or (
                archive.address and archive.archive != archive_at(archive.address)
            ):
                raise ValueError(
                    f"{archive.address} is not the address of {archive.archive}, or it has a name of its own"
                )
        if unknown := {deb.archive for deb in self.debs} ^ {archive.archive for archive in self.archives}:
            raise ValueError(f"archives and debs name different archives: {', '.join(sorted(unknown))}")


# The platform of most machines that build images. Byte-code is the same for all processors. So an interpreter of this
# platform compiles it for images of other platforms too, without emulation.
BUILD_PLATFORM = "linux/amd64"

# The table of an interpreter in a lock. Nothing here reads a file.

# The releases of python-build-standalone; uv's UV_PYTHON_INSTALL_MIRROR replaces this address.
DOWNLOADS = "https://github.com/astral-sh/python-build-standalone/releases/download"
MIRROR = "UV_PYTHON_INSTALL_MIRROR"
FORMAT = 1  # raise it with every change of the unpacked files or their patches
_OWN_PYTHON = re.compile(r"python3\.[0-9]+")


@dataclass(frozen=True)
class InterpreterArchive(HashedFile, LockTable):
    """The archive of a standalone interpreter, identified by its hash. Its publisher's lists do not give its size."""

    filename: Annotated[t.FileName, t.field_info("file")]  # "cpython-3.12.14+20260814-...-install_only_stripped.tar.gz"
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
    file: Annotated[InterpreterArchive | None, t.field_info(".file")] = None

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
