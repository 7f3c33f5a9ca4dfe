"""Rebuild an image from its lock in an empty store, and compare it with the published one.

The user's store is not used, because its cached results may be the fault. Everything is fetched and built again, except
for the contents of the project's files, which are copied by hash. Sources of known causes of a difference: measured
differences between two builds of a set (docs/explanation/determinism.md); PEP 552 for the header of byte-code; PEP 376
and PEP 610 for files of installers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from imagegen.compare.image_bytes import ReadImage
from imagegen.compare.layer_entries import EntryDifference, FileEntry, entries, first_difference
from imagegen.compare.references import ImageLocation
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import parse_json
from imagegen.core.gpu import Gpu
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.image import layers
from imagegen.image.inputs import project_files
from imagegen.image.inventory.layers import Stream
from imagegen.image.inventory.streams import Plain, piped
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import LAYER_FORMAT, plan
from imagegen.lock.environments import with_locks
from imagegen.lock.model import Lock, LockedBuild, LockedWheel
from imagegen.spec.model import Cell
from imagegen.wheels.builds.ensure import ensure_wheels, require_wheels

_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_INSTALLER_FILES = (".lock", *_INSTALLERS)
_STATE = ("/var/cache/", "/var/log/", "/var/lib/apt/", "/etc/ssh/ssh_host_", "/etc/machine-id", "/var/lib/dpkg/")
_FLAGS = {0: "by time", 1: "unchecked, by hash", 3: "checked, by hash"}


@dataclass(frozen=True)
class Clue:
    """The first file that differs, with the packages of its layer and the recorded layer format."""

    layer: str
    entry: EntryDifference
    layer_format: int | None
    packages: Sequence[LockedWheel | LockedBuild] = ()


def likely_cause(clue: Clue) -> str:
    """Return the first cause that explains the difference."""
    return next(filter(None, (cause(clue) for cause in _CAUSES)), "no known cause explains it")


def _format(clue: Clue) -> str | None:
    if clue.layer_format in (None, LAYER_FORMAT):
        return None
    return f"the layer was written in format {clue.layer_format}, and this imagegen writes {LAYER_FORMAT}"


def _order(clue: Clue) -> str | None:
    return "another program wrote the layer, with the same files in another order" if clue.entry.order else None


def _one_sided(clue: Clue) -> str | None:
    entry = clue.entry
    if entry.published and entry.rebuilt:
        return None
    where = "only the published image has it" if entry.published else "only the rebuilt image has it"
    name = posixpath.basename(entry.path)
    if name.startswith(".wh."):
        return f"{where}: a command removed a file, and imagegen's layers remove no files"
    if name.endswith(".pyc"):
        return f"{where}: a program wrote byte-code when it ran, or byte-code was not compiled"
    if name in _INSTALLER_FILES:
        return f"{where}: an installer writes it, with the time and paths of the installation"
    if _is_state(entry.path):
        return f"{where}: a system program writes it when it runs"
    return f"{where}: the packages of the layer have other files"


def _times(clue: Clue) -> str | None:
    published, rebuilt = clue.entry.published, clue.entry.rebuilt
    if not published or not rebuilt or published.timeless() != rebuilt.timeless():
        return None
    return f"times are not fixed: {published.mtime:.0f} in the published layer, {rebuilt.mtime:.0f} in the rebuilt one"


def _owner(clue: Clue) -> str | None:
    if not {"uid", "gid", "names"} & set(clue.entry.fields) or "sha256" in clue.entry.fields:
        return None
    owners = [entry and (entry.uid, entry.gid) for entry in (clue.entry.published, clue.entry.rebuilt)]
    return f"its owner differs: {owners[0]}, rebuilt {owners[1]}"


def _mode(clue: Clue) -> str | None:
    entry = clue.entry
    if "mode" not in entry.fields or "sha256" in entry.fields or not entry.published or not entry.rebuilt:
        return None
    modes = f"{entry.published.mode:04o}, rebuilt {entry.rebuilt.mode:04o}"
    return f"its mode differs, as with another umask: {modes}"


def _byte_code(clue: Clue) -> str | None:
    entry = clue.entry
    if not entry.path.endswith(".pyc") or not entry.published or not entry.rebuilt or "sha256" not in entry.fields:
        return None
    published, rebuilt = entry.published.head, entry.rebuilt.head
    if published[:4] != rebuilt[:4]:
        return "another version of Python compiled the byte-code"
    if published[4:8] != rebuilt[4:8]:
        kinds = [_FLAGS.get(int.from_bytes(head[4:8], "little"), "unknown") for head in (published, rebuilt)]
        return f"the byte-code is validated {kinds[0]}, the rebuilt one {kinds[1]}"
    if published[8:16] != rebuilt[8:16]:
        return "the byte-code was compiled from another source, or has the time of its source"
    return "the byte-code was compiled in another order or under another path, which changes its bytes"


def _records(clue: Clue) -> str | None:
    name = posixpath.basename(clue.entry.path)
    if name not in _INSTALLERS or "sha256" not in clue.entry.fields:
        return None
    return f"another installer wrote {name}, or other files were installed"


def _state(clue: Clue) -> str | None:
    if not _is_state(clue.entry.path):
        return None
    return "caches and logs of the system differ in each run, so imagegen did not build this base"


def _link(clue: Clue) -> str | None:
    if not {"kind", "target"} & set(clue.entry.fields):
        return None
    return "it is not a link to the same path, so the interpreter or the layout of the environment differs"


def _compiled(clue: Clue) -> str | None:
    if "sha256" not in clue.entry.fields:
        return None
    names = [
        package.name
        for package in clue.packages
        if isinstance(package, LockedBuild) or package.build or package.sdist is not None
    ]
    return f"{', '.join(names)} was built again, and the compiler or the backend wrote other bytes" if names else None


def _wheel(clue: Clue) -> str | None:
    if "sha256" not in clue.entry.fields:
        return None
    # If a layer has several packages, prefer the package that the directory is named after.
    path_parts = {part.partition("-")[0] for part in clue.entry.path.split("/")}
    candidates = [package for package in clue.packages if package.name.replace("-", "_") in path_parts] or clue.packages
    names = ", ".join(f"{package.name} {package.version}" for package in candidates) or "the packages of the lock"
    return f"its bytes differ from {names}: the published layer was built from other files, or changed later"


def _is_state(path: str) -> bool:
    return f"/{path.lstrip('./')}".startswith(_STATE)


_CAUSES: tuple[Callable[[Clue], str | None], ...] = (
    *(_format, _order, _one_sided, _times, _owner, _mode, _byte_code, _records, _state, _link, _compiled, _wheel),
)


class Level(Enum):
    """The degree of equality, from most to least."""

    MANIFEST = "the same manifest"
    CONTENTS = "the same contents"  # equal config and diff_ids, other compressed bytes
    LAYERS = "the same layers under another config"
    FILES = "the same files at other times"
    DIFFERENT = "other files"


@dataclass(frozen=True)
class Comparison:
    """`digest` is the rebuilt image's; `layer` and `file` are the first that differ, with the likely cause."""

    level: Level
    digest: str
    layer: str | None = None
    file: str | None = None
    fields: tuple[str, ...] = ()
    cause: str | None = None

    @property
    def sentence(self) -> str:
        words = [self.level.value, *([f"first in layer {self.layer}"] if self.layer else [])]
        if self.file:
            words.append(f"{self.file}{' (' + ', '.join(self.fields) + ')' if self.fields else ''}")
        return ": ".join([", ".join(words), *([self.cause] if self.cause else [])])


@contextmanager
def rebuild_image(
    lock: Lock, near: Store, settings: Settings, progress: Progress, cell: Cell | None, gpus: Sequence[Gpu]
) -> Iterator[tuple[Lock, layers.Image, Store]]:
    """Yield the lock with its compiled wheels, its image, and their temporary store, which is next to the store `near`.

    Wheels are compiled with the recipes of `cell`; without one they must be in a wheelhouse. Raises the errors of
    `ensure_wheels` and `layers.assemble`.
    """
    with near.temporary_directory("rebuild") as work_dir:
        store = Store(work_dir / "store")
        _copy_project_files(lock, near, store)
        context = Context(store, replace(settings, store=store.root), progress)
        if cell:
            locks = [ensure_wheels(lock_part, part, gpus, context) for part, lock_part in lock.by_cell(cell)]
        else:
            locks = [require_wheels(environment.lock, context) for environment in lock.environments]
        whole = with_locks(lock, locks)
        yield whole, layers.assemble(whole, context), store


def _copy_project_files(lock: Lock, near: Store, store: Store) -> None:
    """Copy the contents of the project's files that `near` has, because no index or registry has them."""
    for file in project_files(lock):
        if near.has(file.digest, file.size):
            with near.open(file.digest) as source, store.writer() as blob:
                while chunk := source.read(1 << 20):
                    blob.write(chunk)
                blob.commit()


def compare(
    published: ReadImage, source: ImageLocation, client: Client, lock: Lock, rebuilt: layers.Image, store: Store
) -> Comparison:
    """Compare the published image with the image that was rebuilt from its lock, whose layers are in the store.

    The layers of the published image are read from `source` with the client. Raises FetchError, StoreError.
    """
    if published.digest == rebuilt.digest:
        return Comparison(Level.MANIFEST, rebuilt.digest)
    if [layer.diff_id for layer in published.layers] == [layer.diff_id for layer in rebuilt.layers]:
        level = Level.CONTENTS if published.raw == rebuilt.config else Level.LAYERS
        return Comparison(level, rebuilt.digest, cause=_cause_without_files(published, lock, rebuilt))
    if len(published.layers) != len(rebuilt.layers):
        why = f"the published image has {len(published.layers)} layers, and the rebuilt one {len(rebuilt.layers)}"
        names = zip(published.names, (layer.name for layer in rebuilt.layers), strict=False)
        first_name = next((old_name for old_name, new_name in names if old_name != new_name), None)
        return Comparison(Level.DIFFERENT, rebuilt.digest, layer=first_name, cause=why)
    first: Comparison | None = None
    for old, new in zip(published.layers, rebuilt.layers, strict=True):
        if old.diff_id == new.diff_id:
            continue
        with piped(source, old, client) as old_blob, store.open(new.digest) as new_blob:
            result = _compare_layer(new.name, _read_entries(old_blob), _read_entries(new_blob), lock, rebuilt.digest)
        if result.level is Level.DIFFERENT:
            return result
        first = first or result
    return first or Comparison(Level.DIFFERENT, rebuilt.digest)


def _read_entries(blob: Stream) -> list[FileEntry]:
    return list(entries(Plain(blob)))


def _compare_layer(
    name: str, published: list[FileEntry], rebuilt: list[FileEntry], lock: Lock, digest: str
) -> Comparison:
    """Return the first entry that differs in more than its times, else the first that differs in its times."""
    entry, level = first_difference(published, rebuilt, times=False), Level.DIFFERENT
    if entry is None:
        entry, level = first_difference(published, rebuilt), Level.FILES
    if entry is None:
        return Comparison(level, digest, name, cause="another program wrote the tar, with the same entries")
    packages = next((layer.wheels for layer in plan(lock) if layer.name == name), ())
    clue = Clue(name, entry, lock.record.layer_format if lock.record else None, packages)
    return Comparison(level, digest, name, f"/{entry.path.lstrip('./')}", entry.fields, likely_cause(clue))


def _cause_without_files(published: ReadImage, lock: Lock, rebuilt: layers.Image) -> str:
    """Return why the digests of images with the same files differ."""
    if published.raw != rebuilt.config:
        return f"its config differs in {_first_key(parse_json(published.raw), parse_json(rebuilt.config))}"
    kinds = {layer.compression or "nothing" for layer in published.layers}
    if lock.record and lock.record.codec != CODEC:
        return f"its layers were compressed with {lock.record.codec}, the rebuilt ones with {CODEC}"
    return f"its layers are compressed with {', '.join(sorted(kinds))}, the rebuilt ones with {CODEC}"


def _first_key(published: Any, rebuilt: Any, path: str = "") -> str:
    """Return the first difference of two configs, as a path of keys."""
    if isinstance(published, dict) and isinstance(rebuilt, dict):
        for key in sorted(published.keys() | rebuilt.keys()):
            if published.get(key) != rebuilt.get(key):
                return _first_key(published.get(key), rebuilt.get(key), f"{path}.{key}" if path else key)
    return path or "its JSON text"
