"""The judgement of verl's runs: a sound one passes, and each fault is found alone. The runs themselves need a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import imagegen.checks

sys.path.insert(0, str(Path(imagegen.checks.__file__).parent))  # as in a container, where `suite` is copied to

from smoke import program
from smoke.checks import verl_trainer
from smoke.table import CHECKS

VARIANT = verl_trainer.Variant(steps=4, rise=0.09)


def metrics(number: int, **changed: float | None) -> dict[str, float | None]:
    """The metrics of one step, as verl 0.9 names them; values as measured on an H200."""
    return {
        "critic/score/mean": 0.4 + 0.05 * number,
        "actor/grad_norm": 0.9,
        "actor/pg_loss": 0.01,
        "training/rollout_actor_probs_pearson_corr": 0.99997,
        "training/rollout_probs_diff_mean": 0.002,
        "timing_s/step": 5.1,
        **changed,
    }


def sound() -> Any:
    answers = [{"input": verl_trainer.expected_text("3"), "output": "ab\x01d", "score": 0.75}]
    return verl_trainer.Run(0, [metrics(number) for number in range(4)], answers, 0.2, "the log")


def all_steps(**changed: float) -> Callable[[Any], Any]:
    return lambda run: replace(run, metrics=[metrics(number, **changed) for number in range(4)])


def answer(**changed: Any) -> Callable[[Any], Any]:
    return lambda run: replace(run, answers=[{**run.answers[0], **changed}])


FAULTS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "a crash at the end": (lambda run: replace(run, exit_code=1), {"exit-code"}),
    "a hang": (lambda run: replace(run, exit_code=None), {"exit-code"}),
    "fewer steps": (lambda run: replace(run, metrics=run.metrics[:3]), {"steps"}),
    "no steps": (
        lambda run: replace(run, metrics=[]),
        {"steps", "finite", "gradients", "learns", "weights"},
    ),
    "a loss that is no number": (all_steps(**{"actor/pg_loss": float("nan")}), {"finite"}),
    "no gradient": (all_steps(**{"actor/grad_norm": 0.0}), {"gradients"}),
    "no learning": (all_steps(**{"critic/score/mean": 0.4}), {"learns"}),
    "old weights": (all_steps(**{"training/rollout_actor_probs_pearson_corr": 0.9}), {"weights"}),
    "other weights": (all_steps(**{"training/rollout_probs_diff_mean": 0.1}), {"weights"}),
    "nothing to compare": (all_steps(**{"training/rollout_probs_diff_mean": float("nan")}), {"weights"}),
    "no number at one step": (
        lambda run: replace(
            run, metrics=[metrics(n, **{"training/rollout_probs_diff_mean": None} if n == 2 else {}) for n in range(4)]
        ),
        {"weights"},
    ),
    "not compared at one step": (
        lambda run: replace(
            run,
            metrics=[
                *run.metrics[:3],
                {key: value for key, value in run.metrics[3].items() if key != "training/rollout_probs_diff_mean"},
            ],
        ),
        {"weights"},
    ),
    "another reward": (answer(score=0.5), {"reward"}),
    "a dead reward": (answer(score=0.0), {"reward"}),
    "another template": (answer(input="user\n3\n"), {"template"}),
    "one step without a comparison": (
        lambda run: replace(
            run, metrics=[*run.metrics[:3], metrics(3, **{"training/rollout_probs_diff_mean": float("nan")})]
        ),
        {"weights"},
    ),
    "no answers": (lambda run: replace(run, answers=[]), {"reward", "template"}),
    "no checkpoint": (lambda run: replace(run, learned=None), {"checkpoint"}),
    "the first weights saved": (lambda run: replace(run, learned=0.0), {"checkpoint"}),
}


def test_each_variant_is_a_check() -> None:
    rows = {check.name: check.gpus for check in CHECKS if check.module == "verl_trainer"}
    assert rows == {f"verl-{name}": variant.gpus for name, variant in verl_trainer.VARIANTS.items()}


def test_a_sound_run_passes() -> None:
    details = verl_trainer.judge(sound(), VARIANT)
    assert details["score"] == [0.4, 0.45, 0.5, 0.55]
    assert details["correlation"] == 0.99997


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    change, expected = FAULTS[fault]
    with pytest.raises(program.Failed) as caught:
        verl_trainer.judge(change(sound()), VARIANT)
    assert set(caught.value.details["wrong"]) == expected
    assert caught.value.details["log"] == "the log"


def test_an_adapter_must_have_left_zero() -> None:
    adapter = replace(VARIANT, rise=0.0, adapter=True)
    verl_trainer.judge(replace(sound(), learned=1e-4), adapter)
    with pytest.raises(program.Failed) as caught:
        verl_trainer.judge(replace(sound(), learned=0.0), adapter)
    assert set(caught.value.details["wrong"]) == {"checkpoint"}


def test_a_name_with_a_repeated_prefix_is_the_same_metric() -> None:
    run = sound()
    doubled = [
        {f"actor/{key}" if key == "actor/pg_loss" else key: v for key, v in each.items()} for each in run.metrics
    ]
    verl_trainer.judge(replace(run, metrics=doubled), VARIANT)


def test_lines_end_at_line_feeds_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smoke.engines", SimpleNamespace(ALONE={}))  # it imports torch
    monkeypatch.setattr(verl_trainer.trainer_process, "run_trainer", lambda *_: (0, ""))
    path = tmp_path / "answers" / "1.jsonl"
    path.parent.mkdir()
    path.write_text('{"output": "a\x85b\u2028c"}\n{"output": "d"}\n', encoding="utf-8")
    answers = verl_trainer.run(tmp_path, (), VARIANT).answers
    assert [line["output"] for line in answers] == ["a\x85b\u2028c", "d"]


def test_ray_has_the_cpus_that_verl_reserves() -> None:
    """Too few and verl waits for ever: 3 for each GPU, one each for TransferQueue's controller and storage units."""
    for variant in verl_trainer.VARIANTS.values():
        given = [each.split("=", 1) for each in verl_trainer.arguments(Path("/tmp"), variant, "vllm")]
        values = {key.lstrip("+"): value for key, value in given}
        units = int(values["transfer_queue.backend.SimpleStorage.num_data_storage_units"])
        assert int(values["ray_kwargs.ray_init.num_cpus"]) >= 3 * variant.gpus + 1 + units
