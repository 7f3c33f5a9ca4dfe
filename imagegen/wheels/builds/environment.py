"""The machine of builds: an engine or a buildx builder, with the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BuildError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.image.layers import Image

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from imagegen.engine import Engine


@dataclass(frozen=True)
class BuildEnvironment:
    """The engine and store of source builds. `builder` is one of `docker buildx ls`; None is the engine's own."""

    engine: Engine
    builder: str | None
    context: Context
    stop: Event = field(default_factory=Event)  # once set, a running build ends at its next line

    @property
    def store(self) -> Store:
        return self.context.store

    @property
    def settings(self) -> Settings:
        return self.context.settings

    @property
    def progress(self) -> Progress:
        return self.context.progress

    @property
    def place(self) -> str:
        """The machine that builds run on: builds with an equal value share its memory."""
        return f"builder {self.builder}" if self.builder else str(self.engine.info().get("ID", "engine"))

    def layout(self, image: Image) -> str:
        """An image of the store, as the value of a build context."""
        return f"oci-layout://{self.context.store.root}@{image.digest}"

    def buildx(self, args: Sequence[str], cwd: Path, output: SupportsWrite[str]) -> None:
        """See `Engine.buildx`. Raises BuildError when `stop` was set."""
        stoppable = _StoppableOutput(output, self.stop)
        self.engine.buildx(args, cwd, self.context.progress, builder=self.builder, output=stoppable)


@dataclass(frozen=True)
class _StoppableOutput:
    output: SupportsWrite[str]
    stop: Event

    def write(self, line: str) -> None:
        """Pass a line on. Raises BuildError when `stop` was set."""
        if self.stop.is_set():
            raise BuildError("stopped", code="source-build-stopped", fix="run it again; compiled objects are reused")
        self.output.write(line)
