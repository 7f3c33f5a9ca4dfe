"""Diagnose a container that runs or has ended: its checks, its exit code and the known messages of its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from imagegen.checks.preflight.model import SEVERITIES, Finding
from imagegen.checks.preflight.table import Row
from imagegen.compat.models import Models
from imagegen.compat.rule import Rule
from imagegen.core.data import parse_json
from imagegen.core.errors import ContainerError
from imagegen.core.text import counted
from imagegen.engine import ContainerInfo, Engine, signal_name
from imagegen.image.layers.image_config import LABEL
from imagegen.image.layers.support import ROOT
from imagegen.run.doctor.diagnosis import Diagnosis
from imagegen.run.doctor.log import UNKNOWN, explain_log, unexplained
from imagegen.run.doctor.symbols import SYMBOLS

_ENDING = "it runs, or has ended well"
_LOG = "its log has no message that is known to mean something else"


def examine_container(engine: Engine, name: str, models: Models, rules: Sequence[Rule] = ()) -> Diagnosis:
    """Examine a container by name or id; `models` and `rules` explain messages in its log.

    Raises EngineError if there is no such container, or if the engine fails.
    """
    container = engine.inspect_container(name)
    findings = check_ending(container)
    about_log = explain_log(container.log, models, rules)
    if about_log[0].severity != UNKNOWN or unexplained(container.log, models, rules):  # a log without a fault is silent
        findings += about_log
    inner: list[Row] = []
    machine: dict[str, Any] = {}
    if container.running:
        try:
            inside = parse(engine.exec_in(name, [f"{ROOT}/doctor", "--json"]))
        except ContainerError:  # the container has ended just now
            inside = None
        if inside is None:
            text = f"{ROOT}/doctor does not answer in the container, so only its state and log were checked"
            findings.append(Finding("ending", "note", text, "images that imagegen builds have one"))
        else:
            inner_findings, inner, machine = inside
            findings += inner_findings
    findings.sort(key=lambda finding: (*SEVERITIES, UNKNOWN).index(finding.severity))
    cell = container.labels.get(f"{LABEL}cell")
    rows = (_row("ending", _ENDING, findings), _row("log", _LOG, findings), *inner)
    return Diagnosis(f"container {name}", cell, _summary(container, cell), rows, tuple(findings), machine)


def examine_log(
    where: str,
    log: str,
    models: Models,
    machine: str | None = None,
    *,
    rules: Sequence[Rule] = (),
    packages: AbstractSet[str] = frozenset(),
) -> Diagnosis:
    """Explain a log or a traceback called `where`; the other parameters are as in `explain_log`."""
    findings = explain_log(log, models, rules, packages, machine)
    rows = [_row("log", _LOG, findings)]
    if any(finding.check == SYMBOLS for finding in findings):
        rows.append(_row(SYMBOLS, "", findings))
    number = sum(finding.severity == "error" for finding in findings)
    unknown = any(finding.severity == UNKNOWN for finding in findings)
    summary = counted(number, "explanation") + (", and a part without explanation" if unknown else "")
    return Diagnosis(where, None, summary if number else "not known", tuple(rows), tuple(findings))


def check_ending(container: ContainerInfo) -> list[Finding]:
    """Return findings about the exit code. A run that ended well without output is not verified."""
    if container.running:
        return []
    killed = signal_name(container.exit_code)
    if container.out_of_memory:
        text = "the kernel killed it: out of memory"
        return [Finding("ending", "error", text, "give it more (`docker run --memory`), or let the run take less")]
    if killed:
        text = f"it was killed by {killed} (exit code {container.exit_code})"
        fix = "`docker logs` shows its last output; PYTHONFAULTHANDLER=1 shows where Python was"
        return [Finding("ending", "note" if killed in ("SIGTERM", "SIGINT") else "error", text, fix)]
    if container.exit_code:
        text = f"it ended with exit code {container.exit_code}"
        return [Finding("ending", "error", text, "`docker logs` shows its last output")]
    if not container.log.strip():
        text = "it ended with exit code 0 and no output: nothing shows that it did anything"
        return [
            Finding("ending", "warning", text, "check that the command is the intended one, and waits for its work")
        ]
    return []


def _row(name: str, sees: str, findings: Iterable[Finding]) -> Row:
    return Row(name, next((finding.severity for finding in findings if finding.check == name), "ok"), sees)


def parse(stdout: bytes) -> tuple[list[Finding], list[Row], dict[str, Any]] | None:
    """Return findings, rows and facts of the doctor in a container; None for other output, which is not trusted."""
    try:
        answer = parse_json(stdout)
        findings = [Finding(*(str(fields[key]) for key in Finding._fields)) for fields in answer["findings"]]
        rows = [Row(*(str(fields[key]) for key in Row._fields)) for fields in answer["checks"]]
        machine = dict(answer["machine"])
    except (ValueError, TypeError, KeyError):
        return None
    return (findings, rows, machine) if all(finding.severity in SEVERITIES for finding in findings) else None


def _summary(container: ContainerInfo, cell: str | None) -> str:
    state = "running" if container.running else f"ended, exit code {container.exit_code}"
    return f"{cell or 'an image that imagegen did not build'}, {state}"
