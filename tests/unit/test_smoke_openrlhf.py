"""The judgement of OpenRLHF's run: a sound one passes, and each fault is found alone. The run itself needs a GPU."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import imagegen.checks

sys.path.insert(0, str(Path(imagegen.checks.__file__).parent))  # as in a container, where `suite` is copied to

from smoke import bytelm, program, trainer_process
from smoke.checks import openrlhf_grpo

BATCH = openrlhf_grpo.PROMPTS * openrlhf_grpo.GROUP
Change = Callable[[Any], Any]


def mean(number: int) -> float:
    return (number + 4) / 16


def metrics(number: int, **changed: float) -> dict[str, float]:
    """The metrics of one step, as OpenRLHF 0.10 names them."""
    return {
        "rollout/reward_mean": mean(number),
        "actor_grad_norm": 0.9,
        "policy_loss": 0.01,
        "vllm_kl": 0.001,
        "timing/step_total": 5.1,
        **changed,
    }


def answer(number: int, **changed: Any) -> Any:
    prompt = bytelm.expected_prompt("3")
    text = "a" * (number + 4) + "\x01" * (12 - number) + "<|im_end|>"
    return replace(openrlhf_grpo.Answer(prompt + text, prompt, mean(number)), **changed)


def sound() -> Any:
    steps = range(openrlhf_grpo.STEPS)
    answers = [answer(number) for number in steps for _ in range(BATCH)]
    return openrlhf_grpo.Run(0, [metrics(number) for number in steps], answers, "global_step10", 0.2, "the log")


def all_steps(**changed: float) -> Change:
    return lambda run: replace(run, metrics=[{**each, **changed} for each in run.metrics])


def last_step(**changed: float) -> Change:
    return lambda run: replace(run, metrics=[*run.metrics[:-1], {**run.metrics[-1], **changed}])


def first_answer(**changed: Any) -> Change:
    return lambda run: replace(run, answers=[replace(run.answers[0], **changed), *run.answers[1:]])


def without(name: str) -> Change:
    return lambda run: replace(
        run, metrics=[*run.metrics[:-1], {key: value for key, value in run.metrics[-1].items() if key != name}]
    )


FAULTS: dict[str, tuple[Change, set[str]]] = {
    "a crash at the end": (lambda run: replace(run, exit_code=1), {"exit-code"}),
    "a hang": (lambda run: replace(run, exit_code=None), {"exit-code"}),
    "fewer steps": (lambda run: replace(run, metrics=run.metrics[:9], answers=run.answers[: 9 * BATCH]), {"steps"}),
    "no steps": (
        lambda run: replace(run, metrics=[]),
        {"steps", "finite", "gradients", "learns", "reward", "weights"},
    ),
    "a loss that is no number": (last_step(policy_loss=float("nan")), {"finite"}),
    "a gradient without bounds": (last_step(actor_grad_norm=float("inf")), {"finite"}),
    "no gradient": (all_steps(actor_grad_norm=0.0), {"gradients"}),
    "no learning": (
        lambda run: replace(
            run,
            metrics=[{**each, "rollout/reward_mean": mean(0)} for each in run.metrics],
            answers=[answer(0)] * len(run.answers),
        ),
        {"learns"},
    ),
    "old weights": (last_step(vllm_kl=0.3), {"weights"}),
    "old weights, of the other sign": (last_step(vllm_kl=-0.3), {"weights"}),
    "nothing to compare": (last_step(vllm_kl=float("nan")), {"weights"}),
    "not compared at one step": (without("vllm_kl"), {"weights"}),
    "another reward": (first_answer(reward=0.9), {"reward"}),
    "a reward that did not arrive": (last_step(**{"rollout/reward_mean": 0.9}), {"reward"}),
    "a dead reward": (
        lambda run: replace(run, answers=[replace(each, reward=0.0) for each in run.answers]),
        {"reward"},
    ),
    "another template": (first_answer(prompt="user\n3\n"), {"template", "reward"}),
    "no answers": (lambda run: replace(run, answers=[]), {"reward", "template"}),
    "no state": (lambda run: replace(run, saved=""), {"state"}),
    "an older state": (lambda run: replace(run, saved="global_step5"), {"state"}),
    "no final model": (lambda run: replace(run, learned=None), {"checkpoint"}),
    "the first weights saved": (lambda run: replace(run, learned=0.0), {"checkpoint"}),
}


def test_a_sound_run_passes() -> None:
    details = openrlhf_grpo.judge(sound())
    assert details["score"][:3] == [0.25, 0.3125, 0.375]
    assert details["difference"] == [0.001] * openrlhf_grpo.STEPS


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    change, expected = FAULTS[fault]
    with pytest.raises(program.Failed) as caught:
        openrlhf_grpo.judge(change(sound()))
    assert set(caught.value.details["wrong"]) == expected
    assert caught.value.details["log"] == "the log"


def test_each_batch_is_one_optimizer_step_and_the_prompts_last_for_all() -> None:
    argv = openrlhf_grpo.arguments(Path("/root"))
    values = dict(itertools.pairwise(argv))
    assert int(values["--train.batch_size"]) == BATCH
    assert int(values["--rollout.batch_size"]) * int(values["--rollout.n_samples_per_prompt"]) == BATCH
    assert BATCH % int(values["--train.micro_batch_size"]) == 0
    assert int(values["--ckpt.save_steps"]) == openrlhf_grpo.STEPS
    longest = len(bytelm.expected_prompt("0")) + int(values["--rollout.max_new_tokens"])
    assert longest <= int(values["--data.max_len"])


def test_the_reward_function_writes_what_the_check_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(tensor=list))
    path = tmp_path / "reward.py"
    module: dict[str, Any] = {"__file__": str(path)}
    exec(compile(openrlhf_grpo.REWARD, path, "exec"), module)  # as OpenRLHF loads it
    prompt = bytelm.expected_prompt("7")
    queries = [prompt + text for text in ("ab\x01d<|im_end|>", "\u2028\x85", "")]
    result = module["reward_func"](queries, [prompt] * 3, ["", "", ""])
    found = openrlhf_grpo.read_answers((tmp_path / "answers.jsonl").read_text(encoding="utf-8"))
    assert result["rewards"] == result["scores"] == [each.reward for each in found] == [0.75, 0.0, 0.0]
    assert [each.query for each in found] == queries
    assert [bytelm.score(bytelm.without_special(each.query[len(each.prompt) :])) for each in found] == [0.75, 0.0, 0.0]


def test_prompts_are_those_that_the_template_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytelm, "write_model", lambda folder, template: None)
    openrlhf_grpo.make_inputs(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert len(rows) == openrlhf_grpo.PROMPTS * openrlhf_grpo.STEPS
    assert {row["prompt"] for row in rows} == set("0123456789")


def test_no_metrics_where_the_trainer_wrote_none(tmp_path: Path) -> None:
    assert openrlhf_grpo.read_metrics(tmp_path / "metrics") == []


def test_the_tails_of_all_logs(tmp_path: Path) -> None:
    (tmp_path / "worker-1.err").write_text("".join(f"line {number}\n" for number in range(100)))
    (tmp_path / "worker-2.out").write_text("")
    (tmp_path / "raylet.out").write_text("ray\n")
    (tmp_path / "dashboard.log").write_text("noise\n")
    lines = trainer_process.log_tails(tmp_path, 40).splitlines()
    assert lines == ["worker-1.err:", *(f"line {number}" for number in range(60, 100)), "raylet.out:", "ray"]
