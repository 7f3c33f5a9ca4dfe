"""The debian base for real: resolved from the archive, built twice, and looked into."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError
from imagegen.core.image_format import EPOCH
from imagegen.core.progress import Quiet
from imagegen.core.sandbox import Sandbox
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image import base
from imagegen.image.base.debian import sources_file
from imagegen.lock.distributions import release
from tests.support.machines import Debian

pytestmark = pytest.mark.integration


@pytest.mark.skipif(os.geteuid() == 0, reason="root does this on a small disk, in test_disk.py")
@pytest.mark.usefixtures("elsewhere")
def test_built_elsewhere_it_has_the_same_digest(debian: Debian, settings: Settings, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for deb in debian.locked.debs:
        shutil.copy(debian.store.path(f"sha256:{deb.sha256}"), store.path(f"sha256:{deb.sha256}"))
    other_order = replace(debian.locked, debs=tuple(reversed(debian.locked.debs)))
    assert base.build(other_order, Context(store, settings, Quiet())) == debian.layer
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_the_lock_is_exact_and_free_of_the_host(debian: Debian) -> None:
    assert sorted(debian.locked.archives) == [
        "debian-security/bookworm-security",
        "debian/bookworm",
        "debian/bookworm-updates",
    ]
    names = [deb.name for deb in debian.locked.debs]
    assert names == sorted(set(names))
    assert {"apt", "base-files", "libc6", "python3.11", "ca-certificates", "usr-is-merged"} <= set(names)
    assert "perl" not in names  # recommended, or by way of usrmerge
    assert "://" not in repr(debian.locked)


def test_the_layer_holds_what_users_build_on(debian: Debian) -> None:
    assert debian.layer.size < 200e6
    with tarfile.open(debian.store.path(debian.layer.diff_id)) as tar:
        members = {member.name: member for member in tar}
        sources = tar.extractfile("etc/apt/sources.list")
        assert sources is not None
        addresses = sources.read().decode()
        pycs = [tar.extractfile(member) for name, member in members.items() if name.endswith(".pyc")]
        headers = {pyc.read(8)[4:] for pyc in pycs if pyc is not None}
    assert members["bin"].linkname == "usr/bin"
    assert members["lib64"].linkname == "usr/lib64"
    assert members["opt"].isdir()
    assert (members["tmp"].mode, members["etc/shadow"].mode) == (0o1777, 0o640)
    assert {member.mtime for member in members.values()} == {EPOCH}
    assert all(member.isreg() or member.isdir() or member.issym() or member.islnk() for member in members.values())
    assert not [
        name for name in members if name.startswith(("usr/share/man/", "var/lib/apt/lists/", "var/log/", "dev/"))
    ]
    assert members["usr/share/doc/libc6/copyright"].size
    assert headers == {b"\3\0\0\0"}  # PEP 552: bound to the source's hash, since its mtime is not kept
    assert len(pycs) > 400
    assert addresses.count("bookworm") == 3
    assert sources_file(release("bookworm"), addresses).decode() == addresses


def test_dpkg_apt_and_python_work_in_it(debian: Debian) -> None:
    box = Sandbox(debian.rootfs)
    assert box.run(["dpkg", "--audit"], timeout=20) == b""
    updated = box.run(["apt-get", "update", "--print-uris"], timeout=20).decode()
    for suite in ("bookworm", "bookworm-updates", "bookworm-security"):
        assert f"/dists/{suite}/InRelease" in updated
    program = """
import ctypes, lzma, sqlite3, ssl, sys, zlib
print(*sys.version_info[:2], ssl.create_default_context().cert_store_stats()["x509_ca"] > 100)
"""
    assert box.run(["python3.11", "-c", program], timeout=20) == b"3 11 True\n"


def test_the_tree_is_kept_and_made_again_when_damaged(debian: Debian, settings: Settings) -> None:
    before = debian.rootfs.stat().st_ino
    assert base.rootfs(debian.locked, Context(debian.store, settings, Quiet())) == debian.rootfs
    assert debian.rootfs.stat().st_ino == before
    (debian.rootfs / "usr/bin/python3.11").unlink()
    base.rootfs(debian.locked, Context(debian.store, settings, Quiet()), program="/usr/bin/python3.11")
    assert (debian.rootfs / "usr/bin/python3.11").is_file()
    assert not [path for path in debian.rootfs.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o6000]


def test_a_package_that_does_not_exist_is_named(debian: Debian, settings: Settings) -> None:
    with pytest.raises(BaseError) as caught:
        base.resolve(replace(debian.requested, packages={"pyhton3": ""}), "linux/amd64", settings, Quiet())
    assert "locate package pyhton3" in str(caught.value.why)
    assert "matrix" in str(caught.value.fix)


def test_what_is_no_package_leaves_nothing_behind(
    debian: Debian, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = Store(tmp_path / "store")
    store.write(b"no archive")
    bad = replace(debian.locked.debs[0], sha256=hashlib.sha256(b"no archive").hexdigest(), size=10)
    Cache("deb", dict).put(store, bad.digest, {"archive": bad.archive})  # a mirror that gives such a file
    locked = replace(debian.locked, debs=(bad,))
    with pytest.raises(BaseError, match="mmdebstrap failed"):
        base.build(locked, Context(store, settings, Quiet()))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert Cache("base", dict).get(store, base.key(locked)) is None
