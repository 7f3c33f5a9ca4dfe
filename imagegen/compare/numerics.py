"""Compare the numerical results of two images, and list the libraries that can be the cause. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagegen.compare.difference import Change
from imagegen.core.text import counted
from imagegen.run.numerics import Fingerprint, Key, NumericResult

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

    `largest` is the largest absolute difference among `sampled` values; it is None if one of two values is not finite,
    and 0 if only values differ that were not sampled. `causes` are libraries that compute the result and whose version
    changed. `repeatable` is false if a second run in one of the images gave other bytes.
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
    """The comparison for each device that both images were measured on, and the devices of each image."""

    compared: tuple[NumericsDifference, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


def compare(before: Sequence[Fingerprint], after: Sequence[Fingerprint]) -> Numerics | None:
    """Compare the fingerprints of two images, device by device; None if neither image has one."""
    if not before and not after:
        return None
    after_by_device = {fingerprint.device: fingerprint for fingerprint in after}
    compared = tuple(
        difference(fingerprint, after_by_device[fingerprint.device])
        for fingerprint in before
        if fingerprint.device in after_by_device
    )
    return Numerics(compared, tuple(fingerprint.device for fingerprint in before), tuple(after_by_device))


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


def distance(before: NumericResult, after: NumericResult) -> float | None:
    """Return the largest absolute difference of the samples: 0 for equal bytes, None if only one is finite.

    Only the samples that both results have are compared.
    """
    pairs = list(zip(before.samples, after.samples, strict=False))
    if before.sha256 == after.sha256:
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
    """Return the changed versions of libraries and of the driver, by name."""
    old, new = (
        {**fingerprint.versions, **({"driver": fingerprint.driver} if fingerprint.driver else {})}
        for fingerprint in (before, after)
    )
    return {
        name: Change(name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    }


def sentences(numerics: Numerics) -> list[str]:
    """Return the summary with the largest differences and their possible causes."""
    if not numerics.compared:
        before, after = (" and ".join(devices) or "no device" for devices in (numerics.before, numerics.after))
        return [f"numerical results are not compared because they were measured on {before} and on {after}"]
    texts = []
    for comparison in numerics.compared:
        if not comparison.changes:
            texts.append(f"{counted(comparison.equal, 'numerical result')} equal bit for bit on {comparison.device}")
            continue
        total = comparison.equal + len(comparison.changes)
        ordered = sorted(comparison.changes, key=lambda change: _size(change.largest), reverse=True)
        shown = [describe(change) for change in ordered[:_SENTENCES]]
        remainder = [f"{len(ordered) - len(shown)} more"] if len(ordered) > len(shown) else []
        count = f"{len(ordered)} of {counted(total, 'numerical result')} on {comparison.device}"
        texts.append(f"{count} changed: {', '.join(shown + remainder)}")
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
