"""Attested layers that a registry has: used as they are, and nothing is fetched or built for them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Meter, Quiet
from imagegen.core.store import Store, images, upkeep
from imagegen.core.store.cache import Cache
from imagegen.image import base as image_base
from imagegen.image.inventory import cell_subject as cell
from imagegen.image.layers import (
    Image,
    Layer,
    LayerOrigin,
    LayerStack,
    RemoteLayers,
    byte_code,
    ownership,
    resolve_layers,
)
from imagegen.image.layers import assembly as assembling
from imagegen.image.layers.base_layers import from_image, plan_base
from imagegen.image.layers.layers_document import description, read_description
from imagegen.image.layers.ownership import OwnershipErrors
from imagegen.image.layers.plan import plan
from imagegen.image.layers.sources import previously_built_layers, resolve_recorded
from imagegen.lock.model import Lock, LockedWheel
from imagegen.oci import registry
from imagegen.oci.documents import ImageConfig, LayerDescriptor, RemoteImage
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.layer_inputs import HostSandbox, lock_of, locked

pytestmark = pytest.mark.usefixtures("empty_base", "compiled_on_host")
NAMES = ("one", "two", "three", "four")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lock, Image]:
    """A store that has made an image, for tests that copy it."""
    place = tmp_path_factory.mktemp("published")
    store = Store(place / "store")
    base_layer = LayerDescriptor.of_tar(store.write(bytes(1024)), 1024)
    lock = lock_of(*(locked(store, place, name, {f"{name}.py": b"x = 1\n"}) for name in NAMES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_code, "Sandbox", HostSandbox)
        patch.setattr(image_base, "build", lambda *_: base_layer)
        patch.setattr(image_base, "rootfs", lambda *_: place)
        return store.root, lock, build(lock, store, Settings.from_environment({"HOME": str(place)}))


@pytest.fixture
def store(once: tuple[Path, Lock, Image], tmp_path: Path) -> Store:
    shutil.copytree(once[0], tmp_path / "store")
    return Store(tmp_path / "store")


@pytest.fixture
def wheels(once: tuple[Path, Lock, Image]) -> tuple[LockedWheel, ...]:
    return once[1].wheels


@pytest.fixture
def published(once: tuple[Path, Lock, Image]) -> Image:
    return once[2]


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    return Store(tmp_path / "empty")


def build(lock: Lock, store: Store, settings: Settings, remote: RemoteLayers | None = None) -> Image:
    resolved = resolve_layers(lock, store, remote)
    stack = LayerStack(resolved)
    for layer in assembling.ensure_layers(resolved, Context(store, settings, Quiet())):
        stack.add(layer)
    built: Image = assembling.write_image(lock, stack, store)
    return built


def attested(lock: Lock, published: Image, store: Store, into: Store) -> RemoteLayers:
    """Return the layers of a published image as its LAYERS document has them; `into` gets the wheel scans."""
    scans = cell.known_scans(lock, store)
    cell.import_scans(lock, into, scans, scans.get)
    return RemoteLayers(None, read_description(description(lock, published, {})).layers_by_key)


def wheels_of(store: Store) -> set[str]:
    return {digest for digest in upkeep.blobs(store) if store.path(digest).read_bytes()[:2] == b"PK"}


class Source:
    """A repository whose blobs another store has; `downloaded` are the digests that were fetched."""

    def __init__(self, source: Store) -> None:
        self._source = source
        self.downloaded: list[str] = []

    def download(self, digest: str, size: int, store: Store, meter: Meter) -> None:
        self.downloaded.append(digest)
        meter.advance(size)
        store.write(self._source.read(digest))


def no_signer(*_: Any) -> Any:
    raise AssertionError("nothing of the sort is needed")


def test_an_image_whose_layers_are_all_elsewhere_needs_nothing(
    store: Store,
    wheels: tuple[LockedWheel, ...],
    published: Image,
    empty: Store,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = replace(lock_of(*wheels), record=assembling.record_of(published))
    elsewhere = attested(lock, published, store, empty)
    for name in ("build", "rootfs"):
        monkeypatch.setattr(image_base, name, no_signer)
    monkeypatch.setattr(assembling, "fetch_each", no_signer)
    assert LayerStack(resolve_layers(lock, empty, elsewhere)).bottom() == [], (
        "no engine can have from this store what is not in it"
    )
    built = build(lock, empty, settings, elsewhere)
    assert built == published
    assert assembling.compare_with_record(lock, built) is None
    assert not any(empty.has(layer.digest) for layer in built.layers)
    assert assembling.built_digest(lock, empty) is None, "this store has made nothing"


def test_only_the_new_wheels_layer_is_made(
    store: Store, tmp_path: Path, wheels: tuple[LockedWheel, ...], published: Image, empty: Store, settings: Settings
) -> None:
    elsewhere = attested(lock_of(*wheels), published, store, empty)
    new = locked(empty, tmp_path, "two", {"two.py": b"x = 2\n"})
    lock = lock_of(*(new if wheel.name == "two" else wheel for wheel in wheels))
    built = build(lock, empty, settings, elsewhere)
    changed = {layer.name for layer in built.layers if layer not in published.layers}
    group = next(part.name for part in plan(lock) if new in part.wheels)
    assert changed == {group}
    assert {layer.name for layer in built.layers if empty.has(layer.digest)} == changed
    assert wheels_of(empty) == {new.file.digest}
    store.write(empty.read(new.file.digest))
    assert build(lock, store, settings) == built
    assert {layer.name for layer in previously_built_layers(lock, empty).values()} == changed


def test_a_clash_with_a_layer_that_is_not_here_is_found(
    store: Store,
    tmp_path: Path,
    wheels: tuple[LockedWheel, ...],
    published: Image,
    empty: Store,
    settings: Settings,
    golden: Golden,
) -> None:
    elsewhere = attested(lock_of(*wheels), published, store, empty)
    new = locked(empty, tmp_path, "two", {"three.py": b"x = 4\n"})
    lock = lock_of(*(new if wheel.name == "two" else wheel for wheel in wheels))
    with pytest.raises(OwnershipErrors, match=r"three\.py") as caught:
        build(lock, empty, settings, elsewhere)
    golden.check(caught.value)


def test_what_is_known_by_facts_is_what_the_wheel_says(
    store: Store, tmp_path: Path, empty: Store, settings: Settings
) -> None:
    wheel = locked(store, tmp_path, "one", {"one.py": b"", "one-1.0.data/scripts/tool": b"#!/bin/sh\n"})
    build(lock_of(wheel), store, settings)
    facts = cell.known_scans(lock_of(wheel), store)
    cell.import_scans(lock_of(wheel), empty, facts, facts.get)
    assert ownership.known(empty, wheel, "3.11") == ownership.table(store, wheel, "3.11")
    assert not wheels_of(empty)


def test_a_layer_of_whose_files_nothing_is_known_is_made(
    store: Store, wheels: tuple[LockedWheel, ...], published: Image, empty: Store, settings: Settings
) -> None:
    lock = lock_of(*wheels)
    elsewhere = RemoteLayers(None, read_description(description(lock, published, {})).layers_by_key)
    for wheel in wheels:
        empty.write(store.read(wheel.file.digest))
    assert build(lock, empty, settings, elsewhere) == published
    here = [layer.name for layer in published.layers if empty.has(layer.digest)]
    assert here == [part.name for part in plan(lock) if part.wheels]


def test_the_stores_own_layers_come_first(
    store: Store, wheels: tuple[LockedWheel, ...], published: Image, settings: Settings
) -> None:
    lies = {layer.key: replace(layer, digest=f"sha256:{'0' * 64}") for layer in published.layers}
    assert build(lock_of(*wheels), store, settings, RemoteLayers(None, lies)) == published


def test_what_this_store_made_is_remembered_when_its_blobs_are_gone(
    store: Store, wheels: tuple[LockedWheel, ...], published: Image, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_of(*wheels)
    for layer in published.layers:
        store.path(layer.digest).unlink()
    for name in ("build", "rootfs"):
        monkeypatch.setattr(image_base, name, no_signer)
    assert build(lock, store, settings, RemoteLayers(None, previously_built_layers(lock, store))) == published
    assert assembling.built_digest(lock, store) == published.digest


def on_a_registrys_image(*wheels: LockedWheel) -> Lock:
    layers = tuple(
        LayerDescriptor("application/vnd.oci.image.layer.v1.tar+gzip", f"sha256:{n * 64}", 1, f"sha256:{n * 64}")
        for n in "12"
    )
    content = RemoteImage(f"sha256:{'3' * 64}", f"sha256:{'4' * 64}", ImageConfig((), (), (), "", ""), layers)
    lock = lock_of(*wheels)
    return replace(lock, base=replace(lock.base, kind="registry", image="x/y:1", content=content))


def test_the_layers_of_a_registrys_image_are_attested_once_they_were_seen(
    store: Store, wheels: tuple[LockedWheel, ...]
) -> None:
    lock = on_a_registrys_image(*wheels)
    layers = lock.base.content.layers if lock.base.content else ()
    assert previously_built_layers(lock, store) == {}
    Cache("diff-id", dict).put(store, layers[1].digest, {"diff_id": layers[1].diff_id})
    (found,) = previously_built_layers(lock, store).values()
    assert (found.name, found.digest) == ("base-2", layers[1].digest)


def test_layers_of_a_registrys_image_are_fetched_until_they_were_verified(store: Store) -> None:
    lock = on_a_registrys_image()
    layers = lock.base.content.layers if lock.base.content else ()
    for layer in layers:
        store.path(layer.digest).parent.mkdir(parents=True, exist_ok=True)
        store.path(layer.digest).write_bytes(b"x")
    Cache("diff-id", dict).put(store, layers[1].digest, {"diff_id": layers[1].diff_id})
    origins = [source.origin for source in resolve_layers(lock, store).sources[:2]]
    assert origins == [LayerOrigin.FETCH, LayerOrigin.STORE]


def test_a_recorded_lock_has_the_sources_of_its_build(
    store: Store, wheels: tuple[LockedWheel, ...], published: Image
) -> None:
    lock = replace(lock_of(*wheels), record=assembling.record_of(published))
    gone = published.layers[1]
    store.path(gone.digest).unlink()
    sources = resolve_layers(lock, store).sources
    assert [source.plan.key for source in sources if source.is_absent] == [gone.key]
    for recorded, source in zip(resolve_recorded(lock, store), sources, strict=True):
        assert recorded.layer and source.layer
        assert (recorded.origin, recorded.layer.digest) == (source.origin, source.layer.digest)


def test_another_blob_of_a_registrys_image_is_not_reused(empty: Store) -> None:
    """A lock with another layer's digest beside an honest diff_id has the key of the honest layer."""
    honest = on_a_registrys_image()
    content = honest.base.content
    assert content
    own = from_image(honest)
    remote = RemoteLayers(None, {layer.key: layer for layer in own})

    def remote_layers(lock: Lock) -> list[Layer]:
        sources = resolve_layers(lock, empty, remote).sources
        return [each.layer for each in sources if each.layer and each.origin is LayerOrigin.REMOTE]

    assert remote_layers(honest) == own
    foreign = replace(content.layers[1], digest=f"sha256:{'e' * 64}")
    swapped = replace(honest, base=replace(honest.base, content=replace(content, layers=(content.layers[0], foreign))))
    assert plan_base(swapped) == plan_base(honest)
    assert [layer.name for layer in remote_layers(swapped)] == ["base-1"]


def test_the_bases_tree_comes_from_its_layer(
    store: Store,
    tmp_path: Path,
    wheels: tuple[LockedWheel, ...],
    published: Image,
    empty: Store,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(image_base, "rootfs", lambda *arguments: made.append(arguments[2]) or tmp_path)
    monkeypatch.setattr(image_base, "needed", lambda *_: 1 << 20)  # the base of these locks has no packages
    elsewhere = attested(lock_of(*wheels), published, store, empty)
    new = locked(empty, tmp_path, "two", {"two.py": b"x = 2\n"})
    lock = lock_of(*(new if wheel.name == "two" else wheel for wheel in wheels))
    source = Source(store)
    build(lock, empty, settings, replace(elsewhere, repository=cast("registry.Repository", source)))
    base = published.layers[0]
    (only,) = made
    assert [(layer.digest, layer.diff_id) for layer in only.layers] == [(base.digest, base.diff_id)]
    assert only.fetch(empty, Quiet()) == only.layers
    assert source.downloaded == [base.digest]


def test_upkeep_and_exports_of_an_image_that_is_not_all_here(
    store: Store, tmp_path: Path, wheels: tuple[LockedWheel, ...], published: Image, empty: Store, settings: Settings
) -> None:
    lock = lock_of(*wheels)
    built = build(lock, empty, settings, attested(lock, published, store, empty))
    images.keep(empty, lock.cell, built.digest, len(built.manifest))
    assert upkeep.check(empty, Quiet(), repair=False) == []
    upkeep.collect(empty, [], now=1e12)
    assert images.images(empty) == {lock.cell: built.digest}
    assert images.parts(empty, built.digest)[built.digest] == "manifest"
    with raises("store-blobs-missing") as caught:
        images.export(empty, built.digest, tmp_path / "out", "x")
    assert "`imagegen build`" in str(caught.value.fix)
    for wheel in wheels:
        empty.write(store.read(wheel.file.digest))
    empty.write(bytes(1024))  # as mmdebstrap would
    again = build(lock, empty, settings)
    images.export(empty, again.digest, tmp_path / "out", "x")
    assert again == published
