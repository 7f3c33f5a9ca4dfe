"""The wheelhouse of the store: kept under keys, whole or not at all, and left alone by `store gc`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.store import Store, upkeep
from imagegen.core.store.cache import Cache
from imagegen.oci.documents import digest_of
from imagegen.wheels import wheelhouse
from tests.support.built_wheels import DATA, KEY, LOG, age, built
from tests.support.errors import raises


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_wheel_is_known_by_its_key_alone(store: Store) -> None:
    wheel = built(store)
    assert wheelhouse.known(store, KEY) is None
    wheelhouse.keep(store, wheel)
    assert wheelhouse.known(Store(store.root), KEY) == wheel
    assert wheelhouse.known(store, digest_of(b"another key")) is None


def test_the_first_of_a_key_stays(store: Store) -> None:
    first, second = built(store), built(store, data=b"compiled again, other bytes")
    wheelhouse.keep(store, first)
    wheelhouse.keep(store, second)
    assert wheelhouse.known(store, KEY) == first


@pytest.mark.fault(
    "Killed and damaged",
    "a compiled wheel's file is damaged or gone",
    "it is not known any more: built or pulled again",
)
@pytest.mark.parametrize("how", ["gone", "cut off", "a bit flipped"])
def test_a_wheel_without_its_file_is_none(how: str, store: Store) -> None:
    wheel = built(store)
    wheelhouse.keep(store, wheel)
    path = store.path(wheel.digest)
    path.chmod(0o644)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(DATA[:-1] if how == "cut off" else b"T" + DATA[1:])
    again = Store(store.root)  # another process, which did not write it
    assert wheelhouse.known(again, KEY) is None
    assert list(wheelhouse.every(again)) == []
    other = built(again, data=b"built again")
    wheelhouse.keep(again, other)
    assert wheelhouse.known(again, KEY) == other


def test_a_record_of_another_version_of_imagegen_is_none(store: Store) -> None:
    Cache("wheel", dict).put(store, KEY, {"key": KEY, "unheard": "of"})
    assert wheelhouse.known(store, KEY) is None
    assert list(wheelhouse.every(store)) == []
    assert wheelhouse.contents(store) == {}


def test_they_are_listed_by_name(store: Store) -> None:
    assert list(wheelhouse.every(store)) == []
    names = ["zeta", "alpha", "mid"]
    for name in names:
        wheelhouse.keep(store, built(store, digest_of(name.encode()), name.encode(), name))
    assert [wheel.name for wheel in wheelhouse.every(store)] == sorted(names)


def test_what_is_forgotten_goes_with_the_next_collection(store: Store) -> None:
    wheel = built(store)
    wheelhouse.keep(store, wheel)
    wheelhouse.forget(store, KEY)
    assert wheelhouse.known(store, KEY) is None
    age(store)
    upkeep.collect(store, wheelhouse.contents(store))
    assert list(upkeep.blobs(store)) == []


def test_the_collection_keeps_wheels_and_their_logs(store: Store) -> None:
    wheel = built(store)
    wheelhouse.keep(store, wheel)
    store.write(b"something else")
    age(store)
    upkeep.collect(store, wheelhouse.contents(store))
    assert set(upkeep.blobs(store)) == {wheel.digest, digest_of(LOG)}
    with raises("store-blobs-missing"):
        store.read(digest_of(b"something else"))


@pytest.mark.parametrize("log", [None, 5, "sha256:12", "../../etc/passwd"])
def test_a_log_that_is_none(log: object, store: Store) -> None:
    wheel = replace(built(store), record={"log": log})
    wheelhouse.keep(store, wheel)
    assert list(wheelhouse.contents(store)) == [wheel.digest]


def test_listing_does_not_count_as_use(store: Store) -> None:
    wheel = built(store)
    wheelhouse.keep(store, wheel)
    age(store)
    wheelhouse.contents(store)
    assert store.path(wheel.digest).stat().st_mtime == 0
