"""One verdict for one cell: of `import`, `why`, `matrix`, `lock` and the report, and of their facts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.app import make_locks
from imagegen.app.import_project import Selection, import_project
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.compat import answer_each, cell_answer, explain, judge
from imagegen.compat.answers import answer
from imagegen.compat.question import Question
from imagegen.core.errors import IncompatibleError, LockError
from imagegen.core.progress import Quiet
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.make.options import LockOptions
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.model import Cell
from tests.support.command_line import Run
from tests.support.errors import raises
from tests.support.shipped_locks import NAMES, shipped_lock

pytestmark = pytest.mark.usefixtures("shared_results")
SAMPLES = sorted((Path(__file__).parents[1] / "golden/import").glob("*.yaml"))
ENV = {"UV_OFFLINE": "1", "HOME": os.devnull}


@cache
def shipped() -> Session:
    return Session(ProjectContext(ENV, Path(os.devnull), Quiet()))


@cache
def cells() -> tuple[Cell, ...]:
    return tuple(cell for cell in shipped().matrix.all_cells if not cell.environments)


@st.composite
def changed_cells(draw: st.DrawFn) -> Cell:
    """Draw a shipped cell, with another known release of up to two of its packages, or a bound on it."""
    cell = draw(st.sampled_from(cells()))
    metadata = shipped().matrices.knowledge.metadata
    known = [entry for entry in cell.requirements if metadata.of(entry.component.package) and not entry.git]
    changed = {}
    for entry in draw(st.lists(st.sampled_from(known), max_size=2, unique_by=lambda entry: entry.component.package)):
        releases = metadata.of(entry.component.package)
        assert releases
        version = draw(st.sampled_from(releases.all)).version
        changed[entry.component.package] = draw(st.sampled_from(["==", "<", ">=", "<="])) + version
    requirements = (
        replace(entry, specifier=changed.get(entry.component.package, entry.specifier)) for entry in cell.requirements
    )
    return replace(cell, requirements=tuple(requirements))


@given(changed_cells())
def test_matrix_and_why_have_one_verdict_on_any_cell(cell: Cell) -> None:
    knowledge, facts = shipped().matrices.knowledge, facts_of_cell(cell)
    explanation = explain(Question({}, facts), knowledge)
    assert answer_each({cell.id: facts}, knowledge)[cell.id] == cell_answer(explanation)
    if judge(knowledge, facts).answer == "incompatible":
        assert explanation.answer == "incompatible"
    if explanation.kind == "breaks":
        with raises("incompatible"):
            shipped().judge.require_acceptable(cell)


def test_scans_bind_every_build_whose_label_a_cell_leaves_open() -> None:
    (cell,) = (cell for cell in cells() if cell.id == "blackwell-vllm-cu128-py311")
    requirements = (
        replace(entry, specifier="==0.0.1") if entry.component.package == "torchcodec" else entry
        for entry in cell.requirements
    )
    facts = facts_of_cell(replace(cell, requirements=tuple(requirements)))
    answer = answer_each({cell.id: facts}, shipped().matrices.knowledge)[cell.id]
    assert answer == cell_answer(explain(Question({}, facts), shipped().matrices.knowledge))
    assert answer.answer == "incompatible"


def test_the_shared_problem_answers_as_one_for_each_cell() -> None:
    knowledge = shipped().matrices.knowledge
    together = shipped().judge.cell_answers(cells())
    sampled = cells()[:: max(1, len(cells()) // 12)]
    assert {cell.id: together[cell.id] for cell in sampled} == {
        cell.id: cell_answer(explain(Question({}, facts_of_cell(cell)), knowledge)) for cell in sampled
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_lock_and_its_cell_have_one_verdict(name: str) -> None:
    cell = next((cell for cell in cells() if cell.id == name), None)
    if cell is None:
        pytest.skip("it has several environments, each of which has a lock")
    verdict = shipped().judge.verdict(facts_of_lock(shipped_lock(name), cell))
    assert (verdict.answer == "incompatible") is (shipped().judge.cell_answers([cell])[name].answer == "incompatible")


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_has_one_verdict(path: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    (tmp_path / "matrices" / path.name).write_text(path.read_text())
    if "stack:" in path.read_text():
        (tmp_path / "uv.lock").write_text(uv_lock(numpy="2.3.5"))
    (row,) = json.loads(run("matrix", "my-rl*", "--json").out)
    found = json.loads(run("why", row["cell"], "--json").out)
    assert (row["rules"], row["state"]) == (found["verdict"], found["state"]["state"])


def uv_lock(manifest: str = "", requires: str = "", **versions: str) -> str:
    """Return a uv.lock of a project that requires these packages; `requires` names the first ones' requirements."""
    names = [name.replace("_", "-") for name in versions]
    listed = ", ".join(f'{{ name = "{name}" }}' for name in names)
    packages = [
        f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = "https://i.example/simple" }}\n'
        for name, version in zip(names, versions.values(), strict=True)
    ]
    own = f'[[package]]\nname = "app"\nversion = "0.1"\nsource = {{ virtual = "." }}\ndependencies = [{listed}]\n'
    return f'version = 1\nrequires-python = ">=3.11"\n{manifest}\n{own}{"".join(packages)}'


def verdicts(run: Run, tmp_path: Path, file: str, text: str, *options: str) -> dict[str, Any]:
    """Import a file, and return the verdicts of all commands on the image."""
    (tmp_path / file).write_text(text)
    imported = run("import", str(tmp_path / file), "--name", "mine", "--json", *options)
    assert imported.code == 0, imported.err
    cell = json.loads(imported.out)["cell"]
    found = json.loads(run("why", cell, "--json").out)
    (row,) = json.loads(run("matrix", cell, "--json").out)
    (listed,) = json.loads(run("list", "mine", "--json").out)
    session = Session(ProjectContext({**ENV, "XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path, Quiet()))
    try:
        session.judge.require_acceptable(session.matrix.select_one(cell))
        locks = True
    except IncompatibleError:
        locks = False
    states = {"incompatible": "conflict", "unknown": "unknown", "compatible": "no known conflict"}
    verdict = json.loads(imported.out)["answer"]
    assert (found["verdict"], row["rules"], row["state"], listed["state"]) == (verdict, verdict, *[states[verdict]] * 2)
    return {"verdict": verdict, "locks": locks, "kind": found["kind"]}


OVERRIDES = [
    '[manifest]\noverrides = [{ name = "xformers", specifier = "==0.0.29.post3" }]\n',
    '[manifest]\noverrides = [{ name = "xformers" }]\n',
    '[manifest]\noverrides = [{ name = "xformers", marker = "sys_platform == \'never\'" }]\n',
]


@pytest.mark.parametrize("manifest", ["", *OVERRIDES])
def test_an_override_of_the_manifest_of_a_uv_lock_counts_everywhere(
    manifest: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    text = uv_lock(manifest, vllm="0.8.5.post1", torch="2.6.0", xformers="0.0.29.post3")
    found = verdicts(run, tmp_path, "uv.lock", text)
    expected = ("compatible", True) if manifest else ("incompatible", False)
    assert (found["verdict"], found["locks"]) == expected


@pytest.mark.parametrize(
    ("text", "verdict", "locks"),
    [
        (uv_lock(torch="2.13.0+cpu"), "compatible", True),
        (uv_lock(torch="2.13.0+cpu", no_metadata_here="1.0"), "compatible", True),
        (uv_lock(vllm="0.11.0", torch="2.9.1"), "incompatible", False),
    ],
)
def test_a_lock_file_has_one_verdict(
    text: str, verdict: str, locks: bool, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    found = verdicts(run, tmp_path, "uv.lock", text)
    assert (found["verdict"], found["locks"]) == (verdict, locks)


@pytest.mark.parametrize(
    ("text", "verdict", "locks"),
    [
        ("datasets\npyarrow<12\n", "unknown", True),  # datasets before the shipped metadata
        ("vllm<=0.6.3\n", "unknown", True),
        ("trl==0.24.0\nno-metadata-here==1.0\n", "unknown", True),
        ("trl==0.24.0\nno-metadata-here\n", "compatible", True),
        ("trl==0.24.0\ntransformers==4.50.0\n", "incompatible", True),  # pip refuses, so that the resolver ends
        ("torch==2.7.1\ntorchvision==0.21.0\n", "incompatible", None),
    ],
)
def test_requirements_have_one_verdict(
    text: str, verdict: str, locks: bool | None, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    options = () if "==2" in text else ("--cuda", "cu130" if "vllm" in text else "cpu")
    found = verdicts(run, tmp_path, "requirements.txt", text, *options)
    assert found["verdict"] == verdict
    assert found["locks"] is (found["kind"] != "breaks" if locks is None else locks)


@pytest.mark.parametrize("code", ["lock-unresolvable", "lock-sdist-metadata", "lock-no-hash"])
def test_a_resolution_that_fails_has_the_conflict_and_the_proposal_of_why(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LockError("uv failed", code=code, why="uv-reason", fix="uv-fix")

    monkeypatch.setattr(make_locks, "lock_cell", fail)
    session = Session(ProjectContext({**ENV, "XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path, Quiet()))
    (tmp_path / "requirements.txt").write_text("trl==0.24.0\ntransformers==4.50.0\n")
    cell = import_project(session, tmp_path / "requirements.txt", "mine", Selection(cuda="cpu")).cell
    session = Session(ProjectContext({**ENV, "XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path, Quiet()))
    with raises(code) as caught:
        make_locks.resolve_cell(session, cell, None, LockOptions())
    explained = answer(session.matrices, [cell.id])
    error = caught.value
    if code == "lock-no-hash":
        assert (error.why, error.fix) == ("uv-reason", "uv-fix")
    else:
        assert explained.nearest
        assert all(str(conflict) in str(error.why) for conflict in explained.explanation.conflicts[:1])
        assert "uv-reason" in str(error.why)
        assert explained.nearest[0].command in str(error.fix)
