"""Load an image from the bottom while its top is still being made, because an engine keeps unpacked layers."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import docker

from imagegen.core.errors import EngineError, StoreError
from imagegen.core.progress import Progress, Quiet, timed
from imagegen.core.store import Store
from imagegen.oci.documents import MANIFEST_TYPE, Descriptor, digest_of

if TYPE_CHECKING:
    from imagegen.image.layers import Image
from imagegen.engine.load import load, pulled, sweep
from imagegen.engine.loopback import Loadable


class Loading:
    """Loads an image in parts: each offer becomes an image in the engine, without a tag; the whole then costs the rest.

    Engines share unpacked layers along a common prefix. A context manager: its end removes the names of the parts and
    leaves their layers to the images that hold them. A failed part is not an error, since `finish` sends all that the
    engine lacks; after the engine failed to connect for a part, it gets no more of them.
    """

    def __init__(self, client: docker.DockerClient, store: Store) -> None:
        self._client, self._store = client, store
        self._newest: Image | None = None
        self._part = ExitStack()  # holds the layers that the engine has so far
        self._changed = threading.Condition()
        self._over = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop.set()
        self._settle()
        self._part.close()

    def offer(self, bottom: Image) -> None:
        """An image of the layers that are there by now; an earlier one that was not begun yet is dropped."""
        with self._changed:
            self._newest = bottom
            self._changed.notify()

    def finish(self, digest: str, tag: str, progress: Progress) -> None:
        """See `Engine.load`."""
        with timed(progress, f"loading {tag}"):
            self._settle()
            load(self._client, self._store, digest, tag, progress)

    def _settle(self) -> None:
        """Wait for the part that is on its way."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def _follow(self) -> None:
        with suppress(EngineError):
            sweep(self._client)
        while (bottom := self._next()) is not None:
            part = ExitStack()
            try:
                image = _in_memory(self._store, bottom)
                name = part.enter_context(pulled(self._client, image, Quiet().meter("", 0), self._stop))
            except (EngineError, StoreError):
                return
            self._part.close()  # the new part holds all that the one before it held
            self._part = part
            if name is None:
                return

    def _next(self) -> Image | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._newest is not None)
            bottom, self._newest = self._newest, None
            return None if self._over else bottom


def _in_memory(store: Store, image: Image) -> Loadable:
    """Return an image whose layers the store has, but not its manifest and config."""
    documents = {image.digest: image.manifest, digest_of(image.config): image.config}
    return Loadable(store, Descriptor(MANIFEST_TYPE, image.digest, len(image.manifest)), image.blobs, documents)
