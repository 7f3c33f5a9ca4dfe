"""TRL's own GRPOTrainer learns on a tiny model, its metrics are finite, and its checkpoint resumes.

Model, tokenizer and data set are made here, so that nothing is downloaded. The trainer loads the model from a directory
and samples with transformers (`use_vllm` is false; `trl_vllm` is the check of TRL with vLLM).
"""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from smoke import tinylm
from smoke.program import Details, Findings, Spec, step

DIGITS = "01234567"
END, PAD = "<end>", "<pad>"
ASK = "?"  # ends each prompt, as the chat template's generation prompt
VOCABULARY = (*DIGITS, ASK, END, PAD)
TEMPLATE = "{% for turn in messages %}{{ turn['content'] }}{% endfor %}{% if add_generation_prompt %}?{% endif %}"
SEED = 0
LENGTH = 5  # tokens of a completion at most, the end token included
ITERATIONS = 2  # updates of each batch, so that ratio and clip have work
STEPS, RESUMED_STEPS = 40, ITERATIONS  # optimizer steps
GROUP = 8
LEARNING_RATE = 3e-3
WINDOW = 3  # batches that the mean rewards at the start and at the end are taken over
# The reward starts near 0.1 and can reach 1; a policy that ignores the prompt earns at most 1/8
# (docs/internals/measurements.md).
RISE = 0.4


def check(spec: Spec) -> Details:
    findings = Findings()
    details: Details = {"trl": import_trl(spec.device)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("make a model")
        write_model(folder / "model")
        step("train")
        trainer = make_trainer(folder, spec.device, STEPS)
        start = parameters(trainer)
        trainer.train()
        details |= judge_run(trainer, start, findings)
        checkpoint = folder / "run" / f"checkpoint-{STEPS}"
        step("load the checkpoint")
        check_checkpoint(checkpoint, trainer, findings)
        step("resume")
        resumed = make_trainer(folder, spec.device, STEPS + RESUMED_STEPS)
        resumed.train(resume_from_checkpoint=str(checkpoint))
        details["resumed"] = check_resumed(resumed, fmean(details["reward"]), findings)
    return findings.done(details)


def import_trl(device: str) -> str:
    """Import TRL without its messages and for one GPU; return its version."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", WANDB_MODE="disabled")
    if device == "cpu":
        torch.set_num_threads(1)  # the model is too small for more, and the order of sums stays the same
    else:  # with several GPUs in one process the Trainer wraps the model in DataParallel
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    step("import trl")
    import transformers
    import trl

    transformers.utils.logging.set_verbosity_error()
    return str(trl.__version__)


def write_model(folder: Path, head_width: int = tinylm.WIDTH // tinylm.HEADS) -> None:
    """Write a random Llama and a tokenizer with one token for each character, with a chat template."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token=PAD))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token=PAD, padding_side="left")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(SEED)
    model = tinylm.llama(len(VOCABULARY), head_width)
    model.config.attention_dropout = 0.0  # `disable_dropout` of TRL changes modules alone, not this argument of SDPA
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)


def make_trainer(folder: Path, device: str, steps: int, **sampler: Any) -> Any:
    """Return a GRPOTrainer for the model in `folder`: bfloat16 autocast on a GPU (TRL's default), float32 on a CPU.

    `sampler` are options of GRPOConfig; without any, transformers samples.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    rows = [{"prompt": [{"role": "user", "content": digit}], "digit": digit} for digit in DIGITS]
    config = GRPOConfig(
        output_dir=str(folder / "run"),
        use_cpu=device == "cpu",
        bf16=device == "cuda",
        per_device_train_batch_size=GROUP * len(DIGITS),
        num_generations=GROUP,
        max_completion_length=LENGTH,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",  # a resumed run has more steps, which must not change the rate of the first ones
        beta=0.02,  # a reference model and its KL; TRL's default is 0, without either
        num_iterations=ITERATIONS,
        disable_dropout=True,
        logging_steps=1,
        save_steps=steps,
        report_to="none",
        disable_tqdm=True,
        seed=SEED,
        logging_nan_inf_filter=False,  # by default the trainer logs another number in place of NaN
        **sampler,
    )
    trainer = GRPOTrainer(
        model=str(folder / "model"), reward_funcs=[reward], args=config, train_dataset=Dataset.from_list(rows)
    )
    trainer.remove_callback(PrinterCallback)  # the last line of the output names the step at which a check died
    return trainer


def reward(completions: list[list[dict[str, str]]], digit: list[str], **_: Any) -> list[float]:
    """Return for each completion the share of LENGTH places that repeat the prompt's digit."""
    return [score(completion[0]["content"], wanted) for completion, wanted in zip(completions, digit)]  # noqa: B905


def score(text: str, wanted: str) -> float:
    return text.count(wanted) / LENGTH


def parameters(trainer: Any) -> dict[str, torch.Tensor]:
    """Return copies of the policy's parameters, on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in trainer.model.named_parameters()}


def judge_run(trainer: Any, start: dict[str, torch.Tensor], findings: Findings) -> Details:
    """Judge losses, gradients, rewards, KL and weights of a finished run; return its figures."""
    loss, gradient, kl = (column(trainer, name) for name in ("loss", "grad_norm", "kl"))
    rewards = column(trainer, "reward")
    findings.expect("steps", len(loss) == STEPS, f"{len(loss)} of {STEPS} steps have a loss")
    findings.expect("batches", len(rewards) >= STEPS // ITERATIONS, f"{len(rewards)} batches have a reward")
    for name, values in {"loss": loss, "grad_norm": gradient, "kl": kl, "reward": rewards}.items():
        finite = bool(values) and all(map(math.isfinite, values))
        findings.expect("finite", finite, f"{name} is missing or not finite: {values[:5]}")
    first, last = fmean(rewards[:WINDOW] or [0.0]), fmean(rewards[-WINDOW:] or [0.0])
    findings.expect("learns", last - first >= RISE, f"mean reward went from {first:.3f} to {last:.3f}, not up {RISE}")
    # The advantages of a group have unit deviation: with any spread in the rewards the gradient is of the order of 1.
    findings.expect("gradient", gradient[:1] > [0.01], f"the first gradient's norm is {gradient[:1]}")
    findings.expect("reference", abs(kl[0] if kl else 1.0) < 1e-3, f"the first KL to the reference is {kl[:1]}, not 0")
    findings.expect("kl-grows", kl[-1:] > [0.1], f"the last KL to the reference is {kl[-1:]}")
    end = parameters(trainer)
    still = sorted(name for name, value in end.items() if torch.equal(value, start[name]))
    findings.expect("policy-moved", not still, f"parameters that did not move: {still}")
    return {
        "reward": [round(first, 3), round(last, 3)],
        "grad_norm": [round(value, 4) for value in (*gradient[:1], *gradient[-1:])],
        "kl": [round(value, 4) for value in (*kl[:1], *kl[-1:])],
    }


def column(trainer: Any, name: str, after: int = 0) -> list[float]:
    """Return a metric's values in the trainer's log, of the steps behind `after`."""
    rows = (row for row in trainer.state.log_history if row["step"] > after)
    return [float(row[name]) for row in rows if name in row]


def check_checkpoint(checkpoint: Path, trainer: Any, findings: Findings) -> None:
    """Expect the checkpoint to hold the trained weights and a tokenizer that reads a prompt as before."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(checkpoint).state_dict()
    trained = {name: value.cpu() for name, value in trainer.model.state_dict().items()}
    other = sorted(
        name for name, value in trained.items() if name not in loaded or not torch.equal(loaded[name].to(value), value)
    )
    findings.expect("checkpoint", not other, f"the checkpoint has other weights than the trainer: {other}")
    tokens = AutoTokenizer.from_pretrained(checkpoint)(f"7{ASK}")["input_ids"]
    expected = [VOCABULARY.index(word) for word in ("7", ASK)]
    findings.expect("tokenizer", tokens == expected, f"the checkpoint's tokenizer reads '7{ASK}' as {tokens}")


def check_resumed(trainer: Any, least: float, findings: Findings) -> float:
    """Expect the resumed run to go on at the last step with a mean reward of at least `least`; return that reward."""
    total, done = STEPS + RESUMED_STEPS, trainer.state.global_step
    rewards, losses = column(trainer, "reward", after=STEPS), column(trainer, "loss", after=STEPS)
    on = done == total and len(losses) == RESUMED_STEPS and bool(rewards)
    findings.expect("resumes", on, f"the resumed run ended at step {done} of {total}, with {len(losses)} losses")
    first = rewards[0] if rewards else 0.0
    findings.expect("resumed-reward", first >= least, f"the resumed run's reward is {first:.3f}, below {least:.3f}")
    return round(first, 3)
