"""The report: the matrix and its images as static pages."""

from __future__ import annotations

import functools
import itertools
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import StrictUndefined
from jinja2.loaders import FileSystemLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment

from imagegen.app import chooser, differences, launch, unlocked
from imagegen.app.differences import CellHistory, Chart
from imagegen.app.lock_history import History, LockChange
from imagegen.app.packages import LockedPackage, Pin, pins_of
from imagegen.app.states import MEANINGS, CellState, StateName
from imagegen.app.unlocked import UnlockedCell
from imagegen.core.data import shipped
from imagegen.core.progress import human
from imagegen.core.text import counted, shown
from imagegen.image.layers import Size, shared
from imagegen.plan.lock.environments import environments
from imagegen.plan.lock.model import Lock, main_versions
from imagegen.plan.matrix.model import Cell, Rule

# The data of a report, before it becomes pages. Nothing here reads a file.

Smoke = Mapping[str, Any]  # as smoke.SmokeReport.as_dict has it
Audit = Mapping[str, Any]  # as audit.report.AuditReport.as_dict has it


@dataclass(frozen=True)
class CellReport:
    """A locked cell with everything that its report page shows.

    `smoke` and `audit` are None where no report of that tool is in this store.
    """

    cell: Cell
    lock: Lock
    stale: tuple[str, ...]  # inputs that moved since the lock was made
    layers: tuple[Size, ...]
    history: History
    smoke: Smoke | None
    audit: Audit | None
    tag: str  # what a build here calls it
    remote: tuple[str, ...] = ()  # where it is published: by the first tag that moves, and by the one that never does
    downloads: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)  # what it is -> file name, content


@dataclass(frozen=True)
class SiteReport:
    """`cells` are in the matrix's order, `states` are their states by id.

    Each cell is in `sheets` or in `unlocked`. `others` are locks of cells that the report leaves out: their images may
    share layers with these.
    """

    cells: tuple[Cell, ...]
    states: Mapping[str, CellState]
    sheets: tuple[CellReport, ...]
    unlocked: tuple[UnlockedCell, ...] = ()
    others: tuple[Lock, ...] = ()
    packages: tuple[LockedPackage, ...] = ()  # of the locks of `sheets`
    descriptions: Mapping[str, str] = field(default_factory=dict)  # of images, where a cell's own would mislead
    unconfirmed: tuple[Rule, ...] = ()  # rules whose last check is more than six months old
    defaults: Collection[str] = ()  # ids of the default cells of images


# The view model of a report: every number and text that its pages show. Pure.

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
    """An environment of an image with several; `href` is the page of its cell, where the report has one."""

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
    commands: tuple[tuple[str, str], ...]  # what it does, and the shell text
    specifications: tuple[tuple[str, str], ...]  # what starts the image or builds on it, and the text by digest
    environments: tuple[EnvironmentView, ...]  # of an image with several
    chosen: tuple[Pin, ...]
    needed: tuple[Pin, ...]
    layers: tuple[LayerView, ...]
    packed: int | None
    unpacked: int | None
    sized: bool  # of some layer it is known what it takes on a disk
    heaviest: int
    common: tuple[SharedLayers, ...]
    audit: CheckSummary | None
    smoke: CheckSummary | None
    history: tuple[tuple[LockChange, str | None], ...]  # each with its page, relative to the index
    older: bool
    missing: str  # what git could not give of the history
    chart: Chart | None
    downloads: tuple[tuple[str, str], ...]  # what it is, and its file name beside the page


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
        preferred={sheet.cell.id: place for place, sheet in enumerate(proposed)},
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
        each.cell.id: chooser.values_of(each.cell, {need.component.package for need in each.cell.requirements})
        for each in report.unlocked
    }
    return {
        cell.id: RowView(cell.id, href(cell.id), report.states[cell.id], choices.get(cell.id)) for cell in report.cells
    }


def _unlocked_pages(report: SiteReport) -> Iterable[UnlockedPage]:
    pages = {sheet.cell.id for sheet in report.sheets}
    for each in report.unlocked:
        why = (
            "The rules and the metadata behind its state, and what works:",
            shlex.join(["imagegen", "why", each.cell.id]),
        )
        make = [
            (
                "Lock it: each version and each file is then pinned by hash.",
                shlex.join(["imagegen", "lock", each.cell.id]),
            ),
            ("Build it, test it and tag it:", shlex.join(["imagegen", "build", each.cell.id])),
        ]
        yield UnlockedPage(
            cell=each.cell,
            href=href(each.cell.id),
            state=report.states[each.cell.id],
            constraints=unlocked.constraints(each.cell),
            declarations=tuple(unlocked.declarations(each.cell)),
            missing=each.missing,
            locked=tuple((name, f"{name}.html" if name in pages else None) for name in each.locked),
            commands=(*(make if report.states[each.cell.id].name != "conflict" else ()), why),
        )


def _sheets(report: SiteReport) -> Iterable[CellPage]:
    locks = (*(sheet.lock for sheet in report.sheets), *report.others)
    pages = {sheet.cell.id for sheet in report.sheets}
    for sheet in report.sheets:
        others = [lock for lock in locks if lock.cell != sheet.lock.cell]
        chosen, needed = pins_of(sheet.lock)
        parts = environments(sheet.lock)
        yield CellPage(
            cell=sheet.cell,
            lock=sheet.lock,
            href=href(sheet.cell.id),
            state=report.states[sheet.cell.id],
            stale=sheet.stale,
            families=tuple(dict.fromkeys(gpu.family.capitalize() for gpu in sheet.cell.gpus)),
            main=dict(list(main_versions(sheet.lock).items())[:_ON_CARDS]),
            choice=chooser.values_of(sheet.cell, {package.name for part in parts for package in part.lock.packages}),
            commands=_commands(sheet),
            specifications=_specifications(sheet),
            environments=tuple(
                EnvironmentView(part.name, part.prefix, cell, f"{cell}.html" if cell in pages else None, part.because)
                for part in parts
                if part.name
                for cell in [part.lock.cell]
            ),
            chosen=chosen,
            needed=needed,
            layers=_layers(sheet, others),
            packed=_total(size.packed for size in sheet.layers),
            unpacked=_total(size.unpacked for size in sheet.layers),
            sized=any(size.unpacked is not None for size in sheet.layers),
            heaviest=max((size.packed or 0 for size in sheet.layers), default=0),
            common=_common(sheet.lock, others, pages),
            audit=None if sheet.audit is None else _audit(sheet.audit),
            smoke=None if sheet.smoke is None else _smoke(sheet.smoke),
            history=tuple((step, differences.href(sheet.cell.id, step)) for step in sheet.history.steps),
            older=sheet.history.older,
            missing=sheet.history.missing,
            chart=differences.chart(sheet.cell.id, sheet.history),
            downloads=_named(sheet),
        )


def _named(sheet: CellReport) -> tuple[tuple[str, str], ...]:
    """Return what each download of a cell is, and its file name."""
    return tuple((title, name) for title, (name, _) in sheet.downloads.items())


def _commands(sheet: CellReport) -> tuple[tuple[str, str], ...]:
    if sheet.remote:
        texts = ("From the registry, the newest:", "Exactly the image of this page, today and later:")
        first = [(text, shlex.join(["docker", "pull", name])) for text, name in zip(texts, sheet.remote, strict=True)]
    else:
        first = [("Build it, test it and tag it:", shlex.join(["imagegen", "build", sheet.cell.id]))]
    name = sheet.remote[0] if sheet.remote else sheet.tag
    spec = launch.launch_spec(sheet.cell, sheet.lock, name, published=bool(sheet.remote))
    others = "\n".join(
        shlex.join(["imagegen", "launch", sheet.cell.id, "--for", target])
        for target in launch.TARGETS
        if target != "docker" and launch.can_run(spec, target)
    )
    return *first, ("A shell in it:", launch.render(spec, "docker").rstrip()), ("By digest, elsewhere:", others)


def _specifications(sheet: CellReport) -> tuple[tuple[str, str], ...]:
    """Return what starts the image or builds on it: by digest where the lock records one, else by its tag here."""
    name = sheet.remote[-1] if sheet.remote else sheet.tag
    if sheet.lock.record:
        name = f"{name.rpartition(':')[0]}@{sheet.lock.record.digest}"
    spec = launch.launch_spec(sheet.cell, sheet.lock, name, published=bool(sheet.remote))
    pull = [("Docker", shlex.join(["docker", "pull", name]))] if sheet.remote else []
    rendered = [(title, launch.render(spec, target).rstrip()) for target, title in _SPECIFICATIONS.items()]
    return *pull, ("Dockerfile", f"FROM {name}"), *rendered


def _layers(sheet: CellReport, others: Sequence[Lock]) -> tuple[LayerView, ...]:
    """Return the layers' views, each with the number of other images that have it, by the locks' records."""
    recorded = {layer.name: layer.digest for layer in sheet.lock.record.layers} if sheet.lock.record else {}
    theirs = Counter(digest for other in others if other.record for digest in {x.digest for x in other.record.layers})
    return tuple(
        LayerView(size.name, size.packed, size.unpacked, theirs[recorded.get(size.name, "")]) for size in sheet.layers
    )


def _total(sizes: Iterable[int | None]) -> int | None:
    every = list(sizes)
    return None if None in every or not every else sum(size or 0 for size in every)


def _common(lock: Lock, others: Sequence[Lock], pages: set[str]) -> tuple[SharedLayers, ...]:
    """The images with most in common first."""
    found = [
        SharedLayers(cell, f"{cell}.html" if cell in pages else None, count, packed)
        for cell, (count, packed) in shared(lock, others).items()
        if count
    ]
    return tuple(sorted(found, key=lambda each: (-each.packed, each.cell)))


def _audit(report: Audit) -> CheckSummary:
    counts: dict[str, int] = {name: report["counts"].get(name, 0) for name in ("error", "warning", "info")}
    named = [counted(counts[severity], severity) for severity in _WORST_FIRST if counts[severity]]
    summary = f"It found {' and '.join(named)}" if named else "It found no errors and no warnings"
    notes = f", and {counted(counts['info'], 'note')}" if counts["info"] else ""
    listed = [each for each in report["findings"] if each["severity"] in _WORST_FIRST]
    return CheckSummary(f"{summary}{notes}.", findings=tuple(map(_finding, listed)))


def _finding(each: Mapping[str, Any]) -> Mapping[str, str]:
    where = ": ".join(part for part in (each.get("environment"), each["package"], each["path"]) if part)
    return {"id": each["id"], "severity": each["severity"], "where": where, "what": each["evidence"]}


def _smoke(report: Smoke) -> CheckSummary:
    counts = ", ".join(f"{number} {status}" for status, number in report["counts"].items() if number)
    verdict = "They passed" if report["passed"] else "They did not pass"
    checks = tuple(
        {"name": each["check"], "status": each["status"], "note": each["reason"] or _note(each)}
        for each in report["checks"]
    )
    return CheckSummary(f"{verdict}{_gpus(report)}: {counts}.", checks=checks)


def _gpus(report: Smoke) -> str:
    """Return " on NVIDIA H200, driver 580.159.04" where the check of the GPU passed, else ""."""
    details: Mapping[str, Any] = next((each["details"] for each in report["checks"] if _name(each) == "cuda"), {})
    names = [str(device["name"]) for device in details.get("devices", ())]
    if not names:
        return ""
    named = ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
    return f" on {named}, driver {details['driver']}" if details.get("driver") else f" on {named}"


def _name(check: Mapping[str, Any]) -> str:
    """Return the name of a check without that of its environment."""
    return str(check["check"]).rpartition(": ")[2]


def _note(check: Mapping[str, Any]) -> str:
    note = check["details"].get("note")
    return note if isinstance(note, str) else ""


# Render a report as self-contained files; the same report gives the same bytes.
#
# Text from a matrix, a lock or a repository is only ever text on a page: the templates escape it, and invisible
# characters are shown as Python escapes. Pages allow no script but their own.

SECTIONS = {
    "run": "How to run it",
    "needs": "What it needs",
    "contents": "What is in it",
    "checks": "What was checked",
    "layers": "Layers",
    "history": "History",
}
_ASSETS = ("style.css", "choose.js", "copy.js", "filter.js", "packages.js")


def render(report: SiteReport) -> dict[str, bytes]:
    """Path below the report's folder -> content."""
    whole = index(report)
    environment = _environment()
    pages = {"index.html": environment.get_template("index.html.j2").render(index=whole, meanings=MEANINGS, top="")}
    if whole.packages:
        pages["packages.html"] = environment.get_template("packages.html.j2").render(packages=whole.packages, top="")
    template = environment.get_template("cell.html.j2")
    for sheet in whole.sheets:
        pages[sheet.href] = template.render(sheet=sheet, sections=SECTIONS.items(), top="../")
    template = environment.get_template("unlocked.html.j2")
    for page in whole.unlocked:
        pages[page.href] = template.render(page=page, meaning=MEANINGS[page.state.name], top="../")
    histories = [CellHistory(each.cell.id, each.history, _named(each)) for each in report.sheets]
    pages |= differences.render(histories, environment)
    files = {name: (shipped("pages") / name).read_bytes() for name in _ASSETS}
    files |= {f"cells/{name}": content for each in report.sheets for name, content in each.downloads.values()}
    return {path: text.encode() for path, text in pages.items()} | files


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(shipped("pages")),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.filters["human"] = human
    environment.filters["counted"] = counted
    environment.filters["signed"] = differences.signed
    environment.filters["size_in_words"] = differences.size_in_words
    return environment


def _finalize(value: object) -> object:
    """Text of others, as it may be shown; what a macro has escaped already stays."""
    return shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
