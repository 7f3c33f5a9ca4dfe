"""A built image as the subject of an audit: through the engine, a registry and a layout it is what its cell is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import spec as matrix
from imagegen.app import image_subject
from imagegen.audit.model import Licence, Package, Subject
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.engine.load import loadable_image
from imagegen.engine.loopback import serving
from imagegen.image.inventory import cell_subject
from tests.support.machines import PLAIN, Built, Place
from tests.support.small_cell import Site

pytestmark = pytest.mark.integration


TAG = "imagegen-test/audited:1"


def audited(reference: str, cache: Path, **env: str) -> Subject:
    """Read an image as `imagegen audit` does; without an engine, unless `env` names one."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    settings = Settings.from_environment({**variables, "XDG_CACHE_HOME": str(cache), **env})
    return image_subject.image_subject(reference, (), settings, Quiet())


def test_an_image_is_the_same_wherever_it_is_read(site: Site, engine: Engine, machine: Place, tmp_path: Path) -> None:
    """In an engine, in a registry (the one on loopback, from which engines are served) and in a layout."""
    small = site.machine(tmp_path)
    digest = small.build_here("image")
    store = Store(small.store)
    layout = audited(f"oci:{tmp_path / 'image'}@{digest}", tmp_path / "of-layout")
    with serving(loadable_image(store, digest), Quiet().meter("", 0)) as registry:
        in_registry = audited(f"{registry.repository}@{digest}", tmp_path / "of-registry")
    engine.load(store, digest, TAG)
    try:
        host = {"DOCKER_HOST": machine.docker_host} if machine.docker_host else {}
        in_docker = audited(TAG, tmp_path / "of-docker", **host)
    finally:
        engine.client.api.remove_image(TAG, force=True)
    assert {"heavy", "sourced"} <= {package.name for package in in_docker.packages}
    for other in (in_registry, layout):
        assert (other.packages, other.system, other.python) == (in_docker.packages, in_docker.system, "3.11")


def test_an_image_is_what_its_cell_is(plain: Built, machine: Place) -> None:
    """File by file, with hashes, which no RECORD has of itself; nothing of the image says what it is to import.

    What a bill of materials tells besides (licences, Debian's packages) is read of wheels and bases alone.
    """
    found = audited(f"oci:{machine.root / PLAIN}@{plain.digest}", machine.cache)
    (requested,) = matrix.load([shipped("matrices"), machine.root / "matrices"]).select(PLAIN)
    settings = Settings.from_environment({**os.environ, "XDG_CACHE_HOME": str(machine.cache)})
    context = Context(Store(machine.cache / "imagegen" / "store"), settings, Quiet())
    expected = cell_subject.cell_subject(plain.lock, requested, context)
    assert [_known(package) for package in found.packages] == [_known(package) for package in expected.packages]
    system = replace(expected.system, debs={}, release=None)
    assert (found.system, found.python) == (system, expected.python)
    assert (found.gpus, found.driver, found.cuda) == (expected.gpus, expected.driver, expected.cuda)


def _known(package: Package) -> Package:
    records = {path: file._replace(sha256=None) for path, file in package.files.items() if path.endswith("/RECORD")}
    declared = {"imports": (), "entry_points": (), "optional_imports": (), "licence": Licence()}  # of cells alone
    return replace(package, files={**package.files, **records}, **declared)
