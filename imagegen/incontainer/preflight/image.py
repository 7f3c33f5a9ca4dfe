"""What the image says of itself: image.json, beside this package."""

from __future__ import annotations

import json
import os
from typing import Any

from .model import Image

FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "image.json")


def read(path: str = FILE) -> Image:
    with open(path, encoding="utf-8") as file:
        return from_json(json.load(file))


def from_json(fields: Any) -> Image:
    """The inverse of `to_json`; what it does not know, it leaves out."""
    return Image(
        cell=fields["cell"],
        cuda=fields["cuda"],
        gpus=tuple(fields["gpus"]),
        driver=fields["driver"],
        packages=fields["packages"],
    )


def to_json(image: Image) -> dict[str, Any]:
    return {
        "cell": image.cell,
        "cuda": image.cuda,
        "gpus": list(image.gpus),
        "driver": image.driver,
        "packages": dict(sorted(image.packages.items())),
    }
