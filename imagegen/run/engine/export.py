"""Export an engine's image as an archive, for read-only use: any engine that answers is supported.

Source: Docker Engine API v1.44 (/images/{name}/json and /images/{name}/get).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from docker.errors import ImageNotFound

from imagegen.core.config import Settings
from imagegen.run.engine.client import clients
from imagegen.run.engine.containers import explained


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
    with closing(clients(settings)) as found:
        for client in found:
            with explained(f"reading {reference}"):
                try:
                    image = client.api.inspect_image(reference)  # type: ignore[no-untyped-call]
                except ImageNotFound:
                    continue
                yield Export(client.api.get_image(reference), str(image["Architecture"]))
                return
    yield None
