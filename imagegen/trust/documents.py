"""Documents about an image that a registry stores as referrers of the image's manifest.

Sources: OCI image-spec v1.1, manifest.md (subject, artifactType); in-toto attestation framework, Statement v1 and the
predicate types named below; CycloneDX 1.6. A document is attached unsigned, so that any tool finds it. With a signer, a
signed in-toto statement about the image is attached too, with the document as its predicate.
"""

from __future__ import annotations

from dataclasses import dataclass

from imagegen import REPOSITORY


@dataclass(frozen=True)
class Kind:
    """A kind of attached document, with its name in messages. Its media type is the artifact's type too.

    `predicate` is the in-toto predicate type under which the document (a JSON object) is signed. It is None if another
    document names the digest of this one.
    """

    name: str
    media_type: str
    predicate: str | None


_TYPES = f"{REPOSITORY}/attestations"
LOCK = Kind("lock", "application/vnd.imagegen.lock.v1+toml", None)
# The layers that were built from a lock, in the format of image/layers/layers_document.py. It lists them from bottom to
# top with their keys and descriptors (also of layers compressed again), digests of the LOCK document and the
# image, and of all wheel scans by their keys. A client that trusts its signer need not build these layers.
LAYERS = Kind("layers", "application/vnd.imagegen.layers.v1+json", f"{_TYPES}/layers/v1")
# Layers of an image that is not finished, in the format of publish/prebuilt.py. The document is only attached as
# a signed statement. Its subjects are the keys of the layers, which are digests of their inputs.
PREBUILT = Kind("prebuilt", "application/vnd.imagegen.prebuilt.v1+json", f"{_TYPES}/prebuilt/v1")
SBOM = Kind("sbom", "application/vnd.cyclonedx+json", "https://cyclonedx.org/bom")
PROVENANCE = Kind("provenance", "application/vnd.imagegen.provenance.v1+json", "https://slsa.dev/provenance/v1")
SMOKE = Kind("smoke", "application/vnd.imagegen.smoke.v1+json", "https://in-toto.io/attestation/test-result/v0.1")
AUDIT = Kind("audit", "application/vnd.imagegen.audit.v1+json", f"{_TYPES}/audit/v1")
# The results of `imagegen test --numerics`, one for each device (run/numerics.py).
NUMERICS = Kind("numerics", "application/vnd.imagegen.numerics.v1+json", f"{_TYPES}/numerics/v1")
KINDS = {kind.name: kind for kind in (LOCK, LAYERS, PREBUILT, SBOM, PROVENANCE, SMOKE, AUDIT, NUMERICS)}
# The scans of wheels and of the base for the audit, so that a client with an empty store need not fetch the wheels.
# This is not a document but an artifact with a blob for each scan, whose title is the scan's key. LAYERS names each
# blob's digest, by which a client fetches it.
FACTS = "application/vnd.imagegen.facts.v1"
FACT = "application/vnd.imagegen.fact.v1+zstd"  # media type of a scan, compressed JSON
SIGNATURE = "https://sigstore.dev/cosign/sign/v1"  # predicate type of statements by `cosign sign`
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"  # media type of a Sigstore bundle with a signed statement


@dataclass(frozen=True)
class Document:
    """A document about an image. `content` is a JSON object if the kind has a predicate type."""

    kind: Kind
    content: bytes


@dataclass(frozen=True)
class Attached:
    """A document in a registry. `signer` is the project's name of its trusted signer; None without one."""

    document: Document
    digest: str  # of the artifact's manifest
    signer: str | None
