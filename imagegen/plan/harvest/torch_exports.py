"""One more release in the index of torch's exports, from its wheel: a file, or what the package index has.

Any CPython's wheel gives the same names: those of 2.9.0 and 2.15.0 for CPython 3.11 and 3.12 do (2026-11-21).
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.audit import elf, torch_exports
from imagegen.audit.window import OnDisk
from imagegen.core import data
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, StoreError, UsageError, WheelError
from imagegen.core.net import Client
from imagegen.plan.lock import indexes
from imagegen.plan.lock.indexes import DEFAULT, IndexLink

_LIBRARY = re.compile(r"torch/lib/[^/]+\.so(\.\d+)*")
_CUDA = "torch/lib/libtorch_cuda.so"  # a CPU build lacks it
_LARGEST = 4 << 30  # bytes of a library; the largest has 1.6 GB
_X86_64 = 62  # e_machine
_RELEASE = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Added:
    """The result for a release: its names in the index, and whether that is new."""

    release: str
    path: Path
    names: int
    written: bool


def add(requested: str, context: Context, path: Path = torch_exports.PATH) -> Added:
    """Bring a release of torch into the index at `path`: "2.16.0" of the package index, or a wheel's file name.

    Raises FetchError or WheelError for a wheel that cannot be had or used, StoreError where the index cannot be
    written, UsageError for what is neither a release nor a wheel.
    """
    wheel = Path(requested) if requested.endswith(".whl") else _fetch(requested, context)
    release = _release(Path(requested).name) if requested.endswith(".whl") else requested
    exported = {name for names in _exports(wheel) for name in names}
    try:
        before = torch_exports.loads(data.read(path))
        after = torch_exports.with_release(before, release, exported)
        if after != before:
            data.write(path, torch_exports.dumps(after))
    except (OSError, ValueError) as error:
        fix = "it is part of imagegen: have imagegen in a directory that you may write to, as a checkout is"
        what = "the index of torch's exports cannot be brought up to date"
        raise StoreError(what, where=str(path), why=str(error), fix=fix) from error
    return Added(release, path, len(after.of_release(release)), after != before)


def _release(filename: str) -> str:
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except ValueError as error:
        raise UsageError(
            f"{filename} is not the file name of a wheel", code="usage-not-a-wheel", why=str(error)
        ) from error
    if name != "torch" or not any(_is_ours(tag.platform) for tag in tags):
        raise UsageError(f"{filename} is not a wheel of torch for x86-64 Linux", code="usage-not-a-torch-wheel")
    return version.public


def _is_ours(platform: str) -> bool:
    return platform.startswith(("manylinux", "linux")) and platform.endswith("x86_64")


def _fetch(release: str, context: Context) -> Path:
    if not _RELEASE.fullmatch(release):
        raise UsageError(
            f'"{release}" is neither a release of torch nor a wheel',
            code="usage-invalid-value",
            fix="a release is as 2.16.0",
        )
    url = indexes.url_of(DEFAULT, context.settings)
    if url is None:
        raise FetchError(f"no address is known for the index {DEFAULT}", code="fetch-no-index")
    with Client(context.settings) as client:
        links = [link for link in indexes.project(client, url, "torch") if _is_of(link, release)]
        link = max(links, key=lambda each: ("cp311-cp311" in each.filename, each.filename), default=None)
        if link is None or link.sha256 is None:
            raise FetchError(
                f"the index has no wheel of torch {release} for CPython on x86-64 Linux, or not its sha256",
                code="fetch-no-release",
            )
        size = client.size(link.url)
        with context.progress.meter(link.filename, size) as meter:
            digest = client.download(link.url, context.store, sha256=link.sha256, size=size, meter=meter)
    return context.store.path(digest)


def _is_of(link: IndexLink, release: str) -> bool:
    try:
        name, version, _, tags = parse_wheel_filename(link.filename)
    except ValueError:
        return False
    # A CPU build is another version, with a local label.
    ours = any(_is_ours(tag.platform) and tag.interpreter.startswith("cp") for tag in tags)
    return name == "torch" and version == Version(release) and ours


def _exports(wheel: Path) -> Iterator[frozenset[str]]:
    """Yield the exports of each library in torch/lib. Raises WheelError."""
    try:
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryFile() as temporary:
            libraries = [info for info in archive.infolist() if _LIBRARY.fullmatch(info.filename)]
            if _CUDA not in {info.filename for info in libraries}:
                why = "it is a CPU build, or another package; the index is made of torch as it is on PyPI"
                raise WheelError(f"the wheel has no {_CUDA}", code="wheel-unreadable", where=str(wheel), why=why)
            for info in libraries:
                if info.file_size > _LARGEST:
                    raise WheelError(
                        f"{info.filename} is too large",
                        code="wheel-too-large",
                        where=str(wheel),
                        why=f"{info.file_size} bytes",
                    )
                with archive.open(info) as member:
                    yield _exported(member, temporary)
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise WheelError(
            "the wheel cannot be read", code="wheel-unreadable", where=str(wheel), why=str(error)
        ) from error


def _exported(member: IO[bytes], temporary: IO[bytes]) -> frozenset[str]:
    """Return the exports of one library, which is copied to the file `temporary`. Raises OSError and ValueError."""
    temporary.seek(0)
    temporary.truncate()
    shutil.copyfileobj(member, temporary, 1 << 20)
    temporary.flush()
    found = elf.read(OnDisk(temporary.fileno(), temporary.tell()))
    if found.machine != _X86_64:
        raise ValueError("a library in it is not for x86-64")
    return found.exported
