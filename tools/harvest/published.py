"""The wheels of releases on an index as packages of an audit: each is downloaded, read once, and dropped.

Almost all bytes of such wheels are libraries, which must be decompressed whole to be read, so that ranges of the file
would save nothing. A wheel that is fetched whole is verified by the sha256 that the index gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from imagegen.audit.model import Package
from imagegen.audit.readers.installation import installation, relative, site_packages
from imagegen.audit.readers.loose_wheels import scan_file
from imagegen.audit.readers.wheel import Wheel
from imagegen.compat.wheel_scans import PackageScans, WheelScan
from imagegen.core.context import Context
from imagegen.core.errors import ErrorGroup, FetchError, ImagegenError, WheelError
from imagegen.core.net import Client, package_index
from imagegen.core.progress import Meter
from tools.harvest import scans
from tools.harvest.scans import PYTHON, ReleasedWheel

_AT_ONCE = 2  # wheels that are read; each takes a core and, on the disk, its size
_HEADS = 8  # requests at once for sizes


class ScanErrors(ErrorGroup, FetchError):
    """All wheels that could not be scanned."""


@dataclass(frozen=True)
class RequiredScans:
    """The wheels of a package that are to be read, with their sizes in bytes; `known` are its earlier scans."""

    known: PackageScans
    releases: int  # that the index has since the day that `known` names
    wheels: tuple[tuple[ReleasedWheel, int], ...]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.wheels)


def required(scanned: PackageScans, client: Client, context: Context) -> RequiredScans:
    """Return the wheels that a scan would read, of releases without a scan and of releases with another wheel.

    Raises FetchError.
    """
    url = package_index.url_of(scanned.index, context.settings)
    if url is None:
        fix = f"{package_index.variable(scanned.index)} gives it one"
        raise FetchError(f"no address is known for the index {scanned.index}", code="fetch-no-index", fix=fix)
    released = scans.wheels(scanned.name, scanned.since, package_index.project(client, url, scanned.name))
    if not released:
        why = f"there is none since {scanned.since} for x86-64 Linux"
        raise FetchError(f"{scanned.name} has no wheel to scan on the index", code="fetch-no-release", why=why)
    read = {release.version: release.sha256 for release in scanned.releases.values()}
    new = [wheel for wheel in released if read.get(wheel.version) != wheel.sha256]
    with ThreadPoolExecutor(_HEADS) as pool:
        sizes = pool.map(lambda wheel: client.size(wheel.link.url), new)
        return RequiredScans(scanned, len(released), tuple(zip(new, sizes, strict=True)))


def scan(
    requested: Sequence[RequiredScans],
    client: Client,
    context: Context,
    today: str,
) -> Iterator[PackageScans]:
    """Scan the wheels and yield a package after each of its wheels, so that an interruption loses little.

    All wheels are tried; failures are raised at the end, as ScanErrors.
    """
    errors: list[ImagegenError] = []
    packages = {package.known.name: package.known for package in requested}
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="scan")
    try:
        tasks = {
            pool.submit(_scan, name, wheel, size, client, context, today): name
            for name, wheel, size in _wheels(requested)
        }
        for future in as_completed(tasks):
            name = tasks[future]
            try:
                packages[name] = packages[name].with_scans([future.result()])
            except (FetchError, WheelError) as error:
                errors.append(error)
            else:
                yield packages[name]
    finally:
        client.close()
        pool.shutdown(cancel_futures=True)
    if errors:
        raise ScanErrors(sorted(errors, key=str))


def _wheels(requested: Sequence[RequiredScans]) -> Iterator[tuple[str, ReleasedWheel, int]]:
    for package in requested:
        for wheel, size in package.wheels:
            yield package.known.name, wheel, size


def _scan(name: str, wheel: ReleasedWheel, size: int, client: Client, context: Context, today: str) -> WheelScan:
    return scans.scan(wheel, read(name, wheel, size, client, context), size, today)


def read(name: str, wheel: ReleasedWheel, size: int, client: Client, context: Context) -> Package:
    """Download a wheel of `size` bytes and return the scan of its libraries; nothing of it stays.

    Raises FetchError if it cannot be fetched or has another sha256, WheelError for an invalid wheel,
    StoreError when the disk is full.
    """
    store, filename = context.store, wheel.link.filename
    with (
        store.temporary_directory("published") as work,
        context.progress.meter(filename, size) as meter,
        (work / "wheel").open("wb") as file,
    ):
        sink = _Sink(file, meter)
        client.stream(wheel.link.url, sink, size=size)
        file.flush()
        if sink.sha256 != wheel.sha256:
            why = f"the index promises sha256 {wheel.sha256}, and it has {sink.sha256}"
            raise FetchError(f"{filename} is not the expected file", code="fetch-digest-mismatch", why=why)
        with Wheel(work / "wheel", filename) as opened:
            return _package(name, opened, store.scratch)


def _package(name: str, wheel: Wheel, scratch: Path) -> Package:
    site = site_packages(PYTHON)
    files = {relative(file.path, site): scan_file(file, scratch) for file in installation(wheel, PYTHON)}
    unreadable = {path: file.unreadable for path, file in files.items() if file.unreadable}
    if unreadable:  # an unreadable library might be the one that matters
        path, why = next(iter(unreadable.items()))
        raise WheelError("a library cannot be read", where=f"{wheel.filename}: {path}", why=why)
    return Package(name, wheel.version, files, requires=wheel.requires, tags=wheel.tags)


class _Sink:
    """A file that a wheel is written to, which hashes it."""

    def __init__(self, file: IO[bytes], meter: Meter) -> None:
        self._file, self._meter = file, meter
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes, /) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._meter.advance(len(data))
        self.size += len(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()
