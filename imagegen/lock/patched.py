"""A wheel with patches of the project. Changed files are rewritten, and the RECORD with them.

Members are stored without compression and with fixed times, changed members last. So the bytes depend only on the wheel
and the patches, not on zlib. Source: binary distribution format (PyPA), "The .dist-info directory", for RECORD.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO

from imagegen.checks.worker.errors import Refused
from imagegen.core.config import Settings
from imagegen.core.errors import LockError, WheelError
from imagegen.core.git import command
from imagegen.core.store import Store
from imagegen.core.zip_archive import ArchiveError, ZipArchive
from imagegen.lock.model import PATCHED, LockedFile, WheelPatch

_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive can hold
_LARGEST = 64 << 20  # bytes of a file that is patched
_CHUNK = 1 << 20
_SECTIONS = ("purelib", "platlib")
_UNREADABLE = (
    *(ArchiveError, zipfile.BadZipFile, zlib.error, RuntimeError),
    *(EOFError, KeyError, csv.Error, UnicodeDecodeError),
)


def build(original: LockedFile, patches: Iterable[WheelPatch], store: Store, settings: Settings) -> LockedFile:
    """Write the wheel `original` with the patches, in their order, to the store; all of them must be in it.

    Raises LockError for a patch that `git apply` refuses, WheelError for a wheel that cannot be read, FetchError where
    git is missing or too old.
    """
    try:
        with (
            closing(ZipArchive(store.path(original.digest))),  # it refuses bombs
            zipfile.ZipFile(store.path(original.digest)) as archive,
            store.temporary_directory("patched") as tree,
            tempfile.TemporaryFile(dir=store.root) as target,
        ):
            _write(archive, _edits(archive, patches, tree, store, settings), target)
            size = target.tell()
            target.seek(0)
            with store.writer() as blob:
                while chunk := target.read(_CHUNK):
                    blob.write(chunk)
                digest = blob.commit()
    except _UNREADABLE as error:
        why = f"{type(error).__name__}: {error}"
        raise WheelError(
            "the wheel cannot be patched", code="wheel-invalid", where=original.filename, why=why
        ) from error
    return LockedFile(original.filename, size, digest.removeprefix("sha256:"), PATCHED)


def _edits(
    archive: zipfile.ZipFile, patches: Iterable[WheelPatch], tree: Path, store: Store, settings: Settings
) -> dict[str, Path | None]:
    """Apply the patches below `tree`; return member -> the file with its new contents, None for a deleted one."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) < len(archive.infolist()):
        raise zipfile.BadZipFile("it has a member twice")
    data = {f"{name.split('/')[0]}/" for name in members if name.split("/")[0].endswith(".data")}
    env = command.environment(settings.env, os.devnull)
    members_by_path: dict[str, str] = {}  # path of an installed file -> member
    for patch in patches:
        content = str(store.path(patch.digest))
        try:
            changed = command.run(tree, env, ["apply", "--numstat", "-z", content]).rstrip("\0").split("\0")
            for path in (line.split("\t", 2)[2] for line in changed):
                _require_patchable(path)
                if path in members_by_path:  # as the patches before left it
                    continue
                inside = [f"{folder}{section}/{path}" for folder in data for section in _SECTIONS]
                members_by_path[path] = next((member for member in (path, *inside) if member in members), path)
                if members_by_path[path] in members:
                    _extract(archive, members[members_by_path[path]], tree / path)
            command.run(tree, env, ["apply", "--whitespace=nowarn", content])
            _require_files(tree, members_by_path)
        except (command.FailedError, Refused) as error:
            raise LockError(
                f"a patch of {_release(archive)} does not apply",
                code="lock-patch-invalid",
                where=patch.path,
                why=str(error).strip().replace(content, patch.path),
                fix="make it anew from the files of this release, as `git diff` writes it",
            ) from error
    return {name: tree / path if (tree / path).is_file() else None for path, name in members_by_path.items()}


def _require_patchable(path: str) -> None:
    """Raise Refused for metadata, which decides what is installed, and for a path that leaves site-packages."""
    names = path.split("/")
    if names[0].endswith((".dist-info", ".data")):
        raise Refused(f"{path} is metadata, which decides what is installed")
    if not {"", ".", ".."}.isdisjoint(names):
        raise Refused(f"{path} is not a path below site-packages")


def _require_files(tree: Path, paths: Iterable[str]) -> None:
    """Raise Refused where a patch made a link, through which a file of this machine would be read."""
    for path in paths:
        if (tree / path).is_symlink():
            raise Refused(f"{path} is a link")


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    if info.file_size > _LARGEST:
        raise Refused(f"{info.filename} is larger than {_LARGEST} bytes")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(archive.read(info))
    target.chmod(0o755 if _is_executable(info) else 0o644)


def _is_executable(info: zipfile.ZipInfo) -> bool:
    return bool(info.external_attr >> 16 & 0o100)


def _release(archive: zipfile.ZipFile) -> str:
    """Return name and version of a wheel, by its metadata's directory."""
    names = (info.filename.split("/")[0] for info in archive.infolist())
    return next((name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info")), "the wheel")


def _write(archive: zipfile.ZipFile, edits: Mapping[str, Path | None], target: IO[bytes]) -> None:
    contents = {name: path.read_bytes() if path else None for name, path in edits.items()}
    record = f"{_release(archive)}.dist-info/RECORD"
    contents[record] = _record(archive.read(record), contents)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as written:
        for info in archive.infolist():
            if info.is_dir() or info.filename in contents:
                continue
            entry = _entry(info.filename, executable=_is_executable(info))
            entry.file_size = info.file_size
            with archive.open(info) as opened, written.open(entry, "w") as member:
                shutil.copyfileobj(opened, member, _CHUNK)
        for name, content in sorted(contents.items()):
            path = edits.get(name)
            if content is not None:
                written.writestr(_entry(name, executable=bool(path and path.stat().st_mode & 0o100)), content)


def _entry(name: str, *, executable: bool) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.create_system = 3  # Unix, whose modes these are
    return entry


def _record(content: bytes, edits: Mapping[str, bytes | None]) -> bytes:
    """Return the RECORD with new lines for the changed files; the other lines are unchanged."""
    rows = {row[0]: row for row in csv.reader(io.StringIO(content.decode(), newline="")) if row}
    for name, changed in edits.items():
        rows.pop(name, None) if changed is None else rows.update({name: [name, _hash(changed), str(len(changed))]})
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows.values())
    return text.getvalue().encode()


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
