"""A Docker engine, the user's or a private one: `Engine` is what builds and smoke tests use of it.

`exported` reads one of its images as an archive; any engine that answers is supported there.

Source: Docker Engine API v1.44 (/images/{name}/json and /images/{name}/get).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import docker
from docker.context import ContextAPI
from docker.errors import DockerException, ImageNotFound
from docker.utils import kwargs_from_env

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress, Quiet
from imagegen.core.store import Store
from imagegen.run import embedded_engine
from imagegen.run.engine.builder import WAITED, nodes_of, unreachable
from imagegen.run.engine.connection import ENGINE_FLOOR, Buildx, open_client, run_buildx, shortcomings
from imagegen.run.engine.containers import Container, ContainerInfo, exec_in, explained, inspect_container, running
from imagegen.run.engine.load import Loading, image_digest, load, pull, tag_image


@dataclass(frozen=True)
class Export:
    """The output of `docker save` in `pieces`; `architecture` is the image's, as Docker names it."""

    pieces: Iterable[bytes]
    architecture: str


@contextmanager
def exported(reference: str, settings: Settings) -> Iterator[Export | None]:
    """The image from the engine that the environment names, else from the user's or from imagegen's own.

    None where no engine has it. Raises EngineError when one fails, or the one that is named does not answer.
    """
    with closing(clients(settings)) as engines:
        for client in engines:
            with explained(f"reading {reference}"):
                try:
                    image = client.api.inspect_image(reference)  # type: ignore[no-untyped-call]
                except ImageNotFound:
                    continue
                yield Export(client.api.get_image(reference), str(image["Architecture"]))
                return
    yield None


# Find the engine, check that it will do, and give the rest of imagegen its few operations.

_TIMEOUT = 20  # seconds for an engine to report its version
_SILENCE = 600  # seconds without a byte after which it is given up: it may unpack gigabytes without a word


class Engine:
    """An engine that answers and is good enough. Use as a context manager, or call `close`."""

    def __init__(
        self, client: docker.DockerClient, settings: Settings, *, endpoint: embedded_engine.PrivateEngine | None = None
    ) -> None:
        self.client = client
        self.private = endpoint
        self._settings = settings
        client.api.timeout = _SILENCE

    @classmethod
    def connect(cls, settings: Settings, progress: Progress | None = None) -> Self:
        """Connect to DOCKER_HOST if set, else the user's default if it is supported, else imagegen's private engine.

        Logs the choice and its reason. Raises EngineError when there is none, or when DOCKER_HOST or DOCKER_CONTEXT
        names an unsupported one: an explicit choice is never overruled.
        """
        progress = progress or Quiet()
        endpoint = embedded_engine.recorded_endpoint(settings)
        if endpoint and settings.env.get("DOCKER_HOST") == endpoint.docker_host:
            return cls._private(endpoint, settings)
        try:
            engine, reason = cls._users(settings), ""
        except EngineError as error:
            if _choice(settings) or endpoint is None:
                raise
            engine, reason = cls._private(endpoint, settings), f", since {error.why}"
        progress.say(f"engine: {engine.describe()}{reason}")
        return engine

    @classmethod
    def _users(cls, settings: Settings) -> Self:
        where = _choice(settings)
        unset = f"unset {where.partition('=')[0]}" if where else None
        advice = "run `imagegen engine up` for a private engine"
        try:
            client = open_client(_place(settings), _TIMEOUT)
        except EngineError as error:
            fix = f"{error.fix}, or {unset or advice}"
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
                f"or {f'{unset} and ' if unset else ''}{advice}",
            )
        return cls(client, settings)

    @classmethod
    def _private(cls, endpoint: embedded_engine.PrivateEngine, settings: Settings) -> Self:
        try:
            return cls(open_client({"base_url": endpoint.docker_host}, _TIMEOUT), settings, endpoint=endpoint)
        except EngineError as error:
            what = "the private engine does not answer"
            raise EngineError(what, where=error.where, why=error.why, fix="`imagegen engine up` restarts it") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()

    def describe(self) -> str:
        """Return the engine's name for messages: "your Docker 28.5.2 (unix:///...)", "imagegen's private Docker 26.1.5
        (unix:///...)".
        """
        with explained("asking the engine for its version"):
            version = self.client.version()["Version"]
        if self.private:
            return f"imagegen's private Docker {version} ({self.private.docker_host})"
        return f"your Docker {version} ({self._settings.env.get('DOCKER_HOST') or self.client.api.base_url})"

    def info(self) -> dict[str, Any]:
        """Return what the engine reports about itself and its host (API: /info)."""
        with explained("asking the engine what it is"):
            found: dict[str, Any] = self.client.info()
        return found

    def image_digest(self, ref: str) -> str | None:
        """The digest of the image's manifest ("sha256:..."), or None when the engine has no such image."""
        return image_digest(self.client, ref)

    def load(self, store: Store, digest: str, tag: str, progress: Progress | None = None) -> None:
        """Make the store's image with this manifest digest available in the engine as `tag`.

        Only what the engine lacks is sent; a tag of another image moves, as with `docker tag`. Afterwards the engine's
        image has exactly this digest. Raises EngineError when the engine refuses, StoreError when the store is damaged.
        """
        load(self.client, store, digest, tag, progress or Quiet())

    def pull(
        self,
        name: str,
        digest: str,
        tag: str,
        credentials: tuple[str, str] | None,
        progress: Progress | None = None,
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
            self.client,
            ref,
            files=files,
            env=env or {},
            network=network,
            gpus=gpus,
            shm_size=shm_size,
        ) as container:
            yield container

    def inspect_container(self, name: str) -> ContainerInfo:
        """Return the state and the end of the log of a container, by name or id. Raises EngineError if
        there is none.
        """
        return inspect_container(self.client, name)

    def exec_in(self, name: str, argv: Sequence[str]) -> bytes:
        """Return what a program prints in a container of the user's, which is not changed.

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
        on_line: Callable[[str], None] | None = None,
    ) -> str:
        """Run `docker buildx` with `args` in `cwd` on this engine; returns what it printed on stdout.

        `builder` names one of the user's own builders, local or not, to use instead. `on_line` is called with each line
        of the plain progress, in place of showing it.

        Raises EngineError with the tail of its output when it fails, is missing or is too old, and with the reason when
        a remote builder cannot be reached.
        """
        if builder is None:
            return run_buildx(self._buildx(own=True), args, cwd, progress or Quiet(), on_line)
        command = [args[0], "--builder", builder, *args[1:]]
        try:
            return run_buildx(self._buildx(own=False), command, cwd, progress or Quiet(), on_line)
        except EngineError as error:
            if WAITED in (error.why or "") and (reason := self._unreachable(builder, cwd)):
                raise reason from error
            raise

    def _unreachable(self, builder: str, cwd: Path) -> EngineError | None:
        """Return why buildx cannot reach the builder; None where its nodes can be reached from here."""
        inspected = run_buildx(self._buildx(own=False), ["inspect", builder], cwd, Quiet())
        return next(filter(None, (unreachable(builder, *node) for node in nodes_of(inspected))), None)

    def docker_run_line(self, ref: str, *command: str, own_entrypoint: bool = False) -> str:
        """Return a shell command that runs the image, ready to paste.

        With `own_entrypoint`, the command takes the place of the image's entry point, which would get it as arguments.
        """
        client = [str(self.private.client)] if self.private else ["docker"]
        program, *arguments = command or ("",)
        words = ["--entrypoint", program, ref, *arguments] if own_entrypoint and command else [ref, *command]
        return " ".join([*self._host_prefix(), shlex.join([*client, "run", "--rm", *words])])

    def buildx_line(self, arguments: str) -> str:
        """A shell command that runs buildx on this engine, ready to paste; `arguments` are shell text."""
        if self.private is None:
            return " ".join([*self._host_prefix(), "docker buildx", arguments])
        config = shlex.quote(str(self.private.home / "buildx"))  # whatever builder the user's own buildx has in use
        program = shlex.quote(str(self.private.buildx))
        return " ".join([*self._host_prefix(), f"BUILDX_CONFIG={config}", program, arguments])

    def _host_prefix(self) -> list[str]:
        host = self.private.docker_host if self.private else self._settings.env.get("DOCKER_HOST")
        return [f"DOCKER_HOST={shlex.quote(host)}"] if host else []

    def _buildx(self, *, own: bool) -> Buildx:
        """Return buildx; `own`: with the engine's own builder, not the one that the user selected."""
        env = dict(self._settings.env) or dict(os.environ)
        if self.private is None:
            return Buildx(("docker", "buildx"), env)
        if not own:
            return Buildx((str(self.private.buildx),), env)
        return Buildx(
            (str(self.private.buildx),),
            {**env, "DOCKER_HOST": self.private.docker_host, "BUILDX_CONFIG": str(self.private.home / "buildx")},
        )


def clients(settings: Settings) -> Generator[docker.DockerClient]:
    """The engines that answer, whether they will do or not: the one that DOCKER_HOST or DOCKER_CONTEXT names, or the
    user's default and imagegen's private one. Each is closed when the next is requested.

    Raises EngineError when the one that is named does not answer.
    """
    endpoint = None if _choice(settings) else embedded_engine.recorded_endpoint(settings)
    for location in [_place(settings), *([{"base_url": endpoint.docker_host}] if endpoint else [])]:
        try:
            client = open_client(location, _TIMEOUT)
        except EngineError:
            if _choice(settings):
                raise
            continue
        client.api.timeout = _SILENCE
        with closing(client):
            yield client


def _choice(settings: Settings) -> str | None:
    """The variable by which the user has chosen an engine, "DOCKER_HOST=tcp://..."."""
    names = ("DOCKER_HOST", "DOCKER_CONTEXT")
    return next((f"{name}={settings.env[name]}" for name in names if settings.env.get(name)), None)


def _place(settings: Settings) -> dict[str, Any]:
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
