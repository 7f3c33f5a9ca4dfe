"""The user, and the directories that every cache of the stack follows."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine

_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # where Python's getpass.getuser() looks first


def check(_: Image, machine: Machine) -> Iterator[Finding]:
    for name, held in (("HOME", "caches of Hugging Face, Triton, vLLM and flashinfer"), ("TMPDIR", "temporary files")):
        if not machine.writable.get(name, True):
            value = machine.environ.get(name, "")
            yield Finding(
                "home",
                "warning",
                f"{name} ({value or 'unset'}) cannot be written by user {machine.uid}: there is no place for {held}",
                f"set {name} to a directory that is this user's (-e {name}=...), or mount one there",
            )
    if machine.user is None and not any(machine.environ.get(name) for name in _NAMES):
        yield Finding(
            "home",
            "warning",
            f"user {machine.uid} has no name: getpass.getuser() fails, and torch.compile with it",
            "set LOGNAME to any word (-e LOGNAME=me)",
        )
