"""Behind a proxy that inspects TLS: lock, fetch and build work with its CA, and the CA is nowhere in what they make."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
import zstandard

from imagegen import lock
from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.lock.model import Lock, LockedFile, LockedWheel
from tests.support.machines import Built, Place
from tests.support.tls_proxy import Authority, InspectingProxy, SecureLoopback
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.integration

NAME = "Inspection CA of the imagegen tests"
MINE = """\
components:
  PACKAGE: {description: D.}
images:
  mine:
    description: D.
    purpose: P.
    base: debian12
    components:
      PACKAGE: {because: B.}
"""


class Files(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


VARIABLES = {"SSL_CERT_FILE": "demo1", "REQUESTS_CA_BUNDLE": "demo2", "PIP_CERT": "demo3"}  # -> what is locked with it


def publish(root: Path, name: str, version: str) -> None:
    """A wheel that no cache has, and its project's page."""
    directory = root / "simple" / name
    directory.mkdir(parents=True)
    files = {f"{name}/__init__.py": f"# {secrets.token_hex(8)}\n".encode()}
    filename, info = f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    path = make_wheel(directory, files, filename=filename, info=info)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    uploaded = 'data-upload-time="2026-01-01T00:00:00Z"'
    (directory / "index.html").write_text(
        f'<!DOCTYPE html><a href="{path.name}#sha256={digest}" {uploaded}>{path.name}</a>'
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "inspection", NAME)


@pytest.fixture(scope="module")
def proxy(authority: Authority, cpu_grpo: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InspectingProxy]:
    """In front of an index whose own certificate is another CA's, and whose name no resolver knows."""
    place = tmp_path_factory.mktemp("index")
    for name in (*VARIABLES.values(), "demo"):
        publish(place / "files", name, "1.0")
    publish(place / "files", "uv", cpu_grpo.lock.uv.version)
    public = Authority(place / "public", "A public CA")
    index = SecureLoopback(partial(Files, directory=str(place / "files")), public.context("index.invalid"))
    proxy = InspectingProxy(authority.context("index.invalid"), index.host, public.pem)
    yield proxy
    proxy.close()
    index.close()


@pytest.fixture
def place(
    request: pytest.FixtureRequest, machine: Place, cpu_grpo: Built, proxy: InspectingProxy, tmp_path: Path
) -> Place:
    """A machine behind the proxy, with a built base and a lock that is there to be upgraded."""
    env = dict.fromkeys(
        ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_CERT", "PIP_FIND_LINKS", "UV_FIND_LINKS"), ""
    )
    env |= {"PIP_CONFIG_FILE": os.devnull, "no_proxy": "", "NO_PROXY": "", "https_proxy": ""}
    env |= {"HTTPS_PROXY": f"http://{proxy.host}", "UV_DEFAULT_INDEX": "https://index.invalid/simple"}
    (tmp_path / "cache").symlink_to(machine.cache)
    (tmp_path / "matrices").mkdir()
    (tmp_path / "matrices" / "mine.yaml").write_text(MINE.replace("PACKAGE", getattr(request, "param", "demo")))
    (cell,) = matrix.load([shipped("matrices"), tmp_path / "matrices"]).select("mine")
    theirs = cpu_grpo.lock
    old_uv = LockedWheel("uv", "0", LockedFile("uv-0-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
    env_of_cell = cell.env
    based = Lock(
        cell=cell.id,
        image=cell.image,
        axes=cell.axes,
        inputs=cell.inputs,
        uv=old_uv,
        as_of=theirs.as_of,
        base=theirs.base,
        interpreter=theirs.interpreter,
        wheels=(),
        env=env_of_cell,
    )
    lock.write(based, tmp_path / "locks" / f"{cell.id}.toml")
    return Place(tmp_path, None, env=env)


@pytest.mark.fault(
    "Network", "a proxy inspects TLS under a private CA", "lock, fetch, build work when SSL_CERT_FILE names it"
)
@pytest.mark.fault(
    "Secrets", "a private CA bundle is used for lock and build", "not a byte of it in lock, layers or config"
)
@pytest.mark.parametrize(("variable", "place"), VARIABLES.items(), indirect=["place"])
def test_lock_fetch_and_build(variable: str, place: Place, authority: Authority, proxy: InspectingProxy) -> None:
    trusting = replace(place, env={**place.env, variable: str(authority.pem)})
    before = len(proxy.connects)
    trusting.run("lock", "mine")
    assert set(proxy.connects[before:]) == {"index.invalid:443"}
    locked = lock.read(*(place.root / "locks").iterdir())
    assert [wheel.name for wheel in locked.wheels] == [VARIABLES[variable]]
    before = len(proxy.connects)
    trusting.run("build", "mine", "--output", "oci:image")
    assert len(proxy.connects) > before
    assert_nowhere(authority, [place.root / "image", place.root / "locks"])


def assert_nowhere(authority: Authority, places: list[Path]) -> None:
    """Neither the certificate nor the CA's name, in any file or unpacked layer; a planted copy would be found."""
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    sizes = []
    for path in files:
        data = path.read_bytes()
        if data[:4] == b"\x28\xb5\x2f\xfd":
            data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        sizes.append(len(data))
        assert not [trace for trace in authority.traces if trace in data], path
    assert max(sizes) > 50e6  # the base was among them, unpacked


@pytest.mark.fault(
    "Network", "a proxy inspects TLS and its CA is not known", "refused: says so, and names SSL_CERT_FILE"
)
def test_without_the_ca_it_fails_clearly(place: Place) -> None:
    said = place.run("lock", "mine", code=68).stderr
    assert "https://index.invalid/simple/demo/" in said
    assert "certificate" in said
    assert "SSL_CERT_FILE" in said
    locks = list((place.root / "locks").iterdir())
    wheel = replace(lock.read(*locks).uv, name="demo", version="1.0", because="B.")
    wheel = replace(wheel, file=replace(wheel.file, filename="demo-1.0-py3-none-any.whl", sha256="0" * 64))
    lock.write(replace(lock.read(*locks), wheels=(wheel,)), locks[0])
    said = place.run("build", "mine", "--output", "oci:image", code=68).stderr
    assert "demo-1.0-py3-none-any.whl" in said
    assert "certificate" in said
    assert "SSL_CERT_FILE" in said
