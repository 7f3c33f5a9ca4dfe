"""The main software of a lock, by whose versions an image is chosen, searched and tagged."""

from __future__ import annotations

from imagegen.lock.model import Lock
from imagegen.lock.wheels import LockedBuild, LockedWheel

# Users choose an image by these, the most important first; lock and SBOM have the versions of all packages.
MAIN = (
    *("torch", "vllm", "sglang", "verl", "trl", "stable-baselines3", "sb3-contrib", "prime-rl"),
    *("transformers", "megatron-core", "mbridge", "flash-attn", "transformer-engine", "apex"),
)
_SERVING = ("vllm", "sglang")


def main_versions(lock: Lock) -> dict[str, str]:
    """Name -> version of the main components that the lock holds, in the order of MAIN."""
    versions = {package.name: package.version for package in lock.packages}
    return {name: versions[name] for name in MAIN if name in versions}


def title(lock: Lock) -> str:
    """Return a title such as torch2.13.0-cu130-vllm0.31.0-py311: fit for a tag, hence without local versions.

    The part of CUDA is the cell's value of the axis. The components are torch, and the one that serves, if any.
    """
    versions = {name: version.partition("+")[0] for name, version in main_versions(lock).items()}
    torch = [f"torch{versions['torch']}"] if "torch" in versions else []
    serving = [f"{name}{versions[name]}" for name in _SERVING if name in versions]
    return "-".join([*torch, lock.axes["cuda"], *serving, f"py{lock.python.replace('.', '')}"])


def reason(pin: LockedWheel | LockedBuild) -> str:
    """Return why this pin is in the lock, on one line."""
    if pin.because:
        return pin.because
    return "needed by " + ", ".join(pin.via) if pin.via else "asked for by the image"
