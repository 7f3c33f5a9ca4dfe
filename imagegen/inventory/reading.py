"""Files of this machine, examined: those in the page cache one after the other, the others while many are waited for.

Python's threads take turns, and each call of the kernel is one: 18,000 files that are in the page cache took eight
threads 1.7 s of the processor's and one thread 1.1 s (2026-11-21). A second process takes the small files off the
first, if there are many; what is found out about these is little, and soon told.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection

from imagegen.audit.examine import HEAD, concerns, examine
from imagegen.audit.facts import from_file, to_file
from imagegen.audit.model import File
from imagegen.audit.window import OnDisk
from imagegen.inventory.tree import Regular

Told = tuple[str, Regular]  # a path, and what lay there

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# Readers wait for the disk at once: of an audit with 7.9 GB, nothing of it in the page cache, this took 8.2 s with one,
# 4.2 s with four, 3.1 s with eight (two busy cores, 2026-11-21).
_READERS = 8
_BATCH = 8  # files that one of them takes at a time
_HEAD = 2 * HEAD  # bytes read at once: in a third of flashinfer's cubins they hold the notes too
_SMALL = 1 << 18  # bytes
_MANY = 2000  # small files for which it pays to start a process


def examined(told: Sequence[Told]) -> dict[str, File]:
    """What an audit knows of files, by path. One that cannot be read says why; none raises."""
    small = [each for each in told if each[1].size <= _SMALL]
    if len(small) < _MANY or threading.active_count() > 1 or len(os.sched_getaffinity(0)) < 2:
        return _examined(told)
    return _halved(small, [each for each in told if each[1].size > _SMALL])


def _halved(small: Sequence[Told], large: Sequence[Told]) -> dict[str, File]:
    """The small files are the second process's."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    other = context.Process(target=_tell, args=(small, sender), daemon=True)
    try:
        other.start()
    except OSError:  # the machine lets nobody start one
        return _examined([*large, *small])
    sender.close()
    try:
        found = _examined(large)
        rows = receiver.recv()
        return found | {path: to_file(row) for (path, _), row in zip(small, rows, strict=True)}
    except (EOFError, OSError):  # it was ended: the kernel had no memory for it, perhaps
        return found | _examined(small)
    finally:
        receiver.close()
        other.kill()
        other.join()


def _tell(told: Sequence[Told], sender: Connection) -> None:
    """What the second process does. Dataclasses would take ten times as long as lists on their way to the first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    found = _examined(told)
    sender.send([from_file(found[path]) for path, _ in told])


def _examined(told: Sequence[Told]) -> dict[str, File]:
    found: dict[str, File] = {}
    waiting: list[Told] = []
    batches: list[Future[dict[str, File]]] = []
    with ThreadPoolExecutor(_READERS) as pool:
        for each in sorted(told, key=lambda each: -each[1].size):  # none that takes long is waited for at the end
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


def _waited(told: Iterable[Told]) -> dict[str, File]:
    return {path: file for path, node in told if (file := _examine(path, node, flags=0))}


def _examine(path: str, node: Regular, *, flags: int) -> File | None:
    """None where it would have to be waited for and `flags` of the first read say not to."""
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
