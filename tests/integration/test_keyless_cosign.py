"""Keyless signatures, verified by the real cosign from a registry, which also checks the stand-in for Sigstore.

The registry is the stand-in with the referrers API.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.oci.documents import Descriptor
from imagegen.oci.registry import PushTarget, Repository, parse
from imagegen.trust import attach
from imagegen.trust.documents import SBOM, Document
from imagegen.trust.keyless import keyless
from imagegen.trust.project import Identity, Project
from imagegen.trust.signers import Trust
from tests.support.registry_server_writes import Writable
from tests.support.sigstore_server import ISSUER, SUBJECT, TOKEN, Sigstore

pytestmark = pytest.mark.integration

BOM = Document(SBOM, b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}')


@pytest.fixture
def sigstore(tmp_path: Path) -> Iterator[Sigstore]:
    stand_in = Sigstore(tmp_path)
    yield stand_in
    stand_in.close()


@pytest.fixture
def registry() -> Iterator[Writable]:
    stand_in = Writable()
    stand_in.referrers = True
    stand_in.push("people/ours:1", [b"a layer"], index=False)
    yield stand_in
    stand_in.close()


@pytest.mark.parametrize("log", ["version 1", "version 1 with time stamps", "version 2"])
def test_cosign_trusts_what_a_run_publishes_and_no_other_signer(
    verifiers: Path, sigstore: Sigstore, registry: Writable, tmp_path: Path, log: str
) -> None:
    if log != "version 1":
        sigstore.stamps(2 if log == "version 2" else 1)
    settings = Settings.from_environment({"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull})
    project = Project(identities=(Identity("ci", ISSUER, SUBJECT, sigstore.config),))
    with Client(settings) as client:
        reference = parse(f"{registry.host}/people/ours:1")
        repository, target = Repository(reference, client, settings), PushTarget(reference, client, settings)
        digest, manifest, kind = repository.manifest("1")
        image = Descriptor(kind, digest, len(manifest))
        for _ in range(2):  # the second time, all is there
            attach.attach(target, repository, image, [BOM], keyless(project, sigstore.env, client), {}, Trust(project))
        found = attach.gather(repository, digest, Trust(project))
        theirs = attach.gather(repository, digest, Trust(Project()))
    assert ([each.signer for each in found.documents], found.signers, found.faults) == (["ci"], ("ci",), ())
    assert ([each.signer for each in theirs.documents], theirs.signers, theirs.untrusted) == ([None], (), 2)
    assert sigstore.requests[-1] == TOKEN  # nothing but who it would be

    (tmp_path / "root.json").write_text(json.dumps(sigstore.trust()["trustedRoot"]))
    cosign = Cosign(verifiers / "cosign", tmp_path, f"{registry.host}/people/ours@{digest}")
    for command in (["verify"], ["verify-attestation", "--type", "cyclonedx"]):
        assert cosign.refusal(*command) is None
        assert "no matching CertificateIdentity" in str(cosign.refusal(*command, subject=f"{SUBJECT}-2"))
        assert "no matching CertificateIdentity" in str(cosign.refusal(*command, issuer="https://token.example"))


class Cosign:
    """cosign with a trusted root and nothing of Sigstore's to ask."""

    def __init__(self, program: Path, home: Path, image: str) -> None:
        self._program, self._home, self._image = program, home, image

    def refusal(self, *command: str, subject: str = SUBJECT, issuer: str = ISSUER) -> str | None:
        args = ["--trusted-root", "root.json", "--certificate-identity", subject, "--certificate-oidc-issuer", issuer]
        done = subprocess.run(
            [str(self._program), *command, *args, "--allow-http-registry", self._image],
            cwd=self._home, env={"HOME": str(self._home), "PATH": os.environ["PATH"]}, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode or "Existence of the claims in the transparency log was verified offline" in done.stderr
        return done.stderr if done.returncode else None
