"""imagegen why and imagegen matrix, over the shipped rules and metadata, which need neither a lock nor a network."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path

import pytest

from tests.unit.matrix_samples import shipped_matrix
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


def verdict(run: Run, *asked: str) -> tuple[str, list[str], list[dict[str, str]]]:  # noqa: F811
    """The answer, the rules that are told, and the changes that are offered."""
    found = json.loads(run("why", *asked, "--json").out)
    return (
        found["verdict"],
        [each["rule"] for each in found["conflicts"]],
        [each["changes"] for each in found["nearest"]],
    )


def test_a_torch_without_a_build_for_the_gpu_is_refused_though_nobody_named_a_cuda(run: Run) -> None:  # noqa: F811
    """The first builds for CUDA 12.8, which is the first that knows Blackwell, are torch 2.7's."""
    answer, told, offered = verdict(run, "torch==2.6.0", "RTX 5090")
    assert answer == "incompatible"
    assert {"cuda-blackwell", "torch-index-cu128"} <= set(told)
    assert offered == [{"torch": "==2.7.0"}]
    assert verdict(run, "torch==2.7.0", "RTX 5090")[0] == "compatible"
    assert verdict(run, "torch==2.6.0", "H100")[0] == "compatible"
    assert verdict(run, "torch==2.6.0")[0] == "compatible"


@pytest.mark.parametrize("cuda", ["cuda==99", "cuda==12.7", "cu999", "cuda>=14"])
def test_a_cuda_that_nothing_is_built_for_is_unknown(cuda: str, run: Run) -> None:  # noqa: F811
    answer, told, offered = verdict(run, cuda, "torch")
    assert (answer, told) == ("unknown", [])
    assert [set(each) for each in offered] == [{"cuda"}]


def test_a_cuda_that_is_not_known_is_refused_where_that_is_proven(run: Run) -> None:  # noqa: F811
    assert verdict(run, "cuda==12.5", "B200")[:2] == ("incompatible", ["cuda-blackwell"])
    assert verdict(run, "cuda==11.8", "torch==2.6.0")[0] == "compatible"


def test_a_cell_on_another_cuda_is_judged_as_its_wheels_are(run: Run) -> None:  # noqa: F811
    """PyPI's vllm 0.24 needs libcudart.so.13."""
    assert verdict(run, "blackwell-vllm", "--set", "cuda=12.8")[:2] == ("incompatible", ["vllm-pypi-cu13"])


def test_nothing_is_offered_where_gpu_and_driver_do_not_go_together(run: Run) -> None:  # noqa: F811
    answer, told, offered = verdict(run, "torch==2.8.0", "cu128", "driver==550.54.14", "B200")
    assert (answer, told, offered) == ("unknown", ["driver-blackwell"], [])


def test_an_old_sglang_counts_with_its_engine_though_its_metadata_keeps_that_in_an_extra(run: Run) -> None:  # noqa: F811
    assert verdict(run, "sglang==0.4.10.post2", "vllm==0.24.0")[0] == "incompatible"
    assert verdict(run, "sglang==0.4.6.post5", "torch==2.6.0")[0] == "compatible"
    (cell,) = json.loads(run("matrix", "blackwell-sglang-cu130-py311", "--json").out)
    assert "0.4.4" not in cell["versions"]["sglang"]
    assert "0.5.14" in cell["versions"]["sglang"]


def test_a_variable_that_is_to_blame_is_named(run: Run) -> None:  # noqa: F811
    ended = run("why", "vllm==0.12.0", "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert ended.code == 1
    assert "error: env.PYTORCH_CUDA_ALLOC_CONF expandable_segments:True, vllm 0.12.0\n" in ended.out


def test_why_refuses_what_it_does_not_understand(run: Run) -> None:  # noqa: F811
    ended = run("why", "troch==2.9.1")
    assert (ended.code, ended.out) == (64, "")
    assert ended.err == 'usage: there is no component "troch"\n  fix: did you mean "torch"?\n'
    assert run("why").code == 64
    assert run("why", "torch==x").code == 64


def test_matrix_shows_every_cell(run: Run) -> None:  # noqa: F811
    cells = json.loads(run("matrix", "--json").out)
    shipped = shipped_matrix()
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
