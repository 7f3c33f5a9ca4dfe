"""The audit in a second process, made while layers are: what it leaves in the store, and how it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from imagegen.app.audit import audit_before_image, is_audited
from imagegen.app.audit_ahead import audited_ahead
from imagegen.app.session import Session
from imagegen.audit import facts
from imagegen.audit.model import SystemLibraries
from imagegen.core.config import Settings
from imagegen.core.store import Store
from imagegen.image.inventory import cell_subject
from imagegen.image.inventory.cell_subject import system_key
from imagegen.image.layers import scan
from imagegen.lock.model import Lock
from tests.support.errors import raises
from tests.support.layer_inputs import cell_of, lock_of, locked
from tests.support.session import session_of


class Stack:
    """A lock of ten wheels; the store has the scans of all but the last one."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root / "store")
        self.session: Session = session_of(self.store, Settings.from_environment({"HOME": str(root)}))
        names = [f"pack{number}" for number in range(10)]
        wheels = [locked(self.store, root, name, {f"{name}.py": b""}) for name in names]
        self.lock: Lock = lock_of(*wheels)
        self.cell = cell_of(None)
        *first, self.last = self.lock.wheels
        for wheel in first:
            scan.scan_wheel(self.store, wheel, self.lock.python)
        cell_subject.SYSTEMS.write(self.store, system_key(self.lock), facts.packed(SystemLibraries({}, {})))

    def scan_last(self) -> None:
        scan.scan_wheel(self.store, self.last, self.lock.python)

    def audited(self) -> bool:
        return is_audited(self.session.project, self.cell, self.lock)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were forked."""
    started: list[int] = []
    fork = os.fork

    def recorded() -> int:
        child = fork()
        if child:
            started.append(child)
        return child

    monkeypatch.setattr(os, "fork", recorded)
    return started


def assert_ended(children: list[int]) -> None:
    (child,) = children
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_the_audit_waits_for_the_last_scan(tmp_path: Path, children: list[int]) -> None:
    stack = Stack(tmp_path)
    with audited_ahead(stack.session.project, stack.cell, stack.lock):
        assert not stack.audited()
        stack.scan_last()
    assert stack.audited()
    assert_ended(children)


def test_scans_that_do_not_come_are_not_waited_for(tmp_path: Path, children: list[int]) -> None:
    stack = Stack(tmp_path)
    with audited_ahead(stack.session.project, stack.cell, stack.lock):
        pass
    assert not stack.audited()
    assert_ended(children)


def test_a_failed_build_ends_the_audit(tmp_path: Path, children: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(tmp_path)
    stack.scan_last()
    monkeypatch.setattr("imagegen.app.audit.audit", lambda _: time.sleep(60))
    start = time.monotonic()
    with pytest.raises(KeyError), audited_ahead(stack.session.project, stack.cell, stack.lock):
        raise KeyError
    assert_ended(children)
    assert time.monotonic() - start < 30


def test_without_room_for_a_process_the_build_makes_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(tmp_path)
    monkeypatch.setattr(os, "fork", Mock(side_effect=BlockingIOError))
    before = len(os.listdir("/proc/self/fd"))
    with audited_ahead(stack.session.project, stack.cell, stack.lock):
        stack.scan_last()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not stack.audited()


def test_an_audit_that_does_not_end_is_ended(
    tmp_path: Path, children: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(tmp_path)
    stack.scan_last()
    monkeypatch.setattr("imagegen.app.audit.audit", lambda _: time.sleep(60))
    monkeypatch.setattr("imagegen.app.audit_ahead.PATIENCE", 0.1)
    with audited_ahead(stack.session.project, stack.cell, stack.lock):
        pass
    assert_ended(children)


def test_few_scans_or_a_finished_audit_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(tmp_path)
    stack.scan_last()
    audit_before_image(stack.session.project, stack.cell, stack.lock)
    monkeypatch.setattr(os, "fork", None)
    with audited_ahead(stack.session.project, stack.cell, stack.lock):
        pass
    for wheel in stack.lock.wheels[:2]:
        scan.SCANS.forget(stack.store, scan.scan_key(wheel, stack.lock.python))
    monkeypatch.setattr("imagegen.app.audit.audit_digest", lambda: "another")
    with audited_ahead(stack.session.project, stack.cell, stack.lock):
        pass
    assert not stack.audited()


def test_an_error_that_it_finds_is_raised_by_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stack = Stack(tmp_path)
    stack.cell = cell_of(None, pack0=("pack0.absent",))
    with audited_ahead(stack.session.project, stack.cell, stack.lock):
        stack.scan_last()
    assert stack.audited()
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("imagegen.app.audit.audit", None)
    with raises("audit-failed"):
        audit_before_image(stack.session.project, stack.cell, stack.lock)
