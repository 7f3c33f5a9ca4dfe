"""The values that the templates of a report's pages take. Pure."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from imagegen.app import differences, launch, unlocked
from imagegen.app.packages import pins_of
from imagegen.app.site_report import Audit, CellReport, SiteReport, Smoke
from imagegen.app.states import MEANINGS, StateName
from imagegen.core.text import counted
from imagegen.image.layers import shared
from imagegen.lock.main_versions import main_versions
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

_ON_CARDS = 4  # main components
_SPECIFICATIONS = {"compose": "Docker Compose", "kubernetes": "Kubernetes", "slurm": "Slurm"}  # of a card, by target
_WORST_FIRST = ("error", "warning")  # severities that are listed; notes are only counted

Values = dict[str, Any]  # of a template in pages/, by name

_NO_ENGINE = "none"
_NO_GPU = "none: CPU"
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}  # package -> name of the inference engine


@dataclass(frozen=True)
class ChooserValues:
    """The values of the chooser's fields, of one image or of all images."""

    gpu: tuple[str, ...]  # "H100"
    engine: tuple[str, ...]  # "vLLM"
    cuda: tuple[str, ...]  # "13.0"
    python: tuple[str, ...]  # "3.11"


def values_of(cell: Cell, packages: Collection[str]) -> ChooserValues:
    """Return the values of an image with these packages."""
    return ChooserValues(
        gpu=launch.gpu_products(cell) or (_NO_GPU,),
        engine=engines(packages),
        cuda=(cell.cuda_version,) if cell.cuda_version else (),
        python=(cell.python,),
    )


def offered(images: Sequence[ChooserValues]) -> ChooserValues:
    """Return the choices: GPUs and engines in the order of the images, versions with the newest first."""
    versions = [
        sorted({value for image in images for value in getattr(image, name)}, key=version_key, reverse=True)
        for name in ("cuda", "python")
    ]
    names = [
        tuple(dict.fromkeys(value for image in images for value in getattr(image, name))) for name in ("gpu", "engine")
    ]
    return ChooserValues(*names, *map(tuple, versions))


def preference(state: StateName, cell: Cell, defaults: Collection[str]) -> tuple[object, ...]:
    """Return the sort key of the image that the chooser proposes among those that fit.

    Tested images come first, then the newest CUDA, the flagships of the matrix, `defaults` (ids of default cells), the
    fewest architectures, and the newest Python.
    """
    cuda, python = (tuple(-part for part in version_key(text)) for text in (cell.cuda_version or "0", cell.python))
    return state != "tested", cuda, not cell.flagship, cell.id not in defaults, len(cell.gpus), python, cell.id


def engines(packages: Collection[str]) -> tuple[str, ...]:
    """Return the names of the inference engines among the packages."""
    return tuple(name for package, name in _ENGINES.items() if package in packages) or (_NO_ENGINE,)


def version_key(text: str) -> tuple[int, ...]:
    """Return the sort key of a version such as "3.12"."""
    return tuple(int(part) for part in text.split("."))


def href(cell: str) -> str:
    """Return the address of a cell's page, relative to the index."""
    return f"cells/{cell}.html"


def index(report: SiteReport) -> Values:
    """Return the values of the index page, with `sheets` and `unlocked` for the pages of cells."""
    counts = Counter(state.name for state in report.states.values())
    rows = _rows(report)
    groups = [
        {"image": image, "description": report.descriptions.get(image, ""), "rows": [rows[cell.id] for cell in cells]}
        for image, cells in itertools.groupby(report.cells, key=lambda cell: cell.image)
    ]
    sheets = tuple(_sheets(report))
    proposed = sorted(sheets, key=lambda sheet: preference(sheet["state"].name, sheet["cell"], report.defaults))
    choices = [sheet["choice"] for sheet in sheets] + [row["choice"] for row in rows.values() if row["choice"]]
    return {
        "counts": {name: counts[name] for name in MEANINGS},
        "groups": tuple(groups),
        "sheets": sheets,
        "unlocked": tuple(_unlocked_pages(report)),
        "choices": offered(choices),
        "heat": _heat(report, rows),
        "packages": report.packages,
        "preferred": {sheet["cell"].id: rank for rank, sheet in enumerate(proposed)},
        "unconfirmed": report.unconfirmed,
    }


def _heat(report: SiteReport, views: Mapping[str, Values]) -> Values:
    """Return the states of all cells, images by CUDA."""
    cudas = sorted(
        {cell.cuda_version or "" for cell in report.cells}, key=lambda cuda: version_key(cuda) if cuda else ()
    )
    rows = []
    for image, cells in itertools.groupby(report.cells, key=lambda cell: cell.image):
        of_image = tuple(cells)
        engine = engines({need.component.package for cell in of_image for need in cell.requirements})
        columns = (tuple(views[cell.id] for cell in of_image if (cell.cuda_version or "") == cuda) for cuda in cudas)
        rows.append({"image": image, "engine": ", ".join(engine), "columns": [*columns]})
    return {"cudas": [cuda or "CPU" for cuda in cudas], "rows": rows}


def _rows(report: SiteReport) -> dict[str, Values]:
    """Return the row of each cell in the grid, by id; a cell without a lock has the fields of the chooser."""
    choices = {
        item.cell.id: values_of(item.cell, {need.component.package for need in item.cell.requirements})
        for item in report.unlocked
    }
    return {
        cell.id: {
            "cell": cell.id,
            "href": href(cell.id),
            "state": report.states[cell.id],
            "choice": choices.get(cell.id),
        }
        for cell in report.cells
    }


def _unlocked_pages(report: SiteReport) -> Iterable[Values]:
    pages = {sheet.cell.id for sheet in report.sheets}
    for item in report.unlocked:
        why = (
            "The rules and the metadata behind its state, and what works:",
            shlex.join(["imagegen", "why", item.cell.id]),
        )
        make = [
            (
                "Lock it: each version and each file is then pinned by hash.",
                shlex.join(["imagegen", "lock", item.cell.id]),
            ),
            ("Build it, test it and tag it:", shlex.join(["imagegen", "build", item.cell.id])),
        ]
        yield {
            "cell": item.cell,
            "href": href(item.cell.id),
            "state": report.states[item.cell.id],
            "constraints": unlocked.constraints(item.cell),
            "declarations": tuple(unlocked.declarations(item.cell)),
            "missing": item.missing,
            "locked": tuple((name, f"{name}.html" if name in pages else None) for name in item.locked),
            "commands": (*(make if report.states[item.cell.id].name != "conflict" else ()), why),
        }


def _sheets(report: SiteReport) -> Iterable[Values]:
    locks = (*(sheet.lock for sheet in report.sheets), *report.others)
    pages = {sheet.cell.id for sheet in report.sheets}
    for sheet in report.sheets:
        other_locks = [lock for lock in locks if lock.cell != sheet.lock.cell]
        chosen, needed = pins_of(sheet.lock)
        environment_locks = sheet.lock.environments
        yield {
            "cell": sheet.cell,
            "lock": sheet.lock,
            "href": href(sheet.cell.id),
            "state": report.states[sheet.cell.id],
            "stale": sheet.stale,
            "families": tuple(dict.fromkeys(gpu.family.capitalize() for gpu in sheet.cell.gpus)),
            "main": dict(list(main_versions(sheet.lock).items())[:_ON_CARDS]),
            "choice": values_of(
                sheet.cell, {package.name for part in environment_locks for package in part.lock.packages}
            ),
            "commands": _commands(sheet),
            "specifications": _specifications(sheet),
            "environments": [
                {
                    "name": part.name,
                    "prefix": part.prefix,
                    "cell": part.lock.cell,
                    "href": f"{part.lock.cell}.html" if part.lock.cell in pages else None,
                    "why": part.because,
                }
                for part in environment_locks
                if part.name
            ],
            "chosen": chosen,
            "needed": needed,
            "layers": _layers(sheet, other_locks),
            "packed": _total(size.packed for size in sheet.layers),
            "unpacked": _total(size.unpacked for size in sheet.layers),
            "sized": any(size.unpacked is not None for size in sheet.layers),
            "heaviest": max((size.packed or 0 for size in sheet.layers), default=0),
            "common": _common(sheet.lock, other_locks, pages),
            "audit": None if sheet.audit is None else _audit(sheet.audit),
            "smoke": None if sheet.smoke is None else _smoke(sheet.smoke),
            "history": tuple((step, differences.href(sheet.cell.id, step)) for step in sheet.history.steps),
            "older": sheet.history.older,
            "missing": sheet.history.missing,
            "chart": differences.chart(sheet.cell.id, sheet.history),
            "downloads": download_titles(sheet),
        }


def download_titles(sheet: CellReport) -> tuple[tuple[str, str], ...]:
    """Return the title and the file name of each download of a cell."""
    return tuple((title, name) for title, (name, _) in sheet.downloads.items())


def _commands(sheet: CellReport) -> tuple[tuple[str, str], ...]:
    if sheet.remote:
        texts = ("From the registry, the newest:", "Exactly the image of this page, today and later:")
        first = [(text, shlex.join(["docker", "pull", name])) for text, name in zip(texts, sheet.remote, strict=True)]
    else:
        first = [("Build it, test it and tag it:", shlex.join(["imagegen", "build", sheet.cell.id]))]
    name = sheet.remote[0] if sheet.remote else sheet.tag
    spec = launch.launch_spec(sheet.cell, sheet.lock, name, published=bool(sheet.remote))
    launch_commands = "\n".join(
        shlex.join(["imagegen", "launch", sheet.cell.id, "--for", target])
        for target in launch.TARGETS
        if target != "docker" and launch.can_run(spec, target)
    )
    return (
        *first,
        ("A shell in it:", launch.render(spec, "docker").rstrip()),
        ("By digest, elsewhere:", launch_commands),
    )


def _specifications(sheet: CellReport) -> tuple[tuple[str, str], ...]:
    """Return texts that start the image or build on it, by the recorded digest or else the local tag."""
    name = sheet.remote[-1] if sheet.remote else sheet.tag
    if sheet.lock.record:
        name = f"{name.rpartition(':')[0]}@{sheet.lock.record.digest}"
    spec = launch.launch_spec(sheet.cell, sheet.lock, name, published=bool(sheet.remote))
    pull = [("Docker", shlex.join(["docker", "pull", name]))] if sheet.remote else []
    rendered = [(title, launch.render(spec, target).rstrip()) for target, title in _SPECIFICATIONS.items()]
    return *pull, ("Dockerfile", f"FROM {name}"), *rendered


def _layers(sheet: CellReport, other_locks: Sequence[Lock]) -> list[Values]:
    """Return the layers' views, each with the number of other images that have it, by the locks' records."""
    recorded = {layer.name: layer.digest for layer in sheet.lock.record.layers} if sheet.lock.record else {}
    counts = Counter(
        digest for other in other_locks if other.record for digest in {x.digest for x in other.record.layers}
    )
    return [asdict(size) | {"others": counts[recorded.get(size.name, "")]} for size in sheet.layers]


def _total(sizes: Iterable[int | None]) -> int | None:
    known_sizes = list(sizes)
    return None if None in known_sizes or not known_sizes else sum(size or 0 for size in known_sizes)


def _common(lock: Lock, other_locks: Sequence[Lock], pages: set[str]) -> list[Values]:
    """Return the images that share layers with the lock, those with the most shared bytes first."""
    images = [
        {"cell": cell, "href": f"{cell}.html" if cell in pages else None, "count": count, "packed": packed}
        for cell, (count, packed) in shared(lock, other_locks).items()
        if count
    ]
    return sorted(images, key=lambda image: (-image["packed"], image["cell"]))


def _audit(report: Audit) -> Values:
    counts: dict[str, int] = {name: report["counts"].get(name, 0) for name in ("error", "warning", "info")}
    count_texts = [counted(counts[severity], severity) for severity in _WORST_FIRST if counts[severity]]
    summary = f"It found {' and '.join(count_texts)}" if count_texts else "It found no errors and no warnings"
    notes = f", and {counted(counts['info'], 'note')}" if counts["info"] else ""
    listed = [item for item in report["findings"] if item["severity"] in _WORST_FIRST]
    return {"summary": f"{summary}{notes}.", "findings": [*map(_finding, listed)]}


def _finding(finding: Mapping[str, Any]) -> Mapping[str, str]:
    where = ": ".join(part for part in (finding.get("environment"), finding["package"], finding["path"]) if part)
    return {"id": finding["id"], "severity": finding["severity"], "where": where, "what": finding["evidence"]}


def _smoke(report: Smoke) -> Values:
    counts = ", ".join(f"{number} {status}" for status, number in report["counts"].items() if number)
    verdict = "They passed" if report["passed"] else "They did not pass"
    checks = tuple(
        {"name": check["check"], "status": check["status"], "note": check["reason"] or _note(check)}
        for check in report["checks"]
    )
    return {"summary": f"{verdict}{_gpus(report)}: {counts}.", "checks": checks}


def _gpus(report: Smoke) -> str:
    """Return " on NVIDIA H200, driver 580.159.04" where the check of the GPU passed, else ""."""
    details: Mapping[str, Any] = next(
        (check["details"] for check in report["checks"] if str(check["check"]).rpartition(": ")[2] == "cuda"), {}
    )
    names = [str(device["name"]) for device in details.get("devices", ())]
    if not names:
        return ""
    device_names = ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
    return f" on {device_names}, driver {details['driver']}" if details.get("driver") else f" on {device_names}"


def _note(check: Mapping[str, Any]) -> str:
    note = check["details"].get("note")
    return note if isinstance(note, str) else ""
