"""Attach documents and signatures to an image in a registry; find and verify them.

A document is attached unsigned, so that any tool finds it. It is not trusted by itself, because every account with
write access can replace it. Only a statement of a trusted signer about this image's digest counts; lists, names and
annotations do not. Sources: OCI distribution-spec v1.1 (referrers); cosign's BUNDLE_SPEC.md for the annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, TrustError, UntrustedSignerError
from imagegen.core.net import UnavailableError
from imagegen.oci.documents import EMPTY_TYPE, Descriptor, digest_of
from imagegen.oci.registry import Content, PushTarget, Referrer
from imagegen.trust import statement as statements
from imagegen.trust.documents import BUNDLE, KINDS, LAYERS, LOCK, SIGNATURE, Attached, Document, Kind
from imagegen.trust.signers import Signer, Trust
from imagegen.trust.statement import InTotoStatement

_BY_TYPE = {kind.media_type: kind for kind in KINDS.values()}
_BY_PREDICATE = {kind.predicate: kind for kind in KINDS.values() if kind.predicate}
# If the registry has no referrers API, cosign 3.1.1 lists its artifacts under the type of their config. The manifest of
# such an artifact has its type.
_UNKNOWN_TYPES = ("", EMPTY_TYPE)
MAX_ARTIFACTS = 500  # that are read; an image has about ten
MAX_BYTES = 256 << 20  # of all artifacts, which are in memory together


class ReferrerSource(Protocol):
    """A source of an image's referrers, as a Repository or an OCI layout."""

    def referrers(self, digest: str) -> Sequence[Referrer]: ...
    def content(self, referrer: Referrer) -> Content: ...


@dataclass(frozen=True)
class VerificationResult:
    """The verification result of an image's attachments.

    `documents` has signed and unsigned documents. `signers` are the trusted signers of the image itself. `faults` name
    each invalid artifact with the reason. `untrusted` counts signatures of signers that the project does not name.
    """

    documents: tuple[Attached, ...]
    signers: tuple[str, ...]
    faults: tuple[TrustError, ...]
    untrusted: int


@dataclass(frozen=True)
class _SignedStatement:
    """A statement of a trusted signer about the image, and the digest of its artifact."""

    signer: str
    statement: InTotoStatement
    artifact: str


@dataclass
class _Attachments:
    unsigned: list[tuple[Document, str]]  # with the artifact's digest
    statements: list[_SignedStatement]
    faults: list[TrustError]
    untrusted: int = 0


def attach(
    target: PushTarget,
    repository: ReferrerSource,
    image: Descriptor,
    documents: Sequence[Document],
    signer: Signer | None,
    annotations: Mapping[str, str],
    trust: Trust,
) -> None:
    """Attach the documents to the image, and the signed statements if there is a signer.

    `annotations` are set on the LOCK. An equal document, or a statement of a trusted signer, is not attached again. The
    image's signature is attached last. Raises PublishError, FetchError; and TrustError, before anything is attached, if
    verification would reject this signer.
    """
    existing = _read_attachments(repository, image.digest, trust)
    bundles = _bundles(image.digest, documents, signer, trust, existing) if signer else []
    attached = {(document.kind, document.content) for document, _ in existing.unsigned}
    for document in documents:
        kind, content = document.kind, document.content
        if (kind, content) not in attached:
            target.attach(image, kind.media_type, content, kind.media_type, annotations if kind is LOCK else {})
    for predicate, bundle in bundles:
        target.attach(image, BUNDLE, bundle, BUNDLE, _annotations(predicate))
    target.verify_referrers()


def attach_statement(
    target: PushTarget, subjects: Sequence[Descriptor], document: Document, signer: Signer, trust: Trust
) -> None:
    """Attach one signed statement about all subjects to each of them, with the document as its predicate.

    Raises PublishError, FetchError, and TrustError, before anything is attached, if verification would reject this
    signer.
    """
    first, *remaining = [subject.digest for subject in subjects]
    predicate = str(document.kind.predicate)
    bundle = signer.sign(statements.write(first, predicate, document.content, remaining))
    _require_trusted(bundle, signer, trust)
    for subject in subjects:
        target.attach(subject, BUNDLE, bundle, BUNDLE, _annotations(predicate))
    target.verify_referrers()


def _annotations(predicate: str) -> dict[str, str]:
    return {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": predicate}


def gather(repository: ReferrerSource, digest: str, trust: Trust) -> VerificationResult:
    """Return the verification result of the image `digest`, with each document checked against signed statements.

    Raises FetchError.
    """
    attachments = _read_attachments(repository, digest, trust)
    documents = [
        Attached(document, artifact, _signer(document, attachments.statements))
        for document, artifact in attachments.unsigned
    ]
    faults = list(attachments.faults)
    for signed in attachments.statements:
        statement = signed.statement
        kind = _BY_PREDICATE.get(statement.predicate_type)
        unsigned = [(document, artifact) for document, artifact in attachments.unsigned if document.kind is kind]
        if kind is None or any(statements.same(document.content, statement.predicate) for document, _ in unsigned):
            continue
        documents.append(Attached(Document(kind, statement.predicate), signed.artifact, signed.signer))
        if unsigned:
            faults.append(_replaced(kind, signed, [artifact for _, artifact in unsigned]))
    signers = dict.fromkeys(
        signed.signer for signed in attachments.statements if signed.statement.predicate_type == SIGNATURE
    )
    return VerificationResult(tuple(documents), tuple(signers), tuple(faults), attachments.untrusted)


def _read_attachments(repository: ReferrerSource, digest: str, trust: Trust) -> _Attachments:
    attachments = _Attachments([], [], [])
    listed = [
        item for item in repository.referrers(digest) if item.artifact_type in (*_BY_TYPE, BUNDLE, *_UNKNOWN_TYPES)
    ]
    if len(listed) > MAX_ARTIFACTS:
        why = f"{len(listed)} artifacts refer to it; imagegen reads {MAX_ARTIFACTS}"
        attachments.faults.append(
            TrustError(f"image {digest} has too many attachments", code="trust-too-many-attachments", why=why)
        )
    size = 0  # bytes that were read
    for referrer in listed[:MAX_ARTIFACTS]:
        if size > MAX_BYTES:
            why = f"the artifacts before it have {size} bytes"
            attachments.faults.append(
                TrustError(
                    "not all attachments were read", code="trust-too-many-attachments", where=referrer.digest, why=why
                )
            )
            break
        try:
            content = repository.content(referrer)
        except UnavailableError:
            raise
        except FetchError as error:
            attachments.faults.append(_fault(referrer.digest, error))
            continue
        size += len(content.data)
        if content.artifact_type == BUNDLE:
            _verify_bundle(content.data, referrer.digest, digest, trust, attachments)
        elif content.artifact_type in _BY_TYPE:
            attachments.unsigned.append((Document(_BY_TYPE[content.artifact_type], content.data), referrer.digest))
    return attachments


def _verify_bundle(bundle: bytes, artifact: str, image: str, trust: Trust, attachments: _Attachments) -> None:
    try:
        signer, statement = trust.signer_of(bundle)
    except UntrustedSignerError:
        attachments.untrusted += 1
        return
    except TrustError as error:
        attachments.faults.append(_fault(artifact, error))
        return
    if image in statement.subjects:
        attachments.statements.append(_SignedStatement(signer, statement, artifact))
        return
    replayed = TrustError(
        "the signature belongs to another image",
        code="trust-other-image",
        why=f"{signer} signed {', '.join(statement.subjects[:3])}, and it is attached to {image}",
        fix="do not trust this image, because it has the signature of another image",
    )
    attachments.faults.append(_fault(artifact, replayed))


def _signer(document: Document, signed_statements: Sequence[_SignedStatement]) -> str | None:
    """Return the signer of the document's content, or of a statement that has its digest."""
    kind = document.kind
    for signed in signed_statements:
        type_, predicate = signed.statement.predicate_type, signed.statement.predicate
        if kind.predicate == type_ and statements.same(document.content, predicate):
            return signed.signer
        covering = kind.predicate is None and type_ == LAYERS.predicate
        if covering and parse_json(predicate).get(kind.name) == digest_of(document.content):
            return signed.signer
    return None


def _bundles(
    image: str, documents: Sequence[Document], signer: Signer, trust: Trust, existing: _Attachments
) -> list[tuple[str, bytes]]:
    """Return the bundles that are not attached yet, by predicate type. Raises TrustError."""
    contents = [
        (str(document.kind.predicate), document.content)
        for document in documents
        if document.kind.predicate and _signer(document, existing.statements) is None
    ]
    if not any(signed.statement.predicate_type == SIGNATURE for signed in existing.statements):
        contents.append((SIGNATURE, b"{}"))
    bundles = [(predicate, signer.sign(statements.write(image, predicate, content))) for predicate, content in contents]
    for _, bundle in bundles:
        _require_trusted(bundle, signer, trust)
    return bundles


def _require_trusted(bundle: bytes, signer: Signer, trust: Trust) -> None:
    """Raise TrustError if the project names trusted signers and verification would reject this signer's bundle."""
    if not trust.has_signers:
        return
    try:
        trust.signer_of(bundle)
    except TrustError as error:
        raise TrustError(
            f"the project does not trust the signer {signer.name}",
            code="trust-signer-untrusted",
            why=error.summary,
            fix="sign with a key that publish.yaml names, or add this one to it",
        ) from error


def _replaced(kind: Kind, signed: _SignedStatement, artifacts: Sequence[str]) -> TrustError:
    summary = f"the attached {kind.name} is not the one that {signed.signer} signed"
    why = f"no content of {', '.join(artifacts)} equals the content in {signed.artifact}"
    return TrustError(
        summary,
        where=artifacts[0],
        why=why,
        fix="do not trust it, because an account with write access has replaced it",
    )


def _fault(artifact: str, error: TrustError | FetchError) -> TrustError:
    """Return the error with the artifact's digest as its `where`."""
    where = error.where and str(error.where)
    why = ": ".join(part for part in (where, error.why) if part) or None
    return TrustError(error.what, where=artifact, why=why, fix=error.fix)
