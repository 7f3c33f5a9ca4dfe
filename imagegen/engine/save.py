"""Read an image of an engine as an archive; any engine that answers is supported.

Source: Docker Engine API v1.44 (/images/{name}/json and /images/{name}/get).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from docker.errors import ImageNotFound

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.engine.client import SILENCE, TIMEOUT, address, choice
from imagegen.engine.connection import open_client
from imagegen.engine.containers import explained


@dataclass(frozen=True)
class Export:
    """The output of `docker save` in `pieces`; `architecture` is the image's, as Docker names it."""

    pieces: Iterable[bytes]
    architecture: str


@contextmanager
def exported(reference: str, settings: Settings) -> Iterator[Export | None]:
    """Yield the image from the user's engine, or None if there is no engine or it has no such image.

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
