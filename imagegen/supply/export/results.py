"""The results of smoke checks that `run_image.py test` ran on another host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imagegen.core.errors import SmokeError
from imagegen.incontainer.smoke.table import Check
from imagegen.run import smoke
from imagegen.run.smoke.run import judged, read_result
from imagegen.supply.publish.proof import SmokeRequirement

_FIX = "export the image again, and run `python3 run_image.py test` of that export"


def read_results(path: Path, required: SmokeRequirement, checks: tuple[Check, ...], cell: str) -> smoke.Report:
    """Read the file that `run_image.py test` wrote.

    Args:
        path: the file.
        required: the image that the results must be of, the smoke checks, and whether a GPU is required.
        checks: those of the image; one without a result has failed.
        cell: the image's cell.

    Raises SmokeError for another file, and for results of another image or of other smoke checks.
    """
    found = _read(path)
    for name, expected in (("image", required.image), ("suite", required.suite)):
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
    results = []
    for check in checks:
        result = read_result(check.name, answers.get(check.name)) or smoke.Result(
            check.name,
            "fail",
            0,
            "the file has no result of it" if check.name not in answers else "its result is malformed",
        )
        results.append(judged(result, check, require_gpu=required.gpu))
    return smoke.Report(required.image, cell, tuple(results))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
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
