"""The network of a private engine: a bridge with a subnet that overlaps no route, and firewall rules.

The engine is configured to leave the firewall unchanged: its own rules would clash with the rules of another Docker on
the machine, and it would leave them behind, with a FORWARD policy of DROP. Source: proc(5), iptables(8).
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.errors import EngineError

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_CANDIDATES = [ipaddress.IPv4Network((f"10.{second}.0.0", 16)) for second in range(213, 255)]


@dataclass(frozen=True)
class Network:
    """A network. `forwarding` is whether the machine forwarded packets before any private engine ran."""

    bridge: str
    subnet: str
    forwarding: bool

    @classmethod
    def plan(cls, bridge: str, *, forwarding: bool) -> Network:
        """Return a network whose /16 overlaps no route of this machine."""
        return cls(bridge, free_subnet(_routes()), forwarding)

    @property
    def gateway(self) -> str:
        """The bridge's own address with its prefix; the first /24 of the subnet is the default network's."""
        return f"{ipaddress.ip_network(self.subnet)[1]}/24"

    @property
    def pool(self) -> str:
        """The upper half of the subnet, from which users' networks get their addresses."""
        return str(list(ipaddress.ip_network(self.subnet).subnets())[1])

    def rules(self) -> tuple[tuple[str, ...], ...]:
        """Return (table, chain, match and target...) of each rule; the comment identifies its engine."""
        comment = ("-m", "comment", "--comment", f"imagegen {self.bridge}")
        answers = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
        return (
            ("filter", "FORWARD", "-s", self.subnet, *comment, "-j", "ACCEPT"),
            ("filter", "FORWARD", "-d", self.subnet, *answers, *comment, "-j", "ACCEPT"),
            ("nat", "POSTROUTING", "-s", self.subnet, "!", "-d", self.subnet, *comment, "-j", "MASQUERADE"),
        )

    def up(self) -> None:
        """Set up bridge and rules. Raises EngineError if the kernel or a program refuses."""
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        _run("ip", "address", "add", self.gateway, "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")
        for table, chain, *rule in self.rules():
            _run("iptables", "-w", "-t", table, "-I", chain, "1", *rule)
        _FORWARDING.write_text("1")

    def down(self) -> tuple[str, ...]:
        """Undo `up`. Return a sentence for each change that had to stay."""
        for table, chain, *rule in self.rules():
            while _succeeds("iptables", "-w", "-t", table, "-D", chain, *rule):
                pass
        _succeeds("ip", "link", "delete", self.bridge)
        if self.forwarding or not forwards():
            return ()
        if bridges := _bridges():
            return (f"net.ipv4.ip_forward stays on, since other bridges need it: {', '.join(bridges)}",)
        _FORWARDING.write_text("0")
        return ()

    def traces(self) -> tuple[str, ...]:
        """Return the parts of the network that exist; empty after `down`."""
        traces = [f"bridge {self.bridge}"] if self.bridge in _bridges() else []
        for table, chain, *rule in self.rules():
            if _succeeds("iptables", "-w", "-t", table, "-C", chain, *rule):
                traces.append(f"rule {' '.join([table, chain, *rule])}")
        return tuple(traces)


def forwards() -> bool:
    """Return whether this machine forwards packets now."""
    return _FORWARDING.read_text().strip() == "1"


def free_subnet(routes: Iterable[str]) -> str:
    """Return the first candidate that overlaps none of `taken` (IPv4 networks or addresses)."""
    networks = [ipaddress.ip_network(text, strict=False) for text in routes]
    for candidate in _CANDIDATES:
        if not any(candidate.overlaps(network) for network in networks):
            return str(candidate)
    raise EngineError(
        "no subnet is free for the private engine",
        code="engine-no-subnet",
        why=f"this machine has routes into all of {_CANDIDATES[0]} to {_CANDIDATES[-1]}",
        fix="use a Docker engine of your own: set DOCKER_HOST",
    )


def _routes() -> list[str]:
    routes = json.loads(_run("ip", "-json", "-4", "route", "show", "table", "all"))
    return [route["dst"] for route in routes if route["dst"] != "default"]


def _bridges() -> list[str]:
    return [link["ifname"] for link in json.loads(_run("ip", "-json", "link", "show", "type", "bridge")) if link]


def _run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise EngineError(
            f"`{' '.join(command)}` failed",
            code="engine-network-failed",
            why=ended.stderr.strip(),
            fix="the private engine needs root and CAP_NET_ADMIN",
        )
    return ended.stdout


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
