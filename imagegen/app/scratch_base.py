"""Build on today's Debian packages, from a scratch lock, if the archive lacks the locked ones."""

from __future__ import annotations

from dataclasses import replace

from imagegen import lock
from imagegen.app.session import Session
from imagegen.core.errors import PackagesGoneError
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell


def scratch_lock(session: Session, cell: Cell, locked: Lock, error: PackagesGoneError, *, scratch_base: bool) -> Lock:
    """Return the lock with today's Debian packages, and write it next to the store, not into the project.

    Raises `error`, which names the packages that are gone, unless the user allows a scratch base.
    """
    if not scratch_base:
        raise error
    from imagegen.image import base
    from imagegen.lock.builds import keyed

    settings, progress = session.project.settings, session.project.progress
    moved = replace(locked, base=base.resolve(cell.base, cell.platform, settings, progress), record=None)
    fresh = replace(moved, builds=tuple(keyed(build, moved) for build in moved.builds))  # its compilers may be others
    session.judge.require_compatible(cell, facts_of_lock(fresh, cell))
    path = settings.store.parent / "scratch" / f"{cell.id}.toml"
    lock.write(fresh, path)
    progress.say(f"NOTE: {error}")
    progress.say(f"NOTE: the base was locked again for only this build ({path}).")
    progress.say(f"NOTE: the image is not the recorded one; `imagegen lock {cell.id} --upgrade-base` moves the lock.")
    return fresh
