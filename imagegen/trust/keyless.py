"""Sign without a long-lived key. A GitHub Actions run has an identity, for which Sigstore certifies a key.

A job with the permission `id-token: write` has ACTIONS_ID_TOKEN_REQUEST_URL and _TOKEN in its environment (GitHub's
documentation, "OpenID Connect reference"). Fulcio certifies the token's job_workflow_ref as subject (fulcio,
docs/oidc.md); Rekor logs the signature. The `sigstore` library calls both services. It takes proxies from the
environment, and the CA bundle from REQUESTS_CA_BUNDLE.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import requests

from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, TrustError
from imagegen.core.net.client import Client
from imagegen.core.net.reason import reason_of
from imagegen.core.net.status import DeniedError
from imagegen.trust.identities import import_library, parse_bundle, trust_config, verify_bundle
from imagegen.trust.project import FILE, Identity, Project

AUDIENCE = "sigstore"
URL, TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
_PERMISSION = "give the job `permissions: id-token: write`; runs for pull requests of forks cannot get it"
_LEEWAY = timedelta(seconds=5)  # between this machine's clock and GitHub's
_MARGIN = timedelta(minutes=1)  # before a certificate expires, a new one is requested
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
    """The library's signer, the trust root, and the time until which the certificate is used."""

    signer: Any
    root: Any
    until: datetime | None  # not known before the first signature


class Clock:
    """The time of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class _TokenRequest:
    """A request for a new identity token to GitHub; `token` authorizes it."""

    url: str
    token: str
    client: Client
    clock: Clock

    def send(self) -> _Run:
        try:
            separator = "&" if "?" in self.url else "?"
            page = self.client.page(f"{self.url}{separator}audience={AUDIENCE}", authorization=f"Bearer {self.token}")
        except FetchError as error:
            fix = _PERMISSION if isinstance(error, DeniedError) else error.fix
            raise TrustError(
                "GitHub gives this run no identity token", code="trust-no-token", why=error.why, fix=fix
            ) from error
        return _parse_token(page.body, self.clock.now())


class Keyless:
    """A thread-safe Signer. `patience` is the limit in seconds for an answer of a Sigstore service."""

    def __init__(self, identity: Identity, run: _Run, request: _TokenRequest, *, clock: Clock, patience: float) -> None:
        self._identity, self._run, self._request = identity, run, request
        self._clock, self._patience = clock, patience
        self._certified: _Certified | None = None
        self._lock = threading.Lock()
        self.name = identity.name

    def sign(self, statement: bytes) -> bytes:
        """Return a bundle with certificate and log entry, checked against the trusted identity. Raises TrustError."""
        with self._lock:
            certified = self._certificate()
            exact = _exact_statement(statement)
            bundle = self._call("Rekor, Sigstore's log", lambda: certified.signer.sign_dsse(exact))
            until = bundle.signing_certificate.not_valid_after_utc - _MARGIN
            self._certified = _Certified(certified.signer, certified.root, until)
        bundle_bytes: bytes = bundle.to_json().encode()
        try:
            same = verify_bundle(parse_bundle(bundle_bytes), self._identity, certified.root) == statement
        except TrustError as error:
            summary = "signing failed because Sigstore returned an invalid signature"
            raise TrustError(summary, why=error.summary, fix="publish again later") from error
        if not same:
            raise TrustError(
                "signing failed because the sigstore library signed another statement", code="trust-wrong-statement"
            )
        return bundle_bytes

    def _certificate(self) -> _Certified:
        current = self._certified
        if current and current.until and self._clock.now() < current.until:
            return current
        from sigstore.oidc import IdentityToken
        from sigstore.sign import Signer, SigningContext

        if self._clock.now() >= self._run.until - _MARGIN:
            self._run = self._request.send()
        token = self._run.token
        config = trust_config(self._identity.trust_root, offline=False)

        def request_certificate() -> Any:
            return Signer(IdentityToken(token), SigningContext.from_trust_config(config))

        signer = self._call("Fulcio, Sigstore's certificate authority", request_certificate, secret=token)
        return _Certified(signer, config.trusted_root, None)

    def _call(self, service: str, request: Callable[[], T], *, secret: str = "") -> T:
        """Call a service, with retries after transient faults. Raises TrustError with the last error.

        `secret` is removed from the error.
        """
        for pause in (*_PAUSES, None):
            try:
                return _call_within(self._patience, request)
            except Exception as error:
                why, transient = _describe_fault(error)
                if pause is None or not transient:
                    why = (why.replace(secret, "***") if secret else why)[:300]
                    fix = "publish again later" if transient else None
                    raise TrustError(
                        f"signing failed because {service}, gave no valid answer",
                        code="trust-service-unavailable",
                        why=why,
                        fix=fix,
                    ) from error
            self._clock.pause(pause)
        raise AssertionError  # the last try returns or raises


def keyless(
    project: Project, env: Mapping[str, str], client: Client, *, clock: Clock | None = None, patience: float = 60.0
) -> Keyless | None:
    """Return a signer for this run of GitHub Actions; None outside of a run, or if the project names no identities.

    Raises TrustError, before anything is published, for a run whose signatures verification would reject.
    """
    if not project.identities or not env.get("GITHUB_ACTIONS"):
        return None
    if not env.get(URL) or not env.get(TOKEN):
        missing = " and ".join(name for name in (URL, TOKEN) if not env.get(name))
        raise TrustError(
            "this run cannot sign", code="trust-no-permission", why=f"GitHub did not set {missing}", fix=_PERMISSION
        )
    import_library()
    clock = clock or Clock()
    request = _TokenRequest(env[URL], env[TOKEN], client, clock)
    run = request.send()
    return Keyless(_identity(project, run), run, request, clock=clock, patience=patience)


def _parse_token(answer: bytes, now: datetime) -> _Run:
    """Parse a token without verifying it, which Fulcio does. Raises TrustError for a malformed or expired one."""
    try:
        token = parse_json(answer)["value"]
        claims = parse_json(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        begin, end = (datetime.fromtimestamp(claims[name], UTC) for name in ("iat", "exp"))
        run = _Run(token, str(claims["iss"]), str(claims["job_workflow_ref"]), end)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise TrustError(
            "GitHub's identity token cannot be read", code="trust-no-token", why=type(error).__name__
        ) from None
    if not begin - _LEEWAY <= now < end:
        direction = "behind" if now < begin else "ahead of"
        raise TrustError(
            f"this machine's clock is {direction} GitHub's",
            code="trust-clock",
            why=f"a new token is valid from {begin:%H:%M:%S} to {end:%H:%M:%S}, and it is {now:%H:%M:%S} here",
            fix="set the clock (UTC)",
        )
    return run


def _identity(project: Project, run: _Run) -> Identity:
    """Return the project's identity of this run. Raises TrustError if the project does not name it."""
    for identity in project.identities:
        if identity.issuer == run.issuer and identity.subject.endswith(f"/{run.workflow}"):
            return identity
    raise TrustError(
        f"this run is {run.workflow}, which the project does not name",
        code="trust-signer-untrusted",
        why=f"verification would reject its signatures; its issuer is {run.issuer}",
        fix=f"publish from a workflow and branch that `identities` in {FILE} names",
    )


def _exact_statement(statement: bytes) -> Any:
    """Return the library's Statement with these bytes.

    The library's parser requires subjects to have names, which in-toto does not.
    """
    from sigstore.dsse import Statement

    class Exact(Statement):
        def __init__(self, contents: bytes) -> None:
            self._contents = contents

    return Exact(statement)


def _call_within(seconds: float, request: Callable[[], T]) -> T:
    """Return the result of `request`, within a time limit that the library does not have.

    Raises the errors of `request`, and TimeoutError.
    """
    results: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            results.append(request())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the calling thread
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)  # a thread that hangs must not delay exit
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not results:
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    return results[0]


def _describe_fault(error: BaseException) -> tuple[str, bool]:
    """Describe the fault, and return whether it is transient."""
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
    """Return the message in a service's JSON answer, to follow the status."""
    try:
        return f": {response.json()['message']}"
    except (ValueError, KeyError, TypeError):
        return ""
