"""Render a report as self-contained files; the same report gives the same bytes.

The templates escape text from a matrix, a lock or a repository, and show invisible characters as Python escapes. Pages
allow no script but their own.
"""

from __future__ import annotations

import functools

from jinja2 import StrictUndefined
from jinja2.loaders import FileSystemLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment

from imagegen.app import differences
from imagegen.app.differences import CellHistory
from imagegen.app.site_report import SiteReport
from imagegen.app.site_view import download_titles, index
from imagegen.app.states import MEANINGS
from imagegen.core.data import shipped
from imagegen.core.progress import human
from imagegen.core.text import counted, shown

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
    if whole["packages"]:
        pages["packages.html"] = environment.get_template("packages.html.j2").render(packages=whole["packages"], top="")
    template = environment.get_template("cell.html.j2")
    for sheet in whole["sheets"]:
        pages[sheet["href"]] = template.render(sheet=sheet, sections=SECTIONS.items(), top="../")
    template = environment.get_template("unlocked.html.j2")
    for page in whole["unlocked"]:
        pages[page["href"]] = template.render(page=page, meaning=MEANINGS[page["state"].name], top="../")
    histories = [
        CellHistory(report_sheet.cell.id, report_sheet.history, download_titles(report_sheet))
        for report_sheet in report.sheets
    ]
    pages |= differences.render(histories, environment)
    files = {name: (shipped("pages") / name).read_bytes() for name in _ASSETS}
    files |= {
        f"cells/{name}": content for report_sheet in report.sheets for name, content in report_sheet.downloads.values()
    }
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
    """Return text from other sources in a form that may be shown; text that a macro has escaped stays."""
    return shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
