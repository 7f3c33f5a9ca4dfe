"""Diagnose a host on which images are built and run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from imagegen.checks.preflight import formatting, report, snapshot
from imagegen.checks.preflight.model import Finding, Image
from imagegen.checks.preflight.probe import probe
from imagegen.checks.preflight.table import CHECKS, Check, always, examine, rows
from imagegen.compat import minimum_version
from imagegen.compat.rule import Rule
from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import human
from imagegen.engine import Engine
from imagegen.engine.connection import INSTALL
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.model import Lock
from imagegen.run.doctor.diagnosis import HOST, Diagnosis
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.model import Cell

Info = dict[str, Any]  # `docker info`, as the engine's API returns it
_HOST = ("host",)
# Bytes on the disk for each byte of wheels: wheels and layers in the store, and the engine's own copy with the unpacked
# files. Measured on a set of 249 wheels: 4.1 GB of wheels, 4.05 GB of layers, 8.8 GB unpacked.
_IN_STORE, _IN_ENGINE = 2.0, 3.2
_LITTLE = 10_000_000_000  # free bytes; every GPU image needs more
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")


def facts_of(cell: Cell, lock: Lock | None, rules: Iterable[Rule]) -> Image:
    """Return the requirements of the cell's image, also if its lock is stale or missing.

    All environments work with the driver; the packages are from the default environment.
    """
    if lock:
        facts_by_part = [(part, facts_of_lock(part_lock, part)) for part, part_lock in lock.by_cell(cell)]
    else:
        facts_by_part = [
            (part, facts_of_cell(part)) for part in [environment.cell for environment in cell.environments] or [cell]
        ]
    drivers = [minimum_version(rules, facts, "driver") for part, facts in facts_by_part if part.cuda_version]
    driver = max(filter(None, drivers), key=Version, default=None)
    packages = {package.name: package.version for package in lock.packages} if lock else {}
    return Image(cell.id, cell.cuda_version, tuple(gpu.capability for gpu in cell.gpus), driver, packages)


def examine_host(settings: Settings, image: Image, lock: Lock | None = None) -> Diagnosis:
    """Check this host for an image, or for any GPU image if `image` has no cell. `lock` gives the image's size."""
    machine = snapshot.gather(os.environ, snapshot.begin(os.environ), place="host")
    if machine.driver or machine.gpus:
        machine = machine._replace(probe=probe(os.environ))
    info, refusal = _engine(settings)
    wheels = sum(wheel.file.estimate for wheel in lock.distinct_wheels) if lock else 0
    checks = (
        Check("engine", lambda *_: refusal, "a Docker engine responds and is suitable", always, _HOST),
        Check(
            "toolkit",
            lambda *_: toolkit(info or {}),
            "containers can be given GPUs",
            lambda _, machine: info is not None and bool(machine.gpus or machine.driver),
            _HOST,
        ),
        Check(
            "disk",
            lambda *_: disk(free_space(settings.store, info), wheels),
            "the disks have space for the image",
            always,
            _HOST,
        ),
        *CHECKS,
    )
    findings = tuple(examine(image, machine, checks))
    shown = tuple(rows(image, machine, findings, checks))
    facts = report.as_dict(image, machine, findings)["machine"]
    return Diagnosis(HOST, image.cell or None, formatting.hardware(Image(), machine), shown, findings, facts)


def toolkit(info: Info) -> Iterator[Finding]:
    """Yield a finding if the engine has nothing that mounts the driver into containers.

    Source: NVIDIA Container Toolkit, "Installing the toolkit": a runtime called nvidia, the hook that `--gpus` calls,
    or a CDI specification (`docker info`, DiscoveredDevices).
    """
    devices = info.get("DiscoveredDevices") or []
    if any("nvidia" in name for name in info.get("Runtimes") or {}) or any(
        "nvidia" in str(device) for device in devices
    ):
        return
    if not any(shutil.which(program) for program in _HOOKS):
        yield Finding(
            "toolkit",
            "warning",
            "there is a GPU, and no NVIDIA Container Toolkit: `docker run --gpus all` will fail",
            "install nvidia-container-toolkit, then `nvidia-ctk runtime configure --runtime=docker` and restart Docker",
        )


def free_space(store: Path, info: Info | None) -> list[tuple[str, int, int]]:
    """Return path, device and free bytes of the store and, if it is on this machine, of the engine's directory."""
    root = (info or {}).get("DockerRootDir")
    directories = [
        (store, next(parent for parent in (store, *store.parents) if os.path.isdir(parent)))
    ]  # Path.is_dir may raise
    directories += [(Path(root), Path(root))] if root and os.path.isdir(root) else []
    return [(str(path), directory.stat().st_dev, shutil.disk_usage(directory).free) for path, directory in directories]


def disk(disks: list[tuple[str, int, int]], wheels: int) -> Iterator[Finding]:
    """Yield findings about the disk space for an image with `wheels` bytes of wheels.

    `disks` has path, device and free bytes of directories; requirements of directories on one device are added up.
    """
    required: dict[int, float] = {}
    for (_, device, _), factor in zip(disks, (_IN_STORE, _IN_ENGINE), strict=False):
        required[device] = required.get(device, 0) + factor * wheels
    for device, need in required.items():
        path, free = next((path, free) for path, other, free in disks if other == device)
        if free < max(need, _LITTLE):
            text = f"{human(free)} are free where {path} is"
            text += f", and the image takes about {human(int(need))} there" if need > free else ""
            yield Finding("disk", "warning", text, "`imagegen store gc` and `docker image prune` free space")


def _engine(settings: Settings) -> tuple[Info | None, list[Finding]]:
    """Return the engine's report about itself, or a finding if there is no engine."""
    try:
        with Engine.connect(settings) as engine:
            return engine.info(), []
    except EngineError as error:
        text = error.summary
        return None, [Finding("engine", "error", " ".join(text.split()), error.fix or INSTALL)]
