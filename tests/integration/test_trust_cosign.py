"""Signatures with the real cosign, both ways, and what oras sees: on Debian's docker-registry, where clients keep the
list of referrers, and on the stand-in of registry_server_writes.py, which has the referrers API of the specification.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.oci.documents import Descriptor, digest_of
from imagegen.oci.registry import PushTarget, Repository, parse
from imagegen.trust import attach, bundle, keys, statement
from imagegen.trust.attach import VerificationResult
from imagegen.trust.bundle import Bundle
from imagegen.trust.documents import BUNDLE, LAYERS, LOCK, PROVENANCE, SBOM, SIGNATURE, SMOKE, Document
from imagegen.trust.project import Key, Project
from imagegen.trust.provenance import BUILD_TYPE
from imagegen.trust.signers import Signer, Trust
from tests.support.cosign import PASSWORD, Sigstore
from tests.support.docker_registry import login, serving
from tests.support.registry_server_writes import Writable

pytestmark = pytest.mark.integration

BOM = (
    b'{\n  "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "note": "\xc3\xa9 <&> \\u00e9", "x": 1.50\n}\n'
)
LOCKED = b'[lock]\nimage = "demo"\n'
DOCUMENTS = [
    Document(LOCK, LOCKED),
    Document(LAYERS, json.dumps({"lock": digest_of(LOCKED), "layers": []}).encode()),
    Document(SBOM, BOM),
    Document(
        PROVENANCE,
        json.dumps({"buildDefinition": {"buildType": BUILD_TYPE}, "runDetails": {}}).encode(),
    ),
    Document(SMOKE, b'{"result": "PASSED", "seconds": 12.0}'),
]
TYPES = {"cyclonedx": SBOM, "slsaprovenance1": PROVENANCE, str(LAYERS.predicate): LAYERS, str(SMOKE.predicate): SMOKE}


@dataclass
class Registry:
    """A registry, and who is logged in there."""

    host: str
    push: Callable[[str, bytes], None]  # an image under NAME:1, its layer
    settings: Settings
    sigstore: Sigstore
    has_referrers: bool

    def image(self, name: str) -> Place:
        self.push(name, name.encode())
        client = Client(self.settings)
        reference = parse(f"{self.host}/people/{name}:1")
        repository = Repository(reference, client, self.settings)
        digest, data, kind = repository.manifest("1")
        target = PushTarget(reference, client, self.settings)
        return Place(f"{self.host}/people/{name}@{digest}", target, repository, Descriptor(kind, digest, len(data)))


@dataclass
class Place:
    """An image in a registry."""

    name: str
    target: PushTarget
    repository: Repository
    image: Descriptor

    def attach(self, documents: list[Document], signer: Signer | None, trust: Trust) -> None:
        attach.attach(self.target, self.repository, self.image, documents, signer, {}, trust)

    def gather(self, trust: Trust) -> VerificationResult:
        return attach.gather(self.repository, self.image.digest, trust)

    def refer(self, data: bytes) -> str:
        return self.target.attach(self.image, BUNDLE, data, BUNDLE, {})


@pytest.fixture(scope="module", params=["docker-registry", "stand-in"])
def registry(
    request: pytest.FixtureRequest, docker_registry: Path, verifiers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    home = tmp_path_factory.mktemp("home")
    if request.param == "docker-registry":
        with serving(docker_registry, tmp_path_factory.mktemp("hub")) as hub:
            settings = login(home, hub.host)
            push = lambda name, data: hub.push(f"people/{name}", "1", [data]) and None  # noqa: E731
            yield Registry(hub.host, push, settings, Sigstore(verifiers, home), has_referrers=False)
        return
    stand_in = Writable()
    stand_in.referrers = True
    try:
        settings = Settings.from_environment({"HOME": str(home), "PIP_CONFIG_FILE": os.devnull})
        push = lambda name, data: stand_in.push(f"people/{name}:1", [data], index=False) and None  # noqa: E731
        yield Registry(stand_in.host, push, settings, Sigstore(verifiers, home), has_referrers=True)
    finally:
        stand_in.close()


@pytest.fixture(scope="module")
def key(registry: Registry) -> Path:
    return registry.sigstore.key()


@pytest.fixture(scope="module")
def other_key(registry: Registry) -> Path:
    return registry.sigstore.key("other")


def trusting(*files: Path) -> Trust:
    return Trust(Project(keys=tuple(Key(file.stem, file.with_suffix(".pub")) for file in files)))


def signer(key: Path) -> keys.KeySigner:
    return keys.read_signer(key, PASSWORD, Quiet())


def test_cosign_and_oras_read_what_is_attached(registry: Registry, key: Path, other_key: Path) -> None:
    place, trust, sigstore = registry.image("ours"), trusting(key), registry.sigstore
    place.attach(DOCUMENTS, signer(key), trust)
    found = place.gather(trust)
    assert {each.document for each in found.documents} == set(DOCUMENTS)
    names = [each.kind.name for each in DOCUMENTS]
    assert {each.document.kind.name: each.signer for each in found.documents} == dict.fromkeys(names, "cosign")
    assert (found.signers, found.faults) == (("cosign",), ())

    done = sigstore.verify(key.with_suffix(".pub"), place.name)
    assert done.returncode == 0, done.stderr
    assert place.image.digest in done.stdout
    assert SIGNATURE in done.stdout
    for name, kind in TYPES.items():
        done = sigstore.verify(key.with_suffix(".pub"), place.name, "--type", name)
        assert done.returncode == 0, done.stderr
        said = statement.read(base64.b64decode(json.loads(done.stdout)["payload"]))
        (document,) = (each for each in DOCUMENTS if each.kind is kind)
        assert (said.subjects, said.predicate_type) == ((place.image.digest,), kind.predicate)
        assert statement.same(document.content, said.predicate)
    assert sigstore.verify(key.with_suffix(".pub"), place.name, "--type", SIGNATURE).returncode == 0
    # No other signer signed it.
    assert sigstore.verify(other_key.with_suffix(".pub"), place.name).returncode
    assert sigstore.verify(other_key.with_suffix(".pub"), place.name, "--type", "cyclonedx").returncode
    theirs = place.gather(trusting(other_key))
    assert (theirs.signers, {each.signer for each in theirs.documents}) == ((), {None})

    listed = sigstore.discover(place.name)
    assert sorted(each["artifactType"] for each in listed) == sorted(
        [each.kind.media_type for each in DOCUMENTS] + [BUNDLE] * 5
    )
    # Again, and nothing is new.
    place.attach(DOCUMENTS, signer(key), trust)
    assert len(place.repository.referrers(place.image.digest)) == len(listed)


def test_what_cosign_signs_is_trusted(registry: Registry, key: Path, other_key: Path) -> None:
    place, trust, sigstore = registry.image("cosigns"), trusting(key), registry.sigstore
    place.attach([Document(SBOM, BOM)], None, trust)
    sigstore.sign(key, place.name)
    sigstore.attest(key, place.name, "cyclonedx", BOM)
    sigstore.attest(key, place.name, str(SMOKE.predicate), b'{"result": "PASSED", "seconds": 12.0}')
    sigstore.sign(other_key, place.name)
    found = place.gather(trust)
    assert {each.document.kind.name: each.signer for each in found.documents} == {"sbom": "cosign", "smoke": "cosign"}
    assert (found.signers, found.faults, found.untrusted) == (("cosign",), (), 1)
    assert place.gather(trusting(other_key, key)).signers in (("other", "cosign"), ("cosign", "other"))
    # What cosign attested needs no second signature.
    before = len(place.repository.referrers(place.image.digest))
    place.attach([Document(SBOM, BOM)], signer(key), trust)
    assert len(place.repository.referrers(place.image.digest)) == before


def tampered(image: str, good: Bundle, ours: Signer, theirs: Signer) -> dict[str, tuple[bytes, str]]:
    """Signatures of an image that are none, `good` being of another one, and what is said of each."""
    said = statement.write(image, SIGNATURE)
    signed = bundle.read_bundle(ours.sign(said))
    retyped = json.loads(bundle.write_bundle(said, signed.signature, signed.material))
    retyped["dsseEnvelope"]["payloadType"] = "application/json"
    twice = bundle.write_bundle(said, signed.signature, signed.material).decode().removesuffix("}}")
    return {
        "replayed": (bundle.write_bundle(good.payload, good.signature, good.material), "belongs to another image"),
        "altered": (bundle.write_bundle(said, good.signature, good.material), "the signature is wrong"),
        "stranger": (theirs.sign(said), ""),
        "retyped": (json.dumps(retyped).encode(), "its payloadType is"),
        "twice": (f'{twice},"payloadType":"application/json"}}}}'.encode(), "is given twice"),
        "malformed": (b"{", "it is not JSON"),
    }


def test_both_refuse_what_was_tampered_with(registry: Registry, key: Path, other_key: Path) -> None:
    public, trust, ours = key.with_suffix(".pub"), trusting(key), signer(key)
    honest = registry.image("honest")
    signed = ours.sign(statement.write(honest.image.digest, SIGNATURE))
    honest.refer(signed)
    assert registry.sigstore.verify(public, honest.name).returncode == 0
    assert honest.gather(trust).signers == ("cosign",)
    names = list(tampered(honest.image.digest, bundle.read_bundle(signed), ours, ours))
    for name in names if registry.has_referrers else names[:2]:  # where the list is kept decides nothing of this
        victim = registry.image(name)
        data, why = tampered(victim.image.digest, bundle.read_bundle(signed), ours, signer(other_key))[name]
        artifact = victim.refer(data)
        assert registry.sigstore.verify(public, victim.name).returncode, name
        found = victim.gather(trust)
        assert not found.signers
        assert found.untrusted == (name == "stranger")
        assert [fault.where for fault in found.faults] == ([] if name == "stranger" else [artifact])
        assert why in "".join(map(str, found.faults))


def test_an_exchanged_sbom_is_named(registry: Registry, key: Path) -> None:
    place, trust = registry.image("exchanged"), trusting(key)
    said = statement.write(place.image.digest, str(SBOM.predicate), BOM)
    place.refer(signer(key).sign(said))
    evil = BOM.replace(b'"version": 1', b'"version": 2')
    place.attach([Document(SBOM, evil)], None, trust)
    found = place.gather(trust)
    assert {each.signer: json.loads(each.document.content)["version"] for each in found.documents} == {
        None: 2,
        "cosign": 1,
    }
    assert [fault.what for fault in found.faults] == ["the attached sbom is not the one that cosign signed"]
    # `cosign verify` takes any signed statement for the image's own signature; asked for that, it does not find it.
    assert not found.signers
    public, sigstore = key.with_suffix(".pub"), registry.sigstore
    assert sigstore.verify(public, place.name).returncode == 0
    assert sigstore.verify(public, place.name, "--type", SIGNATURE).returncode


def test_a_key_of_openssl_is_cosigns_too(registry: Registry, tmp_path: Path) -> None:
    plain, public = tmp_path / "release.pem", tmp_path / "release.pub"
    made = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(plain)]
    subprocess.run(made, check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", str(plain), "-pubout", "-out", str(public)], check=True)
    place, trust = registry.image("openssl"), trusting(plain)
    place.attach([], keys.read_signer(plain, None, Quiet()), trust)
    done = registry.sigstore.verify(public, place.name)
    assert done.returncode == 0, done.stderr
    # cosign's copy of it signs as the same.
    copy = signer(registry.sigstore.imported(plain))
    said = statement.write(place.image.digest, SIGNATURE)
    assert copy.sign(said) == keys.read_signer(plain, None, Quiet()).sign(said)
