"""What is signed without a key, read by the real cosign, which holds the stand-in to the specifications, too."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.config import Settings
from imagegen.net.client import Client
from imagegen.trust.keyless import keyless
from imagegen.trust.project import Identity, Project
from tests.sigstore_standin import ISSUER, STATEMENT, SUBJECT, Sigstore

pytestmark = pytest.mark.integration


@pytest.fixture
def sigstore(tmp_path: Path) -> Iterator[Sigstore]:
    stand_in = Sigstore(tmp_path)
    yield stand_in
    stand_in.close()


@pytest.mark.parametrize("log", ["version 1", "version 1 with time stamps", "version 2"])
def test_cosign_believes_what_a_run_signs_and_of_nobody_else(
    verifiers: Path, settings: Settings, sigstore: Sigstore, tmp_path: Path, log: str
) -> None:
    if log != "version 1":
        sigstore.stamps(2 if log == "version 2" else 1)
    project = Project(identities=(Identity("ci", ISSUER, SUBJECT, sigstore.config),))
    with Client(settings) as client:
        signer = keyless(project, sigstore.env, client)
        assert signer
        (tmp_path / "bundle.json").write_bytes(signer.sign(STATEMENT))
    (tmp_path / "root.json").write_text(json.dumps(sigstore.trust()["trustedRoot"]))

    def verified(subject: str = SUBJECT, issuer: str = ISSUER, digest: str = "ab" * 32) -> str:
        command = [
            str(verifiers / "cosign"),
            "verify-blob-attestation",
            "--bundle",
            "bundle.json",
            "--trusted-root",
            "root.json",
        ]
        command += ["--certificate-identity", subject, "--certificate-oidc-issuer", issuer]
        command += ["--type", json.loads(STATEMENT)["predicateType"], "--digest", digest, "--digestAlg", "sha256"]
        env = {"HOME": str(tmp_path), "PATH": "/usr/bin"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == ("Verified OK" in done.stderr)
        return done.stderr

    assert "Verified OK" in verified()
    assert "no matching CertificateIdentity" in verified(subject=SUBJECT.replace("nightly", "other"))
    assert "no matching CertificateIdentity" in verified(issuer="https://token.example")
    assert "Verified OK" not in verified(digest="cd" * 32)
