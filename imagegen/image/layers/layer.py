"""Making one layer: the venv's skeleton, a set of wheels, the support files, or the base's file tree.

What is known of a layer, by type:

LayerPlan        name and key of its inputs; it need not exist       layers/plan.py
LayerDescriptor  a blob and its diff_id, as an image names them      core/oci/types.py
Layer            both                                                here
LayerSource      a LayerPlan, and whether its Layer exists, where    layers/sources.py
RecordedLayer    a Layer as a lock's record has it                   plan/lock/model.py
LocatedLayer     where a publish takes the layer from                supply/publish/plan.py
ComparedLayer    what a comparison needs, as far as it is known      supply/compare/operands.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from imagegen.core.errors import WheelError
from imagegen.core.oci.types import ZSTD_TYPE, LayerDescriptor
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.store.layout import BlobWriter
from imagegen.core.types import Digest, Size
from imagegen.image.inputs import libpython_link
from imagegen.image.layers import scan
from imagegen.image.layers.bytecode import ByteCode, Compiler
from imagegen.image.layers.codec import CODEC, LayerSink, TarWriter
from imagegen.image.layers.install import (
    MAX_SOURCE,
    InstalledFile,
    compiles,
    installation,
    pyc_path,
    site_packages,
    skeleton,
)
from imagegen.image.layers.plan import (
    INTERPRETER,
    OPEN,
    WORKDIR,
    LayerPlan,
    bytecode_key,
    digest_of_json,
    layer_key,
    support_files,
    support_links,
)
from imagegen.image.layers.scan import WheelScanner, recorded_blob
from imagegen.image.layers.wheel import Wheel, open_locked
from imagegen.plan.lock.foundation import directory
from imagegen.plan.lock.model import Lock

PrintableName = Annotated[str, Field(pattern=r"^[ -~]{1,200}\z")]


@dataclass(frozen=True)
class Layer(LayerDescriptor):
    """A layer of an image that imagegen assembles: `key` is the digest of its inputs, `unpacked` the size of the tar.

    A layer of a registry's image is used as it is, however it is compressed, and its `unpacked` size is unknown.
    """

    name: PrintableName
    key: Digest
    unpacked: Size | None = None


_LAYERS = Cache("layer", Layer)


def recorded(store: Store, name: str, key: str) -> Layer | None:
    """The layer that this store once made for `key` with the codec in use, whether its blob is still here or not."""
    found = _LAYERS.get(store, _with_codec(key))
    return replace(found, name=name) if found else None


def known(store: Store, name: str, key: str) -> Layer | None:
    """The layer that this store made for `key` with the codec in use, if its blob is still here."""
    layer = recorded(store, name, key)
    return layer if layer and store.has(layer.digest, layer.size) else None


def wheels_layer(store: Store, plan: LayerPlan, lock: Lock, compiler: Compiler) -> Layer:
    """Convert the wheels of one plan, all in the store, into a layer."""

    def fill(tar: TarWriter) -> None:
        written: dict[str, InstalledFile] = {}
        for locked in plan.wheels:
            with open_locked(store, locked) as wheel:
                files = installation(wheel, lock.python)
                # Before the layer is known: a layer in the store means that its files can be checked against others.
                scan.remember(store, locked, files, lock.python)
                scanned = recorded_blob(store, locked, lock.python)
                watch = None if scanned else WheelScanner(store, locked, wheel, lock.python)
                files = watch.over(files) if watch else files
                left = scan.left_out(lock, locked.name, (file.path for file in files))
                own = [file for file in files if file.path not in left and not _shared(written, file, wheel)]
                sources = [file.path for file in own if compiles(file, lock.python)]
                key = digest_of_json([layer_key(lock, [locked]), sources]) if len(plan.wheels) > 1 else None
                with ByteCode(compiler, store, key) as byte_code:
                    _write_wheel(tar, own, lock.python, byte_code)
                if watch:
                    watch.finish()

    return _make(store, plan.name, plan.key, fill)


def skeleton_layer(store: Store, plan: LayerPlan, lock: Lock) -> Layer:
    """Make what `python -m venv --without-pip` makes, less the activate scripts: the image's PATH does their work."""
    home = lock.interpreter.path.rpartition("/")[0]
    config = f"home = {home}\ninclude-system-site-packages = false\nversion = {lock.python}\n"

    def fill(tar: TarWriter) -> None:
        for path, target in skeleton(lock.python).items():
            if path.endswith(".cfg"):
                tar.file(path, len(config), [config.encode()])
            else:
                tar.link(path, target or lock.interpreter.path)
        tar.directory(site_packages(lock.python))
        tar.directory(WORKDIR)

    return _make(store, plan.name, plan.key, fill)


def interpreter_layer(store: Store, key: str, lock: Lock, tree: Path, compiler: Compiler) -> Layer:
    """Make the layer of a standalone interpreter from its files in `tree`, with the byte-code of its own library.

    Files come sorted by path, and byte-code among them as in layers of wheels.
    """
    home = directory(lock.interpreter)
    sources = f"{home}/lib/python{lock.python}/"

    def fill(tar: TarWriter) -> None:
        tar.directory(home)
        with ByteCode(compiler, store, None) as byte_code:
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
    """Make the layer of the files that every image has beside its stack: see `support`."""

    def fill(tar: TarWriter) -> None:
        files = support_files(lock)
        for file in files:
            tar.file(file.path, len(file.content), [file.content], executable=file.executable)
        with ByteCode(compiler, store, bytecode_key(lock)) as byte_code:
            for file in files:
                if file.path.endswith(".py"):
                    _write_byte_code(tar, byte_code.add(file.path, file.content), lock.python)
            _write_byte_code(tar, byte_code.rest(), lock.python)
        for path in OPEN:
            tar.directory(path, 0o1777)
        for path, target in support_links(lock).items():
            tar.link(path, target)

    return _make(store, plan.name, plan.key, fill, below=("/root",))


def tar_layer(store: Store, name: str, key: str, tar_digest: str) -> Layer:
    """Compress a normalised tar of base or packages, a blob of the store whose digest is the layer's diff_id."""
    with store.open(tar_digest) as reader, store.writer() as blob:
        sink = LayerSink(blob)
        for chunk in reader:
            sink.write(chunk)
        return _finish(store, name, key, sink, blob)


def _make(store: Store, name: str, key: str, fill: Callable[[TarWriter], None], below: Iterable[str] = ()) -> Layer:
    with store.lock(f"layer-{key}"):
        layer = known(store, name, key)  # another build may have made it while this one waited
        if layer is not None:
            return layer
        with store.writer() as blob:
            sink = LayerSink(blob)
            tar = TarWriter(sink.write, below)
            fill(tar)
            tar.close()
            return _finish(store, name, key, sink, blob)


def _write_wheel(tar: TarWriter, files: Iterable[InstalledFile], python: str, byte_code: ByteCode) -> None:
    """Files in sorted order, and among them the byte-code of those that came some time before."""
    for file in files:
        if compiles(file, python):
            content = b"".join(file.chunks())
            tar.file(file.path, file.size, [content], executable=file.executable)
            _write_byte_code(tar, byte_code.add(file.path, content), python)
        else:
            tar.file(file.path, file.size, file.chunks(), executable=file.executable)
    _write_byte_code(tar, byte_code.rest(), python)


def _write_byte_code(tar: TarWriter, pycs: Iterable[tuple[str, bytes]], python: str) -> None:
    for path, pyc in pycs:
        tar.file(pyc_path(path, python), len(pyc), [pyc])


def _shared(written: dict[str, InstalledFile], file: InstalledFile, wheel: Wheel) -> bool:
    """Return whether an earlier wheel of this layer wrote the very same file.

    The whole image is checked by `ownership`.
    """
    before = written.setdefault(file.path, file)
    if before is file:
        return False
    if (before.sha256, before.executable) != (file.sha256, file.executable):
        raise WheelError(
            "two packages own one file", code="wheel-file-conflict", where=f"{wheel.filename}: {file.path}"
        )
    return True


def _finish(store: Store, name: str, key: str, sink: LayerSink, blob: BlobWriter) -> Layer:
    diff_id = sink.close()
    digest = blob.commit()
    layer = Layer(ZSTD_TYPE, digest, blob.size, diff_id, name, key, sink.unpacked)
    _LAYERS.put(store, _with_codec(key), layer)
    return layer


def _with_codec(key: str) -> str:
    return digest_of_json([key, CODEC])
