"""Changes of verdicts on cells by a harvest, as Markdown for the people who merge it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from imagegen.app.states import StateName
from imagegen.core.text import counted
from imagegen.plan.matrix.metadata import PackageReleases
from imagegen.plan.matrix.model import Cell, Rule
from imagegen.plan.rules import CellAnswer, Knowledge, MetadataCache, cell_answers, table_of
from imagegen.plan.rules.statements import StatementTable

_NAMED = 5  # versions that one line names
_STATES: dict[str, StateName] = {"compatible": "no known conflict", "incompatible": "conflict", "unknown": "unknown"}


@dataclass(frozen=True)
class PackageNews:
    """The releases of a package that a harvest added, changed or lost, and the cells whose verdict that alone moves."""

    package: str
    added: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    cells: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerdictChange:
    cell: str
    before: CellAnswer
    after: CellAnswer


@dataclass(frozen=True)
class HarvestSummary:
    news: tuple[PackageNews, ...]
    changes: tuple[VerdictChange, ...]


def compare(
    before: Mapping[str, PackageReleases],
    found: Iterable[PackageReleases],
    cells: Sequence[Cell],
    rules: Sequence[Rule],
    others: Callable[[str], PackageReleases | None],
) -> HarvestSummary:
    """Return what the harvested packages change; `others` loads a package that was not harvested."""

    def table(found: PackageReleases | None) -> StatementTable | None:
        return table_of(found) if found else None

    def answers(packages: Mapping[str, PackageReleases]) -> dict[str, CellAnswer]:
        metadata = MetadataCache(lambda name: table(packages.get(name) or others(name)))
        return cell_answers(cells, Knowledge(rules, metadata))

    moved = {each.name: each for each in found if each.releases != before[each.name].releases}
    old = answers(before) if moved else {}
    news = []
    for name, each in sorted(moved.items()):
        alone = _changed(old, answers({**before, name: each}))
        news.append(_news(before[name], each, tuple(change.cell for change in alone)))
    return HarvestSummary(tuple(news), tuple(_changed(old, answers({**before, **moved}) if moved else {})))


def _changed(old: Mapping[str, CellAnswer], new: Mapping[str, CellAnswer]) -> list[VerdictChange]:
    return [VerdictChange(cell, was, new[cell]) for cell, was in old.items() if was.answer != new[cell].answer]


def _news(before: PackageReleases, found: PackageReleases, cells: tuple[str, ...]) -> PackageNews:
    old, new = before.releases, found.releases
    return PackageNews(
        found.name,
        added=tuple(version for version in new if version not in old),
        changed=tuple(version for version in new if version in old and new[version] != old[version]),
        gone=tuple(version for version in old if version not in new),
        cells=cells,
    )


def render(summary: HarvestSummary) -> str:
    """Return the summary as Markdown: a line per package, then the cells whose verdict changes."""
    if not summary.news:
        return "Nothing new.\n"
    lines = [f"- {_line(each)}" for each in summary.news]
    if summary.changes:
        lines += ["", "| cell | before | after | reason |", "| --- | --- | --- | --- |", *map(_row, summary.changes)]
    else:
        lines += ["", "No verdict changes."]
    return "\n".join([*lines, ""])


def _line(news: PackageNews) -> str:
    parts = {"new": news.added, "changed": news.changed, "gone": news.gone}
    texts = [f"{_versions(versions)} {what}" for what, versions in parts.items() if versions]
    cells = f"; {counted(len(news.cells), 'cell')} {'changes' if len(news.cells) == 1 else 'change'}" * bool(news.cells)
    return f"{news.package}: {', '.join(texts)}{cells}"


def _versions(versions: Sequence[str]) -> str:
    return ", ".join(versions) if len(versions) <= _NAMED else counted(len(versions), "release")


def _row(change: VerdictChange) -> str:
    reason = (change.after.reason or change.before.reason).replace("|", "\\|").replace("\n", " ")
    return f"| {change.cell} | {_STATES[change.before.answer]} | {_STATES[change.after.answer]} | {reason} |"
