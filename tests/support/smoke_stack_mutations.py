"""Mutations of the checks that are for images with more: rollout engines, verl, megatron-core, the CUDA toolkit.

As smoke_mutations, which must be beside it:   python -m smoke_stack_mutations verl
One mutation alone:                            python -m smoke_stack_mutations trl_vllm "weights not sent"

`rollout` and `trl_vllm` run on any CPU, with an engine in plain torch in the place of vLLM's or SGLang's.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from smoke.program import Spec
from smoke_mutations import Mutation, Patch, changed, main


class TorchEngine:
    """A rollout engine as smoke.rollout wants it, on a copy of the weights in plain torch."""

    def __init__(self, model: Any) -> None:
        import torch

        self.model = copy.deepcopy(model).eval()
        self.generator = torch.Generator().manual_seed(0)
        self.scale = 1.0

    def generate(self, prompts: list[list[int]], count: int, temperature: float) -> list[list[Any]]:
        import torch
        from smoke import grpo as algorithm
        from smoke.rollout import Completion

        given = torch.tensor(prompts)
        with torch.no_grad():
            if temperature:
                rollout = algorithm.sample(self.model, given, count, self.generator)
            else:
                tokens = given
                for _ in range(algorithm.COMPLETION):
                    tokens = torch.cat([tokens, algorithm.logits_of(self.model, tokens)[:, -1:].argmax(-1)], 1)
                mask = torch.ones(len(prompts), algorithm.COMPLETION, dtype=torch.bool)
                rollout = algorithm.Rollout(tokens, mask, mask.float(), mask.float())
        rows = [
            Completion(tokens[-algorithm.COMPLETION :][mask].tolist(), (log_probs[mask] * self.scale).tolist())
            for tokens, mask, log_probs in zip(rollout.tokens, rollout.mask, rollout.sampled)  # noqa: B905
        ]
        return [rows[start : start + count] for start in range(0, len(rows), count)]

    def load(self, weights: Any) -> None:
        self.model.load_state_dict({name: value.detach().cpu() for name, value in weights.items()}, strict=False)


def rollout() -> tuple[ModuleType, list[Mutation]]:
    import torch
    from smoke import grpo as algorithm
    from smoke import rollout as check
    from smoke.checks.grpo import CPU

    def whole(_: Spec) -> Any:
        return check.check_engine(start, CPU)

    def start(folder: Any) -> Any:
        from transformers import AutoModelForCausalLM

        return TorchEngine(AutoModelForCausalLM.from_pretrained(folder))

    check.check = whole  # type: ignore[attr-defined]  # the module is no check of the table: its engine is this one
    load = TorchEngine.load
    kept: dict[str, Any] = {}

    def loads(change: Callable[..., Any]) -> Callable[[Patch], None]:
        def apply(patch: Patch) -> None:
            kept.clear()
            patch.set(TorchEngine, "load", change)

        return apply

    def late(engine: Any, weights: Any) -> None:
        before = kept.get("weights")
        kept["weights"] = {name: value.detach().clone() for name, value in weights.items()}
        load(engine, before or {})

    def once(engine: Any, weights: Any) -> None:
        if kept.setdefault("first", True):
            load(engine, weights)
        kept["first"] = False

    def numb(original: Callable[..., Any], *arguments: Any) -> Any:
        found = original(*arguments)
        return replace(found, sampled=found.sampled * 0.9)

    def no_end(original: Callable[..., Any], engine: Any, prompts: Any, count: int, temperature: float) -> Any:
        return original(engine, prompts, count - 1, temperature) if count > 1 else original(engine, prompts, 1, 0.0)

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("weights not taken", ("sampler", "changed", "learns"), loads(lambda *_: None)),
        Mutation("weights taken once", ("sampler", "changed"), loads(once)),
        Mutation("weights one step late", ("sampler", "back"), loads(late)),
        Mutation(
            "weights in part",
            ("sampler",),
            loads(lambda engine, weights: load(engine, {n: v for n, v in weights.items() if "mlp" not in n})),
        ),
        Mutation("other log-probabilities", ("sampler",), changed(algorithm, "sample", numb)),
        Mutation("a completion lost", ("error",), changed(TorchEngine, "generate", no_end)),
        Mutation("nothing is learned", ("learns", "tells"), changed(torch.optim.AdamW, "step", lambda *_: None)),
    ]


class TorchGeneration:
    """TRL's VLLMGeneration on a copy of the policy in plain torch; `model` is the policy, as there."""

    def __init__(self, model: Any, *_: Any, max_completion_length: int, **__: Any) -> None:
        self.model, self.length = model, max_completion_length
        self.engine = type(model)(model.config).eval()  # a copy would have the policy's forward(), which TRL replaces
        self.engine.load_state_dict(model.state_dict())
        self.end = model.generation_config.eos_token_id

    def sync_weights(self) -> None:
        self.engine.load_state_dict(self.model.state_dict())

    def generate(self, prompts: list[list[int]], **_: Any) -> tuple[Any, ...]:
        import torch

        tokens, sampled = torch.tensor(prompts), []
        with torch.no_grad():
            for _step in range(self.length):
                log_probs = self.engine(tokens).logits[:, -1].log_softmax(-1)
                chosen = log_probs.exp().multinomial(1)
                tokens = torch.cat([tokens, chosen], 1)
                sampled.append(log_probs.gather(1, chosen))
        completions = [row[: [*row, self.end].index(self.end) + 1] for row in tokens[:, -self.length :].tolist()]
        rows = zip(completions, torch.cat(sampled, 1).tolist())  # noqa: B905  # one for each prompt
        return prompts, completions, [[[each] for each in row[: len(completion)]] for completion, row in rows], None


def trl_vllm() -> tuple[ModuleType, list[Mutation]]:
    """With the image's vLLM where there is a GPU (name one mutation in each run), else with TorchGeneration."""
    import torch
    from smoke.checks import trl_grpo
    from smoke.checks import trl_vllm as check
    from trl import GRPOTrainer
    from trl.trainer import grpo_trainer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        grpo_trainer.VLLMGeneration = TorchGeneration  # type: ignore[assignment, misc]
    engine, whole = grpo_trainer.VLLMGeneration, check.check
    check.check = lambda spec: whole(replace(spec, device=device))
    send = engine.sync_weights
    kept: dict[str, Any] = {}

    def stale(choose: Callable[[str], bool], *, first: bool) -> Callable[[Patch], None]:
        """Send the first weights, or those of the batch before, in place of those that are chosen by name."""

        def send_stale(own: Any) -> None:
            now = {name: value.detach().clone() for name, value in own.model.named_parameters()}
            sent = {name: kept.get(name, value) if choose(name) else value for name, value in now.items()}
            own.model.load_state_dict(sent, strict=False)
            send(own)
            own.model.load_state_dict(now, strict=False)
            kept.update(now if not first or not kept else {})

        def apply(patch: Patch) -> None:
            kept.clear()
            patch.set(engine, "sync_weights", send_stale)

        return apply

    def flipped(original: Callable[..., Any], *arguments: Any) -> Any:
        batch = original(*arguments)
        return {**batch, "advantages": -batch["advantages"]}

    def cooler(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        prompts, tokens, rows, rest = original(*arguments, **options)
        return prompts, tokens, [[[each * 0.9 for each in place] for place in row] for row in rows], rest

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation(
            "weights not sent", ("learns", "sampler"), lambda patch: patch.set(engine, "sync_weights", lambda _: None)
        ),
        Mutation("weights one batch late", ("sampler",), stale(lambda _: True, first=False)),
        Mutation("weights in part", ("sampler",), stale(lambda name: "mlp" in name, first=True)),
        Mutation("other log-probabilities", ("sampler",), changed(engine, "generate", cooler)),
        Mutation("transformers samples", ("engine",), lambda patch: patch.set(check, "OPTIONS", {})),
        Mutation(
            "advantage sign flipped", ("learns",), changed(GRPOTrainer, "_generate_and_score_completions", flipped)
        ),
        Mutation("dead reward", ("gradient", "learns", "policy-moved"), changed(trl_grpo, "score", lambda *_: 0.0)),
    ]


def verl() -> tuple[ModuleType, list[Mutation]]:
    import numpy as np
    import torch
    from smoke import grpo as algorithm
    from smoke.checks import verl as check
    from verl.trainer.ppo import core_algos

    def theirs(change: Callable[..., Any]) -> Callable[[Patch], None]:
        return changed(core_algos, "compute_grpo_outcome_advantage", change)

    def flipped(original: Callable[..., Any], *arguments: Any) -> Any:
        return tuple(-each for each in original(*arguments))

    def one_group(original: Callable[..., Any], scores: Any, mask: Any, index: Any) -> Any:
        return original(scores, mask, np.zeros(len(index), dtype=int))

    def everywhere(original: Callable[..., Any], scores: Any, mask: Any, index: Any) -> Any:
        return original(scores, torch.ones_like(mask), index)

    def biased(_: Any, rewards: Any) -> Any:
        spread = rewards.std(1, keepdim=True, unbiased=False)
        return (rewards - rewards.mean(1, keepdim=True)) / (spread + algorithm.EPSILON)

    def no_deviation(original: Callable[..., Any], scores: Any, mask: Any, index: Any) -> Any:
        return original(scores, mask, index, norm_adv_by_std_in_grpo=False)

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("sign flipped", ("random", "groups of one"), theirs(flipped)),
        Mutation("groups not told apart", ("random",), theirs(one_group)),
        Mutation("padding gets advantages", ("random",), theirs(everywhere)),
        Mutation("not normalised", ("random",), theirs(no_deviation)),
        Mutation(
            "the suite's deviation is another", ("random", "groups of two"), changed(algorithm, "advantages", biased)
        ),
        Mutation(
            "the suite drops groups of one",
            ("groups of one",),
            changed(algorithm, "advantages", lambda f, r: f(r) if r.shape[1] > 1 else r * float("nan")),
        ),
    ]


def megatron() -> tuple[ModuleType, list[Mutation]]:
    import torch
    from smoke.checks import megatron as check

    def frozen_part(original: Callable[..., Any], device: str) -> Any:
        model = original(device)
        next(model.decoder.parameters()).requires_grad_(requires_grad=False)
        return model

    def not_small(original: Callable[..., Any], device: str) -> Any:
        model = original(device)
        with torch.no_grad():
            model.output_layer.weight.mul_(100)
        return model

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("optimizer idle", ("falls",), changed(torch.optim.AdamW, "step", lambda *_: None)),
        Mutation(
            "loss not a number", ("finite", "falls"), changed(check, "loss_of", lambda f, *a: f(*a) * float("nan"))
        ),
        Mutation("a part frozen", ("gradients",), changed(check, "make", frozen_part)),
        Mutation("wild weights", ("untrained",), changed(check, "make", not_small)),
    ]


def toolkit() -> tuple[ModuleType, list[Mutation]]:
    import sysconfig

    import torch
    from smoke.checks import toolkit as check
    from torch.utils import cpp_extension

    def without(part: str) -> Callable[[Patch], None]:
        """The toolkit without one of its files."""
        return lambda patch: patch.set(cpp_extension, "CUDA_HOME", copy_of(cpp_extension.CUDA_HOME, part))

    def another_part(original: Callable[..., Any], spec: Spec, *rest: Any) -> Any:
        return original(replace(spec, versions={"nvidia-nvvm": "13.2.86"}), *rest)

    def another_target(original: Callable[..., Any], home: Any, *arguments: str) -> Any:
        return original(home, *("-arch=sm_90" if argument == "-arch=sm_120" else argument for argument in arguments))

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("no libcudart.so", ("lib64/libcudart.so",), without("lib64/libcudart.so")),
        Mutation("no lib64", ("lib64/libcudart.so", "lib64/libcudadevrt.a"), without("lib64")),
        Mutation("no nvcc", ("bin/nvcc", "versions", "sm_", "extension"), without("bin/nvcc")),
        Mutation("no headers", ("include/cuda_runtime.h", "versions"), without("include")),
        Mutation("no toolkit", ("error",), lambda patch: patch.set(cpp_extension, "CUDA_HOME", None)),
        Mutation("a part of another release", ("versions",), changed(check, "agree", another_part)),
        Mutation(
            "torch of another CUDA", ("versions", "runtime"), lambda patch: patch.set(torch.version, "cuda", "12.8")
        ),
        Mutation("code for another GPU", ("sm_120",), changed(check, "_nvcc", another_target)),
        Mutation("no host compiler", ("sm_", "extension"), changed(check, "_run", without_path)),
        Mutation("no Python.h", ("Python.h", "extension"), changed(sysconfig, "get_path", lambda *_: "/nowhere")),
    ]


def triton() -> tuple[ModuleType, list[Mutation]]:
    import triton as library
    from smoke.checks import triton_jit as check

    def for_the_host(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        compiled = original(*arguments, **options)
        return SimpleNamespace(asm={"cubin": Path(sys.executable).read_bytes()[: len(compiled.asm["cubin"])]})

    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ptxas: no such GPU")

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("no CUDA code", ("sm_",), changed(library, "compile", for_the_host)),
        Mutation("an assembler that refuses", ("error",), changed(library, "compile", refused)),
    ]


def flashinfer() -> tuple[ModuleType, list[Mutation]]:
    from smoke import stub
    from smoke.checks import flashinfer as check

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("nothing to link -lcuda with", ("error",), changed(stub, "write", lambda *_: [])),
    ]


def apex() -> tuple[ModuleType, list[Mutation]]:
    """On a GPU, in an image with apex."""
    import torch  # noqa: F401  # the extensions find its libraries loaded

    # isort: split
    import scaled_upper_triang_masked_softmax_cuda as softmax
    from apex import optimizers
    from apex.normalization import fused_layer_norm as norms
    from smoke.checks import apex as check

    def unweighted(original: Callable[..., Any], rows: Any, weight: Any, *rest: Any) -> Any:
        return original(rows, weight * 0 + 1, *rest)

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("norm without weight", ("RMS norm",), changed(norms, "fused_rms_norm_affine", unweighted)),
        Mutation("softmax without scale", ("causal softmax",), changed(softmax, "forward", lambda f, x, _: f(x, 1.0))),
        Mutation("gradient lost", ("accumulated weight gradient",), lost_gradient),
        Mutation("optimizer idle", ("FusedAdam",), changed(optimizers.FusedAdam, "step", lambda *_: None)),
    ]


def lost_gradient(patch: Patch) -> None:
    import fused_weight_gradient_mlp_cuda as extension

    patch.set(extension, "wgrad_gemm_accum_fp32", lambda *_: None)


def transformer_engine() -> tuple[ModuleType, list[Mutation]]:
    """On a GPU, in an image with TransformerEngine."""
    from smoke.checks import transformer_engine as check
    from transformer_engine import pytorch as te

    def scaled(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return original(*arguments, **options) * 1.05

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("linear off by 5 %", ("linear",), changed(te.Linear, "forward", scaled)),
        Mutation("attention off by 5 %", ("causal attention",), changed(te.DotProductAttention, "forward", scaled)),
        Mutation("FP8 without inputs", ("linear in FP8",), changed(check, "in_fp8", lambda _, __, x: x[:, :96] * 1.0)),
    ]


def copy_of(home: str, without: str) -> str:
    """A folder of links to everything in a folder, two levels down, but one of them."""
    place = Path(tempfile.mkdtemp())
    for path in Path(home).iterdir():
        (place / path.name).mkdir()
        for child in path.iterdir() if path.name != without else ():
            if f"{path.name}/{child.name}" != without:
                (place / path.name / child.name).symlink_to(child)
    return str(place)


def without_path(original: Callable[..., Any], argv: list[str]) -> Any:
    """Hide the compiler from PATH."""
    path = os.environ.pop("PATH")
    try:
        return original(argv)
    finally:
        os.environ["PATH"] = path


MUTATIONS = {
    f.__name__: f for f in (rollout, trl_vllm, verl, megatron, toolkit, triton, flashinfer, apex, transformer_engine)
}

if __name__ == "__main__":
    main(sys.argv[1], MUTATIONS, *sys.argv[2:])
