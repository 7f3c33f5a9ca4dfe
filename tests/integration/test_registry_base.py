"""A base from a container registry, all the road: Debian's docker-registry on loopback, with a password."""

from __future__ import annotations

import gzip
import io
import json
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from imagegen import lock
from imagegen.config import Settings
from imagegen.engine import debs
from imagegen.progress import Quiet
from tests.integration.places import Debian
from tests.project import CELL, Project
from tests.registry import CONFIG, LAYER, MANIFEST, digest_of, packed

pytestmark = pytest.mark.integration

SUITE = "bookworm"
USER, PASSWORD = "me", "s3cret-of-the-registry"
# bcrypt of PASSWORD, since that is all that the registry takes
HTPASSWD = "$2y$04$imagegenimagegenimageunPTEdvAcjbHm2MZ.i9AASWYq359eswm"
MATRIX = """\
bases:
  pulled:
    description: A registry's.
    kind: registry
    image: {host}/people/base:1
    system: debian12
    python: "3.11"
    interpreter: /usr/bin/python3.11
components:
  demo: {{description: A wheel of a few bytes., imports: [demo]}}
images:
  demo: {{description: Small., purpose: Tests., base: pulled, components: {{demo: {{because: Tests.}}}}}}
"""


@dataclass
class Hub:
    host: str

    def push(self, repository: str, tag: str, layers: list[bytes], **config: Any) -> list[dict[str, Any]]:
        """An image of these uncompressed layers; the descriptors of its blobs, the config's first."""
        settings = {
            "os": "linux", "architecture": "amd64", "config": config,
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
        }  # fmt: skip
        blobs = [self._blob(repository, json.dumps(settings).encode(), CONFIG)]
        blobs += [self._blob(repository, gzip.compress(layer, 1, mtime=0), LAYER) for layer in layers]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": blobs[0], "layers": blobs[1:]}
        url = f"http://{self.host}/v2/{repository}/manifests/{tag}"
        self._ask("PUT", url, data=json.dumps(manifest).encode(), headers={"Content-Type": MANIFEST})
        return blobs

    def _blob(self, repository: str, data: bytes, kind: str) -> dict[str, Any]:
        place = self._ask("POST", f"http://{self.host}/v2/{repository}/blobs/uploads/").headers["Location"]
        separator = "&" if "?" in place else "?"
        self._ask("PUT", f"{place}{separator}digest={digest_of(data)}", data=data)
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    @staticmethod
    def _ask(method: str, url: str, **more: Any) -> requests.Response:
        answer = requests.request(method, url, auth=(USER, PASSWORD), timeout=60, **more)
        answer.raise_for_status()
        return answer


@pytest.fixture(scope="module")
def hub(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root = tmp_path_factory.mktemp("hub")
    debs.unpack(SUITE, ["docker-registry"], root / "registry", settings, Quiet())
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{found.getsockname()[1]}"
    (root / "htpasswd").write_text(f"{USER}:{HTPASSWD}\n")
    configuration = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(root / "data")}},
        "http": {"addr": host, "secret": "s"},
        "auth": {"htpasswd": {"realm": "tests", "path": str(root / "htpasswd")}},
    }
    (root / "config.yml").write_text(json.dumps(configuration))
    command = [str(root / "registry/usr/bin/docker-registry"), "serve", str(root / "config.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                try:
                    requests.get(f"http://{host}/v2/", timeout=5)
                    break
                except requests.ConnectionError:
                    time.sleep(0.05)
            yield Hub(host)
        finally:
            process.kill()


def upper() -> bytes:
    """A layer that replaces, hides and adds."""
    readme, gone, link = tarfile.TarInfo("opt/base/readme"), tarfile.TarInfo("etc/.wh.issue"), tarfile.TarInfo("opt/l")
    link.type, link.linkname = tarfile.SYMTYPE, "/../../etc"
    through = tarfile.TarInfo("opt/l/written-through-a-link")
    return packed((readme, b"from the base\n"), (gone, b""), (link, b""), (through, b"x"))


def project(root: Path, hub: Hub) -> Project:
    """It logs in as `docker login` does."""
    made = Project(root)
    made.env |= {"PIP_INDEX_URL": (root / "index").as_uri(), "DOCKER_CONFIG": str(root / "home")}
    auth = requests.auth._basic_auth_str(USER, PASSWORD).removeprefix("Basic ")
    (root / "home" / "config.json").write_text(json.dumps({"auths": {hub.host: {"auth": auth}}}))
    (root / "matrices" / "demo.yaml").write_text(MATRIX.format(host=hub.host))
    return made


def test_an_image_on_a_registrys_base(hub: Hub, debian: Debian, tmp_path: Path) -> None:
    bottom = debian.store.read(debian.layer.diff_id)
    blobs = hub.push(
        "people/base", "1", [bottom, upper()], Env=["PATH=/opt/base/bin:/usr/bin", "LD_LIBRARY_PATH=/opt/base/lib"],
        Entrypoint=["/usr/bin/env"],
    )  # fmt: skip
    here = project(tmp_path / "here", hub)
    done = here.run("lock", "demo", "--record")
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr + here.lock.read_text()
    locked = lock.read(here.lock)
    assert locked.base.content
    assert [layer.digest for layer in locked.base.content.layers] == [blob["digest"] for blob in blobs[1:]]

    done = here.run("build", "demo", "--output", "oci:image")
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
    again = there.run("build", "demo", "--output", "oci:image")
    assert again.returncode == 0, again.stderr
    assert again.stdout.split()[-1] == done.stdout.split()[-1]


def test_the_password_is_asked_for(hub: Hub, tmp_path: Path) -> None:
    here = project(tmp_path / "here", hub)
    (here.root / "home" / "config.json").unlink()
    done = here.run("lock", "demo")
    assert done.returncode == 68, done.stderr
    assert f"`docker login {hub.host}`" in done.stderr


def test_a_base_without_its_interpreter_says_so(hub: Hub, tmp_path: Path) -> None:
    hub.push("people/base", "1", [upper()])
    here = project(tmp_path / "here", hub)
    assert here.run("lock", "demo").returncode == 0
    done = here.run("build", "demo", "--output", "oci:image")
    assert done.returncode == 72
    assert "base pulled has no /usr/bin/python3.11" in done.stderr


def test_a_tag_that_moved_moves_no_lock(hub: Hub, tmp_path: Path) -> None:
    hub.push("people/base", "1", [upper()])
    here = project(tmp_path / "here", hub)
    assert here.run("lock", "demo").returncode == 0
    before = here.lock.read_bytes()
    hub.push("people/base", "1", [upper(), packed((tarfile.TarInfo("new"), b"x"))])
    assert here.run("lock", "demo").returncode == 0
    assert here.lock.read_bytes() == before
    assert here.run("lock", "demo", "--upgrade-base").returncode == 0
    assert here.lock.read_bytes() != before


def test_a_rendered_dockerfile_starts_from_the_image(hub: Hub, tmp_path: Path) -> None:
    blobs = hub.push("people/base", "1", [upper()], Env=["LD_LIBRARY_PATH=/opt/base/lib"], Entrypoint=["/usr/bin/env"])
    here = project(tmp_path / "here", hub)
    assert here.run("lock", "demo").returncode == 0
    here.serve_uv(b"no uv, but nobody runs it here")
    done = here.run("render", "demo", "-o", "out")
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


def test_packages_besides_the_image_refuse_the_build(hub: Hub, tmp_path: Path) -> None:
    """Before anything is fetched: the lock says that it is not whole."""
    hub.push("people/base", "1", [upper()])
    here = project(tmp_path / "here", hub)
    place = here.root / "matrices" / "demo.yaml"
    place.write_text(
        place.read_text().replace("    system: debian12\n", "    system: debian12\n    packages: {git: x}\n")
    )
    assert here.run("lock", "demo").returncode == 0
    done = here.run("build", "demo", "--output", "oci:image")
    assert done.returncode == 72
    assert "base pulled cannot be made" in done.stderr
    assert "needs git besides" in done.stderr
    shown = here.run("show", "demo")
    assert "which lacks git" in shown.stdout
