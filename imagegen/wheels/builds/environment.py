"""The environment of builds: the engine or a buildx builder, with the store beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from imagegen.core.config import Settings
from imagegen.core.errors import BuildError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.image.layers import Image
from imagegen.run.engine import Engine


@dataclass(frozen=True)
class BuildEnvironment:
    """`builder` is one that `docker buildx ls` shows; None is the engine's own."""

    engine: Engine
    builder: str | None
    store: Store
    settings: Settings
    progress: Progress
    stop: Event = field(default_factory=Event)  # set: what runs on it ends at its next line

    @property
    def place(self) -> str:
        """The machine that builds run on: builds with an equal value share its memory."""
        return f"builder {self.builder}" if self.builder else str(self.engine.info().get("ID", "engine"))

    def layout(self, image: Image) -> str:
        """An image of the store, as the value of a build context."""
        return f"oci-layout://{self.store.root}@{image.digest}"

    def buildx(self, args: Sequence[str], cwd: Path, on_line: Callable[[str], None]) -> None:
        """See `Engine.buildx`. Raises BuildError when `stop` was set."""

        def listen(line: str) -> None:
            if self.stop.is_set():
                raise BuildError(
                    "stopped", code="source-build-stopped", fix="run it again: it goes on from what is compiled"
                )
            on_line(line)

        self.engine.buildx(args, cwd, self.progress, builder=self.builder, on_line=listen)
