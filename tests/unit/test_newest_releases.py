"""The newest torch, vllm and sglang of the shipped metadata: every table knows their CUDA and GPUs."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from imagegen.audit import torch_exports
from imagegen.audit.capability import releases
from imagegen.audit.catalogue import data
from imagegen.compat import metadata, wheel_scans
from imagegen.compat.metadata import ReleaseMetadata
from imagegen.compat.wheel_scans import WheelScan
from imagegen.core.data import shipped
from imagegen.core.types import minor
from tests.support.matrix_samples import shipped_matrix

MATRIX = shipped_matrix()
DIRECTORIES = [shipped("matrices")]
SCANNED = {"torch": "torch", "vllm": "vllm", "sglang": "sglang-kernel"}  # package -> the wheel with its kernels


def newest(package: str) -> ReleaseMetadata:
    """Return the newest final release in the shipped metadata."""
    packages = metadata.load(DIRECTORIES, package)
    assert packages
    final = [version for version in packages.releases if not Version(version).is_prerelease]
    return packages.releases[max(final, key=Version)]


def pin(release: ReleaseMetadata, package: str) -> str:
    """Return the version of a package that a release requires exactly."""
    requirements = (Requirement(text) for text in release.requires or ())
    pins = [next(iter(one.specifier)).version for one in requirements if one.name == package]
    assert pins, f"{package} is not required exactly"
    return pins[0]


def version_of(package: str) -> str:
    """Return the version of the wheel whose kernels the newest release of a package needs."""
    release = newest(package)
    return release.version if SCANNED[package] == package else pin(release, SCANNED[package])


def scan_of(package: str) -> WheelScan:
    scans = wheel_scans.load(DIRECTORIES, SCANNED[package])
    assert scans
    return scans.releases[version_of(package)]


def torch_of(package: str) -> ReleaseMetadata:
    packages = metadata.load(DIRECTORIES, "torch")
    assert packages
    return newest("torch") if package == "torch" else packages.releases[pin(newest(package), "torch")]


@pytest.mark.parametrize("package", SCANNED)
def test_the_kernels_of_the_newest_release_are_scanned(package: str) -> None:
    assert scan_of(package).libraries


@pytest.mark.parametrize("package", SCANNED)
def test_the_cuda_of_its_torch_is_in_every_table(package: str) -> None:
    torch = torch_of(package)
    assert torch.cuda, "the metadata of its torch does not name a CUDA"
    assert torch.cuda in {release.cuda for release in releases()}  # with its driver and PTX
    assert int(torch.cuda.partition(".")[0]) in data("gpu")["majors"]["drivers"]
    assert f"toolkit-wheels-{torch.cuda}" in {rule.id for rule in MATRIX.rules}
    builds = [build for build in MATRIX.builds.of("torch", torch.version) if build.cuda == torch.cuda]
    assert any(build.labels for build in builds), f"no label is known for torch {torch.version} of CUDA {torch.cuda}"
    assert minor(torch.version) in map(minor, torch_exports.shipped().releases)


@pytest.mark.parametrize("package", SCANNED)
def test_the_gpus_that_it_has_code_for_are_known(package: str) -> None:
    targets = {target for library in scan_of(package).libraries for group, _ in library.code for target in group}
    numbers = {int(re.sub(r"\D", "", target.partition("@")[0])) for target in targets}
    renamed = data("gpu")["renamed"]["architectures"]
    known = {int(gpu.capability.replace(".", "")) for gpu in MATRIX.gpus.values()} | {50, 52}  # Maxwell has no entry
    assert {renamed.get(number, number) for number in numbers} <= known


def test_the_capabilities_that_wheels_are_judged_on_are_those_of_x86_64_gpus() -> None:
    known = {gpu.capability for gpu in MATRIX.gpus.values() if gpu.family not in {"jetson", "tegra"}}
    assert known <= set(wheel_scans.CAPABILITIES)
