"""Is an image what its lock says? Every artefact, changed in every way that a thief could, is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagegen import lock as locks
from imagegen.app import comparison
from imagegen.compare import references, wording
from imagegen.compare.difference import difference
from imagegen.compare.references import OperandSources
from imagegen.compare.verdict import StepStatus
from imagegen.core.net import NotFoundError, UnavailableError, UnreachableError
from imagegen.core.store import images
from imagegen.image import layers
from imagegen.image.layers.image_config import image
from imagegen.lock.builds import keyed
from imagegen.lock.model import Lock
from imagegen.oci.documents import INDEX_TYPE, MANIFEST_TYPE, Descriptor, digest_of
from imagegen.trust import statement
from imagegen.trust.documents import (
    AUDIT,
    BUNDLE,
    FACTS,
    LAYERS,
    LOCK,
    NUMERICS,
    PROVENANCE,
    SBOM,
    SIGNATURE,
    SMOKE,
    Kind,
)
from imagegen.trust.licences import KnownLicences
from imagegen.trust.sbom import sbom
from tests.support.environment_samples import combined
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.published_image import Published, lock_document, made
from tests.support.registry_server import StandIn, send
from tests.support.source_builds import WITH_BUILD
from tests.support.tiny_lock import LOCK as TINY
from tests.support.verified_image import KNOWN, NAMES, World, documents, publish, signer

ORDER = (LOCK, LAYERS, SBOM, PROVENANCE, SMOKE, AUDIT, NUMERICS)
DOCUMENTS = [*(NAMES[kind] for kind in ORDER if kind is not LOCK), "facts"]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with closing(StandIn()) as registry:
        yield publish(registry, TINY, tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(once: World) -> Iterator[World]:
    """Yield the published image; changes by the test are undone."""
    published = once.published
    documents, attached = dict(published.registry.documents), dict(published.attached)
    yield once
    published.registry.documents, published.attached, once.published = documents, attached, published


SEVERAL = combined({"main": replace(TINY, wheels=TINY.wheels[1:]), "beside": TINY})


def test_an_image_with_several_environments_is_what_their_locks_say(tmp_path: Path) -> None:
    with closing(StandIn()) as registry:
        world = publish(registry, SEVERAL, tmp_path)
        assert world.verify().good
        unlike = combined({"main": TINY, "beside": replace(TINY, wheels=TINY.wheels[1:])})
        for kind in (LOCK, SBOM):
            before = dict(registry.documents)
            content = documents(replace(unlike, record=world.published.lock.record), world.published.image.digest)[kind]
            world.attach(kind, content, by=world.signer)
            assert NAMES[kind] in world.wrong(), kind
            registry.documents = before


def test_an_image_that_is_what_its_lock_says(world: World, golden: Golden) -> None:
    verdict = world.verify()
    assert {step.name: step.outcome for step in verdict.steps} == dict.fromkeys(
        ("manifest", "config", "layers", "lock", "image", "signature", "facts", *map(NAMES.__getitem__, ORDER[1:])),
        StepStatus.PASS,
    )
    evidence = {step.name: step.evidence for step in verdict.steps}
    golden.check(evidence["signature"], evidence["SBOM"], evidence["lock"], evidence["facts"], verdict.sentence)


def test_without_keys_no_signature_is_called_good(world: World, golden: Golden) -> None:
    verdict = world.verify(keys=False)
    assert verdict.good
    golden.check(verdict.sentence)


def flips(world: World) -> dict[str, str]:
    """Return the name that a verdict gives to a document -> its path in the registry, where the test changes a byte."""
    published = world.published
    layers = json.loads(published.image.manifest)["layers"]
    names = [layer.name for layer in published.image.layers]
    found = {f"layer {name}": published.blob(layer["digest"]) for name, layer in zip(names, layers, strict=True)}
    found["config"] = published.blob(json.loads(published.image.manifest)["config"]["digest"])
    for name, (manifest, *blobs) in published.attached.items():
        found[f"{name}, its manifest"] = published.manifest(manifest)
        if name != "facts":  # which are fetched on request only
            (blob,) = blobs
            found[f"{name}, its content"] = published.blob(blob)
    return found


@pytest.mark.fault(
    "Trust", "one byte of a layer, config, lock, SBOM, report, attestation or signature is changed in the registry",
    "verify names it, exit 1",
)  # fmt: skip
def test_a_byte_of_anything_is_named(world: World) -> None:
    documents = dict(world.published.registry.documents)
    for name, path in flips(world).items():
        world.published.flip(path)
        assert name.partition(", ")[0] in world.here(), name
        world.published.registry.documents = dict(documents)
    assert len(flips(world)) >= 20
    assert not world.here()


def test_many_bytes_at_once_are_all_named(world: World) -> None:
    names = [name for name in flips(world) if "manifest" not in name and name != "config"]
    for name in names:
        world.published.flip(flips(world)[name])
    assert {name.partition(", ")[0] for name in names} <= world.wrong()


def test_a_byte_of_the_manifest(world: World) -> None:
    name = world.published.reference.removesuffix(":1") + "@" + world.published.image.digest
    assert not world.wrong(reference=name)
    world.published.flip(world.published.manifest(world.published.image.digest))
    assert world.wrong(reference=name) == {"manifest"}


def exchanged(world: World, *, its_own_lock: bool) -> None:
    """Another image in its place, whole in itself but for a layer's bytes, with all that is attached to it."""
    lock, built = made(world.published.lock, world.store, base=b"a back door")
    world.published = Published(world.published.registry, world.published.lock, built, world.store, "acme/other")
    for kind, text in documents(lock if its_own_lock else world.published.lock, built.digest).items():
        world.attach(kind, text)


def swaps() -> dict[str, tuple[Callable[[World], None], str]]:  # noqa: C901 - a table, each row with its function
    """Return the name of a swap -> the function that does it, and the step that fails if keys are trusted."""

    def another(kind: Kind, change: Callable[[Any], Any], *, signed: bool) -> Callable[[World], None]:
        def swap(world: World) -> None:
            content = documents(world.published.lock, world.published.image.digest)[kind]
            changed = json.dumps(change(json.loads(content))).encode()
            world.attach(kind, changed, by=world.signer if signed else None)

        return swap

    def renamed(content: Any) -> Any:
        content["components"][2]["version"] = "0.0.1"
        return content

    def lacking(content: Any) -> Any:
        del content["components"][-1]
        return content

    def failed(content: Any) -> Any:
        return content | {"result": "FAILED", "failedTests": ["imports"]}

    def elsewhere(content: Any) -> Any:
        return content | {"imagegen": content["imagegen"] | {"image": "sha256:" + "0" * 64}}

    def unlocked(content: Any) -> Any:
        return content | {"buildDefinition": {"externalParameters": {}}}

    def found_wanting(content: Any) -> Any:
        error = {"id": "symbol-missing", "severity": "error", "package": "torch"}
        return content | {"passed": False, "findings": [error]}

    def lying(content: Any) -> Any:
        content["layers"][0]["diff_id"] = "sha256:" + "0" * 64
        return content

    def lock(world: World) -> None:
        other = replace(world.published.lock, as_of="2026-11-21T00:00:00Z", record=None)
        world.attach(LOCK, lock_document(other))

    def no_lock(world: World) -> None:
        world.published.drop("lock")

    def unsigned(world: World) -> None:
        world.published.drop("signature")

    def untrusted(world: World) -> None:
        world.sign("signature", SIGNATURE, b"{}", signer())

    def replayed(world: World) -> None:
        world.sign("signature", SIGNATURE, b"{}", world.signer, "sha256:" + "7" * 64)

    def facts(known: dict[str, bytes]) -> Callable[[World], None]:
        return lambda world: world.published.attach_all("facts", FACTS, known)

    def unattested(world: World) -> None:
        world.published.drop("attestation of the smoke report")

    return {
        "another image": (lambda world: exchanged(world, its_own_lock=False), "image"),
        "an unsigned image with a lock that fits": (lambda world: exchanged(world, its_own_lock=True), "signature"),
        "another lock": (lock, "lock"),
        "no lock": (no_lock, "lock"),
        "an SBOM with another version": (another(SBOM, renamed, signed=False), "SBOM"),
        "a signed SBOM with another version": (another(SBOM, renamed, signed=True), "SBOM"),
        "an SBOM that lacks something": (another(SBOM, lacking, signed=True), "SBOM"),
        "a report that failed": (another(SMOKE, failed, signed=True), "smoke report"),
        "a report of another image": (another(SMOKE, elsewhere, signed=True), "smoke report"),
        "a report of nothing": (another(SMOKE, lambda _: [], signed=False), "smoke report"),
        "provenance of another lock": (another(PROVENANCE, unlocked, signed=True), "provenance"),
        "layers that lie": (another(LAYERS, lying, signed=True), "layers' list"),
        "an audit with errors": (another(AUDIT, found_wanting, signed=True), "audit"),
        "an audit of another cell": (another(AUDIT, lambda content: content | {"subject": "x"}, signed=True), "audit"),
        "results of another image": (
            another(NUMERICS, lambda content: content | {"image": "sha256:" + "7" * 64}, signed=True),
            "numerical results",
        ),
        "results of no form": (
            another(NUMERICS, lambda content: content | {"results": {}}, signed=True),
            "numerical results",
        ),
        "facts of other bytes": (facts(dict.fromkeys(KNOWN, b"other")), "facts"),
        "facts that lack one": (facts(dict([*KNOWN.items()][1:])), "facts"),
        "no signature": (unsigned, "signature"),
        "a stranger's signature": (untrusted, "signature"),
        "a signature of another image": (replayed, "signature"),
        "a report that nobody attests": (unattested, "smoke report"),
    }


@pytest.mark.fault(
    "Trust", "an image, or what is attached to it, is exchanged for another that is whole in itself", "verify names it"
)  # fmt: skip
@pytest.mark.parametrize("name", swaps())
def test_what_is_exchanged_is_named(name: str, world: World) -> None:
    how, named = swaps()[name]
    how(world)
    assert named in world.here()
    if "sign" not in name and "attests" not in name:  # then it contradicts the lock, and no key is needed to see it
        assert named in world.here(keys=False)


def test_an_exchanged_document_has_one_line_in_its_place(world: World, golden: Golden) -> None:
    bill = json.loads(documents(world.published.lock, world.published.image.digest)[SBOM])
    bill["components"][2]["version"] = "0.0.1"
    world.attach(SBOM, json.dumps(bill).encode())
    steps = world.verify(layers=False).steps
    names = [step.name for step in steps]
    assert names == sorted(names, key=["manifest", "config", "layers", "lock", "image", "signature", *DOCUMENTS].index)
    (wrong,) = [step for step in steps if step.outcome is StepStatus.FAIL]
    assert wrong.name == "SBOM"
    golden.check(wrong.evidence)
    assert "0.0.1" in wrong.evidence
    (signed,) = [step for step in steps if step.name == "SBOM" and step.outcome is StepStatus.PASS]
    golden.check(signed.evidence)


def test_what_a_lock_gives_needs_nothing_but_the_lock(world: World) -> None:
    lock = world.published.lock
    again = locks.read(_written(lock, world.store.root.parent / "again.toml"))
    assert layers.recorded_image(again).manifest == world.published.image.manifest


def test_other_compression_is_reported_as_that(world: World, golden: Golden) -> None:
    """The same contents in other blobs, as for registries that cannot do zstd."""
    built = world.published.image
    layers = [replace(each, digest="sha256:" + "1" * 64) for each in built.layers]
    other = image(world.published.lock, layers)
    published = Published(world.published.registry, world.published.lock, built, world.store, "acme/gz")
    published.registry.documents[published.manifest("1")] = (
        "application/vnd.oci.image.manifest.v1+json",
        other.manifest,
    )
    published.image = other
    published.attach("lock", LOCK.media_type, lock_document(published.lock))
    steps = {step.name: step for step in world.verify(published.reference, keys=False, layers=False).steps}
    assert steps["image"].outcome is StepStatus.PASS
    golden.check(steps["image"].evidence)


def test_compiled_wheels_have_hashes_of_their_own(tmp_path: Path) -> None:
    with closing(StandIn()) as registry:
        compiled = tuple(keyed(build, WITH_BUILD) for build in WITH_BUILD.builds)
        world = publish(registry, replace(WITH_BUILD, builds=compiled), tmp_path)
        assert world.verify(layers=False).good
        content = json.loads(sbom(world.published.lock, world.published.image.digest, KnownLicences()))
        for each in content["components"]:
            if each["name"] == "demo-ext":
                each["hashes"] = [{"alg": "SHA-256", "content": "9" * 64}]
        world.attach(SBOM, json.dumps(content).encode(), by=world.signer)
        assert world.verify(layers=False).good


AMD64, ARM64 = {"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}


class Index:
    """An index under the tag of a world's image, with the image of the same lock for arm64 beside it."""

    def __init__(self, world: World, arm64: Published, *, signed: bool = True) -> None:
        self.world, self.signed = world, signed
        images = (world.published.image, arm64.image)
        self.amd64, self.arm64 = (
            Descriptor(MANIFEST_TYPE, each.digest, len(each.manifest)).as_dict() for each in images
        )

    def wrong(self, *entries: dict[str, Any]) -> set[str]:
        """Return the names of the failed steps of an index with these entries."""
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}).encode()
        published = self.world.published
        for name in ("1", digest_of(index)):
            published.registry.documents[published.manifest(name)] = (INDEX_TYPE, index)
        if self.signed:
            digest = digest_of(index)
            bundle = self.world.signer.sign(statement.write(digest, SIGNATURE, b"{}"))
            published.attach("index", BUNDLE, bundle, subject=Descriptor(INDEX_TYPE, digest, len(index)))
        return {step.name for step in self.world.verify(layers=False).wrong}


@pytest.fixture(scope="module")
def arm64(once: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The image of the lock's cell for arm64, in the same repository, in which the tag names the other image."""
    lock = replace(TINY, cell=f"{TINY.cell}-linux-arm64", axes={**TINY.axes, "platform": "linux/arm64"})
    documents, tag = once.published.registry.documents, once.published.manifest("1")
    tagged = documents[tag]
    found = publish(once.published.registry, lock, tmp_path_factory.mktemp("arm64"), signed_by=once)
    documents[tag] = tagged
    return found


@pytest.fixture
def index(world: World, arm64: World) -> Index:
    return Index(world, arm64.published)


@pytest.mark.fault(
    "Trust", "an index leads to another image, or to one for another processor, or has no signature", "verify names it"
)
def test_an_index_is_verified_with_the_image_of_each_platform(index: Index) -> None:
    amd64, arm64 = index.amd64 | {"platform": AMD64}, index.arm64 | {"platform": ARM64}
    assert index.wrong(amd64, arm64) == set()
    verdict = index.world.verify(layers=False)
    assert set(verdict.platforms) == {"linux/amd64", "linux/arm64"}
    assert {step.name for step in verdict.steps} == {"index", "platforms", "signature"}
    attestation = index.amd64 | {
        "digest": "sha256:" + "9" * 64,
        "platform": {"os": "unknown", "architecture": "unknown"},
    }
    assert index.wrong(amd64, arm64, attestation) == set()
    assert index.wrong(amd64, attestation) == set(), "an index of one image is that image"
    assert index.wrong(index.amd64 | {"platform": ARM64}, index.arm64 | {"platform": AMD64}) == {
        "linux/amd64 config",
        "linux/arm64 config",
    }
    assert index.wrong(amd64, arm64 | {"digest": "sha256:" + "9" * 64}) == {"linux/arm64 manifest"}
    assert index.wrong(amd64, index.arm64) == {"index"}
    assert index.wrong(amd64, arm64 | {"platform": {**AMD64, "variant": "v3"}}) == {"index"}
    assert index.wrong(attestation, attestation) == {"index"}
    index.signed = False
    assert index.wrong(arm64, amd64, attestation) == {"signature"}, "no one says which image a machine gets"


def test_images_of_an_index_that_differ_in_more_than_the_platform(world: World, tmp_path: Path) -> None:
    axes = {**TINY.axes, "platform": "linux/arm64", "attention": "sdpa"}
    lock = replace(TINY, cell="tiny-cpu-py311-sdpa-linux-arm64", axes=axes)
    other = publish(world.published.registry, lock, tmp_path, signed_by=world)
    index = Index(world, other.published)
    assert index.wrong(index.amd64 | {"platform": AMD64}, index.arm64 | {"platform": ARM64}) == {"platforms"}


def test_a_byte_of_an_image_of_an_index_is_named(index: Index, arm64: World) -> None:
    entries = (index.amd64 | {"platform": AMD64}, index.arm64 | {"platform": ARM64})
    arm64.published.flip(arm64.published.blob(json.loads(arm64.published.image.manifest)["config"]["digest"]))
    assert index.wrong(*entries) == {"linux/arm64 config"}
    shared = arm64.published.image.layers[-1]
    arm64.published.flip(arm64.published.blob(shared.digest))
    assert index.world.wrong() == {"linux/arm64 config", f"linux/amd64 layer {shared.name}"}


def test_an_image_that_is_not_there(world: World) -> None:
    with pytest.raises(NotFoundError):
        world.verify(world.published.reference.removesuffix(":1") + ":2")
    with pytest.raises(UnreachableError):
        world.verify("127.0.0.1:1/a/b:1")


@pytest.mark.parametrize("status", [401, 403, 418])
@pytest.mark.parametrize("what", ["manifest", "config", "layer", "document"])
def test_what_may_not_be_read_gets_no_verdict(what: str, status: int, world: World, golden: Golden) -> None:
    """A refused read is no tampering, and nothing was verified."""
    published = world.published
    config = json.loads(published.image.manifest)["config"]["digest"]
    shut = {
        "manifest": published.manifest("1"),
        "config": published.blob(config),
        "layer": published.blob(published.image.layers[0].digest),
        "document": published.blob(published.attached["SBOM"][1]),
    }
    published.registry.instead[shut[what]] = lambda handler: send(handler, status, b"")
    try:
        with pytest.raises(UnavailableError) as caught:
            world.verify()
        golden.check(caught.value)
    finally:
        published.registry.instead.clear()
    assert status == 418 or caught.value.fix


def test_a_layout_that_is_none_gets_no_verdict(world: World, tmp_path: Path, golden: Golden) -> None:
    with raises("fetch-not-a-layout") as caught:
        world.verify("oci:/nonexistent")
    golden.check(caught.value)
    (tmp_path / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
    with raises("fetch-not-found"):
        world.verify(f"oci:{tmp_path}")


def test_a_layout_is_looked_at_like_a_registry(world: World, tmp_path: Path) -> None:
    """Exported without what is attached: the lock is missing, and the rest is as it should be."""
    built = world.published.image
    images.keep(world.store, "tiny", built.digest, len(built.manifest))
    images.export(world.store, built.digest, tmp_path / "out", "tiny")
    assert world.wrong(reference=f"oci:{tmp_path / 'out'}", keys=False) == {"lock"}
    (tmp_path / "out/blobs/sha256" / built.layers[0].digest.removeprefix("sha256:")).chmod(0o644)
    target = tmp_path / "out/blobs/sha256" / built.layers[1].digest.removeprefix("sha256:")
    target.unlink()
    target.write_bytes(b"x" * built.layers[1].size)
    assert world.wrong(reference=f"oci:{tmp_path / 'out'}", keys=False) == {"lock", f"layer {built.layers[1].name}"}


def test_diff_reads_the_lock_that_is_attached(world: World, tmp_path: Path, golden: Golden) -> None:
    def attached(source: references.ImageLocation, digest: str) -> bytes | None:
        said = comparison.read_attachments(source, digest, world.project).result
        return next((each.document.content for each in said.documents if each.document.kind is LOCK), None)

    no_signer = (lambda _: None, lambda _: (None, tmp_path / "none.toml"), tuple)
    places = OperandSources(tmp_path, world.settings, world.store, world.client, *no_signer, attached)
    side = references.read(world.published.reference, places)
    golden.check(side.source)
    bare = references.read(world.published.image.digest, places)
    assert bare.lock is None
    assert wording.sentences(difference(bare, side)) == ["nothing changed"]
    world.attach(LOCK, lock_document(replace(world.published.lock, as_of="2026-11-21T00:00:00Z", record=None)))
    with raises("trust-lock-mismatch"):
        references.read(world.published.reference, places)


def _written(lock: Lock, path: Path) -> Path:
    locks.write(lock, path)
    return path
