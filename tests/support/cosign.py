"""Debian's cosign and oras, which others verify with and look with: imagegen itself needs neither."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.core.progress import Quiet
from tools.engine.packages import unpack

SUITES = ("forky", "sid")  # the first that has them all: released suites had none when this was written
PROGRAMS = ["cosign", "oras"]
PASSWORD = "s3cret-of-the-key"
_VERIFYING = ("verify", "verify-attestation")


def unpacked(target: Path, settings: Settings) -> Path:
    """The newest of a suite, through apt and its signature checks; 20 MB once per session."""
    missing: BaseError | None = None
    for suite in SUITES:
        try:
            unpack(suite, PROGRAMS, target, settings, Quiet())
        except BaseError as error:
            missing = error
            continue
        return target / "usr/bin"
    raise AssertionError(f"Debian's {' and '.join(SUITES)} have no {' or no '.join(PROGRAMS)}: {missing}")


@dataclass
class Sigstore:
    """cosign and oras in a home of their own, with a registry's login; no service of Sigstore takes part."""

    programs: Path
    home: Path

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        self._run("cosign", "signing-config", "create", "--out", str(self.home / "services.json"), check=True)
        self._run("cosign", "trusted-root", "create", "--out", str(self.home / "root.json"), check=True)

    def key(self, name: str = "cosign") -> Path:
        """A key that cosign made; the public one beside it has the suffix .pub."""
        self._run("cosign", "generate-key-pair", "--output-key-prefix", str(self.home / name), check=True)
        return self.home / f"{name}.key"

    def imported(self, pem: Path) -> Path:
        """A key of openssl's as one of cosign's."""
        prefix = pem.with_suffix("")
        self._run("cosign", "import-key-pair", "--key", str(pem), "--output-key-prefix", str(prefix), check=True)
        return prefix.with_suffix(".key")

    def sign(self, key: Path, image: str) -> None:
        self._run("cosign", "sign", "--key", str(key), *self._alone(), image, check=True)

    def attest(self, key: Path, image: str, kind: str, predicate: bytes) -> None:
        file = self.home / "predicate.json"
        file.write_bytes(predicate)
        options = ["--type", kind, "--predicate", str(file)]
        self._run("cosign", "attest", "--key", str(key), *options, *self._alone(), image, check=True)

    def verify(self, public: Path, image: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Run `cosign verify` on the image, or with `--type` among `more` on its attestations."""
        command = _VERIFYING["--type" in more]
        options = ["--key", str(public), "--insecure-ignore-tlog", "--allow-http-registry", *more]
        return self._run("cosign", command, *options, image)

    def discover(self, image: str) -> list[Mapping[str, Any]]:
        """Run `oras discover` on the image."""
        done = self._run("oras", "discover", "--plain-http", "--format", "json", image, check=True)
        found: list[Mapping[str, Any]] = json.loads(done.stdout)["referrers"]
        return found

    def _alone(self) -> list[str]:
        services = [
            "--signing-config",
            str(self.home / "services.json"),
            "--trusted-root",
            str(self.home / "root.json"),
        ]
        return ["--yes", "--allow-http-registry", *services]

    def _run(self, program: str, *arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        env = {"HOME": str(self.home), "DOCKER_CONFIG": str(self.home), "COSIGN_PASSWORD": PASSWORD}
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            capture_output=True, text=True, check=False, timeout=60, env=env | {"PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{program} {' '.join(arguments)}: {done.stderr}"
        return done
