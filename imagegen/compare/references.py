"""Resolve an operand of a comparison: a cell, a lock, a lock of a commit, an image.

For an image, the attached lock is used. Without one, the project's lock is used if its inputs equal the image's label,
else only the manifest and its labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from imagegen import lock as locks
from imagegen.compare.operands import DiffOperand, of_image, of_lock
from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, LockError, TrustError, UsageError
from imagegen.core.git.log import commit_of, file_at
from imagegen.core.net import ByteSink, Client
from imagegen.core.store import Store
from imagegen.core.text import did_you_mean
from imagegen.image.layers import layer_sizes
from imagegen.image.layers.image_config import LABEL
from imagegen.lock.file import loads, loads_attached, loads_with, named_cells
from imagegen.lock.model import Lock
from imagegen.oci import registry
from imagegen.oci.documents import Descriptor, Platform, RemoteImage, is_digest, read_config
from imagegen.oci.registry.layout_repository import PREFIX, LayoutRepository
from imagegen.oci.registry.repository import manifest_for
from imagegen.run.numerics import Fingerprint

_IMAGE = "write an image with its registry: ghcr.io/acme/rl/cpu-grpo:latest"
# Source: gitrevisions(7). @{2}, @{-1}, @{u}, @{upstream} and @{push} are not dates.
_DATE = re.compile(r"@\{(?!(?:-?\d+|u|upstream|push)\})([^{}]+)\}", re.IGNORECASE)
_LINUX = Platform("linux", "amd64")


class ImageLocation(Protocol):
    """A repository of a registry, or an OCI layout."""

    def manifest(self, requested: str, size: int | None = None) -> tuple[str, bytes, str]: ...
    def document(self, blob: Descriptor) -> bytes: ...
    def stream(self, digest: str, size: int, into: ByteSink) -> None: ...


@dataclass(frozen=True)
class OperandSources:
    """The sources of operands.

    `cell` returns the id of the cell that a word selects, `locked` a cell's lock and its file, `names` the names of all
    images and cells. `attached` returns the lock that is attached to an image, `fingerprints` its numerical results.
    """

    project: Path
    settings: Settings
    store: Store
    client: Client
    cell: Callable[[str], str | None]
    locked: Callable[[str], tuple[Lock | None, Path]]
    names: Callable[[], Iterable[str]]
    attached: Callable[[ImageLocation, str], bytes | None]
    fingerprints: Callable[[ImageLocation, str], tuple[Fingerprint, ...]] = lambda *_: ()


def read(text: str, sources: OperandSources, platform: Platform | None = None) -> DiffOperand:
    """Resolve the operand that `text` names. For an index, take the image for `platform`, else for linux/amd64.

    Raises UsageError, LockError, FetchError, TrustError. An operand for another platform is a UsageError.
    """
    operand = _read(text, sources, platform)
    lock_platform = operand.lock.platform if operand.lock else None
    if platform and lock_platform not in (None, str(platform)):
        raise UsageError(
            f"{text} is for {lock_platform}, not for {platform}",
            code="usage-unknown-platform",
            fix="leave out --platform, or name the cell for that platform",
        )
    return operand


def _read(text: str, sources: OperandSources, platform: Platform | None) -> DiffOperand:
    if text.startswith(PREFIX) or is_digest(text):
        return _image(text, *locate(text, sources.store, sources.client, sources.settings), sources, platform)
    if text.endswith(".toml") and Path(text).exists():
        lock_text = locks.read_text(Path(text))
        paths = [Path(text).with_name(f"{cell}.toml") for cell in named_cells(lock_text)]
        cell_texts = {path.stem: locks.read_text(path, path.parent) for path in paths if path.exists()}
        return _lock(text, f"the lock in {text}", _load_with_cells(lock_text, text, cell_texts, sources), sources.store)
    if cell := sources.cell(text):
        lock, path = sources.locked(cell)
        if lock is None:
            raise LockError(f"{cell} has no lock", code="lock-missing", where=str(path), fix=f"`imagegen lock {cell}`")
        return _lock(text, f"the lock of {cell}", lock, sources.store)
    if operand := _read_commit(text, sources):
        return operand
    check_image(text, sources.names())
    return _image(text, *locate(text, sources.store, sources.client, sources.settings), sources, platform)


def check_image(text: str, names: Iterable[str]) -> None:
    """Raise UsageError or LockError for text that is not an image reference, even if Docker Hub has such an image.

    `names` yields the names of images and cells, if they are needed.
    """
    if text.startswith("sha256:") and not is_digest(text):
        raise UsageError(
            f'"{text}" is not a digest',
            code="usage-invalid-value",
            fix="write all of it: sha256: and 64 lower-case hex digits",
        )
    if text.endswith(".toml") or text.startswith(("/", "./", "../", "~")):
        if Path(text).is_file():
            raise UsageError(f"{text} is a file, not an image", code="usage-not-an-image", fix=_IMAGE)
        raise LockError(
            f"there is no lock file {text}",
            code="lock-missing",
            fix="`imagegen list` shows the cells; a layout is oci:DIR",
        )
    if set(text) & set(":/@"):
        return
    names = tuple(names)
    if text in names:
        raise UsageError(f'"{text}" is a cell, not an image', code="usage-not-an-image", fix=_IMAGE)
    near = did_you_mean(text, names)
    raise UsageError(
        f'"{text}" is not a cell, a lock or an image',
        code="usage-unknown-reference",
        fix=f"{near} {_IMAGE}" if near else _IMAGE,
    )


def locate(text: str, store: Store, client: Client, settings: Settings) -> tuple[ImageLocation, str]:
    """Return the location of the image that `text` names, and its tag or digest ("" for a layout's only image)."""
    if is_digest(text):
        return LayoutRepository(store.root, "the store"), text
    if text.startswith(PREFIX):
        directory, at, digits = text.removeprefix(PREFIX).partition("@sha256:")
        return LayoutRepository(Path(directory), text), f"sha256:{digits}" if at else ""
    reference = registry.parse(text)
    requested = reference.digest or reference.tag
    if requested is None:
        raise FetchError(
            f"{reference} names no tag and no digest", code="fetch-no-tag", fix="name one: `latest` is a mutable tag"
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
    """Return the image under a tag or digest; from an index, take the image for `platform`, else for linux/amd64.

    Raises FetchError.
    """
    digest, manifest = manifest_for(source.manifest, requested, platform or _LINUX, where)
    document = source.document(manifest.config)
    config, layers = read_config(document, manifest, platform or platform_of(document), where)
    return RemoteImage(digest, manifest.config.digest, config, layers)


def lock_of(attached: bytes, image: RemoteImage, where: str) -> Lock:
    """Parse the lock that is attached to an image. Raises LockError, TrustError if its inputs are not the image's."""
    lock = loads_attached(attached.decode(errors="replace"), f"lock attached to {where}")
    label = image.config.labels.get(f"{LABEL}inputs")
    if label != locks.inputs_hash(lock):
        raise TrustError(
            f"the lock that is attached to {where} is not the lock of this image",
            code="trust-lock-mismatch",
            why=f"the image's label says inputs {label}, the lock's are {locks.inputs_hash(lock)}",
            fix="do not trust it: any account with write access can attach anything",
        )
    return lock


def _image(
    text: str, source: ImageLocation, requested: str, sources: OperandSources, platform: Platform | None
) -> DiffOperand:
    image = image_of(source, requested, text, platform)
    operand = _image_with_lock(text, source, image, sources)
    return replace(operand, fingerprints=sources.fingerprints(source, image.digest))


def _image_with_lock(text: str, source: ImageLocation, image: RemoteImage, sources: OperandSources) -> DiffOperand:
    attached = sources.attached(source, image.digest)
    if attached is not None:
        lock = lock_of(attached, image, text)
        return of_lock(text, "the lock that is attached to it", lock, image, _unpacked(lock, sources.store))
    cell, label = image.config.labels.get(f"{LABEL}cell", ""), image.config.labels.get(f"{LABEL}inputs")
    if label and sources.cell(cell) == cell:
        project_lock, path = sources.locked(cell)
        if project_lock and locks.inputs_hash(project_lock) == label:
            return of_lock(text, f"{path.name} here, since no lock is attached to it", project_lock, image)
    return of_image(text, "only its manifest and labels, since no lock is attached to it", image)


def _lock(name: str, source: str, lock: Lock, store: Store) -> DiffOperand:
    return of_lock(name, source, lock, unpacked=_unpacked(lock, store))


def _read_commit(text: str, sources: OperandSources) -> DiffOperand | None:
    """Read the lock that REV:CELL or REV:PATH names; None if `text` is neither."""
    name, colon, word = text.rpartition(":")
    if not colon or text.startswith(":"):
        return None
    cell = sources.cell(word)
    if date := _DATE.search(name):
        raise UsageError(
            f"{date[0]} is not a date of a commit",
            code="usage-invalid-value",
            why="git looks it up in this clone's reflog, which begins when the repository was cloned",
            fix=f"write the commit that `git rev-list -1 --before='{date[1]}' HEAD` prints instead of {name}",
        )
    commit = commit_of(sources.project, name, sources.settings.env)
    if commit is None:
        if cell and "/" not in name:
            raise UsageError(
                f'git knows no revision "{name}" here',
                code="usage-unknown-revision",
                fix="a branch, a tag, a commit, or HEAD~1, say",
            )
        return None
    path = f"locks/{cell}.toml" if cell else word
    lock_text = file_at(sources.project, commit, path, sources.settings.env)
    if lock_text is None:
        if cell is None:
            return None
        raise LockError(
            f"{cell} has no lock at {name}",
            code="lock-missing",
            where=f"{commit[:12]}:{path}",
            fix="name a later revision",
        )
    cell_texts = {}
    for named_cell in named_cells(lock_text):
        cell_path = str(Path(path).with_name(f"{named_cell}.toml"))
        if (cell_text := file_at(sources.project, commit, cell_path, sources.settings.env)) is not None:
            cell_texts[named_cell] = cell_text
    lock = _load_with_cells(lock_text, f"{name}:{path}", cell_texts, sources)
    return _lock(text, f"{Path(path).name} at {commit[:12]}", lock, sources.store)


def _load_with_cells(text: str, where: str, cell_texts: Mapping[str, str], sources: OperandSources) -> Lock:
    """Parse a lock file and the lock files of the cells that it names.

    `cell_texts` are the texts of lock files in the same directory, by cell. Other cells have the project's or the
    shipped lock. Raises LockError if a cell has no lock, or not the lock that the file names.
    """
    cell_locks = []
    for cell in named_cells(text):
        lock = loads(cell_texts[cell], f"{where}: {cell}") if cell in cell_texts else sources.locked(cell)[0]
        if lock is None:
            raise LockError(f"{cell} has no lock", code="lock-missing", where=where, fix=f"`imagegen lock {cell}`")
        cell_locks.append(lock)
    return loads_with(text, cell_locks, where)


def _unpacked(lock: Lock, store: Store) -> int | None:
    """Return the bytes on a disk; None if this store has not built all layers."""
    if any(environment.lock.builds for environment in lock.environments):
        return None
    sizes = [size.unpacked for size in layer_sizes(lock, store)]
    return None if None in sizes else sum(size or 0 for size in sizes)
