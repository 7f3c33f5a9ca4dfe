"""Run one container and leave nothing behind, whatever happens in between.

Source: Docker Engine API v1.44 (containers, exec, archive).
"""

from __future__ import annotations

import io
import secrets
import signal
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import docker
import requests
from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container as DockerContainer
from docker.types import DeviceRequest
from docker.utils.socket import STDERR, STDOUT, SocketError, frames_iter

from imagegen.epoch import EPOCH
from imagegen.errors import EngineError, NoGpuError

LABEL = "imagegen"
_GRACE = 10  # seconds for the output of a killed program to end


@dataclass(frozen=True)
class Outcome:
    """How a program in a container ended. Signals are reported the way runtimes do: 128 plus the signal's number."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def signal(self) -> str | None:
        """The name of the signal that killed the program ("SIGKILL"), or None."""
        return signal_name(self.exit_code)


def signal_name(exit_code: int) -> str | None:
    """What `exit_code` says by convention: "SIGSEGV" for 139; None for an ordinary exit code."""
    try:
        return signal.Signals(exit_code - 128).name if exit_code > 128 else None
    except ValueError:
        return None


class Container:
    """A running container; made by `Engine.container`. Raises EngineError when the engine fails."""

    def __init__(self, client: docker.DockerClient, container: DockerContainer) -> None:
        self._client = client
        self._container = container

    def wait(self, timeout: float | None = None) -> int:
        """The exit code of the container's command. Raises TimeoutError, and kills it, after `timeout` seconds."""
        start = time.monotonic()
        with explained("waiting for a container"):
            try:
                return int(self._container.wait(timeout=timeout)["StatusCode"])
            except requests.exceptions.RequestException as error:
                # The SDK reports a timeout in several ways, some of them as a lost connection.
                if timeout is None or time.monotonic() - start < timeout:
                    raise
                self.kill()
                raise TimeoutError(f"still running after {timeout} s") from error

    def logs(self) -> tuple[bytes, bytes]:
        """(stdout, stderr) of the container's command so far."""
        with explained("reading a container's output"):
            out = self._container.logs(stdout=True, stderr=False)
            return out, self._container.logs(stdout=False, stderr=True)

    def exec(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> Outcome:
        """Run a further program and wait for it.

        Raises TimeoutError after `timeout` seconds. The API cannot end a single exec, so the whole container is
        killed then: a program that hangs must not go on stealing time from the next one.
        """
        api = self._client.api
        with explained(f"running {argv[0]} in a container"):
            created = api.exec_create(self._container.id, list(argv), environment=dict(env or {}))["Id"]
            stream = api.exec_start(created, socket=True)
        output: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        broken: list[Exception] = []

        def collect() -> None:
            try:
                for kind, chunk in frames_iter(stream, tty=False):  # type: ignore[no-untyped-call]
                    output[kind].append(chunk)
            except (OSError, SocketError) as error:
                broken.append(error)

        reader = threading.Thread(target=collect, daemon=True)
        reader.start()
        try:
            reader.join(timeout)
            if reader.is_alive():
                raise TimeoutError(f"{argv[0]} still running after {timeout} s")
        finally:
            if reader.is_alive():  # a timeout or an interrupt
                self.kill()
                reader.join(_GRACE)
            _close(stream)
        if broken:
            raise EngineError("lost the output of a program in a container", why=str(broken[0]))
        with explained(f"running {argv[0]} in a container"):
            code = api.exec_inspect(created)["ExitCode"]
        return Outcome(int(code), b"".join(output[STDOUT]), b"".join(output[STDERR]))

    def kill(self) -> None:
        """End the container now; nothing happens when it has ended."""
        try:
            self._container.kill()
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:  # 409: it is not running
                raise EngineError("cannot kill a container", why=_message(error)) from error


@contextmanager
def running(
    client: docker.DockerClient,
    ref: str,
    command: Sequence[str],
    *,
    files: bytes | Mapping[str, bytes],
    env: Mapping[str, str],
    network: bool,
    gpus: bool,
    shm_size: int | None,
) -> Iterator[Container]:
    """See `Engine.container`."""
    # The name is chosen here, so that an interrupt between the engine's "created" and ours still finds the container.
    name = f"imagegen-{secrets.token_hex(6)}"
    try:
        with explained(f"starting a container of {ref}"):
            container = client.containers.create(
                ref,
                list(command),
                name=name,
                environment=dict(env),
                network_mode=None if network else "none",
                device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpus else [],
                shm_size=shm_size,
                labels={LABEL: "container"},
            )
            archive = files if isinstance(files, bytes) else tar_of(files)
            if archive:
                container.put_archive("/", archive)
            container.start()
        yield Container(client, container)
    finally:
        _remove(client, name)


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """A tar of regular files, path ("opt/suite/run.py") to content; b"" for no files.

    Parent directories are left out, so that one that the image has keeps its mode.
    """
    if not files:
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in sorted(files.items()):
            info = tarfile.TarInfo(path.lstrip("/"))
            info.size, info.mtime, info.mode = len(content), EPOCH, 0o644
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _close(stream: Any) -> None:
    """Close an exec's hijacked connection: the SDK leaves the socket under the stream open."""
    sock = getattr(stream, "_sock", stream)
    stream._response.close()  # noqa: SLF001 - the SDK keeps it there, and gives no other way
    stream.close()
    sock.close()


def _remove(client: docker.DockerClient, name: str) -> None:
    try:
        client.api.remove_container(name, force=True, v=True)
    except NotFound:
        return
    except APIError as error:
        if error.status_code != 409:  # 409: its removal is under way
            raise EngineError(f"cannot remove the container {name}", why=_message(error)) from error


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn the SDK's errors into EngineError."""
    try:
        yield
    except ImageNotFound as error:
        raise EngineError(f"{doing}: the engine has no such image", why=_message(error), fix="build it") from error
    except APIError as error:
        kind = NoGpuError if "could not select device driver" in _message(error) else EngineError
        raise kind(f"{doing}: the engine refused", why=_message(error)) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise EngineError(f"{doing}: no answer from the engine", why=str(error)) from error


def _message(error: APIError) -> str:
    return str(error.explanation or error).strip()
