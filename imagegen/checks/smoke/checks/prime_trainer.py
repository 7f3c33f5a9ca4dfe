"""prime-rl's own launcher, `rl`, on a tiny model that is made in place: what its runs must show.

The check "prime-rl-NAME" runs the variant NAME. A run is a subprocess: the launcher starts vLLM, a server of
environments, the orchestrator and torchrun with the trainer. With one GPU, vLLM and trainer share it and weights go
through files; with two, each has its own and weights go over NCCL. Prompts and reward are those of `smoke.bytelm`, in
an environment of verifiers' that is written beside the model. `run` collects what prime-rl writes, `judge` holds it to
what a sound stack shows. Configuration and metrics are those of prime-rl at 559b44772e47 and verifiers 0.3.1, read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from smoke import bytelm, trainer_process
from smoke.program import Details, Findings, Spec, finite, step

STEPS = 20
BATCH, GROUP, ANSWER = 128, 8, 16  # answers of a step, answers to one prompt, tokens of an answer at most
RISE = 0.2  # that the mean reward must gain from the first step to the mean of the last WINDOW
WINDOW = 3  # steps
# Mean of the tokens' KL of engine and trainer, at most: at step 1, which trains on answers of the very weights that it
# begins with, and on the mean of the last WINDOW steps, whose answers are up to one update older. Measured on H100:
# 2e-6, and 0.001 to 0.004; with weights that never reach the engine 1.4 (docs/internals/measurements.md).
MISMATCH_FIRST, MISMATCH_LAST = 0.001, 0.02
# Ports that Linux gives to no client (ip_local_port_range begins at 32768): the processes bind theirs minutes later.
PORTS = range(20_000, 32_000)
TAIL = 60  # last lines of each log, of a run that failed
TEMPLATE = bytelm.TEMPLATE
TASKSET = "smoke_digits"  # verifiers imports the module of this name
# Its harness asks once, in the server's own process: those of verifiers install a program with uv from PyPI.
ENVIRONMENT = """\
import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult

__all__ = ["DigitHarness", "DigitTaskset"]


class DigitTask(vf.Task[vf.TaskData]):
    @vf.reward(weight=1.0)
    async def printable(self, trace: vf.Trace) -> float:
        return score(trace.last_reply)


class DigitTaskset(vf.Taskset[DigitTask, vf.TasksetConfig]):
    def load(self) -> list[DigitTask]:
        return [DigitTask(vf.TaskData(idx=digit, prompt=str(digit)), self.config.task) for digit in range(10)]


class DigitHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> ProgramResult:
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            await client.chat.completions.create(
                model=ctx.model, messages=[{"role": "user", "content": data.prompt}]
            )
        return ProgramResult(exit_code=0, stdout="", stderr="")


def score(answer: str) -> float:
    return sum(32 <= ord(char) < 127 for char in answer) / max(1, len(answer))
"""
CONFIGURATION = """\
max_steps = {steps}
seq_len = 2048
output_dir = "{root}/runs"

[run]
name = "check"

[model]
name = "{root}/model"

[ckpt]

[weight_broadcast]
{broadcast}

[rollout_transport]
type = "zmq"
host = "127.0.0.1"
port = {transport_port}

[trainer.optim]
lr = 1e-3
weight_decay = 0.0

[trainer.model]
attn = "flash_attention_2"
compile = "None"
ac = "None"
ac_offloading = "None"
optim_cpu_offload = false

[orchestrator]
batch_size = {batch}
group_size = {group}
max_off_policy_steps = 1
env_server_base_port = {environment_port}

[orchestrator.log]
vf_level = "warning"

[orchestrator.model.client]
base_url = "http://127.0.0.1:{engine_port}/v1"

[orchestrator.renderer]
name = "default"

[orchestrator.concurrency]
initial_inflight = {batch}
max_inflight = {batch}

[orchestrator.train]
filter_zero_advantages = false

[orchestrator.train.sampling]
max_completion_tokens = {answer}

[[orchestrator.train.source]]
name = "digits"

[orchestrator.train.source.env.taskset]
id = "{taskset}"

[orchestrator.train.source.env.agent.runtime]
type = "subprocess"

[orchestrator.train.source.serve.pool]
type = "static"
num_workers = 1

[inference]
router = "None"

[inference.server]
host = "127.0.0.1"
port = {engine_port}

[inference.vllm]
max_model_len = 256
enforce_eager = true
gpu_memory_utilization = 0.2
kv_cache_memory_bytes = 268435456
"""


@dataclass(frozen=True)
class Variant:
    """One configuration: the GPUs that it needs, and how weights go from trainer to engine."""

    gpus: int
    broadcast: str


VARIANTS = {"grpo": Variant(1, "filesystem"), "grpo-2gpu": Variant(2, "nccl")}


@dataclass(frozen=True)
class Ports:
    """Free ports: of vLLM, of the environment's server, of the batches (and the next), of NCCL's rendezvous."""

    engine: int
    environment: int
    transport: int
    broadcast: int


@dataclass(frozen=True)
class Answer:
    """A recorded answer of the model: the prompt that it was given, its text, its reward."""

    prompt: str
    text: str
    reward: float


@dataclass(frozen=True)
class Run:
    """The results of a run: exit code (None: past its time), metrics of each step, answers, ends of its logs.

    `learned` is how much more probability of a printable first character the checkpoint's model gives than the first
    one; None: there is no checkpoint.
    """

    exit_code: int | None
    metrics: list[dict[str, float]]
    answers: list[Answer]
    learned: float | None
    log: str


def check_variant(_: Spec, name: str) -> Details:
    """Run the variant of VARIANTS with that name, and judge it. Raises Failed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        make_inputs(root)
        (root / "rl.toml").write_text(configuration(root, VARIANTS[name], free_ports()), encoding="utf-8")
        found = run(root, VARIANTS[name])
    return judge(found)


def make_inputs(root: Path) -> None:
    """Write model, tokenizer and environment below `root`."""
    step("model, tokenizer, environment")
    bytelm.write_model(root / "model", TEMPLATE, "Qwen3")
    (root / f"{TASKSET}.py").write_text(ENVIRONMENT, encoding="utf-8")


def configuration(root: Path, variant: Variant, ports: Ports) -> str:
    """Return the TOML file that the launcher reads."""
    broadcast = f'type = "{variant.broadcast}"'
    if variant.broadcast == "nccl":
        broadcast += f'\nhost = "127.0.0.1"\nport = {ports.broadcast}\ntimeout = 300'
    return CONFIGURATION.format(
        root=root,
        steps=STEPS,
        broadcast=broadcast,
        batch=BATCH,
        group=GROUP,
        answer=ANSWER,
        taskset=TASKSET,
        engine_port=ports.engine,
        environment_port=ports.environment,
        transport_port=ports.transport,
    )


def free_ports() -> Ports:
    """Return ports of PORTS on the loopback interface that nothing listens on; the one after each is free too."""
    found: list[int] = []
    for port in random.sample(PORTS[::2], len(PORTS) // 2):
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            found.append(port)
        if len(found) == len(fields(Ports)):
            break
    return Ports(*found)


def run(root: Path, variant: Variant) -> Run:
    """Run the launcher, and read what it left below `root`."""
    step("prime_rl.entrypoints.rl")
    command = [sys.executable, "-m", "prime_rl.entrypoints.rl", "@", f"{root}/rl.toml"]
    folder = root / "runs/check"
    code, log = trainer_process.run_trainer(command, root, environment(root, variant))
    if code != 0:
        log += "\n" + "\n".join(log_tails(folder / "logs/latest"))
    print(log, file=sys.stderr)  # now: what the run left may be in pieces, and then reading it raises
    step("what it left")
    learned = None
    if (checkpoint := folder / f"checkpoints/step_{STEPS}/trainer").is_dir():
        load_checkpoint(checkpoint, root)
        learned = bytelm.printable(root / "trained") - bytelm.printable(root / "model")
    metrics = folder / "metrics.jsonl"
    return Run(
        code,
        read_metrics(metrics.read_text(encoding="utf-8")) if metrics.exists() else [],
        [answer for path in sorted(folder.glob("rollouts/*/train/effective/traces.jsonl")) for answer in answers(path)],
        learned,
        log,
    )


def environment(root: Path, variant: Variant) -> dict[str, str]:
    """Return the variables of the launcher's process. With one GPU its number stands twice: for engine and trainer."""
    from smoke.engines import ALONE

    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    home = root / "home"  # verifiers, Triton and vLLM write below it
    home.mkdir(exist_ok=True)
    return {
        **os.environ,
        **ALONE,
        "CUDA_VISIBLE_DEVICES": ",".join((devices * 2)[:2] if variant.gpus == 2 else devices[:1] * 2),
        "HOME": f"{home}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",  # the launcher starts by name
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": ":".join(filter(None, (f"{root}", os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        "WANDB_MODE": "disabled",
    }


def log_tails(folder: Path) -> Iterator[str]:
    """Yield the last lines of each process's log, without the escapes of colours."""
    for path in sorted(folder.rglob("*.log")):
        if "torchrun" not in path.parts:  # trainer.log has them
            yield f"{path.relative_to(folder)}:"
            yield from (re.sub(r"\x1b\[[0-9;]*m", "", line) for line in trainer_process.read_lines(path)[-TAIL:])


def load_checkpoint(checkpoint: Path, root: Path) -> None:
    """Write the model of a distributed checkpoint to `root`/trained, as transformers loads it."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    dcp_to_torch_save(checkpoint, root / "checkpoint.pt")
    state = torch.load(root / "checkpoint.pt", map_location="cpu", weights_only=False)["app"]["model"]
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(root / "model"))
    model.load_state_dict(state)
    model.save_pretrained(root / "trained")
    AutoTokenizer.from_pretrained(root / "model").save_pretrained(root / "trained")


def read_metrics(text: str) -> list[dict[str, float]]:
    """Return the metrics of each step: trainer and orchestrator append lines to one file, several for a step."""
    steps: dict[int, dict[str, float]] = {}
    for line in text.split("\n"):
        if line:
            row = json.loads(line)
            steps.setdefault(int(row["step"]), {}).update(row)
    return [steps[number] for number in sorted(steps)]


def answers(path: Path) -> Iterator[Answer]:
    """Yield the answers of a file of traces."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line:
            yield from map(answer_of, json.loads(line)["traces"])


def answer_of(trace: Mapping[str, Any]) -> Answer:
    """Return the answer of one trace of verifiers', a question and what the model said.

    An answer without text has no content.
    """
    texts = {message["role"]: message.get("content") or "" for message in (node["message"] for node in trace["nodes"])}
    rewards = trace["rewards"].values()
    return Answer(
        texts["user"], texts.get("assistant", ""), sum(float(each["score"]) * each["weight"] for each in rewards)
    )


def judge(found: Run) -> Details:
    """Hold a run to what a sound one shows; returns the details. Raises Failed with the ends of the run's logs."""
    findings = Findings()
    findings.expect("exit-code", found.exit_code == 0, f"the launcher ended with exit code {found.exit_code}")
    losses, gradients, mismatches, rewards = (
        series(found.metrics, pattern)
        for pattern in (
            r"loss/mean",
            r"optim/grad_norm",
            r"mismatch_kl/all/mean",
            r"train/agg/effective/(?:\w+/)?reward/mean",
        )
    )
    findings.expect("steps", len(losses) == len(rewards) == STEPS, f"{len(losses)} and {len(rewards)} of {STEPS} steps")
    # prime-rl leaves out numbers that are not finite.
    complete = finite(losses) and finite(gradients) and len(losses) == len(gradients)
    findings.expect("finite", complete, f"losses {losses}, gradient norms {gradients}")
    findings.expect("gradients", bool(gradients) and min(gradients) > 0, f"gradient norms: {gradients}")
    last = rewards[-WINDOW:]
    rose = sum(last) / len(last) - rewards[0] if rewards else math.nan
    findings.expect("learns", rose >= RISE, f"the mean reward went from {rewards[:1]} to {last}")
    findings.expect("reward", rewards_hold(found.answers), "the rewards are not those of the environment")
    compared = bool(mismatches) and len(mismatches) == len(losses) and finite(mismatches)
    end = mismatches[-WINDOW:]
    same = compared and mismatches[0] <= MISMATCH_FIRST and sum(end) / len(end) <= MISMATCH_LAST
    findings.expect("weights", same, f"engine and trainer disagree: KL of each step {mismatches}")
    learned = -math.inf if found.learned is None else found.learned
    findings.expect("checkpoint", learned >= RISE / 2, f"the saved model has learned {learned}")
    details: Details = {
        "reward": [round(value, 4) for value in rewards],
        "gradient_norm": [round(value, 4) for value in gradients],
        "mismatch_kl": [round(value, 6) for value in mismatches],
        "off_policy": series(found.metrics, r"off_policy/max"),
        "learned": found.learned,
        "seconds_per_step": [round(value, 1) for value in series(found.metrics, r"time/step")],
    }
    return findings.done(details, found.log)


def series(metrics: Iterable[Mapping[str, float]], pattern: str) -> list[float]:
    """Return the metric whose name is of that pattern at each step that has it."""
    return [float(value) for each in metrics for name, value in each.items() if re.fullmatch(pattern, name)]


def rewards_hold(found: list[Answer]) -> bool:
    """Return whether each answer is to a digit and has the reward of its text, and any reward is above 0."""
    asked = all(answer.prompt.isdigit() for answer in found)
    given = all(abs(answer.reward - bytelm.score(answer.text.strip())) < 1e-3 for answer in found)
    return asked and given and any(answer.reward > 0 for answer in found)


def check(spec: Spec) -> Details:
    return check_variant(spec, spec.check.removeprefix("prime-rl-"))
