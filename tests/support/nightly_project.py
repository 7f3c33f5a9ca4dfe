"""A project of two components that have newer versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.app.nightly.propose import Proposal, propose
from imagegen.app.nightly.releases import NewerRelease
from imagegen.core.errors import LockError
from imagegen.lock.model import Lock, LockedFile, LockedWheel, Record
from imagegen.spec.model import Cell, Requirement
from tests.support.interpreters import LOCKED
from tests.support.lock_workspace import UV
from tests.support.nightly_week import BASE, Week, day, versions

RECORD = Record(1, "zstd", "sha256:" + "0" * 64, ())


def _wheel(name: str, version: str) -> LockedWheel:
    digest = hashlib.sha256(f"{name} {version}".encode()).hexdigest()
    file = LockedFile(f"{name}-{version}-py3-none-any.whl", 1, digest, "pypi")
    return LockedWheel(name, version, file, via=(), because=f"we need {name}")


class Toy:
    """Releases by package; `broken` are (package, version) that have no wheel."""

    def __init__(self, root: Path, **required: str) -> None:
        self.cell = replace(Week(root, required).cell)
        self.releases: dict[str, list[str]] = {name: ["1"] for name in required}
        self.broken: set[tuple[str, str]] = set()
        self.rules: tuple[object, ...] = ()
        self.base = BASE
        self.requested = 0
        start = Lock(
            cell=self.cell.id,
            image="x",
            axes=self.cell.axes,
            inputs=self.cell.inputs,
            uv=UV,
            as_of=day(1),
            base=BASE,
            interpreter=LOCKED,
            wheels=(),
            env=(),
        )
        self.first = replace(self.resolve(start, sorted(required), {}), record=RECORD)

    def resolve(self, previous: Lock | None, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock:
        assert previous
        self.requested += 1
        kept = {name: version for name, version in versions(previous).items() if name not in upgraded}
        required = {each.component.package: each.specifier for each in self.cell.requirements}
        chosen = {}
        for name, known in self.releases.items():
            requested = SpecifierSet(",".join(filter(None, [required.get(name), bounds.get(name)])))
            allowed = sorted((version for version in known if version in requested), key=Version)
            if not allowed:
                raise LockError(f"there is no {name}{requested}")
            chosen[name] = kept[name] if kept.get(name) in allowed else allowed[-1]
            if (name, chosen[name]) in self.broken:
                raise LockError(f"{name} {chosen[name]} has no wheel", why="its index offers only an sdist")
        wheels = tuple(_wheel(name, version) for name, version in sorted(chosen.items()))
        return replace(previous, wheels=wheels, as_of=day(9), record=None)

    def list_releases(self, requested: Requirement, cell: Cell, target: object) -> list[NewerRelease]:
        return [
            NewerRelease(version) for version in sorted(self.releases[requested.component.package], key=Version)[::-1]
        ]

    def propose(self, before: Lock | None = None) -> Proposal:
        return propose(
            self.cell, before or self.first, day(9), self.rules, self.resolve, lambda: self.base, self.list_releases  # type: ignore[arg-type]
        )  # fmt: skip
