"""For each shipped rule, combinations that its source says fail and work: facts, not made from the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from imagegen.compat import Fact, Facts

SOUND = {
    "CUDA_HOME": "/usr/local/cuda",
    "TORCH_CUDA_ARCH_LIST": "9.0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "WANDB_MODE": "offline",
}


@dataclass(frozen=True)
class Case:
    """`works` is the nearest to `fails` that its source says works; `silent` lie just outside the rule's range."""

    fails: tuple[Facts, ...]
    works: Facts
    silent: tuple[Facts, ...] = ()


def case(fails: Facts | tuple[Facts, ...], works: Facts, *silent: Facts) -> Case:
    return Case(fails if isinstance(fails, tuple) else (fails,), works, silent)


def stack(
    cuda: str = "13.0",
    *,
    gpu: str = "9.0",
    driver: str = "595.58.03",
    python: str = "3.11",
    glibc: str = "2.36",
    base: str = "of-the-test",
    platform: str = "linux/amd64",
    env: Mapping[str, str] | None = None,
    **packages: str,
) -> Facts:
    """An installation of exactly these packages, on an H200 with a recent driver unless something else is said."""
    versions = {
        "python": Fact(python, SpecifierSet(f"~={python}.0").to_range()),
        "glibc": Fact.exactly(glibc),
        "gpu": Fact.exactly(gpu),
        "driver": Fact.exactly(driver),
    }
    names = {"base": base, "platform": platform}
    if cuda == "cpu":
        names["cuda"] = cuda
    else:
        versions["cuda"] = Fact.exactly(cuda)
    installed = {name.replace("_", "-"): Fact.exactly(version) for name, version in packages.items()}
    return Facts(installed, versions, names, closed=True, env=SOUND if env is None else {**SOUND, **env})
