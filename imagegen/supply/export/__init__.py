"""Export an image as files for another host, and read the results of smoke checks that it ran."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import stat
import tarfile
import zlib
from collections import ChainMap, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import zstandard

from imagegen.core.data import parse_json
from imagegen.core.errors import SmokeError, StoreError
from imagegen.core.layer_tar import DAMAGED, OPAQUE, WHITEOUT, Allowance, Bounded, members
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store
from imagegen.core.store.images import filling
from imagegen.image.base.image import decompressed
from imagegen.image.layers import Image, Layer
from imagegen.incontainer.smoke.table import Check, applicable
from imagegen.plan.lock.environments import environments
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Declarations
from imagegen.run import smoke
from imagegen.run.smoke import activation, check_name, files_for, judged, parts, read_result
from imagegen.supply.publish.attachments import SmokeRequirement, programs_digest

# The file tree of an image: its layers applied, and the sha256 of each file.
#
# Source: OCI image-spec v1.1, layer.md (changesets, whiteouts).

_BUFFER = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A file, directory or symbolic link; `path` is relative to the root, `size` in bytes, `mtime` in Unix seconds.

    `kind` is "file", "directory" or "symlink". A file has `sha256` and `size`, a symbolic link `target`.
    """

    path: str
    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    sha256: str = ""
    target: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are not empty."""
        return {name: value for name, value in asdict(self).items() if value != "" and (name != "size" or self.sha256)}


@dataclass(frozen=True)
class RootFiles:
    """The root file system of an image.

    `entries` are sorted so that directories come before their contents. `origins` names the layer's index and the
    number of the member in it that have a file's content, for each path of a file; hard links have that of their file.
    """

    entries: tuple[Entry, ...]
    origins: Mapping[str, tuple[int, int]]


def read_tree(image: Image, store: Store) -> RootFiles:
    """Read the image's layers.

    Raises StoreError for a layer that is absent or damaged, or that holds what no exported tree can (devices, pipes,
    files below symbolic links, names that leave the tree).
    """
    tree: dict[str, Entry] = {}
    origins: dict[str, tuple[int, int]] = {}
    allowance = Allowance()
    for index, layer in enumerate(image.layers):
        _apply(layer, index, store, tree, origins, allowance)
    entries = tuple(tree[path] for path in sorted(tree))
    return RootFiles(entries, {entry.path: origins[entry.path] for entry in entries if entry.kind == "file"})


def contents(layer: Layer, store: Store) -> Iterator[tuple[int, IO[bytes]]]:
    """Yield number and content of each regular file of a layer; a content must be read before the next is requested."""
    with _opened(layer, store) as archive:
        for number, member in enumerate(members(archive)):
            if member.isreg() and (content := archive.extractfile(member)):
                yield number, content


@contextmanager
def _opened(layer: Layer, store: Store) -> Iterator[tarfile.TarFile]:
    try:
        with store.open(layer.digest) as blob:
            stream = decompressed(cast("BinaryIO", blob), layer.compression)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER, tarinfo=Bounded) as archive:
                yield archive
    except (*DAMAGED, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise StoreError(
            f"layer {layer.name} cannot be read", code="store-layer-unreadable", where=layer.digest, why=str(error)
        ) from error


def _apply(
    layer: Layer,
    index: int,
    store: Store,
    tree: dict[str, Entry],
    origins: dict[str, tuple[int, int]],
    allowance: Allowance,
) -> None:
    """Apply a layer's changeset to `tree`, and name the origin of each file that it adds in `origins`.

    Whiteouts are about lower layers, wherever they stand in theirs.
    """
    added: dict[str, Entry] = {}
    removed: set[str] = set()
    emptied: set[str] = set()
    with _opened(layer, store) as archive:
        for number, member in enumerate(members(archive)):
            path = member.name
            if not allowance.take(member.size, path, member.linkname):
                raise StoreError(
                    f"layer {layer.name} cannot be read", code="store-layer-unreadable", where=path, why="a bomb"
                )
            folder, _, name = path.rpartition("/")
            if name == OPAQUE:
                emptied.add(folder)
            elif name.startswith(WHITEOUT):
                removed.add(f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/"))
            elif path:
                known = ChainMap(added, tree)
                added[path] = _linked(path, member, known) if member.islnk() else _entry(path, member, archive)
                if added[path].kind == "file":
                    origins[path] = origins[member.linkname] if member.islnk() else (index, number)
    emptied |= {path for path, entry in added.items() if entry.kind != "directory" and _is_directory(path, tree)}
    if gone := removed | emptied:
        for path in [path for path in tree if path in removed or not gone.isdisjoint(_parents(path))]:
            del tree[path]
    tree |= added
    _require_directories(added, tree, layer)


def _require_directories(paths: Iterable[str], tree: Mapping[str, Entry], layer: Layer) -> None:
    for path in paths:
        folder = path.rpartition("/")[0]
        if folder and not _is_directory(folder, tree):
            why = f"{folder} is no directory of the image"
            raise StoreError(
                f"{path} cannot be exported", code="store-unsupported-file", where=f"layer {layer.name}", why=why
            )


def _is_directory(path: str, tree: Mapping[str, Entry]) -> bool:
    return path in tree and tree[path].kind == "directory"


def _parents(path: str) -> Iterator[str]:
    """Yield the paths of the directories above, "" for the root."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _linked(path: str, member: tarfile.TarInfo, known: Mapping[str, Entry]) -> Entry:
    target = known.get(member.linkname)
    if target is None or target.kind != "file":
        raise StoreError(
            f"{path} cannot be exported",
            code="store-unsupported-file",
            why=f"it is a hard link to {member.linkname}, which is no file",
        )
    return replace(target, path=path)


def _entry(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Entry:
    entry = Entry(path, "directory", stat.S_IMODE(member.mode), member.uid, member.gid, int(member.mtime))
    if member.isdir():
        return entry
    if member.issym():
        return replace(entry, kind="symlink", target=member.linkname)
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise StoreError(
            f"{path} cannot be exported",
            code="store-unsupported-file",
            why="it is neither a file nor a directory nor a link",
        )
    digest = hashlib.sha256()
    while chunk := content.read(_BUFFER):
        digest.update(chunk)
    return replace(entry, kind="file", size=member.size, sha256=digest.hexdigest())


# Export an image as files for another host, and read the results of smoke checks that it ran.

_FIX = "export the image again, and run `python3 run_image.py test` of that export"


def read_results(
    path: Path, required: SmokeRequirement, checks: Mapping[str, tuple[Check, ...]], cell: str
) -> smoke.SmokeReport:
    """Read the file that `run_image.py test` wrote.

    Args:
        path: the file.
        required: the image that the results must be of, the smoke checks, and whether a GPU is required.
        checks: those of each environment, by its name ("" for the only one); one without a result has failed.
        cell: the image's cell.

    Raises SmokeError for another file, and for results of another image or of other smoke checks.
    """
    found = _read(path)
    for name, expected in (("image", required.image), ("suite", required.programs)):
        if found.get(name) != expected:
            why = f"they are of {name} {found.get(name)}, and {cell} has {expected}"
            raise SmokeError(
                "the results are not of this image",
                code="smoke-results-other-image",
                where=str(path),
                why=why,
                fix=_FIX,
            )
    answers = {each["check"]: each for each in found["results"] if isinstance(each, dict) and "check" in each}
    reports = []
    for environment, requested in checks.items():
        results = []
        for check in requested:
            name = check_name(environment, check.name)
            why = "its result is malformed" if name in answers else "the file has no result of it"
            result = read_result(name, answers.get(name)) or smoke.CheckResult(name, "fail", 0, why)
            results.append(judged(result, check, require_gpu=required.gpu))
        reports.append(smoke.SmokeReport(required.image, environment or cell, tuple(results)))
    return reports[0] if len(reports) == 1 else smoke.joined(required.image, cell, reports)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SmokeError(
            "the results cannot be read", code="smoke-results-unreadable", where=str(path), why=str(error), fix=_FIX
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("results"), list):
        raise SmokeError(
            "the results cannot be read",
            code="smoke-results-unreadable",
            where=str(path),
            why="it holds no list of results",
            fix=_FIX,
        )
    return found


# Write an image as parts that a host without a container engine can run.
#
# A directory with `image.json.gz` (the file tree with the sha256 of each file, the container's configuration, the smoke
# checks), `part-NNN.zst` (the contents of the files that the host does not have, one after the other, cut into parts)
# and `run_image.py`, which puts the files together, verifies each, and runs programs in them.

PART_BYTES = 48 << 20  # of a compressed part, at most: channels that limit a transfer to 64 MB take it
LEVEL = 6  # of zstd
FRAME = 16 << 20  # bytes of contents in a zstd frame
_FORMAT = 2


@dataclass(frozen=True)
class ExportPlan:
    """The image's entries, and where their contents come from."""

    image: Image
    entries: tuple[Entry, ...]
    present: Mapping[str, str]  # sha256 -> file of the host that has it
    missing: Mapping[str, tuple[int, int]]  # sha256 -> the layer's index and the number of a member with the content
    links: Mapping[str, str]  # path of a hard link -> path of the first file in `entries` that is the same

    @property
    def size(self) -> int:
        """Bytes of all files, uncompressed; those of hard links once."""
        return sum(entry.size for entry in self.entries if entry.path not in self.links)

    @property
    def missing_size(self) -> int:
        """Bytes of the contents that the host does not have, uncompressed."""
        return sum({entry.sha256: entry.size for entry in self.entries if entry.sha256 in self.missing}.values())

    @property
    def estimated_part_bytes(self) -> int:
        """Bytes of all parts, if the missing contents compress as their layers do; of a base's layers, not at all."""
        sizes = {entry.sha256: entry.size for entry in self.entries}
        total = 0.0
        for digest, (index, _) in self.missing.items():
            layer = self.image.layers[index]
            total += sizes[digest] * (layer.size / layer.unpacked if layer.unpacked else 1)
        return int(total)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan's figures for JSON, in bytes; `part_bytes` and `parts` are estimates."""
        return {
            "image": self.image.digest,
            "files": sum(entry.kind == "file" for entry in self.entries),
            "bytes": self.size,
            "missing_bytes": self.missing_size,
            "parts": math.ceil(self.estimated_part_bytes / PART_BYTES),
            "part_bytes": self.estimated_part_bytes,
        }


def plan(image: Image, store: Store, inventory: Mapping[str, str], progress: Progress) -> ExportPlan:
    """Compare the image's files with a host's `inventory` (sha256 -> path). Raises StoreError as `read_tree`."""
    with timed(progress, f"reading {len(image.layers)} layers"):
        tree = read_tree(image, store)
    requested = {entry.sha256: tree.origins[entry.path] for entry in tree.entries if entry.kind == "file"}
    present = {digest: inventory[digest] for digest in requested if digest in inventory}
    missing = {digest: origin for digest, origin in requested.items() if digest not in present}
    first: dict[tuple[int, int], str] = {}
    links = {path: same for path, origin in tree.origins.items() if (same := first.setdefault(origin, path)) != path}
    return ExportPlan(image, tree.entries, present, missing, links)


def described_entries(plan: ExportPlan) -> list[dict[str, Any]]:
    """Return the image's entries for JSON; a hard link has the path of the file before it, as `link`."""
    return [
        entry.as_dict() | ({"link": plan.links[entry.path]} if entry.path in plan.links else {})
        for entry in plan.entries
    ]


def described_environments(lock: Lock, declared: Declarations) -> list[dict[str, Any]]:
    """Return the environments for JSON: name, the words that run a program in it, its checks, and their files."""
    found = []
    for environment in environments(lock):
        programs = files_for(environment, declared.environments[environment.name] if environment.name else declared)
        found.append(
            {
                "name": environment.name,
                "activate": activation(environment),
                "checks": [check.name for check in applicable(parts(environment.lock))],
                "programs": {name: content.decode() for name, content in programs.items()},
            }
        )
    return found


def write(
    plan: ExportPlan, lock: Lock, declared: Declarations, directory: Path, store: Store, progress: Progress
) -> dict[str, Any]:
    """Write the export to a new directory, which appears complete or not at all; returns its figures.

    Raises StoreError when the directory is not empty or cannot be written, and as `read_tree`.
    """
    with filling(directory) as fresh, timed(progress, f"writing {directory}"):
        order, written = write_parts(plan, store, fresh)
        config = parse_json(plan.image.config)["config"]
        described = {
            "format": _FORMAT,
            "image": plan.image.digest,
            "cell": lock.cell,
            "suite": programs_digest(lock, declared),
            "env": config["Env"],
            "entrypoint": config["Entrypoint"],
            "command": config["Cmd"],
            "workdir": config["WorkingDir"],
            "entries": described_entries(plan),
            "present": dict(plan.present),
            "contents": order,
            "parts": written,
            "environments": described_environments(lock, declared),
        }
        (fresh / "image.json.gz").write_bytes(gzip.compress(json.dumps(described).encode(), mtime=0))
        program = fresh / "run_image.py"
        program.write_bytes((Path(__file__).parent / "run_image.py").read_bytes())
        program.chmod(0o755)
        sizes = [path.stat().st_size for path in sorted(fresh.glob("part-*.zst"))]
    return {**plan.as_dict(), "parts": len(sizes), "part_bytes": sum(sizes)}


def write_parts(plan: ExportPlan, store: Store, directory: Path) -> tuple[list[tuple[str, int]], list[dict[str, Any]]]:
    """Write the missing contents; returns their (sha256, bytes) in order, and name and offset of each part."""
    order: list[tuple[str, int]] = []
    written: list[dict[str, Any]] = []
    offset = left = 0
    for size, frame in _frames(_blocks(plan, store, order)):
        if len(frame) > left:
            written.append({"file": f"part-{len(written):03}.zst", "offset": offset, "bytes": 0})
            left = PART_BYTES
        with (directory / written[-1]["file"]).open("ab") as part:
            part.write(frame)
        written[-1]["bytes"] += size
        offset += size
        left -= len(frame)
    return order, written


def _frames(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the size of each block and its zstd frame, in order; several are compressed at a time."""
    workers = len(os.sched_getaffinity(0))

    def compress(block: bytes) -> tuple[int, bytes]:
        return len(block), zstandard.ZstdCompressor(level=LEVEL).compress(
            block
        )  # which releases the interpreter's lock

    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[tuple[int, bytes]]] = deque()
        for block in blocks:
            waiting.append(pool.submit(compress, block))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        yield from (each.result() for each in waiting)


def _blocks(plan: ExportPlan, store: Store, order: list[tuple[str, int]]) -> Iterator[bytes]:
    """Yield the missing contents in blocks of FRAME bytes, and append each file's sha256 and size to `order`."""
    block = bytearray()
    for index, layer in enumerate(plan.image.layers):
        requested = {number: digest for digest, (where, number) in plan.missing.items() if where == index}
        for number, content in contents(layer, store) if requested else ():
            if number not in requested:
                continue
            size = 0
            while chunk := content.read(FRAME - len(block)):
                block += chunk
                size += len(chunk)
                if len(block) == FRAME:
                    yield bytes(block)
                    block.clear()
            order.append((requested[number], size))
    if block:
        yield bytes(block)
