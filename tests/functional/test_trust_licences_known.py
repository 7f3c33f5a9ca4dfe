"""Licences are known of what the store has read; of the rest an index may say them, of the very file, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.audit.model import Licence
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image.layers import scan
from imagegen.lock.model import Lock, LockedSdist, LockedWheel
from imagegen.trust.known_licences import read_known_licences
from tests.support.layer_inputs import lock_of, locked
from tests.support.lock_samples import wheel
from tests.support.package_index import Index, Offer, metadata

ON_INDEX = "0" * 64  # the sha256 that the index gives for every file
MIT = Licence("MIT")


@pytest.fixture
def index(settings: Settings) -> Iterator[Index]:
    index = Index()
    yield index
    index.close()


@pytest.fixture
def with_index(settings: Settings, index: Index) -> Settings:
    return replace(settings, index_urls={"pypi": index.url})


def served(index: Index) -> LockedWheel:
    """A wheel that the index has and the store has not."""
    found = wheel("demo")
    said = metadata("demo", "1.0", more="License-Expression: MIT")
    index.page("demo", Offer(found.file.filename, metadata_sha256=index.beside(found.file.filename, said)))
    return replace(found, file=replace(found.file, sha256=ON_INDEX))


def test_what_the_store_has_read_needs_no_index(
    store: Store, tmp_path: Path, with_index: Settings, index: Index
) -> None:
    said = {"METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1.0\nLicense: BSD\n"}
    one = locked(store, tmp_path, "one", {}, said)
    scan.scan_wheel(store, one, "3.11")
    found = read_known_licences(lock_of(one), Context(store, with_index, Quiet()))
    assert found.wheels == {one.file.sha256: Licence(text="BSD")}
    assert not index.requested


def test_an_index_is_asked_once_for_what_it_says_of_the_very_file(
    store: Store, with_index: Settings, index: Index
) -> None:
    lock = lock_of(served(index))
    assert read_known_licences(lock, Context(store, with_index, Quiet())).wheels == {ON_INDEX: MIT}
    requested = len(index.requested)
    assert requested
    assert read_known_licences(lock, Context(store, with_index, Quiet())).wheels == {ON_INDEX: MIT}
    assert len(index.requested) == requested
    other = replace(lock.wheels[0], file=replace(lock.wheels[0].file, sha256="1" * 64))
    assert read_known_licences(lock_of(other), Context(store, with_index, Quiet())).wheels == {}


def test_what_is_made_here_is_no_indexs_to_say(store: Store, with_index: Settings, index: Index) -> None:
    made = served(index)
    lock: Lock = lock_of(replace(made, sdist=LockedSdist(made.file, ())))
    assert read_known_licences(lock, Context(store, with_index, Quiet())).wheels == {}
    assert not index.requested


def test_without_an_index_it_is_unknown(store: Store, with_index: Settings, index: Index) -> None:
    lock = lock_of(served(index))
    index.close()
    assert read_known_licences(lock, Context(store, with_index, Quiet())).wheels == {}
    nowhere = replace(lock.wheels[0], file=replace(lock.wheels[0].file, index="nowhere"))
    assert read_known_licences(lock_of(nowhere), Context(store, with_index, Quiet())).wheels == {}
