"""A base from a container registry, from lock to image: Debian's docker-registry on loopback, with a password."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen import lock
from imagegen.core.errors import BaseError
from tests.support.docker_registry import PASSWORD, Hub, serving
from tests.support.machines import Debian
from tests.support.project import CELL
from tests.support.registry_project import project
from tests.support.registry_server import digest_of, packed

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def hub(docker_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(docker_registry, tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def upper() -> bytes:
    """A layer that replaces, hides and adds."""
    readme, gone, link = tarfile.TarInfo("opt/base/readme"), tarfile.TarInfo("etc/.wh.issue"), tarfile.TarInfo("opt/l")
    link.type, link.linkname = tarfile.SYMTYPE, "/../../etc"
    through = tarfile.TarInfo("opt/l/written-through-a-link")
    return packed((readme, b"from the base\n"), (gone, b""), (link, b""), (through, b"x"))


def test_an_image_on_a_registrys_base(hub: Hub, debian: Debian, tmp_path: Path) -> None:
    bottom = debian.store.read(debian.layer.diff_id)
    blobs = hub.push(
        "people/base", "1", [bottom, upper()], Env=["PATH=/opt/base/bin:/usr/bin", "LD_LIBRARY_PATH=/opt/base/lib"],
        Entrypoint=["/usr/bin/env"],
    )  # fmt: skip
    here = project(tmp_path / "here", hub)
    done = here.call("lock", "demo", "--record")
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr + here.lock.read_text()
    locked = lock.read(here.lock)
    assert locked.base.content
    assert [layer.digest for layer in locked.base.content.layers] == [blob["digest"] for blob in blobs[1:]]

    done = here.call("build", "demo", "--output", "oci:image")
    assert done.returncode == 0, done.stderr
    layout = here.root / "image" / "blobs" / "sha256"
    manifest = json.loads((layout / done.stdout.split()[-1].removeprefix("sha256:")).read_bytes())
    assert manifest["layers"][:2] == blobs[1:]
    config = json.loads((layout / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
    assert "PATH=/opt/venv/bin:/opt/base/bin:/usr/bin" in config["config"]["Env"]
    assert "LD_LIBRARY_PATH=/opt/base/lib" in config["config"]["Env"]
    assert config["config"]["Entrypoint"] == ["/opt/imagegen/entrypoint", "/usr/bin/env"]
    assert config["rootfs"]["diff_ids"][:2] == [digest_of(bottom), digest_of(upper())]

    # The tree that compiled the byte-code is the base's, with nothing outside it.
    (tree,) = (here.root / "cache/imagegen/store/rootfs").iterdir()
    assert (tree / "opt/base/readme").read_text() == "from the base\n"
    assert not (tree / "etc/issue").exists()
    assert (tree / "etc/issue.net").exists()
    assert (tree / "etc/written-through-a-link").read_text() == "x"
    assert not Path("/etc/written-through-a-link").exists()
    assert (tree / "usr/bin/python3.11").stat().st_size == (debian.rootfs / "usr/bin/python3.11").stat().st_size
    with tarfile.open(fileobj=io.BytesIO(bottom)) as archive:
        names = {name.removeprefix("./").rstrip("/") for name in archive.getnames()} - {".", ""}
    found = {str(path.relative_to(tree)) for path in tree.rglob("*")}
    changed = {"opt/base", "opt/base/readme", "opt/l", "etc/issue", "etc/written-through-a-link"}
    assert found ^ names <= changed | {name for name in names if name.startswith("dev/")}

    # Another machine, whose store is empty, is held to the record.
    there = project(tmp_path / "there", hub)
    there.lock.write_text(here.lock.read_text())
    there.env["PIP_INDEX_URL"] = here.env["PIP_INDEX_URL"]
    again = there.call("build", "demo", "--output", "oci:image")
    assert again.returncode == 0, again.stderr
    assert again.stdout.split()[-1] == done.stdout.split()[-1]


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a lock changes the entry point, environment, user or layers of a base from a registry, and not its digest",
    "refused when it is built: names what differs from the registry's image",
)
def test_a_lock_cannot_change_what_its_base_is(hub: Hub, debian: Debian, tmp_path: Path) -> None:
    bottom = debian.store.read(debian.layer.diff_id)
    hub.push("people/base", "1", [bottom], Env=["PATH=/usr/bin"], Entrypoint=["/usr/bin/env"])
    here = project(tmp_path / "here", hub)
    assert here.call("lock", "demo").returncode == 0
    sound = here.lock.read_text()
    for old, new in (
        ('entrypoint = ["/usr/bin/env"]', 'entrypoint = ["/usr/bin/attacker"]'),
        ('env = ["PATH=/usr/bin"]', 'env = ["PATH=/usr/bin", "LD_PRELOAD=/attacker.so"]'),
    ):
        assert old in sound
        here.lock.write_text(sound.replace(old, new))
        done = here.call("build", "demo", "--output", "oci:image")
        assert done.returncode == 72, done.stderr
        assert not (here.root / "image").exists()
    here.lock.write_text(sound)
    assert here.call("build", "demo", "--output", "oci:image").returncode == 0


def test_the_password_is_asked_for(hub: Hub, tmp_path: Path) -> None:
    here = project(tmp_path / "here", hub)
    (here.root / "home" / "config.json").unlink()
    done = here.call("lock", "demo")
    assert done.returncode == 68, done.stderr
    assert f"`docker login {hub.host}`" in done.stderr


def test_a_base_without_its_interpreter_says_so(hub: Hub, tmp_path: Path) -> None:
    hub.push("people/base", "1", [upper()])
    here = project(tmp_path / "here", hub)
    assert here.call("lock", "demo").returncode == 0
    done = here.call("build", "demo", "--output", "oci:image")
    assert done.returncode == 72
    assert "base pulled has no /usr/bin/python3.11" in done.stderr


@pytest.mark.fault(
    "Wheels",
    "a registry's base has members `..` and `../../../pwned`, a whiteout of `..`, or a hard link to `../x`",
    "refused when it is unpacked, with its layer and the name; nothing is built, and nothing lies outside",
)
@pytest.mark.parametrize("name", ["..", "../../../pwned", "etc/.wh...", "a//b"])
def test_a_base_whose_names_leave_its_tree_is_refused(name: str, hub: Hub, tmp_path: Path) -> None:
    odd, link = tarfile.TarInfo(name), tarfile.TarInfo("link")
    odd.type, odd.mode = (tarfile.DIRTYPE if name == ".." else tarfile.REGTYPE), 0o4755
    link.type, link.linkname = tarfile.LNKTYPE, "../x"
    for evil in (odd, link):
        blobs = hub.push("people/base", "1", [upper(), packed((evil, b""))])
        here = project(tmp_path / evil.name.replace("/", "-"), hub)
        assert here.call("lock", "demo").returncode == 0
        done = here.call("build", "demo", "--output", "oci:image")
        assert done.returncode == 72, done.stderr
        assert "error[base-layer-invalid]" in done.stderr
        assert blobs[-1]["digest"] in done.stderr
        assert not list(tmp_path.rglob("pwned"))


def test_a_tag_that_moved_moves_no_lock(hub: Hub, tmp_path: Path) -> None:
    hub.push("people/base", "1", [upper()])
    here = project(tmp_path / "here", hub)
    assert here.call("lock", "demo").returncode == 0
    before = here.lock.read_bytes()
    hub.push("people/base", "1", [upper(), packed((tarfile.TarInfo("new"), b"x"))])
    assert here.call("lock", "demo").returncode == 0
    assert here.lock.read_bytes() == before
    assert here.call("lock", "demo", "--upgrade-base").returncode == 0
    assert here.lock.read_bytes() != before


def test_a_rendered_dockerfile_starts_from_the_image(hub: Hub, tmp_path: Path) -> None:
    blobs = hub.push("people/base", "1", [upper()], Env=["LD_LIBRARY_PATH=/opt/base/lib"], Entrypoint=["/usr/bin/env"])
    here = project(tmp_path / "here", hub)
    assert here.call("lock", "demo").returncode == 0
    here.serve_uv(b"no uv, but nobody runs it here")
    done = here.call("render", "demo", "-o", "out")
    assert done.returncode == 0, done.stderr
    layout = here.root / "out" / CELL / "base"
    digest = json.loads((layout / "index.json").read_bytes())["manifests"][0]["digest"]
    manifest = json.loads((layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes())
    assert manifest["layers"] == blobs[1:]
    config = json.loads((layout / "blobs/sha256" / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
    assert config["config"] == {"Env": ["LD_LIBRARY_PATH=/opt/base/lib"], "Entrypoint": ["/usr/bin/env"]}
    dockerfile = (here.root / "out" / CELL / "Dockerfile").read_text()
    assert f"# The base: {hub.host}/people/base:1, of which this is sha256:" in dockerfile
    assert 'ENV LD_LIBRARY_PATH="/opt/base/lib"' in dockerfile


def test_an_image_without_dpkg_gets_no_packages(hub: Hub, tmp_path: Path) -> None:
    hub.push("people/base", "1", [upper()])
    here = project(tmp_path / "here", hub)
    place = here.root / "matrices" / "demo.yaml"
    place.write_text(
        place.read_text().replace("    system: debian12\n", "    system: debian12\n    packages: {git: x}\n")
    )
    before = here.lock.read_bytes()
    done = here.call("lock", "demo")
    assert done.returncode == BaseError.exit_code
    assert "base pulled has no dpkg" in done.stderr
    assert here.lock.read_bytes() == before
