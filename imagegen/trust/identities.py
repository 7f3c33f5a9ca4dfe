"""Verify keyless signatures offline. Only the bundle and the trust root are used.

Sources: Sigstore's client-spec ("Verification"), Fulcio's oid-info.md (1.3.6.1.4.1.57264.1.1 is the issuer),
protobuf-specs (Bundle v0.3, ClientTrustConfig). The `sigstore` library checks the certificate chain and its log's
timestamp, the time of signing against the certificate's validity, inclusion in the signatures' log, and the signature.
It is an extra of imagegen, and is imported for the first bundle with a certificate.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from imagegen.core import data
from imagegen.core.data import parse_json
from imagegen.core.errors import TrustError, UntrustedSignerError
from imagegen.core.net.reason import reason_of
from imagegen.trust.bundle import PAYLOAD_TYPE
from imagegen.trust.project import FILE, Identity

_ISSUER = "1.3.6.1.4.1.57264.1.1"
_OWNER = "1.3.6.1.4.1.57264.1.16"  # Source Repository Owner URI of the run that signs
_QUIET = logging.NullHandler()
# Parts of the library's errors and their explanations; other errors are shown unchanged.
_EXPLANATIONS = {
    "DSSE: invalid signature": "the statement was altered after it was signed",
    "certificate chain": "the trust root does not name the certificate authority of its certificate",
    "SCT": "its certificate is not in a certificate log that the trust root names",
    "invalid log entry": "the log that the trust root names did not sign this entry",
    "not enough sources of verified time": "no service that the trust root names gives the time of the signature",
    "log entry": "the log's entry belongs to another signature",
}


class Identities:
    """The identities that may sign without a key.

    Each `trust_root` is read once; None is Sigstore's public instance.
    """

    def __init__(self, identities: Sequence[Identity]) -> None:
        self._identities = identities
        self._roots: dict[Path | None, Any] = {}

    def signer_of(self, bundle: bytes) -> tuple[str, bytes]:
        """Return the signer's name and the statement.

        Raises UntrustedSignerError if another identity signed, and TrustError for other faults, or if sigstore is not
        installed.
        """
        if not self._identities:
            raise UntrustedSignerError("it is signed with a certificate, and the project names no such signer")
        parsed = parse_bundle(bundle)
        subjects, issuer = _claimed_identity(parsed.signing_certificate)
        candidates = [item for item in self._identities if item.subject in subjects and item.issuer == issuer]
        if not candidates:
            who = " and ".join(sorted(subjects)) or "an unnamed subject"
            raise UntrustedSignerError(
                f"it is signed as {who}, which the project does not name",
                why=f"the certificate's issuer is {issuer or 'not stated'}; {FILE} names {_listed(self._identities)}",
                fix=f"if this is one of yours, add issuer and subject to `identities` in {FILE}",
            )
        owner = _owner(parsed.signing_certificate)
        if owner is not None and not all(item.subject.startswith(f"{owner}/") for item in candidates):
            raise UntrustedSignerError(
                f"it is signed by a run of another owner's repository, which called {candidates[-1].subject}",
                why=f"the certificate names {owner} as the owner of the repository",
                fix="call a workflow of the same owner, and name that",
            )
        for identity in candidates[:-1]:  # if several instances have the subject, the one that issued the certificate
            try:
                return identity.name, verify_bundle(parsed, identity, self._root(identity.trust_root))
            except TrustError:
                continue
        return candidates[-1].name, verify_bundle(parsed, candidates[-1], self._root(candidates[-1].trust_root))

    def _root(self, path: Path | None) -> Any:
        if path not in self._roots:
            self._roots[path] = trust_config(path, offline=True).trusted_root
        return self._roots[path]


def import_library() -> None:
    """Import `sigstore` without its warnings. Raises TrustError if it is missing."""
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
    """Read a ClientTrustConfig from a file, or Sigstore's public one if `path` is None.

    With `offline`, the public one is the copy in the library or its cache. Raises TrustError.
    """
    import_library()
    from sigstore.models import ClientTrustConfig

    if path is None:
        try:
            return ClientTrustConfig.production(offline=offline)
        except Exception as error:
            fix = f"check network and proxy; or name your own instance with `trust_root` in {FILE}"
            raise TrustError(
                "Sigstore's trust root cannot be fetched", code="trust-root-unavailable", why=reason_of(error), fix=fix
            ) from error
    try:
        config = ClientTrustConfig.from_json(data.read(path).decode())
        config.trusted_root.get_fulcio_certs()
    except OSError as error:
        raise TrustError(
            "the trust root cannot be read", code="trust-root-unreadable", where=str(path), why=error.strerror
        ) from error
    except Exception as error:
        summary = "it is not a ClientTrustConfig of Sigstore"
        raise TrustError(summary, where=str(path), why=_describe_errors(error)) from error
    return config


def _describe_errors(error: Exception) -> str:
    """Describe the errors of a file that the library read."""
    if not isinstance(error, ValidationError):
        return str(error)
    details = error.errors(include_url=False)[:3]
    return "; ".join(": ".join(filter(None, (".".join(map(str, detail["loc"])), detail["msg"]))) for detail in details)


def parse_bundle(bundle: bytes) -> Any:
    """Return the library's Bundle. Raises TrustError if it is invalid or has no certificate or log entry."""
    import_library()
    from sigstore.models import Bundle

    try:
        material = parse_json(bundle)["verificationMaterial"]
        certified = "certificate" in material or "x509CertificateChain" in material
        parsed = None if certified and not material.get("tlogEntries") else Bundle.from_json(bundle)
    except Exception as error:
        why = " ".join(str(error).split()) if str(error) else type(error).__name__
        raise TrustError(
            "it is not a Sigstore bundle with a certificate", code="trust-bundle-malformed", why=why[:300]
        ) from error
    if parsed is None:
        raise TrustError(
            "the signature is not in a log",
            code="trust-no-log-entry",
            why="its certificate is valid for minutes, and no log has the time of the signature",
            fix="sign again with a log",
        )
    return parsed


def verify_bundle(parsed: Any, identity: Identity, root: Any) -> bytes:
    """Return the statement that this identity signed. Raises TrustError for every other bundle."""
    from sigstore.verify import Verifier, policy

    try:
        who = policy.Identity(identity=identity.subject, issuer=identity.issuer)
        kind, statement = Verifier(trusted_root=root).verify_dsse(parsed, who)
    except Exception as error:
        why = next(
            (words for text, words in _EXPLANATIONS.items() if text in str(error)), str(error) or type(error).__name__
        )
        summary = f"the signature of {identity.name} is invalid"
        raise TrustError(summary, why=_time_fault(parsed) or why) from error
    if kind != PAYLOAD_TYPE:
        raise TrustError(
            f"{identity.name} signed something else than an in-toto statement",
            code="trust-statement-malformed",
            why=f"its type is {kind}",
        )
    return bytes(statement)


def _claimed_identity(certificate: Any) -> tuple[set[str], str | None]:
    """Return the subjects and the issuer that a certificate claims; none if they cannot be read."""
    from cryptography import x509

    with suppress(Exception):  # hostile bytes can raise any error
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        kinds = (x509.UniformResourceIdentifier, x509.RFC822Name)
        subjects = {name for kind in kinds for name in names.get_values_for_type(kind)}
        issuer = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(_ISSUER)).value.value
        return subjects, issuer.decode()
    return set(), None


def _owner(certificate: Any) -> str | None:
    """Return the owner of the repository whose run the certificate is for, as a URL; None if it names none.

    A reusable workflow signs under its own name for every repository that calls it, with any content.
    """
    from cryptography import x509

    with suppress(x509.ExtensionNotFound):
        der = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(_OWNER)).value.value
        return _text(der)
    return None


def _text(der: bytes) -> str:
    """Decode a UTF8String in DER; other values decode to text that no subject begins with."""
    long = der[1] & 0x7F if len(der) > 1 and der[1] & 0x80 else 0
    return der[2 + long :].decode(errors="replace") if der[:1] == b"\x0c" else "\0"


def _time_fault(parsed: Any) -> str | None:
    """Describe how the time of signing is outside of the certificate's validity; None if it is inside."""
    begin, end = parsed.signing_certificate.not_valid_before_utc, parsed.signing_certificate.not_valid_after_utc
    times: list[datetime] = []
    with suppress(Exception):  # a time that cannot be read is another fault
        times = _times(parsed)
    for signed in times:
        if signed < begin:
            return (
                f"it was logged at {signed:%H:%M:%S}, {_seconds(begin - signed)} before its certificate is valid, "
                "so the clocks of certificate authority and log differ"
            )
        if signed > end:
            late = f"{_seconds(signed - end)} after its certificate had expired"
            return f"it was logged at {signed:%Y-%m-%d %H:%M:%S}, {late}"
    return None


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"


def _times(parsed: Any) -> list[datetime]:
    """Return the times of signing in logs and time stamps; they are not verified here."""
    material = parse_json(parsed.to_json())["verificationMaterial"]
    logged = (int(entry.get("integratedTime") or 0) for entry in material["tlogEntries"])
    times = [datetime.fromtimestamp(seconds, UTC) for seconds in logged if 0 < seconds < 1 << 34]
    stamps = parsed.verification_material.timestamp_verification_data
    return times + [stamp.tst_info.gen_time for stamp in (stamps.rfc3161_timestamps if stamps else ())]


def _listed(identities: Iterable[Identity]) -> str:
    return (
        ", ".join(f"{identity.name} ({identity.subject}, {identity.issuer})" for identity in identities)
        or "no identity"
    )
