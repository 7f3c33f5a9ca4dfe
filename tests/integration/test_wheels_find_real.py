"""The finder over a real wheel whose torch is known, from its index and from a release host on loopback."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from imagegen.audit.readers import loose_wheels
from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.types import Gpu
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.make import candidates
from imagegen.wheels.catalogue import Catalogue, KnownFile
from imagegen.wheels.find import Candidate, Offer, WheelRequirement, find
from imagegen.wheels.offers import WheelSource
from tests.support.http_server import Loopback
from tests.support.required_wheels import choice

pytestmark = pytest.mark.integration

TARGET = WheelTarget("3.11", "x86_64", 36)
HOPPER = (Gpu("sm_90", "9.0", "hopper", ()),)
# torchvision 0.23.0 is the one of torch 2.8 (its metadata says so), 8.6 MB with real kernels for GPUs.
NEED = WheelRequirement(
    "torchvision", "0.23.0", "3.11", TARGET.uv_platform, TARGET.ranks, "2.8.0", "12.8", source="torchvision-0.23.0"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


def ask(need: WheelRequirement, store: Store, offers: Sequence[Offer] = ()) -> tuple[Candidate, ...]:
    """From the index, or from nowhere but these addresses."""
    settings = Settings.from_environment(dict(os.environ))
    known = Catalogue(files=tuple(KnownFile(need.package, need.version, each, "tests") for each in offers))
    with Client(settings) as client:
        index = None if offers else candidates.index_listing("pypi", need.package, settings, client)
        places = replace(candidates.candidate_places(known, index, settings, store, client, Quiet()), links=())
        return find(need, places, partial(loose_wheels.audit_wheel, gpus=HOPPER, torch=need.torch))


@pytest.fixture
def host(store: Store, tmp_path: Path) -> Iterator[str]:
    """A release host that has the wheel."""
    found = choice(ask(NEED, store))
    (tmp_path / found.filename).write_bytes(store.read(f"sha256:{found.sha256}"))

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = Loopback(functools.partial(Handler, directory=str(tmp_path)))
    yield f"http://{server.host}/{found.filename}"
    server.close()


def test_the_index_serves_the_torch_that_a_wheel_was_built_for(store: Store) -> None:
    found = ask(NEED, store)
    chosen = choice(found)
    assert (chosen.place, chosen.filename) == (
        WheelSource.INDEX,
        "torchvision-0.23.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    )
    assert "for Python 3.12, the cell has 3.11" in {each.reason for each in found}
    later = choice(refused := ask(replace(NEED, torch="2.11.0", cuda="13.0"), store))
    assert later.place is WheelSource.SOURCE
    (why,) = [each.reason for each in refused if each.filename == chosen.filename]
    assert why.startswith("the audit: built for ")
    assert "this is 2.11.0; 2 symbols missing, first c10::cuda::c10_cuda_check_implementation" in why
    # On 2.9 no symbol is missing, so nothing but the metadata tells.
    (why,) = [each.reason for each in ask(replace(NEED, torch="2.9.1"), store) if each.filename == chosen.filename]
    assert why.startswith("the audit: built for torch 2.8, ")


def test_a_release_host_serves_it_under_an_address_with_and_without_a_hash(
    store: Store, host: str, tmp_path: Path
) -> None:
    name = host.rpartition("/")[2]
    fresh = Store(tmp_path / "fresh")
    unknown = choice(ask(NEED, fresh, [Offer(name, host)]))
    assert (unknown.place, unknown.where) == (WheelSource.CATALOGUE, host)
    assert fresh.intact(f"sha256:{unknown.sha256}", unknown.size or 0)
    known = Offer(name, host, unknown.sha256, unknown.size)
    assert choice(ask(NEED, Store(tmp_path / "other"), [known])) == unknown
    wrong = ask(NEED, Store(tmp_path / "third"), [replace(known, sha256="0" * 64)])
    assert choice(wrong).place is WheelSource.SOURCE
    assert f"expected sha256 {'0' * 64}, got {unknown.sha256}" in wrong[1].reason
