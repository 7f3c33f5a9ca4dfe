"""Signers, and which signatures a project trusts."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from imagegen.core.errors import TrustError, UntrustedSignerError
from imagegen.supply.trust import bundle as bundles
from imagegen.supply.trust import keys, statement
from imagegen.supply.trust.bundle import Bundle
from imagegen.supply.trust.identity import Identities
from imagegen.supply.trust.keys import KeySigner
from imagegen.supply.trust.project import FILE, Project
from imagegen.supply.trust.statement import InTotoStatement


class Signer(Protocol):
    """`name` is what users call it."""

    name: str

    def sign(self, statement: bytes) -> bytes:
        """A bundle of the statement. Raises TrustError."""


class Trust:
    """The keys and identities of a project. Raises TrustError when one of its keys cannot be had."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._keys = keys.public_keys(project.keys)
        self._identities = Identities(project.identities)
        self.anybody = bool(project.keys or project.identities)

    def require(self, signer: KeySigner, file: Path) -> None:
        """Raise TrustError if the project names signers and the key in `file` is not one of them."""
        if not self.anybody or any(key.hint == signer.hint for key in self._keys):
            return
        named = [f"the key {key.name}" for key in self._project.keys]
        named += [f"the identity {each.name}" for each in self._project.identities]
        public = f"`openssl pkey -in {file} -pubout` or `cosign public-key --key {file}`"
        raise TrustError(
            f"{FILE} does not name this signing key, so verification would reject what it signs",
            code="trust-signer-untrusted",
            where=str(file),
            why=f"{FILE} names {', '.join(named)}, and this is another one",
            fix=f"sign with what {FILE} names, or add this key's public half under `keys`: {public} writes it",
        )

    def signer_of(self, bundle: bytes) -> tuple[str, InTotoStatement]:
        """Return the project's name of the signer, and the signed statement.

        Raises UntrustedSignerError when the signer is not in the trust file, and TrustError when the bundle is
        malformed or its signature does not verify.
        """
        found = bundles.read(bundle)
        if found.hint is None:
            name, said = self._identities.signer_of(bundle)
            return name, statement.read(said)
        return self._by_key(found), statement.read(found.payload)

    def _by_key(self, bundle: Bundle) -> str:
        """The key that signed. The hint is only a claim, so each is tried."""
        for key in self._keys:
            if key.signed(bundle.signed, bundle.signature):
                return key.name
        for key in self._keys:
            if key.hint == bundle.hint:
                why = f"the key {key.name!r} is named as its signer, and did not sign this"
                raise TrustError(
                    "the signature is wrong",
                    code="trust-signature-invalid",
                    why=why,
                    fix="do not trust what it is attached to",
                )
        raise UntrustedSignerError(
            "it is signed with a key that this project does not name", why=f"its hint is {bundle.hint}"
        )
