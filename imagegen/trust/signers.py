"""Signers, and the signatures that a project trusts."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from imagegen.core.errors import TrustError, UntrustedSignerError
from imagegen.trust import statement as statements
from imagegen.trust.bundle import Bundle, read_bundle
from imagegen.trust.identities import Identities
from imagegen.trust.keys import KeySigner, public_keys
from imagegen.trust.project import FILE, Project
from imagegen.trust.statement import InTotoStatement


class Signer(Protocol):
    """A signer of statements: a key or an identity. `name` is its name in messages."""

    name: str

    def sign(self, statement: bytes) -> bytes:
        """Return a bundle with the statement and its signature. Raises TrustError."""


class Trust:
    """The keys and identities that a project trusts. Raises TrustError if a key cannot be read or used.

    `has_signers` is true if the project names a key or an identity.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._keys = public_keys(project.keys)
        self._identities = Identities(project.identities)
        self.has_signers = bool(project.keys or project.identities)

    def require(self, signer: KeySigner, file: Path) -> None:
        """Raise TrustError if the project names signers and the key in `file` is not one of them."""
        if not self.has_signers or any(key.hint == signer.hint for key in self._keys):
            return
        signers = [f"the key {key.name}" for key in self._project.keys]
        signers += [f"the identity {identity.name}" for identity in self._project.identities]
        public = f"`openssl pkey -in {file} -pubout` or `cosign public-key --key {file}`"
        raise TrustError(
            f"{FILE} does not name this signing key, so verification would reject its signatures",
            code="trust-signer-untrusted",
            where=str(file),
            why=f"{FILE} names {', '.join(signers)}, and this is another key",
            fix=f"sign with a key that {FILE} names, or add this key's public key under `keys`: {public} writes it",
        )

    def signer_of(self, bundle: bytes) -> tuple[str, InTotoStatement]:
        """Return the project's name of the signer, and the signed statement.

        Raises UntrustedSignerError if publish.yaml does not name the signer, and TrustError if the bundle is malformed
        or its signature is invalid.
        """
        parsed = read_bundle(bundle)
        if parsed.hint is None:
            name, payload = self._identities.signer_of(bundle)
            return name, statements.read(payload)
        return self._signing_key(parsed), statements.read(parsed.payload)

    def _signing_key(self, bundle: Bundle) -> str:
        """Return the name of the key that signed. All keys are tried, because the hint is only a claim."""
        for key in self._keys:
            if key.has_signed(bundle.signed, bundle.signature):
                return key.name
        for key in self._keys:
            if key.hint == bundle.hint:
                why = f"it names the key {key.name!r} as its signer, which did not sign it"
                raise TrustError(
                    "the signature is wrong",
                    code="trust-signature-invalid",
                    why=why,
                    fix="do not trust the image that it is attached to",
                )
        raise UntrustedSignerError(
            "it is signed with a key that this project does not name", why=f"its hint is {bundle.hint}"
        )
