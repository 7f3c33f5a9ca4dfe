"""Wheels that a cell names by address and sha256, fetched and described for its lock."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from imagegen.core.context import Context
from imagegen.core.errors import LockError
from imagegen.core.net import Client
from imagegen.core.store import Store
from imagegen.plan.harvest import wheel_metadata
from imagegen.plan.lock.indexes import WheelTarget
from imagegen.plan.lock.model import URL, LockedFile, LockedWheel
from imagegen.plan.lock.sources import Finder, RequiredFile
from imagegen.plan.matrix.model import Cell, Requirement, WheelAddress

CHOICE = "the matrix names its address"


def wheels_by_address(cell: Cell, target: WheelTarget, context: Context) -> dict[str, LockedWheel]:
    """Return the wheels by package, each in the store with the bytes of its sha256.

    Raises MissingFiles for what cannot be fetched, and LockError for a wheel that does not fit the cell.
    """
    wanted = [(each, each.address) for each in cell.requirements if each.address]
    if not wanted:
        return {}
    for requirement, address in wanted:
        _require_fit(requirement, address, target)
    with Client(context.settings) as client, context.progress.meter("fetching wheels by address", 0) as meter:
        finder = Finder(client, context.store, context.settings, meter)
        for requirement, address in wanted:
            finder.fetch(RequiredFile(requirement.component.package, _file(address, None)))
    return {each.component.package: _described(each, address, context.store) for each, address in wanted}


def _file(address: WheelAddress, size: int | None) -> LockedFile:
    return LockedFile(address.filename, size, address.sha256, URL, url=address.url)


def _require_fit(requirement: Requirement, address: WheelAddress, target: WheelTarget) -> None:
    """Raise LockError for a wheel of another interpreter or platform, or of a version that the cell does not admit."""
    package = requirement.component.package
    if target.best([(address.filename, address)]) is None:
        raise LockError(
            f"{address.filename} is no wheel for Python {target.python} on {target.uv_platform}",
            code="lock-no-wheel",
            fix=f"name another `url` of {package}; `variants` of an image name one for each value of an axis",
        )
    if not SpecifierSet(requirement.specifier).contains(address.version, prereleases=True):
        raise LockError(
            f"{address.filename} is not a wheel of {package}{requirement.specifier}",
            code="lock-no-wheel",
            fix="correct `version` or `url`",
        )


def _described(requirement: Requirement, address: WheelAddress, store: Store) -> LockedWheel:
    """Return the wheel as a lock has it. Raises LockError for what is no wheel of the component."""
    package, path = requirement.component.package, store.path(f"sha256:{address.sha256}")
    try:
        with path.open("rb") as opened:
            wheel_metadata.of_file(opened, package, str(address.version))
    except ValueError as error:
        what = f"{address.filename} is no wheel of {package}"
        raise LockError(what, code="lock-no-wheel", why=str(error), fix="correct `url`") from error
    return LockedWheel(package, str(address.version), _file(address, path.stat().st_size), choice=CHOICE)
