"""A Git server, its repository, and a store for archives of it."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from tests.support.git_server import PROGRAM, Bare, GitServer

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n"
FILES = {
    "pyproject.toml": b"[project]\n",
    "pkg/__init__.py": b"X = 1\n",
    "pkg/é.txt": b"",
    "run": (PROGRAM, b"#!/bin/sh\n"),
}


@dataclass
class Workspace:
    root: Path
    bare: Bare
    server: GitServer
    store: Store
    env: dict[str, str]

    @property
    def url(self) -> str:
        return f"{self.server.url}/x.git"

    def archive(self, tree: str, commit: str | None = None, url: str | None = None) -> git.PackedTree:
        source = git.TreeSource(url or self.url, commit or self.bare.commit(tree), tree)
        return git.archive(source, "x-1", Context(self.store, Settings.from_environment(self.env), Quiet()))

    def members(self, archive: git.PackedTree) -> list[tarfile.TarInfo]:
        return list(tarfile.open(fileobj=io.BytesIO(self.store.read(archive.digest))))
