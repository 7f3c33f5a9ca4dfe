"""Small wheels for tests, valid and malformed ones."""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import zipfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

FILENAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
METADATA = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    quoted = '"' + name.replace('"', '""') + '"'
    return f"{quoted},sha256={digest},{len(data)}\n"


def make_wheel(
    directory: Path,
    files: Mapping[str, bytes],
    add: Callable[[zipfile.ZipFile], None] | None = None,
    *,
    filename: str = FILENAME,
    info: str = INFO,
    record: str | None = None,
    extra_record: str = "",
    metadata: Mapping[str, str] | None = None,
    compression: int = zipfile.ZIP_DEFLATED,
    stream: bool = False,
    zip64: bool = False,
) -> Path:
    """A wheel with the given files, its metadata and RECORD; `add` may spoil it afterwards.

    `stream` writes sizes behind the data, as to a pipe; `zip64` gives the wide fields to a wheel that needs none.
    """
    name, version = filename.split("-")[:2]
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": WHEEL,
        **(metadata or {}),
    }
    own = {f"{info}/{file}": text.encode() for file, text in texts.items()}
    everything = {**files, **own}
    lines = "".join(record_line(member, data) for member, data in (own if record else everything).items())
    lines += (record or "") + extra_record + f"{info}/RECORD,,\n"
    path = directory / filename
    with path.open("wb") as file, zipfile.ZipFile(_Pipe(file) if stream else file, "w", compression) as archive:
        for member, data in {**everything, f"{info}/RECORD": lines.encode()}.items():
            entry = zipfile.ZipInfo(member)  # of 1980, so that a wheel made a second time is the same file
            with archive.open(entry, "w", force_zip64=zip64) if zip64 else nullcontext() as wide:
                wide.write(data) if wide else archive.writestr(entry, data, compression)
        if add:
            add(archive)
    if zip64:
        path.write_bytes(_widened(path.read_bytes()))
    return path


class _Pipe(io.RawIOBase):
    """A file that cannot be sought in."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        return self._file.write(data)


def _widened(raw: bytes) -> bytes:
    """The same zip file with zip64 end records, as of one with more than 65535 members."""
    at = raw.rindex(b"PK\x05\x06")
    count, size, start = struct.unpack_from("<HLL", raw, at + 10)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, at, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return raw[:at] + end64 + locator + end


def seeds(work_dir: Path) -> dict[str, bytes]:
    """Good wheels of every shape that the reader knows: where fuzzing begins."""
    files = {"demo/__init__.py": b"x = 1\n", "demo/data.bin": bytes(range(256)) * 4, "demo/é.txt": b"text"}
    scripts = b"[console_scripts]\ndemo-run = demo.cli:App.main [extra]\n"
    data = {"demo-1.0.data/scripts/tool": b"#!python\nprint(1)\n", "demo-1.0.data/data/share/demo.txt": b"text"}
    full = {**files, **data, f"{INFO}/entry_points.txt": scripts}
    made = {
        "plain": make_wheel(work_dir, files).read_bytes(),
        "full": make_wheel(work_dir, full).read_bytes(),
        "stored": make_wheel(work_dir, full, compression=zipfile.ZIP_STORED).read_bytes(),
        "streamed": make_wheel(work_dir, full, stream=True).read_bytes(),
        "zip64": make_wheel(work_dir, files, zip64=True).read_bytes(),
    }
    (work_dir / FILENAME).unlink()
    return made
