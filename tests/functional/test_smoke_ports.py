"""The ports that the check of prime-rl's trainer gives to its processes."""

from __future__ import annotations

import sys
from dataclasses import astuple
from pathlib import Path

import imagegen.checks

sys.path.insert(0, str(Path(imagegen.checks.__file__).parent))
from smoke.checks import prime_trainer


def test_they_are_none_that_the_kernel_gives_to_clients() -> None:
    ports = astuple(prime_trainer.free_ports())
    assert len({number for port in ports for number in (port, port + 1)}) == 2 * len(ports)
    assert all(1024 < port < 32767 for port in ports)
