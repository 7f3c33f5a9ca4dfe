"""Keys that sign and verify, and the signatures that a project trusts.

Sources: RFC 5958 and RFC 7468 (PKCS#8 in PEM); FIPS 186-5 and RFC 6979 (deterministic ECDSA, with which equal bytes get
equal signatures, so that signing again gives the same artifact); secure-systems-lab's `encrypted` format of cosign's
keys, in which scrypt (RFC 7914) derives the key of a NaCl secretbox around PKCS#8 from the password.

`cryptography` and PyNaCl are imported by the functions that use them, because most commands do not sign.
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
from imagegen.trust.bundle import PAYLOAD_TYPE, encode_base64, pae, write_bundle
from imagegen.trust.project import Key
from imagegen.trust.strict_json import UnreadableError, parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

CURVE = "secp256r1"  # P-256, as cosign's keys
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,64})-----\s(?:[^-]|-(?!-))*(?<=\s)-----END \1-----")
_COSIGN = (b"ENCRYPTED SIGSTORE PRIVATE KEY", b"ENCRYPTED COSIGN PRIVATE KEY")  # its name before 2.0
_MAX_SCRYPT = 256 << 20  # bytes of memory for the password; cosign's parameters take 64 MiB
_MAX_ROUNDS = 16
_MAKE = "make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` or `cosign generate-key-pair`"


class KeySigner:
    """Signs statements with a private key. `name` is the key's file, for messages; `hint` equals its PublicKey's."""

    def __init__(self, name: str, private: EllipticCurvePrivateKey) -> None:
        self.name = name
        self._private = private
        self.hint = _hint(private.public_key())
        self._material = {"publicKey": {"hint": self.hint}}

    def sign(self, statement: bytes) -> bytes:
        """Return a bundle with the signed statement; equal bytes for equal statements."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        message = pae(PAYLOAD_TYPE, statement)
        return write_bundle(
            statement, self._private.sign(message, ECDSA(SHA256(), deterministic_signing=True)), self._material
        )


@dataclass(frozen=True)
class PublicKey:
    """A public key that the project trusts. `name` is its name in publish.yaml, `hint` its name in bundles."""

    name: str
    hint: str
    key: EllipticCurvePublicKey

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether this key made the signature of these bytes."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            self.key.verify(signature, message, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


def read_signer(path: Path, password: str | None, progress: Progress) -> KeySigner:
    """Return the signer with the private key in the file `path`; `password` decrypts it.

    Raises TrustError, which never quotes the file, if it cannot be read or decrypted, or is not a private key on P-256.
    """
    pem = _content(path, "signing key", f"name another with --key, or {_MAKE}")
    if path.stat().st_mode & stat.S_IROTH:
        progress.say(f"warning: every user of this machine can read the signing key {path}: chmod 600 {path}")
    _require_one(pem, b"PRIVATE KEY-----", "the signing key cannot be used", path)
    blocks = {match[1]: match[0] for match in _BLOCK.finditer(pem)}
    for label, block in blocks.items():
        if label in _COSIGN:
            return KeySigner(path.name, _read_cosign(block, password, path))
        if label.endswith(b"PRIVATE KEY"):
            return KeySigner(path.name, _read_pem(block, password, path))
    why = "it has only a public key" if b"PUBLIC KEY" in blocks else "it has no private key in PEM"
    raise _unusable(path, why)


def public_keys(keys: Sequence[Key]) -> tuple[PublicKey, ...]:
    """Return the public keys that a project names. Raises TrustErrors for keys that cannot be read or used."""
    loaded: list[PublicKey] = []
    errors: list[ImagegenError] = []
    for key in keys:
        try:
            public_key = _read_public_key(key)
            loaded.append(PublicKey(key.name, _hint(public_key), public_key))
        except TrustError as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else TrustErrors(errors)
    return tuple(loaded)


def _read_pem(pem: bytes, password: str | None, path: Path) -> EllipticCurvePrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    locked = b"ENCRYPTED" in pem
    if locked and password is None:
        raise _not_decrypted(path, "it is encrypted, and no password is given")
    try:
        private_key = load_pem_private_key(pem, password.encode() if locked and password is not None else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # their messages may quote the file
        if locked:
            raise _not_decrypted(path, "the password is wrong, or the file is damaged") from None
        raise _unusable(path, "the file is damaged") from error
    return _require_p256(private_key, path)


def _read_cosign(pem: bytes, password: str | None, path: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.serialization import load_der_private_key
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    if password is None:
        raise _not_decrypted(path, "it is encrypted, and no password is given")
    try:
        box, nonce, locked = _box(b"".join(pem.splitlines()[1:-1]), password)
    except (UnreadableError, binascii.Error, KeyError, TypeError, ValueError) as error:
        why = f"it is not in cosign's format: {error}"
        raise _unusable(path, why) from None
    try:
        opened = SecretBox(box).decrypt(locked, nonce)
    except (CryptoError, ValueError):
        raise _not_decrypted(path, "the password is wrong, or the file is damaged") from None
    try:
        private_key = load_der_private_key(opened, None)
    except (ValueError, TypeError):
        raise _unusable(path, "its decrypted content is not a private key") from None
    return _require_p256(private_key, path)


def _box(body: bytes, password: str) -> tuple[bytes, bytes, bytes]:
    """Return the key that is derived from the password, the nonce, and the encrypted private key."""
    document = parse(base64.b64decode(body, validate=True))
    kdf, cipher = document["kdf"], document["cipher"]
    if (kdf["name"], cipher["name"]) != ("scrypt", "nacl/secretbox"):
        raise UnreadableError("it is not encrypted with scrypt and nacl/secretbox")
    cost, block, rounds = (kdf["params"][name] for name in ("N", "r", "p"))
    if not all(type(number) is int and number > 0 for number in (cost, block, rounds)):
        raise UnreadableError("scrypt's parameters are not positive numbers")
    memory = 128 * block * (cost + rounds + 2)  # RFC 7914, with OpenSSL's overhead
    if memory > _MAX_SCRYPT or rounds > _MAX_ROUNDS:
        raise UnreadableError("scrypt's parameters need too much memory or time")
    salt, nonce, text = (
        base64.b64decode(field, validate=True) for field in (kdf["salt"], cipher["nonce"], document["ciphertext"])
    )
    key = hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block, p=rounds, dklen=32, maxmem=memory + (1 << 20))
    return key, nonce, text


def _require_p256(private_key: Any, path: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    if isinstance(private_key, EllipticCurvePrivateKey) and private_key.curve.name == CURVE:
        return private_key
    raise _unusable(path, _kind(private_key))


def _read_public_key(key: Key) -> EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    summary = f"the trusted key {key.name!r} cannot be used"
    make = "`openssl pkey -in PRIVATE -pubout` or `cosign public-key --key PRIVATE` writes it"
    pem = _content(
        key.file, f"trusted key {key.name!r}", f"correct publish.yaml, or write the public key to the file: {make}"
    )
    if b"PRIVATE KEY-----" in pem:
        why = "it is a private key, with which every reader of the project could sign"
        raise TrustError(
            summary, where=str(key.file), why=why, fix=f"sign with a new key, and name its public key: {make}"
        )
    _require_one(pem, b"PUBLIC KEY-----", summary, key.file)
    try:
        public_key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TrustError(summary, where=str(key.file), why="it has no public key in PEM", fix=make) from error
    if isinstance(public_key, EllipticCurvePublicKey) and public_key.curve.name == CURVE:
        return public_key
    raise TrustError(summary, where=str(key.file), why=_kind(public_key), fix=_MAKE)


def _content(path: Path, noun: str, fix: str) -> bytes:
    try:
        return data.read(path)
    except OSError as error:
        raise TrustError(
            f"the {noun} cannot be read", code="trust-key-unreadable", where=str(path), why=error.strerror, fix=fix
        ) from error


def _require_one(pem: bytes, label: bytes, summary: str, path: Path) -> None:
    """Raise TrustError with `summary` if the file has several keys of a kind, because only one would be used."""
    if len(re.findall(rb"-----BEGIN [A-Z0-9 ]*" + label, pem)) > 1:
        why, fix = "it has more than one key, and only one would be used", "write each key to a separate file"
        raise TrustError(summary, where=str(path), why=why, fix=fix)


def _unusable(path: Path, why: str) -> TrustError:
    return TrustError("the signing key cannot be used", code="trust-key-unusable", where=str(path), why=why, fix=_MAKE)


def _not_decrypted(path: Path, why: str) -> TrustError:
    return TrustError(
        "the signing key cannot be opened",
        code="trust-key-unusable",
        where=str(path),
        why=why,
        fix="set its password in COSIGN_PASSWORD",
    )


def _kind(key: Any) -> str:
    """Return the kind of a key that is not on P-256."""
    curve = getattr(getattr(key, "curve", None), "name", None)
    kind = f"on the curve {curve}" if curve else type(key).__name__.strip("_").removesuffix("Key")
    return f"it is a key {kind}, not one on P-256" if curve else f"it is of the kind {kind}, not ECDSA on P-256"


def _hint(key: EllipticCurvePublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return encode_base64(hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest())
