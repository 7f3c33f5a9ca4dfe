"""imagegen why: can this work, why not, and what does."""

from __future__ import annotations

from typing import Any

import click

from imagegen import compat
from imagegen.cli.app import App, pass_app
from imagegen.compat import Explanation, Near, Question
from imagegen.matrix import metadata
from imagegen.text import shown

_CODES = {"compatible": 0, "incompatible": 1, "unknown": 2}


@click.command("why")
@click.argument("words", nargs=-1, metavar="[CELL | NAME==VERSION]...")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VERSION", help="Change a version of the cell, or what it runs on."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def command(app: App, *, words: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> int:
    """Say whether a combination can work: exit code 0 yes, 1 no, 2 not known.

    Name versions (torch==2.9.1 'vllm>=0.11,<0.13') and what they run on (gpu==sm_120, H100, cuda==12.8, cu128,
    python==3.12, driver==580, base==ubuntu22.04); what is not named is free. Or name a cell.
    """
    vocabulary = compat.Vocabulary.of(app.matrix, metadata.names(app.directories))
    question = compat.ask(words, sets, app.matrix, vocabulary)
    explanation = compat.explain(question, app.matrix.rules, app.library)
    near: tuple[Near, ...] = ()
    if explanation.answer != "compatible":
        near = compat.nearby(question, app.matrix.rules, app.library, compat.Surroundings.of(app.matrix))
    if as_json:
        app.json(_as_dict(question, explanation, near))
    else:
        click.echo(shown(_as_text(question, explanation, near)))
    return _CODES[explanation.answer]


def _as_dict(question: Question, explanation: Explanation, near: tuple[Near, ...]) -> dict[str, Any]:
    return {
        "verdict": explanation.answer,
        "conflicts": [
            {
                "rule": rule.id,
                "components": dict(conflict.facts),
                "reason": rule.because,
                "source": rule.source,
                "date": rule.date,
                "evidence": rule.evidence,
                "severity": conflict.weight,
                "fix": rule.fix,
                "conflict": number,  # rules of one number forbid the combination together
            }
            for number, conflict in enumerate(explanation.conflicts, 1)
            for rule in conflict.rules
        ],
        "unknown": list(explanation.unknown),
        "nearest": [{"changes": dict(each.changes), "command": question.command(each.changes)} for each in near],
    }


def _as_text(question: Question, explanation: Explanation, near: tuple[Near, ...]) -> str:
    asked = ", ".join(f"{name}{specifier}" for name, specifier in question.asked.items())
    about = f"{question.cell.id}{f' with {asked}' if asked else ''}" if question.cell else asked
    lines = [f"{explanation.answer}: {about}"]
    lines += [str(conflict) for conflict in explanation.conflicts]
    lines += [f"not known: {sentence}" for sentence in explanation.unknown]
    if near:
        lines.append("nearest that works:")
        lines += [f"  {each.text}: {question.command(each.changes)}" for each in near]
    return "\n".join(lines)
