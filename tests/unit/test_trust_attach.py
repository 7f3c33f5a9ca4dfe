"""Attachments of an image: their signers, the faults of the others, and nothing attached twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from imagegen.core.errors import FetchError, TrustError, UntrustedSignerError
from imagegen.core.net import UnreachableError
from imagegen.oci.documents import Descriptor, digest_of
from imagegen.oci.registry import Content, PushTarget, Referrer
from imagegen.oci.registry.referrers import referring
from imagegen.trust import attach, bundle, statement
from imagegen.trust.bundle import Bundle
from imagegen.trust.documents import AUDIT, BUNDLE, LAYERS, LOCK, SBOM, SIGNATURE, SMOKE, Attached, Document
from imagegen.trust.project import Project
from imagegen.trust.signers import Trust
from tests.support.errors import raises
from tests.support.golden import Golden

IMAGE = Descriptor("application/vnd.oci.image.manifest.v1+json", "sha256:" + "a1" * 32, 400)
OTHER = Descriptor(IMAGE.media_type, "sha256:" + "b2" * 32, 400)
BOM = Document(SBOM, b'{"bomFormat": "CycloneDX", "components": [{"name": "torch", "version": "2.13.0"}]}')
LOCKED = Document(LOCK, b"[lock]\n")
MADE = Document(LAYERS, json.dumps({"lock": digest_of(LOCKED.content), "layers": []}).encode())
TESTED = Document(SMOKE, b'{"result": "PASSED", "seconds": 1.0}')


@dataclass
class Registry:
    """A registry's lists and artifacts, in memory; both the lists and a PushTarget as far as they are used here."""

    artifacts: dict[str, tuple[Referrer, Content | Exception]] = field(default_factory=dict)
    looked: list[int] = field(default_factory=list)  # how many artifacts there were when it looked again

    def attach(
        self, subject: Descriptor, artifact_type: str, blob: bytes, media_type: str, annotations: Mapping[str, str]
    ) -> str:
        described = Descriptor(media_type, digest_of(blob), len(blob))
        manifest, _ = referring(subject, artifact_type, {"": described}, annotations)
        digest = digest_of(manifest)
        referrer = Referrer(digest, len(manifest), artifact_type, annotations, subject.digest)
        self.artifacts[digest] = (referrer, Content(artifact_type, annotations, media_type, blob))
        return digest

    def verify_referrers(self) -> None:
        self.looked.append(len(self.artifacts))

    def referrers(self, digest: str, artifact_type: str | None = None) -> tuple[Referrer, ...]:
        listed = (referrer for referrer, _ in self.artifacts.values() if referrer.subject == digest)
        return tuple(each for each in listed if artifact_type in (None, each.artifact_type))

    def content(self, referrer: Referrer) -> Content:
        content = self.artifacts[referrer.digest][1]
        if isinstance(content, Exception):
            raise content
        return content

    def add(self, document: Document, image: Descriptor = IMAGE) -> str:
        return self.attach(image, document.kind.media_type, document.content, document.kind.media_type, {})

    def add_bundle(self, data: bytes, image: Descriptor = IMAGE) -> str:
        return self.attach(image, BUNDLE, data, BUNDLE, {})

    def of(self, kind: str) -> list[bytes]:
        contents = (content for _, content in self.artifacts.values() if isinstance(content, Content))
        return [content.data for content in contents if content.artifact_type == kind]


class By:
    """A signer whose signature is its name: what is proved here is what follows from a signature, not the signature."""

    def __init__(self, name: str) -> None:
        self.name, self.signed = name, 0

    def sign(self, statement: bytes) -> bytes:
        self.signed += 1
        return bundle.write_bundle(statement, self.name.encode(), {"publicKey": {"hint": self.name}})


class TrustingNames(Trust):
    """Trusts signers of these names."""

    def __init__(self, *names: str) -> None:
        super().__init__(Project())
        self.names, self.has_signers = names, bool(names)

    def _signing_key(self, bundle: Bundle) -> str:
        if bundle.hint != bundle.signature.decode():
            raise TrustError("the signature is wrong", why="it is of somebody else")
        if bundle.hint not in self.names:
            raise UntrustedSignerError("it is signed with a key that this project does not name")
        return bundle.hint


TRUST = TrustingNames("release", "ci")
RELEASE = By("release")


def bring(
    registry: Registry, *documents: Document, signer: Any = RELEASE, trust: Trust = TRUST, **annotations: str
) -> None:
    attach.attach(cast("PushTarget", registry), registry, IMAGE, documents, signer, annotations, trust)


def gathered(registry: Registry, trust: Trust = TRUST, image: Descriptor = IMAGE) -> attach.VerificationResult:
    return attach.gather(registry, image.digest, trust)


def said(result: attach.VerificationResult) -> dict[str, str | None]:
    return {each.document.kind.name: each.signer for each in result.documents}


def test_what_is_attached_is_found_and_trusted() -> None:
    registry = Registry()
    bring(registry, LOCKED, MADE, BOM, source="https://github.com/acme/images")
    found = gathered(registry)
    assert {each.document for each in found.documents} == {LOCKED, MADE, BOM}
    assert said(found) == {"lock": "release", "layers": "release", "sbom": "release"}
    assert (found.signers, found.faults, found.untrusted) == (("release",), (), 0)
    assert gathered(registry, image=OTHER).signers == ()
    assert registry.looked == [len(registry.artifacts)]
    annotations = {each.artifact_type: dict(each.annotations) for each, _ in registry.artifacts.values()}
    assert annotations[LOCK.media_type] == {"source": "https://github.com/acme/images"}
    assert annotations[SBOM.media_type] == {}
    # The image's own signature is the last thing that comes: who sees it finds the rest.
    last = list(registry.artifacts.values())[-1][0]
    assert last.annotations["dev.sigstore.bundle.predicateType"] == SIGNATURE


def test_without_a_signer_nothing_is_trusted() -> None:
    registry = Registry()
    bring(registry, LOCKED, MADE, BOM, signer=None)
    found = gathered(registry)
    assert said(found) == {"lock": None, "layers": None, "sbom": None}
    assert (found.signers, found.faults) == ((), ())
    bring(registry, LOCKED, MADE, BOM)
    assert set(said(gathered(registry)).values()) == {"release"}
    assert len(registry.of(SBOM.media_type)) == 1


def test_nothing_is_attached_or_signed_twice() -> None:
    registry, first, second = Registry(), By("release"), By("ci")
    bring(registry, LOCKED, BOM, signer=first, source="one")
    before = dict(registry.artifacts)
    bring(registry, LOCKED, BOM, signer=first, source="two")
    bring(registry, LOCKED, replace(BOM, content=BOM.content), signer=second)
    assert registry.artifacts == before
    assert (first.signed, second.signed) == (2, 0)
    # An untrusted signature is no reason not to sign; the same one is not attached again.
    untrusted = By("me")
    bring(registry, BOM, signer=untrusted, trust=TrustingNames())
    known = dict(registry.artifacts)
    bring(registry, BOM, signer=untrusted, trust=TrustingNames())
    assert registry.artifacts == known
    assert len(known) == len(before) + 2
    # A newer document is another.
    bring(registry, replace(BOM, content=b'{"bomFormat": "CycloneDX"}'), signer=second)
    found = gathered(registry)
    assert [each.signer for each in found.documents if each.document.kind is SBOM] == ["release", "ci"]
    assert (found.signers, found.faults, found.untrusted) == (("release",), (), 2)


@pytest.mark.fault("Trust", "publishing with a key of another project", "refused before anything is attached")
def test_a_signer_that_verification_would_reject_attaches_nothing(golden: Golden) -> None:
    registry = Registry()
    with raises("trust-signer-untrusted") as caught:
        bring(registry, BOM, signer=By("key of another project"))
    golden.check(caught.value)
    assert not registry.artifacts
    bring(registry, BOM)
    before = dict(registry.artifacts)
    with raises("trust-signer-untrusted"):
        bring(registry, BOM, TESTED, signer=By("key of another project"))
    assert registry.artifacts == before


@pytest.mark.fault(
    "Trust",
    "an attached SBOM is exchanged, its signature left",
    "named by its digest; what was signed counts",
)
def test_an_exchanged_document_is_named_and_the_signed_one_counts(golden: Golden) -> None:
    registry = Registry()
    bring(registry, BOM)
    (there,) = (digest for digest, (each, _) in registry.artifacts.items() if each.artifact_type == SBOM.media_type)
    del registry.artifacts[there]
    evil = replace(BOM, content=BOM.content.replace(b"2.13.0", b"2.13.1"))
    artifact = registry.add(evil)
    found = gathered(registry)
    (fault,) = found.faults
    golden.check(fault.what)
    assert fault.where == artifact
    assert artifact in str(fault.why)
    by_signer = {each.signer: json.loads(each.document.content) for each in found.documents}
    assert by_signer == {None: json.loads(evil.content), "release": json.loads(BOM.content)}
    # Gone altogether, it is still known from the signature.
    del registry.artifacts[artifact]
    found = gathered(registry)
    assert said(found) == {"sbom": "release"}
    assert not found.faults


def test_a_lock_is_attested_by_the_layers_that_name_it() -> None:
    registry = Registry()
    bring(registry, LOCKED, MADE)
    assert said(gathered(registry)) == {"lock": "release", "layers": "release"}
    other = replace(LOCKED, content=b"[other]\n")
    registry.add(other)
    locks = {each.document.content: each.signer for each in gathered(registry).documents if each.document.kind is LOCK}
    assert locks == {LOCKED.content: "release", other.content: None}


@pytest.mark.fault(
    "Trust",
    "a signature of another image is attached to this one",
    "named by its digest; the image counts as unsigned",
)
def test_a_statement_of_another_image_says_nothing_of_this_one(golden: Golden) -> None:
    registry = Registry()
    registry.add(BOM)
    predicate = str(SBOM.predicate)
    replayed = [
        registry.add_bundle(RELEASE.sign(statement.write(OTHER.digest, SIGNATURE))),
        registry.add_bundle(RELEASE.sign(statement.write(OTHER.digest, predicate, BOM.content))),
    ]
    found = gathered(registry)
    assert (said(found), found.signers) == ({"sbom": None}, ())
    assert [fault.where for fault in found.faults] == replayed
    golden.check({fault.what for fault in found.faults})
    assert OTHER.digest in str(found.faults[0].why) and IMAGE.digest in str(found.faults[0].why)


@pytest.mark.fault(
    "Trust",
    "a trusted signer's statement of another kind has the same content",
    "it attests nothing else, and does not sign the image",
)
def test_a_statement_of_another_kind_attests_nothing_else(golden: Golden) -> None:
    registry = Registry()
    registry.add(TESTED)
    registry.add(BOM)
    for kind in ("https://example.com/v1", str(AUDIT.predicate), str(SMOKE.predicate)):
        registry.add_bundle(RELEASE.sign(statement.write(IMAGE.digest, kind, BOM.content)))
    found = gathered(registry)
    assert [each.signer for each in found.documents if each.document == BOM] == [None]
    assert [each.signer for each in found.documents if each.document == TESTED] == [None]
    assert not found.signers  # a word about the image is not a word for it
    golden.check([fault.what for fault in found.faults])


@pytest.mark.fault(
    "Trust",
    "an untrusted signer signs the image and another SBOM, too",
    "what the trusted signer said counts; the other is counted as untrusted",
)
def test_of_two_signers_the_trusted_one_counts() -> None:
    registry = Registry()
    bring(registry, BOM)
    evil = replace(BOM, content=b'{"bomFormat": "CycloneDX", "components": []}')
    registry.add(evil)
    bring(registry, evil, signer=By("mallory"), trust=TrustingNames())
    found = gathered(registry)
    assert {each.document.content: each.signer for each in found.documents} == {
        BOM.content: "release",
        evil.content: None,
    }
    assert (found.signers, found.faults, found.untrusted) == (("release",), (), 2)
    assert gathered(registry, TrustingNames("mallory")).signers == ("mallory",)


@pytest.mark.fault(
    "Trust",
    "signatures that are malformed, deeply nested, with names twice, or of other bytes",
    "each is named by its digest; the others count",
)
def test_every_fault_of_an_artifact_is_reported_with_its_digest() -> None:
    registry = Registry()
    bring(registry, BOM)
    good = bundle.read_bundle(RELEASE.sign(statement.write(IMAGE.digest, SIGNATURE)))
    wrong = {
        registry.add_bundle(b"{"): "the signature's bundle cannot be read",
        registry.add_bundle(b'{"mediaType": 1, "mediaType": 2}'): "the signature's bundle cannot be read",
        registry.add_bundle(b"[" * 100_000): "the signature's bundle cannot be read",
        registry.add_bundle(bundle.write_bundle(good.payload, b"mallory", good.material)): "the signature is wrong",
        registry.add_bundle(RELEASE.sign(b"{}")): "the signed statement cannot be read",
    }
    lost = registry.add(replace(BOM, content=b"{}"))
    registry.artifacts[lost] = (registry.artifacts[lost][0], FetchError("it does not exist", where="x@y", why="404"))
    found = gathered(registry)
    assert {str(fault.where): fault.what for fault in found.faults} == wrong | {lost: "it does not exist"}
    assert found.faults[-1].why == "x@y: 404"
    assert (said(found), found.signers) == ({"sbom": "release"}, ("release",))


def test_a_registry_that_cannot_be_reached_is_no_verdict() -> None:
    registry = Registry()
    lost = registry.add(BOM)
    registry.artifacts[lost] = (registry.artifacts[lost][0], UnreachableError("registry.example does not answer"))
    with pytest.raises(UnreachableError):
        gathered(registry)


def test_lists_without_the_kind_are_read() -> None:
    """Lists of cosign 3.1.1 do so; artifacts of unrelated kinds are not fetched."""
    registry = Registry()
    bring(registry, BOM)
    artifacts = registry.artifacts
    for untold in ("", "application/vnd.oci.empty.v1+json"):
        registry.artifacts = {
            digest: (replace(referrer, artifact_type=untold), content)
            for digest, (referrer, content) in artifacts.items()
        }
        assert said(gathered(registry)) == {"sbom": "release"}
    foreign = registry.attach(IMAGE, "application/vnd.example", b"x", "text/plain", {})
    registry.artifacts[foreign] = (registry.artifacts[foreign][0], AssertionError("it was fetched"))
    assert gathered(registry).signers == ("release",)


def test_more_than_anybody_needs_is_a_fault(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(attach, "MAX_ARTIFACTS", 3)
    registry = Registry()
    for number in range(4):
        registry.add(Document(SBOM, b'{"serial": %d}' % number))
    found = gathered(registry)
    assert len(found.documents) == 3
    golden.check(found.faults[0].why)


@pytest.mark.fault(
    "Trust",
    "hundreds of documents of 64 MiB each are attached to an image",
    "what is read stops at 256 MiB; the image fails verification",
)
def test_larger_documents_than_anybody_needs_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "MAX_BYTES", 1000)
    registry = Registry()
    for number in range(20):
        registry.add(Document(SBOM, b'{"serial": %3d, "x": "%s"}' % (number, b"x" * 380)))
    found = gathered(registry)
    assert len(found.documents) == 3
    (fault,) = found.faults
    assert isinstance(fault, TrustError)
    assert str(fault.where) not in {each.digest for each in found.documents}


def test_attached_says_where_it_lies() -> None:
    registry = Registry()
    digest = registry.add(BOM)
    assert gathered(registry).documents == (Attached(BOM, digest, None),)
