"""The chooser of a report, with the GPUs, engines and versions by which users choose an image. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from imagegen.app import launch
from imagegen.app.states import StateName
from imagegen.spec.model import Cell

_NO_ENGINE = "none"
_NO_GPU = "none: CPU"
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}  # package -> name of the inference engine


@dataclass(frozen=True)
class ChooserValues:
    """The values of the chooser's fields, of one image or of all images."""

    gpu: tuple[str, ...]  # "H100"
    engine: tuple[str, ...]  # "vLLM"
    cuda: tuple[str, ...]  # "13.0"
    python: tuple[str, ...]  # "3.11"


def values_of(cell: Cell, packages: Collection[str]) -> ChooserValues:
    """Return the values of an image with these packages."""
    return ChooserValues(
        gpu=launch.gpu_products(cell) or (_NO_GPU,),
        engine=engines(packages),
        cuda=(cell.cuda_version,) if cell.cuda_version else (),
        python=(cell.python,),
    )


def offered(images: Sequence[ChooserValues]) -> ChooserValues:
    """Return the choices: GPUs and engines in the order of the images, versions with the newest first."""
    versions = [
        sorted({value for image in images for value in getattr(image, name)}, key=version_key, reverse=True)
        for name in ("cuda", "python")
    ]
    names = [
        tuple(dict.fromkeys(value for image in images for value in getattr(image, name))) for name in ("gpu", "engine")
    ]
    return ChooserValues(*names, *map(tuple, versions))


def preference(state: StateName, cell: Cell, defaults: Collection[str]) -> tuple[object, ...]:
    """Return the sort key of the image that the chooser proposes among those that fit.

    Tested images come first, then the newest CUDA, the flagships of the matrix, `defaults` (ids of default cells), the
    fewest architectures, and the newest Python.
    """
    cuda, python = (tuple(-part for part in version_key(text)) for text in (cell.cuda_version or "0", cell.python))
    return state != "tested", cuda, not cell.flagship, cell.id not in defaults, len(cell.gpus), python, cell.id


def engines(packages: Collection[str]) -> tuple[str, ...]:
    """Return the names of the inference engines among the packages."""
    return tuple(name for package, name in _ENGINES.items() if package in packages) or (_NO_ENGINE,)


def version_key(text: str) -> tuple[int, ...]:
    """Return the sort key of a version such as "3.12"."""
    return tuple(int(part) for part in text.split("."))
