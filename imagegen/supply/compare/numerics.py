"""Compare the numerical results of two images, and list the libraries that can be the cause. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagegen.core.text import counted
from imagegen.run.numerics import Fingerprint, Key, NumericResult
from imagegen.supply.compare.difference import Change

_SENTENCES = 3  # operations in the summary; the table has all
_BLAS = ("CUDA", "cuBLAS", "oneDNN", "torch")
_SDPA = ("CUDA", "cuDNN", "oneDNN", "torch")
_MODEL = ("CUDA", "cuBLAS", "cuDNN", "oneDNN", "torch")
# (operation, first word of the implementation) -> the libraries that compute it; "" stands for every other one.
_LIBRARIES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("matmul", ""): _BLAS,
    ("attention", "flash-attn"): ("flash-attn",),
    ("attention", "sglang"): ("sglang-kernel",),
    ("attention", "vllm"): ("vllm",),
    ("attention", ""): _SDPA,
    ("rms_norm", "sglang"): ("flashinfer", "sglang-kernel"),
    ("rms_norm", "transformers"): ("CUDA", "torch", "transformers"),
    ("rms_norm", "vllm"): ("vllm",),
    ("rms_norm", ""): ("CUDA", "torch"),
    ("all_reduce", ""): ("NCCL", "torch"),
    ("decoder", "sglang"): (*_MODEL, "flashinfer", "sglang", "sglang-kernel", "triton"),
    ("decoder", "vllm"): (*_MODEL, "flashinfer", "triton", "vllm"),
    ("decoder", ""): (*_MODEL, "transformers"),
}
_DEFAULT = ("CUDA", "torch")


@dataclass(frozen=True)
class ResultChange:
    """A result with other bytes.

    `largest` is the largest absolute difference among `sampled` values, None where one of two values is not finite;
    0 means that only values differ which were not sampled. `causes` are libraries that compute it and whose version
    changed; `repeatable` is false where one image's own second run gave other bytes.
    """

    operation: str
    implementation: str
    dtype: str
    largest: float | None
    sampled: int
    causes: tuple[Change, ...]
    repeatable: bool


@dataclass(frozen=True)
class NumericsDifference:
    """The results of two images on one device; `before` and `after` name results that only one of them has."""

    device: str
    equal: int
    changes: tuple[ResultChange, ...]
    before: tuple[Key, ...]
    after: tuple[Key, ...]
    versions: tuple[Change, ...]


@dataclass(frozen=True)
class Numerics:
    """The comparison for each device that both images were measured on; else the devices of each, for a message."""

    compared: tuple[NumericsDifference, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


def compare(before: Sequence[Fingerprint], after: Sequence[Fingerprint]) -> Numerics | None:
    """Compare the fingerprints of two images, device by device; None where neither image has one."""
    if not before and not after:
        return None
    others = {each.device: each for each in after}
    compared = tuple(difference(each, others[each.device]) for each in before if each.device in others)
    return Numerics(compared, tuple(each.device for each in before), tuple(others))


def difference(before: Fingerprint, after: Fingerprint) -> NumericsDifference:
    """Compare two fingerprints of one device. Raises ValueError for different devices."""
    if before.device != after.device:
        raise ValueError(f"{before.device} and {after.device} compute different bytes")
    versions = _versions(before, after)
    both = [key for key in before.results if key in after.results]
    changes = tuple(
        _change(key, before.results[key], after.results[key], versions)
        for key in both
        if before.results[key].sha256 != after.results[key].sha256
    )
    return NumericsDifference(
        before.device,
        len(both) - len(changes),
        changes,
        tuple(key for key in before.results if key not in after.results),
        tuple(key for key in after.results if key not in before.results),
        tuple(versions.values()),
    )


def distance(one: NumericResult, other: NumericResult) -> float | None:
    """Return the largest absolute difference of the samples: 0 for equal bytes, None where only one is finite.

    Results of different numbers of samples are compared as far as both go.
    """
    pairs = list(zip(one.samples, other.samples, strict=False))
    if one.sha256 == other.sha256:
        return 0.0
    if any((a is None) != (b is None) for a, b in pairs):
        return None
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def _change(key: Key, before: NumericResult, after: NumericResult, versions: Mapping[str, Change]) -> ResultChange:
    operation, implementation, dtype = key
    libraries = _LIBRARIES.get((operation, implementation.split()[0])) or _LIBRARIES.get((operation, ""), _DEFAULT)
    causes = tuple(versions[name] for name in (*libraries, "driver") if name in versions)
    sampled = min(len(before.samples), len(after.samples))
    repeatable = before.repeatable and after.repeatable
    return ResultChange(operation, implementation, dtype, distance(before, after), sampled, causes, repeatable)


def _versions(before: Fingerprint, after: Fingerprint) -> dict[str, Change]:
    """Return what changed, by name: libraries, and the driver."""
    had, has = ({**each.versions, **({"driver": each.driver} if each.driver else {})} for each in (before, after))
    return {
        name: Change(name, had.get(name), has.get(name))
        for name in sorted(had.keys() | has.keys())
        if had.get(name) != has.get(name)
    }


def sentences(found: Numerics) -> list[str]:
    """Return the summary: what could be compared, and the largest differences with their possible causes."""
    if not found.compared:
        sides = (" and ".join(each) or "nothing" for each in (found.before, found.after))
        return [f"numerical results are not compared: measured were {' and '.join(sides)}"]
    texts = []
    for each in found.compared:
        if not each.changes:
            texts.append(f"{counted(each.equal, 'numerical result')} equal bit for bit on {each.device}")
            continue
        total = each.equal + len(each.changes)
        ordered = sorted(each.changes, key=lambda change: _size(change.largest), reverse=True)
        shown = [describe(change) for change in ordered[:_SENTENCES]]
        more = [f"{len(ordered) - len(shown)} more"] if len(ordered) > len(shown) else []
        count = f"{len(ordered)} of {counted(total, 'numerical result')} on {each.device}"
        texts.append(f"{count} changed: {', '.join(shown + more)}")
    return texts


def describe(change: ResultChange) -> str:
    """Return "attention (sdpa cudnn_attention) in bfloat16 by up to 2.0e-03 (cuDNN 9.19.0 -> 9.22.0)"."""
    name = f"{change.operation} ({change.implementation}) in {change.dtype}"
    causes = ", ".join(f"{cause.name} {cause.before or 'none'} -> {cause.after or 'none'}" for cause in change.causes)
    return f"{name} {size(change)}" + (f" ({causes})" if causes else "")


def size(change: ResultChange) -> str:
    """Return how far a result is from the other, in words."""
    if change.largest is None:
        return "by a value that is not finite"
    if change.largest == 0:
        return f"in other values than the {change.sampled} sampled"
    return f"by up to {change.largest:.1e}"


def _size(largest: float | None) -> float:
    return float("inf") if largest is None else largest
