"""imagegen why: whether a combination or a cell can work, why not, and what does."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from imagegen.app.why import WhyAnswer, WorkingCombination, answer_by_environment, split_model_type
from imagegen.cli.app import App, pass_app
from imagegen.compat import Explanation, Question
from imagegen.compat.model_types import model_type_summary
from imagegen.compat.verdict import WORST_FIRST, Answer, kind_in_words
from imagegen.core.text import shown

if TYPE_CHECKING:
    from imagegen.app.states import CellState, StateName
    from imagegen.wheels.compiling import NeededBuild

_NAMES: dict[Answer, StateName] = {"compatible": "no known conflict", "incompatible": "conflict", "unknown": "unknown"}


@click.command("why")
@click.argument("words", nargs=-1, metavar="[CELL | NAME==VERSION]...")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VERSION", help="Change a version of the cell, or what it runs on."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def command(app: App, *, words: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> int:
    """Explain whether a combination can work: exit code 0 yes, 1 no (pip refuses
    it, or it breaks), 2 unknown.

    Name versions (torch==2.9.1 'vllm>=0.11,<0.13'), the environment (gpu==sm_120, H100, cuda==12.8, cu128,
    py312, driver==580, base==ubuntu22.04, aarch64) and the model type of a checkpoint's config.json (model==qwen3);
    anything else is free. A version without a local label (2.11.0, not 2.11.0+cu128) is PyPI's build. Or name a
    cell. An unknown name makes the answer "unknown" unless the rest conflicts; the package index is asked for names
    and releases that are not known here, unless UV_OFFLINE is set.

    Each environment of an image is answered as its cell, with the same versions; the worst answer decides.
    """
    # A question's problems hold few cycles, and looking for some takes a tenth of its time (0.82 s of the processor's
    # with it, 0.72 s without: ten runs of one question, 2026-11-25).
    gc.disable()
    click.get_current_context().call_on_close(gc.enable)
    model, words, sets = split_model_type(words, sets)
    about = model_type_summary(app.session.matrices.model_types, model) if model else ""
    if model and not words:
        app.json({model: app.session.matrices.model_types.first.get(model)}) if as_json else click.echo(shown(about))
        return 0 if model in app.session.matrices.model_types.first else 2
    answers = answer_by_environment(app.session, words, sets, model)
    if as_json:
        app.json(_as_dicts(answers))
    else:
        notes = [about] if about and model in app.session.matrices.model_types.first else []
        texts = [f"{name}: {_as_text(answer)}" if name else _as_text(answer) for name, answer in answers.items()]
        click.echo(shown("\n\n".join([*texts, *notes])))
    codes = {answer.exit_code for answer in answers.values()}
    return 1 if 1 in codes else max(codes)


def _nearest_in_words(combination: WorkingCombination) -> str:
    changes = ", ".join(f"{name}{specifier}" for name, specifier in sorted(combination.changes.items()))
    builds = (f"    {_compiling(build)}" for build in combination.builds)
    return "\n".join([f"  {changes}: {combination.command}", *builds])


def _compiling(build: NeededBuild) -> str:
    from imagegen.compare.difference import CORES, estimate  # late, as above
    from imagegen.wheels.throttle import duration

    seconds = estimate(build.work)
    time = f", about {duration(seconds)} on {CORES} cores" if seconds else ""
    return f"compiles {build.component} {build.version}: about {duration(build.work.seconds)} on one core{time}"


def _as_dicts(answers: Mapping[str, WhyAnswer]) -> dict[str, Any]:
    """Return the answer as a dict for JSON, with the answers about several environments."""
    if "" in answers:
        return _as_dict(answers[""])
    worst = min((answer.explanation.answer for answer in answers.values()), key=WORST_FIRST.index)
    rows = [
        {"name": name, "cell": answer.question.cell and answer.question.cell.id, **_as_dict(answer)}
        for name, answer in answers.items()
    ]
    return {"verdict": worst, "environments": rows}


def _as_dict(answer: WhyAnswer) -> dict[str, Any]:
    question, explanation, state, nearest = answer.question, answer.explanation, answer.state, answer.nearest
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
        "state": {"state": state.name, "reason": state.reason} if state else None,
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


def _as_text(answer: WhyAnswer) -> str:
    """Return the verdict, then each reason as a block, then suggestions."""
    question, explanation, nearest = answer.question, answer.explanation, answer.nearest
    blocks = [_verdict(question, explanation, answer.state)]
    if question.assumed:
        blocks.append("\n".join(f"assumed: {sentence}" for sentence in question.assumed))
    for number, conflict in enumerate(explanation.conflicts, 1):
        blocks.append(f"{number}. {conflict}".replace("\n", "\n "))  # below the text, not below its number
    if explanation.unknown:
        lines = [f"not known: {sentence}" for sentence in explanation.unknown]
        if question.unknown and explanation.rest and explanation.answer == "unknown":
            lines.append(f"the rest: {_NAMES[explanation.rest]}")
        blocks.append("\n".join(lines))
    if nearest:
        blocks.append("\n".join(["Try:", *map(_nearest_in_words, nearest)]))
    return "\n\n".join(blocks)


def _verdict(question: Question, explanation: Explanation, state: CellState | None) -> str:
    requested = ", ".join(question.words())
    about = f"{question.cell.id}{f' with {requested}' if requested else ''}" if question.cell else requested
    if state and explanation.answer == "compatible":
        from imagegen.app.states import MEANINGS  # late, as above

        return f"{state.name}: {about}\n  {state.reason or MEANINGS[state.name]}"
    if explanation.overridden_by:
        return f"pip refuses, overridden by {', '.join(explanation.overridden_by)}: {about}"
    kind = explanation.kind if explanation.kind != explanation.answer else None
    words = f" ({kind_in_words(kind)})" if kind else ""
    return f"{_NAMES[explanation.answer]}{words}: {about}"  # the blocks that follow say why
