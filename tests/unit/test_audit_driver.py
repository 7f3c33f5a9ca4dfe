"""The promised driver and the stack's CUDA: the major version that torch, or else each package, requires."""

from __future__ import annotations

import pytest

from imagegen.audit import driver
from imagegen.audit.check import audit
from imagegen.audit.model import CodeGroup, CodeTarget, Elf, File, Finding, Package, Subject, SystemLibraries
from tests.support.golden import Golden
from tests.support.matrix_samples import shipped_matrix

_GPUS = shipped_matrix().gpus


def _asks(*names: str) -> File:
    group = CodeGroup((CodeTarget("sass", 90),), 1, (1000,))
    return File(10_000, elf=Elf(62, needed=names), code=(group,))


def _package(name: str, **files: str) -> Package:
    return Package(name, "1.0", {f"{name}/{stem}.so": _asks(requested) for stem, requested in files.items()})


def _found(promised: str | None, *packages: Package, system: SystemLibraries | None = None) -> list[Finding]:
    return list(driver.check_driver(Subject("test", packages, system=system, driver=promised)))


@pytest.mark.parametrize(
    ("requested", "promised", "wrong"),
    [
        ("libcudart.so.13", "570", True),
        ("libcudart.so.13", "579.99", True),
        ("libcudart.so.13", "580", False),
        ("libcudart.so.13", "610.43.02", False),
        ("libcudart.so.12", "470.42.01", True),
        ("libcudart.so.12", "525", False),
        ("libcudart.so.11.0", "440", True),
        ("libcudart.so.11.0", "450", False),
        ("libcudart.so.99", "525", False),  # not known
        ("libnccl.so.2", "300", False),  # says nothing of CUDA
        ("libcudart.so.13", None, False),
    ],
)
def test_the_driver_must_be_of_the_first_branch_of_its_cuda(requested: str, promised: str | None, wrong: bool) -> None:
    assert [each.id for each in _found(promised, _package("torch", lib=requested))] == ["driver-too-old"] * wrong


def test_the_finding_says_which_driver_it_takes_and_who_asks(golden: Golden) -> None:
    (found,) = _found("525", _package("torch", lib="libcudart.so.13"))
    assert (found.severity, found.package, found.path) == ("error", "torch 1.0", "torch/lib.so")
    golden.check(found.evidence, found.details)


def test_torch_decides_where_it_is_there() -> None:
    torch, plugin = _package("torch", lib="libcudart.so.12"), _package("plugin", ops="libcudart.so.13")
    assert not _found("570", plugin, torch)
    assert [each.package for each in _found("570", plugin)] == ["plugin 1.0"]


def test_of_a_package_with_variants_the_oldest_counts() -> None:
    assert not _found("570", _package("bits", cuda12="libcudart.so.12", cuda13="libcudart.so.13"))


def test_cuda_compat_helps_on_some_gpus(golden: Golden) -> None:
    system = SystemLibraries({}, {"libcuda.so.1": "/usr/local/cuda-13.0/compat/libcuda.so.1"})
    (found,) = _found("570", _package("torch", lib="libcudart.so.13"), system=system)
    golden.check(found.evidence)
    assert found.severity == "warning"


@pytest.mark.parametrize(("promised", "runs"), [("570", False), ("580", True)])
def test_with_a_driver_that_is_too_old_it_runs_on_no_gpu(promised: str, runs: bool) -> None:
    subject = Subject("test", (_package("torch", lib="libcudart.so.13"),), driver=promised)
    report = audit(subject, further_gpus=[_GPUS["sm_90"]])
    assert report.gpus == {"sm_90": runs}
    assert report.verdicts[0].gpus == {"sm_90": "sass" if runs else "no"}
