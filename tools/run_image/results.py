"""Read the results of smoke checks that run_image.py ran on another host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagegen.core.data import parse_json
from imagegen.core.errors import SmokeError
from imagegen.incontainer.smoke.table import Check
from imagegen.run import smoke
from imagegen.run.smoke import check_name, judged, read_result
from imagegen.supply.publish.attachments import SmokeRequirement

_FIX = "export the image again, and run `python3 run_image.py test` of that export"


def read_results(
    path: Path, required: SmokeRequirement, checks: Mapping[str, tuple[Check, ...]], cell: str
) -> smoke.SmokeReport:
    """Read the file that `run_image.py test` wrote.

    Args:
        path: the file.
        required: the image that the results must be of, the smoke checks, and whether a GPU is required.
        checks: those of each environment, by its name ("" for the only one); one without a result has failed.
        cell: the image's cell.

    Raises SmokeError for another file, and for results of another image or of other smoke checks.
    """
    found = _read(path)
    for name, expected in (("image", required.image), ("suite", required.programs)):
        if found.get(name) != expected:
            why = f"they are of {name} {found.get(name)}, and {cell} has {expected}"
            raise SmokeError(
                "the results are not of this image",
                code="smoke-results-other-image",
                where=str(path),
                why=why,
                fix=_FIX,
            )
    answers = {each["check"]: each for each in found["results"] if isinstance(each, dict) and "check" in each}
    reports = []
    for environment, requested in checks.items():
        results = []
        for check in requested:
            name = check_name(environment, check.name)
            why = "its result is malformed" if name in answers else "the file has no result of it"
            result = read_result(name, answers.get(name)) or smoke.CheckResult(name, "fail", 0, why)
            results.append(judged(result, check, require_gpu=required.gpu))
        reports.append(smoke.SmokeReport(required.image, environment or cell, tuple(results)))
    return reports[0] if len(reports) == 1 else smoke.joined(required.image, cell, reports)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SmokeError(
            "the results cannot be read", code="smoke-results-unreadable", where=str(path), why=str(error), fix=_FIX
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("results"), list):
        raise SmokeError(
            "the results cannot be read",
            code="smoke-results-unreadable",
            where=str(path),
            why="it holds no list of results",
            fix=_FIX,
        )
    return found
