"""Machines that publish to one registry, the stand-in: what each builds, sends, trusts and signs.

The layers are real ones of tiny wheels, and so are the documents and signatures; engine and base are stand-ins.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imagegen.app.comparison import verify_image
from imagegen.app.publisher import Publisher, PublishOptions
from imagegen.compare import references
from imagegen.core.errors import LockError, PublishError
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.image.inventory import cell_subject
from imagegen.image.inventory import cell_subject as cell
from imagegen.image.layers import plan, scan
from imagegen.lock.model import Lock
from imagegen.oci.documents import digest_of
from imagegen.spec.model import Cell
from imagegen.trust.project import FILE, load
from tests.support.environment_samples import combined
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.publish_engines import AXES, CELL, Engines
from tests.support.publishing_team import OTHER, Machine, Team, stand_in_engines, team_at, writable_registry
from tests.support.registry_server_writes import Writable

registry = pytest.fixture(writable_registry)
engines = pytest.fixture(stand_in_engines)
team = pytest.fixture(team_at)

SIGNED = ("lock", "layers", "sbom", "provenance", "audit", "smoke")


def test_all_that_is_said_of_an_image_is_signed(team: Team, engines: Engines) -> None:
    lock = team.lock(b"x = 1\n")
    machine = team.machine("one", lock)
    published = machine.publish(lock)
    assert machine.kinds(published.digest) == dict.fromkeys(SIGNED, "release")
    assert engines.got == [("store", published.digest)]
    other = team.machine("two", lock)
    other.publish(lock)
    assert len(other.kinds(published.digest)) == len(SIGNED), "nothing is said twice"
    assert len(engines.got) == 1, "and no check runs twice, since somebody trusted attests the report"
    team.registry.requested.clear()
    machine.publish(lock)
    written = [path for method, path in team.registry.requested if method in ("PUT", "PATCH")]
    assert [path.rpartition("/")[2] for path in written] == [published.digest], "the manifest alone, once more"


def test_an_image_with_several_environments_is_published_as_any_other(team: Team, engines: Engines) -> None:
    one, two = team.lock(b"x = 1\n", b"y = 1\n"), team.lock(b"x = 2\n", b"y = 1\n")
    lock = replace(combined({"one": one, "two": two}), image="demo")
    machine = team.machine("one", one, two)
    published = machine.publish(lock)
    assert machine.kinds(published.digest) == dict.fromkeys(SIGNED, "release")
    empty = team.machine("two")
    again = empty.publish(lock)
    assert (again.digest, again.pushed.sent.blobs, again.smoke_source) == (published.digest, 0, "release")
    assert len(engines.got) == 1, "no check runs twice"
    name, settings = f"{team.registry.host}/acme/rl/demo:latest", empty.session.project.settings
    with Client(settings) as client:
        source, tag = references.locate(name, empty.store, client, settings)
        verified = verify_image("demo", source, tag, client, Quiet(), load(team.root))
    assert verified.verdict.good, verified.verdict.sentence
    assert verified.lock == replace(lock, record=published.record)


def test_an_empty_store_makes_nothing_of_what_the_registry_has(team: Team, engines: Engines) -> None:
    lock = team.lock(b"x = 1\n", b"y = 1\n")
    first = team.machine("one", lock).publish(lock)
    bases, requested = len(team.bases), len(team.registry.requested)
    empty = team.machine("two")
    again = empty.publish(replace(lock, record=None), test=False)
    assert again.digest == first.digest
    assert len(team.bases) == bases, "no base was made, and no wheel was there to make anything of"
    assert (again.pushed.sent.blobs, again.moved_tags) == (0, {})
    changing = [request for request in team.registry.requested[requested:] if request[0] in ("PUT", "PATCH")]
    assert [path.rpartition("/")[2] for _, path in changing] == [first.digest], "the manifest, once more"


def test_one_new_wheel_is_one_new_layer(team: Team, engines: Engines) -> None:
    """The engine gets it from the registry, because the store lacks the other layers."""
    old = team.lock(*(f"x = {number}\n".encode() for number in range(9)))
    team.machine("one", old).publish(old)
    contents = [*(f"x = {number}\n".encode() for number in range(8)), b"new = 1\n"]
    new = team.lock(*contents)
    bump = replace(new, wheels=(*old.wheels[:-1], new.wheels[-1]), as_of="2026-11-21T00:00:00Z")
    empty = team.machine("two", new)
    published = empty.publish(bump)
    assert published.pushed.there.blobs > 1
    assert published.pushed.sent.blobs <= 3, "the new layer, the config, and what shares its group"
    assert engines.got[-1] == (f"{team.registry.host}/acme/rl/demo", published.digest)
    assert team.machine("three", bump).publish(bump, test=False).digest == published.digest, "as if made from nothing"


def facts(machine: Machine, lock: Lock) -> set[str]:
    return {digest_of(data) for data in cell.known_scans(lock, machine.store).values()}


def test_facts_travel_one_by_one_and_only_to_whom_lacks_them(team: Team, engines: Engines) -> None:
    old = team.lock(b"x = 1\n", b"y = 1\n")
    one = team.machine("one", old)
    published = one.publish(old)
    first = facts(one, old)
    assert len(first) == 4, "two wheels, what they import, and the base"
    assert team.sent() >= first
    one.kinds(published.digest)
    assert not team.got() & first, "to look at what is attached takes none of them"
    wheels = (old.wheels[0], team.lock(b"", b"y = 2\n").wheels[1])
    new = replace(old, wheels=wheels, as_of="2026-11-21T00:00:00Z")
    team.registry.requested.clear()
    two = team.machine("two", new)
    two.publish(new, test=False)
    (fresh,) = facts(two, new) - first  # both wheels import what the old ones do
    assert team.sent() & (first | {fresh}) == {fresh}
    assert len(team.got() & first) == 2, "one wheel and the base; it has read the imports itself"
    assert team.got() & first < facts(two, new)
    team.registry.requested.clear()
    two.publish(old)
    lacking, asked = first - facts(two, new), team.got() & first
    assert asked >= lacking
    assert len(asked - lacking) <= 1, "what it has is not asked for again, but equal imports of another lock"
    assert not team.sent() & first


@pytest.mark.fault(
    "Trust",
    "what is attached of a wheel's contents is gone or altered, though the signed layers name it",
    "it is rejected, and the wheel is scanned",
)
@pytest.mark.parametrize("how", ["gone", "altered"])
def test_facts_that_are_not_what_is_named(how: str, team: Team, engines: Engines) -> None:
    lock = team.lock(b"x = 1\n", b"y = 1\n")
    one = team.machine("one", lock)
    published = one.publish(lock)
    known = cell.known_scans(lock, one.store)
    path = f"/v2/acme/rl/demo/blobs/{digest_of(known[scan.scan_key(lock.wheels[0], lock.python)])}"
    media_type, data = team.registry.documents.pop(path)
    if how == "altered":
        team.registry.documents[path] = (media_type, data[:-1] + bytes([data[-1] ^ 1]))
    two = team.machine("two", lock)
    assert two.publish(lock, test=False).digest == published.digest
    assert cell.known_scans(lock, two.store) == known
    warned = [line for line in two.said if "the wheels are scanned on this machine" in line]
    assert len(warned) == (how == "altered")


def test_an_untrusted_signer_is_ignored(team: Team, engines: Engines) -> None:
    """An unsigned attachment could name any layer under an honest wheel's hash."""
    lock = team.lock(b"x = 1\n")
    team.machine("one", lock).publish(lock, key=False)
    bases = len(team.bases)
    team.machine("two", lock).publish(lock, key=False, test=False)
    assert len(team.bases) == bases + 1, "all was made again"


@pytest.mark.fault(
    "Trust",
    "the signing key is not one that publish.yaml names",
    "refused before the registry is asked anything, also where a trusted signer has signed all of it already",
)
def test_a_key_that_the_project_does_not_name_is_refused_first(team: Team, engines: Engines, golden: Golden) -> None:
    lock = team.lock(b"x = 1\n")
    team.machine("one", lock).publish(lock)
    team.registry.requested.clear()
    named = (team.root / FILE).read_text()
    untrusted = ec.generate_private_key(ec.SECP256R1()).public_key()
    (team.root / "new.pub").write_bytes(
        untrusted.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    (team.root / FILE).write_text("publish: {keys: {new: new.pub}}\n")
    two = team.machine("two", lock)
    with raises("trust-signer-untrusted") as refused:
        two.publish(lock)
    assert not team.registry.requested
    assert refused.value.where == str(team.key)
    golden.check(refused.value)
    assert "under `keys`" in str(refused.value)
    (team.root / FILE).write_text(named)
    assert two.publish(lock).moved_tags == {}


def test_layers_of_a_sibling_are_linked(team: Team, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = team.lock(b"x = 1\n")
    machine = team.machine("one", lock)
    monkeypatch.setattr(CELL, "image", OTHER)
    machine.publish(replace(lock, image=OTHER, cell="other-cpu-py311"))
    monkeypatch.setattr(CELL, "image", "demo")
    published = machine.publish(lock)
    assert published.pushed.mounted.blobs > 1
    assert published.pushed.sent.blobs == 2, "its own config and support"


def test_another_compression_has_tags_of_its_own(team: Team, engines: Engines) -> None:
    lock = team.lock(b"x = 1\n")
    machine = team.machine("one", lock)
    plain, packed = machine.publish(lock), machine.publish(lock, compression="gzip")
    assert plain.digest != packed.digest
    assert plain.record == packed.record
    assert all(tag.endswith("-gzip") for tag in (packed.immutable_tag, *packed.moved_tags))
    bases = len(team.bases)
    again = team.machine("two").publish(lock, compression="gzip", test=False)
    assert (again.digest, again.pushed.sent.blobs, len(team.bases)) == (packed.digest, 0, bases)


def test_an_index_is_signed_and_its_images_are_found_behind_its_tag(team: Team, engines: Engines) -> None:
    lock = team.lock(b"x = 1\n")
    arm64 = replace(lock, cell=f"{lock.cell}-linux-arm64", axes={**lock.axes, "platform": "linux/arm64"})
    one = team.machine("one", lock)
    published = one.publish_all([lock, arm64])
    assert [one.kinds(each.digest) for each in published] == [dict.fromkeys(SIGNED, "release")] * 2
    index = str(published[0].index)
    assert one.kinds(index) == {}
    assert one.signers(index) == ("release",)
    bases, requested = len(team.bases), len(team.registry.requested)
    again = team.machine("two").publish_all([lock, arm64])
    assert [each.digest for each in again] == [each.digest for each in published]
    assert (again[0].index, again[0].moved_tags, len(team.bases), len(engines.got)) == (index, {}, bases, 2)
    changing = [path for method, path in team.registry.requested[requested:] if method in ("PUT", "PATCH")]
    assert [path.rpartition("/")[2] for path in changing] == [*(each.digest for each in published), index]


class Workers:
    """Two machines that publish images with two common heavy layers, and one layer of its own each."""

    def __init__(self, team: Team) -> None:
        self.team = team
        common = team.lock(b"a = 1\n", b"b = 1\n", b"c = 1\n", b"d = 1\n")
        heavy = common.wheels
        self.one = replace(common, wheels=heavy[:3])
        self.two = replace(
            common, cell="demo-cu130-py311", wheels=(*heavy[:2], heavy[3]), axes={**AXES, "cuda": "cu130"}
        )
        team.committed = {each.cell: each for each in (self.one, self.two)}

    def fails(self, lock: Lock, name: str, monkeypatch: pytest.MonkeyPatch) -> Machine:
        """A machine that fails when it has made and pushed what it makes for all workers."""
        machine = self.team.machine(name, lock)
        with monkeypatch.context() as patching:
            patching.setattr("imagegen.app.publish.assemble_image", _fail)
            with raises("publish-write-failed"):
                machine.publish(lock, test=False)
        return machine


def _fail(*_: object, **__: object) -> None:
    raise PublishError("ended by the test", code="publish-write-failed")


@pytest.fixture
def workers(team: Team, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr(plan, "HEAVY", 1)
    return Workers(team)


def test_a_worker_takes_layers_of_an_image_that_is_not_finished(
    workers: Workers, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = workers.fails(workers.one, "one", monkeypatch)

    assert one.made(workers.one) >= {"demo00", "demo01", "demo02"}
    two = team.machine("two", workers.two)
    published = two.publish(workers.two, test=False)
    shared = {"base", "demo00", "demo01"}
    assert not two.made(workers.two) & shared, "the other worker has made these"
    assert len(team.bases) == 1
    alone = team.machine("alone", workers.two).publish(workers.two, test=False, to="acme/else")
    assert published.digest == alone.digest


def test_layers_are_mounted_from_images_of_the_project_first(workers: Workers, team: Team) -> None:
    """There may be more images than repositories that a registry is asked for a blob."""
    team.committed["other-cpu-py311"] = replace(workers.one, image=OTHER, cell="other-cpu-py311")
    machine = team.machine("one")
    machine.session.matrix.defaults = dict.fromkeys([*(f"a{number:02}" for number in range(20)), "demo", OTHER], CELL)
    publisher = Publisher(machine.session, f"{team.registry.host}/acme/rl", PublishOptions())
    with Client(machine.session.project.settings) as client:
        _, siblings = publisher.repositories(client, "demo")
    assert siblings[0].reference.name.endswith(f"/{OTHER}")
    assert len(siblings) == 21


def test_a_base_is_shared_by_images_without_a_common_wheel(
    workers: Workers, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (replace(each, wheels=each.wheels[2:]) for each in (workers.one, workers.two))
    team.committed = {each.cell: each for each in (one, two)}
    first = workers.fails(one, "one", monkeypatch)
    assert len(team.bases) == 1
    assert cell_subject.system_key(one) in cell.known_scans(one, first.store), (
        "else others make the base for their audit"
    )
    team.machine("two", two).publish(two, test=False)
    assert len(team.bases) == 1


def test_a_lock_that_cannot_be_read_is_no_matter_of_another_cell(
    workers: Workers, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(workers.one, cell="broken-cpu-py311")
    team.committed[broken.cell] = broken
    machine = team.machine("one", workers.one)

    def find_lock(cell: Cell) -> Lock | None:
        if cell.id == broken.cell:
            raise LockError("the lock cannot be read", code="lock-malformed")
        return team.committed.get(cell.id)

    machine.session.lock_files.find = find_lock
    assert machine.publish(workers.one, test=False).pushed.sent.blobs


def test_a_layer_that_is_not_the_recorded_one_is_not_shared(
    workers: Workers, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.fails(workers.one, "one", monkeypatch)
    record = team.machine("alone", workers.two).publish(workers.two, test=False, to="acme/else").record
    other = [replace(each, diff_id="sha256:" + "0" * 64) if each.name == "demo00" else each for each in record.layers]
    recorded = replace(workers.two, record=replace(record, layers=tuple(other)))
    two = team.machine("two", workers.two)
    with raises("not-reproducible-record"):
        two.publish(recorded, test=False)
    assert "demo00" in two.made(workers.two)
    assert "demo01" not in two.made(workers.two)


@pytest.mark.fault(
    "Publishing",
    "a worker is killed while it pushes layers that other images share",
    "no statement names them; the others make them; its rerun completes",
)
@pytest.mark.parametrize("blobs", [0, 1, 3])
def test_a_worker_that_is_killed_while_it_pushes(blobs: int, workers: Workers, team: Team, registry: Writable) -> None:
    one = team.machine("one", workers.one)
    killed_in_push(one, workers.one, registry, blobs)
    two = team.machine("two", workers.two)
    published = two.publish(workers.two, test=False)
    assert two.made(workers.two) >= {"base", "demo00", "demo01", "demo03"}
    again = one.publish(workers.one, test=False)
    assert "base" in one.made(workers.one), "it has made this before it was killed"
    for lock, found in ((workers.one, again), (workers.two, published)):
        alone = team.machine(f"alone-{lock.cell}", lock)
        assert alone.publish(lock, test=False, to="acme/else").digest == found.digest


def killed_in_push(machine: Machine, lock: Lock, registry: Writable, blobs: int) -> None:
    """Publish in a process that SIGKILL ends when it would complete another blob after this many."""
    children: list[int] = []
    pushed = []

    def kill(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command != "PUT" or "/blobs/uploads/" not in handler.path:
            return False
        pushed.append(handler.path)
        if len(pushed) > blobs:
            os.kill(children[0], signal.SIGKILL)
        return len(pushed) > blobs

    registry.faults.append(kill)
    children.append(os.fork())
    if not children[0]:
        with suppress(BaseException):
            machine.publish(lock, test=False)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == -signal.SIGKILL
    registry.faults.remove(kill)


@pytest.mark.fault(
    "Publishing", "two workers push the same layers at the same moment", "both publish, with equal digests"
)
def test_workers_that_push_one_layer_at_once_both_publish(workers: Workers, team: Team, registry: Writable) -> None:
    """The registry takes no blob before both have begun to send: neither can find the other's layers."""
    together, meeting = threading.Barrier(2, timeout=30), threading.Event()

    def meet(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command == "PUT" and not meeting.is_set():
            with suppress(threading.BrokenBarrierError):
                together.wait()
            meeting.set()
        return False

    registry.faults.append(meet)
    machines = [team.machine(name, workers.one) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda machine: machine.publish(workers.one, test=False), machines)
    assert first.digest == second.digest
    assert machines[0].made(workers.one) == machines[1].made(workers.one) >= {"demo00", "demo01", "demo02"}
    assert machines[0].kinds(first.digest).keys() >= {"lock", "layers", "sbom", "provenance"}


def test_layers_of_a_worker_that_nobody_trusts_are_made_again(
    workers: Workers, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.fails(workers.one, "one", monkeypatch)
    untrusted = ec.generate_private_key(ec.SECP256R1())
    team.use_key(untrusted)
    two = team.machine("two", workers.two)
    two.publish(workers.two, test=False)
    assert two.made(workers.two) >= {"base", "demo00", "demo01", "demo03"}
