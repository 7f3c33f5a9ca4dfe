"""The packages of several locks, with what the store and the harvested metadata know of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from imagegen.app.packages import LockedPackage, packages_of, source_of
from imagegen.app.session import Session
from imagegen.audit.model import Licence
from imagegen.compat import MetadataCache, table_of
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata
from imagegen.core.store import Store
from imagegen.lock.model import LOCAL, URL, LockedFile, LockedGit, LockedSdist, LockedWheel
from imagegen.lock.uv_resolve import UPLOADS
from tests.support.golden import Golden
from tests.support.tiny_lock import LOCK, wheel


@pytest.fixture
def session(tmp_path: Path) -> Session:
    harvested = PackageReleases(
        "numpy", "pypi", "2026-11-20", None, (), {"2.4.6": ReleaseMetadata("2.4.6", "2026-11-10", "", (), ())}
    )
    known = MetadataCache(lambda name: table_of(harvested) if name in ("numpy", "torch") else None)
    matrices = SimpleNamespace(
        project=SimpleNamespace(store=Store(tmp_path)), knowledge_files=SimpleNamespace(metadata=known)
    )
    return cast("Session", SimpleNamespace(matrices=matrices))


def test_packages_of_several_locks(session: Session) -> None:
    antlr, _, *others = LOCK.wheels
    hydra = wheel("hydra-core", "1.3.2", "f" * 64)
    first = replace(LOCK, wheels=(antlr, hydra, *others))
    UPLOADS.put(session.matrices.project.store, hydra.file.digest, "2026-11-19")
    later = replace(LOCK, cell="later", as_of="2026-11-24T00:00:00Z", wheels=(hydra,))
    newer = replace(LOCK, cell="newer", wheels=(wheel("numpy", "2.10.0", "e" * 64),))
    rows = packages_of(session.matrices, [first, later, newer], {hydra.file.sha256: Licence(text="MIT")})
    assert [(row.name, row.version) for row in rows] == [
        ("antlr4-python3-runtime", "4.9.3"), ("hydra-core", "1.3.2"), ("numpy", "2.10.0"), ("numpy", "2.4.6"),
        ("torch", "2.13.0+cpu"),
    ]  # fmt: skip
    assert rows[1] == LockedPackage(
        "hydra-core", "1.3.2", "MIT", "2026-11-19", 5, "PyPI", "https://deps.dev/pypi/hydra-core/1.3.2",
        (LOCK.cell, "later"),
    )  # fmt: skip
    assert [(row.uploaded, row.age) for row in rows[2:]] == [(None, None), ("2026-11-10", 10), (None, None)]
    assert (rows[4].source, rows[4].link, rows[4].licence) == ("index pytorch-cpu", None, "")


def test_the_source_of_a_package_and_its_page(golden: Golden) -> None:
    url = "https://example.org/a-1.0-py3-none-any.whl"
    direct = LockedWheel("a", "1.0", LockedFile("a-1.0-py3-none-any.whl", 1, "a" * 64, URL, url=url), choice="c")
    git = LockedGit("v1", "git@example.org:a", "0123456789" * 4, "f" * 40)
    archive = LockedFile("a-1.0.tar.gz", 1, "b" * 64, "git")
    commit = replace(wheel("a", "1.0", "c" * 64, "git"), sdist=LockedSdist(archive, (), git=git))
    golden.check(source_of(direct))
    assert source_of(commit) == ("commit 012345678901", None)
    web = replace(git, url="https://example.org/a")
    assert source_of(replace(commit, sdist=LockedSdist(archive, (), git=web)))[1] == web.url
    assert source_of(wheel("a", "1.0", "d" * 64, LOCAL)) == ("the project", None)
