"""Moving tags together, and what is done about a run that was killed while it did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import PublishError
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.oci.documents import MANIFEST_TYPE
from imagegen.oci.registry import PushTarget, Repository, parse
from imagegen.publish import tag_moves
from imagegen.publish.repository import RemoteRepository, TaggedManifest
from tests.support.environment import environment
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.registry_server_writes import Writable, answering

TAGS = ("latest", "cu130", "cu130-py311")


class Scene:
    """A repository with two images without layers; its tags name the first."""

    def __init__(self, root: Path, registry: Writable, client: Client, settings: Settings) -> None:
        self.registry, self.store, self.said = registry, Store(root / "store"), list[str]()
        self.progress = Quiet()
        self.progress.say = self.said.append  # type: ignore[method-assign]
        name = parse(f"{registry.host}/acme/rl/demo")
        self.place = RemoteRepository(name, PushTarget(name, client, settings), Repository(name, client, settings))
        config = registry.blob("acme/rl/demo", b"{}", "c")
        self.old, self.new, self.theirs = (
            str(registry.put("acme/rl/demo", self.manifest(config, name))["digest"])
            for name in ("old", "new", "theirs")
        )
        for tag in TAGS:
            self.name(tag, self.old)
        self.store.write(registry.documents[f"/v2/acme/rl/demo/manifests/{self.new}"][1])
        self.to = TaggedManifest(self.new, MANIFEST_TYPE)

    @staticmethod
    def manifest(config: dict[str, object], name: str) -> dict[str, object]:
        annotations = {"name": name}
        return {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config,
            "layers": [],
            "annotations": annotations,
        }

    def name(self, tag: str, digest: str) -> None:
        start = "/v2/acme/rl/demo/manifests/"
        self.registry.documents[start + tag] = self.registry.documents[start + digest]

    def stands(self) -> list[str | None]:
        return [self.place.resolve_tag(tag) for tag in TAGS]

    def killed(self, *moved: str) -> None:
        """Leave what a run leaves that was killed after it had moved these."""
        before = {tag: TaggedManifest(self.old, MANIFEST_TYPE) for tag in TAGS}
        move = tag_moves.TagMove(self.place.name, self.new, before)
        Cache("publishing", tag_moves.TagMove).put(self.store, tag_moves.move_key(move.repository), move)
        for tag in moved:
            self.name(tag, self.new)

    def settle(self) -> None:
        tag_moves.recover(self.place, self.store, self.progress)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    registry = Writable()
    settings = Settings.from_environment(environment(tmp_path))
    with Client(settings, attempts=1) as client:
        yield Scene(tmp_path, registry, client, settings)
    registry.close()


def test_tags_move_together(scene: Scene) -> None:
    moved = tag_moves.move_tags(scene.place, scene.store, scene.to, (*TAGS, "fresh"), scene.progress)
    assert moved == dict.fromkeys(TAGS, scene.old) | {"fresh": None}
    assert scene.stands() == [scene.new] * 3
    assert tag_moves.move_tags(scene.place, scene.store, scene.to, TAGS, scene.progress) == {}
    assert not Cache("publishing", dict).keys(scene.store)


def test_a_refusal_puts_them_back(scene: Scene, golden: Golden) -> None:
    scene.registry.faults.append(
        lambda handler: handler.path.endswith("/cu130-py311") and answering(400, "PUT", times=1)(handler)
    )
    with pytest.raises(PublishError) as refused:
        tag_moves.move_tags(scene.place, scene.store, scene.to, TAGS, scene.progress)
    golden.check(refused.value)
    assert scene.stands() == [scene.old] * 3
    assert not Cache("publishing", dict).keys(scene.store)


def test_what_a_killed_run_moved_goes_back(scene: Scene, golden: Golden) -> None:
    scene.killed("latest")
    scene.settle()
    assert scene.stands() == [scene.old] * 3
    golden.check(scene.said[-1])
    assert not Cache("publishing", dict).keys(scene.store)


def test_a_run_that_was_killed_when_all_had_moved_was_done(scene: Scene) -> None:
    scene.killed(*TAGS)
    scene.settle()
    assert scene.stands() == [scene.new] * 3
    assert not scene.said
    assert not Cache("publishing", dict).keys(scene.store)


def test_a_tag_that_another_machine_moved_meanwhile_stays(scene: Scene) -> None:
    scene.killed("latest", "cu130")
    scene.name("latest", scene.theirs)
    scene.settle()
    assert scene.stands() == [scene.theirs, scene.old, scene.old]


def test_a_registry_that_takes_nothing_back_is_asked_again_later(scene: Scene) -> None:
    scene.killed("latest")
    scene.registry.faults.append(answering(405, "PUT"))
    with raises("publish-rollback-failed"):
        scene.settle()
    scene.registry.faults.clear()
    scene.settle()
    assert scene.stands() == [scene.old] * 3


def test_an_image_that_is_gone_blocks_nothing(scene: Scene, golden: Golden) -> None:
    scene.killed("latest")
    del scene.registry.documents[f"/v2/acme/rl/demo/manifests/{scene.old}"]
    scene.settle()
    assert scene.place.resolve_tag("latest") == scene.new
    golden.check(" ".join(scene.said))
    assert not Cache("publishing", dict).keys(scene.store)
