"""Debian's docker-registry on loopback, with a password: a real registry for as long as tests need it."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from imagegen.core.config import Settings
from tests.support.registry_server import CONFIG, LAYER, MANIFEST, digest_of

SUITE = "bookworm"
USER, PASSWORD = "me", "s3cret-of-the-registry"
# bcrypt of PASSWORD, since that is all that the registry takes
HTPASSWD = "$2y$04$imagegenimagegenimageunPTEdvAcjbHm2MZ.i9AASWYq359eswm"


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
        # Stored, not compressed: compressing a base takes two seconds of processor time.
        blobs += [self._blob(repository, gzip.compress(layer, 0, mtime=0), LAYER) for layer in layers]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": blobs[0], "layers": blobs[1:]}
        url = f"http://{self.host}/v2/{repository}/manifests/{tag}"
        self._ask("PUT", url, data=json.dumps(manifest).encode(), headers={"Content-Type": MANIFEST})
        return blobs

    def _blob(self, repository: str, data: bytes, kind: str) -> dict[str, Any]:
        place = self._ask("POST", f"http://{self.host}/v2/{repository}/blobs/uploads/").headers["Location"]
        separator = "&" if "?" in place else "?"
        digest = digest_of(data)
        self._ask("PUT", f"{place}{separator}digest={digest}", data=data)
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    @staticmethod
    def _ask(method: str, url: str, **more: Any) -> requests.Response:
        answer = requests.request(method, url, auth=(USER, PASSWORD), timeout=60, **more)
        answer.raise_for_status()
        return answer


@contextmanager
def serving(programs: Path, root: Path, *, read_only: bool = False, anonymous: bool = False) -> Iterator[Hub]:
    """A registry that keeps its data below `root`; `programs` is where the package is unpacked."""
    root.mkdir(exist_ok=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{found.getsockname()[1]}"
    (root / "htpasswd").write_text(f"{USER}:{HTPASSWD}\n")
    configuration = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {
            "filesystem": {"rootdirectory": str(root / "data")},
            "maintenance": {"readonly": {"enabled": read_only}},
        },
        "http": {"addr": host, "secret": "s"},
    }
    if not anonymous:
        configuration["auth"] = {"htpasswd": {"realm": "tests", "path": str(root / "htpasswd")}}
    (root / "config.yml").write_text(json.dumps(configuration))
    command = [str(programs / "usr/bin/docker-registry"), "serve", str(root / "config.yml")]
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


def login(home: Path, host: str, password: str = PASSWORD) -> Settings:
    """Write the configuration that `docker login` writes."""
    home.mkdir(exist_ok=True)
    auth = requests.auth._basic_auth_str(USER, password).removeprefix("Basic ")
    (home / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    env = {"HOME": str(home), "DOCKER_CONFIG": str(home), "PIP_CONFIG_FILE": os.devnull}
    return Settings.from_environment(env)
