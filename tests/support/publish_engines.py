"""Engines of several machines, as publishing sees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.run.smoke import report as smoke
from imagegen.spec.model import Cell, Declarations

AXES = {"platform": "linux/amd64", "python": "3.11", "cuda": "cpu"}
CELL = cast(
    "Cell",
    SimpleNamespace(
        id="demo-cpu-py311", image="demo", axes=AXES, declarations=Declarations(), gpus=(), cuda_version=None
    ),
)


class Engines:
    """A stand-in for the engine: what it was given, and how."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        self.logins: list[tuple[str, str] | None] = []

    @contextmanager
    def connect(self, *_: object) -> Iterator[Engines]:
        yield self

    def load(self, store: Store, digest: str, tag: str, progress: Progress) -> None:
        self.got.append(("store", digest))

    def pull(self, name: str, digest: str, tag: str, login: tuple[str, str] | None, progress: Progress) -> None:
        self.got.append((name, digest))
        self.logins.append(login)

    def run(self, _: object, ref: str, *args: object, **more: object) -> smoke.SmokeReport:
        return smoke.SmokeReport(ref, CELL.id, (smoke.CheckResult("imports", "pass", 0.1),))
