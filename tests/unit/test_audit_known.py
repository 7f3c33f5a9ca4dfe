"""The catalogue of libraries has sources, and its patterns match what they should."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagegen.audit import catalogue

FACTS: dict[str, Any] = yaml.safe_load((Path(catalogue.__file__).parent / "data" / "libraries.yaml").read_text())


def entries() -> list[tuple[str, dict[str, Any]]]:
    return [(name, entry) for name, fact in FACTS.items() for entry in (fact if isinstance(fact, list) else [fact])]


@pytest.mark.parametrize(("name", "entry"), entries(), ids=[name for name, _ in entries()])
def test_every_fact_has_a_source_and_a_date(name: str, entry: dict[str, Any]) -> None:
    assert entry["source"].strip()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", entry["date"])
    assert entry.get("because") or name in {"cuda-major", "standard", "releases"}  # these are nothing but names


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libEGL_nvidia.so.0"])
def test_libraries_of_the_driver(name: str) -> None:
    assert catalogue.is_driver(name)


@pytest.mark.parametrize(
    "name", ["libcudart.so.13", "libcuda_stub.so", "libnvshmem_host.so.3", "libGL.so.1", "libnvToolsExt.so.1"]
)
def test_libraries_of_others(name: str) -> None:
    assert not catalogue.is_driver(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libcudart.so.13", ("cudart", 13)),
        ("libcublasLt.so.12", ("cublasLt", 12)),
        ("libcusparse.so.12", None),  # of CUDA 13 too
        ("libcudart-d0da41ae.so.11.0", None),  # a wheel's own
    ],
)
def test_cudas_major_is_read_off_names(name: str, expected: tuple[str, int] | None) -> None:
    assert catalogue.cuda_major(name) == expected


def test_releases_stand_from_old_to_new_and_the_oldest_that_will_do_is_named() -> None:
    nodes = FACTS["releases"]["nodes"]
    for family in ("GLIBC", "GLIBCXX", "CXXABI"):
        versions = [tuple(map(int, release[family].split("."))) for release in nodes]
        assert versions == sorted(versions)
    assert catalogue.oldest_releases(["GLIBC_2.17"]) == ("Debian 10", "Ubuntu 18.04")
    assert catalogue.oldest_releases(["GLIBC_2.32", "GLIBCXX_3.4.30"]) == ("Debian 12", "Ubuntu 22.04")
    assert catalogue.oldest_releases(["GLIBC_2.40"]) == ("Debian 13",)
    assert catalogue.oldest_releases(["GLIBC_3.0"]) == ()
    assert catalogue.oldest_releases(["GLIBC_2.17", "ZLIB_1.2"]) is None


def test_optional_files_are_excused_in_their_package_alone() -> None:
    pool = "numba/np/ufunc/tbbpool.cpython-311-x86_64-linux-gnu.so"
    assert catalogue.optional("numba", pool) and catalogue.optional("other", pool) is None
    assert catalogue.optional("cupy-cuda13x", "cupy_backends/cuda/libs/cudnn.cpython-311-x86_64-linux-gnu.so")
    assert catalogue.optional("numba", "numba/_dispatcher.so") is None
