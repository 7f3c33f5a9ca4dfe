"""Exported scans of wheels: an empty store that imports them need not fetch a wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.audit.check import audit
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.upkeep import blobs
from imagegen.image.inventory import cell_subject
from imagegen.image.inventory.cell_subject import import_scans, known_scans
from imagegen.image.layers import scan
from imagegen.lock.model import FileConflict, Lock, LockedGpus
from imagegen.oci.documents import digest_of
from tests.support.elf_files import make_elf
from tests.support.golden import Golden
from tests.support.layer_inputs import cell_of, lock_of, locked


@pytest.fixture
def lock(store: Store, tmp_path: Path) -> Lock:
    one = locked(store, tmp_path, "one", {"s.so": make_elf(), "one/_c.so": make_elf(needed=["libabsent.so.1"])})
    two = locked(store, tmp_path, "two", {"s.so": make_elf(exported=["two"]), "two.py": b"x = 1\n"})
    file_conflicts = (FileConflict("s-is-twos", "two", ("one",), "*/site-packages/s.so", "b"),)
    return replace(lock_of(one, two), file_conflicts=file_conflicts, gpu=LockedGpus(("9.0",), "580.65.06"))


@pytest.fixture
def facts(lock: Lock, store: Store, settings: Settings, rootfs: Path) -> dict[str, bytes]:
    assert rootfs
    audit(cell_subject.cell_subject(lock, cell_of("13.0"), Context(store, settings, Quiet())))
    return known_scans(lock, store)


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    return Store(tmp_path / "empty")


def test_an_audit_on_an_empty_store_is_the_audit_with_the_wheels(
    lock: Lock, facts: dict[str, bytes], store: Store, empty: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cell_of("13.0", one=("one",))
    expected = cell_subject.cell_subject(lock, cell, Context(store, settings, Quiet()))
    import_scans(lock, empty, facts, facts.get)
    monkeypatch.setattr("imagegen.image.inventory.cell_subject.inputs.fetch_each", None)
    monkeypatch.setattr("imagegen.image.inventory.cell_subject.file_tree.tree", None)
    found = cell_subject.cell_subject(lock, cell, Context(empty, settings, Quiet()))
    assert found == expected
    report = audit(found)
    assert report == audit(expected)
    assert any("libabsent" in finding.evidence for finding in report.findings)
    assert set(blobs(empty)) == {digest_of(data) for data in facts.values()}


def test_equal_knowledge_is_equal_bytes(lock: Lock, facts: dict[str, bytes], empty: Store) -> None:
    import_scans(lock, empty, facts, facts.get)
    assert list(known_scans(lock, empty).items()) == list(facts.items())
    assert len(facts) == 4  # two wheels, what their modules import, and the base


def test_only_what_is_named_and_lacks_is_asked_for(lock: Lock, facts: dict[str, bytes], empty: Store) -> None:
    one, two = (scan.scan_key(wheel, lock.python) for wheel in lock.wheels)
    requested: list[str] = []

    def bring(key: str) -> bytes | None:
        requested.append(key)
        return facts[key]

    import_scans(replace(lock, wheels=lock.wheels[:1]), empty, {one, two}, bring)
    assert requested == [one]
    import_scans(lock, empty, facts, bring)
    assert sorted(requested) == sorted(facts)
    import_scans(lock, empty, facts, bring)
    assert len(requested) == len(facts)


def test_a_missing_scan_is_skipped_and_what_came_before_an_error_stays(
    lock: Lock, facts: dict[str, bytes], empty: Store, golden: Golden
) -> None:
    one, two = (scan.scan_key(wheel, lock.python) for wheel in lock.wheels)

    def bring(key: str) -> bytes | None:
        if key == two:
            raise FetchError("it is another")
        return facts[key]

    import_scans(lock, empty, {two}, lambda _: None)
    assert known_scans(lock, empty) == {}
    with pytest.raises(FetchError) as caught:
        import_scans(lock, empty, facts, bring)
    golden.check(caught.value)
    assert known_scans(lock, empty).keys() == {one}
