"""`imagegen verify --rebuild` builds a lock only after its image, its signer or the project vouches for exactly it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagegen.compare import rebuild
from imagegen.image import layers
from imagegen.lock import dumps, inputs_hash
from imagegen.lock.model import Lock
from imagegen.oci.documents import INDEX_TYPE, MANIFEST_TYPE, Descriptor, digest_of, write_image_index
from imagegen.trust.documents import LAYERS, LOCK, SIGNATURE
from tests.support.command_line import Run
from tests.support.golden import Golden
from tests.support.published_image import Published, lock_document, made
from tests.support.registry_server import StandIn
from tests.support.verified_image import ARM64, CELL, World, documents, lock_of, publish, signer

NAME = "acme/rl/blackwell-vllm"
FIRST = pytest.mark.fault(
    "Trust", "the lock that is attached to an image is another's, or no trusted signer signed it",
    "verify --rebuild builds nothing: not done, exit 1 or 2",
)  # fmt: skip


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with closing(StandIn()) as registry:
        yield publish(registry, lock_of(CELL), tmp_path_factory.mktemp("world"), NAME)


@pytest.fixture
def world(once: World) -> Iterator[World]:
    """Yield the published image; changes by the test are undone."""
    published, project = once.published, once.project
    kept, attached = dict(published.registry.documents), dict(published.attached)
    yield once
    published.registry.documents, published.attached = kept, attached
    once.published, once.project = published, project


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, once: World) -> list[Lock]:
    """Return the locks that are built again; each gives the image of its record."""
    locks: list[Lock] = []

    @contextmanager
    def rebuild_image(lock: Lock, *_: Any) -> Iterator[tuple[Lock, layers.Image, Any]]:
        locks.append(lock)
        yield lock, layers.recorded_image(lock), once.store

    monkeypatch.setattr(rebuild, "rebuild_image", rebuild_image)
    return locks


Verify = Callable[..., tuple[object, dict[str, str]]]


@pytest.fixture
def verify(run: Run, tmp_path: Path, built: list[Lock]) -> Verify:
    """Run `imagegen verify --rebuild` in a project with or without keys: (exit code, results of all steps)."""

    def verify(world: World, *options: str, keys: bool = True, locked: Lock | None = None) -> tuple[object, Any]:
        built.clear()
        project = tmp_path / "project"
        (project / "locks").mkdir(parents=True, exist_ok=True)
        (project / f"locks/{CELL}.toml").unlink(missing_ok=True)
        if locked:
            (project / f"locks/{CELL}.toml").write_text(dumps(locked))
        world.write_publish(project, keys=keys)
        command = ["verify", world.published.reference, "--cell", CELL, "--no-layers", "--json", *options]
        done = run("--project", str(project), *command)
        verdict = json.loads(done.out)
        assert verdict["good"] is (done.code == 0)
        return done.code, {step["name"]: step["outcome"] for step in verdict["steps"]}

    return verify


def another_lock(world: World) -> Lock:
    """Return another lock of the same cell."""
    return replace(world.published.lock, as_of="2026-11-21T00:00:00Z", record=None)


def swap_lock(world: World) -> None:
    """Attach another lock instead."""
    world.attach(LOCK, lock_document(another_lock(world)))


def swap_record(world: World) -> None:
    """Attach the lock with another record: its inputs are the same."""
    lock = world.published.lock
    assert lock.record
    world.attach(LOCK, lock_document(replace(lock, record=replace(lock.record, codec="another"))))


def add_lock(world: World) -> None:
    """Attach another lock, listed before the signed one."""
    content = lock_document(another_lock(world))
    world.published.attach("another lock", LOCK.media_type, content)
    lists = {path: value for path, value in world.published.registry.documents.items() if "/manifests/sha256-" in path}
    for path, (kind, data) in lists.items():
        index = json.loads(data)
        index["manifests"].reverse()
        world.published.registry.documents[path] = kind, json.dumps(index).encode()


def add_signed_lock(world: World) -> None:
    """Attach another lock with the list of layers that names it, both of another signer."""
    add_lock(world)
    lock = another_lock(world)
    content = documents(replace(lock, record=world.published.lock.record), world.published.image.digest)[LAYERS]
    world.published.attach("other layers", LAYERS.media_type, content)
    world.sign("attestation of other layers", str(LAYERS.predicate), content, signer())


def exchange(world: World, *, signed_elsewhere: bool = False) -> None:
    """Publish another image, its label, its lock and all documents consistent, under the same name."""
    published = world.published
    lock, image = made(another_lock(world), world.store)
    world.published = Published(published.registry, lock, image, world.store, published.repository)
    for kind, content in documents(lock, image.digest).items():
        world.attach(kind, content)
    if signed_elsewhere:  # with the signature of the first image
        world.sign("signature", SIGNATURE, b"{}", world.signer, published.image.digest)


def sign_by_stranger(world: World) -> None:
    exchange(world)
    stranger = signer()
    for kind, content in documents(world.published.lock, world.published.image.digest).items():
        world.attach(kind, content, by=stranger)
    world.sign("signature", SIGNATURE, b"{}", stranger)


def sign_image_only(world: World) -> None:
    """Sign the image but none of its documents: no signer names its lock."""
    exchange(world)
    world.sign("signature", SIGNATURE, b"{}", world.signer)


def sign_layers_only(world: World) -> None:
    """Sign the documents but not the image."""
    world.published.drop("signature")


def attach_failed(world: World) -> None:
    """Fail a step that has nothing to do with the lock."""
    world.published.flip(world.published.blob(world.published.attached["SBOM"][1]))


ATTACKS = {
    "the lock is swapped": swap_lock,
    "the record is swapped": swap_record,
    "two locks": add_lock,
    "two locks, each named by a list of layers": add_signed_lock,
    "another image": exchange,
    "another image with the signature of the first": lambda world: exchange(world, signed_elsewhere=True),
    "another image, signed by a stranger": sign_by_stranger,
    "a signed image whose lock no signer names": sign_image_only,
    "signed documents of an unsigned image": sign_layers_only,
    "another step fails": attach_failed,
}


@FIRST
@pytest.mark.parametrize("name", ATTACKS)
def test_no_lock_is_built_that_the_signer_does_not_name(
    name: str, world: World, verify: Verify, built: list[Lock]
) -> None:
    ATTACKS[name](world)
    for options in (["--rebuild"], ["--rebuild", "--require-signature"], ["--rebuild-unsigned"]):
        code, steps = verify(world, *options)
        assert (code, steps["rebuild"], built) == (1, "not done", []), options


@FIRST
def test_a_signed_lock_is_built_exactly(world: World, verify: Verify, built: list[Lock], tmp_path: Path) -> None:
    own = ["--key", str(world.project.keys[0].file)]
    for options, keys in (([], True), (["--require-signature"], True), (own, True), (own, False)):
        code, steps = verify(world, "--rebuild", *options, keys=keys)
        assert (code, steps["rebuild"], steps["signature"]) == (0, "pass", "pass"), options
        assert [lock_document(lock) for lock in built] == [lock_document(world.published.lock)]
    signer(tmp_path / "other.pem")
    code, steps = verify(world, "--rebuild", "--key", str(tmp_path / "other.pem"))
    assert (code, steps["rebuild"], built) == (1, "not done", [])


@FIRST
def test_without_signers_only_the_projects_lock_is_built(world: World, verify: Verify, built: list[Lock]) -> None:
    lock = world.published.lock
    assert lock.record
    for locked in (None, another_lock(world), replace(lock, record=replace(lock.record, codec="another"))):
        code, steps = verify(world, "--rebuild", keys=False, locked=locked)
        assert (code, steps["rebuild"], steps["signature"], built) == (2, "not done", "not checked", [])
    code, steps = verify(world, "--rebuild", keys=False, locked=lock)
    assert (code, steps["rebuild"], built) == (0, "pass", [lock])
    code, steps = verify(world, "--rebuild-unsigned", keys=False)
    assert (code, steps["rebuild"], built) == (0, "pass", [lock])
    code, steps = verify(world, "--rebuild-unsigned", "--require-signature", keys=False)
    assert (code, steps["rebuild"], built) == (1, "not done", [])
    swap_lock(world)
    code, steps = verify(world, "--rebuild-unsigned", keys=False)
    assert (code, steps["rebuild"], built) == (1, "not done", [])
    exchange(world)  # it names the project's cell, and is whole in itself
    code, steps = verify(world, "--rebuild", keys=False, locked=lock)
    assert (code, steps["rebuild"], built) == (2, "not done", [])


@FIRST
def test_no_wheel_is_hidden_from_the_comparison_with_the_projects_lock(
    world: World, verify: Verify, built: list[Lock]
) -> None:
    lock = world.published.lock
    hidden = f"""
[[wheel]]
name = "zz"
version = "1"
choice = "of another host"
file = "zz-1-py3-none-any.whl"
size = 1
sha256 = "{"a" * 64}"
index = "url"
url = "https://localhost/zz-1-py3-none-any.whl"
build = "sha256:{"a" * 64}"
"""
    wheels, table, rest = lock_document(lock).decode().partition("\n[record]\n")
    content = (wheels + hidden + table + rest).encode()
    digests = [digest_of(text).encode() for text in (lock_document(lock), content)]
    world.attach(LOCK, content)
    world.attach(LAYERS, documents(lock, world.published.image.digest)[LAYERS].replace(*digests))
    for name in ("SBOM", "provenance"):
        for each in (name, f"attestation of the {name}"):
            world.published.drop(each)
    code, steps = verify(world, "--rebuild", keys=False, locked=lock)
    assert (code, steps["rebuild"], steps["lock"], built) == (1, "not done", "fail", [])


@FIRST
def test_no_image_of_an_index_without_a_signature_is_built(
    world: World, run: Run, built: list[Lock], tmp_path: Path
) -> None:
    arm64 = publish(world.published.registry, lock_of(ARM64), tmp_path / "arm64", NAME, signed_by=world)
    images = {"linux/amd64": world.published.image, "linux/arm64": arm64.published.image}
    index = write_image_index(
        {name: Descriptor(MANIFEST_TYPE, image.digest, len(image.manifest)) for name, image in images.items()}
    )
    world.published.registry.documents[world.published.manifest("latest")] = INDEX_TYPE, index
    world.write_publish(tmp_path)
    name = f"{world.published.registry.host}/{NAME}:latest"
    done = run("--project", str(tmp_path), "verify", name, "--no-layers", "--rebuild", "--json")
    outcomes = [each["steps"][-1]["outcome"] for each in json.loads(done.out)["platforms"].values()]
    assert (done.code, outcomes, built) == (1, ["not done"] * 2, [])


def test_the_verdict_is_printed_before_the_rebuild(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    printed: list[str] = []

    @contextmanager
    def rebuild_image(lock: Lock, *_: Any) -> Iterator[tuple[Lock, layers.Image, Any]]:
        printed.append(capsys.readouterr().out)
        yield lock, layers.recorded_image(lock), world.store

    monkeypatch.setattr(rebuild, "rebuild_image", rebuild_image)
    name = f"{world.published.registry.host}/{NAME}@{world.published.image.digest}"
    done = run("verify", name, "--no-layers", "--rebuild", "--key", str(world.project.keys[0].file))
    golden.check(printed[0], done.out)
    assert inputs_hash(world.published.lock) in printed[0]
