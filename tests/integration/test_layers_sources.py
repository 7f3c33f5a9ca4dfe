"""One layer is made on a real base of which the registry has only the layer: the bytes are those of a full build."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Meter, Quiet
from imagegen.core.store import Store
from imagegen.image import layers
from imagegen.image.base import debian
from imagegen.image.inventory import cell_subject as cell
from imagegen.image.layers import LayerStack, RemoteLayers, resolve_layers
from imagegen.image.layers.gzip_layers import compress_with_gzip
from imagegen.image.layers.layers_document import description, read_description
from imagegen.image.layers.plan import plan
from imagegen.lock import read
from imagegen.oci import registry
from tests.support.small_cell import CELL, Site

pytestmark = pytest.mark.integration


def test_a_layer_with_an_sdist_is_made_on_an_empty_store(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base comes as gzip, and its tree builds the sdist and compiles: mmdebstrap takes no part."""
    machine = site.machine(tmp_path / "machine")
    assert machine.build_here("image") == site.reference
    full, empty = Store(machine.store), Store(tmp_path / "empty")
    lock = read(site.project / "locks" / f"{CELL}.toml")
    settings = Settings.from_environment({**os.environ, "PIP_FIND_LINKS": str(site.links)})
    built = layers.assemble(lock, Context(full, settings, Quiet()))
    facts = cell.known_scans(lock, full)
    described = read_description(description(lock, built, {}, compress_with_gzip(lock, built, full, Quiet())))
    cell.import_scans(lock, empty, facts, facts.get)
    sourced = next(part for part in plan(lock) if any(wheel.sdist for wheel in part.wheels))
    elsewhere = {key: layer for key, layer in described.layers_by_key.items() if key != sourced.key}
    fetched: list[str] = []

    class Source:
        def download(self, digest: str, size: int, store: Store, meter: Meter) -> None:
            fetched.append(digest)
            store.write(full.read(digest))

    def refused(*_: Any) -> Any:
        raise AssertionError("mmdebstrap is not needed")

    monkeypatch.setattr(debian, "write_repository", refused)
    remote = RemoteLayers(cast("registry.Repository", Source()), elsewhere, described.gzip_by_key)
    resolved = resolve_layers(lock, empty, remote)
    stack = LayerStack(resolved)
    for layer in layers.ensure_layers(resolved, Context(empty, settings, Quiet())):
        stack.add(layer)
    made = layers.write_image(lock, stack, empty)
    assert made.digest == site.reference
    assert fetched == [described.gzip_by_key[made.layers[0].key].digest]
    assert [layer.name for layer in made.layers if empty.has(layer.digest)] == [sourced.name]
    assert {wheel.name for wheel in lock.wheels if empty.has(wheel.file.digest)} == {
        each.name for each in sourced.wheels
    }
