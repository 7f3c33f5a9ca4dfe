"""Debian mirrors that are stale, forged, broken or slow, read by the real apt; keys of ours sign the archives."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.image.base import apt, resolution
from imagegen.image.base.apt import Apt
from imagegen.image.base.resolution import official
from imagegen.lock.distributions import release
from tests.support.http_server import Loopback, Server, drip, raw, status
from tests.support.tls_proxy import Authority, InspectingProxy, SecureLoopback

pytestmark = pytest.mark.integration

PACKAGES = b"Package: a\nVersion: 1\nArchitecture: amd64\nFilename: pool/a.deb\nSize: 1\nSHA256: " + b"0" * 64 + b"\n"
DAY = 86400


@dataclass(frozen=True)
class Archive:
    """The suite `bookworm` of a mirror, as files; `sign` writes its InRelease."""

    root: Path
    keys: Path

    @property
    def suite(self) -> Path:
        return self.root / "dists" / "bookworm"

    def release(self, *, date: float = -1, valid_until: float = 7) -> bytes:
        """A Release file dated `date` days from now."""
        now, listed = time.time(), "main/binary-amd64/Packages"
        text = f"Origin: Debian\nLabel: Debian\nCodename: bookworm\nDate: {formatdate(now + date * DAY, usegmt=True)}\n"
        text += (
            f"Valid-Until: {formatdate(now + valid_until * DAY, usegmt=True)}\nArchitectures: amd64\nComponents: main\n"
        )
        return f"{text}SHA256:\n {hashlib.sha256(PACKAGES).hexdigest()} {len(PACKAGES)} {listed}\n".encode()

    def sign(self, release: bytes, key: str = "good@imagegen.invalid") -> bytes:
        return gpg(self.keys, "--local-user", key, "--clearsign", stdin=release)

    def publish(self, inrelease: bytes) -> None:
        (self.suite / "main/binary-amd64").mkdir(parents=True)
        (self.suite / "main/binary-amd64/Packages").write_bytes(PACKAGES)
        (self.suite / "InRelease").write_bytes(inrelease)


def gpg(home: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--pinentry-mode", "loopback", "--passphrase", "", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    for name in ("good", "other"):
        gpg(home, "--quick-generate-key", f"{name}@imagegen.invalid", "ed25519", "sign", "1d")
    (home / "good.gpg").write_bytes(gpg(home, "--export", "good@imagegen.invalid"))
    yield home
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)


@pytest.fixture
def archive(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.setattr(resolution, "keyring", lambda _: str(keys / "good.gpg"))
    monkeypatch.setattr(apt, "host_options", lambda _: ['Acquire::Retries "0";'])  # the host may allow old archives
    return Archive(tmp_path / "mirror", keys)


class Quietly(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def mirror(archive: Archive) -> Iterator[str]:
    server = Loopback(partial(Quietly, directory=str(archive.root)))
    yield f"http://{server.host}"
    server.close()


def update(tmp_path: Path, url: str, **env: str) -> dict[str, str]:
    root = tmp_path / "apt"
    root.mkdir()
    settings = Settings.from_environment(ENV | env | {"IMAGEGEN_DEBIAN_MIRROR": url})
    reader = Apt(root, official(release("bookworm"), settings, pockets=False), settings, architecture="amd64")
    reader.run("update", "--error-on=any")
    return {suite: date for (_, suite), (_, date) in reader.releases().items()}


ENV = {"HOME": "/nonexistent", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def test_a_good_mirror_is_read(archive: Archive, mirror: str, tmp_path: Path) -> None:
    archive.publish(archive.sign(archive.release()))
    assert list(update(tmp_path, mirror)) == ["bookworm"]


def tampered(archive: Archive) -> bytes:
    return archive.sign(archive.release()).replace(b"Components: main", b"Components: evil")


FORGED: dict[str, tuple[Callable[[Archive], bytes], str]] = {
    "its Valid-Until has passed": (lambda at: at.sign(at.release(date=-30, valid_until=-20)), "expired"),
    "its Release is from the future": (lambda at: at.sign(at.release(date=3)), "not valid yet"),
    "its Release was changed after it was signed": (tampered, "BADSIG"),
    "it is signed by a key that is not Debian's": (
        lambda at: at.sign(at.release(), "other@imagegen.invalid"),
        "NO_PUBKEY",
    ),
    "it is not signed": (lambda at: at.release(), "not signed"),
    "its InRelease is garbage": (lambda _: bytes(range(256)) * 10, "Clearsigned file isn't valid"),
    "its InRelease is a login page": (lambda _: b"<html>Welcome to the hotel</html>\n", "Clearsigned file isn't valid"),
}


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        pytest.param(
            *case, id=what, marks=pytest.mark.fault("Network", f"a Debian mirror: {what}", "refused when locking")
        )
        for what, case in FORGED.items()
    ],
)
def test_forged_and_stale_mirrors(
    forge: Callable[[Archive], bytes], said: str, archive: Archive, mirror: str, tmp_path: Path
) -> None:
    archive.publish(forge(archive))
    with pytest.raises(BaseError, match="apt cannot read the archive") as caught:
        update(tmp_path, mirror)
    assert said in str(caught.value.why)
    assert mirror in str(caught.value.why)
    assert "IMAGEGEN_DEBIAN_MIRROR" in str(caught.value.fix)
    assert str(caught.value).isprintable() or "\n" in str(caught.value)


@pytest.mark.fault(
    "Network", "a Debian mirror's package list is another one, or gone", "refused when locking: names the file"
)
@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(PACKAGES.replace(b"0" * 64, b"1" * 64)), Path.unlink])
def test_a_wrong_package_list(spoil: Callable[[Path], object], archive: Archive, mirror: str, tmp_path: Path) -> None:
    archive.publish(archive.sign(archive.release()))
    spoil(archive.suite / "main/binary-amd64/Packages")
    with pytest.raises(BaseError, match="apt cannot read the archive") as caught:
        update(tmp_path, mirror)
    assert "Packages" in str(caught.value.why)


@pytest.mark.fault(
    "Network", "a Debian mirror answers 404, 500, no HTTP or nothing when a base is locked", "said, with its address"
)
@pytest.mark.parametrize("answer", [status(404), status(500), raw(b"SSH-2.0\r\n"), raw(b"")], ids=range(4))
@pytest.mark.usefixtures("archive")
def test_a_broken_mirror(answer: Callable[..., None], tmp_path: Path) -> None:
    server = Server()
    server.behaviours = [answer]
    try:
        with pytest.raises(BaseError, match="apt cannot read the archive") as caught:
            update(tmp_path, f"http://me:secret@{server.host}/debian")
    finally:
        server.close()
    assert server.host in str(caught.value.why)
    assert "secret" not in str(caught.value)


@pytest.mark.fault(
    "Network", "a Debian mirror by https, behind a proxy that inspects TLS", "works with the CA, is refused without"
)
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_a_private_ca(variable: str, archive: Archive, tmp_path: Path) -> None:
    archive.publish(archive.sign(archive.release()))
    ours, public = Authority(tmp_path / "ours", "Ours"), Authority(tmp_path / "public", "Public")
    upstream = SecureLoopback(partial(Quietly, directory=str(archive.root)), public.context("mirror.invalid"))
    proxy = InspectingProxy(ours.context("mirror.invalid"), upstream.host, public.pem)
    env = {variable: f"http://{proxy.host}"}
    try:
        assert list(update(tmp_path, "https://mirror.invalid", **env, SSL_CERT_FILE=str(ours.pem))) == ["bookworm"]
        shutil.rmtree(tmp_path / "apt")
        with pytest.raises(BaseError, match="apt cannot read the archive") as caught:
            update(tmp_path, "https://mirror.invalid", **env)
    finally:
        proxy.close()
        upstream.close()
    assert "certificate" in str(caught.value.why)
    assert "SSL_CERT_FILE" in str(caught.value.fix)


@pytest.mark.fault(
    "Network", "a Debian mirror drips when a base is locked", "given up after 15 minutes; names the mirror"
)
@pytest.mark.usefixtures("archive")
def test_a_dripping_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "TIMEOUT", 3)
    server = Server()
    server.behaviours = [drip(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + bytes(10_000), 0.02)]
    start = time.monotonic()
    try:
        with pytest.raises(BaseError, match="apt did not read the archive") as caught:
            update(tmp_path, f"http://me:secret@{server.host}/debian")
    finally:
        server.close()
    assert time.monotonic() - start < 20
    assert server.host in str(caught.value)
    assert "secret" not in str(caught.value)
