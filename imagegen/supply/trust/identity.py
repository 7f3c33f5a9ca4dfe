"""Verify keyless signatures: the certificate's identity, offline, from the bundle alone.

Sigstore's specifications: client-spec ("Verification"), Fulcio's oid-info.md (1.3.6.1.4.1.57264.1.1 is the issuer),
protobuf-specs (Bundle v0.3, ClientTrustConfig). The checking is the `sigstore` library's: certificate chain and its
log's timestamp, time of signing inside the certificate's minutes, inclusion in the signatures' log, signature. It is
an extra of imagegen, and imported when a bundle with a certificate is met.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from imagegen.core.errors import TrustError, UntrustedSignerError
from imagegen.core.net.answer import reason_of
from imagegen.supply.trust.project import FILE, Identity
from imagegen.supply.trust.statement import PAYLOAD_TYPE

_ISSUER = "1.3.6.1.4.1.57264.1.1"
_OWNER = "1.3.6.1.4.1.57264.1.16"  # Source Repository Owner URI: of the repository whose run signs
_QUIET = logging.NullHandler()
# The library's errors in terms of their meaning; others are shown in the library's words.
_WORDS = {
    "DSSE: invalid signature": "the statement was altered after it was signed",
    "certificate chain": "its certificate is of no certificate authority that the trust root names",
    "SCT": "its certificate is in no certificate log that the trust root names",
    "invalid log entry": "the log that the trust root names never promised this entry",
    "not enough sources of verified time": "nothing that the trust root names says when it was signed",
    "log entry": "the log's entry is of another signature",
}


class Identities:
    """The identities that may sign without a key. `trust_root` of each is read once; None is Sigstore's public
    instance.
    """

    def __init__(self, identities: Sequence[Identity]) -> None:
        self._identities = identities
        self._roots: dict[Path | None, Any] = {}

    def signer_of(self, bundle: bytes) -> tuple[str, bytes]:
        """Return the signer's name and the statement.

        Raises UntrustedSignerError when another identity signed, and TrustError otherwise, also where sigstore is not
        installed.
        """
        if not self._identities:
            raise UntrustedSignerError("it is signed with a certificate, and the project names no such signer")
        parsed = read(bundle)
        subjects, issuer = _shown(parsed.signing_certificate)
        named = [each for each in self._identities if each.subject in subjects and each.issuer == issuer]
        if not named:
            who = " and ".join(sorted(subjects)) or "an unnamed subject"
            raise UntrustedSignerError(
                f"it is signed as {who}, which the project does not name",
                why=f"the certificate's issuer is {issuer or 'not stated'}; {FILE} names {_known(self._identities)}",
                fix=f"if this is one of yours, add issuer and subject to `identities` in {FILE}",
            )
        owner = _owner(parsed.signing_certificate)
        if owner is not None and not all(each.subject.startswith(f"{owner}/") for each in named):
            raise UntrustedSignerError(
                f"it is signed by a run of another owner's repository, which called {named[-1].subject}",
                why=f"the certificate names {owner} as the owner of the repository",
                fix="call a workflow of the same owner, and name that",
            )
        for identity in named[:-1]:  # one subject at several instances: whichever knows the certificate
            try:
                return identity.name, verified(parsed, identity, self._root(identity.trust_root))
            except TrustError:
                continue
        return named[-1].name, verified(parsed, named[-1], self._root(named[-1].trust_root))

    def _root(self, path: Path | None) -> Any:
        if path not in self._roots:
            self._roots[path] = trust_config(path, offline=True).trusted_root
        return self._roots[path]


def library() -> None:
    """Import `sigstore`, without its warnings: errors have what matters. Raises TrustError where it is missing."""
    try:
        import sigstore
    except ImportError as error:
        raise TrustError(
            "signatures without a key need the sigstore library",
            code="trust-sigstore-missing",
            why=str(error),
            fix="pip install 'imagegen[keyless]'",
        ) from error
    logging.getLogger(sigstore.__name__).addHandler(_QUIET)


def trust_config(path: Path | None, *, offline: bool) -> Any:
    """A ClientTrustConfig: of a file, or Sigstore's own: offline as the library brought it or fetched it last.

    Raises TrustError.
    """
    library()
    from sigstore.models import ClientTrustConfig

    if path is None:
        try:
            return ClientTrustConfig.production(offline=offline)
        except Exception as error:
            fix = f"check network and proxy; or name your own instance with `trust_root` in {FILE}"
            raise TrustError(
                "Sigstore's trust root cannot be had", code="trust-root-unavailable", why=reason_of(error), fix=fix
            ) from error
    try:
        config = ClientTrustConfig.from_json(path.read_text(encoding="utf-8"))
        config.trusted_root.get_fulcio_certs()
    except OSError as error:
        raise TrustError(
            "the trust root cannot be read", code="trust-root-unreadable", where=str(path), why=error.strerror
        ) from error
    except Exception as error:
        what = "it is no ClientTrustConfig of Sigstore's"
        raise TrustError(what, where=str(path), why=_lacking(error)) from error
    return config


def _lacking(error: Exception) -> str:
    """Return what a file lacks that the library read."""
    if not isinstance(error, ValidationError):
        return str(error)
    details = error.errors(include_url=False)[:3]
    return "; ".join(": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in details)


def read(bundle: bytes) -> Any:
    """The library's Bundle. Raises TrustError for one that lacks a certificate or a log's entry, or is none."""
    library()
    from sigstore.models import Bundle

    try:
        material = json.loads(bundle)["verificationMaterial"]
        certified = "certificate" in material or "x509CertificateChain" in material
        parsed = None if certified and not material.get("tlogEntries") else Bundle.from_json(bundle)
    except Exception as error:
        why = " ".join(str(error).split()) if str(error) else type(error).__name__
        raise TrustError(
            "it is no Sigstore bundle with a certificate", code="trust-bundle-malformed", why=why[:300]
        ) from error
    if parsed is None:
        raise TrustError(
            "the signature is in no log",
            code="trust-no-log-entry",
            why="its certificate is good for minutes only, and no log says that it was made in them",
            fix="sign again, with a log",
        )
    return parsed


def verified(parsed: Any, identity: Identity, root: Any) -> bytes:
    """The statement that this identity signed. Raises TrustError: whatever is not certainly right is wrong."""
    from sigstore.verify import Verifier, policy

    try:
        who = policy.Identity(identity=identity.subject, issuer=identity.issuer)
        kind, statement = Verifier(trusted_root=root).verify_dsse(parsed, who)
    except Exception as error:
        words = next(
            (words for said, words in _WORDS.items() if said in str(error)), str(error) or type(error).__name__
        )
        what = f"the signature of {identity.name} does not hold"
        raise TrustError(what, why=_untimely(parsed) or words) from error
    if kind != PAYLOAD_TYPE:
        raise TrustError(
            f"what {identity.name} signed is no in-toto statement",
            code="trust-statement-malformed",
            why=f"its type is {kind}",
        )
    return bytes(statement)


def _shown(certificate: Any) -> tuple[set[str], str | None]:
    """Subjects and issuer that a certificate claims; what cannot be read is not claimed."""
    from cryptography import x509

    with suppress(Exception):  # whatever hostile bytes make of the reader
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        kinds = (x509.UniformResourceIdentifier, x509.RFC822Name)
        subjects = {name for kind in kinds for name in names.get_values_for_type(kind)}
        issuer = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(_ISSUER)).value.value
        return subjects, issuer.decode()
    return set(), None


def _owner(certificate: Any) -> str | None:
    """Return the owner of the repository whose run the certificate is for, as a URL; None if it names none.

    A reusable workflow signs under its own name for every repository that calls it, whatever its content.
    """
    from cryptography import x509

    with suppress(x509.ExtensionNotFound):
        der = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(_OWNER)).value.value
        return _text(der)
    return None


def _text(der: bytes) -> str:
    """Decode a UTF8String in DER; what is none decodes to text that no subject begins with."""
    long = der[1] & 0x7F if len(der) > 1 and der[1] & 0x80 else 0
    return der[2 + long :].decode(errors="replace") if der[:1] == b"\x0c" else "\0"


def _untimely(parsed: Any) -> str | None:
    """Return how the time of signing misses the certificate's validity, if that is why a bundle was rejected."""
    begin, end = parsed.signing_certificate.not_valid_before_utc, parsed.signing_certificate.not_valid_after_utc
    times: list[datetime] = []
    with suppress(Exception):  # a time that cannot be read is another fault
        times = _times(parsed)
    for time in times:
        if time < begin:
            return (
                f"it was logged at {time:%H:%M:%S}, {_seconds(begin - time)} before its certificate is valid: "
                "the clocks of certificate authority and log differ"
            )
        if time > end:
            return (
                f"it was logged at {time:%Y-%m-%d %H:%M:%S}, {_seconds(time - end)} after its certificate had expired"
            )
    return None


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"


def _times(parsed: Any) -> list[datetime]:
    """Return the times of signing in logs and time stamps; they are not verified here."""
    material = json.loads(parsed.to_json())["verificationMaterial"]
    logged = (int(entry.get("integratedTime") or 0) for entry in material["tlogEntries"])
    times = [datetime.fromtimestamp(seconds, UTC) for seconds in logged if 0 < seconds < 1 << 34]
    stamps = parsed.verification_material.timestamp_verification_data
    return times + [stamp.tst_info.gen_time for stamp in (stamps.rfc3161_timestamps if stamps else ())]


def _known(identities: Iterable[Identity]) -> str:
    return ", ".join(f"{each.name} ({each.subject}, {each.issuer})" for each in identities) or "no identity"
