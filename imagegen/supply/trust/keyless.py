"""Signatures without a key: a GitHub Actions run has an identity, and Sigstore certifies its key of some minutes.

GitHub's documentation, "OpenID Connect reference": the job needs the permission `id-token: write`, and then finds
ACTIONS_ID_TOKEN_REQUEST_URL and _TOKEN in its environment. Fulcio certifies the token's job_workflow_ref as subject
(fulcio, docs/oidc.md); Rekor logs the signature. The `sigstore` library does the exchange with those: it takes proxies
from the environment, and the CA bundle from REQUESTS_CA_BUNDLE.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import requests
from pydantic import ValidationError

from imagegen.core import data
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, TrustError, UntrustedSignerError
from imagegen.core.net.answer import DeniedError, reason_of
from imagegen.core.net.client import Client
from imagegen.supply.trust.project import FILE, Identity, Project
from imagegen.supply.trust.statement import PAYLOAD_TYPE

# Verify keyless signatures: the certificate's identity, offline, from the bundle alone.
#
# Sigstore's specifications: client-spec ("Verification"), Fulcio's oid-info.md (1.3.6.1.4.1.57264.1.1 is the issuer),
# protobuf-specs (Bundle v0.3, ClientTrustConfig). The checking is the `sigstore` library's: certificate chain and its
# log's timestamp, time of signing inside the certificate's minutes, inclusion in the signatures' log, signature. It is
# an extra of imagegen, and imported when a bundle with a certificate is met.

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
        config = ClientTrustConfig.from_json(data.read(path).decode())
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
    return "; ".join(": ".join(filter(None, (".".join(map(str, detail["loc"])), detail["msg"]))) for detail in details)


def read(bundle: bytes) -> Any:
    """The library's Bundle. Raises TrustError for one that lacks a certificate or a log's entry, or is none."""
    library()
    from sigstore.models import Bundle

    try:
        material = parse_json(bundle)["verificationMaterial"]
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
    for signed in times:
        if signed < begin:
            return (
                f"it was logged at {signed:%H:%M:%S}, {_seconds(begin - signed)} before its certificate is valid: "
                "the clocks of certificate authority and log differ"
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


def _known(identities: Iterable[Identity]) -> str:
    return (
        ", ".join(f"{identity.name} ({identity.subject}, {identity.issuer})" for identity in identities)
        or "no identity"
    )


# Signing without a key: a GitHub Actions run proves its identity, and Sigstore certifies a key that lives for minutes.

AUDIENCE = "sigstore"
URL, TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
_PERMISSION = "give the job `permissions: id-token: write`; runs for pull requests of forks never get it"
_LEEWAY = timedelta(seconds=5)  # between our clock and GitHub's
_MARGIN = timedelta(minutes=1)  # before a certificate ends, another one is requested
_PAUSES = (1.0, 4.0)  # seconds before the second and the third try
_BUSY = 429

T = TypeVar("T")


@dataclass(frozen=True)
class _Run:
    """The identity that GitHub gives this run."""

    token: str
    issuer: str
    workflow: str  # "acme/images/.github/workflows/nightly.yml@refs/heads/main"
    until: datetime


@dataclass(frozen=True)
class _Certified:
    """The library's signer, until when its certificate is good, and the root by which that is checked."""

    signer: Any
    root: Any
    until: datetime | None  # not known before the first signature


class Keyless:
    """A Signer; thread-safe. `patience` is for how many seconds a service of Sigstore's may take for one answer."""

    def __init__(
        self,
        identity: Identity,
        run: _Run,
        ask: Callable[[], _Run],
        *,
        now: Callable[[], datetime],
        pause: Callable[[float], None],
        patience: float,
    ) -> None:
        self._identity, self._run, self._ask = identity, run, ask
        self._now, self._pause, self._patience = now, pause, patience
        self._certified: _Certified | None = None
        self._lock = threading.Lock()
        self.name = identity.name

    def sign(self, statement: bytes) -> bytes:
        """Return a bundle with certificate and log entry, checked against the project's trusted identities. Raises
        TrustError.
        """
        with self._lock:
            held = self._certificate()
            exact = _exact(statement)
            bundle = self._answer("Rekor, Sigstore's log", lambda: held.signer.sign_dsse(exact))
            until = bundle.signing_certificate.not_valid_after_utc - _MARGIN
            self._certified = _Certified(held.signer, held.root, until)
        made: bytes = bundle.to_json().encode()
        try:
            same = verified(read(made), self._identity, held.root) == statement
        except TrustError as error:
            what = "nothing was signed: Sigstore returned a signature that does not verify"
            raise TrustError(what, why=error.summary, fix="publish again later") from error
        if not same:
            raise TrustError(
                "nothing was signed: the sigstore library signed another statement than it was given",
                code="trust-wrong-statement",
            )
        return made

    def _certificate(self) -> _Certified:
        held = self._certified
        if held and held.until and self._now() < held.until:
            return held
        from sigstore.oidc import IdentityToken
        from sigstore.sign import Signer, SigningContext

        if self._now() >= self._run.until - _MARGIN:
            self._run = self._ask()
        token = self._run.token
        config = trust_config(self._identity.trust_root, offline=False)

        def certified() -> Any:
            return Signer(IdentityToken(token), SigningContext.from_trust_config(config))

        signer = self._answer("Fulcio, Sigstore's certificate authority", certified, secret=token)
        return _Certified(signer, config.trusted_root, None)

    def _answer(self, who: str, requested: Callable[[], T], *, secret: str = "") -> T:
        """Call `requested`, with retries after transient faults. Raises TrustError with the last error,
        without the secret.
        """
        for pause in (*_PAUSES, None):
            try:
                return _within(self._patience, requested)
            except Exception as error:
                why, passing = _said(error)
                if pause is None or not passing:
                    why = (why.replace(secret, "***") if secret else why)[:300]
                    fix = "publish again later" if passing else None
                    raise TrustError(
                        f"nothing was signed: {who}, gives no answer of use",
                        code="trust-service-unavailable",
                        why=why,
                        fix=fix,
                    ) from error
            self._pause(pause)
        raise AssertionError  # the last try returns or raises


def keyless(
    project: Project,
    env: Mapping[str, str],
    client: Client,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    pause: Callable[[float], None] = time.sleep,
    patience: float = 60.0,
) -> Keyless | None:
    """Return a signer for this run of GitHub Actions; None outside of one, or if the project names no identities.

    Raises TrustError, before anything is published, for a run whose signatures verification would reject.
    """
    if not project.identities or not env.get("GITHUB_ACTIONS"):
        return None
    if not env.get(URL) or not env.get(TOKEN):
        missing = " and ".join(name for name in (URL, TOKEN) if not env.get(name))
        raise TrustError(
            "this run may not sign", code="trust-no-permission", why=f"GitHub did not set {missing}", fix=_PERMISSION
        )
    library()
    ask = _asking(env[URL], env[TOKEN], client, now)
    run = ask()
    return Keyless(_identity(project, run), run, ask, now=now, pause=pause, patience=patience)


def _asking(url: str, token: str, client: Client, now: Callable[[], datetime]) -> Callable[[], _Run]:
    """Return a function that requests a new identity token from GitHub."""

    def ask() -> _Run:
        try:
            separator = "&" if "?" in url else "?"
            page = client.page(f"{url}{separator}audience={AUDIENCE}", authorization=f"Bearer {token}")
        except FetchError as error:
            fix = _PERMISSION if isinstance(error, DeniedError) else error.fix
            raise TrustError(
                "GitHub gives this run no token of identity", code="trust-no-token", why=error.why, fix=fix
            ) from error
        return _checked(page.body, now())

    return ask


def _checked(answer: bytes, now: datetime) -> _Run:
    """Parse a token without verifying it, which Fulcio does. Raises TrustError for a malformed or expired one."""
    try:
        token = parse_json(answer)["value"]
        claims = parse_json(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        begin, end = (datetime.fromtimestamp(claims[name], UTC) for name in ("iat", "exp"))
        run = _Run(token, str(claims["iss"]), str(claims["job_workflow_ref"]), end)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise TrustError(
            "GitHub's token of identity cannot be read", code="trust-no-token", why=type(error).__name__
        ) from None
    if not begin - _LEEWAY <= now < end:
        side = "behind" if now < begin else "ahead of"
        raise TrustError(
            f"this machine's clock is {side} GitHub's",
            code="trust-clock",
            why=f"a new token is good from {begin:%H:%M:%S} to {end:%H:%M:%S}, and here it is {now:%H:%M:%S}",
            fix="set the clock (UTC)",
        )
    return run


def _identity(project: Project, run: _Run) -> Identity:
    """Return the project's identity of this run. Raises TrustError where it names none."""
    for identity in project.identities:
        if identity.issuer == run.issuer and identity.subject.endswith(f"/{run.workflow}"):
            return identity
    raise TrustError(
        f"this run is {run.workflow}, which the project does not name",
        code="trust-signer-untrusted",
        why=f"verification would reject what it signs; its issuer is {run.issuer}",
        fix=f"publish from a workflow and branch that `identities` in {FILE} names",
    )


def _exact(statement: bytes) -> Any:
    """Return the library's Statement with these bytes. Its own parser requires subjects to have names, and in-toto does
    not.
    """
    from sigstore.dsse import Statement

    class Exact(Statement):
        def __init__(self, contents: bytes) -> None:
            self._contents = contents

    return Exact(statement)


def _within(seconds: float, requested: Callable[[], T]) -> T:
    """Return the result of `requested` within a time limit, which the library does not have.

    Raises what it raises, and TimeoutError.
    """
    given: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(requested())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it was requested
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)  # one that hangs must not hold up the end of the program
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not given:
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    return given[0]


def _said(error: BaseException) -> tuple[str, bool]:
    """Return what went wrong, and whether a later try may succeed."""
    for cause in _causes(error):
        response = cause.response if isinstance(cause, requests.RequestException) else None
        if response is not None:
            status = response.status_code
            return f"HTTP status {status}{_message(response)}", status >= 500 or status == _BUSY
        if isinstance(cause, requests.ConnectionError | requests.Timeout | TimeoutError):
            return reason_of(cause), True
    return " ".join(str(error).split()) or type(error).__name__, False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _message(response: requests.Response) -> str:
    """Return the message of a service's JSON answer, beside the status."""
    try:
        return f": {response.json()['message']}"
    except (ValueError, KeyError, TypeError):
        return ""
