"""Add a release to the index of torch's exports, from a wheel's file or from the package index.

Wheels for all CPythons give the same names. Checked with 2.9.0 and 2.15.0 for CPython 3.11 and 3.12 (2026-11-21).
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zstandard
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.audit import elf, torch_exports
from imagegen.audit.tags import MACHINES
from imagegen.audit.torch_exports import ExportIndex
from imagegen.audit.window import OnDisk
from imagegen.core import data
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, StoreError, UsageError, WheelError
from imagegen.core.net import Client, package_index
from imagegen.core.net.package_index import DEFAULT, IndexLink

_LIBRARY = re.compile(r"torch/lib/[^/]+\.so(\.\d+)*")
_CUDA = "torch/lib/libtorch_cuda.so"  # a CPU build lacks it
_LARGEST = 4 << 30  # bytes of a library; the largest has 1.6 GB
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_LEVEL = 19  # 5 s, once for each release; 22 takes twice as long for 2 % less
_NAME = re.compile(r"[!-~]+")  # a hostile file's names may hold anything
_LOCAL = re.compile(r"_GLOBAL__N_|__nv_")  # of anonymous namespaces and nvcc's lambdas: local to one file


@dataclass(frozen=True)
class Added:
    """The result for a release on a processor: its names in the index, and whether that is new."""

    release: str
    machine: str
    path: Path
    names: int
    written: bool


def add(requested: str, context: Context, paths: Mapping[str, Path] = torch_exports.PATHS) -> tuple[Added, ...]:
    """Bring a release of torch into the indexes at `paths`, by processor.

    `requested` is a release of the package index ("2.16.0"), with a wheel for each processor, or a wheel's file name.
    Raises FetchError or WheelError for a wheel that cannot be fetched or used, StoreError if the index cannot be
    written, UsageError if `requested` is neither a release nor a wheel.
    """
    if requested.endswith(".whl"):
        release, machine = parse_wheel_name(Path(requested).name)
        return (_add(release, machine, Path(requested), paths[machine]),)
    wheels = _fetch(requested, paths, context)
    return tuple(_add(requested, machine, wheel, paths[machine]) for machine, wheel in wheels.items())


def _add(release: str, machine: str, wheel: Path, path: Path) -> Added:
    exported = {name for names in _exports(wheel, machine) for name in names}
    try:
        before = torch_exports.loads(data.read(path))
        after = with_release(before, release, exported)
        if after != before:
            data.write(path, dumps(after))
    except (OSError, ValueError) as error:
        fix = "it is part of imagegen: have imagegen in a directory that you may write to, as a checkout is"
        message = "the index of torch's exports cannot be brought up to date"
        raise StoreError(message, where=str(path), why=str(error), fix=fix) from error
    return Added(release, machine, path, len(after.of_release(release)), after != before)


def parse_wheel_name(filename: str) -> tuple[str, str]:
    """Return the release and the processor of a wheel of torch."""
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except ValueError as error:
        raise UsageError(
            f"{filename} is not the file name of a wheel", code="usage-not-a-wheel", why=str(error)
        ) from error
    machine = next(filter(None, (_machine(tag) for tag in tags)), None)
    if name != "torch" or machine is None:
        machines = " or ".join(torch_exports.PATHS)
        raise UsageError(f"{filename} is not a wheel of torch for Linux on {machines}", code="usage-not-a-torch-wheel")
    return version.public, machine


def _machine(tag: Tag) -> str | None:
    """Return the processor that a tag for CPython on Linux names, of those that have an index."""
    linux = tag.platform.startswith(("manylinux", "linux")) and tag.interpreter.startswith("cp")
    return next((path for path in torch_exports.PATHS if linux and tag.platform.endswith(path)), None)


def _fetch(release: str, machines: Iterable[str], context: Context) -> dict[str, Path]:
    """Return the wheel for each processor for which the package index has one."""
    if not _RELEASE.fullmatch(release):
        raise UsageError(
            f'"{release}" is neither a release of torch nor a wheel',
            code="usage-invalid-value",
            fix="a release is as 2.16.0",
        )
    url = package_index.url_of(DEFAULT, context.settings)
    if url is None:
        raise FetchError(f"no address is known for the index {DEFAULT}", code="fetch-no-index")
    wheels = {}
    with Client(context.settings) as client:
        links = package_index.project(client, url, "torch")
        for machine in machines:
            candidates = [link for link in links if _is_of(link, release, machine)]
            link = max(
                candidates,
                key=lambda candidate: ("cp311-cp311" in candidate.filename, candidate.filename),
                default=None,
            )
            if link and link.sha256:
                size = client.size(link.url)
                with context.progress.meter(link.filename, size) as meter:
                    digest = client.download(link.url, context.store, sha256=link.sha256, size=size, meter=meter)
                wheels[machine] = context.store.path(digest)
    if not wheels:
        raise FetchError(
            f"the index has no wheel of torch {release} for CPython on Linux, or not its sha256",
            code="fetch-no-release",
        )
    return wheels


def _is_of(link: IndexLink, release: str, machine: str) -> bool:
    try:
        name, version, _, tags = parse_wheel_filename(link.filename)
    except ValueError:
        return False
    # A CPU build is another version, with a local label.
    return name == "torch" and version == Version(release) and any(_machine(tag) == machine for tag in tags)


def _exports(wheel: Path, machine: str) -> Iterator[frozenset[str]]:
    """Yield the exports of each library in torch/lib. Raises WheelError."""
    try:
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryFile() as temporary:
            libraries = [info for info in archive.infolist() if _LIBRARY.fullmatch(info.filename)]
            if _CUDA not in {info.filename for info in libraries}:
                why = "it is a CPU build, or another package; the index is made of PyPI's torch"
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
                    yield _exported(member, temporary, machine)
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise WheelError(
            "the wheel cannot be read", code="wheel-unreadable", where=str(wheel), why=str(error)
        ) from error


def _exported(member: IO[bytes], temporary: IO[bytes], machine: str) -> frozenset[str]:
    """Return the exports of one library for the processor, which is copied to the file `temporary`.

    Raises OSError and ValueError.
    """
    temporary.seek(0)
    temporary.truncate()
    shutil.copyfileobj(member, temporary, 1 << 20)
    temporary.flush()
    library = elf.read(OnDisk(temporary.fileno(), temporary.tell()))
    if MACHINES.get(library.machine) != machine:
        raise ValueError(f"a library in it is not for {machine}")
    return library.exported


def with_release(index: ExportIndex, release: str, exported: Iterable[str]) -> ExportIndex:
    """Return `index` with the exports of `release`, which replace its earlier ones."""
    earlier = [version for version in index.releases if version != release]
    releases = sorted({*earlier, release}, key=Version)
    masks = {version: 1 << releases.index(version) for version in releases}
    names: dict[str, int] = {}
    for name, old in index.names.items():
        bits = sum(masks[member] for i, member in enumerate(index.releases) if old >> i & 1 and member != release)
        if bits:
            names[name] = bits
    for name in exported:
        if torch_exports.owned(name) and _NAME.fullmatch(name) and not _LOCAL.search(name):
            names[name] = names.get(name, 0) | masks[release]
    return ExportIndex(tuple(releases), names)


def dumps(index: ExportIndex) -> bytes:
    """Return the file, equal bytes for equal indexes: names and sets are sorted, and the compressor is pinned."""
    sets: dict[int, list[str]] = {}
    for name in sorted(index.names):
        sets.setdefault(index.names[name], []).append(name)
    lines = [torch_exports.FORM, " ".join(index.releases)]
    for bits in sorted(sets):
        lines += [f"{bits:x}", *(f" {name}" for name in sets[bits])]
    text = "\n".join([*lines, ""]).encode()
    return zstandard.ZstdCompressor(level=_LEVEL).compress(text)
