"""Write the tables of docs/internals/measurements.md from bench/results/*.json.

    python bench/report.py

A table stands between `<!-- bench/results/NAME.json: TITLE -->` and `<!-- end -->`, below the command and the machine.
"""

from __future__ import annotations

import re
from pathlib import Path

import results

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "measurements.md"
_PLACE = re.compile(r"(<!-- bench/results/(?P<file>[\w.-]+\.json): (?P<title>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(page: str) -> str:
    """Return the page with each table as its file has it. Raises OSError and KeyError where there is none."""
    return _PLACE.sub(_section, page)


def _section(match: re.Match[str]) -> str:
    document, tables = results.read(match["file"])
    origin = f"{document['date']}, {document['machine']}:\n\n    {document['command']}"
    return f"{match[1]}\n{origin}\n\n{tables[match['title']].markdown()}\n\n{match[4]}"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
