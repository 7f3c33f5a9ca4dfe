"""A wheel with patches of the project: the files that they change are rewritten, and the RECORD with them.

Members are stored without compression, in their order and with fixed times: the bytes depend on the wheel and on the
patches alone, and on no zlib. Source: binary distribution format (PyPA), "The .dist-info directory", for RECORD.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import IO

from imagegen.core.errors import LockError, WheelError
from imagegen.core.patch import FilePatch, PatchError, apply, parse
from imagegen.core.store import Store
from imagegen.plan.lock.model import PATCHED, LockedFile, WheelPatch

_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive can hold
_LARGEST = 64 << 20  # bytes of a file that is patched
_CHUNK = 1 << 20
_SECTIONS = ("purelib", "platlib")


def build(original: LockedFile, patches: Iterable[WheelPatch], store: Store) -> LockedFile:
    """Write the wheel `original` with the patches, in their order, to the store; all of them must be in it.

    Raises LockError with file and line of a patch that does not apply, and WheelError for a wheel that cannot be read.
    """
    try:
        with zipfile.ZipFile(store.path(original.digest)) as archive:
            edits = _edits(archive, patches, store)
            with tempfile.TemporaryFile(dir=store.root) as made:
                _write(archive, edits, made)
                size = made.tell()
                made.seek(0)
                with store.writer() as blob:
                    while chunk := made.read(_CHUNK):
                        blob.write(chunk)
                    digest = blob.commit()
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, KeyError, csv.Error, UnicodeDecodeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise WheelError(
            "it is no wheel that can be patched", code="wheel-invalid", where=original.filename, why=why
        ) from error
    return LockedFile(original.filename, size, digest.removeprefix("sha256:"), PATCHED)


def _edits(archive: zipfile.ZipFile, patches: Iterable[WheelPatch], store: Store) -> dict[str, bytes | None]:
    """Return member -> its new contents, None for one that is deleted."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) < len(archive.infolist()):
        raise zipfile.BadZipFile("it has a member twice")
    data = {f"{name.split('/')[0]}/" for name in members if name.split("/")[0].endswith(".data")}
    edits: dict[str, bytes | None] = {}

    def member(path: str) -> str:
        inside = [f"{folder}{section}/{path}" for folder in data for section in _SECTIONS]
        return next((each for each in (path, *inside) if each in members or each in edits), path)

    def read(path: str) -> bytes | None:
        name = member(path)
        if name in edits or name not in members:
            return edits.get(name)
        if members[name].file_size > _LARGEST:
            raise PatchError(1, f"{path} is larger than {_LARGEST} bytes")
        return archive.read(name)

    for patch in patches:
        with store.open(patch.digest) as opened:
            content = opened.read()
        try:
            for each in parse(content):
                _require_no_metadata(each)
                edits[member(each.path)] = apply(each, read)
        except PatchError as error:
            raise LockError(
                f"a patch of {_release(archive)} does not apply",
                code="lock-patch-invalid",
                where=f"{patch.path}:{error.line}",
                why=str(error),
                fix="make it anew from the files of this release: no line may differ, and none be elsewhere",
            ) from error
    return edits


def _require_no_metadata(patch: FilePatch) -> None:
    if patch.path.split("/")[0].endswith((".dist-info", ".data")):
        raise PatchError(patch.line, f"{patch.path} is metadata, which decides what is installed")


def _release(archive: zipfile.ZipFile) -> str:
    """Return name and version of a wheel, by its metadata's directory."""
    names = (info.filename.split("/")[0] for info in archive.infolist())
    return next((name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info")), "the wheel")


def _write(archive: zipfile.ZipFile, edits: Mapping[str, bytes | None], target: IO[bytes]) -> None:
    record = f"{_release(archive)}.dist-info/RECORD"
    whole = {**edits, record: _record(archive.read(record), edits)}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as written:
        for info in archive.infolist():
            if info.is_dir() or (info.filename in whole and whole[info.filename] is None):
                continue
            entry = _entry(info.filename, executable=bool(info.external_attr >> 16 & 0o100))
            if (content := whole.pop(info.filename, None)) is not None:
                written.writestr(entry, content)
                continue
            entry.file_size = info.file_size
            with archive.open(info) as opened, written.open(entry, "w") as member:
                shutil.copyfileobj(opened, member, _CHUNK)
        for name, content in sorted(whole.items()):
            if content is not None:
                written.writestr(_entry(name, executable=False), content)


def _entry(name: str, *, executable: bool) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.create_system = 3  # Unix, whose modes these are
    return entry


def _record(content: bytes, edits: Mapping[str, bytes | None]) -> bytes:
    """Return the RECORD with the lines of the changed files; all others stay as they are."""
    rows = {row[0]: row for row in csv.reader(io.StringIO(content.decode(), newline="")) if row}
    for name, changed in edits.items():
        rows.pop(name, None) if changed is None else rows.update({name: [name, _hash(changed), str(len(changed))]})
    made = io.StringIO(newline="")
    csv.writer(made, lineterminator="\n").writerows(rows.values())
    return made.getvalue().encode()


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
