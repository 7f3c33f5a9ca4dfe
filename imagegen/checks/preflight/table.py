"""Table of all checks, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import gpu_checks, system_checks
from .model import SEVERITIES, Finding, Image, Machine

CheckFunction = Callable[[Image, Machine], Iterable[Finding]]
Applies = Callable[[Image, Machine], bool]


def always(_: Image, __: Machine) -> bool:
    return True


class Check(NamedTuple):
    """One row. `places` are where the check can run; `applies` returns whether there is anything to check."""

    name: str
    run: CheckFunction
    sees: str
    applies: Applies = always
    places: tuple[str, ...] = ("container", "host")


class Row(NamedTuple):
    """The status of a check: "ok", the worst severity of its findings, or "-" if it does not apply."""

    name: str
    status: str
    sees: str


_INSIDE = ("container",)

CHECKS = (
    Check("system", system_checks.check_system, "Linux, or Windows' Linux"),
    Check(
        "gpu",
        gpu_checks.check_visible,
        "a GPU is visible, with what programs need of its driver",
        gpu_checks.visible_applies,
    ),
    Check("driver", gpu_checks.check_driver, "the driver is new enough for the image", gpu_checks.driver_applies),
    Check(
        "architecture",
        gpu_checks.check_architecture,
        "the GPU is one that there is code for",
        gpu_checks.architecture_applies,
    ),
    Check(
        "loader",
        gpu_checks.check_loader,
        "the loader finds the driver's libcuda, with no cuda-compat and no stub before it",
        gpu_checks.loader_applies,
    ),
    Check("cuda", gpu_checks.check_cuda, "CUDA starts, in a process of its own", gpu_checks.cuda_applies),
    Check("memory", gpu_checks.check_memory, "the GPUs' memory is free", gpu_checks.memory_applies),
    Check("shm", system_checks.check_shm, "/dev/shm is large enough", system_checks.shm_applies, _INSIDE),
    Check(
        "allocator",
        gpu_checks.check_allocator,
        "no expandable segments beside a memory pool",
        gpu_checks.allocator_applies,
        _INSIDE,
    ),
    Check("empty", system_checks.check_empty, "no variable that is read as a number is empty", always, _INSIDE),
    Check("home", system_checks.check_home, "HOME and TMPDIR can be written, and the user has a name", always, _INSIDE),
    Check("limits", system_checks.check_limits, "RDMA may lock memory", system_checks.limits_applies, _INSIDE),
    Check("wandb", system_checks.check_wandb, "W&B is offline or has a key", system_checks.wandb_applies, _INSIDE),
)


def examine(image: Image, machine: Machine, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Run all checks that can run here; return findings, worst first. An exception in a check becomes a note."""
    found: list[Finding] = []
    for check in checks:
        if machine.place in check.places and check.applies(image, machine):
            try:
                found += check.run(image, machine)
            except Exception as error:  # noqa: BLE001 - a container must start, whatever is odd about its machine
                text = f"the check {check.name} failed: {type(error).__name__}: {error}"
                found.append(Finding(check.name, "note", text, "report it to imagegen"))
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def rows(image: Image, machine: Machine, findings: Iterable[Finding], checks: Iterable[Check] = CHECKS) -> list[Row]:
    """Return one row per check of this kind of place; `findings` come from `examine`, worst first."""
    worst: dict[str, str] = {}
    for finding in findings:
        worst.setdefault(finding.check, finding.severity)
    return [
        Row(check.name, worst.get(check.name, "ok") if check.applies(image, machine) else "-", check.sees)
        for check in checks
        if machine.place in check.places
    ]
