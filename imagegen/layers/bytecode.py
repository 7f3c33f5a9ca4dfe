"""Byte-code for the target interpreter, compiled by that interpreter in sandboxes; never by the host's."""

from __future__ import annotations

import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import zstandard

from imagegen.errors import SandboxError
from imagegen.layers.codec import LEVEL
from imagegen.sandbox import Sandbox
from imagegen.store import Store

_RECORD = "bytecode"
_READ = 1 << 18
# Part of the layer format: a request is compiled in one fresh process, so its files decide the bytes together.
FILES_PER_REQUEST = 64

Source = tuple[str, bytes]  # the file's absolute path in the image, its contents


class ByteCode:
    """The byte-code of one wheel: compiled while its sources are given, or as the store kept it from the last time.

    A wheel that shares its layer is converted again whenever a neighbour changes; with `key`, a digest of all that
    decides its byte-code, compiling, most of the work, is not done again.
    """

    def __init__(self, compiler: Compiler, store: Store, key: str | None) -> None:
        self._compiler, self._store, self._key = compiler, store, key
        record = store.recall(_RECORD, key) if key else None
        self._kept = record["digest"] if record and store.intact(record["digest"], record["size"]) else None
        self._paths: list[str] = []
        self._sources: list[Source] = []
        self._pending: list[Future[list[bytes]]] = []

    def add(self, path: str, source: bytes) -> None:
        """The next source, in sorted order."""
        self._paths.append(path)
        if self._kept is None:
            self._sources.append((path, source))
            if len(self._sources) == FILES_PER_REQUEST:
                self._submit()

    def pycs(self) -> Iterator[tuple[str, bytes]]:
        """(path of the source, pyc) for each source that compiles, in the order in which they were given."""
        if self._sources:
            self._submit()
        pycs = self._compiled() if self._kept is None else self._read(self._kept)
        yield from ((path, pyc) for path, pyc in zip(self._paths, pycs, strict=True) if pyc)

    def _submit(self) -> None:
        self._pending.append(self._compiler.submit(tuple(self._sources)))
        self._sources.clear()

    def _compiled(self) -> Iterator[bytes]:
        if self._key is None:
            for future in self._pending:
                yield from future.result()
            return
        with self._store.writer() as blob:
            compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj()
            for future in self._pending:
                for pyc in future.result():
                    blob.write(compressor.compress(struct.pack(">I", len(pyc)) + pyc))
                    yield pyc
            blob.write(compressor.flush())
            self._store.remember(_RECORD, self._key, {"digest": blob.commit(), "size": blob.size})

    def _read(self, digest: str) -> Iterator[bytes]:
        with (
            self._store.open(digest) as blob,
            zstandard.ZstdDecompressor().stream_reader(blob, read_size=_READ) as stream,  # type: ignore[arg-type]
        ):
            for _ in self._paths:
                yield stream.read(struct.unpack(">I", stream.read(4))[0])
            stream.read(1)  # to the end, where the store verifies what was read


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
