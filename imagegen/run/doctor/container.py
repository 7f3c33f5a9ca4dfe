"""A container that runs, or has ended: the checks from inside, how it ended, and what its log is known to mean."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from imagegen.core.errors import ContainerError
from imagegen.image.layers.image import LABEL
from imagegen.image.layers.support import ROOT
from imagegen.incontainer.preflight.model import SEVERITIES, Finding
from imagegen.incontainer.preflight.table import Row
from imagegen.plan.matrix.models import Models
from imagegen.run.doctor import messages
from imagegen.run.doctor.diagnosis import Diagnosis
from imagegen.run.engine import ContainerInfo, Engine, signal_name

_ENDING = "it runs, or has ended well"
_LOG = "its log has no message that is known to mean something else"


def examine_container(engine: Engine, name: str, models: Models) -> Diagnosis:
    """Examine the container called `name`, or with that id; `models` are for messages about model types.

    Raises EngineError when there is none, or the engine fails.
    """
    visit = engine.visit(name)
    findings = [*ending(visit), *messages.explain(visit.log, models)]
    inner: list[Row] = []
    machine: dict[str, Any] = {}
    if visit.running:
        try:
            inside = parse(engine.exec_in(name, [f"{ROOT}/doctor", "--json"]))
        except ContainerError:  # it has ended just now
            inside = None
        if inside is None:
            text = f"there is no {ROOT}/doctor in it that answers, so it could be looked at from outside alone"
            findings.append(Finding("ending", "note", text, "images that imagegen builds have one"))
        else:
            found, inner, machine = inside
            findings += found
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    cell = visit.labels.get(f"{LABEL}cell")
    rows = (_row("ending", _ENDING, findings), _row("log", _LOG, findings), *inner)
    return Diagnosis(f"container {name}", cell, _summary(visit, cell), rows, tuple(findings), machine)


def ending(visit: ContainerInfo) -> list[Finding]:
    """Return findings about the exit code. A run that ended well without output is not verified."""
    if visit.running:
        return []
    killed = signal_name(visit.exit_code)
    if visit.out_of_memory:
        text = "the kernel killed it for want of memory"
        return [Finding("ending", "error", text, "give it more (`docker run --memory`), or let the run take less")]
    if killed:
        text = f"it was killed by {killed} (exit code {visit.exit_code})"
        fix = "what it said last stands in `docker logs`; PYTHONFAULTHANDLER=1 shows where Python was"
        return [Finding("ending", "note" if killed in ("SIGTERM", "SIGINT") else "error", text, fix)]
    if visit.exit_code:
        text = f"it ended with exit code {visit.exit_code}"
        return [Finding("ending", "error", text, "what it said last stands in `docker logs`")]
    if not visit.log.strip():
        text = "it ended with exit code 0 and has said nothing: nothing shows that it did anything"
        return [
            Finding("ending", "warning", text, "see that the command is the one that was meant, and waits for its work")
        ]
    return []


def _row(name: str, sees: str, findings: Iterable[Finding]) -> Row:
    return Row(name, next((each.severity for each in findings if each.check == name), "ok"), sees)


def parse(stdout: bytes) -> tuple[list[Finding], list[Row], dict[str, Any]] | None:
    """Findings, rows and facts that the doctor in a container gave; None for anything else. It is not trusted."""
    try:
        answer = json.loads(stdout)
        found = [Finding(*(str(each[key]) for key in Finding._fields)) for each in answer["findings"]]
        rows = [Row(*(str(each[key]) for key in Row._fields)) for each in answer["checks"]]
        machine = dict(answer["machine"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (found, rows, machine) if all(each.severity in SEVERITIES for each in found) else None


def _summary(visit: ContainerInfo, cell: str | None) -> str:
    state = "running" if visit.running else f"ended, exit code {visit.exit_code}"
    return f"{cell or 'an image that imagegen did not build'}, {state}"
