"""`imagegen publish` of a small cell to a real registry, Debian's docker-registry, and kill -9 on the way."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import lock
from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.core.errors import EngineError, PublishError
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.store.upkeep import check
from imagegen.engine import Engine
from imagegen.oci.documents import INDEX_TYPE, MANIFEST_TYPE, Descriptor, Platform, read_manifest, write_image_index
from imagegen.oci.registry import PushTarget, Repository, parse
from imagegen.oci.registry.credentials import credentials_for
from imagegen.oci.registry.reference import endpoint, engine_name
from imagegen.publish.tag_moves import TagMove
from imagegen.run.smoke.passed import SmokeRequirement, passed_report, save_passed_report
from imagegen.run.smoke.report import CheckResult, SmokeReport
from imagegen.trust.attach import gather
from imagegen.trust.documents import PROVENANCE
from imagegen.trust.project import Project
from imagegen.trust.signers import Trust
from tests.support.docker_registry import PASSWORD, USER, Hub, login, serving
from tests.support.hostile_repository import fetch_lazily, give_away, plain_git
from tests.support.machines import Debian
from tests.support.registry_proxy import Way
from tests.support.registry_requests import Wire
from tests.support.small_cell import CELL, Machine, Site, forget
from tests.support.store_collector import age, collecting
from tests.support.tiny_image import tiny_image
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.integration

MOVING = ("latest", "cpu", "cpu-py311")


@pytest.fixture(scope="module")
def hub(docker_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(docker_registry, tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def way(hub: Hub) -> Iterator[Way]:
    way = Way(hub)
    yield way
    way.close()


class Publishing:
    """A machine that has the small cell's base, and may publish the cell to the registry at the end of the way."""

    def __init__(self, site: Site, root: Path, way: Way, place: str = "rl", machine: Machine | None = None) -> None:
        self.machine = machine or site.machine(root)
        self.way, self.home = way, root / "home"
        self.settings = login(self.home, way.host)
        self.site, self.place = site, place

    def prove(self) -> None:
        """Stand in for passed smoke checks, which have tests of their own and need an engine."""
        (cell,) = matrix.load([shipped("matrices"), self.site.project / "matrices"]).select(CELL)
        locked = lock.read(self.site.project / "locks" / f"{CELL}.toml")
        required = SmokeRequirement.of(self.site.reference, locked, cell.declarations, require_gpu=False)
        report = SmokeReport(required.image, CELL, (CheckResult("imports", "pass", 0.1),))
        save_passed_report(Store(self.machine.store), passed_report(report, required, locked))

    @property
    def command(self) -> tuple[str, ...]:
        return ("publish", "small", "--to", f"{self.way.host}/acme/{self.place}")

    def start(self, *options: str) -> subprocess.Popen[str]:
        return self.machine.start_command(*self.command, *options, DOCKER_CONFIG=str(self.home))

    def run(self, *options: str) -> tuple[str, str]:
        """Return what a publish in this process writes to stdout and stderr."""
        done = self.machine.call(*self.command, *options, DOCKER_CONFIG=str(self.home))
        return done.stdout, done.stderr

    def killed(self, when: Callable[[str, str], bool]) -> None:
        """A publish that ends by SIGKILL at the first request of which `when` says so; the request goes nowhere."""
        process = self.start()

        def meet(method: str, path: str) -> bool:
            if not when(method, path):
                return True
            os.kill(process.pid, signal.SIGKILL)
            return False

        self.way.meet = meet
        _, err = process.communicate(timeout=120)
        self.way.meet = lambda *_: True
        assert process.returncode == -signal.SIGKILL, err

    def tags(self) -> dict[str, str]:
        """Tag -> digest, each of which can be pulled, every blob of it."""
        name = parse(f"{self.way.host}/acme/{self.place}/small")
        with Client(self.settings) as client:
            repository = Repository(name, client, self.settings)
            found = {}
            for tag in repository.tags():
                if not tag.startswith("sha256-"):
                    image = Repository(parse(f"{name.name}:{tag}"), client, self.settings).image(
                        Platform("linux", "amd64")
                    )
                    there = Store(self.home / "there")
                    for layer in image.layers:
                        if not there.has(layer.digest, layer.size):
                            repository.download(layer.digest, layer.size, there, _Nothing())
                    found[tag] = image.digest
            return found


class _Nothing:
    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass


@pytest.mark.fault(
    "Killed and damaged",
    "kill -9 of a publish while it sends layers, before the tag that never moves, and between the tags that move",
    "every tag can be pulled all the time; the next run puts back what was half moved, and ends as an undisturbed one",
)
def test_a_killed_publish_is_resumed(site: Site, hub: Hub, way: Way, tmp_path: Path) -> None:
    publishing = Publishing(site, tmp_path, way)
    publishing.prove()
    for tag in MOVING:
        hub.push("acme/rl/small", tag, [b"an older image"])
    before = publishing.tags()
    old = before["latest"]
    assert before == dict.fromkeys(MOVING, old)

    sent: list[str] = []

    def second_blob(method: str, path: str) -> bool:
        sent.extend([path] if method == "PUT" and "/uploads/" in path else [])
        return len(sent) == 2

    publishing.killed(second_blob)
    assert publishing.tags() == before
    publishing.killed(lambda method, path: method == "PUT" and "/manifests/20" in path)
    assert publishing.tags() == before
    publishing.killed(lambda method, path: method == "PUT" and path.endswith("/manifests/cpu"))
    stands = publishing.tags()
    assert (stands["latest"], stands["cpu"]) == (site.reference, old), "it was killed between the two"

    way.requested.clear()
    out, err = publishing.run()
    assert out == f"{site.reference}\n", "for $(imagegen publish ...)"
    assert f"latest was moved back to {old}" in err
    assert "0 B sent" in err, "what had arrived is not sent again"
    (fixed,) = publishing.tags().keys() - set(MOVING)
    assert publishing.tags() == dict.fromkeys((fixed, *MOVING), site.reference)
    assert not Cache("publishing", TagMove).keys(Store(publishing.machine.store))


@pytest.mark.fault(
    "Shared store",
    "two builds, two publishes and `store gc` over and over on one store whose files are all old and in no list",
    "builds and publishes give the same digest as alone; every tag can be pulled, and the store is sound",
)
@pytest.mark.parametrize("rounds", [pytest.param(1, id="one"), pytest.param(20, id="many", marks=pytest.mark.slow)])
def test_builds_publishes_and_a_collector_at_once(
    site: Site, debian: Debian, way: Way, tmp_path: Path, rounds: int
) -> None:
    machine = site.machine(tmp_path / "machine")
    for turn in range(rounds):
        publishing = Publishing(site, tmp_path, way, f"at-once-{rounds}-{turn}", machine)
        publishing.prove()
        age(machine.store)
        (machine.store / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
        if turn % 2:
            forget(machine, "build", "layer")  # so that the wheels are needed, too
        with collecting(machine.store, debian):
            running = [machine.start(f"image-{turn}-{number}") for number in range(2)]
            running += [publishing.start() for _ in range(2)]
            ended = [(*process.communicate(timeout=300), process.returncode) for process in running]
        for out, err, code in ended:
            assert code == 0, err
            assert out.split()[-1] == site.reference
        tags = publishing.tags()
        assert set(MOVING) < set(tags)
        assert set(tags.values()) == {site.reference}
    assert check(Store(machine.store), Quiet(), repair=False) == []


def bumped(site: Site, root: Path) -> Site:
    """The same project, one of whose light wheels is another."""
    shutil.copytree(site.project, root / "project", ignore=shutil.ignore_patterns("store"))
    shutil.copytree(site.links, root / "links", copy_function=os.link)
    path = root / "project" / "locks" / f"{CELL}.toml"
    locked = lock.read(path)
    (old,) = (wheel for wheel in locked.wheels if wheel.name == "light3")
    (root / "links" / old.file.filename).unlink()
    made = make_wheel(
        root / "links", {"light3/new.py": b"X = 1\n"}, filename=old.file.filename, info="light3-1.0.dist-info"
    )
    data = made.read_bytes()
    new = replace(old, file=replace(old.file, sha256=hashlib.sha256(data).hexdigest(), size=len(data)))
    lock.write(replace(locked, wheels=tuple(new if wheel is old else wheel for wheel in locked.wheels)), path)
    return replace(site, project=root / "project", links=root / "links")


def test_one_new_wheel_is_what_goes_over_the_wire(site: Site, way: Way, tmp_path: Path) -> None:
    publishing = Publishing(site, tmp_path, way, "wire")
    publishing.run("--no-test")
    first = way.wire.split()
    way.wire = Wire()
    publishing.machine = replace(publishing.machine, site=bumped(site, tmp_path / "bumped"))
    out, _ = publishing.run("--no-test", "--json")
    (result,) = json.loads(out)
    then = way.wire.split()
    logging.getLogger(__name__).info("first %s, then %s", first, then)
    assert first["image's layers"][1] > 11_000_000, "the heavy wheel alone"
    wheels = lock.read(site.project / "locks" / f"{CELL}.toml").wheels
    assert first["facts"][0] == len(wheels) + 2, "and of the base, and all imports"
    moved, documents = result["blobs"], ("lock", "layers", "sbom", "provenance")
    assert moved["sent"] == {"blobs": 2, "size": then["image's layers"][1] + then["image's config"][1]}
    assert moved["there"]["size"] > 50_000_000
    assert {kind: count for kind, (count, _) in then.items()} == {
        "image's layers": 1,  # the group with the new wheel
        "image's config": 1,
        "image's manifest": 2,  # by its digest, and under its tag
        "facts": 1,  # of the new wheel
        **dict.fromkeys(documents, 1),  # the audit found the same
        "documents' manifests": 6,
        "lists of documents": 6,
    }
    assert sum(size for kind, (_, size) in then.items() if kind not in documents) < 30_000


def test_an_engine_gets_from_the_registry_what_the_store_lacks(
    engine: Engine, busybox: bytes, hub: Hub, tmp_path: Path
) -> None:
    """With the credentials of `docker login`; others do not work, and none is shown."""
    store, settings = Store(tmp_path / "store"), login(tmp_path / "home", hub.host)
    digest = tiny_image(store, busybox, {"said": b"pulled"})
    manifest = json.loads(store.read(digest))
    name = parse(f"{hub.host}/acme/rl/tiny")
    with Client(settings) as client:
        target = PushTarget(name, client, settings)
        parts = [Descriptor(x["mediaType"], x["digest"], x["size"]) for x in (manifest["config"], *manifest["layers"])]
        target.upload_all(parts, store, _Nothing())
        target.put(store.read(digest), MANIFEST_TYPE)
    called, tag = engine_name(name, settings), "imagegen/tiny:pulled"
    with pytest.raises(EngineError) as refused:
        engine.pull(called, digest, tag, (USER, "wr0ng-s3cret"))
    assert "wr0ng-s3cret" not in str(refused.value)
    found = credentials_for(endpoint(name, settings).host, settings.env)
    assert found
    engine.pull(called, digest, tag, (found.user, found.secret))
    try:
        assert engine.image_digest(tag) == digest
        assert engine.image_digest(f"{called}@{digest}") is None, "it keeps one name"
        with engine.container(digest) as container:
            assert container.exec(["cat", "/said"], timeout=60).stdout == b"pulled"
    finally:
        engine.client.api.remove_image(tag)


def test_an_engine_pulls_the_image_of_its_platform(engine: Engine, busybox: bytes, hub: Hub, tmp_path: Path) -> None:
    store, settings = Store(tmp_path / "store"), login(tmp_path / "home", hub.host)
    name, api = parse(f"{hub.host}/acme/rl/both"), engine.client.api
    images: dict[str, Descriptor] = {}
    with Client(settings) as client:
        target = PushTarget(name, client, settings)
        for architecture in ("amd64", "arm64"):
            digest = tiny_image(store, busybox, {"said": architecture.encode()}, architecture)
            manifest = store.read(digest)
            target.upload_all(read_manifest(manifest, digest).blobs, store, _Nothing())
            images[f"linux/{architecture}"] = Descriptor(MANIFEST_TYPE, digest, len(manifest))
        with pytest.raises(PublishError):
            target.put(write_image_index(images), INDEX_TYPE, "both")
        assert target.manifest("both") is None, "a registry takes no index before its images"
        for image in images.values():
            target.put(store.read(image.digest), MANIFEST_TYPE)
        target.put(write_image_index(images), INDEX_TYPE, "both")
    called, user = engine_name(name, settings), {"username": USER, "password": PASSWORD}
    for platform in images:
        api.pull(called, "both", auth_config=user, platform=platform)
        container = api.create_container(f"{called}:both", platform=platform)
        try:
            stream, _ = api.get_archive(container, "/said")
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
                said = archive.extractfile("said")
                assert said
                assert f"linux/{said.read().decode()}" == platform
        finally:
            api.remove_container(container)
    api.remove_image(f"{called}:both")


@pytest.mark.fault(
    "Publishing",
    "a repository around the project that belongs to another user, and names programs",
    "it is not read, nothing of it is run; published without a source, with a warning that gives the reason",
)
def test_a_repository_of_another_user_is_no_source(site: Site, way: Way, tmp_path: Path) -> None:
    shared, marker = tmp_path / "shared", tmp_path / "ran"
    shutil.copytree(site.project, shared / "project")
    fetch_lazily(shared, marker, "project/sub")
    foreign = give_away(shared / ".git")
    plain_git(shared / "project", "status", fails=True)
    marker.unlink()  # so it would have been run
    publishing = Publishing(replace(site, project=shared / "project"), tmp_path / "machine", way, "foreign")
    digest, errors = publishing.run("--no-test")
    assert not marker.exists()
    assert foreign == (str(shared / ".git") in errors)
    name = parse(f"{way.host}/acme/foreign/small")
    with Client(publishing.settings) as client:
        repository = Repository(name, client, publishing.settings)
        found = gather(repository, digest.strip(), Trust(Project())).documents
        (provenance,) = (json.loads(each.document.content) for each in found if each.document.kind is PROVENANCE)
    source = provenance["buildDefinition"]["externalParameters"]["source"]
    assert isinstance(source, str) is foreign, source
