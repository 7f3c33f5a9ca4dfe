"""Around mmdebstrap: keys, fetching, the offline repository, and the check of what was installed."""

from __future__ import annotations

import gzip
import os
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.upkeep import collect
from imagegen.image import base
from imagegen.image.base import fetch, file_tree
from imagegen.image.base.debian import BASES, failed, sources_file, verify, write_repository
from imagegen.image.base.sources_list import AptSuite, parse_deb822
from imagegen.lock.distributions import release
from imagegen.lock.foundation import LockedBase, LockedDeb
from imagegen.oci import registry
from imagegen.oci.documents import LayerDescriptor, digest_of
from tests.support.debian_archive import deb
from tests.support.environment import environment
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.http_server import stalling
from tests.support.registry_server import StandIn, packed

PROGRAM = "/usr/bin/python3.11"
DATES = {
    "debian/bookworm": "2026-07-11T10:16:37Z",
    "debian/bookworm-updates": "2026-11-19T02:12:54Z",
    "debian-security/bookworm-security": "2026-11-18T22:17:41Z",
}


def locked(*debs: LockedDeb) -> LockedBase:
    return LockedBase("debian12", "debian", "bookworm", DATES, debs)


ONE = locked(deb("a", b"first"), deb("b", b"second", "debian-security"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Both archives and the snapshot archive as directories."""
    monkeypatch.setattr(fetch, "snapshots", lambda name: (tmp_path / "snapshots" / name).as_uri())
    for name in ("debian", "security"):
        (tmp_path / name / "pool").mkdir(parents=True)
    (tmp_path / "debian/pool/a_1~2+b1.deb").write_bytes(b"first")
    (tmp_path / "security/pool/b_1~2+b1.deb").write_bytes(b"second")
    return Settings.from_environment(
        {
            "HOME": str(tmp_path),
            "PATH": str(tmp_path / "bin"),
            "IMAGEGEN_DEBIAN_MIRROR": (tmp_path / "debian").as_uri(),
            "IMAGEGEN_DEBIAN_SECURITY_MIRROR": (tmp_path / "security").as_uri(),
        }
    )


def test_the_key_covers_packages_and_nothing_that_does_not_decide_bytes() -> None:
    key = base.key(ONE)
    assert base.key(replace(ONE, name="other", archives={})) == key
    first, second = ONE.debs
    for changed in (
        replace(first, version="2"),
        replace(first, sha256="0" * 64),
        replace(first, name="c"),
        replace(first, architecture="all"),
    ):
        assert base.key(replace(ONE, debs=(changed, second))) != key
    assert base.key(replace(ONE, suite="trixie")) != key
    assert base.key(replace(ONE, debs=ONE.debs[:1])) != key


def test_packages_come_from_their_archives_and_then_from_the_store(here: Settings, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fetch.fetch(ONE, Context(store, here, Quiet()))
    assert [store.read(f"sha256:{deb.sha256}") for deb in ONE.debs] == [b"first", b"second"]
    without_mirrors = Settings.from_environment({"HOME": str(tmp_path), "PATH": "/nowhere"})
    fetch.fetch(ONE, Context(store, without_mirrors, Quiet()))


@pytest.mark.parametrize("answer", [None, 1])
def test_a_base_for_a_processor_that_nothing_emulates_is_refused_before_a_download(
    tmp_path: Path, here: Settings, answer: int | None
) -> None:
    (tmp_path / "bin").mkdir()
    answers = {"mmdebstrap": 0} if answer is None else {"mmdebstrap": 0, "arch-test": answer}
    for name, code in answers.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\nexit {code}\n")
        program.chmod(0o755)
    foreign = locked(replace(deb("a", b"never fetched"), architecture="riscv64"))
    with raises("base-foreign-architecture"):
        base.build(foreign, Context(Store(tmp_path / "store"), here, Quiet()))


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a lock names a foreign package as a wheel, so that it is fetched, and as a Debian one, so that its scripts run",
    "refused: a package is taken only from a Debian mirror, whatever is in the store under its hash",
)
def test_a_package_that_no_mirror_gave_is_not_taken(here: Settings, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    smuggled = deb("c", b"with a script of its own")
    store.write(b"with a script of its own")
    with raises("base-packages-gone"):
        fetch.fetch(locked(*ONE.debs, smuggled), Context(store, here, Quiet()))
    (store.root / "tmp" / f"part-{smuggled.sha256}").write_bytes(b"with a script of its own")
    with raises("base-packages-gone"):
        fetch.fetch(locked(*ONE.debs, smuggled), Context(store, here, Quiet()))


def test_packages_that_left_the_mirror_come_from_the_snapshot_archive(here: Settings, tmp_path: Path) -> None:
    (tmp_path / "debian/pool/a_1~2+b1.deb").unlink()
    at = tmp_path / "snapshots/debian/20261119T141254Z/pool"
    at.mkdir(parents=True)
    (at / "a_1~2+b1.deb").write_bytes(b"first")
    (tmp_path / "snapshots/debian/index.html").touch()
    store = Store(tmp_path / "store")
    fetch.fetch(ONE, Context(store, here, Quiet()))
    assert store.has(f"sha256:{ONE.debs[0].sha256}")


@pytest.mark.parametrize(("reachable", "why"), [(False, "cannot be reached"), (True, "do not have them either")])
def test_packages_gone_everywhere_are_all_named(here: Settings, tmp_path: Path, reachable: bool, why: str) -> None:
    (tmp_path / "debian/pool/a_1~2+b1.deb").unlink()
    (tmp_path / "security/pool/b_1~2+b1.deb").unlink()
    if reachable:
        for name in ("debian", "debian-security"):
            (tmp_path / "snapshots" / name).mkdir(parents=True)
            (tmp_path / "snapshots" / name / "index.html").touch()
    with pytest.raises(BaseError) as caught:
        fetch.fetch(ONE, Context(Store(tmp_path / "store"), here, Quiet()))
    assert "a 1:1~2+b1, b 1:1~2+b1" in caught.value.what
    assert why in str(caught.value.why)
    assert "--upgrade-base" in str(caught.value.fix)


def test_other_bytes_than_the_locks_are_refused(here: Settings, tmp_path: Path) -> None:
    (tmp_path / "debian/pool/a_1~2+b1.deb").write_bytes(b"FIRST")
    store = Store(tmp_path / "store")
    with raises("fetch-files-missing"):
        fetch.fetch(ONE, Context(store, here, Quiet()))
    assert not store.has(f"sha256:{ONE.debs[0].sha256}")


@pytest.mark.fault(
    "Offline", "no Debian mirror can be reached", "all packages that are missing, in one error, and the mirror"
)
def test_a_mirror_out_of_reach_names_all_packages_once(
    here: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "Client", partial(Client, attempts=2, backoff=0.01))
    away = replace(here, archive_mirrors=dict.fromkeys(here.archive_mirrors, "http://127.0.0.1:1/d"))
    store = Store(tmp_path / "store")
    fetch.fetch(locked(ONE.debs[0]), Context(store, here, Quiet()))
    many = locked(deb("a", b"first"), *(deb(f"p{n}", f"{n}".encode()) for n in range(50)))
    with raises("fetch-files-missing") as caught:
        fetch.fetch(many, Context(store, away, Quiet()))
    assert all(f"p{n}_1~2+b1.deb" in str(caught.value) for n in range(50))
    assert "a_1" not in str(caught.value)
    assert str(caught.value).count("http://127.0.0.1:1/d: ") <= 2  # the reason, once or twice, not for each package
    assert "IMAGEGEN_DEBIAN_MIRROR" in str(caught.value)
    assert str(store.root) in str(caught.value)


@pytest.mark.fault(
    "Network", "a Debian mirror has some packages, others are wrong or gone", "one error: each with its reason"
)
def test_every_fault_of_a_mirror_is_reported(here: Settings, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "debian/pool/a_1~2+b1.deb").write_bytes(b"FIRST")
    (tmp_path / "debian/pool/c_1~2+b1.deb").write_bytes(b"long")
    required = locked(*ONE.debs, deb("c", b"c"), deb("gone", b"gone"))
    store = Store(tmp_path / "store")
    with raises("fetch-files-missing") as caught:
        fetch.fetch(required, Context(store, here, Quiet()))
    said = str(caught.value)
    assert f"expected sha256 {ONE.debs[0].sha256}" in said
    golden.check(said)
    assert store.has(ONE.debs[1].digest)
    assert [each.filename for each in base.missing(required, store)] == [
        "a_1~2+b1.deb", "c_1~2+b1.deb", "gone_1~2+b1.deb",
    ]  # fmt: skip


def test_a_base_that_was_built_is_not_built_again(here: Settings, tmp_path: Path, golden: Golden) -> None:
    store = Store(tmp_path / "store")
    diff_id = store.write(b"layer")
    BASES.put(store, base.key(ONE), LayerDescriptor.of_tar(diff_id, 5))
    assert base.build(ONE, Context(store, here, Quiet())) == LayerDescriptor.of_tar(diff_id, 5)
    assert base.missing(ONE, store) == []
    store.path(diff_id).unlink()
    with pytest.raises(BaseError) as caught:
        base.build(ONE, Context(store, here, Quiet()))
    golden.check(caught.value)


def test_the_repository_holds_exactly_the_lock(here: Settings, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fetch.fetch(ONE, Context(store, here, Quiet()))
    write_repository(ONE, store, tmp_path / "repository")
    stanzas = (tmp_path / "repository/Packages").read_text().split("\n\n")
    assert [stanza.splitlines()[0] for stanza in stanzas] == ["Package: a", "Package: b"]
    assert (tmp_path / f"repository/{ONE.debs[0].sha256}.deb").read_bytes() == b"first"


@pytest.mark.parametrize("name", ["a,b", "a\nPackage: c", "--x", "../a"])
def test_a_lock_cannot_inject_into_mmdebstrap(tmp_path: Path, name: str) -> None:
    with raises("base-package-invalid"):
        write_repository(locked(replace(ONE.debs[0], name=name)), Store(tmp_path / "store"), tmp_path / "repository")


STATUS = """\
Package: a
Status: install ok installed
Architecture: amd64
Version: 1:1~2+b1
Description: one
 Version: 9

Package: b
Status: install ok installed
Architecture: amd64
Version: 1:1~2+b1
"""


def test_what_dpkg_installed_must_be_the_lock() -> None:
    verify(ONE, STATUS)
    for status, word in (
        (STATUS.replace("Version: 1:1~2+b1", "Version: 7", 1), "a 7 amd64 installed"),
        (STATUS.replace("ok installed", "ok half-configured", 1), "half-configured"),
        (STATUS.partition("\n\n")[0], "b 1:1"),
        (f"{STATUS}\nPackage: c\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n", "c 1 all"),
    ):
        with raises("base-packages-differ") as caught:
            verify(ONE, status)
        assert word in str(caught.value.why)


SOURCES = """\
## Debian distribution repository
Types: deb
URIs: http://archive.example/debian
Suites: trixie trixie-updates
Components: main contrib non-free non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://archive.example/sec
Suites: trixie-security
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def test_sources_are_the_releases_own_in_its_own_form(golden: Golden) -> None:
    """Debian 13 has no sources.list any more: what its apt reads is in deb822 form, and names the keyring."""
    example = "# See\n" + "".join(
        f"deb http://archive.example/{path} {suite} main contrib\n#deb-src x {suite} main\n"
        for path, suite in (("debian", "bookworm"), ("debian", "bookworm-updates"), ("sec", "bookworm-security"))
    )
    golden.check(sources_file(release("bookworm"), example).decode())
    trixie = release("trixie")
    found = list(parse_deb822(sources_file(trixie, SOURCES).decode(), trixie.sources))
    assert [
        (each.uri, each.suite, each.components, each.signed_by) for each in found if isinstance(each, AptSuite)
    ] == [
        (f"http://archive.example/{path}", suite, ("main",), "/usr/share/keyrings/debian-archive-keyring.gpg")
        for path, suite in (("debian", "trixie"), ("debian", "trixie-updates"), ("sec", "trixie-security"))
    ]
    for suite, text in (("trixie", example), ("bookworm", SOURCES), ("bookworm", example.replace("-security", ""))):
        with pytest.raises(BaseError) as caught:
            sources_file(release(suite), text)
        assert caught.value.where


def test_mmdebstraps_failure_says_what_a_user_without_root_can_do(golden: Golden) -> None:
    error = failed("I: using /tmp as tempdir\nE: cannot find newuidmap\n", "unshare")
    golden.check(error.why)
    assert "uidmap" in str(error.fix)
    assert failed("E: no space left\n", "root").fix is None


def test_a_tree_in_use_is_never_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep from another project knows nothing of this base, and sandboxes may run on its tree right now."""
    store = Store(tmp_path / "store")
    layer = LayerDescriptor.of_tar(store.write(b"tar"), 3)
    module = file_tree
    monkeypatch.setattr(module, "build", lambda *_: layer)
    tree = store.root / "rootfs" / layer.diff_id.removeprefix("sha256:")
    interpreter = tree / PROGRAM.lstrip("/")
    interpreter.parent.mkdir(parents=True)
    interpreter.write_bytes(b"")
    os.utime(tree, (0, 0))
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    assert module.rootfs(ONE, Context(store, settings, Quiet()), program=PROGRAM) == tree
    collect(store, ())
    assert interpreter.exists()


@pytest.mark.fault(
    "Network",
    "a registry stalls in the middle of a base's layer that another machine has made",
    "the download ends within its limit, and the base is made here",
)
def test_a_base_whose_registry_stalls_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, module = Store(tmp_path / "store"), file_tree
    tar = packed((tarfile.TarInfo(PROGRAM.lstrip("/")), b"python"))
    blob = gzip.compress(tar, mtime=0)
    server = StandIn()
    served = server.blob("acme/base", blob, "application/vnd.oci.image.layer.v1.tar+gzip")
    server.instead[f"/v2/acme/base/blobs/{served['digest']}"] = stalling(blob, 100)
    settings = Settings.from_environment(environment(tmp_path))
    said: list[str] = []
    progress = Quiet()
    progress.say = said.append  # type: ignore[method-assign]
    monkeypatch.setattr(module, "build", lambda *_: LayerDescriptor.of_tar(store.write(tar), len(tar)))
    layer = LayerDescriptor(str(served["mediaType"]), str(served["digest"]), len(blob), digest_of(tar))
    with Client(settings, attempts=2, timeout=(0.5, 0.5), patience=2.0) as client:
        source = registry.Repository(registry.parse(f"{server.host}/acme/base"), client, settings)
        tree = module.rootfs(ONE, Context(store, settings, progress), module.PrebuiltBase((layer,), source), PROGRAM)
    server.close()
    assert (tree / PROGRAM.lstrip("/")).read_bytes() == b"python"
    assert any("made here" in line for line in said)
    assert not store.has(layer.digest)


def test_a_base_that_others_made_is_unpacked_from_its_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, module = Store(tmp_path / "store"), file_tree
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    monkeypatch.setattr(module, "build", None)
    tar = packed((tarfile.TarInfo(PROGRAM.lstrip("/")), b"python"))
    requested: list[str] = []

    blob = gzip.compress(tar, mtime=0)

    class Source:
        def download(self, digest: str, size: int, store: Store, meter: object) -> None:
            requested.append(digest)
            store.write(blob)

    source = cast("registry.Repository", Source())
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    layer = LayerDescriptor(kind, digest_of(blob), len(blob), digest_of(tar))
    made = module.PrebuiltBase((layer,), source)
    assert made.required_bytes() > len(blob)
    for _ in range(2):  # the second time it is there
        tree = module.rootfs(ONE, Context(store, settings, Quiet()), made, program=PROGRAM)
        assert (tree / PROGRAM.lstrip("/")).read_bytes() == b"python"
    assert requested == [layer.digest]
    other = replace(layer, diff_id=f"sha256:{'2' * 64}")
    with raises("base-layer-differs"):
        module.rootfs(ONE, Context(store, settings, Quiet()), module.PrebuiltBase((other,), source))
    assert [path.name for path in (store.root / "rootfs").iterdir()] == [layer.diff_id.removeprefix("sha256:")]
