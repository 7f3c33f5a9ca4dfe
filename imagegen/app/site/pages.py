"""Render a report as self-contained files; the same report gives the same bytes.

Text from a matrix, a lock or a repository is only ever text on a page: the templates escape it, and invisible
characters are shown as Python escapes. Pages allow no script but their own.
"""

from __future__ import annotations

import functools

from jinja2 import StrictUndefined
from jinja2.loaders import FileSystemLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment

from imagegen.app.site import view
from imagegen.app.site.model import Report
from imagegen.core.data import shipped
from imagegen.core.progress import human
from imagegen.core.text import counted, shown
from imagegen.plan.state import MEANINGS

SECTIONS = {
    "run": "How to run it",
    "needs": "What it needs",
    "contents": "What is in it",
    "checks": "What was checked",
    "layers": "Layers",
    "history": "History",
}
_ASSETS = ("style.css", "filter.js")


def render(report: Report) -> dict[str, bytes]:
    """Path below the report's folder -> content."""
    whole = view.index(report)
    environment = _environment()
    pages = {"index.html": environment.get_template("index.html.j2").render(index=whole, meanings=MEANINGS, top="")}
    template = environment.get_template("cell.html.j2")
    for sheet in whole.sheets:
        pages[sheet.href] = template.render(sheet=sheet, sections=SECTIONS.items(), top="../")
    assets = {name: (shipped("pages") / name).read_bytes() for name in _ASSETS}
    return {path: text.encode() for path, text in pages.items()} | assets


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
    return environment


def _finalize(value: object) -> object:
    """Text of others, as it may be shown; what a macro has escaped already stays."""
    return shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
