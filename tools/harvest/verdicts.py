"""Changes of verdicts on cells by a harvest, as Markdown for the people who merge it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from imagegen.app.states import StateName
from imagegen.compat import CellAnswer, Knowledge, MetadataCache, table_of
from imagegen.compat.metadata import PackageReleases
from imagegen.compat.rule import Rule
from imagegen.compat.statements import StatementTable
from imagegen.core.text import counted
from imagegen.spec.cell_facts import cell_answers
from imagegen.spec.model import Cell

_NAMED = 5  # versions that one line names
_STATES: dict[str, StateName] = {"compatible": "no known conflict", "incompatible": "conflict", "unknown": "unknown"}


@dataclass(frozen=True)
class PackageNews:
    """The releases of a package that a harvest added, changed or lost, and the cells whose verdict only it moves."""

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
    harvested: Iterable[PackageReleases],
    cells: Sequence[Cell],
    rules: Sequence[Rule],
    load_other: Callable[[str], PackageReleases | None],
) -> HarvestSummary:
    """Return the changes of the harvested packages; `load_other` loads a package that was not harvested."""

    def table(releases: PackageReleases | None) -> StatementTable | None:
        return table_of(releases) if releases else None

    def answers(packages: Mapping[str, PackageReleases]) -> dict[str, CellAnswer]:
        metadata = MetadataCache(lambda name: table(packages.get(name) or load_other(name)))
        return cell_answers(cells, Knowledge(rules, metadata))

    moved = {package.name: package for package in harvested if package.releases != before[package.name].releases}
    old = answers(before) if moved else {}
    news = []
    for name, moved_package in sorted(moved.items()):
        alone = _changed(old, answers({**before, name: moved_package}))
        news.append(_news(before[name], moved_package, tuple(change.cell for change in alone)))
    return HarvestSummary(tuple(news), tuple(_changed(old, answers({**before, **moved}) if moved else {})))


def _changed(old: Mapping[str, CellAnswer], new: Mapping[str, CellAnswer]) -> list[VerdictChange]:
    return [VerdictChange(cell, was, new[cell]) for cell, was in old.items() if was.answer != new[cell].answer]


def _news(before: PackageReleases, after: PackageReleases, cells: tuple[str, ...]) -> PackageNews:
    old, new = before.releases, after.releases
    return PackageNews(
        after.name,
        added=tuple(version for version in new if version not in old),
        changed=tuple(version for version in new if version in old and new[version] != old[version]),
        gone=tuple(version for version in old if version not in new),
        cells=cells,
    )


def render(summary: HarvestSummary) -> str:
    """Return the summary as Markdown: a line per package, then the cells whose verdict changes."""
    if not summary.news:
        return "Nothing new.\n"
    lines = [f"- {_line(package)}" for package in summary.news]
    if summary.changes:
        lines += ["", "| cell | before | after | reason |", "| --- | --- | --- | --- |", *map(_row, summary.changes)]
    else:
        lines += ["", "No verdict changes."]
    return "\n".join([*lines, ""])


def _line(news: PackageNews) -> str:
    groups = {"new": news.added, "changed": news.changed, "gone": news.gone}
    texts = [f"{_versions(versions)} {label}" for label, versions in groups.items() if versions]
    cells = f"; {counted(len(news.cells), 'cell')} {'changes' if len(news.cells) == 1 else 'change'}" * bool(news.cells)
    return f"{news.package}: {', '.join(texts)}{cells}"


def _versions(versions: Sequence[str]) -> str:
    return ", ".join(versions) if len(versions) <= _NAMED else counted(len(versions), "release")


def _row(change: VerdictChange) -> str:
    reason = (change.after.reason or change.before.reason).replace("|", "\\|").replace("\n", " ")
    return f"| {change.cell} | {_STATES[change.before.answer]} | {_STATES[change.after.answer]} | {reason} |"
