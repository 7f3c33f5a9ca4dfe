"""imagegen why: whether a combination or a cell can work, why not, and what does."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from imagegen.app.states import MEANINGS
from imagegen.app.why import WhyAnswer, answer_by_environment
from imagegen.cli.app import App, pass_app
from imagegen.compat.answer_text import as_dict, as_text
from imagegen.compat.model_types import model_type_summary, one_model_type
from imagegen.compat.verdict import WORST_FIRST
from imagegen.core.errors import OptionConflictError
from imagegen.core.text import shown


@click.command("why")
@click.argument("words", nargs=-1, metavar="[CELL | NAME==VERSION]...")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VERSION", help="Change a version of the cell, or what it runs on."
)
@click.option("--lock", "file", type=click.Path(path_type=Path), metavar="FILE", help="Answer for all pins of a file.")
@click.option("--extra", "extras", multiple=True, metavar="NAME", help="An extra of the project of FILE.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A dependency group of the project of FILE.")
@click.option("--target", "stage", metavar="STAGE", default="", help="A stage of a Dockerfile (default is the last).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def command(
    app: App,
    *,
    words: tuple[str, ...],
    sets: tuple[str, ...],
    file: Path | None,
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    stage: str,
    as_json: bool,
) -> int:
    """Explain whether a combination can work: exit code 0 yes, 1 no (pip refuses
    it, or it breaks), 2 unknown.

    Name versions (torch==2.9.1 'vllm>=0.11,<0.13'), the environment (gpu==sm_120, H100, cuda==12.8, cu128,
    py312, driver==580, base==ubuntu22.04, aarch64) and the model type of a checkpoint's config.json (model==qwen3);
    anything else is free. A version without a local label (2.11.0, not 2.11.0+cu128) is PyPI's build. Or name a
    cell. An unknown name makes the answer "unknown" unless the rest conflicts; the package index is asked for names
    and releases that are not known here, unless UV_OFFLINE is set.

    The imports of releases that are pinned together are compared, by the sources in their wheels or sdists on the
    index and by harvested data. What fails in optional parts of a package is an error if these are a tenth of it, or
    a quarter of its modules that import a package that it requires; else it is a warning. A pinned release whose
    files were not read makes the answer "unknown". The last lines say what was examined.

    With --lock, the question is about all packages that FILE installs: a uv.lock, pylock.toml, pyproject.toml,
    requirements.txt, conda's environment.yml or a Dockerfile. Words change its versions, and name the rest of the
    environment. The answer lists the packages that were not examined.

    Each environment of an image is answered as its cell, with the same versions; the worst answer decides.
    """
    # A question's problems hold few cycles, and looking for some takes a tenth of its time (0.82 s of the processor's
    # with it, 0.72 s without: ten runs of one question, 2026-11-25).
    gc.disable()
    click.get_current_context().call_on_close(gc.enable)
    model, words, sets = one_model_type(words, sets)
    models = app.session.matrices.knowledge_files.model_types if model else None
    about = model_type_summary(models, model) if models else ""
    releases = models.first.get(model) if models else None
    if file is None and (extras or groups or stage):
        message = "--extra, --group and --target choose from a file, and none is named"
        raise OptionConflictError(message, fix="add --lock FILE")
    if model and not words and file is None:
        app.json({model: releases}) if as_json else click.echo(shown(about))
        return 2 if releases is None else 0
    notes = [] if releases is None else [about]
    if file:
        from imagegen.app.import_project import Selection  # late, because these import all readers of files
        from imagegen.app.why_file import answer_about_file
        from imagegen.cli.why_file import file_answer_as_dict, file_answer_as_text

        selection = Selection(extras, groups, stage)
        file_answer = answer_about_file(app.session, file, selection, words, sets, model)
        if as_json:
            app.json(file_answer_as_dict(file_answer))
        else:
            click.echo(shown("\n\n".join([file_answer_as_text(file_answer), *notes])))
        return file_answer.answer.exit_code
    answers = answer_by_environment(app.session, words, sets, model)
    if as_json:
        app.json(_as_dicts(answers))
    else:
        texts = [f"{name}: {_as_text(answer)}" if name else _as_text(answer) for name, answer in answers.items()]
        click.echo(shown("\n\n".join([*texts, *notes])))
    codes = {answer.exit_code for answer in answers.values()}
    return 1 if 1 in codes else max(codes)


def _as_dicts(answers: Mapping[str, WhyAnswer]) -> dict[str, Any]:
    """Return the answer as a dict for JSON, with the answers about several environments."""
    if "" in answers:
        return _as_dict(answers[""])
    worst = min((answer.answer.explanation.answer for answer in answers.values()), key=WORST_FIRST.index)
    rows = [
        {"name": name, "cell": answer.answer.question.cell and answer.answer.question.cell.id, **_as_dict(answer)}
        for name, answer in answers.items()
    ]
    return {"verdict": worst, "environments": rows}


def _as_dict(answer: WhyAnswer) -> dict[str, Any]:
    state = answer.state
    return as_dict(answer.answer, (state.name, state.reason) if state else None)


def _as_text(answer: WhyAnswer) -> str:
    if answer.state is None:
        return as_text(answer.answer)
    return as_text(answer.answer, (answer.state.name, answer.state.reason or MEANINGS[answer.state.name]))
