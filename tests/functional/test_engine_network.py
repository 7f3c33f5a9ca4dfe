"""The private engine's subnet and rules, and its other pure functions."""

from __future__ import annotations

import io
import ipaddress
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import EngineError
from imagegen.run.engine.containers import Outcome, tar_of
from imagegen.run.private_network import Network, free_subnet
from tests.support.errors import raises

NETWORKS = st.builds(
    lambda second, third, length: f"10.{second}.{third}.0/{length}",
    st.integers(200, 255),
    st.integers(0, 255),
    st.integers(12, 32),
)


@given(st.lists(NETWORKS, max_size=20))
def test_the_subnet_overlaps_no_route(taken: list[str]) -> None:
    networks = [ipaddress.ip_network(text, strict=False) for text in taken]
    try:
        found = ipaddress.ip_network(free_subnet(taken))
    except EngineError:
        candidates = [ipaddress.ip_network(f"10.{second}.0.0/16") for second in range(213, 255)]
        assert all(any(each.overlaps(network) for network in networks) for each in candidates)
    else:
        assert not any(found.overlaps(network) for network in networks)


def test_no_free_subnet_is_an_error_with_a_way_out() -> None:
    with raises("engine-no-subnet") as caught:
        free_subnet(["10.0.0.0/8"])
    assert "DOCKER_HOST" in str(caught.value.fix)


def test_default_network_and_pool_share_the_subnet_and_do_not_meet() -> None:
    network = Network("ig0", "10.213.0.0/16", forwarding=False)
    default = ipaddress.ip_interface(network.gateway).network
    pool = ipaddress.ip_network(network.pool)
    assert not default.overlaps(pool)
    assert all(part.subnet_of(ipaddress.ip_network(network.subnet)) for part in (default, pool))


def test_every_rule_says_whose_it_is() -> None:
    """So that taking them back can touch no rule of anybody else's."""
    rules = Network("ig0", "10.213.0.0/16", forwarding=False).rules()
    assert len(rules) == 3
    for rule in rules:
        assert "imagegen ig0" in rule
        assert "10.213.0.0/16" in rule


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z ]{1,8}){0,2}", fullmatch=True), st.binary(), max_size=5))
def test_tar_of_holds_the_files_and_nothing_else(files: dict[str, bytes]) -> None:
    archive = tar_of(files)
    assert tar_of(dict(reversed(files.items()))) == archive
    if not files:
        assert archive == b""
        return
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        assert {each.name: (tar.extractfile(each) or io.BytesIO()).read() for each in members} == files
        assert {(each.uid, each.gid, each.mtime, each.mode) for each in members} == {(0, 0, 315532800, 0o644)}


@pytest.mark.parametrize(
    ("code", "name"), [(0, None), (1, None), (128, None), (137, "SIGKILL"), (139, "SIGSEGV"), (255, None)]
)
def test_death_by_signal_has_a_name(code: int, name: str | None) -> None:
    assert Outcome(code, b"", b"").signal == name
