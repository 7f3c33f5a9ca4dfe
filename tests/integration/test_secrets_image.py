"""Credentials and certificates on the way to an image: used, and found in no layer, folder or argument afterwards."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from tests.canaries import PASSWORD, Guarded, Proxy, address, forms, leaks, watched
from tests.integration.conftest import Debian
from tests.project import Project

pytestmark = pytest.mark.integration


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
            for number, arguments in enumerate(
                (
                    ["lock", "demo"],
                    ["lock", "demo", "--record"],
                    ["build", "demo", "--output", "oci:image"],
                    ["render", "demo", "-o", "plain"],
                )
            ):
                done = project.run(*arguments, env=env)
                assert done.returncode == 0, done.stderr
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
