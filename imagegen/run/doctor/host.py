"""The host that images are to be built and run on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import human
from imagegen.incontainer.preflight import formatting, report, snapshot
from imagegen.incontainer.preflight.model import Finding, Image
from imagegen.incontainer.preflight.probe import probe
from imagegen.incontainer.preflight.table import CHECKS, Check, always, examine, rows
from imagegen.plan import rules as compat
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.plan.matrix.rule import Rule
from imagegen.run.doctor.diagnosis import HOST, Diagnosis
from imagegen.run.engine import Engine

Info = dict[str, Any]  # what the engine's API says of itself
_HOST = ("host",)
# Bytes on the disk for each byte of wheels: wheels and layers in the store, and the engine's own copy with the unpacked
# files. Measured on a set of 249 wheels: 4.1 GB of wheels, 4.05 GB of layers, 8.8 GB unpacked.
_IN_STORE, _IN_ENGINE = 2.0, 3.2
_LITTLE = 10_000_000_000  # bytes free below which no GPU image is worth a try
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")


def facts_of(cell: Cell, lock: Lock | None, rules: Iterable[Rule]) -> Image:
    """Return the requirements of the cell's image, also where its lock is stale or missing."""
    facts = compat.facts_of_lock(lock, cell.base.glibc) if lock else compat.facts_of_cell(cell)
    driver = compat.floor(rules, facts, "driver", cell.gpus) if cell.cuda_version else None
    packages = {each.name: each.version for each in lock.packages} if lock else {}
    return Image(cell.id, cell.cuda_version, tuple(gpu.capability for gpu in cell.gpus), driver, packages)


def examine_host(settings: Settings, image: Image, lock: Lock | None = None) -> Diagnosis:
    """This host, for an image, or for any where `image` has no cell."""
    machine = snapshot.gather(os.environ, snapshot.begin(os.environ), place="host")
    if machine.driver or machine.gpus:
        machine = machine._replace(probe=probe(os.environ))
    info, refusal = _engine(settings)
    wheels = sum(wheel.file.estimate for wheel in lock.wheels) if lock else 0
    checks = (
        Check("engine", lambda *_: refusal, "a Docker engine answers and will do", always, _HOST),
        Check(
            "toolkit",
            lambda *_: toolkit(info or {}),
            "containers can be given GPUs",
            lambda _, machine: info is not None and bool(machine.gpus or machine.driver),
            _HOST,
        ),
        Check(
            "disk",
            lambda *_: disk(room(settings.store, info), wheels),
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


def toolkit(info: Info, which: Callable[[str], object] = shutil.which) -> Iterator[Finding]:
    """The engine must have something that brings the driver into containers.

    Source: NVIDIA Container Toolkit, "Installing the toolkit": a runtime called nvidia, the hook that `--gpus` calls,
    or a CDI specification (`docker info`, DiscoveredDevices).
    """
    devices = info.get("DiscoveredDevices") or []
    if any("nvidia" in name for name in info.get("Runtimes") or {}) or any("nvidia" in str(each) for each in devices):
        return
    if not any(which(program) for program in _HOOKS):
        yield Finding(
            "toolkit",
            "warning",
            "there is a GPU, and no NVIDIA Container Toolkit: `docker run --gpus all` will fail",
            "install nvidia-container-toolkit, then `nvidia-ctk runtime configure --runtime=docker` and restart Docker",
        )


def room(store: Path, info: Info | None) -> list[tuple[str, int, int]]:
    """Return path, device and free bytes of the store and of the engine's directory, where that is on this machine."""
    root = (info or {}).get("DockerRootDir")
    there = [(store, next(each for each in (store, *store.parents) if os.path.isdir(each)))]  # Path.is_dir may raise
    there += [(Path(root), Path(root))] if root and os.path.isdir(root) else []
    return [(str(path), place.stat().st_dev, shutil.disk_usage(place).free) for path, place in there]


def disk(places: list[tuple[str, int, int]], wheels: int) -> Iterator[Finding]:
    """Yield findings about the disk space for an image of that many bytes of wheels, added up for directories on one
    disk.
    """
    wanted: dict[int, float] = {}
    for (_, device, _), factor in zip(places, (_IN_STORE, _IN_ENGINE), strict=False):
        wanted[device] = wanted.get(device, 0) + factor * wheels
    for device, need in wanted.items():
        path, free = next((path, free) for path, each, free in places if each == device)
        if free < max(need, _LITTLE):
            text = f"{human(free)} are free where {path} is"
            text += f", and the image takes about {human(int(need))} there" if need > free else ""
            yield Finding("disk", "warning", text, "`imagegen store gc` and `docker image prune` free space")


def _engine(settings: Settings) -> tuple[Info | None, list[Finding]]:
    """Return what the engine reports about itself, or why there is none."""
    try:
        with Engine.connect(settings) as engine:
            return engine.info(), []
    except EngineError as error:
        text = f"{error.what}: {error.why}" if error.why else error.what
        return None, [Finding("engine", "error", " ".join(text.split()), error.fix or "`imagegen engine up`")]
