"""Write an image as parts that a host without a container engine can run.

A directory with `image.json.gz` (the file tree with the sha256 of each file, the container's configuration, the smoke
checks), `part-NNN.zst` (the contents of the files that the host lacks, one after the other, cut into parts) and
`run_image.py`, which puts the files together, verifies each, and runs programs in them.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard

from imagegen.checks.smoke.table import applicable
from imagegen.core.data import parse_json
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store
from imagegen.core.store.images import filling
from imagegen.export import Entry, contents, read_tree
from imagegen.image.layers import Image
from imagegen.lock.model import Lock
from imagegen.run.smoke.passed import programs_digest
from imagegen.run.smoke.runner import activation, files_for, parts
from imagegen.spec.model import Declarations

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
        """Bytes of all files, uncompressed; hard links count once."""
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
        _fields(entry) | ({"link": plan.links[entry.path]} if entry.path in plan.links else {})
        for entry in plan.entries
    ]


def _fields(entry: Entry) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in asdict(entry).items() if value != "" and (name != "size" or entry.sha256)}


def described_environments(lock: Lock, declared: Declarations) -> list[dict[str, Any]]:
    """Return the environments for JSON: name, the words that run a program in it, its checks, and their files."""
    documents = []
    for environment in lock.environments:
        programs = files_for(environment, declared.environments[environment.name] if environment.name else declared)
        documents.append(
            {
                "name": environment.name,
                "activate": activation(environment),
                "checks": [check.name for check in applicable(parts(environment.lock))],
                "programs": {name: content.decode() for name, content in programs.items()},
            }
        )
    return documents


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
    offset = room = 0
    for size, frame in _frames(_blocks(plan, store, order)):
        if len(frame) > room:
            written.append({"file": f"part-{len(written):03}.zst", "offset": offset, "bytes": 0})
            room = PART_BYTES
        with (directory / written[-1]["file"]).open("ab") as part:
            part.write(frame)
        written[-1]["bytes"] += size
        offset += size
        room -= len(frame)
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
        yield from (future.result() for future in waiting)


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
