"""An answer as text and as a document for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from imagegen.compat.answers import QuestionAnswer, WorkingCombination
from imagegen.compat.verdict import Answer, kind_in_words

if TYPE_CHECKING:
    from imagegen.wheels.compiling import NeededBuild

_NAMES: dict[Answer, str] = {"compatible": "no known conflict", "incompatible": "conflict", "unknown": "unknown"}


def as_text(answer: QuestionAnswer, state: tuple[str, str] | None = None) -> str:
    """Return the verdict, then each reason as a block, then suggestions.

    `state` is the name of the state of the question's cell, and why the cell has it.
    """
    question, explanation, nearest = answer.question, answer.explanation, answer.nearest
    blocks = [_verdict(answer, state)]
    if question.assumed:
        blocks.append("\n".join(f"assumed: {sentence}" for sentence in question.assumed))
    for number, conflict in enumerate(explanation.conflicts, 1):
        blocks.append(f"{number}. {conflict}".replace("\n", "\n "))  # below the text, not below its number
    if explanation.unknown:
        lines = [f"not known: {sentence}" for sentence in explanation.unknown]
        if question.unknown and explanation.rest and explanation.answer == "unknown":
            lines.append(f"the rest: {_NAMES[explanation.rest]}")
        blocks.append("\n".join(lines))
    if answer.witness:
        versions = ", ".join(f"{name} {version}" for name, version in answer.witness.versions.items())
        blocks.append(f"for example {versions}: {', '.join(answer.witness.images)}")
    blocks.append(_examined(answer))
    if nearest:
        blocks.append("\n".join(["Try:", *map(_nearest_in_words, nearest)]))
    return "\n\n".join(filter(None, blocks))


def _verdict(answer: QuestionAnswer, state: tuple[str, str] | None) -> str:
    question, explanation = answer.question, answer.explanation
    requested = ", ".join(question.words())
    subject = question.cell.id if question.cell else question.file.path if question.file else ""
    about = f"{subject}{f' with {requested}' if requested else ''}" if subject else requested
    if state and explanation.answer == "compatible":
        return f"{state[0]}: {about}\n  {state[1]}"
    if explanation.overridden_by:
        return f"pip refuses, overridden by {', '.join(explanation.overridden_by)}: {about}"
    kind = explanation.kind if explanation.kind != explanation.answer else None
    words = f" ({kind_in_words(kind)})" if kind else ""
    return f"{_NAMES[explanation.answer]}{words}: {about}"  # the blocks that follow say why


def _examined(answer: QuestionAnswer) -> str:
    """Return one line for all packages about which the same was read; none about a cell or a file, which have many."""
    if answer.question.cell or answer.question.file:
        return ""
    names: dict[str, list[str]] = {}
    for name, data in answer.examined.items():
        names.setdefault(", ".join(data) or "nothing", []).append(name)
    return "\n".join(f"examined: {data} of {', '.join(packages)}" for data, packages in names.items())


def _nearest_in_words(combination: WorkingCombination) -> str:
    changes = ", ".join(f"{name}{specifier}" for name, specifier in sorted(combination.changes.items()))
    builds = (f"    {_compiling(build)}" for build in combination.builds)
    return "\n".join([f"  {changes}: {combination.command}", *builds])


def _compiling(build: NeededBuild) -> str:
    from imagegen.wheels.throttle import CORES, duration, estimate  # late: most answers need no build

    seconds = estimate(build.work)
    time = f", about {duration(seconds)} on {CORES} cores" if seconds else ""
    return f"compiles {build.component} {build.version}: about {duration(build.work.seconds)} on one core{time}"


def as_dict(answer: QuestionAnswer, state: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return the document of an answer; `state` is as for `as_text`."""
    question, explanation, nearest = answer.question, answer.explanation, answer.nearest
    return {
        "question": {
            "cell": question.cell and question.cell.id,
            "requested": question.specifiers,
            "extras": {name: sorted(extras) for name, extras in question.facts.extras.items()},
            "platform": question.facts.names.get("platform"),
        },
        "verdict": explanation.answer,
        "kind": explanation.kind,  # null if nothing speaks against the combination
        "overridden_by": list(explanation.overridden_by),
        "rest": explanation.rest,  # the verdict without the unknown names; null if nothing else is asked about
        "state": {"state": state[0], "reason": state[1]} if state else None,  # of the question's cell
        "conflicts": [
            {
                "rule": rule.id,
                "components": dict(conflict.facts),
                "reason": rule.because,
                "source": rule.source,
                "date": rule.date,
                "evidence": rule.evidence,
                "severity": conflict.severity,
                "kind": "unknown" if conflict.severity == "suspicion" else rule.kind,
                "message": rule.message or None,
                "fix": rule.fix,
                "override": conflict.override or None,
                "overridden_by": [
                    {"project": project.project, "how": project.how, "source": project.source, "date": project.date}
                    for project in conflict.overridden_by
                ],
                "conflict": number,  # rules of one number forbid the combination together
            }
            for number, conflict in enumerate(explanation.conflicts, 1)
            for rule in conflict.rules
        ],
        "unknown": list(explanation.unknown),
        "examined": {name: list(data) for name, data in answer.examined.items()},
        "witness": answer.witness and {"versions": answer.witness.versions, "images": answer.witness.images},
        "assumed": list(question.assumed),
        "unknown_names": [{"name": unknown.name, "suggestion": unknown.suggestion} for unknown in question.unknown],
        "nearest": [
            {
                "changes": combination.changes,
                "command": combination.command,
                "builds": [
                    {"component": build.component, "version": build.version, "core_seconds": round(build.work.seconds)}
                    for build in combination.builds
                ],
            }
            for combination in nearest
        ],
    }
