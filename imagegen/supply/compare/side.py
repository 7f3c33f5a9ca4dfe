"""One of the two that are compared: a lock, an image, or both, as far as something is known of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagegen.core import registry
from imagegen.image import base
from imagegen.image.layers import base_layers, environment
from imagegen.image.layers.image import LABEL
from imagegen.image.layers.plan import plan
from imagegen.plan.lock.model import Lock
from imagegen.plan.lock.title import main_versions
from imagegen.run.smoke.numerics import Fingerprint

_VERSION = f"{LABEL}version."


@dataclass(frozen=True)
class Part:
    """A layer; fields that are not known are None.

    `size` is of the compressed blob, or an estimate without a digest; None for wheels that are yet to be compiled.
    """

    name: str
    key: str | None
    digest: str | None
    size: int | None


@dataclass(frozen=True)
class DiffOperand:
    """`name` is what the user called it, `source` what it was read from, in words."""

    name: str
    source: str
    lock: Lock | None
    digest: str | None  # of the image's manifest
    parts: tuple[Part, ...] | None  # layers from the bottom up; None: not known
    versions: Mapping[str, str]  # of the main components
    env: Mapping[str, str]
    capabilities: str | None  # "9.0,12.0"
    driver: str | None
    unpacked: int | None  # bytes on a disk
    fingerprints: tuple[Fingerprint, ...] = ()  # of numerical results, that are attached to the image

    @property
    def size(self) -> int | None:
        """Compressed bytes; None where something of it is not known."""
        sizes = [part.size for part in self.parts or ()]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)


def of_lock(
    name: str, source: str, lock: Lock, image: registry.Image | None = None, unpacked: int | None = None
) -> DiffOperand:
    """Return the operand of a lock; if there is an image of it, the layers are the image's."""
    record = lock.record
    digest = image.digest if image else record.digest if record else None
    return DiffOperand(
        name=name,
        source=source,
        lock=lock,
        digest=digest,
        parts=_of_image(image, lock) if image else _of_lock(lock),
        versions=main_versions(lock),
        env=environment(lock),
        capabilities=",".join(lock.gpu.capabilities) if lock.gpu else None,
        driver=lock.gpu.driver if lock.gpu else None,
        unpacked=unpacked,
    )


def of_image(name: str, source: str, image: registry.Image) -> DiffOperand:
    """Return the operand of an image without a lock, from its labels and its environment."""
    labels = image.config.labels
    return DiffOperand(
        name=name,
        source=source,
        lock=None,
        digest=image.digest,
        parts=_of_image(image, None),
        versions={key.removeprefix(_VERSION): value for key, value in labels.items() if key.startswith(_VERSION)},
        env={name: value for name, _, value in (each.partition("=") for each in image.config.env)},
        capabilities=labels.get(f"{LABEL}gpu.capabilities"),
        driver=labels.get(f"{LABEL}gpu.driver"),
        unpacked=None,
    )


def _of_image(image: registry.Image, lock: Lock | None) -> tuple[Part, ...]:
    recorded = {each.diff_id: each for each in lock.record.layers} if lock and lock.record else {}
    parts = []
    for number, layer in enumerate(image.layers, 1):
        known = recorded.get(layer.diff_id)
        parts.append(
            Part(known.name if known else f"layer {number}", known.key if known else None, layer.digest, layer.size)
        )
    return tuple(parts)


def _of_lock(lock: Lock) -> tuple[Part, ...]:
    """Return the recorded layers, else those that a build would make: a layer weighs about what its wheels weigh."""
    if lock.record:
        return tuple(Part(each.name, each.key, each.digest, each.size) for each in lock.record.layers)
    bottom = [Part(layer.name, layer.key, layer.digest, layer.size) for layer in base_layers.from_image(lock)]
    bottom = bottom or [Part("base", base.key(lock.base), None, sum(deb.size for deb in lock.base.debs))]
    bottom += [Part(part.name, part.key, None, None) for part in base_layers.plan_above_base(lock)]
    stack = [Part(each.name, each.key, None, sum(wheel.file.estimate for wheel in each.wheels)) for each in plan(lock)]
    compiled = {wheel.name for wheel in lock.wheels if wheel.build}
    lacking = [Part(build.name, build.key, None, None) for build in lock.builds if build.name not in compiled]
    return (*bottom, *stack, *lacking)
