"""Render a report as self-contained files; the same report gives the same bytes.

The templates escape text from a matrix, a lock or a repository, and show invisible characters as Python escapes. Pages
allow no script but their own.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path

from jinja2 import StrictUndefined
from jinja2.loaders import FileSystemLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment

from imagegen.app import differences
from imagegen.app.differences import CellHistory
from imagegen.app.site_report import SiteReport
from imagegen.app.site_view import download_titles, index
from imagegen.app.states import MEANINGS
from imagegen.core import temporary
from imagegen.core.data import parse_json, shipped
from imagegen.core.errors import StoreError
from imagegen.core.progress import human
from imagegen.core.store import disk
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

MARK = ".imagegen-report.json"  # names the files of a report
_OUTPUT, _REMEDY = "the output directory", "name another one"
_HERE = -100  # AT_FDCWD: paths are relative to the working directory
RENAME_EXCHANGE = 2
_SHOWN = 3  # foreign files in a message


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


def replace_report(directory: Path, files: Mapping[str, bytes]) -> None:
    """Replace the content of `directory` by these files; a reader sees either the old or the new report, never a
    mixture.

    Raises StoreError as `require_own` does, and where the directory cannot be written.
    """
    require_own(directory)
    directory = directory.resolve()
    with (
        disk.explained(directory, _OUTPUT, _REMEDY, sum(map(len, files.values()))),
        disk.made_for(directory),
        temporary.temporary_directory(directory.parent) as fresh,
    ):
        _fill(fresh, files)
        if directory.exists():
            _exchange(fresh, directory)  # `fresh` is the old report now, and goes
        else:
            fresh.rename(directory)


def require_own(directory: Path) -> None:
    """Raise StoreError if the directory has files that no report wrote; it is cheap, so call it before long work."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise StoreError(
            "the output directory is a file", code="store-output-is-file", where=str(directory), fix=_REMEDY
        )
    present = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_symlink() or path.is_file()}
    foreign = sorted(present - _written(directory))
    if foreign:
        omitted = [f"{len(foreign) - _SHOWN} more"] if len(foreign) > _SHOWN else []
        raise StoreError(
            "the output directory has files that no report wrote",
            code="store-foreign-file",
            where=str(directory),
            why=", ".join([*foreign[:_SHOWN], *omitted]),
            fix="name another one, or move these away, because a report replaces all files in it",
        )


def _written(directory: Path) -> set[str]:
    try:
        names = parse_json((directory / MARK).read_bytes())["files"]
        return {MARK, *map(str, names)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    mark = {"about": "written by imagegen report, which replaces this folder", "files": sorted(files)}
    for name, content in {**files, MARK: json.dumps(mark, indent=1).encode() + b"\n"}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    folder.chmod(0o755)  # mkdtemp's 0700 would keep a web server out


def _exchange(first: Path, other: Path) -> None:
    """Let two directories change names, by renameat2(2). Where that fails, there is a moment without `other`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_HERE, os.fsencode(first), _HERE, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return
    aside = first.with_name(f"{first.name}-old")
    other.rename(aside)
    try:
        first.rename(other)
    except OSError:
        aside.rename(other)
        raise
    aside.rename(first)
