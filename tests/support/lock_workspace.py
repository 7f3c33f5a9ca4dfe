"""A matrix, a package index and a base of two packages, from which locks are made."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.lock import pack_own_packages
from imagegen.lock.make.options import LockOptions
from imagegen.lock.make.stages import LockRequest, lock_cell
from imagegen.lock.model import Lock, LockedBase, LockedDeb, LockedFile, LockedWheel
from imagegen.spec.foundation import Base
from imagegen.spec.model import Cell, Component, Index, Requirement
from imagegen.wheels.find import WheelRequirement
from imagegen.wheels.offers import Candidate, WheelSource
from tests.support.interpreters import DEBIAN, LOCKED
from tests.support.upload_index import PackageIndex

LATER = "2026-11-20T00:00:00Z"
DEB = LockedDeb("python3.11", "3.11.2-6", "amd64", 1, "a" * 64, "debian", "pool/main/p/python3.11.deb")
TORCH = Component("torch", "torch", "", (), index={"cpu": "pytorch-cpu"}, local={"cpu": "cpu"})
PEFT = Component("peft", "peft", "", ())
UV = LockedWheel(
    "uv",
    importlib.metadata.version("uv"),
    LockedFile(f"uv-{importlib.metadata.version('uv')}-py3-none-any.whl", 1, "0" * 64, "pypi"),
    via=(),
)  # the uv that runs here: a lock keeps it rather than asking an index again


class Chooser:
    """Stands in for the wheel selector and records its calls."""

    def __init__(self) -> None:
        self.known: tuple[str, ...] = ()
        self.answer = Candidate(WheelSource.SOURCE, "", "", fits=True, reason="no wheel fits")
        self.requested: list[tuple[WheelRequirement, str]] = []

    def versions(self, package: str) -> tuple[str, ...]:
        return self.known

    def choose(self, need: WheelRequirement, index: str) -> Candidate:
        self.requested.append((need, index))
        return self.answer


class Workspace:
    """A cell, the indexes that it is resolved from, and a store."""

    def __init__(self, root: Path) -> None:
        self.index, self.special, self.links = (
            PackageIndex(root / "default"),
            PackageIndex(root / "special"),
            root / "links",
        )
        self.project = root / "project"
        self.links.mkdir()
        self.env = {"HOME": str(root), "PATH": os.defpath, "PIP_FIND_LINKS": str(self.links)}
        self.env |= {
            "PIP_INDEX_URL": self.index.root.as_uri(),
            "IMAGEGEN_INDEX_PYTORCH_CPU": self.special.root.as_uri(),
        }
        self.store = Store(root / "store")
        self.said: list[str] = []
        self.chooser = Chooser()
        base = Base("debian12", "debian", "bookworm", None, "debian12", "2.36", {}, "")
        indexes = {"pypi": Index("pypi", None, ""), "pytorch-cpu": Index("pytorch-cpu", "https://unused.invalid", "")}
        required = (Requirement(PEFT, "", "tuning", "pypi"), Requirement(TORCH, "==2.13.0", "tensors", "pytorch-cpu"))
        axes = {"cuda": "cpu", "python": "3.11", "platform": "linux/amd64"}
        self.cell = Cell("x-cpu-py311", "x", "", "", axes, base, DEBIAN, required, (), indexes, (), {"base": "b" * 64})
        locked = LockedBase("debian12", "debian", "bookworm", {"debian/bookworm": LATER}, (DEB,))
        self.first = Lock(
            cell="x-cpu-py311",
            image="x",
            axes=axes,
            inputs={"base": "b" * 64},
            uv=UV,
            as_of=LATER,
            base=locked,
            interpreter=LOCKED,
            wheels=(),
            env=(),
        )
        self.index.wheel("peft", "1.0", "torch")
        self.special.wheel("torch", "2.13.0+cpu")

    def say(self, text: str) -> None:
        self.said.append(text)

    def make(self, previous: Lock | None = None, **more: object) -> Lock:
        class Recorder(Quiet):
            say = staticmethod(self.say)

        rules, chooser = more.pop("rules", ()), more.pop("chooser", self.chooser)
        packed = pack_own_packages(self.cell, self.project, self.store)
        context = Context(self.store, Settings.from_environment(self.env), Recorder())
        options = LockOptions(**more)  # type: ignore[arg-type]
        return lock_cell(LockRequest(self.cell, options, rules, chooser, context, packed), previous or self.first)
