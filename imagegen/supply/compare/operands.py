"""One of the two that are compared: a lock, an image, or both, as far as something is known of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from imagegen.core import registry
from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, LockError, TrustError, UsageError
from imagegen.core.git import local
from imagegen.core.net import ByteSink, Client
from imagegen.core.oci import Descriptor, Platform, RemoteImage, is_digest, read_config
from imagegen.core.registry.layout import PREFIX, LayoutRepository
from imagegen.core.registry.pull import manifest_for
from imagegen.core.store import Store
from imagegen.core.text import did_you_mean
from imagegen.image import base
from imagegen.image.layers import environment, layer_sizes, sources
from imagegen.image.layers.image import LABEL
from imagegen.image.layers.plan import plan
from imagegen.plan import lock as locks
from imagegen.plan.lock.environments import distinct_wheels, environments
from imagegen.plan.lock.file import loads, loads_attached, loads_with, named_cells
from imagegen.plan.lock.model import Lock, main_versions
from imagegen.run.numerics import Fingerprint

_VERSION = f"{LABEL}version."


@dataclass(frozen=True)
class ComparedLayer:
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
    parts: tuple[ComparedLayer, ...] | None  # layers from the bottom up; None: not known
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
    name: str, source: str, lock: Lock, image: RemoteImage | None = None, unpacked: int | None = None
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


def of_image(name: str, source: str, image: RemoteImage) -> DiffOperand:
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


def _of_image(image: RemoteImage, lock: Lock | None) -> tuple[ComparedLayer, ...]:
    recorded = {each.diff_id: each for each in lock.record.layers} if lock and lock.record else {}
    parts = []
    for number, layer in enumerate(image.layers, 1):
        known = recorded.get(layer.diff_id)
        parts.append(
            ComparedLayer(
                known.name if known else f"layer {number}", known.key if known else None, layer.digest, layer.size
            )
        )
    return tuple(parts)


def _of_lock(lock: Lock) -> tuple[ComparedLayer, ...]:
    """Return the recorded layers, else those that a build would make: a layer weighs about what its wheels weigh."""
    if lock.record:
        return tuple(ComparedLayer(each.name, each.key, each.digest, each.size) for each in lock.record.layers)
    bottom = [ComparedLayer(layer.name, layer.key, layer.digest, layer.size) for layer in sources.from_image(lock)]
    bottom = bottom or [ComparedLayer("base", base.key(lock.base), None, sum(deb.size for deb in lock.base.debs))]
    bottom += [ComparedLayer(part.name, part.key, None, None) for part in sources.plan_above_base(lock)]
    stack = [
        ComparedLayer(each.name, each.key, None, sum(wheel.file.estimate for wheel in each.wheels))
        for each in plan(lock)
    ]
    compiled = {wheel.build for wheel in distinct_wheels(lock)}
    builds = {build.key: build for each in environments(lock) for build in each.lock.builds}
    lacking = [ComparedLayer(each.name, key, None, None) for key, each in builds.items() if key not in compiled]
    return (*bottom, *stack, *lacking)


# Resolve an operand of a comparison: a cell, a lock, a lock of a commit, an image.
#
# For an image, the attached lock gives the most; without one, the project's lock if its inputs are the image's; else
# only the manifest and its labels are used.

_IMAGE = "an image of a registry is written with its registry: ghcr.io/acme/rl/cpu-grpo:latest"
# Source: gitrevisions(7). @{2}, @{-1}, @{u}, @{upstream} and @{push} are no dates.
_DATE = re.compile(r"@\{(?!(?:-?\d+|u|upstream|push)\})([^{}]+)\}", re.IGNORECASE)
_LINUX = Platform("linux", "amd64")


class ImageLocation(Protocol):
    """The location of an image: a repository of a registry, or a layout."""

    def manifest(self, requested: str, size: int | None = None) -> tuple[str, bytes, str]: ...
    def document(self, blob: Descriptor) -> bytes: ...
    def stream(self, digest: str, size: int, into: ByteSink) -> None: ...


@dataclass(frozen=True)
class SideSources:
    """The sources of operands.

    `cell` returns the id of the one cell that a word means, `locked` a cell's lock and its file, `names` the names of
    all images and cells; `attached` the lock that is attached to an image, and `fingerprints` its numerical results.
    """

    project: Path
    settings: Settings
    store: Store
    client: Client
    cell: Callable[[str], str | None]
    locked: Callable[[str], tuple[Lock | None, Path]]
    names: Callable[[], Sequence[str]]
    attached: Callable[[ImageLocation, str], bytes | None]
    fingerprints: Callable[[ImageLocation, str], tuple[Fingerprint, ...]] = lambda *_: ()


def read(text: str, places: SideSources, platform: Platform | None = None) -> DiffOperand:
    """Resolve the operand that `text` names; of an index, the image for `platform`, else for 64-bit PCs.

    Raises UsageError, LockError, FetchError, TrustError; also for what is for another platform.
    """
    operand = _read(text, places, platform)
    found = operand.lock.platform if operand.lock else None
    if platform and found not in (None, str(platform)):
        raise UsageError(
            f"{text} is for {found}, not for {platform}",
            code="usage-unknown-platform",
            fix="leave out --platform, or name the cell for that platform",
        )
    return operand


def _read(text: str, places: SideSources, platform: Platform | None) -> DiffOperand:
    if text.startswith(PREFIX) or is_digest(text):
        return _image(text, *located(text, places.store, places.client, places.settings), places, platform)
    if text.endswith(".toml") and Path(text).exists():
        whole = locks.read_text(Path(text))
        beside = [Path(text).with_name(f"{cell}.toml") for cell in named_cells(whole)]
        others = {path.stem: locks.read_text(path, path.parent) for path in beside if path.exists()}
        return _lock(text, f"the lock in {text}", _joined(whole, text, others, places), places.store)
    if cell := places.cell(text):
        found, path = places.locked(cell)
        if found is None:
            raise LockError(f"{cell} has no lock", code="lock-missing", where=str(path), fix=f"`imagegen lock {cell}`")
        return _lock(text, f"the lock of {cell}", found, places.store)
    if side := _of_commit(text, places):
        return side
    check_image(text, places.names)
    return _image(text, *located(text, places.store, places.client, places.settings), places, platform)


def check_image(text: str, names: Callable[[], Sequence[str]]) -> None:
    """Raise UsageError or LockError for text that is not meant as an image, though Docker Hub may have one of that
    name.

    `names` returns the names of images and cells.
    """
    if text.startswith("sha256:") and not is_digest(text):
        raise UsageError(
            f'"{text}" is no digest',
            code="usage-invalid-value",
            fix="write all of it: sha256: and 64 lower-case hex digits",
        )
    if text.endswith(".toml") or text.startswith(("/", "./", "../", "~")):
        if Path(text).is_file():
            raise UsageError(f"{text} is a file, and no image", code="usage-not-an-image", fix=_IMAGE)
        raise LockError(
            f"there is no lock file {text}",
            code="lock-missing",
            fix="`imagegen list` shows the cells; a layout is oci:DIR",
        )
    if set(text) & set(":/@"):
        return
    if text in names():
        raise UsageError(f'"{text}" is a cell, and no image', code="usage-not-an-image", fix=_IMAGE)
    near = did_you_mean(text, names())
    raise UsageError(
        f'"{text}" is no cell, no lock and no image',
        code="usage-unknown-reference",
        fix=f"{near} {_IMAGE}" if near else _IMAGE,
    )


def located(text: str, store: Store, client: Client, settings: Settings) -> tuple[ImageLocation, str]:
    """Return the location of the image that `text` names, and its tag or digest there ("" for a layout's only
    image).
    """
    if is_digest(text):
        return LayoutRepository(store.root, "the store"), text
    if text.startswith(PREFIX):
        directory, at, digits = text.removeprefix(PREFIX).partition("@sha256:")
        return LayoutRepository(Path(directory), text), f"sha256:{digits}" if at else ""
    reference = registry.parse(text)
    requested = reference.digest or reference.tag
    if requested is None:
        raise FetchError(
            f"{reference} names no tag and no digest", code="fetch-no-tag", fix="say which image: its `latest` moves"
        )
    repository = registry.Repository(reference, client, settings)
    repository.reach()
    return repository, requested


def platform_of(config: bytes) -> Platform:
    """Return the platform in an image's config."""
    with suppress(ValueError, AttributeError):
        fields = parse_json(config)
        if isinstance(fields.get("os"), str) and isinstance(fields.get("architecture"), str):
            return Platform(fields["os"], fields["architecture"])
    return _LINUX


def image_of(source: ImageLocation, requested: str, where: str, platform: Platform | None = None) -> RemoteImage:
    """The image under a tag or digest; of an index, the one for `platform`, else for 64-bit PCs. Raises FetchError."""
    digest, found = manifest_for(source.manifest, requested, platform or _LINUX, where)
    document = source.document(found.config)
    config, layers = read_config(document, found, platform or platform_of(document), where)
    return RemoteImage(digest, found.config.digest, config, layers)


def lock_of(attached: bytes, image: RemoteImage, where: str) -> Lock:
    """The lock that is attached to an image. Raises LockError, TrustError where it is another image's."""
    found = loads_attached(attached.decode(errors="replace"), f"lock attached to {where}")
    label = image.config.labels.get(f"{LABEL}inputs")
    if label != locks.inputs_hash(found):
        raise TrustError(
            f"the lock that is attached to {where} is not the lock that it was made of",
            code="trust-lock-mismatch",
            why=f"the image's label says inputs {label}, the lock's are {locks.inputs_hash(found)}",
            fix="do not trust it: any account with write access can attach anything",
        )
    return found


def _image(
    text: str, source: ImageLocation, requested: str, places: SideSources, platform: Platform | None
) -> DiffOperand:
    image = image_of(source, requested, text, platform)
    side = _image_side(text, source, image, places)
    return replace(side, fingerprints=places.fingerprints(source, image.digest))


def _image_side(text: str, source: ImageLocation, image: RemoteImage, places: SideSources) -> DiffOperand:
    attached = places.attached(source, image.digest)
    if attached is not None:
        found = lock_of(attached, image, text)
        return of_lock(text, "the lock that is attached to it", found, image, _unpacked(found, places.store))
    cell, label = image.config.labels.get(f"{LABEL}cell", ""), image.config.labels.get(f"{LABEL}inputs")
    if label and places.cell(cell) == cell:
        own, path = places.locked(cell)
        if own and locks.inputs_hash(own) == label:
            return of_lock(text, f"{path.name} here, since no lock is attached to it", own, image)
    return of_image(text, "its manifest and labels alone, since no lock is attached to it", image)


def _lock(name: str, source: str, lock: Lock, store: Store) -> DiffOperand:
    return of_lock(name, source, lock, unpacked=_unpacked(lock, store))


def _of_commit(text: str, places: SideSources) -> DiffOperand | None:
    """REV:CELL or REV:PATH; None where it is neither."""
    name, colon, word = text.rpartition(":")
    if not colon or text.startswith(":"):
        return None
    cell = places.cell(word)
    if date := _DATE.search(name):
        raise UsageError(
            f"{date[0]} is not a date of a commit",
            code="usage-invalid-value",
            why="git looks it up in this clone's reflog, which begins when the repository was cloned",
            fix=f"write the commit that `git rev-list -1 --before='{date[1]}' HEAD` prints, in place of {name}",
        )
    commit = local.commit_of(places.project, name, places.settings.env)
    if commit is None:
        if cell and "/" not in name:
            raise UsageError(
                f'git knows no revision "{name}" here',
                code="usage-unknown-revision",
                fix="a branch, a tag, a commit, or HEAD~1, say",
            )
        return None
    path = f"locks/{cell}.toml" if cell else word
    found = local.file_at(places.project, commit, path, places.settings.env)
    if found is None:
        if cell is None:
            return None
        raise LockError(
            f"{cell} has no lock at {name}",
            code="lock-missing",
            where=f"{commit[:12]}:{path}",
            fix="name a later revision",
        )
    beside = {named_cell: str(Path(path).with_name(f"{named_cell}.toml")) for named_cell in named_cells(found)}
    read = {each: local.file_at(places.project, commit, file, places.settings.env) for each, file in beside.items()}
    others = {each: content for each, content in read.items() if content is not None}
    return _lock(
        text, f"{Path(path).name} at {commit[:12]}", _joined(found, f"{name}:{path}", others, places), places.store
    )


def _joined(text: str, where: str, others: Mapping[str, str], places: SideSources) -> Lock:
    """Return the lock in a file's text; of several environments, with those of their cells.

    `others` are the texts of lock files beside it, by cell; of other cells, the locks are the project's or the shipped
    ones. Raises LockError where a cell has none, or another one than the file names.
    """
    found = []
    for cell in named_cells(text):
        own = loads(others[cell], f"{where}: {cell}") if cell in others else places.locked(cell)[0]
        if own is None:
            raise LockError(f"{cell} has no lock", code="lock-missing", where=where, fix=f"`imagegen lock {cell}`")
        found.append(own)
    return loads_with(text, found, where)


def _unpacked(lock: Lock, store: Store) -> int | None:
    """Bytes on a disk, where this store has made all its layers."""
    if any(each.lock.builds for each in environments(lock)):
        return None
    sizes = [size.unpacked for size in layer_sizes(lock, store)]
    return None if None in sizes else sum(size or 0 for size in sizes)
