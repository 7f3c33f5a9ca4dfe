"""A mirror of one's own, as a directory and in a registry (the stand-in): what goes there serves locks, and no more."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import mirror
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, PackagesGoneError
from imagegen.core.net import Client, MissingFiles
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import inputs
from imagegen.image.base import fetch
from imagegen.lock.model import URL, CopiedFile, Lock, LockedCopy, LockedFile, LockedWheel
from imagegen.lock.sources import Finder, RequiredFile
from imagegen.mirror import listing as mirror_listing
from imagegen.oci.registry.mirror import Mirror, place
from tests.support.debian_archive import deb
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.registry_server_writes import Writable
from tests.support.tiny_lock import LOCK

WHEEL, PACKAGE = b"a wheel's bytes", b"a package's bytes"


def file_of(data: bytes, name: str) -> LockedFile:
    return LockedFile(name, len(data), hashlib.sha256(data).hexdigest(), "pypi")


def lock_of(*debs: bytes) -> Lock:
    wheel = LockedWheel("demo", "1.0", file_of(WHEEL, "demo-1.0-py3-none-any.whl"), via=())
    base = replace(LOCK.base, debs=tuple(deb(f"p{number}", data) for number, data in enumerate(debs)))
    return replace(LOCK, uv=wheel, wheels=(wheel,), base=base)


ONE = lock_of(PACKAGE)


@pytest.fixture(params=["directory", "registry"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "directory":
        yield str(tmp_path / "mirror")
        return
    server = Writable()
    yield f"{server.host}/team/mirror"
    server.close()


def settings_of(at: str | None = None) -> Settings:
    named = {"IMAGEGEN_MIRROR": at} if at else {}
    return Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull, **named})


def filled(at: str, lock: Lock, store: Store) -> mirror.MirrorResult:
    for data in (WHEEL, PACKAGE):
        store.write(data)
    return mirror.fill(place(at, "--to"), mirror_listing.listings(lock, store), Context(store, settings_of(), Quiet()))


def wheel_from(at: str, store: Store, size: int | None = len(WHEEL)) -> None:
    settings = replace(settings_of(at), index_urls={"pypi": "http://127.0.0.1:9/simple"})
    with Client(settings, attempts=1, timeout=(1.0, 1.0)) as client, Quiet().meter("", 1) as meter:
        Finder(client, store, settings, meter).fetch(RequiredFile("demo", replace(ONE.wheels[0].file, size=size)))


def debs_from(at: str, lock: Lock, store: Store) -> None:
    nowhere = {"debian": "file:///nonexistent/", "debian-security": "file:///nonexistent/"}
    fetch.fetch(lock.base, Context(store, replace(settings_of(at), archive_mirrors=nowhere), Quiet()))


def test_copied_files_come_from_the_mirror(at: str, tmp_path: Path) -> None:
    data = b"a file of the project"
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    digest = here.write(data)
    copied = CopiedFile("/srv/reward.py", "0644", len(data), digest.removeprefix("sha256:"))
    lock = replace(ONE, copies=(LockedCopy("/srv/reward.py", "reward.py", "b", (copied,)),))
    filled(at, lock, here)
    with pytest.raises(MissingFiles) as raised:
        inputs.fetch_copies(lock, Context(there, settings_of(), Quiet()))
    (missing,) = raised.value.files
    assert (missing.filename, missing.sha256) == ("/srv/reward.py", copied.sha256)
    inputs.fetch_copies(lock, Context(there, settings_of(at), Quiet()))
    assert there.read(digest) == data
    assert inputs.contents(lock)[digest] == "/srv/reward.py"


def test_what_a_lock_names_comes_from_there_alone(at: str, tmp_path: Path) -> None:
    first = filled(at, ONE, Store(tmp_path / "here"))
    assert (first.files, first.size) == (2, len(WHEEL) + len(PACKAGE))
    there = Store(tmp_path / "there")
    wheel_from(at, there)
    debs_from(at, ONE, there)
    assert there.read(ONE.wheels[0].file.digest) == WHEEL
    assert there.read(ONE.base.debs[0].digest) == PACKAGE


def test_a_file_whose_size_its_lock_does_not_name(at: str, tmp_path: Path) -> None:
    (wheel,) = ONE.wheels
    url = f"http://127.0.0.1:9/{wheel.file.filename}"
    unsized = replace(ONE, wheels=(replace(wheel, file=replace(wheel.file, size=None, index=URL, url=url)),))
    first = filled(at, unsized, Store(tmp_path / "here"))
    assert (first.files, first.size) == (2, len(WHEEL) + len(PACKAGE))
    there = Store(tmp_path / "there")
    wheel_from(at, there, size=None)
    assert there.read(wheel.file.digest) == WHEEL


def test_a_second_copy_adds_what_is_new(at: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "here")
    filled(at, ONE, store)
    assert filled(at, ONE, store).added == 0
    other = replace(
        ONE, cell="other", wheels=(), uv=replace(ONE.uv, file=file_of(b"other", "other-1.0-py3-none-any.whl"))
    )
    store.write(b"other")
    again = filled(at, other, store)
    assert (again.files, again.added) == (2, 1)
    names = [listing.name for lock in (ONE, other) for listing in mirror_listing.listings(lock, store)]
    with Client(settings_of(at)) as client:
        found = Mirror.of(settings_of(at), client)
        assert found and all(found.listed(name) for name in names)
        assert found.listed("nobody-has-this") is None


def test_a_mirror_in_the_store_that_lacks_a_file_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    lacking = f"sha256:{hashlib.sha256(b'lacking').hexdigest()}"
    with Client(settings_of(str(store.root))) as client:
        source = Mirror.of(settings_of(str(store.root)), client)
        assert source and not source.take(lacking, 7, store, Quiet().meter("a file", 7))


def test_a_file_that_is_not_listed_as_a_package_is_not_installed(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock with foreign hashes must not pass off a wheel as a package, whose scripts run as root."""
    monkeypatch.setattr(fetch, "snapshots", "file:///nonexistent/{}".format)
    filled(at, ONE, Store(tmp_path / "here"))
    with pytest.raises(PackagesGoneError):
        debs_from(at, lock_of(WHEEL), Store(tmp_path / "there"))
    # Not even if it is listed, except as files of a lock.
    forged = mirror_listing.listings(lock_of(WHEEL), Store(tmp_path / "here"))[1]
    mirror.fill(
        place(at, "--to"),
        [replace(forged, kind=mirror_listing.listings(ONE, Store(tmp_path / "here"))[0].kind)],
        Context(Store(tmp_path / "here"), settings_of(), Quiet()),
    )
    with pytest.raises(PackagesGoneError):
        debs_from(at, lock_of(WHEEL), Store(tmp_path / "there"))


def test_a_damaged_file_is_not_taken(tmp_path: Path, golden: Golden) -> None:
    at = str(tmp_path / "mirror")
    filled(at, ONE, Store(tmp_path / "here"))
    path = Path(at) / "blobs/sha256" / ONE.wheels[0].file.sha256
    path.write_bytes(WHEEL[::-1])
    there = Store(tmp_path / "there")
    with pytest.raises(MissingFiles) as caught:
        wheel_from(at, there)
    golden.check(caught.value)
    assert not there.has(ONE.wheels[0].file.digest)
    path.unlink()
    with raises("fetch-files-missing"):
        wheel_from(at, there)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _longer(path: Path) -> None:
    path.write_bytes(PACKAGE + bytes(1 << 22))


@pytest.mark.parametrize("put", [_endless, os.mkfifo, _longer])
def test_what_does_not_end_is_not_read(put: Callable[[Path], None], tmp_path: Path, golden: Golden) -> None:
    """A user with write access to a shared directory must not fill others' disks or block their builds."""
    at = tmp_path / "mirror"
    filled(str(at), ONE, Store(tmp_path / "here"))
    there = Store(tmp_path / "there")
    deb = at / "blobs/sha256" / ONE.base.debs[0].sha256
    deb.unlink()
    put(deb)
    with raises("fetch-mirror-damaged"):
        debs_from(str(at), ONE, there)
    assert sum(path.stat().st_size for path in there.root.rglob("*") if path.is_file()) < 1 << 20
    index = at / "index.json"
    index.unlink()
    put(index)
    with pytest.raises(FetchError) as caught:
        debs_from(str(at), ONE, there)
    golden.check(caught.value)


def test_a_listing_is_the_one_that_the_index_names(tmp_path: Path) -> None:
    at = tmp_path / "mirror"
    filled(str(at), ONE, Store(tmp_path / "here"))
    for entry in json.loads((at / "index.json").read_text())["manifests"]:
        path = at / "blobs/sha256" / entry["digest"].removeprefix("sha256:")
        path.write_bytes(path.read_bytes() + b" ")
    with raises("fetch-mirror-damaged"):
        debs_from(str(at), ONE, Store(tmp_path / "there"))


@pytest.mark.parametrize("index", ["", "[]", '{"manifests": [1]}', '{"manifests": [{"annotations": {}}]}'])
def test_another_programs_layout_is_left_as_it_is(tmp_path: Path, index: str) -> None:
    at = tmp_path / "mirror"
    at.mkdir()
    (at / "index.json").write_text(index)
    with raises("store-mirror-unwritable"):
        filled(str(at), ONE, Store(tmp_path / "here"))
    assert (at / "index.json").read_text() == index


def test_a_mirror_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    server = Writable()
    server.close()
    settings = settings_of(f"{server.host}/team/mirror")
    store = Store(tmp_path / "store")
    with Client(settings, attempts=1, timeout=(1.0, 1.0)) as client, Quiet().meter("", 1) as meter:
        found = Mirror.of(settings, client)
        assert found
        errors = []
        for _ in range(2):
            with pytest.raises(FetchError) as caught:
                found.take(ONE.uv.file.digest, 1, store, meter)
            errors.append(caught.value)
        assert errors[0] is errors[1]


@pytest.mark.parametrize("text", ["a//b", "registry.example.com/team/mirror:1", "a@sha256:0", "~nobody-of-this-name/m"])
def test_what_is_no_place(text: str) -> None:
    with raises("usage-invalid-mirror"):
        place(text, "--to")


def test_paths_and_repositories_are_distinguished() -> None:
    assert [place(text, "") for text in ("./m", "/m", "..")] == [Path("m"), Path("/m"), Path("..")]
    assert str(place("acme/m", "")) == "docker.io/acme/m"
    with raises("usage-invalid-mirror"):
        place("m", "--to")


def test_the_artifacts_are_what_others_read(tmp_path: Path) -> None:
    """Its index and manifests as OCI image-spec v1.1 has them."""
    at = tmp_path / "mirror"
    filled(str(at), ONE, Store(tmp_path / "here"))
    entries = json.loads((at / "index.json").read_text())["manifests"]
    assert len(entries) == 2
    for entry in entries:
        data = (at / "blobs/sha256" / entry["digest"].removeprefix("sha256:")).read_bytes()
        document = json.loads(data)
        assert (len(data), document["schemaVersion"]) == (entry["size"], 2)
        for blob in (document["config"], *document["layers"]):
            content = (at / "blobs/sha256" / blob["digest"].removeprefix("sha256:")).read_bytes()
            assert (hashlib.sha256(content).hexdigest(), len(content)) == (blob["digest"][7:], blob["size"])
