"""Signing without a key: a GitHub Actions run proves its identity, and Sigstore certifies a key that lives for minutes.

GitHub's documentation, "OpenID Connect reference": the job needs the permission `id-token: write`, and then finds
ACTIONS_ID_TOKEN_REQUEST_URL and _TOKEN in its environment. Fulcio certifies the token's job_workflow_ref as subject
(fulcio, docs/oidc.md); Rekor logs the signature. The `sigstore` library does the exchange with those: it takes proxies
from the environment, and the CA bundle from REQUESTS_CA_BUNDLE.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import requests

from imagegen.core.errors import FetchError, TrustError
from imagegen.core.net.answer import DeniedError, reason_of
from imagegen.core.net.client import Client
from imagegen.supply.trust.identity import library, read, trust_config, verified
from imagegen.supply.trust.project import FILE, Identity, Project

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
        token = json.loads(answer)["value"]
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
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
    for each in project.identities:
        if each.issuer == run.issuer and each.subject.endswith(f"/{run.workflow}"):
            return each
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
    for each in _causes(error):
        response = each.response if isinstance(each, requests.RequestException) else None
        if response is not None:
            status = response.status_code
            return f"HTTP status {status}{_message(response)}", status >= 500 or status == _BUSY
        if isinstance(each, requests.ConnectionError | requests.Timeout | TimeoutError):
            return reason_of(each), True
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
