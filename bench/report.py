"""Generate pages from recorded measurements: the claims, the newest tables and the index of the journal.

`make tables` writes the pages, through tests/unit/test_bench_results.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import results
import yaml

BENCH = Path(__file__).parent
JOURNAL = BENCH / "journal"
_JOURNAL_URL = "https://github.com/imagegen/imagegen/blob/main/bench/journal"
_CLAIMS_HEAD = f"""\
# Measurements

`make tables` writes this page from `bench/claims.yaml`. Each section names the date, machine and command of a run. Its
date links to the run's file in the [journal]({_JOURNAL_URL}/README.md), which has all figures and their conditions.
"""
_RESULTS_HEAD = """\
# Results

`make tables` writes this page from the JSON files in this directory. A program of `bench/` writes its newest result to
`NAME.json` with `--save NAME`. [The journal](../journal/README.md) explains the results and keeps earlier ones.
"""
_JOURNAL_HEAD = """\
# Journal of measurements

One file for each run or topic. The name begins with the date of the run. "Recorded on" is the date of the commit, if
the date of the run is unknown. A file is not changed after later runs; a new run gets a new file.

To add a run:

1. Run a program of `bench/`, with `--save NAME` if it has that option.
2. Write `YYYY-MM-DD-topic.md` with the machine, the command and all figures.
3. Add the main figures to `bench/claims.yaml`, from which
   [Measurements](../../docs/internals/measurements.md) is written.
4. `make tables` writes that page, this index and [the newest tables](../results/README.md).
"""


def pages() -> dict[str, str]:
    """Return each generated page by its path in the repository."""
    return {
        "docs/internals/measurements.md": claims_page(read_claims()),
        "bench/results/README.md": results_page(),
        "bench/journal/README.md": journal_page(),
    }


def read_claims() -> dict[str, Any]:
    """Return the content of bench/claims.yaml."""
    document: dict[str, Any] = yaml.safe_load((BENCH / "claims.yaml").read_text())
    return document


def claims_page(document: Mapping[str, Any]) -> str:
    """Return the page of claims, with a section for each topic and run."""
    machines = "".join(f"| {name} | {text} |\n" for name, text in document["machines"].items())
    sections = [f"{_CLAIMS_HEAD}\n| machine | description |\n|---|---|\n{machines}"]
    for topic in document["topics"]:
        sections += [f"## {topic['title']}\n", *map(_run, topic["runs"])]
    return "\n".join(sections)


def _run(run: Mapping[str, Any]) -> str:
    """Return the section of a run: date with its journal file, machine, command and claims."""
    origin = [
        f"[{run['journal'][:10]}]({_JOURNAL_URL}/{run['journal']}.md)",
        run["machine"] or "machine not recorded",
        f"`{run['command']}`" if run["command"] else "command not recorded",
    ]
    claims = "".join(f"- {claim}: **{value}**\n" for claim, value in run["claims"].items())
    return f"### {run['title']}\n\n{', '.join(origin)}:\n\n{claims}"


def results_page() -> str:
    """Return the tables of all files in bench/results/, each with the machine and the command of its run."""
    sections = [_RESULTS_HEAD]
    for path in sorted(results.FOLDER.glob("*.json")):
        document, tables = results.read(path.name)
        sections.append(f"## {path.stem}\n\n{document['date']}, {document['machine']}:\n\n    {document['command']}\n")
        sections += [f"### {title}\n\n{table.markdown()}\n" for title, table in tables.items()]
    return "\n".join(sections)


def journal_page() -> str:
    """Return the index of the journal: date and title of each file, the newest first."""
    rows = "".join(
        f"| {path.name[:10]} | [{path.read_text().splitlines()[0].removeprefix('# ')}]({path.name}) |\n"
        for path in sorted(JOURNAL.glob("2*.md"), reverse=True)
    )
    return f"{_JOURNAL_HEAD}\n| date | topic |\n|---|---|\n{rows}"
