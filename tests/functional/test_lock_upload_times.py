"""Indexes on loopback that give upload times, that give none, and that give some: what a lock takes from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.errors import FetchError, LockError
from imagegen.lock.model import Lock
from imagegen.lock.uv_resolve import UPLOADS
from imagegen.spec.model import Component, Index, Requirement
from tests.support.canaries import PASSWORD, USER, Guarded, address
from tests.support.http_server import Folder
from tests.support.lock_workspace import Workspace
from tests.support.nightly_week import LONG_AGO, Week, day, versions
from tests.support.upload_index import NEW, OLD, PackageIndex

PAST = "2026-03-01T00:00:00Z"  # between OLD and NEW


class Private(Workspace):
    """A cell whose `mypkg` comes from the alias `ours`, and whose torch from PyTorch's; both are served over HTTP."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root, self.ours = root, PackageIndex(root / "ours")
        self.server = Folder(root)
        self.env |= {"IMAGEGEN_INDEX_PYTORCH_CPU": f"{self.server.url}/special"}
        self.ask("mypkg", ">=0.3")
        self.serve_ours(f"{self.server.url}/ours")

    def ask(self, name: str, specifier: str, alias: str = "ours") -> None:
        mine = Requirement(Component(name, name, "", ()), specifier, "ours", alias)
        self.cell = replace(self.cell, requirements=(*self.cell.requirements, mine))

    def serve_ours(self, url: str) -> None:
        self.cell = replace(self.cell, indexes={**self.cell.indexes, "ours": Index("ours", url, "")})

    def undate(self, index: PackageIndex) -> None:
        """Take the upload times from all pages of an index."""
        for page in index.root.glob("*/index.html"):
            page.write_text(page.read_text().replace(f' data-upload-time="{OLD}"', ""))
            assert "data-upload-time" not in page.read_text()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Private]:
    project = Private(tmp_path)
    monkeypatch.setattr("imagegen.image.base.apt", lambda *_: project.first.base)
    yield project
    project.server.close()


def source(lock: Lock, name: str) -> tuple[str, str]:
    """The index alias and the version of a package."""
    return next((wheel.file.index, wheel.version) for wheel in lock.wheels if wheel.name == name)


@pytest.mark.parametrize("upgrade", [False, True])
def test_indexes_without_upload_times_are_resolved_from(upgrade: bool, project: Private) -> None:
    for version in ("0.3.0", "0.4.0"):
        project.ours.wheel("mypkg", version, uploaded="")
    project.undate(project.special)
    lock = project.make(project.first, upgrade=upgrade)
    assert source(lock, "mypkg") == ("ours", "0.4.0")
    assert source(lock, "torch") == ("pytorch-cpu", "2.13.0+cpu")
    assert source(lock, "peft") == ("pypi", "1.0")


def test_upload_times_hold_where_the_index_gives_them(project: Private) -> None:
    for name, uploaded in (("mypkg", NEW), ("other", ""), ("mixed", NEW)):
        project.ours.wheel(name, "0.3.0", uploaded="" if name == "mixed" else OLD)
        project.ours.wheel(name, "0.4.0", uploaded=uploaded)
    project.ask("other", "")
    project.ask("mixed", "")
    lock = project.make(as_of=PAST)
    assert {name: source(lock, name)[1] for name in ("mypkg", "other", "mixed")} == {
        "mypkg": "0.3.0", "other": "0.4.0", "mixed": "0.4.0"
    }  # fmt: skip
    files = {wheel.name: wheel.file.digest for wheel in lock.wheels}
    days = [UPLOADS.get(project.store, files[name]) for name in ("mypkg", "other", "peft")]
    assert days == ["2026-01-01", None, "2026-01-01"]
    (note,) = [line for line in project.said if "upload times" in line]
    assert all(name in note for name in ("ours", "mixed", "other"))
    assert "mypkg" not in note


def test_a_default_index_without_upload_times_is_named_as_the_cause(project: Private) -> None:
    project.ours.wheel("mypkg", "0.3.0", uploaded="")
    project.undate(project.index)
    with pytest.raises(FetchError) as caught:
        project.make()
    assert "index pypi" in caught.value.what
    assert "peft" in caught.value.what
    assert "UV_DEFAULT_INDEX" in str(caught.value.fix)
    assert "exclude-newer" not in str(caught.value)


def test_a_dependency_without_an_upload_time_is_named_as_the_cause(project: Private) -> None:
    project.ours.wheel("mypkg", "0.3.0", "helper", uploaded="")
    project.index.wheel("helper", "1.0", uploaded="")
    with pytest.raises(FetchError) as caught:
        project.make()
    assert "helper" in caught.value.what


def test_a_locked_version_without_an_upload_time_is_named_as_the_cause(project: Private) -> None:
    project.ours.wheel("mypkg", "0.3.0")
    lock = project.make()
    project.undate(project.index)
    with pytest.raises(FetchError) as caught:
        project.make(lock)
    assert "index pypi" in caught.value.what
    assert "peft" in caught.value.what


def test_a_locked_version_that_came_later_is_a_conflict_of_times(project: Private) -> None:
    project.ours.wheel("mypkg", "0.3.0", "helper==1.0", uploaded="")
    project.index.wheel("helper", "1.0", uploaded=NEW)
    lock = project.make()
    with pytest.raises(LockError) as caught:
        project.make(lock, as_of=PAST)
    assert "helper==1.0" in str(caught.value.why)
    assert "--as-of" in str(caught.value.fix)


@pytest.mark.parametrize("specifier", ["==0.4.0", ">0.3", ">=0.3"])
def test_a_file_that_came_later_is_named_with_its_time(specifier: str, project: Private) -> None:
    if specifier != ">=0.3":
        project.ours.wheel("mypkg", "0.3.0")
    project.ours.wheel("mypkg", "0.4.0", uploaded=NEW)
    project.cell = replace(
        project.cell,
        requirements=tuple(
            replace(each, specifier=specifier) if each.index == "ours" else each for each in project.cell.requirements
        ),
    )
    with pytest.raises(LockError) as caught:
        project.make(as_of=PAST)
    said = str(caught.value)
    assert all(word in said for word in ("0.4.0", NEW, PAST, "--as-of"))
    assert "exclude-newer-package" not in said
    assert source(project.make(as_of="2026-06-02"), "mypkg") == ("ours", "0.4.0")


def in_address(project: Private, host: str) -> None:
    project.env["IMAGEGEN_INDEX_OURS"] = address(host)


def in_netrc(project: Private, host: str) -> None:
    netrc = project.root / ".netrc"
    netrc.write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    netrc.chmod(0o600)
    project.serve_ours(f"http://{host}")


def in_variables(project: Private, host: str) -> None:
    project.serve_ours(f"http://{host}")
    project.env |= {"UV_INDEX_OURS_USERNAME": USER, "UV_INDEX_OURS_PASSWORD": PASSWORD}


@pytest.mark.parametrize("way", [in_address, in_netrc, in_variables], ids=lambda way: way.__name__)
def test_a_private_index_without_upload_times_gets_its_password(
    way: Callable[[Private, str], None], project: Private
) -> None:
    project.ours.wheel("mypkg", "0.3.0", uploaded="")
    index = Guarded(project.ours.root)
    try:
        way(project, index.host)
        assert source(project.make(), "mypkg") == ("ours", "0.3.0")
        assert any(index.seen)
    finally:
        index.close()


def test_nightly_fails_where_the_default_index_gives_no_upload_times(tmp_path: Path) -> None:
    """Else each release would be rejected, and the cell reported as unchanged."""
    week = Week(tmp_path, {"peft": ""})
    week.wheel("peft", "1", on=LONG_AGO)
    before = week.first(day(1))
    page = week.index.root / "peft" / "index.html"
    page.write_text(page.read_text().replace(f' data-upload-time="{LONG_AGO}"', ""))
    with pytest.raises(FetchError) as caught:
        week.propose(before, day(2))
    assert "peft" in caught.value.what


def test_nightly_moves_to_a_release_without_an_upload_time(tmp_path: Path) -> None:
    week = Week(tmp_path, {"mypkg": "", "peft": ""})
    ours = PackageIndex(tmp_path / "ours")
    server = Folder(ours.root)
    try:
        (mine, peft) = week.cell.requirements
        indexes = {**week.cell.indexes, "ours": Index("ours", server.url, "")}
        week.cell = replace(week.cell, requirements=(replace(mine, index="ours"), peft), indexes=indexes)
        week.settings = replace(week.settings, index_urls={**week.settings.index_urls, "ours": server.url})
        week.wheel("peft", "1", on=LONG_AGO)
        ours.wheel("mypkg", "0.3.0", uploaded="")
        before = week.first(day(1))
        assert versions(before) == {"mypkg": "0.3.0", "peft": "1"}
        ours.wheel("mypkg", "0.4.0", uploaded="")
        week.wheel("peft", "2", on=day(3))
        assert versions(week.propose(before, day(2)).after) == {"mypkg": "0.4.0", "peft": "1"}
    finally:
        server.close()
