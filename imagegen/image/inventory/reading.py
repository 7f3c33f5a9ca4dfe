"""Files of this machine, examined: those in the page cache one after the other, the others while many are waited for.

Python's threads take turns, and each call of the kernel is one: 18,000 files that are in the page cache took eight
threads 1.7 s of the processor's and one thread 1.1 s (2026-11-21). A second process for half of them cost more than it
gave.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from imagegen.audit.examine import HEAD, concerns, examine
from imagegen.audit.model import File
from imagegen.audit.window import OnDisk
from imagegen.image.inventory.tree import Regular

Told = tuple[str, Regular]  # a path, and what lay there

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# Readers wait for the disk at once: of an audit with 7.9 GB, nothing of it in the page cache, this took 8.2 s with one,
# 4.2 s with four, 3.1 s with eight (two busy cores, 2026-11-21).
_READERS = 8
_BATCH = 8  # files that one of them takes at a time
_HEAD = 2 * HEAD  # bytes read at once: in a third of flashinfer's cubins they hold the notes too


def examined(files: Sequence[Told]) -> dict[str, File]:
    """Scan files, by path. A file that cannot be read has the reason; none raises."""
    found: dict[str, File] = {}
    waiting: list[Told] = []
    batches: list[Future[dict[str, File]]] = []
    with ThreadPoolExecutor(_READERS) as pool:
        for each in sorted(files, key=lambda each: -each[1].size):  # none that takes long is waited for at the end
            if file := _examine(*each, flags=os.RWF_NOWAIT):
                found[each[0]] = file
            else:
                waiting.append(each)
            if len(waiting) == _BATCH:
                batches.append(pool.submit(_waited, waiting))
                waiting = []
        found |= _waited(waiting)
        for batch in batches:
            found |= batch.result()
    return found


def _waited(files: Iterable[Told]) -> dict[str, File]:
    return {path: file for path, node in files if (file := _examine(path, node, flags=0))}


def _examine(path: str, node: Regular, *, flags: int) -> File | None:
    """Scan one file; None if reading would block and `flags` of the first read forbid that."""
    head = bytearray(_HEAD)
    try:
        with open(os.open(path, FLAGS), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            size, executable = status.st_size, bool(status.st_mode & 0o111)
            if not stat.S_ISREG(status.st_mode):
                return File(size, executable=executable)
            try:
                count = os.preadv(file.fileno(), [head], 0, flags)
            except OSError:
                if not flags:
                    raise
                return None  # not in the page cache, or a file system that cannot tell
            if flags and count < min(size, _HEAD):
                return None
            start = bytes(head[:count])
            if not concerns(start[:HEAD]):
                return File(size, executable=executable)
            return examine(OnDisk(file.fileno(), size, start), size=size, executable=executable)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        return File(node.size, executable=node.executable, unreadable=f"it cannot be opened: {why or error}")
