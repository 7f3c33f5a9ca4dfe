"""What can be known before anything is compiled: whether there is something to compile with, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.errors import BuildError
from imagegen.lock.model import Lock, LockedBuild
from imagegen.matrix.model import cuda_version
from imagegen.matrix.recipe import Recipe

_NVCC = "nvidia-cuda-nvcc"


def require_compilers(lock: Lock) -> None:
    """Raise BuildError where a build of this lock would find no compiler, or one that does not fit torch's CUDA.

    What an image of a registry holds cannot be told without running it.
    """
    base = lock.base
    if base.content is None and not any(deb.name == "g++" for deb in base.debs):
        raise BuildError(
            f"{base.name} has no C++ compiler",
            why=f"{_names(lock)} must be compiled, and g++ is not among the base's {len(base.debs)} packages",
            fix="add g++ to the base's packages in the matrix, and lock again",
        )
    cuda = cuda_version(lock.axes.get("cuda", ""))
    for build in lock.builds:
        if build.architectures:
            _require_nvcc(build, lock, cuda)


def require_recipe(build: LockedBuild, recipes: Mapping[str, Recipe], lock: Lock) -> None:
    """Raise BuildError where no recipe of the cell says how to compile it, or that takes another CUDA."""
    recipe = recipes.get(build.name)
    if recipe is None:
        raise BuildError(
            f"no recipe says how {build.name} is compiled",
            why=f"{lock.cell} knows {', '.join(recipes) or 'none'}",
            fix="lock again, or write one under wheels/",
        )
    cuda = cuda_version(lock.axes.get("cuda", ""))
    if cuda and not SpecifierSet(recipe.toolkit).contains(cuda):
        raise BuildError(
            f"{build.name} {build.version} cannot be compiled with CUDA {cuda}",
            why=f"its recipe takes {recipe.toolkit}",
            fix="choose another value of the cuda axis, or another release",
        )


def _require_nvcc(build: LockedBuild, lock: Lock, cuda: str | None) -> None:
    if cuda is None:
        raise BuildError(
            f"{build.name} {build.version} is for GPUs, and {lock.cell} is not",
            why=f"it is to be compiled for compute capability {', '.join(build.architectures)}",
            fix="lock again",
        )
    nvcc = next((wheel.version for wheel in lock.wheels if wheel.name == _NVCC), None)
    if nvcc is None and lock.base.content is None:
        raise BuildError(
            f"{lock.cell} has no nvcc",
            why=f"{build.name} {build.version} is compiled for GPUs, and neither the base nor a wheel brings a toolkit",
            fix=f"let the image have {_NVCC}, or choose a base with a CUDA toolkit, and lock again",
        )
    if nvcc and Version(nvcc).release[:2] != Version(cuda).release[:2]:
        raise BuildError(
            f"nvcc {nvcc} does not fit torch, which was built with CUDA {cuda}",
            why=f"{build.name} {build.version} would be compiled with another toolkit than torch was",
            fix=f"let the image have {_NVCC}=={cuda}.*, and lock again",
        )


def _names(lock: Lock) -> str:
    return ", ".join(f"{build.name} {build.version}" for build in lock.builds)
