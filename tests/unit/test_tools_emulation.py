"""Emulators of other processors that a private engine registers, and takes back."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from imagegen.core.progress import Quiet
from tools.engine import emulation
from tools.engine.emulation import Emulation

FORMAT = "package qemu-user-static\ninterpreter {0}\nmagic \\x7f\\x45\nmask \\xff\\xff\noffset 0\n"
FLAGS = "credentials no\nfix_binary yes\npreserve yes\n"
NAME = "imagegen-ig1-aarch64"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of the kernel's; the machine is x86-64 and has an emulator of arm64."""
    kernel, formats, qemu = tmp_path / "kernel", tmp_path / "formats", tmp_path / "qemu"
    kernel.mkdir()
    formats.mkdir()
    (kernel / "register").write_text("")
    qemu.touch()
    (formats / "qemu-aarch64").write_text(FORMAT.format(qemu) + FLAGS)
    monkeypatch.setattr(emulation, "BINFMT_MISC", kernel)
    monkeypatch.setattr(emulation, "_FORMATS", formats)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return kernel


def test_an_emulator_that_the_kernel_does_not_start_is_registered_and_taken_back(kernel: Path) -> None:
    found = emulation.plan("ig1")
    line = f":{NAME}:M:0:\\x7f\\x45:\\xff\\xff:{kernel.parent / 'qemu'}:PF"
    assert found == Emulation(((NAME, line),), mounts=False)
    emulation.register(found, Quiet())
    assert (kernel / "register").read_text() == line
    (kernel / NAME).write_text("enabled\n")  # as the kernel does
    emulation.remove(found)
    assert (kernel / NAME).read_text() == "-1"


def test_what_the_kernel_starts_already_is_left_alone(kernel: Path) -> None:
    (kernel / "qemu-aarch64").write_text("enabled\ninterpreter /usr/bin/qemu\n")
    assert emulation.plan("ig1") == Emulation()
    (kernel / "qemu-aarch64").write_text("disabled\n")
    assert emulation.plan("ig1").handlers


def test_binfmt_misc_is_unmounted_by_the_last_engine(kernel: Path) -> None:
    assert not emulation.plan("ig1").mounts
    assert emulation.plan("ig1", mounted=True).mounts
    (kernel / "register").unlink()
    assert emulation.plan("ig1").mounts, "also beside an engine that needed no emulator"


def test_a_machine_without_an_emulator_gets_none(kernel: Path) -> None:
    (kernel.parent / "qemu").unlink()
    assert emulation.plan("ig1") == Emulation()
    (kernel.parent / "formats/qemu-aarch64").write_bytes(b"interpreter \xff\n")
    assert emulation.plan("ig1", mounted=True) == Emulation()
    (kernel.parent / "formats/qemu-aarch64").unlink()
    assert emulation.plan("ig1") == Emulation()
    emulation.register(Emulation(), Quiet())
    assert (kernel / "register").read_text() == ""


def test_a_kernel_that_refuses_is_noted(kernel: Path) -> None:
    said: list[str] = []
    progress = Quiet()
    progress.say = said.append  # type: ignore[method-assign]
    found = emulation.plan("ig1")
    (kernel / "register").unlink()
    (kernel / "register").mkdir()
    emulation.register(found, progress)
    assert NAME in said[0]
