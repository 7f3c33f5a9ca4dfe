"""Documents and signatures beside an image in a registry: attach, find and verify them.

A document is attached plainly, so that any tool finds it, and is not trusted by itself: every account with write access
can replace it. Only a trusted signer's statement about this image's digest counts, whatever a list, a name or an
annotation claims. Sources: OCI distribution-spec v1.1 (referrers); cosign's BUNDLE_SPEC.md for the annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, TrustError, UntrustedSignerError
from imagegen.core.net import UnavailableError
from imagegen.core.oci import EMPTY_TYPE, Descriptor, digest_of
from imagegen.core.registry import Content, PushTarget, Referrer
from imagegen.supply.trust import statement as statements
from imagegen.supply.trust.documents import BUNDLE, KINDS, LAYERS, LOCK, SIGNATURE, Attached, Document, Kind
from imagegen.supply.trust.keys import Signer, Trust
from imagegen.supply.trust.statement import InTotoStatement

_BY_TYPE = {kind.media_type: kind for kind in KINDS.values()}
_BY_PREDICATE = {kind.predicate: kind for kind in KINDS.values() if kind.predicate}
# cosign 3.1.1 lists what it attaches under its config's type where it is itself that keeps the list: go and see.
_UNTOLD = ("", EMPTY_TYPE)
_MOST = 500  # artifacts that are looked at; an image has some ten
_MOST_BYTES = 256 << 20  # of all of them: they are in memory together


class ReferrerSource(Protocol):
    """A source of an image's referrers: a Repository, or a layout on the disk."""

    def referrers(self, digest: str) -> Sequence[Referrer]: ...
    def content(self, referrer: Referrer) -> Content: ...


@dataclass(frozen=True)
class VerificationResult:
    """The verification result of an image's attachments.

    `documents` are all, signed or not; `signers` are the trusted signers of the image itself; `faults` name each
    artifact that is not what it claims to be, and why; `untrusted` counts signatures of signers that the project does
    not name.
    """

    documents: tuple[Attached, ...]
    signers: tuple[str, ...]
    faults: tuple[TrustError, ...]
    untrusted: int


@dataclass(frozen=True)
class _Stated:
    """A statement of a trusted signer about the image, and the digest of the artifact that holds it."""

    signer: str
    statement: InTotoStatement
    artifact: str


@dataclass
class _Found:
    plain: list[tuple[Document, str]]  # with the artifact's digest
    stated: list[_Stated]
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
    """Attach the documents to the image, and with a signer the signed statements; `annotations` are the LOCK's.

    Existing artifacts stay: an equal document, and a statement that a trusted signer made. The image's own signature
    comes last. Raises PublishError, FetchError; and TrustError, before anything is attached, if verification would
    reject this signer.
    """
    there = _look(repository, image.digest, trust)
    bundles = _bundles(image.digest, documents, signer, trust, there) if signer else []
    known = {(document.kind, document.content) for document, _ in there.plain}
    for document in documents:
        kind, content = document.kind, document.content
        if (kind, content) not in known:
            target.attach(image, kind.media_type, content, kind.media_type, annotations if kind is LOCK else {})
    for predicate, bundle in bundles:
        target.attach(image, BUNDLE, bundle, BUNDLE, _described(predicate))
    target.verify_referrers()


def attach_statement(
    target: PushTarget, subjects: Sequence[Descriptor], document: Document, signer: Signer, trust: Trust
) -> None:
    """Attach one signed statement about all subjects, with the document as its predicate, to each of them.

    Raises PublishError, FetchError, and TrustError, before anything is attached, if verification would reject this
    signer.
    """
    first, *others = [subject.digest for subject in subjects]
    predicate = str(document.kind.predicate)
    bundle = signer.sign(statements.write(first, predicate, document.content, others))
    _require_trusted(bundle, signer, trust)
    for subject in subjects:
        target.attach(subject, BUNDLE, bundle, BUNDLE, _described(predicate))
    target.verify_referrers()


def _described(predicate: str) -> dict[str, str]:
    return {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": predicate}


def gather(repository: ReferrerSource, digest: str, trust: Trust) -> VerificationResult:
    """Return the verification result of the image `digest`, each document checked against signed statements. Raises
    FetchError.
    """
    found = _look(repository, digest, trust)
    documents = [Attached(document, artifact, _signer(document, found.stated)) for document, artifact in found.plain]
    faults = list(found.faults)
    for each in found.stated:
        kind = _BY_PREDICATE.get(each.statement.predicate_type)
        plain = [document for document, _ in found.plain if document.kind is kind]
        if kind is None or any(statements.same(document.content, each.statement.predicate) for document in plain):
            continue
        documents.append(Attached(Document(kind, each.statement.predicate), each.artifact, each.signer))
        if plain:
            faults.append(_other(kind, each, [artifact for document, artifact in found.plain if document.kind is kind]))
    signers = dict.fromkeys(each.signer for each in found.stated if each.statement.predicate_type == SIGNATURE)
    return VerificationResult(tuple(documents), tuple(signers), tuple(faults), found.untrusted)


def _look(repository: ReferrerSource, digest: str, trust: Trust) -> _Found:
    found = _Found([], [], [])
    listed = [each for each in repository.referrers(digest) if each.artifact_type in (*_BY_TYPE, BUNDLE, *_UNTOLD)]
    if len(listed) > _MOST:
        why = f"{len(listed)} artifacts refer to it; imagegen looks at {_MOST}"
        found.faults.append(
            TrustError(f"image {digest} has too many attachments", code="trust-too-many-attachments", why=why)
        )
    size = 0  # bytes that were read
    for referrer in listed[:_MOST]:
        if size > _MOST_BYTES:
            why = f"the artifacts before it have {size} bytes"
            found.faults.append(
                TrustError(
                    "no more is read of what is attached",
                    code="trust-too-many-attachments",
                    where=referrer.digest,
                    why=why,
                )
            )
            break
        try:
            content = repository.content(referrer)
        except UnavailableError:
            raise
        except FetchError as error:
            found.faults.append(_fault(referrer.digest, error))
            continue
        size += len(content.data)
        if content.artifact_type == BUNDLE:
            _verify_bundle(content.data, referrer.digest, digest, trust, found)
        elif content.artifact_type in _BY_TYPE:
            found.plain.append((Document(_BY_TYPE[content.artifact_type], content.data), referrer.digest))
    return found


def _verify_bundle(bundle: bytes, artifact: str, image: str, trust: Trust, found: _Found) -> None:
    try:
        signer, statement = trust.signer_of(bundle)
    except UntrustedSignerError:
        found.untrusted += 1
        return
    except TrustError as error:
        found.faults.append(_fault(artifact, error))
        return
    if image in statement.subjects:
        found.stated.append(_Stated(signer, statement, artifact))
        return
    replayed = TrustError(
        "the signature is of another image",
        code="trust-other-image",
        why=f"{signer} signed {', '.join(statement.subjects[:3])}, and it is attached to {image}",
        fix="do not trust this image: it was given another image's signature",
    )
    found.faults.append(_fault(artifact, replayed))


def _signer(document: Document, stated: Sequence[_Stated]) -> str | None:
    """Return the signer that attests the document itself: its content, or its digest in a statement that covers it."""
    kind = document.kind
    for each in stated:
        type_, predicate = each.statement.predicate_type, each.statement.predicate
        if kind.predicate == type_ and statements.same(document.content, predicate):
            return each.signer
        covering = kind.predicate is None and type_ == LAYERS.predicate
        if covering and parse_json(predicate).get(kind.name) == digest_of(document.content):
            return each.signer
    return None


def _bundles(
    image: str, documents: Sequence[Document], signer: Signer, trust: Trust, there: _Found
) -> list[tuple[str, bytes]]:
    """Return the bundles that are still to be attached, by predicate type. Raises TrustError."""
    unsaid = [document for document in documents if document.kind.predicate and _signer(document, there.stated) is None]
    said = [(str(each.kind.predicate), each.content) for each in unsaid]
    if not any(each.statement.predicate_type == SIGNATURE for each in there.stated):
        said.append((SIGNATURE, b"{}"))
    made = [(predicate, signer.sign(statements.write(image, predicate, content))) for predicate, content in said]
    for _, bundle in made:
        _require_trusted(bundle, signer, trust)
    return made


def _require_trusted(bundle: bytes, signer: Signer, trust: Trust) -> None:
    """Raise TrustError if the project names trusted signers and verification would reject what this signer signs."""
    if not trust.has_signers:
        return
    try:
        trust.signer_of(bundle)
    except TrustError as error:
        raise TrustError(
            f"the project does not trust what {signer.name} signs",
            code="trust-signer-untrusted",
            why=error.summary,
            fix="sign with a key whose public one publish.yaml names, or name this one there",
        ) from error


def _other(kind: Kind, stated: _Stated, plain: Sequence[str]) -> TrustError:
    what = f"the attached {kind.name} is not the one that {stated.signer} signed"
    why = f"none of {', '.join(plain)} is what {stated.artifact} states"
    return TrustError(
        what, where=plain[0], why=why, fix="do not trust it: an account with write access has replaced it"
    )


def _fault(artifact: str, error: TrustError | FetchError) -> TrustError:
    """The error as one of an artifact: `where` is its digest."""
    where = error.where and str(error.where)
    why = ": ".join(part for part in (where, error.why) if part) or None
    return TrustError(error.what, where=artifact, why=why, fix=error.fix)
