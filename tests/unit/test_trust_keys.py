"""Keys: files that open, files that do not, and trusted signatures."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from nacl.secret import SecretBox

from imagegen.core.errors import TrustError, UntrustedSignerError
from imagegen.core.progress import Quiet
from imagegen.trust import bundle, keys, statement
from imagegen.trust.documents import SIGNATURE
from imagegen.trust.project import Identity, Key, Project
from imagegen.trust.signers import Trust
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.signing_keys import KEY, PUBLIC

IMAGE = "sha256:" + "a1" * 32
SAID = statement.write(IMAGE, SIGNATURE)
PASSWORD = "correct horse"  # of the files below


def lines(label: str, body: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(body).decode()}-----END {label}-----\n"


def locked(password: str = PASSWORD, **changes: Any) -> str:
    """KEY as cosign keeps it, at a smaller cost; a real one of cosign's is in tests/integration/test_trust_cosign.py.

    `changes` are other parameters: kdf__name, params__N.
    """
    salt, nonce = b"s" * 32, b"n" * 24
    key = hashlib.scrypt(password.encode(), salt=salt, n=1024, r=8, p=1, dklen=32)
    text = SecretBox(key).encrypt(KEY.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), nonce)
    document: dict[str, Any] = {
        "kdf": {"name": "scrypt", "params": {"N": 1024, "r": 8, "p": 1}, "salt": bundle.encode_base64(salt)},
        "cipher": {"name": "nacl/secretbox", "nonce": bundle.encode_base64(nonce)},
        "ciphertext": bundle.encode_base64(text.ciphertext),
    }
    for name, value in changes.items():
        table, _, last = name.partition("__")
        place = document["kdf"]["params"] if table == "params" else document[table]
        place[last] = value
    return lines("ENCRYPTED SIGSTORE PRIVATE KEY", json.dumps(document).encode())


COSIGN = locked()


@dataclass
class Recorder(Quiet):
    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)


def made(path: Path, key: Any = None, password: str | None = None, style: PrivateFormat = PrivateFormat.PKCS8) -> Path:
    """The private key in `path`, its public one beside it with the suffix .pub."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    locked = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, style, locked))
    path.chmod(0o600)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


def trusting(**named: Path) -> Trust:
    return Trust(Project(keys=tuple(Key(name, path.with_suffix(".pub")) for name, path in named.items())))


def test_what_a_key_signs_is_trusted_where_it_is_named(tmp_path: Path) -> None:
    ours, theirs = made(tmp_path / "ours.pem"), made(tmp_path / "theirs.pem")
    signer = keys.read_signer(ours, None, Quiet())
    signed = signer.sign(SAID)
    assert signer.name == "ours.pem"
    assert signer.sign(SAID) == signed
    assert trusting(nightly=theirs, release=ours).signer_of(signed) == ("release", statement.read(SAID))
    with raises("trust-untrusted-signer"):
        trusting(nightly=theirs).signer_of(signed)
    with pytest.raises(UntrustedSignerError):
        Trust(Project()).signer_of(signed)


@pytest.mark.parametrize("password", [None, PASSWORD])
@pytest.mark.parametrize("style", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_keys_of_openssl(tmp_path: Path, password: str | None, style: PrivateFormat) -> None:
    path = made(tmp_path / "key.pem", password=password, style=style)
    # `openssl ecparam -genkey` writes the curve before the key.
    path.write_text("-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + path.read_text())
    # A password that is set for another key does no harm to one without.
    signed = keys.read_signer(path, PASSWORD, Quiet()).sign(SAID)
    assert trusting(release=path).signer_of(signed)[0] == "release"


def test_a_key_of_cosign(tmp_path: Path) -> None:
    path = tmp_path / "cosign.key"
    path.write_text(COSIGN)
    path.with_suffix(".pub").write_text(PUBLIC)
    trust = trusting(release=path)
    assert trust.signer_of(keys.read_signer(path, PASSWORD, Quiet()).sign(SAID))[0] == "release"
    path.write_text(COSIGN.replace("SIGSTORE", "COSIGN"))  # as cosign 1 named it
    assert trust.signer_of(keys.read_signer(path, PASSWORD, Quiet()).sign(SAID))[0] == "release"


def test_a_key_that_everybody_can_read_is_reported(tmp_path: Path, golden: Golden) -> None:
    path, recorder = made(tmp_path / "key.pem"), Recorder()
    keys.read_signer(path, None, recorder)
    assert recorder.said == []
    path.chmod(0o644)
    keys.read_signer(path, None, recorder)
    golden.check(recorder.said)


@pytest.mark.parametrize(
    ("content", "password", "what", "why"),
    [
        ("", None, "cannot be used", "it has no private key in PEM"),
        (PUBLIC, None, "cannot be used", "it has only a public key"),
        (lines("PRIVATE KEY", b"abc"), None, "cannot be used", "file is damaged"),
        (lines("PRIVATE KEY", b"abc")[:40], None, "cannot be used", "it has no private key in PEM"),
        (COSIGN, None, "cannot be opened", "it is encrypted, and no password is given"),
        (COSIGN, "wrong", "cannot be opened", "the password is wrong"),
        (COSIGN, "", "cannot be opened", "the password is wrong"),
        (locked(kdf__name="pbkdf2"), "x", "cannot be used", "it is not encrypted with scrypt"),
        (locked(params__N=1 << 30), "x", "cannot be used", "need too much memory or time"),
        (locked(params__p=1000), "x", "cannot be used", "need too much memory or time"),
        (locked(params__N=0), "x", "cannot be used", "scrypt's parameters are not positive numbers"),
        (locked(params__N="1024"), "x", "cannot be used", "scrypt's parameters are not positive numbers"),
        (locked(params__N=1023), "x", "cannot be used", "it is not in cosign's format"),
        (locked(cipher__nonce="AAAA"), "x", "cannot be opened", "the password is wrong"),
        (locked(cipher__nonce="é"), "x", "cannot be used", "it is not in cosign's format"),
        (locked(kdf__salt=1), "x", "cannot be used", "it is not in cosign's format"),
        (COSIGN.replace("eyJ", "!yJ"), "x", "cannot be used", "it is not in cosign's format"),
    ],
)
def test_files_that_hold_no_key_to_sign_with(
    tmp_path: Path, content: str, password: str | None, what: str, why: str
) -> None:
    path = tmp_path / "key.pem"
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(TrustError) as caught:
        keys.read_signer(path, password, Quiet())
    error = caught.value
    assert error.what == f"the signing key {what}"
    assert why in str(error.why)
    assert error.where == str(path)
    assert error.fix


def test_a_file_of_two_keys_is_refused(tmp_path: Path, golden: Golden) -> None:
    private, public = tmp_path / "two.pem", tmp_path / "two.pub"
    one, other = (made(tmp_path / f"{number}.pem") for number in "12")
    private.write_bytes(one.read_bytes() + other.read_bytes())
    private.chmod(0o600)
    public.write_bytes(b"".join(path.with_suffix(".pub").read_bytes() for path in (one, other)))
    for use in (lambda: keys.read_signer(private, None, Quiet()), lambda: trusting(release=public)):
        with pytest.raises(TrustError) as caught:
            use()
        assert caught.value.where in (str(private), str(public))
        golden.check(caught.value)


def test_wrong_passwords_wrong_kinds_and_no_file(tmp_path: Path, golden: Golden) -> None:
    path = made(tmp_path / "key.pem", password=PASSWORD)
    for password, why in ((None, "no password is given"), ("wrong", "the password is wrong")):
        with pytest.raises(TrustError) as caught:
            keys.read_signer(path, password, Quiet())
        assert why in str(caught.value.why)
        assert "COSIGN_PASSWORD" in str(caught.value.fix)
    kinds = {
        "it is a key on the curve secp384r1, not one on P-256": ec.generate_private_key(ec.SECP384R1()),
        "it is of the kind Ed25519Private, not ECDSA on P-256": ed25519.Ed25519PrivateKey.generate(),
        "it is of the kind RSAPrivate, not ECDSA on P-256": rsa.generate_private_key(65537, 1024),
    }
    for why, key in kinds.items():
        with pytest.raises(TrustError) as caught:
            keys.read_signer(made(path, key), None, Quiet())
        assert caught.value.why == why
        with pytest.raises(TrustError) as caught:
            trusting(release=path)
        assert caught.value.why == why.replace("Private", "Public")
    with pytest.raises(TrustError) as caught:
        keys.read_signer(tmp_path / "absent.pem", None, Quiet())
    golden.check(caught.value)
    assert "openssl genpkey" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("nothing", "it has no public key in PEM"),
        (COSIGN, "it is a private key, with which every reader of the project could sign"),
        (None, "No such file or directory"),
    ],
)
def test_files_that_hold_no_key_to_trust(tmp_path: Path, content: str | None, why: str) -> None:
    path = tmp_path / "release.pub"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TrustError) as caught:
        Trust(Project(keys=(Key("release", path),)))
    assert caught.value.where == str(path)
    assert caught.value.why == why
    assert "'release'" in caught.value.what
    assert caught.value.fix


@pytest.mark.fault(
    "Trust",
    "the payload of a signature is altered, or the signature is of another type of payload",
    "refused: the key that is named did not sign this",
)
def test_signatures_that_are_not_what_they_say(tmp_path: Path, golden: Golden) -> None:
    ours, theirs = made(tmp_path / "ours.pem"), made(tmp_path / "theirs.pem")
    trust = trusting(release=ours)
    good = bundle.read_bundle(keys.read_signer(ours, None, Quiet()).sign(SAID))
    foreign = bundle.read_bundle(keys.read_signer(theirs, None, Quiet()).sign(SAID))
    other = statement.write("sha256:" + "b2" * 32, SIGNATURE)
    for payload, signature in (
        (other, good.signature),
        (SAID + b" ", good.signature),
        (SAID, foreign.signature),
        (SAID, b""),
        (SAID, good.signature + b"\0"),
    ):
        with raises("trust-signature-invalid") as caught:
            trust.signer_of(bundle.write_bundle(payload, signature, good.material))
        golden.check(str(caught.value.why))
    # Who is named in the hint decides nothing.
    assert trust.signer_of(bundle.write_bundle(SAID, good.signature, foreign.material))[0] == "release"
    # A signature over the payload itself, or over it under another type, is none.
    private = ec.generate_private_key(ec.SECP256R1())
    made(ours, private)
    trust = trusting(release=ours)
    for message in (SAID, bundle.pae("application/json", SAID)):
        signature = private.sign(message, ec.ECDSA(SHA256()))
        with pytest.raises(TrustError):
            trust.signer_of(bundle.write_bundle(SAID, signature, good.material))


def test_what_a_trusted_key_signs_must_be_a_statement(tmp_path: Path) -> None:
    path = made(tmp_path / "key.pem")
    with raises("trust-statement-malformed"):
        trusting(release=path).signer_of(keys.read_signer(path, None, Quiet()).sign(b"{}"))


def test_a_certificate_is_trusted_of_named_identities_only(tmp_path: Path) -> None:
    signed = bundle.write_bundle(SAID, b"x", {"certificate": {"rawBytes": "AAAA"}})
    with pytest.raises(UntrustedSignerError):
        trusting(release=made(tmp_path / "key.pem")).signer_of(signed)
    assert Trust(Project(identities=(Identity("ci", "https://issuer", "subject"),))).has_signers
    assert not Trust(Project()).has_signers


def test_all_unreadable_trusted_keys_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "torn.pub").write_text("?")
    named = tuple(Key(name, tmp_path / f"{name}.pub") for name in ("gone", "torn"))
    with pytest.raises(TrustError) as caught:
        Trust(Project(keys=named))
    said = str(caught.value)
    assert caught.value.exit_code == TrustError.exit_code
    for part in ("the trusted key 'gone' cannot be read", "the trusted key 'torn' cannot be used", "2 errors found"):
        assert part in said
