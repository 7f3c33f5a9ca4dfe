"""The judgement of prime-rl's runs: a sound one passes, each fault is found alone. The runs themselves need a GPU."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import imagegen.checks

sys.path.insert(0, str(Path(imagegen.checks.__file__).parent))  # as in a container, where `smoke` is copied to

from smoke import program
from smoke.checks import prime_trainer
from smoke.table import CHECKS

from tests.support.prime_mutations import EXPECTED, FAULTS

PORTS = prime_trainer.Ports(engine=4000, environment=4010, transport=4020, broadcast=4030)
STEPS = prime_trainer.STEPS


def metrics(number: int, **changed: float) -> dict[str, float]:
    """The metrics of one step, as prime-rl names them."""
    return {
        "step": number,
        "loss/mean": -0.01,
        "optim/grad_norm": 0.3,
        "mismatch_kl/all/mean": 0.0005 if number == 1 else 0.01,
        "mismatch_kl/digits/mean": 9.0,
        "train/agg/effective/agent/reward/mean": 0.4 + 0.02 * number,
        "train/digits/effective/agent/reward/mean": 9.0,
        "off_policy/max": 1.0,
        "time/step": 1.5,
        **changed,
    }


def sound() -> Any:
    answers = [prime_trainer.Answer("3", "ab\x01d", 0.75)]
    return prime_trainer.Run(0, [metrics(number) for number in range(1, STEPS + 1)], answers, 0.2, "the log")


def all_steps(**changed: float) -> Callable[[Any], Any]:
    return lambda run: replace(run, metrics=[metrics(number, **changed) for number in range(1, STEPS + 1)])


def last_step(**changed: float) -> Callable[[Any], Any]:
    return lambda run: replace(run, metrics=[*run.metrics[:-1], metrics(STEPS, **changed)])


def without(name: str) -> Callable[[Any], Any]:
    """A run whose second step lacks a metric: prime-rl does not write numbers that are not finite."""
    return lambda run: replace(
        run,
        metrics=[
            {key: value for key, value in each.items() if key != name or each["step"] != 2} for each in run.metrics
        ],
    )


def answer(**changed: Any) -> Callable[[Any], Any]:
    return lambda run: replace(run, answers=[replace(run.answers[0], **changed)])


FINDINGS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "a crash at the end": (lambda run: replace(run, exit_code=1), {"exit-code"}),
    "a hang": (lambda run: replace(run, exit_code=None), {"exit-code"}),
    "fewer steps": (lambda run: replace(run, metrics=run.metrics[:-1]), {"steps"}),
    "no steps": (lambda run: replace(run, metrics=[]), {"steps", "finite", "gradients", "learns", "weights"}),
    "no loss at one step": (without("loss/mean"), {"steps", "finite", "weights"}),
    "no gradient norm at one step": (without("optim/grad_norm"), {"finite"}),
    "no gradient": (last_step(**{"optim/grad_norm": 0.0}), {"gradients"}),
    "no learning": (all_steps(**{"train/agg/effective/agent/reward/mean": 0.4}), {"learns"}),
    "another arithmetic": (all_steps(**{"mismatch_kl/all/mean": 0.01}), {"weights"}),
    "old weights": (last_step(**{"mismatch_kl/all/mean": 0.5}), {"weights"}),
    "nothing to compare at one step": (without("mismatch_kl/all/mean"), {"weights"}),
    "another reward": (answer(reward=0.5), {"reward"}),
    "a dead reward": (answer(text="\x01", reward=0.0), {"reward"}),
    "another prompt": (answer(prompt="x"), {"reward"}),
    "no answers": (lambda run: replace(run, answers=[]), {"reward"}),
    "no checkpoint": (lambda run: replace(run, learned=None), {"checkpoint"}),
    "the first weights saved": (lambda run: replace(run, learned=0.0), {"checkpoint"}),
}


def test_each_variant_is_a_check() -> None:
    rows = {check.name: check.gpus for check in CHECKS if check.module == "prime_trainer"}
    assert rows == {f"prime-rl-{name}": variant.gpus for name, variant in prime_trainer.VARIANTS.items()}


def test_a_sound_run_passes() -> None:
    details = prime_trainer.judge(sound())
    assert details["reward"][0] == 0.42
    assert len(details["mismatch_kl"]) == STEPS


@pytest.mark.parametrize("fault", FINDINGS)
def test_a_fault_is_found(fault: str) -> None:
    change, expected = FINDINGS[fault]
    with pytest.raises(program.Failed) as caught:
        prime_trainer.judge(change(sound()))
    assert set(caught.value.details["wrong"]) == expected
    assert caught.value.details["log"] == "the log"


@pytest.mark.parametrize("name", prime_trainer.VARIANTS)
def test_the_configuration_is_toml(name: str) -> None:
    variant = prime_trainer.VARIANTS[name]
    found = tomllib.loads(prime_trainer.configuration(Path("/r"), variant, PORTS))
    assert found["max_steps"] == STEPS
    assert found["model"]["name"] == "/r/model"
    assert found["weight_broadcast"]["type"] == variant.broadcast
    assert found["weight_broadcast"].get("port") == (PORTS.broadcast if variant.gpus > 1 else None)
    assert found["inference"]["server"]["port"] == PORTS.engine
    assert found["orchestrator"]["model"]["client"]["base_url"] == f"http://127.0.0.1:{PORTS.engine}/v1"
    assert found["orchestrator"]["batch_size"] % found["orchestrator"]["group_size"] == 0
    [source] = found["orchestrator"]["train"]["source"]
    assert source["env"]["taskset"]["id"] == prime_trainer.TASKSET


def test_the_environment_is_python() -> None:
    classes = [node.name for node in ast.parse(prime_trainer.ENVIRONMENT).body if isinstance(node, ast.ClassDef)]
    assert classes == ["DigitTask", "DigitTaskset", "DigitHarness"]


def test_lines_of_both_processes_are_one_step() -> None:
    rows = [{"step": 2, "loss/mean": 0.5}, {"step": 1, "loss/mean": 1.0}, {"step": 2, "off_policy/max": 1.0}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert prime_trainer.read_metrics(text) == [
        {"step": 1, "loss/mean": 1.0},
        {"step": 2, "loss/mean": 0.5, "off_policy/max": 1.0},
    ]


def test_answers_of_traces(tmp_path: Path) -> None:
    trace = {
        "nodes": [{"message": {"role": "user", "content": "7"}}, {"message": {"role": "assistant", "content": None}}],
        "rewards": {"printable": {"score": 0.5, "weight": 0.5}},
    }
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps({"traces": [trace]}) + "\n", encoding="utf-8")
    assert list(prime_trainer.answers(path)) == [prime_trainer.Answer("7", "", 0.25)]


def test_logs_without_colours(tmp_path: Path) -> None:
    for name, text in {
        "b.log": "\x1b[2m1\x1b[0m\n",
        "envs/train/a.log": "2\n",
        "trainer/torchrun/0/c.log": "3\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert list(prime_trainer.log_tails(tmp_path)) == ["b.log:", "1", "envs/train/a.log:", "2"]


def test_each_mutation_expects_what_a_run_can_show() -> None:
    assert set(FAULTS) | {"none", "dead-reward"} == set(EXPECTED)
    known = set().union(*(expected for _, expected in FINDINGS.values()))
    assert set().union(*EXPECTED.values()) <= known
    for name, source in FAULTS.items():
        ast.parse(source, filename=name)


def test_an_answer_without_text_has_no_content() -> None:
    question, empty = {"role": "user", "content": "4"}, {"role": "assistant"}  # as verifiers 0.3.1 writes it
    nodes = [{"message": question}, {"message": empty}]
    trace = {"nodes": nodes, "rewards": {"printable": {"score": 0.0, "weight": 1.0}}}
    assert prime_trainer.answer_of(trace) == prime_trainer.Answer("4", "", 0.0)
