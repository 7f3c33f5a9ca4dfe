"""A whole publish against the stand-in for a registry, and what is left wherever it breaks off."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagegen.app.publish import AssembledImage, PublishedImage, publish_jobs
from imagegen.app.publisher import Publisher, PublishJob, PublishOptions
from imagegen.core.config import Settings
from imagegen.core.errors import ImagegenError
from imagegen.core.net import Client
from imagegen.core.progress import Progress, Quiet
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers import Image, Layer, RemoteLayers
from imagegen.lock.model import Lock, LockedBase, LockedFile, LockedWheel
from imagegen.oci.documents import (
    CONFIG_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    ZSTD_TYPE,
    Descriptor,
    digest_of,
    write_image_index,
    write_manifest,
)
from imagegen.oci.registry import PushTarget, Repository, parse
from imagegen.publish.repository import RemoteRepository
from imagegen.publish.tags import Tags
from imagegen.run.smoke.report import CheckResult, SmokeReport
from imagegen.spec.model import Cell, Declarations
from imagegen.trust.documents import AUDIT, KINDS, SBOM, Attached, Document
from tests.support.environment import environment
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.interpreters import LOCKED
from tests.support.registry_server import send
from tests.support.registry_server_writes import Writable, received
from tests.support.session import session_of

REPOSITORY = "acme/rl/demo"
TAGS = Tags("2026.11.20-demo-1a2b3c4d", ("latest", "cpu", "cpu-py311"))
EMPTY = b"{}"
AMD64, ARM64 = "linux/amd64", "linux/arm64"


def lock_of(version: str, platform: str = AMD64) -> Lock:
    wheel = LockedWheel(
        "demo",
        version,
        LockedFile(f"demo-{version}-py3-none-any.whl", 9, digest_of(version.encode())[7:], "pypi"),
        via=(),
    )
    uv = LockedWheel("uv", "1.0", LockedFile("uv-1.0-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
    base = LockedBase("debian12", "debian", "bookworm", {}, ())
    axes = {"platform": platform, "python": "3.11", "cuda": "cpu"}
    return Lock(
        cell="demo-cpu-py311" + ("" if platform == AMD64 else "-linux-arm64"),
        image="demo",
        axes=axes,
        inputs={},
        uv=uv,
        as_of="2026-11-20T00:00:00Z",
        base=base,
        interpreter=LOCKED,
        wheels=(wheel,),
        env=(),
    )


class World:
    """A registry, a machine that publishes to it, and an image of two layers whose upper one is of the version."""

    def __init__(self, root: Path, registry: Writable) -> None:
        root.mkdir(exist_ok=True)
        self.registry = registry
        self.store = Store(root / "store")
        self.settings = Settings.from_environment(environment(root))
        self.passes, self.tested, self.made = True, 0, 0
        self.fails: set[str] = set()  # platforms on which the checks fail
        self.signed: dict[str, str] = {}  # digest of a document -> who attests it

    def image(self, version: str) -> Image:
        layers = []
        for name, content in (("base", b"base"), ("demo", version.encode())):
            digest, key = self.store.write(content * 10), digest_of(name.encode() + content)
            layers.append(Layer(ZSTD_TYPE, digest, len(content) * 10, digest_of(content), name, key, 1))
        config = json.dumps({"version": version}).encode()
        manifest = write_manifest(Descriptor(CONFIG_TYPE, self.store.write(config), len(config)), layers)
        return Image(self.store.write(manifest), manifest, config, tuple(layers))

    def repository(self, client: Client, repository: str = REPOSITORY) -> RemoteRepository:
        name = parse(f"{self.registry.host}/{repository}")
        return RemoteRepository(name, PushTarget(name, client, self.settings), Repository(name, client, self.settings))

    def publish(
        self,
        version: str,
        tags: Tags = TAGS,
        *,
        test: bool = True,
        progress: Progress | None = None,
        expected: str | None = None,
    ) -> PublishedImage:
        """Publish an image with the steps that need real wheels, an engine or a signer replaced by this world's."""
        (published,) = self.publish_all([lock_of(version)], tags, test=test, progress=progress, expected=[expected])
        return published

    def publish_index(self, version: str, tags: Tags = TAGS, **more: Any) -> tuple[PublishedImage, ...]:
        """Publish the images of both platforms, whose upper layers differ."""
        return self.publish_all([lock_of(version), lock_of(f"{version}+arm", ARM64)], tags, **more)

    def index(self, version: str) -> bytes:
        """The index of what `publish_index` publishes."""
        images = {AMD64: self.image(version), ARM64: self.image(f"{version}+arm")}
        return write_image_index(
            {name: Descriptor(MANIFEST_TYPE, each.digest, len(each.manifest)) for name, each in images.items()}
        )

    def publish_all(
        self,
        locks: Sequence[Lock],
        tags: Tags = TAGS,
        *,
        test: bool = True,
        progress: Progress | None = None,
        expected: Sequence[str | None] = (None, None),
    ) -> tuple[PublishedImage, ...]:
        jobs = [
            PublishJob(
                cast("Cell", SimpleNamespace(id=lock.cell, declarations=Declarations())),
                lock,
                tags,
                PublishOptions(test=test),
                digest,
            )
            for lock, digest in zip(locks, expected, strict=False)
        ]
        publisher = SimpleNamespace(
            session=session_of(self.store, self.settings, progress),
            options=PublishOptions(test=test),
            trust=None,
            signer=None,
            source=None,
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, step in self.steps().items():
                patch.setattr(f"imagegen.app.publish.{name}", step)
            with Client(self.settings, attempts=1, backoff=0.001) as client:
                return publish_jobs(cast("Publisher", publisher), jobs, self.repository(client), ())

    def steps(self) -> dict[str, Callable[..., Any]]:
        def assemble_image(_: Any, __: Any, lock: Lock, **___: Any) -> Image:
            self.made += 1
            return self.image(lock.wheels[0].version)

        def run_smoke_checks(_: Any, built: AssembledImage, *__: Any) -> SmokeReport:
            self.tested += 1
            status = "pass" if self.passes and built.lock.platform not in self.fails else "fail"
            return SmokeReport(built.image.digest, built.lock.cell, (CheckResult("imports", status, 0.1),))

        def read(repository: RemoteRepository, digest: str) -> Any:
            return SimpleNamespace(documents=self.attached(repository, digest), signers=())

        documents = (Document(SBOM, b'{"sbom": 1}'), Document(AUDIT, b'{"audit": 1}'))
        return {
            "ensure_wheels": lambda _, __, lock, **___: lock,
            "find_remote_layers": lambda *_: RemoteLayers(),
            "assemble_image": assemble_image,
            "read_known_licences": lambda *_: None,
            "find_restrictions": lambda *_: (),
            "known_scans": lambda *_: {},
            "audit_report": lambda *_: None,
            "attachments.documents": lambda *_, **__: documents,
            "AttachmentReader": lambda *_: SimpleNamespace(read=read),
            "attach": self.attach,
            "run_smoke_checks": run_smoke_checks,
        }

    def attach(
        self, target: PushTarget, _: Repository, subject: Descriptor, documents: Sequence[Document], *__: Any
    ) -> None:
        """Attach documents as trust.attach does, without signatures."""
        for document in documents:
            kind = document.kind.media_type
            target.attach(subject, kind, document.content, kind, {})

    def attached(self, place: RemoteRepository, digest: str) -> tuple[Attached, ...]:
        found = []
        for referrer in place.reader.referrers(digest):
            data = place.reader.content(referrer).data
            kind = next(kind for kind in KINDS.values() if kind.media_type == referrer.artifact_type)
            found.append(Attached(Document(kind, data), referrer.digest, self.signed.get(digest_of(data))))
        return tuple(found)

    def said(self, digest: str) -> dict[str, Document]:
        """Name of its kind -> what is attached to the image, each once."""
        with Client(self.settings) as client:
            found = self.attached(self.repository(client), digest)
        documents = {each.document.kind.name: each.document for each in found}
        assert len(documents) == len(found)
        return documents

    def tags(self) -> dict[str, str]:
        """Tag -> digest, each of which must be complete; lists of referrers as what they list."""
        start = f"/v2/{REPOSITORY}"
        found = {}
        for path, (_, data) in self.registry.documents.copy().items():
            tag = path.removeprefix(f"{start}/manifests/")
            if tag != path and not tag.startswith("sha256:"):
                document = json.loads(data)
                blobs = (document["config"], *document["layers"]) if "layers" in document else ()
                for each in blobs:
                    assert f"{start}/blobs/{each['digest']}" in self.registry.documents, path
                for each in document.get("manifests", ()):
                    assert f"{start}/manifests/{each['digest']}" in self.registry.documents, path
                listed = sorted(each["digest"] for each in document.get("manifests", ()))
                found[tag] = " ".join(listed) if tag.startswith("sha256-") else digest_of(data)
        return found

    def ends(self) -> tuple[dict[str, str], dict[str, Document]]:
        """All that anybody can ask for by a tag."""
        tags = self.tags()
        return tags, self.said(tags["latest"])


@pytest.fixture
def registry() -> Iterator[Writable]:
    registry = Writable()
    registry.referrers = True
    yield registry
    registry.close()


@pytest.fixture
def world(tmp_path: Path, registry: Writable, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power fails here
    return World(tmp_path, registry)


def test_an_image_is_published(world: World) -> None:
    published = world.publish("1.0")
    image = world.image("1.0")
    assert published.digest == image.digest
    assert world.tags() == dict.fromkeys((TAGS.immutable, *TAGS.mutable), image.digest)
    assert published.changed
    assert published.moved_tags == dict.fromkeys(TAGS.mutable)
    assert (published.pushed.sent.blobs, published.pushed.there.blobs) == (3, 0)
    kinds = sorted(
        each.document.kind.name for each in world.attached(world.repository(Client(world.settings)), image.digest)
    )
    assert kinds == ["audit", "sbom", "smoke"]


def test_again_does_nothing(world: World) -> None:
    world.publish("1.0")
    before = dict(world.registry.documents)
    world.registry.requested.clear()
    again = world.publish("1.0")
    assert (again.changed, again.moved_tags, again.pushed.sent.blobs, world.tested) == (False, {}, 0, 1)
    assert again.smoke_source == "this store"
    assert world.registry.documents == before


def test_a_new_version_moves_the_tags_and_sends_one_layer(world: World) -> None:
    first = world.publish("1.0")
    second = world.publish("2.0", replace(TAGS, immutable="2026.11.21-demo-5e6f7a8b"))
    assert second.moved_tags == dict.fromkeys(TAGS.mutable, first.digest)
    assert second.pushed.there.size == len(b"base") * 10
    assert world.tags() == {
        TAGS.immutable: first.digest,
        **dict.fromkeys(("2026.11.21-demo-5e6f7a8b", *TAGS.mutable), second.digest),
    }


def test_a_fixed_tag_is_never_another_image(world: World) -> None:
    world.publish("1.0")
    before = world.tags()
    with raises("publish-tag-immutable"):
        world.publish("2.0")
    assert world.tags() == before


def test_what_is_known_to_be_refused_is_refused_before_anything_is_made(world: World) -> None:
    world.publish("1.0")
    with raises("publish-tag-immutable"):
        world.publish("2.0", expected=world.image("2.0").digest)
    assert world.made == 1


def test_missing_write_access_is_reported_before_anything_is_built(world: World) -> None:
    world.registry.user, world.registry.basic = "them:secret", True
    with raises("publish-denied"):
        world.publish("1.0")
    assert world.made == 0


def test_checks_that_fail_move_nothing(world: World, golden: Golden) -> None:
    first = world.publish("1.0")
    world.passes = False
    with raises("smoke-failed") as failed:
        world.publish("2.0", replace(TAGS, immutable="fixed-2"))
    golden.check(failed.value)
    assert {tag: digest for tag, digest in world.tags().items() if tag != "fixed-2"} == dict.fromkeys(
        (TAGS.immutable, *TAGS.mutable), first.digest
    )
    world.passes = True
    world.publish("2.0", replace(TAGS, immutable="fixed-2"))
    assert world.tested == 3, "a report that is not green proves nothing later"


def test_without_checks_only_the_fixed_tag_is_set(world: World) -> None:
    world.publish("1.0", test=False)
    assert list(world.tags()) == [TAGS.immutable]
    assert world.publish("1.0").moved_tags == dict.fromkeys(TAGS.mutable), "later, where the checks run"


def test_a_report_that_a_trusted_signer_attests_is_not_made_again(world: World, tmp_path: Path) -> None:
    published = world.publish("1.0")
    other = World(tmp_path / "other", world.registry)
    other.signed[digest_of(world.said(published.digest)["smoke"].content)] = "release key"
    again = other.publish("1.0", replace(TAGS, mutable=("nightly",)))
    assert (again.smoke_source, other.tested) == ("release key", 0)
    assert other.tags()["nightly"] == published.digest
    untrusted = World(tmp_path / "stranger", world.registry)
    untrusted.publish("1.0")
    assert untrusted.tested == 1, "a report without a trusted signature is not reused"


def test_images_of_two_platforms_are_one_index(world: World) -> None:
    amd64, arm64 = world.publish_index("1.0")
    index = digest_of(world.index("1.0"))
    assert (amd64.index, arm64.index) == (index, index)
    assert world.tags() == dict.fromkeys((TAGS.immutable, *TAGS.mutable), index)
    assert (amd64.digest, arm64.digest) == (world.image("1.0").digest, world.image("1.0+arm").digest)
    assert arm64.pushed.there.size == len(b"base") * 10, "the layer that both have is sent once"
    assert set(world.said(amd64.digest)) == set(world.said(arm64.digest)) == {"audit", "sbom", "smoke"}
    before = dict(world.registry.documents)
    assert not any(each.changed for each in world.publish_index("1.0"))
    assert world.registry.documents == before


def test_an_image_becomes_an_index_under_the_same_tags(world: World) -> None:
    first = world.publish("1.0")
    for each in world.publish_index("1.0", replace(TAGS, immutable="fixed-2")):
        assert each.moved_tags == dict.fromkeys(TAGS.mutable, first.digest)
    assert world.tags()[TAGS.immutable] == first.digest
    said: list[str] = []
    progress = Quiet()
    progress.say = said.append  # type: ignore[method-assign]
    again = world.publish("1.0", progress=progress)
    assert again.moved_tags == dict.fromkeys(TAGS.mutable, digest_of(world.index("1.0")))
    assert any("--platform all" in line for line in said), "machines of the other platform lose the tag"


@pytest.mark.fault(
    "Publishing",
    "the registry refuses an image index, once or always",
    "no tag names anything new, though both images are there; the next run ends as an undisturbed one",
)
def test_a_registry_that_refuses_an_index_gets_no_tag(world: World) -> None:
    world.publish("1.0")
    before = world.tags()

    def refuses(handler: BaseHTTPRequestHandler) -> bool:
        refused = handler.command == "PUT" and handler.headers.get("Content-Type") == INDEX_TYPE
        if refused:
            received(handler)
            send(handler, 415, b"")
        return refused

    world.registry.faults.append(refuses)
    with raises("publish-write-failed") as failed:
        world.publish_index("2.0", replace(TAGS, immutable="fixed-2"))
    assert "without --platform" in str(failed.value.fix)
    assert world.tags() == before
    manifests = {path.rpartition("/")[2] for path in world.registry.documents if "/manifests/" in path}
    assert manifests >= {world.image("2.0").digest, world.image("2.0+arm").digest}
    world.registry.faults.clear()
    assert world.publish_index("2.0", replace(TAGS, immutable="fixed-2"))[0].pushed.sent.blobs == 0
    assert world.tags()["latest"] == digest_of(world.index("2.0"))


def test_checks_that_fail_on_one_platform_move_nothing(world: World) -> None:
    first = world.publish("1.0")
    world.fails = {ARM64}
    with raises("smoke-failed"):
        world.publish_index("2.0", replace(TAGS, immutable="fixed-2"))
    assert {tag: world.tags()[tag] for tag in TAGS.mutable} == dict.fromkeys(TAGS.mutable, first.digest)
    world.fails, world.tested = set(), 0
    world.publish_index("2.0", replace(TAGS, immutable="fixed-2"))
    assert world.tested == 1, "those of the other platform had passed"


def test_another_index_under_the_immutable_tag_is_refused_first(world: World) -> None:
    world.publish_index("1.0")
    world.made = 0
    for version in ("2.0", "2.0+arm"):
        world.image(version)  # so that the store has both manifests
    with raises("publish-tag-immutable"):
        world.publish_index("2.0", expected=[world.image("2.0").digest, world.image("2.0+arm").digest])
    assert world.made == 0


def interrupted(world: World, before: Mapping[str, tuple[str, bytes]], at: int, *, for_good: bool) -> None:
    """Publish 2.0 in a registry that stands at `before` and refuses request `at`, or that and all that follow."""
    count = [0]

    def fault(handler: BaseHTTPRequestHandler) -> bool:
        world.tags()
        count[0] += 1
        if count[0] == at or (for_good and count[0] > at):
            received(handler)
            send(handler, 418, b"")
            return True
        return False

    world.registry.documents = dict(before)
    world.registry.faults = [fault]
    with suppress(ImagegenError):
        world.publish_index("2.0", replace(TAGS, immutable="fixed-2"))
    world.tags()
    world.registry.faults = []


@pytest.mark.fault(
    "Network",
    "any single request of a publish is refused, or all from one on",
    "every tag can be pulled at every moment, the moving ones agree, and the next run ends as an undisturbed one",
)
@pytest.mark.parametrize(
    ("for_good", "referrers", "step"),
    [
        pytest.param(False, True, 15, id="once"),
        pytest.param(True, False, 17, id="for good, without lists of referrers"),
        *(pytest.param(*each, 1, marks=pytest.mark.slow) for each in itertools.product([False, True], repeat=2)),
    ],
)
def test_wherever_it_breaks_off_the_next_run_ends_as_if_nothing_had_happened(
    world: World, for_good: bool, referrers: bool, step: int
) -> None:
    world.registry.referrers = referrers
    world.publish("1.0")
    before = dict(world.registry.documents)
    world.registry.requested.clear()
    world.publish_index("2.0", replace(TAGS, immutable="fixed-2"))
    requests, after = len(world.registry.requested), world.ends()
    assert requests > 20
    for at in range(requests, 0, -step):
        interrupted(world, before, at, for_good=for_good)
        stands = world.tags()
        if not for_good:
            assert len({stands[tag] for tag in TAGS.mutable}) == 1, at
        world.publish_index("2.0", replace(TAGS, immutable="fixed-2"))
        assert world.ends() == after, at
        assert not Cache("publishing", dict).keys(world.store), "the journal is closed"
