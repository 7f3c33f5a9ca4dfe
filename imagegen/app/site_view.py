"""The view model of a report: every number and text that its pages show. Pure."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagegen.app import chooser, differences, launch, unlocked
from imagegen.app.differences import Chart
from imagegen.app.lock_history import LockChange
from imagegen.app.packages import LockedPackage, Pin, pins_of
from imagegen.app.site_report import Audit, CellReport, SiteReport, Smoke
from imagegen.app.states import MEANINGS, CellState, StateName
from imagegen.compat.rule import Rule
from imagegen.core.text import counted
from imagegen.image.layers import shared
from imagegen.lock.main_versions import main_versions
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

_ON_CARDS = 4  # main components
_SPECIFICATIONS = {"compose": "Docker Compose", "kubernetes": "Kubernetes", "slurm": "Slurm"}  # of a card, by target
_WORST_FIRST = ("error", "warning")  # severities that are listed; notes are only counted


@dataclass(frozen=True)
class RowView:
    """A cell in the grid. `choice` has the fields of the chooser, of a cell without a lock."""

    cell: str
    href: str
    state: CellState
    choice: chooser.ChooserValues | None = None


@dataclass(frozen=True)
class Group:
    """The cells of an image."""

    image: str
    description: str
    rows: tuple[RowView, ...]


@dataclass(frozen=True)
class EnvironmentView:
    """An environment of an image with several; `href` is the page of its cell, if the report has one."""

    name: str
    prefix: str
    cell: str
    href: str | None
    why: str


@dataclass(frozen=True)
class LayerView:
    name: str
    packed: int | None
    unpacked: int | None
    others: int  # images that have it too


@dataclass(frozen=True)
class SharedLayers:
    cell: str
    href: str | None
    count: int
    packed: int


@dataclass(frozen=True)
class CheckSummary:
    """The result of one tool about an image: a summary, then its items."""

    summary: str
    findings: tuple[Mapping[str, str], ...] = ()
    checks: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class CellPage:
    cell: Cell
    lock: Lock
    href: str
    state: CellState
    stale: tuple[str, ...]
    families: tuple[str, ...]
    main: Mapping[str, str]
    choice: chooser.ChooserValues
    commands: tuple[tuple[str, str], ...]  # a description, and the shell text
    specifications: tuple[tuple[str, str], ...]  # the tool, and a text with the digest
    environments: tuple[EnvironmentView, ...]  # empty unless the image has several
    chosen: tuple[Pin, ...]
    needed: tuple[Pin, ...]
    layers: tuple[LayerView, ...]
    packed: int | None
    unpacked: int | None
    sized: bool  # whether some layer's size on a disk is known
    heaviest: int
    common: tuple[SharedLayers, ...]
    audit: CheckSummary | None
    smoke: CheckSummary | None
    history: tuple[tuple[LockChange, str | None], ...]  # each with its page, relative to the index
    older: bool
    missing: str  # why git could not give all of the history
    chart: Chart | None
    downloads: tuple[tuple[str, str], ...]  # title, and file name next to the page


@dataclass(frozen=True)
class UnlockedPage:
    """The page of a cell without a lock. `locked` has the locked cells of its image, each with its page or None."""

    cell: Cell
    href: str
    state: CellState
    constraints: tuple[unlocked.Constraint, ...]
    declarations: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    locked: tuple[tuple[str, str | None], ...]
    commands: tuple[tuple[str, str], ...]  # as in CellPage


@dataclass(frozen=True)
class HeatRow:
    """The cells of an image, one tuple for each CUDA of the heat map."""

    image: str
    engine: str
    columns: tuple[tuple[RowView, ...], ...]


@dataclass(frozen=True)
class HeatMap:
    """The states of all cells, images by CUDA."""

    cudas: tuple[str, ...]  # "CPU", "12.8"
    rows: tuple[HeatRow, ...]


@dataclass(frozen=True)
class SiteIndex:
    counts: Mapping[StateName, int]  # of cells
    groups: tuple[Group, ...]
    sheets: tuple[CellPage, ...]
    unlocked: tuple[UnlockedPage, ...]
    choices: chooser.ChooserValues
    heat: HeatMap
    packages: tuple[LockedPackage, ...]
    preferred: Mapping[str, int]  # cell -> its place in the order in which the chooser proposes images
    unconfirmed: tuple[Rule, ...] = ()


def href(cell: str) -> str:
    """Return the address of a cell's page, relative to the index."""
    return f"cells/{cell}.html"


def index(report: SiteReport) -> SiteIndex:
    """Return the whole report as the index page shows it."""
    counts = Counter(state.name for state in report.states.values())
    rows = _rows(report)
    groups = [
        Group(image, report.descriptions.get(image, ""), tuple(rows[cell.id] for cell in cells))
        for image, cells in itertools.groupby(report.cells, key=lambda cell: cell.image)
    ]
    sheets = tuple(_sheets(report))
    proposed = sorted(sheets, key=lambda sheet: chooser.preference(sheet.state.name, sheet.cell, report.defaults))
    choices = [sheet.choice for sheet in sheets] + [row.choice for row in rows.values() if row.choice]
    return SiteIndex(
        counts={name: counts[name] for name in MEANINGS},
        groups=tuple(groups),
        sheets=sheets,
        unlocked=tuple(_unlocked_pages(report)),
        choices=chooser.offered(choices),
        heat=_heat(report, rows),
        packages=report.packages,
        preferred={sheet.cell.id: rank for rank, sheet in enumerate(proposed)},
        unconfirmed=report.unconfirmed,
    )


def _heat(report: SiteReport, views: Mapping[str, RowView]) -> HeatMap:
    cudas = sorted(
        {cell.cuda_version or "" for cell in report.cells}, key=lambda cuda: chooser.version_key(cuda) if cuda else ()
    )
    rows = []
    for image, cells in itertools.groupby(report.cells, key=lambda cell: cell.image):
        of_image = tuple(cells)
        engine = chooser.engines({need.component.package for cell in of_image for need in cell.requirements})
        columns = (tuple(views[cell.id] for cell in of_image if (cell.cuda_version or "") == cuda) for cuda in cudas)
        rows.append(HeatRow(image, ", ".join(engine), tuple(columns)))
    return HeatMap(tuple(cuda or "CPU" for cuda in cudas), tuple(rows))


def _rows(report: SiteReport) -> dict[str, RowView]:
    """Return the view of each cell, by id."""
    choices = {
        item.cell.id: chooser.values_of(item.cell, {need.component.package for need in item.cell.requirements})
        for item in report.unlocked
    }
    return {
        cell.id: RowView(cell.id, href(cell.id), report.states[cell.id], choices.get(cell.id)) for cell in report.cells
    }


def _unlocked_pages(report: SiteReport) -> Iterable[UnlockedPage]:
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
        yield UnlockedPage(
            cell=item.cell,
            href=href(item.cell.id),
            state=report.states[item.cell.id],
            constraints=unlocked.constraints(item.cell),
            declarations=tuple(unlocked.declarations(item.cell)),
            missing=item.missing,
            locked=tuple((name, f"{name}.html" if name in pages else None) for name in item.locked),
            commands=(*(make if report.states[item.cell.id].name != "conflict" else ()), why),
        )


def _sheets(report: SiteReport) -> Iterable[CellPage]:
    locks = (*(sheet.lock for sheet in report.sheets), *report.others)
    pages = {sheet.cell.id for sheet in report.sheets}
    for sheet in report.sheets:
        other_locks = [lock for lock in locks if lock.cell != sheet.lock.cell]
        chosen, needed = pins_of(sheet.lock)
        environment_locks = sheet.lock.environments
        yield CellPage(
            cell=sheet.cell,
            lock=sheet.lock,
            href=href(sheet.cell.id),
            state=report.states[sheet.cell.id],
            stale=sheet.stale,
            families=tuple(dict.fromkeys(gpu.family.capitalize() for gpu in sheet.cell.gpus)),
            main=dict(list(main_versions(sheet.lock).items())[:_ON_CARDS]),
            choice=chooser.values_of(
                sheet.cell, {package.name for part in environment_locks for package in part.lock.packages}
            ),
            commands=_commands(sheet),
            specifications=_specifications(sheet),
            environments=tuple(
                EnvironmentView(part.name, part.prefix, cell, f"{cell}.html" if cell in pages else None, part.because)
                for part in environment_locks
                if part.name
                for cell in [part.lock.cell]
            ),
            chosen=chosen,
            needed=needed,
            layers=_layers(sheet, other_locks),
            packed=_total(size.packed for size in sheet.layers),
            unpacked=_total(size.unpacked for size in sheet.layers),
            sized=any(size.unpacked is not None for size in sheet.layers),
            heaviest=max((size.packed or 0 for size in sheet.layers), default=0),
            common=_common(sheet.lock, other_locks, pages),
            audit=None if sheet.audit is None else _audit(sheet.audit),
            smoke=None if sheet.smoke is None else _smoke(sheet.smoke),
            history=tuple((step, differences.href(sheet.cell.id, step)) for step in sheet.history.steps),
            older=sheet.history.older,
            missing=sheet.history.missing,
            chart=differences.chart(sheet.cell.id, sheet.history),
            downloads=download_titles(sheet),
        )


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


def _layers(sheet: CellReport, other_locks: Sequence[Lock]) -> tuple[LayerView, ...]:
    """Return the layers' views, each with the number of other images that have it, by the locks' records."""
    recorded = {layer.name: layer.digest for layer in sheet.lock.record.layers} if sheet.lock.record else {}
    counts = Counter(
        digest for other in other_locks if other.record for digest in {x.digest for x in other.record.layers}
    )
    return tuple(
        LayerView(size.name, size.packed, size.unpacked, counts[recorded.get(size.name, "")]) for size in sheet.layers
    )


def _total(sizes: Iterable[int | None]) -> int | None:
    known_sizes = list(sizes)
    return None if None in known_sizes or not known_sizes else sum(size or 0 for size in known_sizes)


def _common(lock: Lock, other_locks: Sequence[Lock], pages: set[str]) -> tuple[SharedLayers, ...]:
    """Return the images that share layers with the lock, those with the most shared bytes first."""
    images = [
        SharedLayers(cell, f"{cell}.html" if cell in pages else None, count, packed)
        for cell, (count, packed) in shared(lock, other_locks).items()
        if count
    ]
    return tuple(sorted(images, key=lambda image: (-image.packed, image.cell)))


def _audit(report: Audit) -> CheckSummary:
    counts: dict[str, int] = {name: report["counts"].get(name, 0) for name in ("error", "warning", "info")}
    count_texts = [counted(counts[severity], severity) for severity in _WORST_FIRST if counts[severity]]
    summary = f"It found {' and '.join(count_texts)}" if count_texts else "It found no errors and no warnings"
    notes = f", and {counted(counts['info'], 'note')}" if counts["info"] else ""
    listed = [item for item in report["findings"] if item["severity"] in _WORST_FIRST]
    return CheckSummary(f"{summary}{notes}.", findings=tuple(map(_finding, listed)))


def _finding(finding: Mapping[str, Any]) -> Mapping[str, str]:
    where = ": ".join(part for part in (finding.get("environment"), finding["package"], finding["path"]) if part)
    return {"id": finding["id"], "severity": finding["severity"], "where": where, "what": finding["evidence"]}


def _smoke(report: Smoke) -> CheckSummary:
    counts = ", ".join(f"{number} {status}" for status, number in report["counts"].items() if number)
    verdict = "They passed" if report["passed"] else "They did not pass"
    checks = tuple(
        {"name": check["check"], "status": check["status"], "note": check["reason"] or _note(check)}
        for check in report["checks"]
    )
    return CheckSummary(f"{verdict}{_gpus(report)}: {counts}.", checks=checks)


def _gpus(report: Smoke) -> str:
    """Return " on NVIDIA H200, driver 580.159.04" where the check of the GPU passed, else ""."""
    details: Mapping[str, Any] = next((check["details"] for check in report["checks"] if _name(check) == "cuda"), {})
    names = [str(device["name"]) for device in details.get("devices", ())]
    if not names:
        return ""
    device_names = ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
    return f" on {device_names}, driver {details['driver']}" if details.get("driver") else f" on {device_names}"


def _name(check: Mapping[str, Any]) -> str:
    """Return the name of a check without its environment."""
    return str(check["check"]).rpartition(": ")[2]


def _note(check: Mapping[str, Any]) -> str:
    note = check["details"].get("note")
    return note if isinstance(note, str) else ""
