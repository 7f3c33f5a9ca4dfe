"""imagegen why: whether a combination or a cell can work, why not, and what does."""

from __future__ import annotations

import datetime as dt
import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from imagegen.cli.app import App, pass_app
from imagegen.core.context import Context
from imagegen.core.errors import UsageError
from imagegen.core.text import shown
from imagegen.plan.matrix.cells import Matrix
from imagegen.plan.rules import (
    CellAnswer,
    Explanation,
    PlatformChoices,
    Question,
    Vocabulary,
    complete,
    complete_names,
    explain,
    missing_metadata,
    parse_question,
    suggest,
)
from imagegen.plan.rules.model_types import model_type_summary, split_model_types
from imagegen.plan.rules.verdict import Answer, kind_in_words

if TYPE_CHECKING:
    from imagegen.app.states import CellState, StateName
    from imagegen.wheels.compiling import NeededBuild

_NAMES: dict[Answer, StateName] = {
    "compatible": "no known conflict",
    "incompatible": "conflict",
    "unknown": "unknown",
}

_WORST_FIRST: tuple[Answer, ...] = ("incompatible", "unknown", "compatible")


class _Way(NamedTuple):
    """A combination that works, with its changes by name, the command that asks about it, and its builds."""

    changes: dict[str, str]
    command: str
    builds: tuple[NeededBuild, ...]

    @property
    def text(self) -> str:
        changes = ", ".join(f"{name}{specifier}" for name, specifier in sorted(self.changes.items()))
        return "\n".join([f"  {changes}: {self.command}", *(f"    {_compiling(build)}" for build in self.builds)])


class _WhyAnswer(NamedTuple):
    question: Question
    explanation: Explanation
    state: CellState | None
    ways: Sequence[_Way]

    @property
    def exit_code(self) -> int:
        if self.explanation.answer == "incompatible" or (self.state and self.state.name == "conflict"):
            return 1
        return 2 if self.explanation.answer == "unknown" else 0


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
    model, words, sets = _model(words, sets)
    about = model_type_summary(app.model_types, model) if model else ""
    if model and not words:
        app.json({model: app.model_types.first.get(model)}) if as_json else click.echo(shown(about))
        return 0 if model in app.model_types.first else 2
    answers = {name: _answer(app, model, asked, sets) for name, asked in _environments(app, words).items()}
    if as_json:
        app.json(_as_dicts(answers))
    else:
        notes = [about] if about and model in app.model_types.first else []
        texts = [
            f"{f'{name}: ' if name else ''}{_as_text(environment_answer)}"
            for name, environment_answer in answers.items()
        ]
        click.echo(shown("\n\n".join([*texts, *notes])))
    codes = {answer.exit_code for answer in answers.values()}
    return 1 if 1 in codes else max(codes)


def _environments(app: App, words: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the words that ask about each environment of the image that they name, by its name.

    Where they name no image with several environments, return them by the name "".
    """
    word_of = {app.matrix.defaults.get(word, word): word for word in words}
    several = (candidate for candidate in app.matrix.all_cells if candidate.environments and candidate.id in word_of)
    if (cell := next(several, None)) is None:
        return {"": words}
    return {
        environment.name: tuple(environment.cell.id if word == word_of[cell.id] else word for word in words)
        for environment in cell.environments
    }


def _answer(app: App, model: str, words: Sequence[str], sets: Sequence[str]) -> _WhyAnswer:
    question = replace(_question(app, words, sets), model=model)
    explanation = explain(question, app.knowledge)
    state = _state(app, question, explanation)
    return _WhyAnswer(question, explanation, state, _ways(app, question, explanation))


def _question(app: App, words: Sequence[str], sets: Sequence[str]) -> Question:
    """Return the question; the index is asked for the packages and releases that are not known here."""
    matrix = _with_locked_versions(app, words)
    parse = partial(parse_question, words, sets, matrix)
    question = complete_names(parse(Vocabulary.of(matrix, sorted(app.harvested))), app.metadata)
    if missing := missing_metadata(question, app.metadata):
        from imagegen.plan.package_index import on_demand  # late, for the network

        context = Context(app.store, app.settings, app.progress)
        packages = on_demand.look_up(missing, context, today(), question.extras)
        for package in packages.values():
            app.metadata.add(package)
        question = complete_names(parse(Vocabulary.of(matrix, [*sorted(app.harvested), *packages])), app.metadata)
    return complete(question, app.knowledge)


def _with_locked_versions(app: App, words: Sequence[str]) -> Matrix:
    """Return the matrix; cells that the words name have the versions of the lock file that is their stack."""
    cell_ids = {app.matrix.defaults.get(word, word) for word in words}
    if not any(cell.stack and cell.id in cell_ids for cell in app.matrix.all_cells):
        return app.matrix
    from imagegen.plan.projects.stack import with_known_versions  # late: few cells have such a file

    return replace(
        app.matrix,
        all_cells=tuple(
            with_known_versions(cell, app.project, app.metadata) if cell.stack and cell.id in cell_ids else cell
            for cell in app.matrix.all_cells
        ),
    )


def today() -> str:
    return str(dt.datetime.now(dt.UTC).date())


def _state(app: App, question: Question, explanation: Explanation) -> CellState | None:
    """Return the state of the cell that is asked about; a changed one has no lock, and on another base none at all."""
    if question.cell is None or "base" in question.requested:
        return None
    cell = app.matrix.select_one(question.cell.id)  # of the matrix, as locks are compared with it
    from imagegen.app import states  # late, for locks, builds and attestations

    reasons = explanation.unknown
    if explanation.answer == "incompatible" or not reasons:
        worst = "error" if explanation.answer == "incompatible" else "suspicion"
        rule_groups = (conflict.rules for conflict in explanation.conflicts if conflict.severity == worst)
        reasons = tuple(rule.because for rules in rule_groups for rule in rules)
    answer = CellAnswer(explanation.answer, " ".join(reasons))
    if question.requested:
        return states.cell_state(answer)
    return states.state(app, cell, answer, states.read_lock(app, cell))


def _model(words: Sequence[str], sets: Sequence[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the model type among the words and `--set` options ("": none), and the rest of each."""
    (in_words, words), (in_sets, sets) = split_model_types(words), split_model_types(sets)
    names = sorted({*in_words, *in_sets})
    if len(names) > 1:
        raise UsageError(
            f"{' and '.join(names)} are several model types", code="usage-several-models", fix="ask about one at a time"
        )
    return names[0] if names else "", tuple(words), tuple(sets)


def _ways(app: App, question: Question, explanation: Explanation) -> Sequence[_Way]:
    """Return the nearest combinations that work; none if the question has a compatible answer.

    Each is judged as a question of its own, so that none is offered whose answer is unknown.
    """
    if explanation.answer == "compatible":
        return []
    ways = []
    for suggestion in suggest(question, app.knowledge, PlatformChoices.of(app.matrix)):
        from imagegen.wheels.compiling import needed_builds  # late, for the readers of wheels

        changed = complete(question.changed(suggestion.changes), app.knowledge)
        if explain(changed, app.knowledge).rest == "compatible":
            builds = tuple(needed_builds(changed, app.matrix, lambda: app.wheel_catalogue))
            ways.append(_Way(dict(suggestion.changes), question.command(suggestion.changes), builds))
    return ways


def _compiling(build: NeededBuild) -> str:
    from imagegen.supply.compare.difference import CORES, estimate  # late, as above
    from imagegen.wheels.throttle import duration

    seconds = estimate(build.work)
    time = f", about {duration(seconds)} on {CORES} cores" if seconds else ""
    return f"compiles {build.component} {build.version}: about {duration(build.work.seconds)} on one core{time}"


def _as_dicts(answers: Mapping[str, _WhyAnswer]) -> dict[str, Any]:
    """Return the answer as a dict for JSON, with the answers about several environments."""
    if "" in answers:
        return _as_dict(answers[""])
    worst = min((answer.explanation.answer for answer in answers.values()), key=_WORST_FIRST.index)
    rows = [
        {
            "name": name,
            "cell": environment_answer.question.cell and environment_answer.question.cell.id,
            **_as_dict(environment_answer),
        }
        for name, environment_answer in answers.items()
    ]
    return {"verdict": worst, "environments": rows}


def _as_dict(answer: _WhyAnswer) -> dict[str, Any]:
    question, explanation, state, ways = answer.question, answer.explanation, answer.state, answer.ways
    return {
        "question": {
            "cell": question.cell and question.cell.id,
            "requested": question.specifiers,
            "extras": {name: sorted(extras) for name, extras in question.extras.items() if extras},
            "platform": question.facts.names.get("platform"),
        },
        "verdict": explanation.answer,
        "kind": explanation.kind,  # null where nothing speaks against the combination
        "overridden_by": list(explanation.overridden_by),
        "rest": explanation.rest,  # the verdict without the unknown names; null where nothing else is asked about
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
                    {
                        "project": pin_override.project,
                        "how": pin_override.how,
                        "source": pin_override.source,
                        "date": pin_override.date,
                    }
                    for pin_override in conflict.overridden_by
                ],
                "conflict": number,  # rules of one number forbid the combination together
            }
            for number, conflict in enumerate(explanation.conflicts, 1)
            for rule in conflict.rules
        ],
        "unknown": list(explanation.unknown),
        "assumed": list(question.assumed),
        "unknown_names": [
            {"name": unknown_name.name, "suggestion": unknown_name.suggestion} for unknown_name in question.unknown
        ],
        "nearest": [
            {
                "changes": way.changes,
                "command": way.command,
                "builds": [
                    {"component": build.component, "version": build.version, "core_seconds": round(build.work.seconds)}
                    for build in way.builds
                ],
            }
            for way in ways
        ],
    }


def _as_text(answer: _WhyAnswer) -> str:
    """Return the verdict, then each reason as a block, then suggestions."""
    question, explanation, ways = answer.question, answer.explanation, answer.ways
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
    if ways:
        blocks.append("\n".join(["Try:", *(way.text for way in ways)]))
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
