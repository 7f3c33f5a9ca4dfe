"""A project whose index has a week of uploads: two components, what they need, and a base that stays as it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from imagegen.app.nightly.propose import Proposal, propose
from imagegen.app.nightly.releases import ReleaseIndex
from imagegen.compat.rule import Rule
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.lock.make.options import LockOptions
from imagegen.lock.make.stages import LockRequest, lock_cell
from imagegen.lock.model import Lock, LockedBase
from imagegen.spec.foundation import Base
from imagegen.spec.model import Cell, Component, Index, Requirement
from tests.support.interpreters import DEBIAN, LOCKED
from tests.support.lock_workspace import DEB, UV, Chooser
from tests.support.upload_index import PackageIndex as Index_

LONG_AGO = "2026-01-01T00:00:00Z"
BASE = LockedBase("debian12", "debian", "bookworm", {"debian/bookworm": "2026-06-01T00:00:00Z"}, (DEB,))
_BASE = Base("debian12", "debian", "bookworm", None, "debian12", "2.36", {}, "")


def day(number: int, hour: int = 12) -> str:
    """A time of a day of the week that is played."""
    return f"2026-06-{number:02}T{hour:02}:00:00Z"


def rule(name: str, when: dict[str, str], then: dict[str, str], because: str) -> Rule:
    return Rule(name, when, then, {}, because, "its changelog", "2026-06-01", "error", "documented", "take others")


class Week:
    """`propose` looks at the index as it was at a time; `base` is what the archive has."""

    def __init__(self, root: Path, required: dict[str, str]) -> None:
        self.root = root
        self.index = Index_(root / "index")
        self.settings = Settings.from_environment(
            {"HOME": str(root), "PATH": os.defpath, "PIP_INDEX_URL": self.index.root.as_uri()}
        )
        self.store = Store(root / "store")
        self.base = BASE
        self.rules: tuple[Rule, ...] = ()
        requirements = tuple(
            Requirement(Component(name, name, "", ()), specifier, f"we need {name}", "pypi")
            for name, specifier in sorted(required.items())
        )
        axes = {"cuda": "cpu", "python": "3.11", "platform": "linux/amd64"}
        indexes = {"pypi": Index("pypi", None, "")}
        inputs = {"base": "b" * 64}
        self.cell = Cell("x-cpu-py311", "x", "", "", axes, _BASE, DEBIAN, requirements, (), indexes, (), inputs)

    def wheel(self, name: str, version: str, *requires: str, on: str = LONG_AGO, tag: str = "py3-none-any") -> None:
        self.index.wheel(name, version, *requires, uploaded=on, tag=tag)

    def resolve(self, as_of: str, previous: Lock | None, upgraded: Sequence[str], bounds: dict[str, str]) -> Lock:
        options = LockOptions(packages=tuple(upgraded), as_of=as_of, bounds=bounds)
        context = Context(self.store, self.settings, Quiet())
        return lock_cell(LockRequest(self.cell, options, self.rules, Chooser(), context), previous)

    def first(self, as_of: str) -> Lock:
        """The lock of a time, made without any search."""
        empty = Lock(
            cell=self.cell.id,
            image="x",
            axes=self.cell.axes,
            inputs=self.cell.inputs,
            uv=UV,
            as_of=as_of,
            base=BASE,
            interpreter=LOCKED,
            wheels=(),
            env=(),
        )
        return self.resolve(as_of, empty, (), {})

    def propose(self, before: Lock | None, as_of: str) -> Proposal:
        releases = ReleaseIndex(as_of, self.settings, Chooser(), Quiet())
        return propose(
            self.cell, before, as_of, self.rules,
            lambda previous, upgraded, bounds: self.resolve(as_of, previous, upgraded, dict(bounds)),
            lambda: self.base, releases.of,
        )  # fmt: skip


def versions(made: Lock) -> dict[str, str]:
    return {each.name: each.version for each in made.packages}


def with_deb(base: LockedBase, version: str) -> LockedBase:
    return replace(base, debs=tuple(replace(deb, version=version, archive="debian-security") for deb in base.debs))
