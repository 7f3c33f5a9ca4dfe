"""Byte-code for the target interpreter, compiled by that interpreter in sandboxes; never by the host's."""

from __future__ import annotations

import struct
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import zstandard

from imagegen.core.errors import SandboxError
from imagegen.core.sandbox import Sandbox
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, StoredBlob
from imagegen.core.store.layout import BlobWriter
from imagegen.image.layers.codec import LEVEL

_BYTE_CODE = BlobCache("bytecode")
_READ = 1 << 18
# Part of the layer format: a request is compiled in one fresh process, so its files decide the bytes together.
FILES_PER_REQUEST = 64
REQUESTS_AHEAD = 4  # also part of it

Source = tuple[str, bytes]  # the file's absolute path in the image, its contents


class ByteCode:
    """The byte-code of one wheel: compiled while its sources are given, or as the store kept it from the last time.

    A wheel that shares its layer is converted again whenever a neighbour changes; with `key`, a digest of all that
    decides its byte-code, compiling, most of the work, is not done again. Byte-code comes a fixed number of sources
    after its own, so that memory stays small and the order depends on nothing but the sources. A context manager.
    """

    def __init__(self, compiler: Compiler, store: Store, key: str | None) -> None:
        self._compiler, self._store, self._key = compiler, store, key
        self._sources: list[Source] = []
        self._ahead: deque[tuple[list[str], Future[list[bytes]] | None]] = deque()
        self._open = ExitStack()
        self._kept: BinaryIO | None = None
        self._keep: BlobWriter | None = None
        self._compress = zstandard.ZstdCompressor(level=LEVEL).compressobj()

    def __enter__(self) -> ByteCode:
        found = _BYTE_CODE.get(self._store, self._key) if self._key else None
        if found and self._store.intact(found.digest, found.size):
            blob = self._open.enter_context(self._store.open(found.digest))
            reader = zstandard.ZstdDecompressor().stream_reader(blob, read_size=_READ)  # type: ignore[arg-type]
            self._kept = self._open.enter_context(reader)
        elif self._key:
            self._keep = self._open.enter_context(self._store.writer())
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def add(self, path: str, source: bytes) -> Iterator[tuple[str, bytes]]:
        """Take the next source, in sorted order; gives (path of a source, pyc) of earlier ones."""
        self._sources.append((path, source))
        if len(self._sources) == FILES_PER_REQUEST:
            self._submit()
            if len(self._ahead) > REQUESTS_AHEAD:
                yield from self._take()

    def rest(self) -> Iterator[tuple[str, bytes]]:
        """Yield the remaining byte-code when all sources were given. Sources that do not compile have no pyc."""
        if self._sources:
            self._submit()
        while self._ahead:
            yield from self._take()
        if self._keep and self._key:
            self._keep.write(self._compress.flush())
            _BYTE_CODE.put(self._store, self._key, StoredBlob(self._keep.commit(), self._keep.size))

    def _submit(self) -> None:
        future = None if self._kept else self._compiler.submit(tuple(self._sources))
        self._ahead.append(([path for path, _ in self._sources], future))
        self._sources.clear()

    def _take(self) -> Iterator[tuple[str, bytes]]:
        paths, future = self._ahead.popleft()
        pycs = future.result() if future else [self._stored() for _ in paths]
        for path, pyc in zip(paths, pycs, strict=True):
            if self._keep:
                self._keep.write(self._compress.compress(struct.pack(">I", len(pyc)) + pyc))
            if pyc:
                yield path, pyc

    def _stored(self) -> bytes:
        assert self._kept  # noqa: S101 - there is a future otherwise
        return self._kept.read(struct.unpack(">I", self._kept.read(4))[0])


class Compiler:
    """A pool of sandboxed workers, one per core. A context manager; thread-safe.

    The base's file tree may still be in the making: requests wait for it.
    """

    def __init__(self, rootfs: Future[Path], interpreter: str, workers: int) -> None:
        self._rootfs = rootfs
        self._argv = [interpreter, "-I", "-S", "-B", "-c", Path(__file__).with_name("compile_worker.py").read_text()]
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="compile")
        self._local = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.kill()
            process.communicate()

    def submit(self, sources: Sequence[Source]) -> Future[list[bytes]]:
        """Compile one request; the result has a pyc per source, empty where the source does not compile."""
        return self._pool.submit(self._compile, sources)

    def _compile(self, sources: Sequence[Source]) -> list[bytes]:
        process = self._worker()
        assert process.stdin and process.stdout  # noqa: S101 - Popen with pipes always has them
        parts = [struct.pack(">I", len(sources))]
        for path, source in sources:
            name = path.encode()
            parts += [struct.pack(">I", len(name)), name, struct.pack(">I", len(source)), source]
        pycs: list[bytes] = []
        try:
            process.stdin.write(b"".join(parts))
            process.stdin.flush()
            pycs.extend(self._block(process) for _ in sources)
        except (BrokenPipeError, EOFError) as error:
            self._local.process = None  # the thread's next request gets a new worker
            process.kill()
            stderr = process.communicate()[1] if process.stderr else b""
            raise SandboxError(
                "the byte-code compiler stopped",
                code="sandbox-compiler-stopped",
                where=sources[len(pycs)][0],
                why=stderr.decode(errors="replace").strip()[-500:] or f"exit status {process.returncode}",
            ) from error
        return pycs

    def _block(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout  # noqa: S101
        header = process.stdout.read(4)
        if len(header) != 4:
            raise EOFError
        size = struct.unpack(">I", header)[0]
        data = process.stdout.read(size)
        if len(data) != size:
            raise EOFError
        return data

    def _worker(self) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None:
            process = self._local.process = Sandbox(self._rootfs.result()).popen(self._argv, {})
            self._processes.append(process)
        return process
