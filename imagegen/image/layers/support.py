"""The files of every image beside its stack: startup checks, constraints for pip and uv, a home for any user.

It lies in the topmost layer: it is small, and it changes with every pin, since it names them all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from imagegen import incontainer as preflight
from imagegen.image.layers.install import site_packages
from imagegen.incontainer.preflight.model import Image as ImageFacts
from imagegen.incontainer.preflight.model import image_to_json
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import EnvVar, cuda_version

ROOT = "/opt/imagegen"
ENTRYPOINT = f"{ROOT}/entrypoint"
CONSTRAINTS = f"{ROOT}/constraints.txt"
HOME = "/home/user"
WORKDIR = "/workspace"
OPEN = (HOME, f"{HOME}/.cache", WORKDIR)  # writable for every user, as /tmp is (1777)
# Mounts at the place that other images use end up where this image's caches are.
LINKS: Mapping[str, str] = {"/root/.cache": f"{HOME}/.cache"}
# NVIDIA's wheels make a CUDA toolkit but for these: wheel -> the libraries that linkers look for without a version, all
# of which carry CUDA's major version as their own.
LINKED = {"nvidia-cublas": ("cublas", "cublasLt"), "nvidia-cuda-nvrtc": ("nvrtc",), "nvidia-cuda-runtime": ("cudart",)}
CUDA_HOME = "/usr/local/cuda"

_HOME_BECAUSE = (
    "One home for every user, named or not: caches of Hugging Face, Triton, vLLM and flashinfer are below it."
)
_HELD_BECAUSE = "Packages installed later cannot change the stack: pip and uv reject other versions."
ENV = (
    EnvVar("HOME", HOME, _HOME_BECAUSE),
    EnvVar("LOGNAME", "user", "A name for users without one: Python's getpass.getuser() fails otherwise."),
    EnvVar("PIP_CONSTRAINT", CONSTRAINTS, _HELD_BECAUSE),
    EnvVar("UV_CONSTRAINT", CONSTRAINTS, _HELD_BECAUSE),
)


@dataclass(frozen=True)
class SupportFile:
    """A file to be. `path` is absolute in the image."""

    path: str
    content: bytes
    executable: bool = False


def files(lock: Lock) -> tuple[SupportFile, ...]:
    """Return all files of the layer but byte-code, sorted by path."""
    found = [SupportFile(f"{ROOT}/{path}", source) for path, source in preflight.modules().items()]
    found += [
        SupportFile(f"{ROOT}/{name}", program, executable=True)
        for name, program in preflight.scripts(lock.interpreter.path).items()
    ]
    facts = json.dumps(image_to_json(image_facts(lock)), indent=2, sort_keys=True) + "\n"
    found += [
        SupportFile(CONSTRAINTS, constraints(lock).encode()),
        SupportFile(f"{ROOT}/image.json", facts.encode()),
    ]
    return tuple(sorted(found, key=lambda file: file.path))


def links(lock: Lock) -> dict[str, str]:
    """The layer's links, path -> target.

    With nvcc from NVIDIA's wheels, CUDA_HOME is where compilers look for it, with lib64 and what -lcudart finds.
    """
    wheels = {wheel.name for wheel in lock.wheels}
    cuda = cuda_version(lock.axes.get("cuda", ""))
    if cuda is None or "nvidia-cuda-nvcc" not in wheels:
        return dict(LINKS)
    major = cuda.partition(".")[0]
    home = f"{site_packages(lock.python)}/nvidia/cu{major}"
    libraries = [name for wheel, names in LINKED.items() if wheel in wheels for name in names]
    return {
        **LINKS,
        CUDA_HOME: home,
        f"{home}/lib64": "lib",
        **{f"{home}/lib/lib{name}.so": f"lib{name}.so.{major}" for name in libraries},
    }


def identity(lock: Lock) -> list[list[str]]:
    """Return all that decides the layer's bytes, for its key."""
    names = [[path, "open"] for path in OPEN] + [[path, target] for path, target in links(lock).items()]
    return names + [
        [file.path, "x" if file.executable else "-", hashlib.sha256(file.content).hexdigest()] for file in files(lock)
    ]


def image_facts(lock: Lock) -> ImageFacts:
    """Return what the image's startup checks and `imagegen doctor` need to know about it."""
    return ImageFacts(
        cell=lock.cell,
        cuda=cuda_version(lock.axes.get("cuda", "")),
        gpus=lock.gpu.capabilities if lock.gpu else (),
        driver=lock.gpu.driver if lock.gpu else None,
        packages=_packages(lock),
    )


def constraints(lock: Lock) -> str:
    """constraints.txt: the exact version of everything in the stack."""
    head = (
        f"# The versions of {lock.cell}: pip and uv take no others (PIP_CONSTRAINT, UV_CONSTRAINT).\n"
        "# To choose a version yourself, remove its line.\n"
    )
    return head + "".join(f"{name}=={version}\n" for name, version in _packages(lock).items())


def _packages(lock: Lock) -> dict[str, str]:
    """Name -> version of all that the stack holds, sorted, whether what has to be compiled is there already or not."""
    return dict(sorted((each.name, each.version) for each in lock.packages))
