"""Credentials and certificates on the way to an image: used, and found in no layer, folder or argument afterwards."""

from __future__ import annotations

import json
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.support.canaries import PASSWORD, Guarded, Proxy, address, forms, leaks, watched
from tests.support.machines import Debian
from tests.support.project import Project

pytestmark = pytest.mark.integration

STEPS = (
    ["lock", "demo"],
    ["lock", "demo", "--record"],
    ["build", "demo", "--output", "oci:image"],
    ["render", "demo", "-o", "plain"],
)


@pytest.mark.fault(
    "Secrets",
    "credentials of index, mirror and proxy, and a private CA bundle, while lock, record, build and render succeed",
    "in no layer, config, lock, store, output folder, Dockerfile, temporary file, output or argument of a process",
)
def test_an_image_made_with_credentials(debian: Debian, tmp_path: Path) -> None:
    project = Project(tmp_path / "project", base=debian.locked)
    (project.root / "cache/imagegen").mkdir()
    subprocess.run(["cp", "-al", debian.store.root, project.root / "cache/imagegen/store"], check=True)
    bundle = project.root / "home" / "c4n4ry-bundle.pem"
    trusted = Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt").read_text()
    bundle.write_text("# c4n4ry-certificate\n" * 100 + trusted)
    needles = {*forms(PASSWORD), b"c4n4ry-bundle", b"c4n4ry-certificate"}
    index, proxy = Guarded(project.root / "index"), Proxy()
    env = {"PIP_INDEX_URL": address(index.host), "http_proxy": address(proxy.host), "SSL_CERT_FILE": str(bundle)}
    env |= {f"IMAGEGEN_DEBIAN{name}_MIRROR": address(index.host) for name in ("", "_SECURITY")}
    try:
        with watched(needles) as listed:
            for number, arguments in enumerate(STEPS):
                done = project.run(*arguments, "--json", env=env)
                assert done.returncode == 0, done.stderr
                assert json.loads(done.stdout)[0]["cell"] == "demo-cpu-py311"
                said = (done.stdout + done.stderr).encode()
                assert [needle for needle in needles if needle in said] == []
                if number == 0:
                    project.serve_uv(b"what a plain build would install with")
    finally:
        index.close()
        proxy.close()
    assert any("/demo/" in url for url in proxy.seen)
    assert any(url.endswith(".whl") for url in proxy.seen)
    assert listed == []
    assert leaks(needles, [project.root], skip=[bundle]) == []
    assert project.leftovers() == []
    assert (project.root / "image/index.json").exists()
    assert (project.root / "plain/demo-cpu-py311/Dockerfile").exists()


@pytest.mark.fault(
    "Secrets",
    "apt refuses a mirror whose address has a password with a slash in it",
    "not even a part of the password is shown: apt gets it in a file of its own",
)
def test_apt_is_given_no_password_in_an_address(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    mirror = Guarded(project.root / "index")
    parts = {*forms(PASSWORD), *(part.encode() for part in ("p4ss", "w@rd", "c4n4ry"))}
    env = {f"IMAGEGEN_DEBIAN{name}_MIRROR": address(mirror.host) for name in ("", "_SECURITY")}
    try:
        with watched(parts) as listed:
            done = project.run("--debug", "lock", "demo", "--upgrade-base", env=env)
    finally:
        mirror.close()
    assert done.returncode == 72, done.stderr
    assert any(mirror.seen), "apt did not use the password"
    assert [part for part in parts if part in (done.stdout + done.stderr).encode()] == []
    assert listed == []
    assert leaks(parts, [project.root]) == []
    assert project.leftovers() == []
