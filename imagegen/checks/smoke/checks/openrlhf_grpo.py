"""OpenRLHF's own trainer, `openrlhf.cli.train_ppo_ray`, on a tiny model that is made in place: what its run must show.

A run is a subprocess: OpenRLHF starts Ray, its actors train with DeepSpeed's ZeRO-3 and flash-attn, and vLLM samples on
the same GPU, each asleep while the other works. Prompts and reward are those of `smoke.bytelm`. `run` collects what the
trainer writes, `judge` holds it to what a sound stack shows. Options and metrics are those of openrlhf 0.10.4 on PyPI,
read.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from smoke import bytelm, trainer_process
from smoke.program import Details, Findings, Spec, finite, step

STEPS = 10
PROMPTS, GROUP, ANSWER = 16, 8, 16  # prompts of a batch, answers of each, tokens of an answer at most
RISE = 0.2  # that the mean reward must gain from first to last step
# At most, the mean difference of the sampled tokens' log-probabilities in vLLM and trainer. Measured on H100: 4e-5 to
# 3e-4, and from 0.077 on where the weights do not reach vLLM (docs/internals/measurements.md).
DIFFERENCE = 0.005
TAIL = 40  # last lines of each Ray worker, of a run that failed
TEMPLATE = bytelm.TEMPLATE
REWARD = """\
import json
import pathlib

import torch

ANSWERS = pathlib.Path(__file__).with_name("answers.jsonl")


def reward_func(queries, prompts, labels, **_):
    scores = [score(query, prompt) for query, prompt in zip(queries, prompts)]
    with ANSWERS.open("a", encoding="utf-8") as file:
        for row in zip(queries, prompts, scores):
            file.write(json.dumps(row) + "\\n")
    rewards = torch.tensor(scores)
    return {"rewards": rewards, "scores": rewards}


def score(query, prompt):
    answer = query[len(prompt):]
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        answer = answer.replace(token, "")
    return sum(32 <= ord(char) < 127 for char in answer) / max(1, len(answer))
"""


@dataclass(frozen=True)
class Answer:
    """The input and the result of the reward function: prompt with answer, the prompt, the reward."""

    query: str
    prompt: str
    reward: float


@dataclass(frozen=True)
class Run:
    """The results of a run: exit code (None: past its time), metrics of each step, rewarded answers, end of its output.

    `saved` is the name of the last DeepSpeed checkpoint ("": none). `learned` is how much more probability of a
    printable first character the final model gives than the first one; None: there is no final model.
    """

    exit_code: int | None
    metrics: list[dict[str, float]]
    answers: list[Answer]
    saved: str
    learned: float | None
    log: str


def check(_: Spec) -> Details:
    """Run the trainer, and judge it. Raises Failed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        make_inputs(root)
        found = run(root, arguments(root))
    return judge(found)


def make_inputs(root: Path) -> None:
    """Write model, tokenizer, prompts and reward function below `root`."""
    step("model, tokenizer, prompts")
    bytelm.write_model(root / "model", TEMPLATE)
    rows = (json.dumps({"prompt": str(number % 10)}) + "\n" for number in range(PROMPTS * STEPS))
    (root / "prompts.jsonl").write_text("".join(rows), encoding="utf-8")
    (root / "reward.py").write_text(REWARD, encoding="utf-8")


def arguments(root: Path) -> list[str]:
    """Return the arguments of `python -m openrlhf.cli.train_ppo_ray`: GRPO with everything on one GPU."""
    values = {
        "actor.adam.lr": "1e-3",
        "actor.lr_scheduler": "constant",
        "actor.lr_warmup_ratio": "0",
        "actor.model_name_or_path": f"{root}/model",
        "actor.num_gpus_per_node": "1",
        "algo.advantage.estimator": "group_norm",
        "algo.kl.estimator": "k3",
        "algo.kl.init_coef": "1e-3",
        "ckpt.output_dir": f"{root}/final",
        "ckpt.path": f"{root}/checkpoints",
        "ckpt.save_steps": f"{STEPS}",
        "data.input_key": "prompt",
        "data.max_len": "128",
        "data.prompt_dataset": f"{root}/prompts.jsonl",
        "ds.zero_stage": "3",
        "logger.tensorboard_dir": f"{root}/metrics",
        "logger.wandb.run_name": "run",
        "ref.num_gpus_per_node": "1",
        "reward.num_gpus_per_node": "1",
        "reward.remote_url": f"{root}/reward.py",
        "rollout.batch_size": f"{PROMPTS}",
        "rollout.max_new_tokens": f"{ANSWER}",
        "rollout.micro_batch_size": f"{PROMPTS}",
        "rollout.n_samples_per_prompt": f"{GROUP}",
        "train.batch_size": f"{PROMPTS * GROUP}",
        "train.micro_batch_size": f"{PROMPTS}",
        "train.num_episodes": "1",
        "vllm.gpu_memory_utilization": "0.2",
        "vllm.num_engines": "1",
    }
    switches = (
        "algo.advantage.is_correction_enable",  # it compares the log-probabilities of vLLM and trainer: vllm_kl
        "algo.kl.use_loss",
        "data.apply_chat_template",
        "ds.enable_sleep",
        "ds.packing_samples",
        "train.colocate_all",
        "vllm.enable_sleep",
        "vllm.enforce_eager",
    )
    return [
        *(part for name, value in values.items() for part in (f"--{name}", value)),
        *(f"--{name}" for name in switches),
    ]


def run(root: Path, argv: Iterable[str]) -> Run:
    """Run the trainer in a process group of its own, and read what it left below `root`."""
    from smoke.engines import ALONE

    step("openrlhf.cli.train_ppo_ray")
    environment = {
        **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},  # a cluster of its own
        **ALONE,
        "HF_HOME": f"{root}/huggingface",
        "PYTHONUNBUFFERED": "1",
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(256 << 20),
        "RAY_TMPDIR": str(root),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # it reads the host's memory, and ends workers for other processes
        "TORCH_EXTENSIONS_DIR": f"{root}/extensions",  # DeepSpeed compiles its Adam when it first uses it
    }
    ray_logs = root / "ray/session_latest/logs"
    command = [sys.executable, "-m", "openrlhf.cli.train_ppo_ray", *argv]
    code, log = trainer_process.run_trainer(command, root, environment, ray_logs)
    if code != 0:
        log += "\n" + trainer_process.log_tails(ray_logs, TAIL)
    print(log, file=sys.stderr)  # now: what the run left may be in pieces, and then reading it raises
    step("what it left")
    answers = root / "answers.jsonl"
    latest, final = root / "checkpoints/_actor/latest", root / "final"
    return Run(
        code,
        read_metrics(root / "metrics"),
        read_answers(answers.read_text(encoding="utf-8")) if answers.exists() else [],
        latest.read_text(encoding="utf-8").strip() if latest.exists() else "",
        bytelm.printable(final) - bytelm.printable(root / "model") if (final / "config.json").exists() else None,
        log,
    )


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the scalars of each step in TensorBoard's files below `folder`, without their prefix "train/"."""
    if not folder.is_dir():
        return []
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps: dict[int, dict[str, float]] = {}
    for events in sorted({path.parent for path in folder.rglob("events.*")}):
        accumulator = EventAccumulator(str(events))
        accumulator.Reload()
        for tag in accumulator.Tags()["scalars"]:
            for event in accumulator.Scalars(tag):
                steps.setdefault(event.step, {})[tag.removeprefix("train/")] = event.value
    return [steps[number] for number in sorted(steps)]


def read_answers(text: str) -> list[Answer]:
    """Parse the lines that the reward function wrote."""
    return [Answer(*json.loads(line)) for line in text.split("\n") if line]


def judge(found: Run) -> Details:
    """Hold a run to what a sound one shows; returns the details. Raises Failed with the end of the run's logs."""
    findings = Findings()
    findings.expect("exit-code", found.exit_code == 0, f"the trainer ended with exit code {found.exit_code}")
    findings.expect("steps", len(found.metrics) == STEPS, f"{len(found.metrics)} of {STEPS} steps")
    scores, gradients, losses, differences = (
        series(found.metrics, name) for name in ("rollout/reward_mean", "actor_grad_norm", "policy_loss", "vllm_kl")
    )
    findings.expect("finite", finite(losses) and finite(gradients), f"losses {losses}, gradient norms {gradients}")
    findings.expect("gradients", bool(gradients) and min(gradients) > 0, f"gradient norms: {gradients}")
    rose = scores[-1] - scores[0] if scores else math.nan
    findings.expect("learns", rose >= RISE, f"the mean reward went from {scores[:1]} to {scores[-1:]}")
    findings.expect("reward", rewards_hold(found.answers, scores), "the rewards are not those of the reward function")
    texts = {answer.prompt for answer in found.answers}
    prompts = {bytelm.expected_prompt(str(digit)) for digit in range(10)}
    whole = all(answer.query.startswith(answer.prompt) for answer in found.answers)
    rendered = bool(texts) and texts <= prompts and whole
    findings.expect("template", rendered, f"a prompt was not as rendered: {sorted(texts)[:2]}")
    most = max(map(abs, differences), default=math.nan)
    same = len(differences) == len(found.metrics) and finite(differences) and most <= DIFFERENCE
    findings.expect("weights", same, f"vLLM and trainer disagree: mean differences of log-probabilities {differences}")
    findings.expect("state", found.saved == f"global_step{STEPS}", f"the last DeepSpeed checkpoint is {found.saved!r}")
    learned = -math.inf if found.learned is None else found.learned
    findings.expect("checkpoint", learned >= RISE / 2, f"the saved model has learned {learned}")
    details: Details = {
        "score": [round(score, 4) for score in scores],
        "gradient_norm": [round(norm, 4) for norm in gradients],
        "difference": [round(value, 5) for value in differences],
        "learned": found.learned,
        "seconds_per_step": [round(value, 1) for value in series(found.metrics, "timing/step_total")],
    }
    return findings.done(details, found.log)


def series(metrics: Iterable[Mapping[str, float]], name: str) -> list[float]:
    """Return the metric at each step that has it."""
    return [each[name] for each in metrics if name in each]


def rewards_hold(answers: list[Answer], means: list[float]) -> bool:
    """Return whether each answer has its score, any is above 0, and the trainer's means are those of the batches."""
    batch = PROMPTS * GROUP
    scores = [bytelm.score(bytelm.without_special(answer.query[len(answer.prompt) :])) for answer in answers]
    given = all(abs(answer.reward - score) < 1e-3 for answer, score in zip(answers, scores))  # noqa: B905
    batches = [sum(scores[start : start + batch]) / batch for start in range(0, len(scores), batch)]
    arrived = len(batches) == len(means) and all(abs(own - mean) < 1e-3 for own, mean in zip(batches, means))  # noqa: B905
    return given and arrived and any(score > 0 for score in scores)
