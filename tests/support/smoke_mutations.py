"""Break the smoke checks' subjects one by one and see that each break is found; runs where the suite runs.

In an image, beside the package `smoke`:   python -m smoke_mutations grpo
While developing, in a venv with torch:    PYTHONPATH=imagegen/checks:tests/support python -m smoke_mutations grpo

Prints one JSON line per mutation: its name, the findings that must be among those found, and those found. "error"
stands for an exception that the check itself did not expect. The mutation "none" must find nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from smoke.program import Spec, answer

DT_INIT = 12  # where a library's first code is
SPEC = Spec("cpu", "3.11", sys.prefix, {}, {}, {}, ("sm_90", "sm_120"))


@dataclass(frozen=True)
class Mutation:
    """`apply` changes modules through the patcher it is given; `expected` are prefixes of findings' names."""

    name: str
    expected: tuple[str, ...]
    apply: Callable[[Patch], None]
    long: bool = False  # GRPO: all the steps, since it is the learning that must fail; numerics: all-reduce too


class Patch:
    """Sets attributes and remembers what they were."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Returns the old value."""
        old = getattr(owner, name)
        self._undo.append((owner, name, old))
        setattr(owner, name, value)
        return old

    def undo(self) -> None:
        for owner, name, old in reversed(self._undo):
            setattr(owner, name, old)
        self._undo.clear()


@contextmanager
def patched(apply: Callable[[Patch], None]) -> Iterator[Patch]:
    patch = Patch()
    try:
        apply(patch)
        yield patch
    finally:
        patch.undo()


def changed(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[Patch], None]:
    """Replace a function by `change(original, *its arguments)`."""

    def apply(patch: Patch) -> None:
        old = getattr(owner, name)
        patch.set(owner, name, lambda *arguments, **options: change(old, *arguments, **options))

    return apply


def grpo() -> tuple[ModuleType, list[Mutation]]:
    import torch
    from smoke import grpo as algorithm
    from smoke.checks import grpo as check

    def advantages(change: Callable[..., Any]) -> Callable[[Patch], None]:
        return changed(algorithm, "advantages", change)

    def loss(change: Callable[..., Any]) -> Callable[[Patch], None]:
        return changed(algorithm, "policy_loss", change)

    def centred(rewards: Any) -> Any:
        return rewards - rewards.mean(1, keepdim=True)

    def surrogate(pick: Callable[..., Any]) -> Callable[..., Any]:
        """The loss with another choice between the free and the clipped ratio."""

        def changed_loss(
            _: Any, log_probs: Any, old: Any, reference: Any, advantage: Any, mask: Any, *, clip: float, beta: float
        ) -> Any:
            ratio, signal_ = torch.exp(log_probs - old), advantage[:, None]
            gain = pick(ratio * signal_, ratio.clamp(1 - clip, 1 + clip) * signal_)
            per_token = beta * algorithm.k3(log_probs, reference) - gain
            return ((per_token * mask).sum(1) / mask.sum(1)).mean()

        return changed_loss

    def dropout_on(original: Callable[..., Any], model: Any, tokens: Any) -> Any:
        model.train()
        try:
            return original(model, tokens)
        finally:
            model.eval()

    def misaligned(_: Any, model: Any, tokens: Any) -> Any:
        log_probs = algorithm.logits_of(model, tokens)[:, -algorithm.COMPLETION :].log_softmax(-1)
        return log_probs.gather(-1, tokens[:, -algorithm.COMPLETION :, None]).squeeze(-1)

    def with_gradients(original: Callable[..., Any], run: Any, *rest: Any) -> Any:
        batch = original(run, *rest)
        return replace(batch, old=algorithm.token_log_probs(run.policy, batch.rollout.tokens))

    def ratio_detached(original: Any, log_probs: Any, old: Any, reference: Any, *rest: Any, **options: Any) -> Any:
        with_kl = original(log_probs, old, reference, *rest, **options)
        without = original(log_probs, old, reference, *rest, **{**options, "beta": 0.0})
        return with_kl - without + without.detach()

    return check, [
        Mutation("none", (), lambda _: None, long=True),
        Mutation("advantage sign flipped", ("learns", "sign"), advantages(lambda f, r: -f(r)), long=True),
        Mutation("no normalisation", ("scale",), advantages(lambda _, r: centred(r))),
        Mutation("no baseline", ("sum",), advantages(lambda f, r: f(r) + 1)),
        Mutation("normalised over the batch", ("sum", "scale"), advantages(lambda _, r: (r - r.mean()) / r.std())),
        Mutation("random reward", ("learns",), changed(algorithm, "reward", _random_reward), long=True),
        Mutation(
            "k3 sign flipped",
            ("k3-positive", "k3-unbiased", "kl-positive"),
            changed(algorithm, "k3", lambda f, *a: -f(*a)),
        ),
        Mutation("k3 the wrong way round", ("k3-unbiased",), changed(algorithm, "k3", lambda f, p, q: f(q, p))),
        Mutation("k3 without gradient", ("gradient",), changed(algorithm, "k3", lambda f, *a: f(*a).detach())),
        Mutation("KL rewarded", ("gradient",), loss(lambda f, *a, clip, beta: f(*a, clip=clip, beta=-beta))),
        Mutation(
            "ratio detached",
            ("gradient", "clip", "first-gradient", "policy-moved", "learns"),
            loss(ratio_detached),
            long=True,
        ),
        Mutation("ratio always 1", ("clip",), loss(lambda f, p, _, *a, **k: f(p, p.detach(), *a, **k))),
        Mutation("no clip", ("clip",), loss(surrogate(lambda free, _: free))),
        Mutation("maximum for minimum", ("clip",), loss(surrogate(torch.maximum))),
        Mutation("padding counted", ("gradient",), loss(lambda f, *a, **k: f(*a[:-1], torch.ones_like(a[-1]), **k))),
        Mutation("loss not a number", ("finite",), loss(lambda f, *a, **k: f(*a, **k) * float("nan"))),
        Mutation("dropout left on", ("first-ratio", "sampler"), changed(algorithm, "token_log_probs", dropout_on)),
        Mutation("log-probabilities one off", ("sampler",), changed(algorithm, "token_log_probs", misaligned)),
        Mutation("old ones with gradients", ("error",), changed(algorithm, "collect", with_gradients)),
        Mutation("reference follows", ("reference-still", "kl-grows"), changed(algorithm, "frozen", lambda _, p: p)),
        Mutation(
            "optimizer idle", ("policy-moved", "ratio-moves"), changed(torch.optim.AdamW, "step", lambda *_: None)
        ),
        Mutation("no seed", ("repeats",), changed(torch, "manual_seed", lambda *_: None)),
    ]


def _random_reward(original: Callable[..., Any], *arguments: Any) -> Any:
    import torch

    return torch.rand_like(original(*arguments))


def short_grpo(patch: Patch, mutation: Mutation) -> None:
    """One seed, and a few steps where learning is not the point, so that all mutations take a minute."""
    from smoke import grpo as algorithm
    from smoke.checks import grpo as check

    patch.set(check, "SEEDS", (0,))
    if not mutation.long:
        train = algorithm.train
        patch.set(algorithm, "train", lambda make, setup: train(make, replace(setup, steps=3)))


def checkpoint() -> tuple[ModuleType, list[Mutation]]:
    import torch
    from smoke.checks import checkpoint as check

    def fresh_optimizer(original: Callable[..., Any], folder: Any) -> Any:
        model, _ = original(folder)
        return model, check.make_optimizer(model)

    def other_numbers(original: Callable[..., Any], folder: Any) -> Any:
        loaded = original(folder)
        torch.manual_seed(1)
        return loaded

    def other_weights(original: Callable[..., Any], folder: Any) -> Any:
        model, optimizer = original(folder)
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
        return model, optimizer

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("optimizer forgotten", ("step",), changed(check, "load", fresh_optimizer)),
        Mutation("random state forgotten", ("loss",), changed(check, "load", other_numbers)),
        Mutation("other weights", ("weights",), changed(check, "load", other_weights)),
    ]


def attention() -> tuple[ModuleType, list[Mutation]]:
    from smoke.checks import attention as check

    def sdpa(change: Callable[..., Any]) -> Callable[[Patch], None]:
        return changed(check, "scaled_dot_product_attention", change)

    def bent_gradient(original: Callable[..., Any], query: Any, *rest: Any, **options: Any) -> Any:
        bent = query * 1.0
        bent.register_hook(lambda gradient: gradient * 1.05)
        return original(bent, *rest, **options)

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("another scale", ("causal", "masked", "full"), sdpa(lambda f, q, *a, **k: f(q * 1.1, *a, **k))),
        Mutation("not causal", ("causal",), sdpa(lambda f, *a, is_causal: f(*a))),
        Mutation("mask ignored", ("masked",), sdpa(lambda f, q, k, v, _, is_causal: f(q, k, v, is_causal=is_causal))),
        Mutation("bent gradient", ("causal, float32", "causal, bfloat16"), sdpa(bent_gradient)),
    ]


def numerics() -> tuple[ModuleType, list[Mutation]]:
    import torch
    from smoke.checks import numerics as check
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    functional = torch.nn.functional
    half = ("softmax, torch, float16",)

    def attend(change: Callable[..., Any]) -> Callable[[Patch], None]:
        return changed(functional, "scaled_dot_product_attention", change)

    def norm(epsilon: float) -> Callable[[Patch], None]:
        return changed(functional, "rms_norm", lambda f, rows, shape, weight, _: f(rows, shape, weight, epsilon))

    def own_norm(patch: Patch) -> None:
        patch.set(
            LlamaRMSNorm, "forward", lambda own, rows: own.weight * rows / rows.square().mean(-1, keepdim=True).sqrt()
        )

    def unshifted(_: Callable[..., Any], rows: Any, dim: int) -> Any:
        return rows.exp() / rows.exp().sum(dim, keepdim=True)

    def tf32(original: Callable[..., Any], *given: Any) -> Any:
        """Round as tensor cores do where TF32 is allowed: 10 bits of the significand."""
        kept = [(each.float().view(torch.int32) & ~0x1FFF).view(torch.float32).to(each.dtype) for each in given]
        return original(*kept)

    def ranks(function: Callable[..., None]) -> Callable[[Patch], None]:
        return lambda patch: patch.set(check, "rank_main", function)

    def engine(**faults: Any) -> Callable[[Patch], None]:
        def apply(patch: Patch) -> None:
            patch.set(check, "engine_names", lambda _: ["vllm"])
            patch.set(check, "ENGINES", {"vllm": lambda folder, _: Scorer(folder, **faults)})

        return apply

    return check, [
        Mutation("none", (), engine(), long=True),
        Mutation("softmax without its maximum", half, changed(torch, "softmax", unshifted)),
        Mutation("norm without epsilon", ("rms_norm, torch, float32", "rms_norm, torch, bfloat16"), norm(0.0)),
        Mutation("norm with another epsilon", ("rms_norm, torch, float32", "rms_norm, torch, bfloat16"), norm(1e-5)),
        Mutation("transformers' norm without epsilon", ("rms_norm, transformers, bfloat16",), own_norm),
        Mutation(
            "attention without its scale", ("attention, torch, float32", "decoder, transformers, bfloat16"),
            attend(lambda f, *a, **k: f(*a, **{**k, "scale": 1.0})),
        ),
        Mutation(
            "attention that sees the future", ("attention, torch, float16",),
            attend(lambda f, *a, **k: f(*a, **{**k, "is_causal": False})),
        ),
        Mutation("TF32", ("matmul, torch, float32",), changed(torch, "matmul", tf32)),
        Mutation(
            "another rotary base", ("decoder, transformers, float16",),
            lambda patch: patch.set(check.decoder, "THETA", 5e5),
        ),
        Mutation("nothing is reduced", ("all_reduce, gloo, float32",), ranks(apart), long=True),
        Mutation("an engine with stale weights", ("decoder, vllm", "decoder, bfloat16: vllm"), engine(stale=True)),
        Mutation(
            "an engine that samples at another temperature", ("decoder, bfloat16: vllm decode",),
            engine(temperature=0.8),
        ),
    ]  # fmt: skip


def apart(*arguments: Any) -> None:
    from smoke.checks import numerics as check

    changed(check.dist, "all_reduce", lambda *_: None)(Patch())
    check.rank_main(*arguments)


class Scorer:
    """A rollout engine (smoke.rollout.Scorer) of transformers alone, with the checkpoint of a folder."""

    def __init__(self, folder: Path, *, stale: bool = False, temperature: float = 1.0) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self._temperature = temperature
        if stale:
            with torch.no_grad():
                self._model.lm_head.weight.mul_(1.2)

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        import torch
        from smoke import decoder

        return decoder.score(self._model, torch.tensor(sequences)).tolist()

    def generate(self, prompts: list[list[int]], count: int, temperature: float, tokens: int) -> list[list[Any]]:
        """The likeliest tokens: which ones does not matter here."""
        import torch
        from smoke.rollout import Completion

        rows = torch.tensor(prompts)
        log_probs = []
        for _ in range(tokens):
            with torch.no_grad():
                last = (self._model(rows).logits[:, -1].float() / self._temperature).log_softmax(-1)
            best = last.max(-1)
            log_probs.append(best.values)
            rows = torch.cat([rows, best.indices[:, None]], 1)
        chosen = zip(rows[:, -tokens:].tolist(), torch.stack(log_probs, 1).tolist(), strict=True)
        return [[Completion(*each)] for each in chosen]


def collective() -> tuple[ModuleType, list[Mutation]]:
    from smoke.checks import collective as check

    def ranks(function: Callable[..., None]) -> Callable[[Patch], None]:
        return lambda patch: patch.set(check, "rank_main", function)

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("ranks end without a word", ("finished",), ranks(silent_rank)),
        Mutation("a rank dies", ("error",), ranks(dying_rank)),
        Mutation("nothing is reduced", ("all_reduce",), ranks(lonely_rank)),
    ]


def fabric() -> tuple[ModuleType, list[Mutation]]:
    """NCCL's check over gloo: its log is empty here, and the mutations of the log are lines of NCCL's form."""
    from smoke.checks import fabric as check

    def ranks(function: Callable[..., None]) -> Callable[[Patch], None]:
        return lambda patch: patch.set(check, "rank_main", function)

    def sockets(original: Callable[..., Any], _: Any) -> Any:
        return original(["h:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0"])

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("ranks end without a word", ("finished",), ranks(silent_rank)),
        Mutation("a rank dies", ("error",), ranks(dying_rank)),
        Mutation("nothing is reduced", ("sum",), ranks(lonely_fabric_rank)),
        Mutation("sockets on one host", ("sockets",), changed(check, "parse", sockets)),
    ]


def silent_rank(*_: Any) -> None:
    pass


def dying_rank(rank: int, *_: Any) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


def lonely_rank(*arguments: Any) -> None:
    from smoke.checks import collective as check

    changed(check.dist, "all_reduce", lambda *_: None)(Patch())
    check.rank_main(*arguments)


def lonely_fabric_rank(*arguments: Any) -> None:
    from smoke.checks import fabric as check

    changed(check.dist, "all_reduce", lambda *_: None)(Patch())
    check.rank_main(*arguments)


def sb3() -> tuple[ModuleType, list[Mutation]]:
    from smoke.checks import sb3 as check

    def act(change: Callable[..., Any]) -> Callable[[Patch], None]:
        return changed(check, "act", change)

    def everything(_: Callable[..., Any], worlds: Any, *__: Any, **___: Any) -> list[Any]:
        return [[True] * check.ACTIONS] * worlds.num_envs

    model = check.MaskablePPO
    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("unmasked", ("legal",), act(lambda f, model, **_: f(model, masked=False))),
        Mutation("always masked", ("control",), act(lambda f, model, **_: f(model, masked=True))),
        Mutation(
            "unmasked in processes", ("subprocess-legal",), changed(check.SubprocVecEnv, "env_method", everything)
        ),
        Mutation("learns nothing", ("learns", "subprocess-steps"), changed(model, "learn", lambda *_: None)),
        Mutation("loads another", ("same",), changed(model, "load", lambda *_, **__: check.construct(seed=1))),
    ]


def loading() -> tuple[ModuleType, list[Mutation]]:
    from smoke import forks
    from smoke.checks import loading as check

    folder = Path(tempfile.mkdtemp(dir=sys.prefix))
    library = next(path for path in check.libraries(Path(sys.prefix)) if b"\0PyErr_SetString\0" in path.read_bytes())

    def beside(name: str, **changes: Any) -> Callable[[Patch], None]:
        """One library more in the image: a copy of one that it has, damaged."""

        def apply(patch: Patch) -> None:
            made = folder / name
            made.write_bytes(damaged(library.read_bytes(), **changes))
            patch.set(check, "libraries", lambda _: [library, made])

        return apply

    def dies(original: Callable[..., Any], name: str, image: Any) -> Any:
        if name.endswith(".so"):
            os.kill(os.getpid(), signal.SIGSEGV)
        return original(name, image)

    def half(original: Callable[..., Any], names: Any, *rest: Any, **options: Any) -> Any:
        return original(list(names)[::2], *rest, **options)

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation(
            "a symbol that nobody has", (f"{folder.name}/symbol",), beside("symbol.so", symbol=b"PyErr_SetStrink")
        ),
        Mutation("a CUDA that is not there", (f"{folder.name}/cuda",), beside("cuda.so", needed=b"libcudart.so.9\0")),
        Mutation("a start that crashes", (f"{folder.name}/start",), beside("start.so", start=0)),
        Mutation("cut off", (f"{folder.name}/short",), beside("short.so", size=5000)),
        Mutation("every library dies", (os.path.relpath(library, sys.prefix),), changed(check, "load", dies)),
        Mutation("nothing is there", ("any",), lambda patch: patch.set(check, "libraries", lambda _: [])),
        Mutation("half is left out", ("all",), changed(forks, "each", half)),
    ]


def damaged(
    content: bytes, *, symbol: bytes = b"", needed: bytes = b"", start: int | None = None, size: int | None = None
) -> bytes:
    """A library that wants another symbol, another library, or begins somewhere else."""
    from smoke import elf

    changed = bytearray(content[:size])
    name = content.index(b"\0PyErr_SetString\0") + 1
    changed[name : name + 15] = symbol or needed or changed[name : name + 15]
    header = elf.HEADER.unpack_from(content)
    rows = [elf.SECTION.unpack_from(content, header[6] + index * elf.SECTION.size) for index in range(header[12])]
    dynamic = next(row for row in rows if row[1] == elf.SHT_DYNAMIC)
    for at in range(dynamic[4], dynamic[4] + dynamic[5], elf.DYNAMIC.size) if size is None else ():
        tag, _ = elf.DYNAMIC.unpack_from(content, at)
        if tag == elf.DT_NEEDED and needed:
            elf.DYNAMIC.pack_into(changed, at, tag, name - rows[dynamic[6]][4])
        if tag == DT_INIT and start is not None:
            elf.DYNAMIC.pack_into(changed, at, tag, start)
    return bytes(changed)


def trl_grpo() -> tuple[ModuleType, list[Mutation]]:
    from smoke.checks import trl_grpo as check
    from trl import GRPOTrainer

    def trainer(method: str, change: Callable[..., Any]) -> Callable[[Patch], None]:
        return changed(GRPOTrainer, method, change)

    def sign_flipped(original: Callable[..., Any], *arguments: Any) -> Any:
        batch = original(*arguments)
        return {**batch, "advantages": -batch["advantages"]}

    def halved(original: Callable[..., Any], self: Any, folder: Any = None, state_dict: Any = None) -> Any:
        return original(self, folder, {name: value / 2 for name, value in self.model.state_dict().items()})

    def following(original: Callable[..., Any], *arguments: Any) -> Any:
        made = original(*arguments)
        made.ref_model = made.model
        return made

    return check, [
        Mutation("none", (), lambda _: None),
        Mutation("dead reward", ("gradient", "learns", "policy-moved"), changed(check, "score", lambda *_: 0.0)),
        Mutation("advantage sign flipped", ("learns",), trainer("_generate_and_score_completions", sign_flipped)),
        Mutation("learning rate 0", ("learns", "policy-moved"), lambda patch: patch.set(check, "LEARNING_RATE", 0.0)),
        Mutation("prompt lost", ("learns",), lambda patch: patch.set(check, "TEMPLATE", check.ASK)),
        Mutation("reference follows", ("kl-grows",), changed(check, "make_trainer", following)),
        Mutation("other weights saved", ("checkpoint",), trainer("_save", halved)),
        Mutation("checkpoint ignored", ("resumed-reward",), trainer("_load_from_checkpoint", lambda *_, **__: None)),
    ]


MUTATIONS = {f.__name__: f for f in (grpo, checkpoint, attention, numerics, collective, fabric, sb3, loading, trl_grpo)}


def main(name: str, mutations_of: Mapping[str, Callable[[], tuple[ModuleType, list[Mutation]]]], *only: str) -> None:
    """Run all mutations of that name, or those named by `only`."""
    check, mutations = mutations_of[name]()
    for mutation in mutations:
        if only and mutation.name not in only:
            continue
        with patched(mutation.apply) as patch:
            if name == "grpo":
                short_grpo(patch, mutation)
            if name == "numerics" and not mutation.long:
                patch.set(check, "all_reduce", lambda _: None)  # its processes take longer than all the rest
            status, reason, details = answer(check.check, SPEC)
        found = sorted(details.get("wrong", ["error"] if status == "fail" else []))
        line = {"mutation": mutation.name, "expected": mutation.expected, "found": found, "reason": reason}
        print(json.dumps(line), flush=True)  # noqa: T201  # its output is its result


if __name__ == "__main__":
    main(sys.argv[1], MUTATIONS)
