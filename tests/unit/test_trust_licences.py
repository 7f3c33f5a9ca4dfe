"""Restrictions on redistribution are reported with their conditions and sources."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from imagegen.audit.model import Licence
from imagegen.lock.foundation import LockedBase
from imagegen.lock.model import Lock
from imagegen.oci.documents import ImageConfig, RemoteImage
from imagegen.trust.licences import KnownLicences, data
from imagegen.trust.restrictions import find_restrictions
from tests.support.golden import Golden
from tests.support.lock_samples import LOCK, wheel
from tests.support.shipped_locks import shipped_lock

PROPRIETARY = Licence(text="LicenseRef-NVIDIA-Proprietary", classifiers=("Other/Proprietary License",))


def holding(*wheels: tuple[str, str]) -> Lock:
    return replace(LOCK, wheels=tuple(wheel(name, version) for name, version in wheels))


def named(lock: Lock, known: KnownLicences | None = None) -> dict[str, tuple[str, ...]]:
    return {each.licence: each.covers for each in find_restrictions(lock, known or KnownLicences())}


def test_an_image_for_cpus_has_none() -> None:
    assert find_restrictions(shipped_lock("sb3-maskable-cpu-py311"), KnownLicences()) == ()


def test_all_of_nvidias_in_the_flagship_is_named_or_known_to_be_open() -> None:
    lock = shipped_lock("blackwell-vllm-cu130-py311")
    covered = {each.partition(" ")[0] for several in named(lock).values() for each in several}
    # MIT, BSD, Apache, BSD, Apache
    free = {"nvidia-cudnn-frontend", "nvidia-ml-py", "nvidia-modelopt", "nvidia-nccl-cu13", "nvidia-nvtx"}
    assert {each.name for each in lock.packages if each.name.startswith("nvidia-")} == covered | free


def test_libraries_and_tools_of_the_toolkit_are_distinguished(golden: Golden) -> None:
    found = find_restrictions(holding(("nvidia-cublas", "13.1.0.3"), ("nvidia-cuda-nvcc", "13.0.88")), KnownLicences())
    assert [each.covers for each in found] == [("nvidia-cublas 13.1.0.3",), ("nvidia-cuda-nvcc 13.0.88",)]
    golden.check(str(found[1]), str(found[0]))
    assert "PyPI (2026-11-22)" in str(found[0])


@pytest.mark.parametrize(("version", "bound"), [("12.4.127", True), ("12.9.79", False)])
def test_a_licence_may_end_with_a_version(version: str, bound: bool) -> None:
    lock = holding(("nvidia-nvtx-cu12", version))
    assert bool(named(lock)) is bound
    assert bool(named(lock, KnownLicences({lock.wheels[0].file.sha256: PROPRIETARY}))) is bound


def test_a_proprietary_licence_outside_the_data_is_reported(golden: Golden) -> None:
    lock = holding(("new-sdk", "1.0"), ("nvidia-nccl-cu13", "2.29.7"))
    assert named(lock) == {}
    known = KnownLicences({lock.wheels[0].file.sha256: PROPRIETARY})
    (found,) = find_restrictions(replace(lock, wheels=lock.wheels[:1]), known)
    assert (found.licence, found.covers) == ("LicenseRef-NVIDIA-Proprietary", ("new-sdk 1.0",))
    golden.check(str(found))


def test_nvidias_base_images_are_named(golden: Golden) -> None:
    content = RemoteImage("sha256:" + "1" * 64, "sha256:" + "2" * 64, ImageConfig((), (), (), "", ""), ())
    base = LockedBase("cuda", "registry", None, {}, (), image="nvidia/cuda:13.0.1-base", content=content)
    golden.check(named(replace(holding(), base=base)))
    other = replace(base, image="docker.io/library/debian:12")
    assert named(replace(holding(), base=other)) == {}


def test_the_data_has_sources_and_patterns_that_can_match() -> None:
    entries = [*data("restricted")["licences"], *data("restricted")["open"]]
    for entry in entries:
        assert entry["source"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"])
        for pattern in entry.get("packages", ()):
            assert re.compile(pattern)
