"""Small wheels made by hand, good ones and others."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

FILENAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"


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
) -> Path:
    """A wheel with the given files, its metadata and RECORD; `add` may spoil it afterwards."""
    name, version = filename.split("-")[:2]
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    everything = {**files, **metadata}
    lines = "".join(record_line(member, data) for member, data in (metadata if record else everything).items())
    lines += (record or "") + extra_record + f"{info}/RECORD,,\n"
    path = directory / filename
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in everything.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", lines)
        if add:
            add(archive)
    return path
