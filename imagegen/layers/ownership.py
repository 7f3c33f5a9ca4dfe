"""One path, two packages: the same file is fine, two different ones are an error, wherever in the image they lie.

Overlay file systems would show whichever layer comes last, and pip whichever package was installed last: a package
that works by the order of installation does not work.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from imagegen.errors import ErrorGroup, WheelError
from imagegen.layers.install import installation
from imagegen.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.layers.wheel import Wheel
from imagegen.lock.model import LockedWheel
from imagegen.store import Store


class OwnershipErrors(ErrorGroup, WheelError):
    """Every path that two packages own with different contents."""


def check(store: Store, wheels: Iterable[LockedWheel], python: str) -> None:
    """Raise OwnershipErrors unless each path of the stack has one content. Every wheel must be in the store."""
    owners: dict[str, tuple[str, LockedWheel]] = {}
    errors = []
    for wheel in wheels:
        for path, identity in _identities(store, wheel, python).items():
            other, first = owners.setdefault(path, (identity, wheel))
            if other != identity:
                errors.append(
                    WheelError(
                        "two packages own one file",
                        where=path,
                        why=f"{first.file.filename} and {wheel.file.filename} both install it, with different contents",
                        fix="leave one of the two out of the image, or lock versions that do not overlap",
                    )
                )
    if errors:
        raise OwnershipErrors(list(errors))


def _identities(store: Store, locked: LockedWheel, python: str) -> dict[str, str]:
    """Path -> sha256 and mode of what the wheel installs, remembered so that a one-pin change reads one wheel."""
    key = digest_of_json([locked.file.sha256, python, LAYER_FORMAT])
    found = store.recall("files", key)
    if found is None:
        path: Path = store.path("sha256:" + locked.file.sha256)
        with Wheel(path, locked.file.filename) as wheel:
            found = {
                file.path: f"{file.sha256 or 'unhashed'} {'x' if file.executable else '-'}"
                for file in installation(wheel, python)
            }
        store.remember("files", key, found)
    return found
