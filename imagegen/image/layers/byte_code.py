"""Byte-code for the target interpreter, compiled by that interpreter in sandboxes; never by the host's."""

from __future__ import annotations

import struct
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from imagegen.core.errors import SandboxError
from imagegen.core.sandbox import Sandbox

# Part of the layer format: a request is compiled in one fresh process, so its files decide the bytes together.
FILES_PER_REQUEST = 64
REQUESTS_AHEAD = 4  # also part of it
_LARGE = 1 << 18  # bytes of a source: compiling takes 50 times as much memory
# Limits for the answer to a request, since the base's interpreter is not trusted.
ANSWER_SECONDS = 3600  # the worker has 300 of processor time
ANSWER_BYTES = 256 << 20

Source = tuple[str, bytes]  # the file's absolute path in the image, its contents


class ByteCode:
    """The byte-code of one wheel, compiled while its sources are given.

    Byte-code comes a fixed number of sources after its own, so that memory stays small and the order depends on nothing
    but the sources.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._sources: list[Source] = []
        self._ahead: deque[tuple[list[str], Future[list[bytes]]]] = deque()

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

    def _submit(self) -> None:
        self._ahead.append(([path for path, _ in self._sources], self._compiler.submit(tuple(self._sources))))
        self._sources.clear()

    def _take(self) -> Iterator[tuple[str, bytes]]:
        paths, future = self._ahead.popleft()
        for path, pyc in zip(paths, future.result(), strict=True):
            if pyc:
                yield path, pyc


class Compiler:
    """A pool of sandboxed workers, one per core. A context manager; thread-safe.

    The base's file tree may still be in the making: requests wait for it.
    """

    def __init__(self, rootfs: Future[Path], interpreter: str, workers: int) -> None:
        self._rootfs = rootfs
        self._argv = [interpreter, "-I", "-S", "-B", "-c", Path(__file__).with_name("compile_worker.py").read_text()]
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="compile")
        self._large = threading.Semaphore(max(1, workers // 2))  # requests with a large source at one time
        self._local = threading.local()
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for process in self.processes:
            process.kill()
            process.communicate()

    def submit(self, sources: Sequence[Source]) -> Future[list[bytes]]:
        """Compile one request; the result has a pyc per source, empty where the source does not compile."""
        return self._pool.submit(self._compile, sources)

    def _compile(self, sources: Sequence[Source]) -> list[bytes]:
        if max(len(source) for _, source in sources) < _LARGE:
            return self._answer(sources)
        with self._large:
            return self._answer(sources)

    def _answer(self, sources: Sequence[Source]) -> list[bytes]:
        process = self._worker()
        assert process.stdin and process.stdout  # noqa: S101 - Popen with pipes always has them
        message = [struct.pack(">I", len(sources))]
        for path, source in sources:
            name = path.encode()
            message += [struct.pack(">I", len(name)), name, struct.pack(">I", len(source)), source]
        pycs: list[bytes] = []
        timer = threading.Timer(ANSWER_SECONDS, process.kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.writelines(message)
            process.stdin.flush()
            remaining_bytes = ANSWER_BYTES
            for _ in sources:
                pycs.append(self._block(process, remaining_bytes))
                remaining_bytes -= len(pycs[-1])
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
        finally:
            timer.cancel()
        return pycs

    def _block(self, process: subprocess.Popen[bytes], longest: int) -> bytes:
        assert process.stdout  # noqa: S101
        header = process.stdout.read(4)
        size = struct.unpack(">I", header)[0] if len(header) == 4 else -1
        if not 0 <= size <= longest:
            raise EOFError
        data = process.stdout.read(size)
        if len(data) != size:
            raise EOFError
        return data

    def _worker(self) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None:
            process = self._local.process = Sandbox(self._rootfs.result()).popen(self._argv, {})
            self.processes.append(process)
        return process
