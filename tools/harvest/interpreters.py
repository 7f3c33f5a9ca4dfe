"""The standalone interpreters of a release of python-build-standalone: its SHA256SUMS -> matrices/interpreters.yaml.

Each line of SHA256SUMS is a hash, two blanks, and an asset of the release (as sha256sum writes and reads them). The
newest release of each minor version from 3.10 on is used, as stripped `install_only` archives for glibc.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from packaging.version import Version

from imagegen.core import data
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, MatrixError
from imagegen.core.net import Client
from imagegen.core.text import redact
from imagegen.lock.foundation import DOWNLOADS, MIRROR
from imagegen.oci.documents import PLATFORMS
from imagegen.spec.foundation import InterpreterFile

FILE = "interpreters.yaml"
_SUMS = "SHA256SUMS"
_ASSET = re.compile(
    r"([0-9a-f]{64})  (cpython-(3\.[0-9]{1,2}\.[0-9]{1,2})\+([0-9]+)-(x86_64|aarch64)-unknown-linux-gnu"
    r"-install_only_stripped\.tar\.gz)"
)
_OLDEST = Version("3.10")
_ENTRY = re.compile(r"^  (standalone-3\.[0-9]+):\n(?:    .*\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Build:
    """A release of Python among the assets; `files` by platform."""

    version: str
    files: Mapping[str, InterpreterFile]

    @property
    def name(self) -> str:
        return f"standalone-{self.version.rpartition('.')[0]}"


def builds(release: str, settings: Settings) -> list[Build]:
    """Return the builds of a release ("20260814"), by version. Raises FetchError.

    If UV_PYTHON_INSTALL_MIRROR is set, it replaces the release's own address.
    """
    root = (settings.env.get(MIRROR) or DOWNLOADS).rstrip("/")
    url = f"{root}/{quote(release, safe='')}/{_SUMS}"
    with Client(settings) as client:
        builds_of_release = list(parse(client.get(url).decode(errors="replace"), release))
    if not builds_of_release:
        raise FetchError(
            f"{redact(url)} lists no interpreter",
            code="fetch-no-interpreters",
            why=f"no line of it is the hash of a cpython-3.X.Y+{release}-...-install_only_stripped.tar.gz",
            fix="name a release, as in 20260814",
        )
    return builds_of_release


def parse(sums: str, release: str) -> Iterator[Build]:
    """Yield the newest build of each minor version that SHA256SUMS lists, by version."""
    files: dict[Version, dict[str, InterpreterFile]] = {}
    for line in sums.splitlines():
        if (asset := _ASSET.fullmatch(line)) and asset[4] == release:
            path = f"{release}/{quote(asset[2])}"
            files.setdefault(Version(asset[3]), {})[PLATFORMS[asset[5]]] = InterpreterFile(path, asset[1])
    newest: dict[tuple[int, ...], Version] = {}
    for version in sorted(files):
        if version >= _OLDEST:
            newest[version.release[:2]] = version
    for version in newest.values():
        yield Build(str(version), dict(sorted(files[version].items())))


def write(new_builds: Collection[Build], release: str, today: str, path: Path, shipped: Collection[str]) -> bool:
    """Replace the standalone entries of the YAML file at `path`; return whether that changes it.

    `today` is a date, "2026-11-22". Entries of the names in `shipped`, of an earlier directory, say `override: true`.
    Raises MatrixError when the file cannot be read or written.
    """
    try:
        old = data.read(path).decode() if path.exists() else "interpreters:\n"
        names = {build.name for build in new_builds}
        other_entries = _ENTRY.sub(lambda entry: "" if entry[1] in names else entry[0], old)
        entries = (_entry(build, release, today, override=build.name in shipped) for build in new_builds)
        new = other_entries.rstrip("\n") + "\n" + "".join(entries)
        if _undated(new) == _undated(old):
            return False
        data.write(path, new.encode())
    except (OSError, UnicodeDecodeError) as error:
        raise MatrixError(
            "the interpreters cannot be written", code="matrix-unwritable", where=str(path), why=str(error)
        ) from error
    return True


def _entry(build: Build, release: str, today: str, *, override: bool) -> str:
    lines = ["    override: true"] if override else []
    lines += ["    provider: standalone", f'    python: "{build.version.rpartition(".")[0]}"']
    lines += [f"    version: {build.version}", f'    release: "{release}"', "    files:"]
    for platform, file in build.files.items():
        lines += [f"      {platform}:", f"        path: {file.path}", f'        sha256: "{file.sha256}"']
    lines += [f"    source: {DOWNLOADS}/{release}/{_SUMS}", f'    date: "{today}"']
    return f"  {build.name}:\n" + "".join(f"{line}\n" for line in lines)


def _undated(text: str) -> str:
    return re.sub(r'^    date: ".*"\n', "", text, flags=re.MULTILINE)
