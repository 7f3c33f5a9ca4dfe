"""Authentication with a registry: its challenge answered with a token or a password, for reading and writing.

Source: Docker Registry v2 authentication via central service: a refused client fetches a token from the realm that
the refusal names and repeats the request with it. A token expires after minutes; a later refusal is answered in the
same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, DeniedError, NotFoundError, UnavailableError, UnreachableError
from imagegen.core.net.address import parse as parse_address
from imagegen.core.text import counted
from imagegen.oci.documents import MAX_MANIFEST
from imagegen.oci.registry.credentials import Credentials, credentials_for, parse_challenges
from imagegen.oci.registry.reference import Endpoint, is_loopback, secure

_SKEW = 60.0  # seconds that clocks may differ without a word
_MAX_TOKEN = 1 << 16  # bytes of the answer that holds it

T = TypeVar("T")


class RegistrySession:
    """An authenticated session; thread-safe. `actions` are those needed in the repository at `endpoint`: "pull" or
    "pull,push".

    `also` are further repositories of the same registry that are read, by their names there.
    """

    def __init__(
        self, endpoint: Endpoint, client: Client, settings: Settings, *, actions: str, also: tuple[str, ...] = ()
    ) -> None:
        self._endpoint, self._client, self._settings = endpoint, client, settings
        path = urlsplit(endpoint.base).path.removeprefix("/v2/")
        self._scopes = (f"repository:{path}:{actions}", *(f"repository:{other}:pull" for other in also))
        self._authorization: str | None = None
        self._knows_us = True
        self._lock = threading.Lock()

    @property
    def host(self) -> str:
        """Return the host whose credentials are used, as `docker login` calls it."""
        return self._endpoint.host

    def refusal(self, denied: DeniedError, fix: str) -> dict[str, str]:
        """Return `why` and `fix` of an error for a refusal that new credentials did not change."""
        who = f"{urlsplit(denied.url).netloc} answers {denied.why}"
        if abs(denied.ahead) > _SKEW:
            how = f"{_span(abs(denied.ahead))} {'ahead of' if denied.ahead > 0 else 'behind'}"
            why = f"{who}, and this machine's clock is {how} theirs, while tokens are good for minutes"
            return {"why": why, "fix": "set this machine's clock"}
        if not self._knows_us:
            return {"why": f"{who}, and Docker's configuration has no credentials for {self.host}", "fix": fix}
        return {"why": f"{who} to the credentials that Docker's configuration has for {self.host}", "fix": fix}

    def reach(self) -> None:
        """Raise UnreachableError within seconds if the registry does not respond at its address."""
        root = self._endpoint.base.partition("/v2/")[0] + "/v2/"
        try:
            self._client.impatient().page(root, limit=MAX_MANIFEST)
        except UnreachableError:
            raise
        except FetchError:
            pass  # the registry responds: its answer to the real request counts

    def asking(self, ask: Callable[[str | None], T]) -> T:
        """Call `ask` with the current authorization; if the registry itself refuses that, once more with a new one.

        Raises DeniedError if that is refused too, and what `ask` raises.
        """
        with self._lock:
            authorization = self._authorization
        try:
            return ask(authorization)
        except DeniedError as error:
            # Only the registry may name the realm that gets a user's credentials, not a redirect's target.
            if parse_address(error.url).origin != parse_address(self._endpoint.base).origin:
                raise
            return ask(self._authorize(error, authorization))

    def _authorize(self, denied: DeniedError, refused: str | None) -> str:
        """Return a new header for the registry. One thread requests it, the others reuse it."""
        with self._lock:
            if self._authorization in (None, refused):
                self._authorization = self._answer_to(denied)
            assert self._authorization  # noqa: S101 - just given
            return self._authorization

    def _answer_to(self, denied: DeniedError) -> str:
        challenges = parse_challenges(denied.challenge)
        url_auth = parse_address(self._endpoint.base).auth
        credentials = Credentials(*url_auth) if url_auth else credentials_for(self._endpoint.host, self._settings.env)
        self._knows_us = credentials is not None
        if "bearer" in challenges:
            return f"Bearer {self._token(challenges['bearer'], credentials)}"
        if "basic" in challenges and credentials:
            return credentials.basic()
        raise denied

    def _token(self, parameters: dict[str, str], credentials: Credentials | None) -> str:
        host = self._endpoint.host
        realm = parse_address(parameters.get("realm", ""))
        subject = f"the token server that {host} names"
        secure(realm, subject)
        if is_loopback(realm.host) and not is_loopback(parse_address(self._endpoint.base).host):
            raise FetchError(
                f"{subject} is this machine",
                code="fetch-host-not-allowed",
                why=f"at {realm.url}",
                fix="do not trust this registry",
            )
        query = [("service", parameters["service"])] if "service" in parameters else []
        # Not the scope that the refusal names: these are all that is wanted here.
        query += [("scope", scope) for scope in self._scopes]
        separator = "&" if urlsplit(realm.url).query else "?"
        url = f"{realm.url}{separator}{urlencode(query)}"
        basic = credentials.basic() if credentials else None
        try:
            body = self._client.page(url, authorization=basic, limit=_MAX_TOKEN).body
        except DeniedError:
            if len(self._scopes) == 1:
                raise
            self._scopes = self._scopes[:1]  # perhaps it is one of the others that may not be read: none is needed
            return self._token(parameters, credentials)
        except NotFoundError as error:  # it is not the image that does not exist
            raise UnavailableError(f"{subject} gives no token", where=realm.url, why=error.why) from error
        try:
            answer = parse_json(body)
            token = answer.get("token") or answer.get("access_token")
        except (ValueError, AttributeError):
            token = None
        # It becomes a header: a line break in it would be the beginning of another.
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
            raise UnavailableError(f"{subject} gives no token", where=realm.url)
        return token


def _span(seconds: float) -> str:
    """About how long: "3 minutes", "5 hours", "12 days"."""
    for size, noun in ((86400, "day"), (3600, "hour")):
        if seconds >= 2 * size:
            return counted(round(seconds / size), noun)
    return counted(round(seconds / 60), "minute")
