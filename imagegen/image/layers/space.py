"""How much room a build will take in the store, so that it can refuse before it fetches gigabytes."""

from __future__ import annotations

from collections.abc import Sequence

from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.layers.plan import LayerPlan
from imagegen.plan.lock.model import File, Lock, LockedWheel

_INTERPRETER = 300 << 20  # bytes, about: a standalone interpreter's archive, its files, and its layer


def needed(lock: Lock, missing: Sequence[LayerPlan], store: Store, made: base.Made | None = None) -> int:
    """Bytes, about, for the layers that the store lacks and all they are made of; a layer weighs what its wheels weigh.

    What is there already is not counted; `made` is the base where it need not be built.
    """
    if not missing:
        return 0
    recorded = {layer.key: layer.size for layer in lock.record.layers} if lock.record else {}
    total = base.needed(lock.base, store)
    total = min(total, made.needed()) if made else total
    if added := lock.foundation.added:
        total += base.needed_packages(added, base.key(lock.base), store)
    total += _INTERPRETER if lock.interpreter.file else 0
    for plan in missing:
        total += recorded.get(plan.key, sum(wheel.file.estimate for wheel in plan.wheels))
        total += sum(
            file.estimate for wheel in plan.wheels for file in _files(wheel) if not store.has(file.digest, file.size)
        )
    return total


def _files(wheel: LockedWheel) -> list[File]:
    """The files that come into the store for this wheel."""
    if wheel.sdist is None:
        return [wheel.file]
    return [wheel.file, wheel.sdist.file, *(each.file for each in wheel.sdist.build_requires)]
