"""Audit a lock in a second process while its layers are made. The audit is a third of a build with one changed pin.

The result goes to the store, from which `audit_before_image` reads it. If the process ends early, the build audits the
lock itself. The build raises the errors that the audit finds.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from imagegen.app.audit import audit_before_image, is_audited
from imagegen.app.project import ProjectContext
from imagegen.audit.model import Package
from imagegen.core.progress import Quiet
from imagegen.image.inventory.cell_subject import SYSTEMS, stored_scans, system_key
from imagegen.image.layers import scan
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

_SCANNED = 0.9  # of a lock's wheels; with fewer, a whole build and an audit would use their memory at the same time
_STEP = 0.02  # seconds between two looks for scans
_POLL = 0.005  # seconds between two looks for the end of the process
PATIENCE = 120  # seconds; the audit of a large stack takes ten on a busy machine
_PR_SET_PDEATHSIG = 1  # prctl(2)


@contextmanager
def audited_ahead(project: ProjectContext, cell: Cell, lock: Lock) -> Iterator[None]:
    """Audit the lock during the context, in which its layers are made, and wait for the audit at the end.

    It audits only if the store has the scans of nearly all wheels; the other scans come with the layers. An exception
    in the context ends the audit.
    """
    audits = [(part, locked) for part, locked in lock.by_cell(cell) if _is_near(project, part, locked)]
    forked = _fork(project, audits) if audits else None
    if forked is None:
        yield
        return
    child, writer = forked
    ended = False
    try:
        try:
            yield
        finally:
            os.close(writer)  # the child sees the end of the pipe: no further scans come
        ended = _has_ended(child)
    finally:
        if not ended:
            with suppress(ProcessLookupError, ChildProcessError):  # it may be gone
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def _fork(project: ProjectContext, audits: Sequence[tuple[Cell, Lock]]) -> tuple[int, int] | None:
    """Audit the locks in a fork of this process. Return its id and the pipe that is closed when all layers are made.

    Return None if the system starts no further process.
    """
    try:
        reader, writer = os.pipe()
    except OSError:
        return None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the fork has this process's handlers
    try:
        child = os.fork()
        if child == 0:
            os.close(writer)
            _audit(project, audits, reader)
    except OSError:
        os.close(writer)
        return None
    finally:
        os.close(reader)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return child, writer


def _has_ended(child: int) -> bool:
    """Wait for the process, and return whether it ended."""
    deadline = time.monotonic() + PATIENCE
    try:
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
    except ChildProcessError:  # this process was started with SIGCHLD ignored
        pass
    return True


def _is_near(project: ProjectContext, cell: Cell, lock: Lock) -> bool:
    """Return whether the lock has no audit, and nearly all that one needs."""
    store = project.store
    if is_audited(project, cell, lock) or SYSTEMS.get(store, system_key(lock)) is None:
        return False
    scanned = sum(scan.recorded_blob(store, wheel, lock.python) is not None for wheel in lock.wheels)
    return scanned >= _SCANNED * len(lock.wheels)


def _audit(project: ProjectContext, audits: Sequence[tuple[Cell, Lock]], reader: int) -> NoReturn:
    """Audit the locks in this process, a fork without the parent's threads, and end it."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        gc.freeze()  # pages that the collector does not write stay shared
        project.progress = Quiet()
        for cell, lock in audits:
            scans = _scans(project, lock, reader)
            if scans is not None:
                audit_before_image(project, cell, lock, scans)
    finally:
        os._exit(0)


def _scans(project: ProjectContext, lock: Lock, reader: int) -> dict[str, Package] | None:
    """Return the scans of all wheels, by distribution, as layers give them; None if some are missing in the end."""
    scans: dict[str, Package] = {}
    complete = False
    while not complete:
        complete = bool(select.select([reader], [], [], _STEP)[0])
        unread = [wheel for wheel in lock.wheels if wheel.name not in scans]
        scans |= stored_scans(unread, lock.python, project.store)
        if len(scans) == len(lock.wheels):
            return scans
    return None
