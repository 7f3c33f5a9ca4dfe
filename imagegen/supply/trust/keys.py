"""Keys that sign and verify, and which signatures a project trusts.

Sources: RFC 5958 and RFC 7468 (PKCS#8 in PEM); FIPS 186-5 and RFC 6979 (deterministic ECDSA: the same bytes get the
same signature, so that signing again gives no other artifact); secure-systems-lab's `encrypted` format, in which cosign
keeps its keys: scrypt (RFC 7914) derives from the password the key of a NaCl secretbox around PKCS#8.

`cryptography` and PyNaCl are imported where they are used: most commands sign nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagegen.core import data
from imagegen.core.errors import ImagegenError, TrustError, TrustErrors
from imagegen.core.progress import Progress
from imagegen.supply.trust.project import Key
from imagegen.supply.trust.statement import UnreadableError, parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from typing import Protocol

from imagegen.core.errors import UntrustedSignerError
from imagegen.supply.trust import statement as statements
from imagegen.supply.trust.keyless import Identities
from imagegen.supply.trust.project import FILE, Project
from imagegen.supply.trust.statement import Bundle, InTotoStatement

CURVE = "secp256r1"  # P-256, which cosign makes, too
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,64})-----\s(?:[^-]|-(?!-))*(?<=\s)-----END \1-----")
_COSIGN = (b"ENCRYPTED SIGSTORE PRIVATE KEY", b"ENCRYPTED COSIGN PRIVATE KEY")  # its name before 2.0
_MAX_SCRYPT = 256 << 20  # bytes that the password may cost; cosign's own parameters take 64 MiB
_MAX_ROUNDS = 16
_MAKE = "make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` or `cosign generate-key-pair`"


class KeySigner:
    """Signs statements with a private key. `name` is the key's file, for messages; `hint` as a PublicKey has it."""

    def __init__(self, name: str, private: EllipticCurvePrivateKey) -> None:
        self.name = name
        self._private = private
        self.hint = _hint(private.public_key())
        self._material = {"publicKey": {"hint": self.hint}}

    def sign(self, statement: bytes) -> bytes:
        """Return a bundle with the signed statement; equal bytes for equal statements."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        message = statements.pae(statements.PAYLOAD_TYPE, statement)
        return statements.write_bundle(
            statement, self._private.sign(message, ECDSA(SHA256(), deterministic_signing=True)), self._material
        )


@dataclass(frozen=True)
class PublicKey:
    """A public key that the project trusts, by the project's name for it. `hint` is its name in bundles."""

    name: str
    hint: str
    key: EllipticCurvePublicKey

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature of these bytes is this key's."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            self.key.verify(signature, message, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


def signer(path: Path, password: str | None, progress: Progress) -> KeySigner:
    """Return the signer with the private key in the file `path`; `password` decrypts it.

    Raises TrustError, which never quotes the file: it cannot be read or opened, or is no private key on P-256.
    """
    pem = _content(path, "signing key", f"name another with --key, or {_MAKE}")
    if path.stat().st_mode & stat.S_IROTH:
        progress.say(f"warning: every user of this machine can read the signing key {path}: chmod 600 {path}")
    _require_one(pem, b"PRIVATE KEY-----", "the signing key cannot be used", path)
    blocks = {found[1]: found[0] for found in _BLOCK.finditer(pem)}
    for label, block in blocks.items():
        if label in _COSIGN:
            return KeySigner(path.name, _of_cosign(block, password, path))
        if label.endswith(b"PRIVATE KEY"):
            return KeySigner(path.name, _of_pem(block, password, path))
    why = "it holds a public key alone" if b"PUBLIC KEY" in blocks else "it holds no private key in PEM"
    raise _unusable(path, why)


def public_keys(keys: Sequence[Key]) -> tuple[PublicKey, ...]:
    """Return the public keys that a project names. Raises TrustErrors for those that cannot be read or used."""
    had: list[PublicKey] = []
    errors: list[ImagegenError] = []
    for key in keys:
        try:
            found = _public(key)
            had.append(PublicKey(key.name, _hint(found), found))
        except TrustError as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else TrustErrors(errors)
    return tuple(had)


def _of_pem(pem: bytes, password: str | None, path: Path) -> EllipticCurvePrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    locked = b"ENCRYPTED" in pem
    if locked and password is None:
        raise _unopened(path, "a password locks it, and none is given")
    try:
        found = load_pem_private_key(pem, password.encode() if locked and password is not None else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # their messages may quote the file
        if locked:
            raise _unopened(path, "the password is not the one that locks it, or the file is damaged") from None
        raise _unusable(path, "the file is damaged") from error
    return _private(found, path)


def _of_cosign(pem: bytes, password: str | None, path: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.serialization import load_der_private_key
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    if password is None:
        raise _unopened(path, "a password locks it, and none is given")
    try:
        box, nonce, locked = _box(b"".join(pem.splitlines()[1:-1]), password)
    except (UnreadableError, binascii.Error, KeyError, TypeError, ValueError) as error:
        why = f"it is not as cosign writes it: {error}"
        raise _unusable(path, why) from None
    try:
        opened = SecretBox(box).decrypt(locked, nonce)
    except (CryptoError, ValueError):
        raise _unopened(path, "the password is not the one that locks it, or the file is damaged") from None
    try:
        found = load_der_private_key(opened, None)
    except (ValueError, TypeError):
        raise _unusable(path, "what the password opens is no private key") from None
    return _private(found, path)


def _box(body: bytes, password: str) -> tuple[bytes, bytes, bytes]:
    """Return the key that is derived from the password, the nonce, and the encrypted private key."""
    document = parse(base64.b64decode(body, validate=True))
    kdf, cipher = document["kdf"], document["cipher"]
    if (kdf["name"], cipher["name"]) != ("scrypt", "nacl/secretbox"):
        raise UnreadableError("it is locked in another way than with scrypt and nacl/secretbox")
    cost, block, rounds = (kdf["params"][name] for name in ("N", "r", "p"))
    if not all(type(each) is int and each > 0 for each in (cost, block, rounds)):
        raise UnreadableError("scrypt's parameters are no positive numbers")
    memory = 128 * block * (cost + rounds + 2)  # RFC 7914, with what OpenSSL counts besides
    if memory > _MAX_SCRYPT or rounds > _MAX_ROUNDS:
        raise UnreadableError("scrypt's parameters would cost more memory or time than any key is worth")
    salt, nonce, text = (
        base64.b64decode(each, validate=True) for each in (kdf["salt"], cipher["nonce"], document["ciphertext"])
    )
    key = hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block, p=rounds, dklen=32, maxmem=memory + (1 << 20))
    return key, nonce, text


def _private(found: Any, path: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    if isinstance(found, EllipticCurvePrivateKey) and found.curve.name == CURVE:
        return found
    raise _unusable(path, _kind(found))


def _public(key: Key) -> EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    what = f"the trusted key {key.name!r} cannot be used"
    make = "`openssl pkey -in PRIVATE -pubout` or `cosign public-key --key PRIVATE` writes it"
    pem = _content(key.file, f"trusted key {key.name!r}", f"correct publish.yaml, or put the public key there: {make}")
    if b"PRIVATE KEY-----" in pem:
        why = "it is a private key: every reader of the project could sign with it"
        raise TrustError(what, where=str(key.file), why=why, fix=f"sign with a new key, and put its public one: {make}")
    _require_one(pem, b"PUBLIC KEY-----", what, key.file)
    try:
        found = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TrustError(what, where=str(key.file), why="it holds no public key in PEM", fix=make) from error
    if isinstance(found, EllipticCurvePublicKey) and found.curve.name == CURVE:
        return found
    raise TrustError(what, where=str(key.file), why=_kind(found), fix=_MAKE)


def _content(path: Path, what: str, fix: str) -> bytes:
    try:
        return data.read(path)
    except OSError as error:
        raise TrustError(
            f"the {what} cannot be read", code="trust-key-unreadable", where=str(path), why=error.strerror, fix=fix
        ) from error


def _require_one(pem: bytes, label: bytes, what: str, path: Path) -> None:
    """Raise TrustError, `what` its sentence, where the file holds several keys of a kind: one of them would be used."""
    if len(re.findall(rb"-----BEGIN [A-Z0-9 ]*" + label, pem)) > 1:
        why, fix = "it holds more than one key, and one alone would be used", "put each key into a file of its own"
        raise TrustError(what, where=str(path), why=why, fix=fix)


def _unusable(path: Path, why: str) -> TrustError:
    return TrustError("the signing key cannot be used", code="trust-key-unusable", where=str(path), why=why, fix=_MAKE)


def _unopened(path: Path, why: str) -> TrustError:
    return TrustError(
        "the signing key cannot be opened",
        code="trust-key-unusable",
        where=str(path),
        why=why,
        fix="give its password in COSIGN_PASSWORD",
    )


def _kind(found: Any) -> str:
    """Return the kind of a key that is not on P-256."""
    curve = getattr(getattr(found, "curve", None), "name", None)
    kind = f"on the curve {curve}" if curve else type(found).__name__.strip("_").removesuffix("Key")
    return f"it is a key {kind}, not one on P-256" if curve else f"it is of the kind {kind}, not ECDSA on P-256"


def _hint(key: EllipticCurvePublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return statements.encoded(
        hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    )


# Signers, and which signatures a project trusts.


class Signer(Protocol):
    """A signer of statements: a key or an identity. `name` is its name in messages."""

    name: str

    def sign(self, statement: bytes) -> bytes:
        """Return a bundle with the statement and its signature. Raises TrustError."""


class Trust:
    """The keys and identities that a project trusts. Raises TrustError where a key cannot be read or used.

    `has_signers`: the project names a key or an identity.
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
        named = [f"the key {key.name}" for key in self._project.keys]
        named += [f"the identity {identity.name}" for identity in self._project.identities]
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
        found = statements.read_bundle(bundle)
        if found.hint is None:
            name, said = self._identities.signer_of(bundle)
            return name, statements.read(said)
        return self._by_key(found), statements.read(found.payload)

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
