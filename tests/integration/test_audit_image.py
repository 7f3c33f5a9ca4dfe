"""A built image as the subject of an audit: through the engine, a registry and a layout it is what its cell is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from imagegen.app import audit as image
from imagegen.audit.model import Licence, Package, Subject
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image.inventory import subjects as cell
from imagegen.plan import matrix
from imagegen.run.engine.load import _image, serving
from tests.support.machines import Built, Place

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def store(machine: Place) -> Store:
    return Store(machine.cache / "imagegen" / "store")


@pytest.fixture(scope="module")
def in_docker(sb3_maskable: Built, machine: Place) -> Subject:
    host = {"DOCKER_HOST": machine.docker_host} if machine.docker_host else {}
    return audited(sb3_maskable.ref, machine, **host)


@pytest.fixture(scope="module")
def from_registry(sb3_maskable: Built, machine: Place, store: Store) -> Iterator[Subject]:
    """The loopback registry from which engines are served."""
    found = _image(store, sb3_maskable.digest)
    with serving(found, lambda _: None) as registry:
        yield audited(f"{registry.repository}@{sb3_maskable.digest}", machine)


def settings_on(machine: Place, **env: str) -> Settings:
    """Without an engine, unless `env` names one."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    return Settings.from_environment({**variables, "XDG_CACHE_HOME": str(machine.cache), **env})


def audited(reference: str, machine: Place, **env: str) -> Subject:
    return image.image_subject(reference, (), settings_on(machine, **env), Quiet())


def test_an_image_is_the_same_wherever_it_is_read(
    in_docker: Subject, from_registry: Subject, sb3_maskable: Built, machine: Place
) -> None:
    layout = audited(f"oci:{machine.root / 'sb3-maskable'}@{sb3_maskable.digest}", machine)
    for other in (from_registry, layout):
        assert (other.packages, other.system, other.python) == (in_docker.packages, in_docker.system, "3.11")


def test_an_image_is_what_its_cell_is(in_docker: Subject, sb3_maskable: Built, machine: Place, store: Store) -> None:
    """File by file, with hashes, which no RECORD has of itself; nothing of the image says what it is to import.

    What a bill of materials tells besides (licences, Debian's packages) is read of wheels and bases alone.
    """
    (requested,) = matrix.load([shipped("matrices")]).select("sb3-maskable")
    expected = cell.cell_subject(sb3_maskable.lock, requested, Context(store, settings_on(machine), Quiet()))
    assert [_known(package) for package in in_docker.packages] == [_known(package) for package in expected.packages]
    system = replace(expected.system, debs={}, release=None)
    assert (in_docker.system, in_docker.python) == (system, expected.python)
    assert (in_docker.gpus, in_docker.driver, in_docker.cuda) == (expected.gpus, expected.driver, expected.cuda)


def _known(package: Package) -> Package:
    records = {path: replace(file, sha256=None) for path, file in package.files.items() if path.endswith("/RECORD")}
    declared = {"imports": (), "entry_points": (), "optional_imports": (), "licence": Licence()}  # of cells alone
    return replace(package, files={**package.files, **records}, **declared)
