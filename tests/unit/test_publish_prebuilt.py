"""Layers of images that are not finished: how they are dealt among workers, and the statements about them."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

import pytest

from imagegen.app.shared_layers import Shares, share
from imagegen.image.layers import plan
from imagegen.image.layers.plan import HEAVY, LayerPlan
from imagegen.lock.model import Lock, LockedFile, LockedWheel
from imagegen.publish import prebuilt
from tests.support.errors import raises
from tests.support.tiny_lock import LOCK


def wheel(name: str, version: str = "1.0", weight: int = 1) -> LockedWheel:
    digest = hashlib.sha256(f"{name} {version}".encode()).hexdigest()
    file = LockedFile(f"{name}-{version}-py3-none-any.whl", weight * HEAVY, digest, "pypi")
    return LockedWheel(name, version, file, via=())


def cell(name: str, *wheels: LockedWheel) -> Lock:
    return replace(LOCK, cell=name, wheels=wheels)


def missing(lock: Lock) -> list[LayerPlan]:
    return [part for part in plan.plan(lock) if part.wheels]


def names(parts: tuple[LayerPlan, ...]) -> list[str]:
    return [part.name for part in parts]


def dealt(*locks: Lock) -> dict[str, Shares]:
    project = {lock.cell: lock for lock in locks}
    return {lock.cell: share(missing(lock), lock.cell, project) for lock in locks}


COMMON = [wheel(name, weight=weight) for name, weight in (("a", 5), ("b", 4), ("c", 3), ("d", 2))]


def test_each_shared_layer_has_one_maker() -> None:
    found = dealt(cell("one", *COMMON, wheel("x")), cell("two", *COMMON, wheel("y")))
    assert {name: names(each.assigned) for name, each in found.items()} == {"one": ["a", "d"], "two": ["b", "c"]}
    assert {name: names(each.unshared) for name, each in found.items()} == {"one": ["x"], "two": ["y"]}
    assert {name: names(each.delegated) for name, each in found.items()} == {"one": ["b", "c"], "two": ["a", "d"]}


def test_a_layer_is_made_by_a_cell_that_needs_it() -> None:
    found = dealt(cell("one", *COMMON[:2]), cell("two", *COMMON[:2]), cell("three", wheel("z")))
    assert names(found["three"].unshared) == ["z"]
    assert sorted(itertools.chain(names(found["one"].assigned), names(found["two"].assigned))) == ["a", "b"]


def test_workers_do_not_take_over_in_the_same_order() -> None:
    """If the maker of a layer does not run, the others do not begin with the same one."""
    found = dealt(*(cell(name, *COMMON) for name in ("one", "two", "three", "four")))
    first = {name: names(each.delegated)[0] for name, each in found.items()}
    assert len(set(first.values())) == 4


def test_an_update_keeps_the_maker() -> None:
    """Every worker of a nightly update has the old locks and finds the same new versions."""
    old = {lock.cell: lock for lock in (cell("one", *COMMON), cell("two", *COMMON))}
    new = [replace(lock, wheels=(wheel("a", "2.0", 5), *COMMON[1:])) for lock in old.values()]
    found = {lock.cell: share(missing(lock), lock.cell, old) for lock in new}
    assert [names(each.assigned) for each in found.values()] == [["a", "d"], ["b", "c"]]


def test_light_wheels_and_new_packages_are_made_by_each() -> None:
    light = replace(wheel("light"), file=replace(wheel("light").file, size=1000))
    old = {lock.cell: lock for lock in (cell("one", light), cell("two", light))}
    lock = cell("one", light, wheel("new"))
    found = share(missing(lock), "one", old)
    assert (len(found.unshared), found.assigned, found.delegated) == (2, (), ())


def test_a_cell_without_a_lock_in_the_project_shares_nothing() -> None:
    lock = cell("one", *COMMON)
    found = share(missing(lock), "one", {"two": cell("two", *COMMON)})
    assert (names(found.unshared), found.assigned, found.delegated) == (["a", "b", "c", "d"], (), ())


@pytest.mark.parametrize(
    "document", [b"", b"{}", b'{"codec": "zstd", "layers": [], "facts": {}}', b'{"codec": 1, "layers": 2, "facts": 3}']
)
def test_a_document_of_another_form_is_refused(document: bytes) -> None:
    with raises("trust-prebuilt-unreadable"):
        prebuilt.read(document)
