"""The pages of a report about changes of locks: one for each, and their index; and the chart of a cell. Pure."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

from imagegen.app.lock_difference import NOT_JUDGED, LockSummary
from imagegen.app.lock_history import History, LockChange
from imagegen.core.progress import human

INDEX = "differences.html"
_FOLDER = "differences"
_COMMIT = 12  # hex digits of a commit in a command
_HEIGHT = 100  # of a chart, in pixels
_TOP, _BOTTOM = 10.0, 90.0  # of the line in a chart, in pixels

Values = dict[str, Any]  # of a template in pages/, by name


@dataclass(frozen=True)
class CellHistory:
    """The history of a cell's lock. `downloads` of its current lock are titles with file names."""

    cell: str
    history: History
    downloads: tuple[tuple[str, str], ...] = ()


def href(cell: str, change: LockChange) -> str | None:
    """Return the address of a difference's page, relative to the index; None where it has none."""
    return f"{_FOLDER}/{cell}-{change.page}.html" if change.page else None


def render(histories: Sequence[CellHistory], environment: Environment) -> dict[str, str]:
    """Return the text of the pages by path: each difference, and the index of all."""
    all_pages = [page for history in histories for page in pages(history)]
    template = environment.get_template("difference.html.j2")
    texts = {page["href"]: template.render(page=page, top="../") for page in all_pages}
    newest = sorted(all_pages, key=lambda page: page["change"].date, reverse=True)
    missing = {history.cell: history.history.missing for history in histories if history.history.missing}
    index = environment.get_template("differences.html.j2")
    return texts | {INDEX: index.render(pages=newest, missing=missing, top="")}


def pages(of: CellHistory) -> list[Values]:
    """Return the pages of a cell's differences, newest first."""
    steps = [step for step in of.history.steps if step.page]
    names = [(f"{of.cell}-{step.page}.html", _title(step)) for step in steps]
    newest = of.history.steps[0] if steps else None
    return [
        _page(
            of,
            step,
            earlier=names[number + 1] if number + 1 < len(names) else None,
            later=names[number - 1] if number else None,
            downloads=of.downloads if step is newest else (),
        )
        for number, step in enumerate(steps)
    ]


def _page(
    of: CellHistory,
    step: LockChange,
    *,
    earlier: tuple[str, str] | None,
    later: tuple[str, str] | None,
    downloads: tuple[tuple[str, str], ...],
) -> Values:
    tables = step.difference
    packages = tables.packages if tables else ()
    return {
        "cell": of.cell,
        "href": f"{_FOLDER}/{of.cell}-{step.page}.html",
        "title": _title(step),
        "change": step,
        "before": (tables.before.verdict or NOT_JUDGED) if tables else None,
        "after": (step.lock.verdict or NOT_JUDGED) if step.lock else None,
        "growth": _growth(tables.before if tables else None, step.lock),
        "moved": tuple(package for package in packages if package.before is not None and package.after is not None),
        "added": tuple(package for package in packages if package.before is None),
        "removed": tuple(package for package in packages if package.after is None),
        "others": tables.others if tables else (),
        "command": _command(of.cell, tables.since, step.commit) if tables else "",
        "earlier": earlier,
        "later": later,
        "downloads": downloads,
        "missing": "" if tables else of.history.missing or "this imagegen does not read the format of the lock before",
    }


def _title(step: LockChange) -> str:
    """Return the day of a change, with its number where it is not the first of the day."""
    number = "not committed" if step.pending else step.page.removeprefix(step.date).removeprefix("-")
    return f"{step.date} ({number})" if number else step.date


def _command(cell: str, since: str, commit: str | None) -> str:
    after = f"{commit[:_COMMIT]}:{cell}" if commit else cell
    return shlex.join(["imagegen", "diff", f"{since[:_COMMIT]}:{cell}", after])


def _growth(before: LockSummary | None, after: LockSummary | None) -> int | None:
    if before is None or after is None or before.size is None or after.size is None:
        return None
    return after.size - before.size


def chart(cell: str, history: History) -> Values | None:
    """Return the chart of the wheel bytes of a lock's versions, the oldest first; None if no version is known.

    `lines` join points: x, y, x, y. `x` is in percent of the width; `y` is in pixels from the top, None without a size.
    """
    steps = [step for step in reversed(history.steps) if step.lock]
    if not steps:
        return None
    sizes = [step.lock.size for step in steps if step.lock and step.lock.size is not None]
    low, high = min(sizes, default=0), max(sizes, default=0)
    points: list[Values] = []
    before = None
    for number, step in enumerate(steps):
        lock = step.lock or LockSummary()
        address = href(cell, step)
        points.append(
            {
                "x": 100 * (number + 0.5) / len(steps),
                "y": None if lock.size is None else _height(lock.size, low, high),
                "change": step,
                "size": lock.size,
                "unsized": lock.unsized,
                "growth": _growth(before, lock),
                "verdict": lock.verdict or NOT_JUDGED,
                "href": f"../{address}" if address else None,
            }
        )
        before = lock
    drawn = [(point["x"], point["y"]) for point in points if point["y"] is not None]
    lines = [(*start, *other) for start, other in itertools.pairwise(drawn)]
    return {"points": points, "lines": lines, "low": low, "high": high, "height": _HEIGHT}


def _height(size: int, low: int, high: int) -> float:
    if low == high:
        return (_TOP + _BOTTOM) / 2
    return _BOTTOM - (_BOTTOM - _TOP) * (size - low) / (high - low)


def signed(growth: int | None) -> str:
    """Return a difference of sizes in words: "+1,000,000 bytes"."""
    if growth is None:
        return "size not known"
    return f"{growth:+,} bytes" if growth else "same size"


def size_in_words(size: int | None, unsized: int = 0) -> str:
    """Return a sum of wheels: "8.20 GB, and 2 of unknown size"."""
    size_text = "not known" if size is None else human(size)
    return f"{size_text}, and {unsized} of unknown size" if unsized else size_text
