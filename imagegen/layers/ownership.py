"""One path, two packages: the same file is fine, two different ones are an error, wherever in the image they lie.

Overlay file systems would show whichever layer comes last, and pip whichever package was installed last: a package
that works by the order of installation does not work.
"""

from __future__ import annotations

from collections.abc import Iterable

from imagegen.errors import ErrorGroup, WheelError
from imagegen.layers.install import Installed, installation
from imagegen.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.layers.wheel import Wheel
from imagegen.lock.model import LockedWheel
from imagegen.store import Store


class OwnershipErrors(ErrorGroup, WheelError):
    """Every path that two packages own with different contents."""


def check(store: Store, wheels: Iterable[LockedWheel], python: str) -> None:
    """Raise OwnershipErrors unless each path of the stack has one content.

    A wheel that no layer of this store was made of must itself be in the store.
    """
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


def remember(store: Store, locked: LockedWheel, files: Iterable[Installed], python: str) -> dict[str, str]:
    """Keep and return path -> sha256 and mode of what the wheel installs, so that nobody has to open it again."""
    identities = {file.path: f"{file.sha256 or 'unhashed'} {'x' if file.executable else '-'}" for file in files}
    store.remember("files", _key(locked, python), identities)
    return identities


def _identities(store: Store, locked: LockedWheel, python: str) -> dict[str, str]:
    found = store.recall("files", _key(locked, python))
    if found is not None:
        return found
    with Wheel(store.path(locked.file.digest), locked.file.filename) as wheel:
        return remember(store, locked, installation(wheel, python), python)


def _key(locked: LockedWheel, python: str) -> str:
    return digest_of_json([locked.file.sha256, python, LAYER_FORMAT])
