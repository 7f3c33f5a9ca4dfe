"""Packages above a base, for real: a registry's image and an own one, Debian's archive and one in Ubuntu's form."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagegen import lock
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, FetchError
from imagegen.core.image_format import EPOCH
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.image import base
from imagegen.lock.foundation import LockedPackages
from imagegen.lock.model import Record
from tests.support.debian_archive import Archive, make_key
from tests.support.docker_registry import Hub, serving
from tests.support.file_trees import as_tar, on_disk
from tests.support.machines import Debian
from tests.support.project import Project
from tests.support.registry_project import project
from tests.support.registry_server import packed

pytestmark = pytest.mark.integration

UBUNTU = """\
Types: deb
URIs: http://archive.ubuntu.com/ubuntu/
Suites: jammy jammy-updates
Components: main universe
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

Types: deb
URIs: http://security.ubuntu.com/ubuntu/
Suites: jammy-security
Components: main
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
FLAT = f"deb [signed-by=/usr/share/keyrings/cuda.gpg] {NVIDIA}/ /\n"


@pytest.fixture(scope="module")
def hub(docker_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(docker_registry, tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def with_packages(made: Project) -> Project:
    """The base has one package, the image another."""
    path = made.root / "matrices" / "demo.yaml"
    text = path.read_text().replace("    system: debian12\n", "    system: debian12\n    packages: {numactl: Base.}\n")
    path.write_text(text.replace("base: pulled,", "base: pulled, packages: {iputils-ping: Image.},"))
    return made


def layer_of(store: Path, record: Record | None, name: str) -> dict[str, tarfile.TarInfo]:
    assert record
    (diff_id,) = [layer.diff_id for layer in record.layers if layer.name == name]
    with tarfile.open(Store(store).path(diff_id)) as tar:
        return {member.name: member for member in tar}


def test_an_image_of_a_registry_gets_packages(hub: Hub, debian: Debian, engine: Engine, tmp_path: Path) -> None:
    gone = tarfile.TarInfo("etc/.wh.issue")
    hub.push("people/base", "1", [debian.store.read(debian.layer.diff_id), packed((gone, b""))], Env=["PATH=/usr/bin"])
    here = with_packages(project(tmp_path / "here", hub))
    done = here.call("lock", "demo", "--record")
    assert done.returncode == 0, done.stderr
    locked = lock.read(here.lock)
    assert locked.added
    assert dict(locked.added.requested) == {"iputils-ping": "Image.", "numactl": "Base."}
    assert {"iputils-ping", "numactl", "libnuma1"} <= {deb.name for deb in locked.added.debs}
    assert {deb.archive for deb in locked.added.debs} <= {"debian", "debian-security"}
    assert locked.record
    assert [layer.name for layer in locked.record.layers][:4] == ["base-1", "base-2", "packages", "venv"]

    members = layer_of(here.root / "cache/imagegen/store", locked.record, "packages")
    assert {member.mtime for member in members.values()} == {EPOCH}
    assert "SCHILY.xattr.security.capability" in members["usr/bin/ping"].pax_headers
    assert "usr/bin/numactl" in members
    assert "var/lib/dpkg/status" in members
    assert not [
        name for name in members if name.startswith(("var/log/", "var/cache/apt/", "var/lib/apt/lists/", "tmp/"))
    ]
    assert not [name for name in members if name == "usr/bin/python3.11" or name.endswith("policy-rc.d")]

    # Another machine, whose store is empty, gives the recorded digest; the image runs, and its dpkg finds no fault.
    there = project(tmp_path / "there", hub)
    with_packages(there)
    there.lock.write_text(here.lock.read_text())
    there.env["PIP_INDEX_URL"] = here.env["PIP_INDEX_URL"]
    built = there.call("build", "demo", "--output", "oci:image")
    assert built.returncode == 0, built.stderr
    assert built.stdout.split()[-1] == locked.record.digest
    audited = there.call("audit", "demo")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    shown = there.call("show", "demo")
    assert "numactl  (Base.)" in shown.stdout
    store, tag = Store(there.root / "cache/imagegen/store"), "imagegen-test/packages:1"
    engine.load(store, locked.record.digest, tag)
    try:
        with engine.container(tag) as container:
            for command in ("dpkg --audit", "dpkg --verify numactl", "numactl --show", "test ! -e /etc/issue"):
                assert container.exec(command.split()).exit_code == 0, command
            assert container.exec(["stat", "-c", "%a", "/usr/bin/su"]).stdout == b"4755\n"
    finally:
        engine.client.images.remove(tag, force=True)


@pytest.fixture(scope="module")
def files(debian: Debian, settings: Settings) -> dict[str, Path]:
    """Real .debs that the base lacks, by package."""
    names = dict.fromkeys(("hello", "numactl", "tree"), "")
    added = base.resolve_packages(names, debian.rootfs, "debian12", "linux/amd64", settings, Quiet())
    base.fetch_packages(added, Context(debian.store, settings, Quiet()))
    found = {}
    for deb in added.debs:
        found[deb.name] = debian.store.root.parent / f"{deb.name}_{deb.version}_{deb.architecture}.deb"
        found[deb.name].write_bytes(debian.store.read(deb.digest))
    return found


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("gpg")
    make_key(home)
    yield home
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)


@dataclass
class Ubuntu:
    """An image in Ubuntu's form, with the archives that it names, served from directories."""

    archive: Archive
    cuda: Archive
    tree: Path
    env: dict[str, str]

    def resolve(self, *names: str) -> LockedPackages:
        where = Settings.from_environment({**os.environ, **self.env})
        return base.resolve_packages(dict.fromkeys(names, "Tests."), self.tree, "jammy", "linux/amd64", where, Quiet())


@pytest.fixture
def ubuntu(files: dict[str, Path], keys: Path, debian: Debian, tmp_path: Path) -> Ubuntu:
    archive, cuda = Archive(tmp_path / "ubuntu", keys), Archive(tmp_path / "cuda", keys)
    archive.publish("jammy", {"main": [files["libnuma1"]], "universe": []})
    archive.publish("jammy-updates", {"main": [], "universe": [files["numactl"]]})
    archive.publish("jammy-security", {"main": [files["hello"]]})
    flat = Archive(cuda.root / NVIDIA.split("/", 3)[3], keys)
    flat.publish("./", {"": [files["tree"]]})
    env = {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "IMAGEGEN_UBUNTU_MIRROR": archive.root.as_uri(),
        "IMAGEGEN_APT_MIRROR_DEVELOPER_DOWNLOAD_NVIDIA_COM": cuda.root.as_uri(),
    }
    tree = on_disk(tmp_path / "tree", {
        "var/lib/dpkg/status": (debian.rootfs / "var/lib/dpkg/status").read_bytes(),
        "usr/bin/apt-get": b"",
        **ubuntu_files(archive),
    })  # fmt: skip
    return Ubuntu(archive, flat, tree, env)


def ubuntu_files(archive: Archive) -> dict[str, bytes]:
    return {
        "etc/apt/sources.list.d/ubuntu.sources": UBUNTU.encode(),
        "etc/apt/sources.list.d/cuda.list": FLAT.encode(),
        "usr/share/keyrings/ubuntu-archive-keyring.gpg": archive.keyring,
        "usr/share/keyrings/cuda.gpg": archive.keyring,
    }


def test_pockets_components_and_flat_archives_are_read(ubuntu: Ubuntu) -> None:
    found = ubuntu.resolve("hello", "numactl", "tree")
    cuda = NVIDIA.partition("://")[2]
    assert {(deb.name, deb.archive) for deb in found.debs} == {
        ("hello", "ubuntu"), ("libnuma1", "ubuntu"), ("numactl", "ubuntu"), ("tree", cuda),
    }  # fmt: skip
    assert [(each.archive, each.suite, each.components) for each in found.archives] == [
        (cuda, "/", ()), ("ubuntu", "jammy", ("main", "universe")), ("ubuntu", "jammy-security", ("main",)),
        ("ubuntu", "jammy-updates", ("main", "universe")),
    ]  # fmt: skip
    assert {each.address for each in found.archives} == {NVIDIA, None}
    assert "file:" not in repr(found)


def forge(ubuntu: Ubuntu) -> None:
    release = ubuntu.archive.root / "dists/jammy-updates/InRelease"
    release.write_bytes(release.read_bytes().replace(b"Origin: Ubuntu", b"Origin: ubuntu"))


def unsign(ubuntu: Ubuntu) -> None:
    ubuntu.archive.publish("jammy-security", {"main": []}, signed=False)


def hold(ubuntu: Ubuntu) -> None:
    """The image has a newer libnuma1 on hold than numactl's archive goes with."""
    status = ubuntu.tree / "var/lib/dpkg/status"
    held = "Package: anti\nStatus: hold ok installed\nVersion: 1\nArchitecture: amd64\nConflicts: libnuma1\n"
    status.write_text(f"{status.read_text()}\n{held}Maintainer: t\nDescription: t\n")


def no_keyring(ubuntu: Ubuntu) -> None:
    (ubuntu.tree / "usr/share/keyrings/cuda.gpg").unlink()


def no_dpkg(ubuntu: Ubuntu) -> None:
    (ubuntu.tree / "var/lib/dpkg/status").unlink()


def no_archive(ubuntu: Ubuntu) -> None:
    for path in (ubuntu.tree / "etc/apt/sources.list.d").iterdir():
        path.unlink()


def unreachable(ubuntu: Ubuntu) -> None:
    ubuntu.env["IMAGEGEN_UBUNTU_MIRROR"] = "http://127.0.0.1:1/ubuntu"


REFUSED: dict[str, tuple[Callable[[Ubuntu], object], str, str]] = {
    "a Release file was changed after it was signed": (forge, "numactl", "jammy-updates"),
    "an archive is not signed": (unsign, "numactl", "jammy-security"),
    "the image has no key of an archive": (no_keyring, "numactl", "/usr/share/keyrings/cuda.gpg"),
    "the package conflicts with what the image holds": (hold, "numactl", "libnuma1"),
    "there is no such package": (lambda _: None, "nmactl", "nmactl"),
    "the image has no dpkg": (no_dpkg, "numactl", "Debian packages"),
    "the image names no archive": (no_archive, "numactl", "/etc/apt/sources.list"),
    "the mirror cannot be reached": (unreachable, "numactl", "http://127.0.0.1:1/ubuntu"),
}


@pytest.mark.parametrize(
    ("change", "package", "named"),
    [
        pytest.param(
            *case,
            id=what,
            marks=pytest.mark.fault("Matrices, rules, locks", f"packages: {what}", "refused by name"),
        )
        for what, case in REFUSED.items()
    ],
)
def test_what_cannot_be_resolved_is_refused_by_name(
    change: Callable[[Ubuntu], object], package: str, named: str, ubuntu: Ubuntu
) -> None:
    change(ubuntu)
    with pytest.raises(BaseError) as caught:
        ubuntu.resolve(package)
    assert named in str(caught.value.why)
    assert caught.value.fix
    assert "file://" not in str(caught.value) or "mirror" in str(caught.value.fix)


@pytest.mark.slow
def test_an_image_in_ubuntus_form_gets_packages(
    hub: Hub, debian: Debian, ubuntu: Ubuntu, files: dict[str, Path], tmp_path: Path
) -> None:
    """From archives that its own sources name; a package that is gone, or is another one, is refused by name."""
    upper = as_tar({"etc/apt/.wh.sources.list": b"", **ubuntu_files(ubuntu.archive)})
    hub.push("people/base", "1", [debian.store.read(debian.layer.diff_id), upper], Env=["PATH=/usr/bin"])
    here = project(tmp_path / "here", hub)
    here.env |= {name: value for name, value in ubuntu.env.items() if name.startswith("IMAGEGEN_")}
    matrix = here.root / "matrices" / "demo.yaml"
    packages = "packages: {hello: Says it., numactl: Binds., tree: Shows.}"
    matrix.write_text(matrix.read_text().replace("base: pulled,", f"base: pulled, {packages},"))
    assert here.call("lock", "demo").returncode == 0
    text = here.lock.read_text()
    assert "file:" not in text
    assert lock.dumps(lock.read(here.lock)) == text

    pool = ubuntu.archive.root / "pool/main" / files["hello"].name
    deb = pool.read_bytes()
    for spoil in (lambda: pool.write_bytes(b"x" * len(deb)), pool.unlink):
        spoil()
        done = here.call("build", "demo", "--output", "oci:image")
        assert done.returncode in (BaseError.exit_code, FetchError.exit_code), done.stderr
        assert "hello" in done.stderr
        assert not (here.root / "image").exists()
    pool.write_bytes(deb)
    done = here.call("build", "demo", "--output", "oci:image")
    assert done.returncode == 0, done.stderr
