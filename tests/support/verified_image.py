"""An image in a registry with all attestations, and its verification."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from imagegen import lock as locks
from imagegen.app import comparison
from imagegen.audit.report import AuditReport
from imagegen.compare import references
from imagegen.compare.verdict import ImageVerdict
from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base as bases
from imagegen.image.layers import Layer
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.layers_document import LayersDocument, dump
from imagegen.lock.model import Lock
from imagegen.oci.documents import ZSTD_TYPE
from imagegen.trust import statement
from imagegen.trust.documents import (
    AUDIT,
    BUNDLE,
    FACTS,
    LAYERS,
    LOCK,
    NUMERICS,
    PROVENANCE,
    SBOM,
    SIGNATURE,
    SMOKE,
    Kind,
)
from imagegen.trust.keys import KeySigner
from imagegen.trust.licences import KnownLicences
from imagegen.trust.project import Key, Project
from imagegen.trust.provenance import Builder, provenance
from imagegen.trust.sbom import sbom
from tests.support.matrix_samples import shipped_matrix
from tests.support.published_image import Published, lock_document, made
from tests.support.registry_server import StandIn, digest_of
from tests.support.tiny_lock import LOCK as TINY

CELL = "blackwell-vllm-cu130-py311"
ARM64 = f"{CELL}-linux-arm64"
NAMES = {
    LOCK: "lock",
    LAYERS: "layers' list",
    SBOM: "SBOM",
    PROVENANCE: "provenance",
    SMOKE: "smoke report",
    AUDIT: "audit",
    NUMERICS: "numerical results",
}


def signer(path: Path | None = None) -> KeySigner:
    """A new key; its public half goes into a file."""
    private = ec.generate_private_key(ec.SECP256R1())
    if path:
        path.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return KeySigner("release", private)


@dataclass
class World:
    published: Published
    client: Client
    settings: Settings
    store: Store
    project: Project
    signer: KeySigner

    def verify(self, reference: str | None = None, *, keys: bool = True, layers: bool = True) -> ImageVerdict:
        text = reference or self.published.reference
        project = self.project if keys else Project()
        with Client(self.settings) as client:
            source, requested = references.locate(text, self.store, client, self.settings)
            found = comparison.verify_image(text, source, requested, client, Quiet(), project, layers=layers)
        return found.verdict

    def write_publish(self, directory: Path, *, keys: bool = True) -> None:
        """Write a publish.yaml that names the signer's key, a file of the same directory, or no key."""
        (directory / "release.pub").write_bytes(Path(self.project.keys[0].file).read_bytes())
        (directory / "publish.yaml").write_text(f"publish: {{keys: {'{release: release.pub}' if keys else '{}'}}}")

    def wrong(self, reference: str | None = None, *, keys: bool = True) -> set[str]:
        return {step.name for step in self.verify(reference, keys=keys).wrong}

    def here(self, *, keys: bool = True) -> set[str]:
        """Return the result of `wrong` for a local copy of the registry's content, which is faster than requests."""
        with TemporaryDirectory() as folder:
            return self.wrong(self.published.layout(Path(folder)), keys=keys)

    def attach(self, kind: Kind, content: bytes, *, by: KeySigner | None = None) -> None:
        """A document as publish attaches it, with the signed statement where the kind has a predicate."""
        name = NAMES[kind]
        self.published.attach(name, kind.media_type, content)
        if by and kind.predicate:
            self.sign(f"attestation of the {name}", kind.predicate, content, by)

    def sign(self, name: str, predicate: str, content: bytes, by: KeySigner, digest: str | None = None) -> None:
        bundle = by.sign(statement.write(digest or self.published.image.digest, predicate, content))
        annotations = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": predicate}
        self.published.attach(name, BUNDLE, bundle, annotations)


def documents(lock: Lock, digest: str) -> dict[Kind, bytes]:
    """Return the documents that publish attaches to an image, in their form in the registry."""
    text = lock_document(lock)
    rows = lock.record.layers if lock.record else ()
    layers = tuple(Layer(ZSTD_TYPE, row.digest, row.size, row.diff_id, row.name, row.key) for row in rows)
    inputs, base = locks.inputs_hash(lock), bases.key(lock.base)
    listed = LayersDocument(
        inputs, digest_of(text), digest, CODEC, base, layers, {key: digest_of(KNOWN[key]) for key in KNOWN}
    )
    tested = {
        "result": "PASSED", "passedTests": ["imports", "versions"], "failedTests": [], "warnedTests": [],
        "imagegen": {"image": digest, "suite": "sha256:" + "5" * 64, "gpu": False, "report": {"passed": True}},
    }  # fmt: skip
    return {
        LOCK: text,
        LAYERS: dump(listed),
        SBOM: sbom(lock, digest, KnownLicences()),
        PROVENANCE: provenance(
            lock, text, None, Builder("https://github.com/imagegen/imagegen/attestations/builder/local")
        ),
        SMOKE: json.dumps(tested).encode(),
        AUDIT: json.dumps(REPORT.as_dict() | {"subject": lock.cell}).encode(),
        NUMERICS: json.dumps({"image": digest, "results": {"H200": MEASURED}}).encode(),
    }


KNOWN = {f"sha256:{digit * 64}": f"what is known of {digit}".encode() for digit in "12"}
MEASURED = {
    "format": 1, "device": {"name": "H200", "driver": None}, "versions": {"torch": "2.11.0"},
    "operations": [{"operation": "matmul", "implementation": "torch", "dtype": "float32", "sha256": "", "samples": []}],
}  # fmt: skip
REPORT = AuditReport("", (), (), {}, packages=2, elf_files=3)


def settings(tmp_path: Path) -> Settings:
    env = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "PATH": os.environ["PATH"]}
    return Settings.from_environment(env)


def publish(
    registry: StandIn,
    unrecorded: Lock,
    tmp_path: Path,
    repository: str = "acme/rl/tiny",
    *,
    signed_by: World | None = None,
) -> World:
    """Publish the lock's image with all that is attached, signed with a new key or with that of another world."""
    store = Store(tmp_path / "store")
    lock, built = made(unrecorded, store)
    published = Published(registry, lock, built, store, repository)
    key = signed_by.signer if signed_by else signer(tmp_path / "key.pem")
    here = settings(tmp_path)
    client = Client(here, attempts=1)
    project = signed_by.project if signed_by else Project(keys=(Key("release", tmp_path / "key.pem"),))
    world = World(published, client, here, store, project, key)
    for kind, content in documents(lock, built.digest).items():
        world.attach(kind, content, by=key)
    world.published.attach_all("facts", FACTS, KNOWN)
    world.sign("signature", SIGNATURE, b"{}", key)
    return world


def lock_of(cell: str) -> Lock:
    """Return a small lock of a shipped cell."""
    (found,) = shipped_matrix().select(cell)
    return replace(TINY, cell=found.id, image=found.image, axes=dict(found.axes), record=None)
