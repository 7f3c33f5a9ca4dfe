"""The documents about an image that a registry keeps as referrers of the image's manifest.

Sources: OCI image-spec v1.1, manifest.md (subject, artifactType); in-toto attestation framework, Statement v1 and the
predicate types named below; CycloneDX 1.6. A document is attached plainly, so that any tool finds it; with a signer, a
signed in-toto statement about the image, with the document as its predicate, is attached too.
"""

from __future__ import annotations

from dataclasses import dataclass

from imagegen import REPOSITORY


@dataclass(frozen=True)
class Kind:
    """`name` is what people call it, `media_type` the document's, and its artifact's type.

    `predicate` is the in-toto predicate type under which the document (a JSON object) is signed; None: it is covered
    by another document, which names its digest.
    """

    name: str
    media_type: str
    predicate: str | None


_TYPES = f"{REPOSITORY}/attestations"

LOCK = Kind("lock", "application/vnd.imagegen.lock.v1+toml", None)
# What a lock gave, in the form of layers/describe.py: the layers from the bottom up with their keys and descriptors, as
# gzip too where they were published so, digests of the LOCK document and the image, and of all facts by their keys. Who
# trusts its signer need not make these layers.
LAYERS = Kind("layers", "application/vnd.imagegen.layers.v1+json", f"{_TYPES}/layers/v1")
SBOM = Kind("sbom", "application/vnd.cyclonedx+json", "https://cyclonedx.org/bom")
PROVENANCE = Kind("provenance", "application/vnd.imagegen.provenance.v1+json", "https://slsa.dev/provenance/v1")
SMOKE = Kind("smoke", "application/vnd.imagegen.smoke.v1+json", "https://in-toto.io/attestation/test-result/v0.1")
AUDIT = Kind("audit", "application/vnd.imagegen.audit.v1+json", f"{_TYPES}/audit/v1")
# The results of `imagegen test --numerics`, one for each device (smoke/numerics.py).
NUMERICS = Kind("numerics", "application/vnd.imagegen.numerics.v1+json", f"{_TYPES}/numerics/v1")

KINDS = {kind.name: kind for kind in (LOCK, LAYERS, SBOM, PROVENANCE, SMOKE, AUDIT, NUMERICS)}

# What an audit knows of each wheel and of the base, so that an empty store need not fetch the wheel to learn it: no
# document, but an artifact that keeps a blob for each, titled with its key. LAYERS names each, and who wants one asks
# for it by that digest.
FACTS = "application/vnd.imagegen.facts.v1"
FACT = "application/vnd.imagegen.fact.v1+zstd"  # media type of one: JSON, compressed

SIGNATURE = "https://sigstore.dev/cosign/sign/v1"  # predicate type of what `cosign sign` says: "this is mine"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"  # media type of a signed statement, Sigstore's bundle


@dataclass(frozen=True)
class Document:
    """A document about an image. `content` is a JSON object where the kind has a predicate type."""

    kind: Kind
    content: bytes


@dataclass(frozen=True)
class Attached:
    """A document as a registry has it. `signer` is the project's name of its trusted signer; None without one."""

    document: Document
    digest: str  # of the artifact's manifest
    signer: str | None
