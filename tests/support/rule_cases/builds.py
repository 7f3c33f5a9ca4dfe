"""Builds that a local version label tells apart, each beside a CUDA that it is not for."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.rule_cases import Case, case, stack

# package, release, label, a CUDA that it is for, one that it is not for
LABELS = (
    # docs of vllm at each release; the files of 0.11.0 to 0.26.0
    ("vllm", "0.8.5", "cu118", "11.8", "12.4"),
    ("vllm", "0.8.5", "cu121", "12.1", "11.8"),
    ("vllm", "0.10.0", "cu126", "12.6", "13.0"),
    ("vllm", "0.26.0", "cu129", "12.8", "13.0"),
    ("vllm", "0.19.1", "cu130", "13.0", "12.9"),
    ("vllm", "0.29.0", "cpu", "cpu", "13.0"),
    # the pages of sgl-project/whl
    ("sgl-kernel", "0.3.14.post1", "cu124", "12.4", "13.0"),
    ("sgl-kernel", "0.3.14", "cu128", "12.8", "13.0"),
    ("sgl-kernel", "0.3.8", "cu129", "12.9", "13.0"),
    ("sgl-kernel", "0.3.21", "cu130", "13.0", "12.8"),
    ("sglang-kernel", "0.4.4", "cu129", "12.9", "13.0"),
    ("sglang-kernel", "0.4.4", "cu130", "13.0", "12.9"),
)
# of these, compiled with a CUDA 12 that does not know Blackwell: package, release, label
BEFORE_BLACKWELL = (
    ("vllm", "0.8.5", "cu121"),
    ("vllm", "0.10.0", "cu126"),
    ("sgl-kernel", "0.3.14.post1", "cu124"),
)
# vllm#56829: torchvision 0.28.0+cu129 beside torch 2.14.0+cu130: libcudart.so.12 is not there
TORCH = (
    ("cu118", "11.8", "12.4"),
    ("cu121", "12.1", "11.8"),
    ("cu124", "12.4", "11.8"),
    ("cu126", "12.6", "13.0"),
    ("cu128", "12.8", "13.0"),
    ("cu129", "12.9", "13.0"),
    ("cu130", "13.0", "12.8"),
    ("cu132", "13.2", "12.9"),
    ("cpu", "cpu", "13.0"),
)


def _cases() -> Iterator[tuple[str, Case]]:
    led = [("torchvision", "0.28.0", *each) for each in TORCH] + [("torchaudio", "2.11.0", *each) for each in TORCH]
    for package, release, label, right, wrong in (*LABELS, *led):
        name, version = package.replace("-", "_"), f"{release}+{label}"
        yield (
            f"{package}-label-{label}",
            case(
                stack(wrong, **{name: version}),
                stack(right, **{name: version}),
                stack(wrong, **{name: f"{release}+another"}),
            ),
        )
    for package, release, label in BEFORE_BLACKWELL:
        name, version = package.replace("-", "_"), f"{release}+{label}"
        yield (
            f"{package}-label-{label}-gpu",
            case(
                stack("12.8", gpu="10.0", **{name: version}),
                stack("12.8", gpu="9.0", **{name: version}),
                stack("12.8", gpu="10.0", **{name: f"{release}+another"}),
            ),
        )


CASES = dict(_cases())
