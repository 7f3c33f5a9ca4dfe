"""Make one layer of the venv's skeleton, a set of wheels, the support files, or the base's file tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated

from imagegen.audit.readers.installation import (
    MAX_SOURCE,
    InstalledFile,
    compiles,
    installation,
    is_same,
    pyc_path,
    relocated,
    site_packages,
    skeleton,
)
from imagegen.core.errors import WheelError
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.store.layout import BlobWriter
from imagegen.core.types import Digest, Size
from imagegen.core.validation import string
from imagegen.image.file_tree import libpython_link
from imagegen.image.layers import loader, ownership
from imagegen.image.layers.byte_code import ByteCode, Compiler
from imagegen.image.layers.codec import CODEC, LayerSink
from imagegen.image.layers.plan import INTERPRETER, LayerPlan, bytecode_key, digest_of_json, layer_key
from imagegen.image.layers.scan import WheelScanner, open_locked, recorded_blob
from imagegen.image.layers.segments import SegmentedTar
from imagegen.image.layers.support import OPEN, WORKDIR, support_files, support_links
from imagegen.image.layers.tar import TarWriter
from imagegen.lock.interpreter import directory
from imagegen.lock.model import Lock, LockedWheel
from imagegen.oci.documents import ZSTD_TYPE, LayerDescriptor

PrintableName = Annotated[str, string("[ -~]+", 200)]


@dataclass(frozen=True)
class Layer(LayerDescriptor):
    """A layer of an image that imagegen assembles: `key` is the digest of its inputs, `unpacked` the size of the tar.

    A layer of a registry's image is used unchanged, however it is compressed, and its `unpacked` size is unknown.
    """

    name: PrintableName
    key: Digest
    unpacked: Size | None = None


class LayerOrigin(Enum):
    STORE = "store"
    REMOTE = "remote"  # the target repository has it, as a trusted attestation says
    FETCH = "fetch"  # from the registry of the base, or a mirror, by hash
    BUILD = "build"


@dataclass(frozen=True)
class LayerSource:
    """The origin of one layer. `layer` describes its bytes, also before they are built if the store or a record has
    their digest; None if they are unknown.
    """

    plan: LayerPlan
    origin: LayerOrigin = LayerOrigin.BUILD
    layer: Layer | None = None

    @property
    def is_absent(self) -> bool:
        """Return whether the layer must be fetched or built."""
        return self.origin in (LayerOrigin.FETCH, LayerOrigin.BUILD)


_LAYERS = Cache("layer", Layer)


def previously_built(store: Store, name: str, key: str) -> Layer | None:
    """Return the layer that this store once built for `key` with the codec in use, also where its blob is gone."""
    layer = _LAYERS.get(store, stored_key(key))
    return replace(layer, name=name) if layer else None


def stored(store: Store, name: str, key: str) -> Layer | None:
    """Return the layer that this store built for `key` with the codec in use; None where its blob is gone."""
    layer = previously_built(store, name, key)
    return layer if layer and store.has(layer.digest, layer.size) else None


def wheels_layer(store: Store, plan: LayerPlan, lock: Lock, compiler: Compiler) -> Layer:
    """Convert the wheels of one plan, all in the store, into a layer. `lock` is the lock of its first environment."""
    prefix, *other_prefixes = plan.prefixes

    def fill(tar: SegmentedTar) -> None:
        written: dict[str, str] = {}
        for locked in plan.wheels:
            known_contents = ownership.scanned_contents(store, locked, lock.python)
            if known_contents is not None:
                own_files = _own(lock, locked, known_contents, written)
                if tar.copy(segment_key(lock, locked, plan.prefixes, known_contents.keys() - own_files)):
                    written |= own_files
                    continue
            with open_locked(store, locked) as wheel:
                files = installation(wheel, lock.python)
                # Before the layer is known: a layer in the store means that its files can be checked against others.
                contents = ownership.remember(store, locked, files, lock.python)
                own_files = _own(lock, locked, contents, written)
                scanned = recorded_blob(store, locked, lock.python)
                watch = None if scanned else WheelScanner(store, locked, wheel, files, lock.python)
                files = [file for file in (watch.watched() if watch else files) if file.path in own_files]
                first = relocated(files, wheel, lock.python, prefix)
                with tar.segment(segment_key(lock, locked, plan.prefixes, contents.keys() - own_files)):
                    compiled = _write_wheel(tar, first, lock.python, ByteCode(compiler), prefix)
                    for other in other_prefixes:
                        _link_wheel(tar, first, relocated(files, wheel, lock.python, other))
                        for path in compiled:
                            tar.hard_link(other + path.removeprefix(prefix), path)
                if watch:
                    watch.finish()
            written |= own_files

    return _make(store, plan.name, plan.key, fill)


def skeleton_layer(store: Store, plan: LayerPlan, lock: Lock) -> Layer:
    """Make the files of `python -m venv --without-pip`, except for activate scripts, which PATH replaces."""
    home = lock.interpreter.path.rpartition("/")[0]
    config = f"home = {home}\ninclude-system-site-packages = false\nversion = {lock.python}\n"

    def fill(tar: SegmentedTar) -> None:
        for prefix in plan.prefixes:
            for path, target in skeleton(lock.python, prefix).items():
                if path.endswith(".cfg"):
                    tar.file(path, len(config), [config.encode()])
                else:
                    tar.link(path, target or lock.interpreter.path)
            tar.directory(site_packages(lock.python, prefix))
        tar.directory(WORKDIR)

    return _make(store, plan.name, plan.key, fill)


def interpreter_layer(store: Store, key: str, lock: Lock, tree: Path, compiler: Compiler) -> Layer:
    """Make the layer of a standalone interpreter from its files in `tree`, with the byte-code of its own library.

    Files come sorted by path, and byte-code among them as in layers of wheels.
    """
    home = directory(lock.interpreter)
    sources = f"{home}/lib/python{lock.python}/"

    def fill(tar: SegmentedTar) -> None:
        tar.directory(home)
        byte_code = ByteCode(compiler)
        for file in sorted((tree / home.lstrip("/")).rglob("*")):
            path, size = f"/{file.relative_to(tree)}", file.lstat().st_size
            if file.is_symlink():
                tar.link(path, os.readlink(file))
            elif file.is_dir():
                tar.directory(path)
            else:
                tar.file(path, size, _chunks(file), executable=os.access(file, os.X_OK))
                if path.startswith(sources) and path.endswith(".py") and size <= MAX_SOURCE:
                    _write_byte_code(tar, byte_code.add(path, file.read_bytes()), lock.python)
        _write_byte_code(tar, byte_code.rest(), lock.python)
        if link := libpython_link(tree, lock.interpreter):
            tar.link(*link)

    return _make(store, INTERPRETER, key, fill)


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while chunk := source.read(1 << 20):
            yield chunk


def support_layer(store: Store, plan: LayerPlan, lock: Lock, compiler: Compiler) -> Layer:
    """Make the layer of the files that every image has in addition to its stack."""

    def fill(tar: SegmentedTar) -> None:
        files = support_files(lock)
        for file in files:
            tar.file(file.path, len(file.content), [file.content], executable=file.executable)
        if not tar.copy(bytecode_key(lock)):
            with tar.segment(bytecode_key(lock)):
                byte_code = ByteCode(compiler)
                for file in files:
                    if file.path.endswith(".py"):
                        _write_byte_code(tar, byte_code.add(file.path, file.content), lock.python)
                _write_byte_code(tar, byte_code.rest(), lock.python)
        for path in OPEN:
            tar.directory(path, 0o1777)
        for path, target in support_links(lock).items():
            tar.link(path, target)

    return _make(store, plan.name, plan.key, fill, below=("/root",))


def files_layer(store: Store, plan: LayerPlan, lock: Lock) -> Layer:
    """Make the layer of the project's files, whose contents are in the store.

    Directories above a copy are in lower layers, or the engine makes them. They get no entry, which would replace a
    mode or a link.
    """
    above = {str(parent) for copy in lock.copies for parent in PurePosixPath(copy.path).parents}
    present = {path for path in (copy.path for copy in lock.copies) if path in OPEN or path.count("/") == 1}

    def fill(tar: SegmentedTar) -> None:
        for file in sorted((file for copy in lock.copies for file in copy.files), key=lambda file: file.path):
            with store.open(file.digest) as content:
                chunks = iter(partial(content.read, 1 << 20), b"")
                tar.file(file.path, file.size, chunks, executable=file.mode == "0755")

    return _make(store, plan.name, plan.key, fill, below=above | present)


def loader_layer(store: Store, plan: LayerPlan, lock: Lock, root: Path) -> Layer:
    """Make the layer of the dynamic loader's configuration and cache. Raises as `loader.layer_files`.

    `root` is the tree of all that lies under the venv.
    """
    files, links = loader.layer_files(lock, store, root)
    above = {str(parent) for path in (*files, *links) for parent in PurePosixPath(path).parents}

    def fill(tar: SegmentedTar) -> None:
        for path, content in sorted(files.items()):
            tar.file(path, len(content), [content])
        for path, target in sorted(links.items()):
            tar.link(path, target)

    return _make(store, plan.name, plan.key, fill, below=above)


def tar_layer(store: Store, name: str, key: str, tar_digest: str) -> Layer:
    """Compress a normalised tar of base or packages, a blob of the store whose digest is the layer's diff_id."""
    if layer := stored(store, name, key):  # another build has made it meanwhile
        return layer
    with store.open(tar_digest) as reader, store.writer() as blob:
        sink = LayerSink(blob)
        for chunk in reader:
            sink.write(chunk)
        return _finish(store, name, key, sink, blob)


def _make(store: Store, name: str, key: str, fill: Callable[[SegmentedTar], None], below: Iterable[str] = ()) -> Layer:
    with store.lock(f"layer-{key}"):
        layer = stored(store, name, key)  # another build may have made it while this one waited
        if layer is not None:
            return layer
        with store.writer() as blob:
            sink = LayerSink(blob)
            tar = SegmentedTar(store, sink, below)
            fill(tar)
            tar.close()
            layer = _finish(store, name, key, sink, blob)
            tar.keep(layer)
            return layer


def _write_wheel(
    tar: TarWriter, files: Iterable[InstalledFile], python: str, byte_code: ByteCode, prefix: str
) -> list[str]:
    """Write files in order, and among them the byte-code of some files before; return the paths of the byte-code."""
    compiled: list[str] = []
    for file in files:
        if compiles(file, python, prefix):
            content = b"".join(file.chunks())
            tar.file(file.path, file.size, [content], executable=file.executable)
            compiled += _write_byte_code(tar, byte_code.add(file.path, content), python)
        else:
            tar.file(file.path, file.size, file.chunks(), executable=file.executable)
    return compiled + _write_byte_code(tar, byte_code.rest(), python)


def _link_wheel(tar: TarWriter, first: Sequence[InstalledFile], other: Sequence[InstalledFile]) -> None:
    """Write the files of another environment as hard links to the `first` one's, but for those that name a prefix."""
    for file, linked_file in zip(first, other, strict=True):
        if is_same(file, linked_file):
            tar.hard_link(linked_file.path, file.path, executable=file.executable)
        else:
            tar.file(linked_file.path, linked_file.size, linked_file.chunks(), executable=linked_file.executable)


def _write_byte_code(tar: TarWriter, pycs: Iterable[tuple[str, bytes]], python: str) -> list[str]:
    paths = []
    for path, pyc in pycs:
        paths.append(pyc_path(path, python))
        tar.file(paths[-1], len(pyc), [pyc])
    return paths


def _own(
    lock: Lock, locked: LockedWheel, contents: ownership.Contents, written: Mapping[str, str]
) -> ownership.Contents:
    """Return the files of a wheel for its layer, without those that the lock gives to others, or that are `written`.

    The whole image is checked by `ownership.check`. Raises WheelError for a path that an earlier wheel of this layer
    wrote with other contents.
    """
    left_out = ownership.left_out(lock, locked.name, contents)
    wanted = {path: identity for path, identity in contents.items() if path not in left_out}
    if clash := next((path for path in wanted if written.get(path, wanted[path]) != wanted[path]), None):
        where = f"{locked.file.filename}: {clash}"
        raise WheelError("two packages own one file", code="wheel-file-conflict", where=where)
    return {path: identity for path, identity in wanted.items() if path not in written}


def segment_key(lock: Lock, locked: LockedWheel, prefixes: tuple[str, ...], absent: Iterable[str]) -> str:
    """Return the digest of all that decides a wheel's part of a layer; `absent` are files that it leaves out."""
    return digest_of_json([layer_key(lock, [locked], prefixes), sorted(absent)])


def _finish(store: Store, name: str, key: str, sink: LayerSink, blob: BlobWriter) -> Layer:
    diff_id = sink.close()
    digest = blob.commit()
    layer = Layer(ZSTD_TYPE, digest, blob.size, diff_id, name, key, sink.unpacked)
    _LAYERS.put(store, stored_key(key), layer)
    return layer


def stored_key(key: str) -> str:
    """Return the key under which a store keeps the layer of the plan with this key."""
    return digest_of_json([key, CODEC])
