"""Two containers on one bridge as two hosts: torchrun's rendezvous and gloo on the CPU, and what breaks first.

The doctor must explain each failure from the log alone. No image for CPUs has Ray.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from imagegen.compat.models import Models
from imagegen.engine import Engine
from imagegen.run import doctor_messages
from tests.support.container_shell import Shell
from tests.support.machines import Built

pytestmark = pytest.mark.integration

PORT = 29500
PATIENCE = 10  # seconds that torch waits for the other host, which may be slow to start; gloo waits five times as long
LONG = 80  # seconds, where both hosts come and no time is lost by waiting for a busy machine
SHORT = 8  # seconds, where no other host can come
PROGRAM = f"""
import os
from datetime import timedelta
import torch
from torch import distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PATIENCE", {PATIENCE}))))
total = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(total)
assert bool((total == 3).all())
print("reduced over", dist.get_world_size())
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Nodes:
    """Two containers that run; `address` is that of the first one on the bridge."""

    shell: Shell
    names: tuple[str, str]
    address: str

    def hosts(self, *lines: str) -> None:
        """Write /etc/hosts on both; "%" stands for the hostname."""
        text = "\\n".join(("127.0.0.1 localhost", *lines)).replace("%", "$(hostname)")
        for name in self.names:
            done = self.shell.docker("exec", name, "sh", "-c", f'printf "{text}\\n" > /etc/hosts')
            assert done.returncode == 0, done.stderr

    def run(self, *commands: str, env: dict[str, str] | None = None) -> list[subprocess.CompletedProcess[str]]:
        """Run a command on each, at once; both outputs are in `stdout`."""
        variables = [f"{name}={value}" for name, value in (env or {}).items()]

        def one(name: str, command: str) -> subprocess.CompletedProcess[str]:
            argv = ["env", *variables, "timeout", "90", "sh", "-c", f"{command} 2>&1"]
            return self.shell.docker("exec", name, *argv)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, self.names, commands))

    def ranks(self, *addresses: str, **env: str) -> list[subprocess.CompletedProcess[str]]:
        """Run PROGRAM on both; `addresses` are the MASTER_ADDR of each."""
        commands = [
            f"MASTER_ADDR={address} RANK={rank} python -c {shlex.quote(PROGRAM)}"
            for rank, address in enumerate(addresses)
        ]
        return self.run(*commands, env={"MASTER_PORT": str(PORT), "WORLD_SIZE": "2", **env})


@pytest.fixture(scope="module")
def nodes(engine: Engine, cpu_grpo: Built) -> Iterator[Nodes]:
    shell = Shell(engine, cpu_grpo.ref)
    names = ("imagegen-node0", "imagegen-node1")
    shell.docker("rm", "--force", *names)
    try:
        for number, name in enumerate(names):
            # torch looks up the names of the addresses that it connects to. No look-up may wait for a DNS server: at
            # this address a connection is refused at once.
            options = ("--detach", "--rm", "--dns", "127.0.0.1", "--name", name, "--hostname", f"node{number}")
            done = shell.docker("run", *options, cpu_grpo.ref, "sleep", "900")
            assert done.returncode == 0, done.stderr
        address = shell.docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", names[0]).stdout.strip()
        yield Nodes(shell, names, address)
    finally:
        shell.docker("rm", "--force", *names)


def explained(done: subprocess.CompletedProcess[str]) -> str:
    """Return the doctor's explanations of a log."""
    return "\n".join(each.text for each in doctor_messages.explain_messages(done.stdout, Models("", {}, {}, {})))


def test_torchruns_rendezvous_and_gloos_all_reduce(nodes: Nodes) -> None:
    torchrun = f"torchrun --nnodes 2 --nproc-per-node 1 --master-addr {nodes.address} --master-port {PORT}"
    program = f"printf %s {shlex.quote(PROGRAM)} > /tmp/program.py"
    commands = [f"{program} && {torchrun} --node-rank {rank} /tmp/program.py" for rank in (0, 1)]
    for done in nodes.run(*commands, env={"PATIENCE": str(LONG)}):
        assert done.returncode == 0, done.stdout
        assert "reduced over 2" in done.stdout
        assert explained(done) == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "no-such-host"])
def test_a_first_host_that_cannot_be_reached(nodes: Nodes, address: str) -> None:
    first, second = nodes.ranks(nodes.address, address, PATIENCE=str(SHORT))
    assert (first.returncode, second.returncode) == (1, 1)
    assert "1/2 processes reached the rendezvous" in explained(first)
    assert f"the rendezvous at {address} cannot be reached" in explained(second)


def test_an_interface_that_is_not_there(nodes: Nodes) -> None:
    first, second = nodes.ranks(nodes.address, nodes.address, GLOO_SOCKET_IFNAME="eth9", PATIENCE=str(LONG))
    assert (first.returncode, second.returncode) == (1, 1)
    assert "eth9" in explained(first)
    said = explained(second)  # on a busy machine the first host has ended before the second one looks for it
    assert "eth9" in said or nodes.address in said


@pytest.mark.slow  # gloo waits for 50 seconds
@pytest.mark.parametrize("line", ["127.0.1.1 %", ""])  # as Debian's installer writes it; not there at all
def test_a_hostname_that_resolves_to_loopback_or_not_at_all(nodes: Nodes, line: str) -> None:
    nodes.hosts(line)
    both = nodes.ranks(nodes.address, nodes.address)
    assert all(done.returncode == 1 for done in both)
    assert all(explained(done) for done in both)
    assert any("gloo gives 127.0." in explained(done) for done in both)
    for done in nodes.ranks(nodes.address, nodes.address, GLOO_SOCKET_IFNAME="eth0"):
        assert (done.returncode, explained(done)) == (0, ""), done.stdout
