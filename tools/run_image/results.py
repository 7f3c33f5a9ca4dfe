"""Read the results of smoke checks that run_image.py ran on another host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagegen.checks.smoke.table import Check
from imagegen.core.data import parse_json
from imagegen.core.errors import SmokeError
from imagegen.run.smoke import report as smoke
from imagegen.run.smoke.passed import SmokeRequirement
from imagegen.run.smoke.runner import apply_gpu_requirement, check_name, join_reports, read_result

_FIX = "export the image again, and run `python3 run_image.py test` of that export"


def read_results(
    path: Path, required: SmokeRequirement, checks: Mapping[str, tuple[Check, ...]], cell: str
) -> smoke.SmokeReport:
    """Read the results of smoke checks on another host.

    Args:
        path: the file that `run_image.py test` wrote.
        required: the image and the smoke checks that the results must have, and whether a GPU is required.
        checks: the checks of each environment, by its name, or "" for the only one. One without a result has failed.
        cell: the cell of the image.

    Raises SmokeError for another file, and for results of another image or of other smoke checks.
    """
    document = _read(path)
    for name, expected in (("image", required.image), ("suite", required.programs)):
        if document.get(name) != expected:
            why = f"they are of {name} {document.get(name)}, and {cell} has {expected}"
            raise SmokeError(
                "the results are not of this image",
                code="smoke-results-other-image",
                where=str(path),
                why=why,
                fix=_FIX,
            )
    answers = {
        answer["check"]: answer for answer in document["results"] if isinstance(answer, dict) and "check" in answer
    }
    reports = []
    for environment, requested in checks.items():
        results = []
        for check in requested:
            name = check_name(environment, check.name)
            why = "its result is malformed" if name in answers else "the file has no result of it"
            result = read_result(name, answers.get(name)) or smoke.CheckResult(name, "fail", 0, why)
            results.append(apply_gpu_requirement(result, check, require_gpu=required.gpu))
        reports.append(smoke.SmokeReport(required.image, environment or cell, tuple(results)))
    return reports[0] if len(reports) == 1 else join_reports(required.image, cell, reports)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SmokeError(
            "the results cannot be read", code="smoke-results-unreadable", where=str(path), why=str(error), fix=_FIX
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise SmokeError(
            "the results cannot be read",
            code="smoke-results-unreadable",
            where=str(path),
            why="it holds no list of results",
            fix=_FIX,
        )
    return document
