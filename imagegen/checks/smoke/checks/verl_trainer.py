"""verl's own trainer, `verl.trainer.main_ppo`, on a tiny model that is made in place: what its runs must show.

The check "verl-NAME" runs the variant NAME. A run is a subprocess: verl starts Ray, its workers train with FSDP or
Megatron, and vLLM or SGLang samples on the same GPUs. The prompt is a digit, the reward the share of printable ASCII
characters of the answer, so that an untrained model of a byte-level vocabulary gets about 0.4 and a trained one 1.
`run` collects what verl writes, `judge` holds it to what a sound stack shows. Configuration names and metrics are those
of verl 0.9.1 on PyPI, read.
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
from typing import Any

from smoke import bytelm, trainer_process
from smoke.program import Details, Findings, Skipped, Spec, finite, step

PROMPTS, GROUP, ANSWER = 16, 8, 16  # prompts of a batch, answers of each, tokens of an answer at most
RAY_LOGS = Path("/tmp/ray/session_latest/logs")  # noqa: S108  # Ray's own default
# Of a sound run on an H200 (docs/internals/measurements.md) the least correlation is 0.99997, the largest mean 0.0043.
CORRELATION = 0.999  # at least, of the probabilities of the sampled tokens in rollout engine and trainer
DIFFERENCE = 0.02  # at most, the mean of their differences
TEMPLATE = bytelm.TEMPLATE
REWARD = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return sum(32 <= ord(c) < 127 for c in solution_str) / max(1, len(solution_str))
"""
# Where verl's checkpoint managers write the weights as a Hugging Face model, below the actor's folder.
HF_FOLDER = {"fsdp": "huggingface", "megatron": "model/huggingface"}
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Variant:
    """One configuration of the trainer. `rise` is how much the mean reward must gain from first to last step."""

    steps: int
    rise: float
    overrides: tuple[str, ...] = ()
    gpus: int = 1
    learning_rate: float = 1e-3
    strategy: str = "fsdp"
    adapter: bool = False  # the checkpoint holds a LoRA adapter beside the frozen weights


MEGATRON = (
    f"{ACTOR}.megatron.vanilla_mbridge=True",  # mbridge; Megatron-Bridge is not on PyPI in the release that verl pins
    f"{ACTOR}.megatron.override_transformer_config.attention_backend=auto",  # the default, flash, needs flash-attn
)
VARIANTS = {
    "grpo": Variant(10, 0.2, (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.001")),
    "gspo": Variant(5, 0.05, (f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean")),
    "lora": Variant(
        5,
        0.0,
        (
            "actor_rollout_ref.model.lora_rank=16",
            "actor_rollout_ref.model.lora_alpha=32",
            f"{ROLLOUT}.load_format=safetensors",  # the engine reads the frozen weights once, then takes adapters
            # FSDP 1 does not shard over one GPU, and then verl 0.9.1 sends an adapter without tensors: vLLM's worker
            # ends with StopIteration, and the trainer waits for ever.
            f"{ACTOR}.strategy=fsdp2",
            f"{ACTOR}.fsdp_config.strategy=fsdp2",
        ),
        learning_rate=5e-3,
        adapter=True,
    ),
    "megatron": Variant(5, 0.05, MEGATRON, strategy="megatron"),
    "grpo-2gpu": Variant(5, 0.05, (f"{ROLLOUT}.tensor_model_parallel_size=2",), gpus=2),
    "megatron-2gpu": Variant(
        5,
        0.05,
        (
            *MEGATRON,
            f"{ACTOR}.megatron.tensor_model_parallel_size=2",
            f"{ROLLOUT}.tensor_model_parallel_size=2",
        ),
        gpus=2,
        strategy="megatron",
    ),
}


@dataclass(frozen=True)
class Run:
    """The results of a run: exit code (None: past TIMEOUT), metrics of each step, sampled answers, end of its output.

    `learned` is how much more probability of a printable first character the saved model gives than the first one; of
    an adapter, the largest absolute value of its second matrices, which begin as zeros. None: there is no checkpoint.
    """

    exit_code: int | None
    metrics: list[dict[str, float | None]]
    answers: list[dict[str, Any]]
    learned: float | None
    log: str


def check_variant(spec: Spec, name: str) -> Details:
    """Run the variant of VARIANTS with that name, and judge it. Raises Failed and Skipped."""
    variant = VARIANTS[name]
    import torch

    if torch.cuda.device_count() < variant.gpus:
        raise Skipped(f"it needs {variant.gpus} GPUs, and {torch.cuda.device_count()} is here")
    engine = "vllm" if "vllm" in spec.versions else "sglang"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        make_inputs(root)
        found = run(root, arguments(root, variant, engine), variant)
    return judge(found, variant)


def make_inputs(root: Path) -> None:
    """Write model, tokenizer, prompts and reward function below `root`."""
    import pandas as pd

    step("model, tokenizer, prompts")
    bytelm.write_model(root / "model", TEMPLATE)
    rows = [
        {
            "data_source": "tiny",
            "prompt": [{"role": "user", "content": str(number % 10)}],
            "ability": "none",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number in range(PROMPTS * 32)
    ]
    pd.DataFrame(rows).to_parquet(root / "train.parquet")
    (root / "reward.py").write_text(REWARD, encoding="utf-8")


def arguments(root: Path, variant: Variant, engine: str) -> list[str]:
    """Return the arguments of `python -m verl.trainer.main_ppo`."""
    fsdp = (
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=False",  # packed sequences need flash-attn
    )
    return [
        f"model_engine={'megatron' if variant.strategy == 'megatron' else 'dp'}",
        "algorithm.adv_estimator=grpo",
        f"data.train_files={root}/train.parquet",
        f"data.val_files={root}/train.parquet",
        f"data.train_batch_size={PROMPTS}",
        "data.max_prompt_length=64",
        f"data.max_response_length={ANSWER}",
        "data.filter_overlong_prompts=False",
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.model.path={root}/model",
        *(fsdp if variant.strategy == "fsdp" else ()),
        f"{ACTOR}.optim.lr={variant.learning_rate}",
        f"{ACTOR}.ppo_mini_batch_size={PROMPTS}",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu={PROMPTS}",
        f"{ACTOR}.checkpoint.save_contents=[{'model' if variant.adapter else 'model,hf_model'}]",
        f"{ROLLOUT}.name={engine}",
        f"{ROLLOUT}.tensor_model_parallel_size=1",
        f"{ROLLOUT}.gpu_memory_utilization=0.2",
        # Without it vLLM measures the memory, and ends where another process on the GPU frees some meanwhile.
        *((f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes={256 << 20}",) if engine == "vllm" else ()),
        f"{ROLLOUT}.n={GROUP}",
        f"{ROLLOUT}.enforce_eager=True",
        f"{ROLLOUT}.agent.num_workers=1",
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=64",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu={PROMPTS}",
        f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={PROMPTS}",
        f"reward.custom_reward_function.path={root}/reward.py",
        "reward.custom_reward_function.name=compute_score",
        "reward.num_workers=1",
        'trainer.logger=["console","file"]',
        f"trainer.n_gpus_per_node={variant.gpus}",
        "trainer.nnodes=1",
        f"trainer.total_training_steps={variant.steps}",
        "trainer.total_epochs=1",
        "trainer.val_before_train=False",
        f"trainer.save_freq={variant.steps}",
        "trainer.test_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={root}/checkpoints",
        f"trainer.rollout_data_dir={root}/answers",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",  # 8 by default, each takes one of num_cpus
        "+ray_kwargs.ray_init.address=local",  # a cluster of its own, also where RAY_ADDRESS is set
        "ray_kwargs.ray_init.num_cpus=16",  # verl reserves 3 for each GPU, TransferQueue 2; too few would hang
        "+ray_kwargs.ray_init.include_dashboard=False",
        f"+ray_kwargs.ray_init.object_store_memory={256 << 20}",
        *variant.overrides,
    ]


def run(root: Path, argv: Iterable[str], variant: Variant) -> Run:
    """Run the trainer in a process group of its own, and read what it left below `root`."""
    from smoke.engines import ALONE

    step("verl.trainer.main_ppo")
    environment = {
        **os.environ,
        **ALONE,
        "VERL_FILE_LOGGER_PATH": f"{root}/metrics.jsonl",
        "RAY_memory_monitor_refresh_ms": "0",  # it reads the host's memory, and ends workers for other processes
        "RAY_USAGE_STATS_ENABLED": "0",
        "HYDRA_FULL_ERROR": "1",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *argv]
    code, text = trainer_process.run_trainer(command, root, environment, RAY_LOGS)
    print(text, file=sys.stderr)  # now: what the run left may be in pieces, and then reading it raises
    step("what it left")
    answers = [line for path in sorted((root / "answers").glob("*.jsonl")) for line in _lines(path)]
    metrics = [line["data"] for line in _lines(root / "metrics.jsonl")]
    saved = root / "checkpoints" / f"global_step_{variant.steps}" / "actor"
    learned = None
    if saved.is_dir():
        learned = (
            adapter_size(saved)
            if variant.adapter
            else bytelm.printable(saved / HF_FOLDER[variant.strategy]) - bytelm.printable(root / "model")
        )
    return Run(code, metrics, answers, learned, text)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # Not splitlines(): verl writes answers unescaped, and they can hold U+0085 or U+2028.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def adapter_size(folder: Path) -> float:
    """Return the largest absolute value in the second matrices of a checkpoint's LoRA adapter."""
    import torch

    shards = [torch.load(path, map_location="cpu", weights_only=False) for path in folder.glob("model_world_size_*.pt")]
    found = [value for shard in shards for name, value in shard.items() if "lora_B" in name]
    whole = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in found]
    return max((float(value.abs().max()) for value in whole), default=0.0)


def expected_text(digit: str) -> str:
    """Return the prompt of a digit as verl writes it: as the template renders it, without the special tokens."""
    return bytelm.without_special(bytelm.expected_prompt(digit))


def judge(found: Run, variant: Variant) -> Details:
    """Hold a run to what a sound one shows; returns the details. Raises Failed with the end of the run's log."""
    findings = Findings()
    findings.expect("exit-code", found.exit_code == 0, f"the trainer ended with exit code {found.exit_code}")
    findings.expect("steps", len(found.metrics) == variant.steps, f"{len(found.metrics)} of {variant.steps} steps")
    scores, gradients, losses, correlations, differences = (
        _series(found.metrics, name)
        for name in (
            "critic/score/mean",
            "actor/grad_norm",
            "actor/pg_loss",
            "training/rollout_actor_probs_pearson_corr",
            "training/rollout_probs_diff_mean",
        )
    )
    findings.expect("finite", finite(losses) and finite(gradients), f"losses {losses}, gradient norms {gradients}")
    findings.expect("gradients", bool(gradients) and min(gradients) > 0, f"gradient norms: {gradients}")
    rose = scores[-1] - scores[0] if scores else math.nan
    findings.expect("learns", rose >= variant.rise, f"the mean reward went from {scores[:1]} to {scores[-1:]}")
    findings.expect("reward", _rewards_hold(found.answers), "verl's scores are not those of the reward function")
    texts = {answer["input"] for answer in found.answers}
    prompts = {expected_text(str(digit)) for digit in range(10)}
    findings.expect("template", bool(texts) and texts <= prompts, f"a prompt was not as rendered: {sorted(texts)[:2]}")
    least, most = min(correlations, default=math.nan), max(differences, default=math.nan)
    compared = len(correlations) == len(differences) == len(found.metrics) and finite(correlations + differences)
    same = compared and least >= CORRELATION and most <= DIFFERENCE
    findings.expect("weights", same, f"engine and trainer disagree: correlation {least}, mean difference {most}")
    learned = -math.inf if found.learned is None else found.learned
    holds = learned > 0 if variant.adapter else learned >= variant.rise / 2
    findings.expect("checkpoint", holds, f"the saved model has learned {learned}")
    details: Details = {
        "score": [round(score, 4) for score in scores],
        "gradient_norm": [round(norm, 4) for norm in gradients],
        "correlation": least,
        "difference": most,
        "learned": found.learned,
        "seconds_per_step": [round(value, 1) for value in _series(found.metrics, "timing_s/step")],
    }
    return findings.done(details, found.log)


def _series(metrics: Iterable[Mapping[str, float | None]], name: str) -> list[float]:
    """Return the metric at each step that has it; NaN for null, which is how verl's logger writes NaN.

    verl repeats a prefix in some names ("actor/actor/pg_loss").
    """
    doubled = f"{name.partition('/')[0]}/{name}"
    values = [each[key] for each in metrics for key in (name, doubled) if key in each]
    return [math.nan if value is None else float(value) for value in values]


def _rewards_hold(answers: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether each answer's score is what the reward function gives for its text, and any is above 0."""
    pairs = []
    for answer in answers:
        text = str(answer["output"])
        pairs.append((float(answer["score"]), bytelm.score(text)))
    return any(own > 0 for own, _ in pairs) and all(abs(own - due) < 1e-3 for own, due in pairs)


def check(spec: Spec) -> Details:
    return check_variant(spec, spec.check.removeprefix("verl-"))
