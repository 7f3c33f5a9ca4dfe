"""The graph of artifacts has each file that a lock names, and no other module enumerates these files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import imagegen
from imagegen.image.inputs import contents
from imagegen.lock import dumps_attached
from imagegen.lock.artifacts import LockArtifact, locked_files, packages, plan
from imagegen.lock.foundation import LockedDeb
from imagegen.lock.model import CopiedFile, Lock, LockedBuild, LockedPatch, LockedWheel, WheelPatch
from imagegen.oci.documents import LayerDescriptor
from tests.support.artifact_locks import sample_locks
from tests.support.shipped_locks import NAMES, shipped_lock

SAMPLES = sample_locks()
# Modules that read the build requirements of one sdist. An enumeration of a lock's files would have to read them too.
READERS = {"lock/make/own.py", "lock/sdist.py"}


@pytest.fixture(scope="module", params=[*NAMES, *SAMPLES])
def lock(request: pytest.FixtureRequest) -> Lock:
    return SAMPLES.get(request.param) or shipped_lock(request.param)


def files(artifact: LockArtifact) -> set[str]:
    kinds: tuple[type[Any], ...] = (LayerDescriptor, LockedDeb, CopiedFile, LockedPatch, WheelPatch)
    return {*locked_files([artifact]), *(file.digest for kind in kinds for file in artifact.of_kind(kind))}


def test_the_graph_has_every_hash_of_a_lock_file(lock: Lock) -> None:
    hashes = re.findall(r'\bsha256 = "([0-9a-f]{64})"', dumps_attached(lock))
    assert {f"sha256:{sha256}" for sha256 in hashes} <= files(plan(lock))


def test_no_other_module_enumerates_the_files_of_a_lock() -> None:
    package = Path(imagegen.__file__).parent
    readers = [path for path in package.rglob("*.py") if "sdist.build_requires" in path.read_text()]
    assert {str(path.relative_to(package)) for path in readers} == READERS


def test_a_store_keeps_all_files_of_the_graph(lock: Lock) -> None:
    assert files(plan(lock)) <= contents(lock).keys()


def test_packages_are_the_wheels_and_builds_of_all_environments(lock: Lock) -> None:
    expected = [wheel for environment in lock.environments for wheel in environment.lock.wheels]
    builds = [build for environment in lock.environments for build in environment.lock.builds]
    assert [artifact.about for artifact in packages(lock)] == [*expected, *builds]


def test_files_have_no_inputs_and_products_have_some(lock: Lock) -> None:
    products = (LockedWheel, LockedBuild)
    for package in packages(lock):
        assert all(isinstance(artifact.about, products) == bool(artifact.inputs) for artifact in package.walk())
        assert all(artifact.package for artifact in package.walk() if not artifact.inputs)
