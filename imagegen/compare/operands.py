"""An operand of a comparison: a lock, an image, or an image with its lock. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagegen.image import base
from imagegen.image.layers import environment as image_environment
from imagegen.image.layers.base_layers import from_image, plan_above_base
from imagegen.image.layers.image_config import LABEL
from imagegen.image.layers.plan import plan
from imagegen.lock.main_versions import main_versions
from imagegen.lock.model import Lock
from imagegen.oci.documents import RemoteImage
from imagegen.run.numerics import Fingerprint

_VERSION = f"{LABEL}version."


@dataclass(frozen=True)
class ComparedLayer:
    """A layer. A field that is not known is None.

    `size` is the size of the compressed blob, or an estimate without a digest; None for wheels that are not compiled.
    """

    name: str
    key: str | None
    digest: str | None
    size: int | None


@dataclass(frozen=True)
class DiffOperand:
    """`name` is the user's reference, `source` describes the file or image that was read."""

    name: str
    source: str
    lock: Lock | None
    digest: str | None  # of the image's manifest
    layers: tuple[ComparedLayer, ...] | None  # from the bottom up; None: not known
    versions: Mapping[str, str]  # of the main components
    env: Mapping[str, str]
    capabilities: str | None  # "9.0,12.0"
    driver: str | None
    unpacked: int | None  # bytes on a disk
    fingerprints: tuple[Fingerprint, ...] = ()  # numerical results that are attached to the image

    @property
    def size(self) -> int | None:
        """Compressed bytes; None if the size of a layer is not known."""
        sizes = [layer.size for layer in self.layers or ()]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)


def of_lock(
    name: str, source: str, lock: Lock, image: RemoteImage | None = None, unpacked: int | None = None
) -> DiffOperand:
    """Return the operand of a lock, with the layers of `image` if it is given."""
    record = lock.record
    digest = image.digest if image else record.digest if record else None
    return DiffOperand(
        name=name,
        source=source,
        lock=lock,
        digest=digest,
        layers=_image_layers(image, lock) if image else _lock_layers(lock),
        versions=main_versions(lock),
        env=image_environment(lock),
        capabilities=",".join(lock.gpu.capabilities) if lock.gpu else None,
        driver=lock.gpu.driver if lock.gpu else None,
        unpacked=unpacked,
    )


def of_image(name: str, source: str, image: RemoteImage) -> DiffOperand:
    """Return the operand of an image without a lock, from its labels and its environment."""
    labels = image.config.labels
    return DiffOperand(
        name=name,
        source=source,
        lock=None,
        digest=image.digest,
        layers=_image_layers(image, None),
        versions={key.removeprefix(_VERSION): value for key, value in labels.items() if key.startswith(_VERSION)},
        env={name: value for name, _, value in (variable.partition("=") for variable in image.config.env)},
        capabilities=labels.get(f"{LABEL}gpu.capabilities"),
        driver=labels.get(f"{LABEL}gpu.driver"),
        unpacked=None,
    )


def _image_layers(image: RemoteImage, lock: Lock | None) -> tuple[ComparedLayer, ...]:
    recorded = {record.diff_id: record for record in lock.record.layers} if lock and lock.record else {}
    layers = []
    for number, layer in enumerate(image.layers, 1):
        record = recorded.get(layer.diff_id)
        name, key = (record.name, record.key) if record else (f"layer {number}", None)
        layers.append(ComparedLayer(name, key, layer.digest, layer.size))
    return tuple(layers)


def _lock_layers(lock: Lock) -> tuple[ComparedLayer, ...]:
    """Return the recorded layers, else the planned ones. The estimated size of a layer is the size of its wheels."""
    if lock.record:
        return tuple(ComparedLayer(layer.name, layer.key, layer.digest, layer.size) for layer in lock.record.layers)
    bottom = [ComparedLayer(layer.name, layer.key, layer.digest, layer.size) for layer in from_image(lock)]
    bottom = bottom or [ComparedLayer("base", base.key(lock.base), None, sum(deb.size for deb in lock.base.debs))]
    bottom += [ComparedLayer(layer.name, layer.key, None, None) for layer in plan_above_base(lock)]
    stack = [
        ComparedLayer(layer.name, layer.key, None, sum(wheel.file.estimate for wheel in layer.wheels))
        for layer in plan(lock)
    ]
    compiled = {wheel.build for wheel in lock.distinct_wheels}
    builds = {build.key: build for environment in lock.environments for build in environment.lock.builds}
    missing = [ComparedLayer(build.name, key, None, None) for key, build in builds.items() if key not in compiled]
    return (*bottom, *stack, *missing)
