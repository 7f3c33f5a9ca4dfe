"""A lock with a source build, and the recipe that it was made from."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import replace

from imagegen.lock.model import BUILT, Lock, LockedBuild, LockedFile, LockedGpus, LockedWheel
from imagegen.spec.recipe import Architectures, Cost, Recipe, SdistFile
from tests.support.tiny_lock import LOCK, A, B, C, D, wheel

COST = Cost(units=4, seconds=60.0, memory=2 << 30, largest=3 << 30, source="a test")
RECIPE = Recipe(
    component="demo-ext",
    releases={"1.0": SdistFile("demo_ext-1.0.tar.gz", D, 5)},
    requires=("torch",),
    build_requires=("setuptools==80.9.0",),
    against=("torch",),
    patches=(),
    env=(),
    architectures=Architectures("TORCH_CUDA_ARCH_LIST", ";", {"9.0": "9.0", "12.0": "12.0"}),
    modules=("demo_cuda",),
    jobs="MAX_JOBS",
    threads="NVCC_THREADS",
    toolkit="",
    cost=COST,
    source="a test",
)
BUILD = LockedBuild(
    name="demo-ext",
    version="1.0",
    because="Tests.",
    via=(),
    choice="no wheel is for torch 2.13",
    source=LockedFile("demo_ext-1.0.tar.gz", 5, D, "pypi"),
    git=None,
    submodules=(),
    patches=(),
    requires=("torch",),
    build_requires=(wheel("setuptools", "80.9.0", C),),
    against=("nvidia-cuda-nvcc", "torch"),
    env={"TORCH_CUDA_ARCH_LIST": "9.0;12.0"},
    architectures=("9.0", "12.0"),
    modules=("demo_cuda",),
    key="sha256:" + "0123456789abcdef" * 4,
)
NVCC = wheel("nvidia-cuda-nvcc", "13.0.88", A)
WITH_BUILD: Lock = replace(
    LOCK,
    cell="tiny-cu130-py311",
    axes={**LOCK.axes, "cuda": "cu130"},
    gpu=LockedGpus(("9.0", "12.0"), "580.65.06"),
    wheels=tuple(sorted((*LOCK.wheels, NVCC), key=lambda each: each.name)),
    builds=(BUILD,),
)
# As it is once the wheel is there.
BUILT_WHEEL = LockedWheel(
    "demo-ext",
    "1.0",
    LockedFile("demo_ext-1.0-cp311-cp311-linux_x86_64.whl", 7, B, BUILT),
    via=(),
    because=BUILD.because,
    choice=BUILD.choice,
    build=BUILD.key,
)


def packed(files: Mapping[str, bytes]) -> bytes:
    """An sdist with these files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"demo_ext-1.0/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()
