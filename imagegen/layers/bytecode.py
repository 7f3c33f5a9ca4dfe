"""Byte-code for the target interpreter, compiled by that interpreter in sandboxes; never by the host's."""

from __future__ import annotations

import struct
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from imagegen.errors import SandboxError
from imagegen.sandbox import Sandbox

# Part of the layer format: a request is compiled in one fresh process, so its files decide the bytes together.
FILES_PER_REQUEST = 64

Source = tuple[str, bytes]  # the file's absolute path in the image, its contents


def requests(sources: Sequence[Source]) -> list[Sequence[Source]]:
    """Cut a wheel's sources, in their sorted order, into the units that are compiled together."""
    return [sources[start : start + FILES_PER_REQUEST] for start in range(0, len(sources), FILES_PER_REQUEST)]


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
        try:
            process.stdin.write(b"".join(parts))
            process.stdin.flush()
            return [self._block(process) for _ in sources]
        except (BrokenPipeError, EOFError) as error:
            self._local.process = None  # the thread's next request gets a new worker
            process.kill()
            stderr = process.communicate()[1] if process.stderr else b""
            raise SandboxError(
                "the byte-code compiler stopped",
                where=sources[0][0],
                why=stderr.decode(errors="replace").strip()[-500:] or f"exit status {process.returncode}",
            ) from error

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
