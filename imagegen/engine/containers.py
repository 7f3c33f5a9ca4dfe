"""Run one container and leave nothing behind, whatever happens in between.

The container's first process reads an input that this process holds open, and the engine removes the container when
it ends. So it goes when this process is killed as well, and when the engine itself dies and comes back.

Source: Docker Engine API v1.44 (containers, attach, exec, archive).
"""

from __future__ import annotations

import io
import secrets
import signal
import socket
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from docker.types import DeviceRequest
from docker.utils.socket import STDERR, STDOUT, SocketError, frames_iter
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from imagegen.core.errors import ContainerError, EngineError, LostEngineError, NoGpuError, OutputLimitError
from imagegen.core.image_format import EPOCH

LABEL = "imagegen"
_FIX = "see that the engine runs, and try again"
LONGEST = 8 << 20  # bytes of each output stream of a program
_END = 4000  # bytes of longer output that an error shows
_GRACE = 30  # seconds for a killed container to be gone


@dataclass(frozen=True)
class Outcome:
    """The end of a program in a container. Signals are reported the way runtimes do: 128 plus the signal's number."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def signal(self) -> str | None:
        """The name of the signal that killed the program ("SIGKILL"), or None."""
        return signal_name(self.exit_code)


def signal_name(exit_code: int) -> str | None:
    """Return the signal that `exit_code` means by convention: "SIGSEGV" for 139; None for an ordinary exit code."""
    try:
        return signal.Signals(exit_code - 128).name if exit_code > 128 else None
    except ValueError:
        return None


class Container:
    """A running container; made by `Engine.container`. Raises EngineError when the engine fails.

    `emulated` is whether the engine's machine emulates the processor that the image is for.
    """

    def __init__(self, client: docker.DockerClient, name: str, *, emulated: bool) -> None:
        self._api = client.api
        self._name = name
        self.emulated = emulated

    def exec(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> Outcome:
        """Run a program and wait for it.

        Raises TimeoutError after `timeout` seconds, and OutputLimitError where a stream has more than LONGEST bytes.
        The API cannot end a single exec, so the whole container is killed then: a program that hangs must not go on
        stealing time from the next one, which gets a ContainerError.
        """
        api = self._api
        doing = f"running {argv[0]} in a container"
        with explained(doing), of_a_container(doing):
            created = api.exec_create(self._name, list(argv), environment=dict(env or {}))["Id"]
            stream = api.exec_start(created, socket=True)
        output = {STDOUT: bytearray(), STDERR: bytearray()}
        broken: list[Exception] = []
        endless: list[bytearray] = []

        def collect() -> None:
            try:
                for kind, chunk in frames_iter(stream, tty=False):  # type: ignore[no-untyped-call]
                    output[kind] += chunk
                    if len(output[kind]) > LONGEST:
                        endless.append(output[kind])
                        shut_down(stream)  # else the engine, to end the container, waits 10 s for a reader
                        return
            except (OSError, SocketError) as error:
                broken.append(error)

        reader = threading.Thread(target=collect, daemon=True)
        reader.start()
        try:
            reader.join(timeout)
            if reader.is_alive():
                raise TimeoutError(f"{argv[0]} still running after {timeout} s")
        finally:
            if reader.is_alive() or endless:  # a timeout or an interrupt; or nothing reads the program's output
                self.kill()
                reader.join(_GRACE)
            close_stream(stream)
        if endless:
            why = endless[0][-_END:].decode(errors="replace").strip()
            raise OutputLimitError(f"{doing}: its output exceeds {LONGEST >> 20} MiB", why=why)
        if broken:
            raise EngineError(f"{doing}: its output is lost", code="engine-output-lost", why=str(broken[0]), fix=_FIX)
        with explained(doing), of_a_container(doing):
            code = api.exec_inspect(created)["ExitCode"]
        if code is None:  # the stream ended and the program has not
            raise EngineError(f"{doing}: the engine closed its output", code="engine-output-lost", fix=_FIX)
        return Outcome(int(code), bytes(output[STDOUT]), bytes(output[STDERR]))

    def kill(self) -> None:
        """End the container now; nothing happens when it has ended."""
        with _tidying(self._api, "killing a container"):
            self._api.kill(self._name)


@contextmanager
def running(
    client: docker.DockerClient,
    ref: str,
    *,
    files: bytes | Mapping[str, bytes],
    env: Mapping[str, str],
    network: bool,
    gpus: bool,
    shm_size: int | None,
) -> Iterator[Container]:
    """See `Engine.container`."""
    api = client.api
    # The name is chosen here, so that an interrupt between the engine's "created" and ours still finds the container.
    name = f"imagegen-{secrets.token_hex(6)}"
    doing = f"starting a container of {ref}"
    with ExitStack() as cleanup:
        try:
            with explained(doing):
                api.create_container(
                    ref,
                    entrypoint=["cat"],  # whatever the image's own does
                    name=name,
                    stdin_open=True,
                    stop_signal="SIGKILL",  # else an engine that comes back waits for it, ten seconds
                    environment=dict(env),
                    host_config=api.create_host_config(
                        auto_remove=True,
                        network_mode=None if network else "none",
                        device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpus else [],
                        shm_size=shm_size,
                    ),
                    labels={LABEL: "container"},
                )
                cleanup.callback(close_stream, api.attach_socket(name, {"stdin": 1, "stream": 1}))
                api.start(name)
                emulated = _is_emulated(api, ref, name, doing)
                archive = files if isinstance(files, bytes) else tar_of(files)
                if archive:
                    api.put_archive(name, "/", archive)
            yield Container(client, name, emulated=emulated)
        finally:
            with suppress(EngineError), _tidying(api, "removing a container"):  # else it goes when its input ends
                api.remove_container(name, force=True, v=True)


def _is_emulated(api: docker.APIClient, ref: str, name: str, doing: str) -> bool:
    """Return whether the image is for another processor than the engine's machine, which emulates it.

    Raises EngineError where it does not.

    The engine reports such a container as started; only a program that is run in it shows that none can.
    """
    image = api.inspect_image(ref).get("Architecture")  # type: ignore[no-untyped-call]
    architecture = api.version().get("Arch")
    if not image or image == architecture:
        return False
    try:
        created = api.exec_create(name, ["cat", "/dev/null"])["Id"]
        api.exec_start(created)
        if api.exec_inspect(created)["ExitCode"] == 0:
            return True
    except APIError:  # it is gone
        pass
    raise EngineError(
        f"{doing}: it is for {image}, and the engine's machine is {architecture}",
        code="engine-foreign-platform",
        why="its programs end with `exec format error`, for want of emulation",
        fix=f"an engine on a machine for {image}; under emulation, slowly: `sudo apt-get install qemu-user-static "
        "binfmt-support` on the engine's host; `--no-test` leaves out the smoke checks",
    )


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """A tar of regular files, path ("opt/smoke/run.py") to content; b"" for no files.

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


def close_stream(stream: Any, reader: threading.Thread | None = None) -> None:
    """Close an exec's hijacked connection, once the thread that reads it has seen that it ends.

    The SDK leaves the socket under the stream open.
    """
    sock = shut_down(stream)
    if reader:
        reader.join()
    stream._response.close()  # noqa: SLF001 - the SDK keeps it there, and gives no other way
    stream.close()
    sock.close()


def shut_down(stream: Any) -> Any:
    """End an exec's hijacked connection for both sides, and return its socket."""
    sock = getattr(stream, "_sock", stream)
    with suppress(OSError):  # the engine has closed it
        sock.shutdown(socket.SHUT_RDWR)
    return sock


@contextmanager
def _tidying(api: docker.APIClient, doing: str) -> Iterator[None]:
    """Handle errors of ending or removing a container, which has a short limit; an ended container is not a fault."""
    before, api.timeout = api.timeout, _GRACE
    try:
        with explained(doing), suppress(ContainerError), of_a_container(doing):
            yield
    finally:
        api.timeout = before


@contextmanager
def of_a_container(doing: str) -> Iterator[None]:
    """Handle errors of requests to a running container. Raises ContainerError when it has ended or ends meanwhile."""
    try:
        yield
    except APIError as error:
        if error.status_code not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            raise
        raise ContainerError(f"{doing}: the container has ended", why=_message(error)) from error


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn the SDK's errors into EngineError; LostEngineError where there was no answer."""
    try:
        yield
    except ImageNotFound as error:
        raise EngineError(
            f"{doing}: the engine has no such image", code="engine-no-image", why=_message(error), fix="build it"
        ) from error
    except APIError as error:
        kind = NoGpuError if "could not select device driver" in _message(error) else EngineError
        raise kind(f"{doing}: the engine refused", why=_message(error)) from error
    except (DockerException, RequestException, HTTPError) as error:
        raise LostEngineError(f"{doing}: no answer from the engine", why=str(error), fix=_FIX) from error


def _message(error: APIError) -> str:
    return str(error.explanation or error).strip()
