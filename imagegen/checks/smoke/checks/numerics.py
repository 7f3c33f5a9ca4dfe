"""Measure matmul, attention, RMSNorm, softmax, all-reduce and a small decoder: against float64, and against each other.

Trainer and rollout engine compute the same log-probabilities with other kernels. How far they are apart decides how
far a policy gradient is off-policy (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training"; arXiv 2605.14220). The results are numbers, and a fingerprint that `imagegen diff` compares with another
image's.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from smoke import bounds, decoder, device, engines, rollout
from smoke.inputs import values
from smoke.measure import difference, dtype_name, fingerprint, same_bytes
from smoke.operations import DTYPES, OPERATIONS, Operation
from smoke.program import Details, Findings, Spec, step
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing import spawn

FORMAT = 1  # of the details; fingerprints of different formats are not comparable
ENGINES: dict[str, Callable[..., rollout.Scorer]] = {"vllm": engines.Vllm, "sglang": engines.SGLang}
ENGINE_DTYPE = torch.bfloat16  # of the weights in the engine: each dtype would take another start of it
REDUCED = 1 << 16  # values that all-reduce adds up
DECODED = 8  # tokens that the engine appends to the first half of a sequence


class Measurement:
    """Collects rows and judges each that has a bound."""

    def __init__(self, device_type: str, seed: int = 0) -> None:
        self.device, self.seed = device_type, seed
        self.bound_device = torch.cuda.get_device_name(0) if device_type == "cuda" else "cpu"
        self.findings = Findings()
        self.operations: list[dict[str, Any]] = []
        self.pairs: list[dict[str, Any]] = []
        self.skipped: dict[str, str] = {}  # operation, implementation, dtype -> reason

    def add(
        self,
        operation: str,
        implementation: str,
        dtype: torch.dtype,
        run: Callable[[], Tensor],
        expected: Tensor,
        *,
        selective: bool = False,
    ) -> tuple[dict[str, Any], Tensor] | None:
        """Run twice; add the difference to the reference `expected`, and the fingerprint.

        Return the row and the result, None where it is skipped or failed. A selective implementation may refuse inputs.
        """  # fmt: skip
        row: dict[str, Any] = {
            "operation": operation, "implementation": implementation, "dtype": dtype_name(dtype)
        }  # fmt: skip
        name = ", ".join(row.values())
        step(name)
        try:
            result = run()
            again = run()
        except ModuleNotFoundError as error:
            self.skipped[name] = f"not in this image: {error}"
            return None
        except Exception as error:  # noqa: BLE001  # one error must not hide the results of the others
            reason = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
            if selective:
                self.skipped[name] = reason
            else:
                self.findings.expect(name, False, f"{name} raises {reason}")
            return None
        if result.shape != expected.shape:
            shapes = f"{tuple(result.shape)} in place of {tuple(expected.shape)}"
            self.findings.expect(name, False, f"{name} has the shape {shapes}")
            return None
        numbers = difference(result, expected)
        row |= {**numbers, **self._judge(operation, name, row["dtype"], numbers, "the float64 reference")}
        row |= {**fingerprint(operation, result), "repeatable": same_bytes(result, again)}
        self.operations.append(row)
        return row, result

    def pair(self, operation: str, dtype: torch.dtype, one: tuple[str, Tensor], other: tuple[str, Tensor]) -> None:
        """Add the difference of two implementations' results; relative differences are over the values of `one`."""
        row = {"operation": operation, "dtype": dtype_name(dtype), "one": one[0], "other": other[0]}
        name = f"{operation}, {row['dtype']}: {other[0]}"
        numbers = difference(other[1], one[1])
        # Of other operations both have been judged by the reference; what an engine decodes has none.
        judged = self._judge(f"{operation} pair", name, row["dtype"], numbers, one[0])
        self.pairs.append({**row, **numbers, **judged, "equal": same_bytes(one[1], other[1])})

    def _judge(
        self, operation: str, name: str, dtype: str, numbers: dict[str, float | None], expected: str
    ) -> dict[str, float | None]:
        """Keep a finding where the difference is not finite, or above its bound; return the bound."""
        largest = numbers["largest_relative"]
        bound = bounds.find(self.bound_device, operation, dtype)
        if largest is None:
            self.findings.expect(name, False, f"{name} differs from {expected} by a value that is not finite")
        elif bound:
            self.findings.expect(
                name, largest <= bound.limit,
                f"{name} differs from {expected} by {largest:.1e} of its largest value; the bound is {bound.limit:.1e}",
            )  # fmt: skip
        return {"bound": bound.limit if bound else None}


def check(spec: Spec) -> Details:
    if spec.device == "cpu":
        torch.set_num_threads(1)  # with one thread, the CPU's sums have one order
    measured = Measurement(spec.device)
    for operation in OPERATIONS:
        measure(operation, measured)
    attempt("all_reduce", measured, partial(all_reduce, measured))
    models = trainer(measured)
    for name in engine_names(spec) if "transformers" in models else ():
        attempt(name, measured, partial(start_and_score, name, models, measured))
    return measured.findings.done(report(measured))


def attempt(name: str, measured: Measurement, function: Callable[[], None]) -> None:
    """Call a function that starts processes; its error is a finding beside the other results."""
    try:
        function()
    except Exception as error:  # noqa: BLE001  # one error must not hide the results of the others
        traceback.print_exc()
        measured.findings.expect(name, False, f"{name} raises {type(error).__name__}: {error}")


def engine_names(spec: Spec) -> list[str]:
    """Return the rollout engines of the image, which need a GPU."""
    return [name for name in ENGINES if name in spec.versions and spec.device == "cuda"]


def report(measured: Measurement) -> Details:
    """Return the check's details; see docs/how-to/measure-numerics.md."""
    details: Details = {
        "format": FORMAT,
        "device": device.describe(measured.device),
        "versions": device.versions(measured.device),
        "operations": measured.operations,
        "pairs": measured.pairs,
        "not_run": measured.skipped,
    }
    unjudged = sorted({row["operation"] for row in measured.operations if row["bound"] is None})
    if unjudged:
        details["note"] = f"no bound was measured on {measured.bound_device} for {', '.join(unjudged)}: not judged"
    return details


def measure(operation: Operation, measured: Measurement) -> None:
    """Run every implementation of an operation in every dtype, against the reference and against the first one."""
    implementations = list(operation.implementations(measured.device))
    for dtype in DTYPES:
        inputs = [tensor.to(dtype) for tensor in operation.inputs(measured.seed)]
        expected = operation.reference(*(tensor.double() for tensor in inputs))
        given = [tensor.to(measured.device) for tensor in inputs]
        first: tuple[str, Tensor] | None = None
        for each in implementations:
            if dtype not in each.dtypes:
                continue
            found = measured.add(
                operation.name, each.name, dtype, partial(each.run, *given), expected, selective=each.selective
            )
            if found is None:
                continue
            row, result = found
            if operation.piece:
                # Engines batch otherwise than trainers: a row's result should not depend on the rows beside it.
                alone = each.run(*operation.piece(*given))
                row["batch_invariant"] = same_bytes(alone, result[:1])
            if first:
                measured.pair(operation.name, dtype, first, (each.name, result))
            first = first or (each.name, result)


# ---- all-reduce


def all_reduce(measured: Measurement) -> None:
    """Add up REDUCED values over two processes with gloo, or over up to four GPUs with NCCL."""
    world = min(4, torch.cuda.device_count()) if measured.device == "cuda" else 2
    if world < 2:
        measured.skipped["all_reduce"] = "one GPU"
        return
    backend = "nccl" if measured.device == "cuda" else "gloo"
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"})
    step(f"all_reduce, {backend}, {world} processes")
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank_main, (world, backend, measured.device, measured.seed, folder), nprocs=world)
        results = torch.load(f"{folder}/results.pt", weights_only=True)
    for dtype in DTYPES:
        parts = [part(rank, measured.seed, dtype).double() for rank in range(world)]
        run = partial(_reduced, results[dtype_name(dtype)])
        found = measured.add("all_reduce", backend, dtype, run, torch.stack(parts).sum(0))
        if found:
            del found[0]["repeatable"]  # it ran once


def part(rank: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Return what one process brings: (REDUCED,)."""
    return values(f"all_reduce {rank}", REDUCED, seed=seed).to(dtype)


def _reduced(result: Tensor | str) -> Tensor:
    if isinstance(result, str):
        raise RuntimeError(result)  # noqa: TRY004  # the process's own error
    return result


def rank_main(rank: int, world: int, backend: str, device_type: str, seed: int, folder: str) -> None:
    """One process; the first one writes the result of each dtype, or the message of its error."""
    torch.set_num_threads(1)
    target = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device_type == "cuda":
        torch.cuda.set_device(target)
    dist.init_process_group(backend, f"file://{folder}/store", timedelta(seconds=60), world, rank)
    results: dict[str, Tensor | str] = {}
    try:
        for dtype in DTYPES:
            mine = part(rank, seed, dtype).to(target)
            try:
                dist.all_reduce(mine)
                results[dtype_name(dtype)] = mine.cpu()
            except RuntimeError as error:
                results[dtype_name(dtype)] = str(error)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    if rank == 0:
        torch.save(results, Path(folder, "results.pt"))


# ---- the decoder


def trainer(measured: Measurement) -> dict[str, torch.nn.Module]:
    """Score fixed sequences with transformers; return the models whose weights are those of an engine, by name."""
    if importlib.util.find_spec("transformers") is None:
        measured.skipped["decoder"] = "transformers is not in this image"
        return {}
    models: dict[str, torch.nn.Module] = {}
    tokens = decoder.sequences(measured.seed)
    for dtype in DTYPES:
        weights = {name: weight.to(dtype) for name, weight in decoder.weights().items()}
        expected = decoder.reference(weights, tokens)
        model = decoder.make(weights).to(measured.device)
        found = measured.add("decoder", "transformers", dtype, partial(_score, model, tokens, measured), expected)
        if found and dtype == ENGINE_DTYPE:
            models["transformers"] = model
            whole = decoder.make({key: weight.float() for key, weight in weights.items()}).to(measured.device)
            automatic = _Autocast(whole, measured.device)
            models["transformers autocast"] = automatic
            run = partial(_score, automatic, tokens, measured)
            if other := measured.add("decoder", "transformers autocast", dtype, run, expected):
                measured.pair("decoder", dtype, ("transformers", found[1]), ("transformers autocast", other[1]))
    return models


class _Autocast(torch.nn.Module):
    """A model of float32 weights that computes in ENGINE_DTYPE where autocast says so, as mixed-precision trainers."""

    def __init__(self, model: torch.nn.Module, device_type: str) -> None:
        super().__init__()
        self.model, self.device_type = model, device_type

    def forward(self, tokens: Tensor) -> Any:
        with torch.autocast(self.device_type, dtype=ENGINE_DTYPE):
            return self.model(tokens)


def _score(model: torch.nn.Module, tokens: Tensor, measured: Measurement) -> Tensor:
    return decoder.score(model, tokens.to(measured.device)).cpu()


@contextmanager
def started(name: str, model: torch.nn.Module) -> Iterator[rollout.Scorer]:
    """Start the rollout engine of ENGINES with this model's weights."""
    # Only top-k and top-p sampling use FlashInfer's sampler, and its compilation takes minutes.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    with tempfile.TemporaryDirectory() as folder:
        rollout.save(model, Path(folder), rollout.words(decoder.VOCABULARY))
        step(f"decoder, {name} starts")
        yield ENGINES[name](Path(folder), decoder.CONTEXT)


def start_and_score(name: str, models: dict[str, torch.nn.Module], measured: Measurement) -> None:
    """Start an engine and measure it."""
    with started(name, models["transformers"]) as running:
        engine(name, running, models, measured)


def engine(name: str, running: rollout.Scorer, models: dict[str, torch.nn.Module], measured: Measurement) -> None:
    """Score the same sequences with a rollout engine, and what it generates itself with the trainer's models."""
    tokens = decoder.sequences(measured.seed)
    weights = {key: weight.to(ENGINE_DTYPE) for key, weight in decoder.weights().items()}
    found = measured.add(
        "decoder", name, ENGINE_DTYPE, lambda: torch.tensor(running.score(tokens.tolist())),
        decoder.reference(weights, tokens),
    )  # fmt: skip
    # The prompt's log-probabilities come from the prefill; those of generated tokens from decoding, one by one.
    prompts = tokens[:, : decoder.LENGTH // 2].tolist()
    answers = [completions[0] for completions in running.generate(prompts, 1, 1.0, DECODED)]
    step(f"decoder, {name} against the trainer")
    decoded = torch.tensor([value for answer in answers for value in answer.log_probs])
    for trained, model in models.items():
        if found:
            own = _score(model, tokens, measured)
            measured.pair("decoder", ENGINE_DTYPE, (trained, own), (f"{name} prefill", found[1]))
        rows = [
            _score(model, torch.tensor([prompt + answer.tokens]), measured)[0, len(prompt) - 1 :]
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        measured.pair("decoder", ENGINE_DTYPE, (trained, torch.cat(rows)), (f"{name} decode", decoded))
