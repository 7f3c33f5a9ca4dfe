"""A package index on loopback: pages in HTML and JSON, wheels that are read in ranges, and what was asked of it."""

from __future__ import annotations

import hashlib
import html
import io
import json
import random
import zipfile
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from tests.support.http_server import Loopback


@dataclass(frozen=True)
class Offer:
    """A line of a project's page."""

    filename: str
    uploaded: str = "2026-11-20T23:30:00.123456Z"
    python: str = ">=3.10"
    yanked: str | None = None
    metadata_sha256: str | None = None
    sha256: str = "0" * 64
    size: int | None = None

    def anchor(self) -> str:
        said = {"data-requires-python": self.python, "data-upload-time": self.uploaded}
        said |= {"data-yanked": self.yanked} if self.yanked is not None else {}
        said |= {"data-core-metadata": f"sha256={self.metadata_sha256}"} if self.metadata_sha256 else {}
        attributes = " ".join(f'{key}="{html.escape(value)}"' for key, value in said.items())
        return f'<a href="/files/{self.filename}#sha256={self.sha256}" {attributes}>{self.filename}</a><br/>'

    def table(self) -> dict[str, object]:
        table: dict[str, object] = {
            "filename": self.filename,
            "url": f"/files/{self.filename}",
            "hashes": {"sha256": self.sha256},
            "requires-python": self.python,
            "upload-time": self.uploaded,
            "yanked": False if self.yanked is None else self.yanked or True,
        }
        table |= {"size": self.size} if self.size is not None else {}
        return table | ({"core-metadata": {"sha256": self.metadata_sha256}} if self.metadata_sha256 else {})


class Index(Loopback):
    """Serves `pages` and `files` by path; `requested` has each request as (method, path, range)."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.requested: list[tuple[str, str, str]] = []
        self.ranges = True
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                required = self.headers.get("Range", "")
                index.requested.append((self.command, self.path, required))
                content = index.pages.get(self.path, index.files.get(self.path))
                if content is None:
                    self.send_error(404)
                    return
                start, _, end = required.removeprefix("bytes=").partition("-")
                part = content[int(start) : int(end) + 1] if required and index.ranges else content
                self.send_response(206 if required and index.ranges else 200)
                self.send_header("Content-Length", str(len(part)))
                kind = "application/vnd.pypi.simple.v1+json" if content[:1] == b"{" else "text/html"
                self.send_header("Content-Type", kind)
                if required and index.ranges:
                    self.send_header("Content-Range", f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(part)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)
        self.url = f"http://{self.host}/simple"

    def page(self, package: str, *offers: Offer, as_json: bool = False) -> None:
        """The page of a project."""
        if as_json:
            table = {"meta": {"api-version": "1.1"}, "name": package, "files": [offer.table() for offer in offers]}
            self.pages[f"/simple/{package}/"] = json.dumps(table).encode()
        else:
            lines = "\n".join(offer.anchor() for offer in offers)
            self.pages[f"/simple/{package}/"] = f"<!DOCTYPE html><html><body>\n{lines}\n</body></html>".encode()

    def beside(self, filename: str, metadata: bytes) -> str:
        """Put METADATA beside a wheel (PEP 658) and return its sha256."""
        self.files[f"/files/{filename}.metadata"] = metadata
        return hashlib.sha256(metadata).hexdigest()

    def wheel(self, filename: str, data: bytes) -> None:
        self.files[f"/files/{filename}"] = data


def metadata(name: str, version: str, *requires: str, python: str = ">=3.10", more: str = "") -> bytes:
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
    return "\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires), more, "", "A README."]).encode()


def archive(name: str, version: str, content: bytes, *, before: int = 0) -> bytes:
    """A wheel with this METADATA at its end, after `before` incompressible bytes."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/data.bin", random.Random(0).randbytes(before))
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", content)
    return data.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
    return data.getvalue()
