"""A Docker engine: `Engine` finds it, checks its version, and has the operations of builds and smoke tests."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import docker
from docker.context import ContextAPI
from docker.errors import DockerException, ImageNotFound
from docker.utils import kwargs_from_env

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress, Quiet
from imagegen.core.store import Store
from imagegen.engine.buildx import WAITED, nodes_of, run_buildx, unreachable
from imagegen.engine.connection import ENGINE_FLOOR, INSTALL, open_client, shortcomings
from imagegen.engine.containers import Container, explained, running
from imagegen.engine.inspection import ContainerInfo, exec_in, inspect_container
from imagegen.engine.load import Loading, image_digest, load, pull, tag_image

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

TIMEOUT = 20  # seconds for an engine to report its version
SILENCE = 600  # seconds without a byte after which it is given up; it may unpack gigabytes without a word


class Engine:
    """An engine that answers and is good enough. Use as a context manager, or call `close`."""

    def __init__(self, client: docker.DockerClient, settings: Settings) -> None:
        self.client = client
        self._settings = settings
        client.api.timeout = SILENCE

    @classmethod
    def connect(cls, settings: Settings, progress: Progress | None = None) -> Self:
        """Connect to DOCKER_HOST or DOCKER_CONTEXT if one is set, else to the user's default engine, and log it.

        Raises EngineError if no engine answers there, or if it is unsupported.
        """
        where = choice(settings)
        other = f"unset {where.partition('=')[0]}" if where else INSTALL
        try:
            client = open_client(address(settings), TIMEOUT)
        except EngineError as error:
            fix = f"{error.fix}, or {other}"
            raise EngineError(error.what, where=where or error.where, why=error.why, fix=fix) from error
        try:
            with explained("asking the engine what it is"):
                problems = shortcomings(client.info())
        except BaseException:
            client.close()
            raise
        if problems:
            client.close()
            raise EngineError(
                "the Docker engine cannot be used",
                code="engine-unusable",
                where=where or client.api.base_url,
                why="; ".join(problems),
                fix=f"Docker {ENGINE_FLOOR} or newer with "
                '{"features": {"containerd-snapshotter": true}} in its daemon.json, '
                f"or {other}",
            )
        engine = cls(client, settings)
        (progress or Quiet()).say(f"engine: {engine.describe()}")
        return engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()

    def describe(self) -> str:
        """Return the engine's name for messages: "your Docker 28.5.2 (unix:///...)"."""
        with explained("asking the engine for its version"):
            version = self.client.version()["Version"]
        return f"your Docker {version} ({self._settings.env.get('DOCKER_HOST') or self.client.api.base_url})"

    def info(self) -> dict[str, Any]:
        """Return the engine's report about itself and its host (API: /info)."""
        with explained("asking the engine what it is"):
            found: dict[str, Any] = self.client.info()
        return found

    def image_digest(self, ref: str) -> str | None:
        """The digest of the image's manifest ("sha256:..."), or None when the engine has no such image."""
        return image_digest(self.client, ref)

    def load(self, store: Store, digest: str, tag: str, progress: Progress | None = None) -> None:
        """Make the store's image with this manifest digest available in the engine as `tag`.

        Only missing blobs are sent; a tag of another image moves, as with `docker tag`. Afterwards the engine's
        image has exactly this digest. Raises EngineError when the engine refuses, StoreError when the store is damaged.
        """
        load(self.client, store, digest, tag, progress or Quiet())

    def pull(
        self, name: str, digest: str, tag: str, credentials: tuple[str, str] | None, progress: Progress | None = None
    ) -> None:
        """Let the engine fetch an image from a registry, by the manifest's digest, and make it available as `tag`.

        `name` is the repository as the engine calls it, `credentials` a user's name and password for it. Raises
        EngineError when it cannot.
        """
        pull(self.client, name, digest, tag, credentials, progress or Quiet())

    def loading(self, store: Store) -> Loading:
        """Load an image from the bottom while its top is being made: see `Loading`."""
        return Loading(self.client, store)

    def tag(self, ref: str, tag: str) -> None:
        """Give an image that the engine has a further tag, taking it from any other image, as `docker tag` does."""
        tag_image(self.client, ref, tag)

    @contextmanager
    def container(
        self,
        ref: str,
        *,
        files: bytes | Mapping[str, bytes] = b"",
        env: Mapping[str, str] | None = None,
        network: bool = False,
        gpus: bool = False,
        shm_size: int | None = None,
    ) -> Iterator[Container]:
        """A container to run programs in, removed at the end of the block, or when this process or the engine dies.

        Args:
            ref: a tag or a digest that the engine has, with `cat` in it; nothing is pulled.
            files: copied to / through the API: a tar archive, or path -> content (mode 0644).
            env: added to the image's environment.
            network: the engine's default bridge; without it the container has loopback only.
            gpus: all of the host's GPUs.
            shm_size: bytes of /dev/shm; None is the engine's default (64 MiB).

        Raises EngineError when the container cannot be made or started.
        """
        with running(
            self.client, ref, files=files, env=env or {}, network=network, gpus=gpus, shm_size=shm_size
        ) as container:
            yield container

    def inspect_container(self, name: str) -> ContainerInfo:
        """Return the state and the log's end of a container, by name or id. Raises EngineError if there is none."""
        return inspect_container(self.client, name)

    def exec_in(self, name: str, argv: Sequence[str]) -> bytes:
        """Return a program's output in a container of the user's, which is not changed.

        Raises ContainerError when the container has ended, EngineError when the engine fails or the program does not
        end.
        """
        return exec_in(self.client, name, argv)

    def buildx(
        self,
        args: Sequence[str],
        cwd: Path,
        progress: Progress | None = None,
        *,
        builder: str | None = None,
        output: SupportsWrite[str] | None = None,
    ) -> str:
        """Run `docker buildx` with `args` in `cwd` on this engine; returns its stdout.

        `builder` names one of the user's own builders, local or not, to use instead. Each line of the plain progress is
        written to `output`, instead of showing it.

        Raises EngineError with the tail of its output when it fails, is missing or is too old, and with the reason when
        a remote builder cannot be reached.
        """
        if builder is None:
            return run_buildx(self._environment, args, cwd, progress or Quiet(), output)
        command = [args[0], "--builder", builder, *args[1:]]
        try:
            return run_buildx(self._environment, command, cwd, progress or Quiet(), output)
        except EngineError as error:
            if WAITED in (error.why or "") and (reason := self._unreachable(builder, cwd)):
                raise reason from error
            raise

    def _unreachable(self, builder: str, cwd: Path) -> EngineError | None:
        """Return why buildx cannot reach the builder; None where its nodes can be reached from here."""
        inspected = run_buildx(self._environment, ["inspect", builder], cwd, Quiet())
        return next(filter(None, (unreachable(builder, *node) for node in nodes_of(inspected))), None)

    def docker_run_line(self, ref: str, *command: str, own_entrypoint: bool = False) -> str:
        """Return a shell command that runs the image, ready to paste.

        With `own_entrypoint`, the command takes the place of the image's entry point, which would get it as arguments.
        """
        program, *arguments = command or ("",)
        words = ["--entrypoint", program, ref, *arguments] if own_entrypoint and command else [ref, *command]
        return " ".join([*self._host_prefix(), shlex.join(["docker", "run", "--rm", *words])])

    def buildx_line(self, arguments: str) -> str:
        """Return a shell command that runs buildx on this engine; `arguments` are shell text."""
        return " ".join([*self._host_prefix(), "docker buildx", arguments])

    def _host_prefix(self) -> list[str]:
        host = self._settings.env.get("DOCKER_HOST")
        return [f"DOCKER_HOST={shlex.quote(host)}"] if host else []

    @property
    def _environment(self) -> dict[str, str]:
        return dict(self._settings.env) or dict(os.environ)


def choice(settings: Settings) -> str | None:
    """The variable by which the user has chosen an engine, "DOCKER_HOST=tcp://..."."""
    names = ("DOCKER_HOST", "DOCKER_CONTEXT")
    return next((f"{name}={settings.env[name]}" for name in names if settings.env.get(name)), None)


def address(settings: Settings) -> dict[str, Any]:
    """The SDK's arguments for the engine that Docker's own client would use: DOCKER_HOST, else the current context."""
    env = dict(settings.env)
    try:
        options = dict(kwargs_from_env(env))
        if "base_url" in options:
            return options
        if ContextAPI.get_context(env.get("DOCKER_CONTEXT")) is None:  # the SDK would take the default one
            why = "there is no context of that name"
            raise EngineError(
                "no container engine", code="engine-missing", why=why, fix="choose one that `docker context ls` shows"
            )
        return {**ContextAPI.kwargs_from_context(environment=env), **options}
    except (DockerException, OSError, ValueError) as error:
        fix = "see `docker context ls` and the variables whose names begin with DOCKER_"
        raise EngineError(
            "Docker's settings cannot be used", code="engine-settings-invalid", why=str(error), fix=fix
        ) from error


@dataclass(frozen=True)
class Export:
    """The output of `docker save` in `pieces`; `architecture` is the image's, as Docker names it."""

    pieces: Iterable[bytes]
    architecture: str


@contextmanager
def exported(reference: str, settings: Settings) -> Iterator[Export | None]:
    """Yield the image from the user's engine, or None if there is no engine or it has no such image.

    Any engine that answers is supported. Source: Docker Engine API v1.44 (/images/{name}/json and /images/{name}/get).
    Raises EngineError if the engine fails, or if DOCKER_HOST or DOCKER_CONTEXT names one that does not answer.
    """
    try:
        client = open_client(address(settings), TIMEOUT)
    except EngineError:
        if choice(settings):
            raise
        yield None
        return
    client.api.timeout = SILENCE
    with closing(client), explained(f"reading {reference}"):
        try:
            image = client.api.inspect_image(reference)  # type: ignore[no-untyped-call]
        except ImageNotFound:
            yield None
        else:
            yield Export(client.api.get_image(reference), str(image["Architecture"]))
