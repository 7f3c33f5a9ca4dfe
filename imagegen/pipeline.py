"""The whole road from a lock to a proven tag, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagegen import layers, smoke
from imagegen.config import Settings
from imagegen.engine import Engine
from imagegen.errors import SmokeError
from imagegen.layers import Image
from imagegen.lock import inputs_hash
from imagegen.lock.model import Lock
from imagegen.progress import Progress
from imagegen.store import Store, refs


@dataclass(frozen=True)
class Built:
    """What a build gave: the manifest's digest, the tags, and the smoke report where checks ran."""

    digest: str
    tags: tuple[str, ...]
    report: smoke.Report | None


def tags(lock: Lock) -> tuple[str, str]:
    """The tag that users type and moves, and the one that names these inputs for good."""
    repository = f"imagegen/{lock.image}"
    rest = lock.cell.removeprefix(f"{lock.image}-")
    return f"{repository}:{rest}", f"{repository}:{rest}-{inputs_hash(lock).removeprefix('sha256:')[:12]}"


def to_store(
    lock: Lock, store: Store, settings: Settings, progress: Progress, grown: layers.Grown = lambda _: None
) -> Image:
    """Assemble and hold the result to the lock's record. ReproducibilityError when it is another image."""
    built = layers.assemble(lock, store, settings, progress, grown)
    remark = layers.compare(lock, built)
    if remark:
        progress.say(f"note: {remark}")
    refs.keep(store, lock.cell, built.digest, len(built.manifest))
    return built


def to_layout(lock: Lock, directory: Path, store: Store, settings: Settings, progress: Progress) -> str:
    """Assemble into an OCI image layout at `directory`; needs no engine. Returns the manifest's digest."""
    refs.require_new(directory)
    built = to_store(lock, store, settings, progress)
    refs.export(store, built.digest, directory, tags(lock)[0])
    return built.digest


def to_engine(
    lock: Lock,
    imports: Mapping[str, Sequence[str]],
    engine: Engine,
    store: Store,
    settings: Settings,
    progress: Progress,
    *,
    test: bool,
    require_gpu: bool = False,
) -> Built:
    """Assemble, load, prove, tag: the moving tag is set only after the smoke checks have passed.

    Raises SmokeError when a check fails or crashes; the image stays under the tag of its inputs, to be looked at.
    """
    moving, fixed = tags(lock)
    digest = layers.made_here(lock, store)  # not what the lock claims was made
    if digest is None or engine.image_digest(fixed) != digest:
        with engine.loading(store) as loading:
            digest = to_store(
                lock, store, settings, progress, lambda bottom: loading.offer(layers.image(lock, bottom))
            ).digest
            loading.finish(digest, fixed, progress)
    report = None
    if test:
        report = smoke.run(engine, digest, lock, imports, require_gpu=require_gpu, progress=progress)
        if not report.passed:
            names = ", ".join(result.check for result in report.results if result.failed)
            raise SmokeFailed(f"smoke checks failed: {names}", report, fix=f"the image is kept as {fixed}")
    engine.tag(digest, moving)
    return Built(digest, (moving, fixed), report)


class SmokeFailed(SmokeError):
    """Carries the report, so that the command line can print all of it."""

    def __init__(self, what: str, report: smoke.Report, *, fix: str) -> None:
        super().__init__(what, fix=fix)
        self.report = report
