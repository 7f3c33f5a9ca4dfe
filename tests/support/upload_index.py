"""A package index on loopback whose files have upload times."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.uv_resolve import Site

TARGET = WheelTarget("3.11.2", "x86_64", 36)
OLD, NEW = "2026-01-01T00:00:00Z", "2026-06-01T00:00:00Z"


class PackageIndex:
    """An index as a directory, served to uv as file://."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def site(self) -> Site:
        return Site(self.root.as_uri())

    def wheel(self, name: str, version: str, *requires: str, tag: str = "py3-none-any", uploaded: str = OLD) -> None:
        filename = f"{name.replace('-', '_')}-{version}-{tag}.whl"
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as archive:
            info = f"{name.replace('-', '_')}-{version.partition('-')[0]}.dist-info"
            lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version.partition('-')[0]}"]
            archive.writestr(f"{info}/METADATA", "\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires)]))
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}")
            archive.writestr(f"{info}/RECORD", "")
        self.add(name, filename, body.getvalue(), uploaded)

    def sdist(self, name: str, version: str, files: dict[str, str]) -> None:
        body = io.BytesIO()
        files = {"PKG-INFO": f"Metadata-Version: 1.0\nName: {name}\nVersion: {version}\n"} | files
        with tarfile.open(fileobj=body, mode="w:gz") as archive:
            for path, text in files.items():
                member = tarfile.TarInfo(f"{name}-{version}/{path}")
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        self.add(name, f"{name}-{version}.tar.gz", body.getvalue(), OLD)

    def add(self, name: str, filename: str, body: bytes, uploaded: str) -> None:
        directory = self.root / name
        directory.mkdir(exist_ok=True)
        (directory / filename).write_bytes(body)
        with (directory / "index.html").open("a") as page:
            digest = hashlib.sha256(body).hexdigest()
            time = f' data-upload-time="{uploaded}"' if uploaded else ""
            page.write(f'<a href="{filename}#sha256={digest}"{time}>{filename}</a><br/>\n')
