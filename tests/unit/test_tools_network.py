"""The subnet and the firewall rules of a private engine."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import EngineError
from tests.support.errors import raises
from tools.engine.network import Network, free_subnet

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
        subnet = ipaddress.ip_network(free_subnet(taken))
    except EngineError:
        candidates = [ipaddress.ip_network(f"10.{second}.0.0/16") for second in range(213, 255)]
        assert all(any(candidate.overlaps(network) for network in networks) for candidate in candidates)
    else:
        assert not any(subnet.overlaps(network) for network in networks)


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
