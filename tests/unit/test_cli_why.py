"""imagegen why and imagegen matrix, over the shipped rules and metadata, which need neither a lock nor a network."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path

import pytest

from imagegen import matrix
from tests.unit.matrix_samples import SHIPPED
from tests.unit.test_cli import Run, run  # noqa: F401 - a fixture

ASKED = ("torch==2.9.1", "vllm==0.11.0", "cuda==12.8", "gpu==sm_120", "python==3.12")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_why_says_no_with_reason_source_date_and_what_works(run: Run) -> None:  # noqa: F811
    ended = run("why", *ASKED)
    assert (ended.code, ended.err) == (1, "")
    first, *lines = ended.out.splitlines()
    assert first == f"incompatible: {', '.join(ASKED)}"
    assert "error: torch 2.9.1, vllm 0.11.0" in lines
    assert "  because: vllm 0.11.0 requires torch==2.8.0. [pypi:vllm-0.11.0:torch]" in lines
    assert any(line.startswith("  source: PyPI metadata of vllm 0.11.0 (documented, 20") for line in lines)
    offered = lines[lines.index("nearest that works:") + 1 :]
    assert offered[0].startswith("  torch==2.8.0: imagegen why torch==2.8.0 vllm==0.11.0")


def test_what_is_offered_can_be_pasted_and_works(run: Run) -> None:  # noqa: F811
    for asked in (ASKED, ("blackwell-vllm", "--set", "vllm=0.12.0")):
        found = json.loads(run("why", *asked, "--json").out)
        assert set(found) == {"verdict", "conflicts", "nearest", "unknown"}
        assert found["verdict"] == "incompatible"
        for conflict in found["conflicts"]:
            assert {"rule", "components", "reason", "source", "fix"} <= set(conflict)
        assert found["nearest"]
        for each in found["nearest"]:
            program, *arguments = shlex.split(each["command"])
            assert program == "imagegen"
            assert run(*arguments).code == 0


def test_why_says_yes_or_that_it_does_not_know(run: Run) -> None:  # noqa: F811
    works = run("why", "torch==2.8.0", *ASKED[1:], "--json")
    assert (works.code, json.loads(works.out)["verdict"]) == (0, "compatible")
    unknown = run("why", "vllm==99.0")
    assert unknown.code == 2
    assert unknown.out.startswith("unknown: vllm==99.0\nnot known: vllm 99.0: no such release is known here")


def test_why_refuses_what_it_does_not_understand(run: Run) -> None:  # noqa: F811
    ended = run("why", "troch==2.9.1")
    assert (ended.code, ended.out) == (64, "")
    assert ended.err == 'usage: there is no component "troch"\n  fix: did you mean "torch"?\n'
    assert run("why").code == 64
    assert run("why", "torch==x").code == 64


def test_matrix_shows_every_cell(run: Run) -> None:  # noqa: F811
    cells = json.loads(run("matrix", "--json").out)
    shipped = matrix.load([SHIPPED])
    assert {each["cell"] for each in cells} == {*(cell.id for cell in shipped.all_cells), "odd-cpu-py311"}
    for each in cells:
        assert (each["works"] is True) == (not each["reason"])
        assert each["fit"] <= each["of"]
    (flagship,) = json.loads(run("matrix", "blackwell-vllm", "--json").out)
    assert flagship["works"] is True
    assert "0.24.0" in flagship["versions"]["vllm"]
    lines = run("matrix", "blackwell-vllm*").out.splitlines()
    assert lines[0].split() == ["cell", "works", "fit", "of", "with", "why"]
    assert len(lines) == 1 + sum(each["cell"].startswith("blackwell-vllm") for each in cells)
    assert run("matrix", "nothing*").code == 64


def test_rules_that_contradict_each_other_end_every_command(run: Run, tmp_path: Path) -> None:  # noqa: F811
    rule = 'because: b, source: s, date: "2026-11-20", severity: error, evidence: measured, fix: f'
    text = f'rules:\n  high: {{when: {{peft: ""}}, then: {{trl: ">=1"}}, {rule}}}\n'
    text += f'  low: {{when: {{peft: ""}}, then: {{trl: "<1"}}, {rule}}}\n'
    (tmp_path / "matrices" / "rules.yaml").write_text(text)
    ended = run("matrix")
    assert ended.code == 65
    assert f"{tmp_path}/matrices/rules.yaml:2:3: the rule high contradicts low" in ended.err
