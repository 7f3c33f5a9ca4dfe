"""What an audit knows of wheels travels, and an empty store need not fetch one of them."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.audit.check import audit
from imagegen.config import Settings
from imagegen.errors import TrustError
from imagegen.inventory import cell as cells
from imagegen.inventory.carried import Facts, packed, take
from imagegen.layers import watch
from imagegen.lock.model import Lock, LockedGpus, Winner
from imagegen.progress import Quiet
from imagegen.store import Store, digest_of, upkeep
from tests.elf_samples import make_elf
from tests.unit import test_inventory_cell as inventory
from tests.unit.test_inventory_cell import cell_of
from tests.unit.test_layers_assemble import lock_of, locked

settings, store, rootfs = inventory.settings, inventory.store, inventory.rootfs


@pytest.fixture
def lock(store: Store, tmp_path: Path) -> Lock:
    one = locked(store, tmp_path, "one", {"s.so": make_elf(), "one/_c.so": make_elf(needed=["libabsent.so.1"])})
    two = locked(store, tmp_path, "two", {"s.so": make_elf(exported=["two"]), "two.py": b"x = 1\n"})
    winners = (Winner("s-is-twos", "two", ("one",), "*/site-packages/s.so", "b"),)
    return replace(lock_of(one, two), winners=winners, gpu=LockedGpus(("9.0",), "580.65.06"))


@pytest.fixture
def facts(lock: Lock, store: Store, settings: Settings, rootfs: Path) -> Facts:
    assert rootfs
    cells.subject(lock, cell_of("13.0"), store, settings, Quiet())
    return packed(lock, store)


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    return Store(tmp_path / "empty")


def test_an_audit_on_an_empty_store_is_the_audit_with_the_wheels(
    lock: Lock, facts: Facts, store: Store, empty: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cell_of("13.0", one=("one",))
    expected = cells.subject(lock, cell, store, settings, Quiet())
    take(lock, empty, facts)
    monkeypatch.setattr(cells.lock, "fetch_each", None)
    monkeypatch.setattr(cells.base, "rootfs", None)
    found = cells.subject(lock, cell, empty, settings, Quiet())
    assert found == expected
    report = audit(found)
    assert report == audit(expected)
    assert any("libabsent" in finding.evidence for finding in report.findings)
    assert set(upkeep.blobs(empty)) == set(facts.named.values())


def test_equal_knowledge_gives_equal_bytes(lock: Lock, facts: Facts, empty: Store) -> None:
    take(lock, empty, facts)
    assert packed(lock, empty) == facts
    assert len(facts.named) == 3  # two wheels and the base


def test_what_concerns_other_wheels_is_left(lock: Lock, facts: Facts, empty: Store) -> None:
    one, two = lock.wheels
    take(replace(lock, wheels=(one,)), empty, facts)
    assert watch.recall(empty, one, "3.11")
    assert watch.recall(empty, two, "3.11") is None


def test_what_is_not_named_is_not_believed(lock: Lock, facts: Facts, empty: Store) -> None:
    key = watch.key(lock.wheels[0], lock.python)
    take(lock, empty, Facts({name: digest for name, digest in facts.named.items() if name != key}, facts.archive))
    assert watch.recall(empty, lock.wheels[0], "3.11") is None
    assert watch.recall(empty, lock.wheels[1], "3.11")


def swapped(data: bytes) -> bytes:
    at = data.index(b"\x28\xb5\x2f\xfd")  # what the first file begins with
    return data[: at + 20] + bytes([data[at + 20] ^ 1]) + data[at + 21 :]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (swapped, "1 of the 3 that are named are not in it"),
        (lambda _: bytes(1024), "3 of the 3"),
        (lambda _: b"", "at byte 0: empty header"),
        (lambda data: data[:700], "at byte 0: neither a file nor the end"),
        (lambda data: b"x" + data[1:], "at byte 0: bad checksum"),
        (lambda _: b"x" * 512, "at byte 0: "),
        (lambda data: b"\xff" * 100 + data[100:], "at byte 0: "),
    ],
    ids=["tampered", "other", "nothing", "cut", "renamed", "no-tar", "no-ascii"],
)
def test_an_archive_that_was_changed_is_named_and_nothing_is_taken(
    lock: Lock, facts: Facts, empty: Store, change: Callable[[bytes], bytes], why: str
) -> None:
    with pytest.raises(TrustError) as caught:
        take(lock, empty, Facts(facts.named, change(facts.archive)))
    assert str(caught.value.why).startswith(why)
    assert not list(upkeep.blobs(empty))


def test_a_link_is_no_file(lock: Lock, facts: Facts, empty: Store) -> None:
    info = tarfile.TarInfo("a")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(TrustError, match="not what an audit knows"):
        take(lock, empty, Facts({digest_of(b""): digest_of(b"")}, info.tobuf() + facts.archive))
