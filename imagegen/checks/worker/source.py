"""Unpack sources at a fixed path and put the patched files over them, unless they are there already.

Objects of an earlier build lie among the sources. They are good for as long as the same description of the build wrote
them, so that is what is compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import Refused

PATCHED = "patched"  # directory beside the archive: files that replace or join those of the archive
_LARGEST = 16 << 30  # bytes unpacked; CUTLASS with all its tests has 0.2 GB
_DECIDES = ("format", "name", "version", "source", "build_requires", "env", "threads", "epoch")


def identity(spec: Mapping[str, Any], sources: Path, interpreter: str) -> str:
    """Return a digest of all inputs of the build's objects that are described here."""
    digest = hashlib.sha256()
    described = {name: spec.get(name) for name in _DECIDES}
    digest.update(json.dumps([described, interpreter], sort_keys=True).encode())
    for path in [sources / spec["source"], *_patched(sources)]:
        digest.update(f"{path.relative_to(sources)} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def unpack(archive: Path, into: Path, epoch: int) -> None:
    """Unpack a tar archive without its top folder. Every file gets the time `epoch`, which ninja compares.

    Raises Refused for what is no such archive, or for members that would lie outside or are no files.
    """
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            top = _top(members)
            into.mkdir(parents=True)
            unpacked = 0
            for member in members:
                unpacked += member.size
                if unpacked > _LARGEST:
                    raise Refused(f"{archive.name}: it unpacks to more than {_LARGEST >> 30} GB")
                _place(tar, member, _inside(member.name, top, archive), into, archive)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise Refused(f"{archive.name}: no tar archive that can be read: {error}") from error
    for folder, _, names in os.walk(into):
        for name in names:
            os.utime(Path(folder, name), (epoch, epoch), follow_symlinks=False)


def _top(members: Sequence[tarfile.TarInfo]) -> str | None:
    """Return the folder that holds everything; None if there is none."""
    tops = {PurePosixPath(member.name).parts[0] for member in members if PurePosixPath(member.name).parts}
    if len(tops) != 1 or any(len(PurePosixPath(member.name).parts) == 1 and not member.isdir() for member in members):
        return None
    return tops.pop()


def _inside(name: str, top: str | None, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise Refused(f"{archive.name}: the member {name!r} would lie outside")
    return path.relative_to(top) if top and path.parts else path


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, path: PurePosixPath, into: Path, archive: Path) -> None:
    place = into / path
    if any((into / parent).is_symlink() for parent in path.parents):
        raise Refused(f"{archive.name}: the member {member.name!r} lies behind a link")
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
    elif member.isreg():
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() or place.exists():
            raise Refused(f"{archive.name}: the member {member.name!r} is there twice")
        content = tar.extractfile(member)
        assert content is not None  # noqa: S101 - a regular file has content
        with place.open("wb") as file:
            shutil.copyfileobj(content, file)
        place.chmod(0o755 if member.mode & 0o100 else 0o644)
    elif member.issym():
        target = PurePosixPath(os.path.normpath(path.parent / member.linkname))
        if PurePosixPath(member.linkname).is_absolute() or ".." in target.parts:
            raise Refused(f"{archive.name}: the link {member.name!r} leads outside")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(member.linkname)
    else:
        raise Refused(f"{archive.name}: the member {member.name!r} is neither a file, a folder nor a link")


def prepare(spec: Mapping[str, Any], sources: Path, into: Path) -> None:
    """Unpack the sources, and over them the archive of patched files. Raises Refused."""
    archive = sources / spec["source"]
    if not archive.is_file():
        raise Refused(f"the source {spec['source']} is not in {sources}")
    unpack(archive, into, spec["epoch"])
    for path in _patched(sources):
        target = into / path.relative_to(sources / PATCHED)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        os.utime(target, (spec["epoch"], spec["epoch"]))


def _patched(sources: Path) -> list[Path]:
    return sorted(path for path in (sources / PATCHED).rglob("*") if path.is_file())
