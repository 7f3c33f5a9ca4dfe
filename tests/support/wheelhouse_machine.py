"""A machine with a store of its own, for commands about wheelhouses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import click
from click.testing import CliRunner

from imagegen.cli.app import App
from imagegen.core.store import Store
from imagegen.lock.model import Lock
from tests.support.source_builds import WITH_BUILD


@dataclass
class Machine:
    """One machine's store, and what it knows of the team's wheelhouse."""

    root: Path
    place: str

    @property
    def app(self) -> App:
        env = {"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(self.root)}
        if self.place:
            env["IMAGEGEN_WHEELHOUSE"] = self.place
        return App(env, self.root)

    @property
    def store(self) -> Store:
        return self.app.project.store

    def run(self, command: click.Command, *arguments: str, app: App | None = None) -> tuple[int, str, str]:
        ended = CliRunner().invoke(command, arguments, obj=app or self.app)
        if ended.exception and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return ended.exit_code, ended.stdout, ended.stderr


def app_of(here: Machine, lock: Lock | None = None) -> App:
    """One that knows a single cell."""
    app = here.app
    base = SimpleNamespace(glibc="2.36")
    cell = SimpleNamespace(
        id=WITH_BUILD.cell, base=base, indexes={}, recipes={}, stack=None, environments=(), extends=None
    )

    def select(pattern: str, **_: bool) -> tuple[SimpleNamespace, ...]:
        return (cell,)

    vars(app.session.matrices)["matrix"] = SimpleNamespace(gpus={}, cells=lambda: (cell,), select=select)
    vars(app.session.lock_files)["find"] = vars(app.session.lock_files)["fresh"] = lambda _: lock
    return app
