"""A stand-in for NVIDIA/apex, for tests: written from facts about apex's setup.py (6424da3b, read 2026-11-21).

It builds as apex does: C++ and CUDA extensions only where APEX_CPP_EXT=1 and APEX_CUDA_EXT=1 ask for them, else without
a word a wheel of Python alone; no CUDA extension unless nvcc's release is the CUDA that torch was built with. It needs
torch in place, takes its architectures from TORCH_CUDA_ARCH_LIST and its jobs from MAX_JOBS.
"""

import os
import re
import subprocess

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension


def asked(variable: str) -> bool:
    return os.environ.get(variable) == "1"


def require_the_cuda_of_torch() -> None:
    if CUDA_HOME is None:
        raise RuntimeError("APEX_CUDA_EXT=1, and there is no nvcc")
    said = subprocess.run([f"{CUDA_HOME}/bin/nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([0-9]+\.[0-9]+)", said)[1]
    if release != torch.version.cuda:
        raise RuntimeError(f"nvcc is of CUDA {release}, torch was built with {torch.version.cuda}")


extensions = []
flags = {"cxx": ["-O1", "-g0"], "nvcc": ["-O3", "--use_fast_math"]}
if asked("APEX_CPP_EXT"):
    extensions.append(CppExtension("apex_like_C", ["csrc/flatten.cpp"], extra_compile_args=flags))
if asked("APEX_CUDA_EXT"):
    require_the_cuda_of_torch()
    extensions.append(
        CUDAExtension("apex_like_cuda", ["csrc/scale.cpp", "csrc/scale_kernel.cu"], extra_compile_args=flags)
    )

setup(
    name="apex-like",
    version="0.1",
    packages=["apex_like"],
    install_requires=["packaging>20.6"],
    ext_modules=extensions,
    cmdclass={"build_ext": BuildExtension} if extensions else {},
)
