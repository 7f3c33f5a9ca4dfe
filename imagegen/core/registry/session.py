"""Authentication with a registry: a user's credentials, and the registry's challenge answered with them or a token.

Nothing read here may reach a message. Sources: Docker's documentation of config.json (auths, credHelpers, credsStore)
and the docker-credential-helpers protocol; RFC 9110, 11.6.1, for challenges.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from imagegen.core import programs
from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, DeniedError, NotFoundError, UnavailableError, UnreachableError
from imagegen.core.net.address import parse as parse_address
from imagegen.core.net.answer import redirected
from imagegen.core.net.client import Reply, Sender
from imagegen.core.oci import MAX_MANIFEST
from imagegen.core.registry.reference import HUB, Endpoint, is_loopback, secure
from imagegen.core.text import counted

_HUB_KEY = "https://index.docker.io/v1/"  # what `docker login` without a server writes
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_TIMEOUT = 30  # seconds; it may ask a key ring, never a person
_PASSED_ON = ("PATH", "HOME", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "GNUPGHOME")
_MAX_CHALLENGE = 8192  # characters
_WORD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PARAMETER = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]+))\s*(?:,|$)")


@dataclass(frozen=True)
class Credentials:
    user: str
    secret: str

    def basic(self) -> str:
        """The header's value (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()

    def __repr__(self) -> str:
        return "Credentials(***)"


def credentials_for(host: str, env: Mapping[str, str]) -> Credentials | None:
    """Return the credentials of Docker's configuration and helpers for the registry `host`; None without any.

    Raises FetchError when the file or a helper's answer cannot be read, or holds what only a browser login can use.
    """
    directory = env.get("DOCKER_CONFIG") or (f"{env['HOME']}/.docker" if env.get("HOME") else None)
    if directory is None:
        return None
    path = Path(directory, "config.json")
    config = _read(path)
    keys = (_HUB_KEY, HUB, "index.docker.io") if host == HUB else (host, f"https://{host}", f"https://{host}/v1/")
    helpers = _table(config, "credHelpers")
    for key in keys:
        helper = helpers.get(key) or config.get("credsStore")
        if helper and (credentials := _ask(str(helper), key, env)):
            return credentials
    auths = _table(config, "auths")
    entry = next((auths[key] for key in keys if isinstance(auths.get(key), dict) and auths[key]), None)
    return _entry(entry, path, host) if entry else None


def _read(path: Path) -> dict[str, Any]:
    try:
        config = parse_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise FetchError(
            "Docker's configuration cannot be read", code="fetch-credentials", where=str(path), why=error.strerror
        ) from error
    except ValueError:  # whose message quotes the file
        raise FetchError(
            "Docker's configuration cannot be read", code="fetch-credentials", where=str(path), why="it is not JSON"
        ) from None
    return config if isinstance(config, dict) else {}


def _table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def _entry(entry: Mapping[str, Any], path: Path, host: str) -> Credentials:
    if entry.get("identitytoken"):
        raise _unusable(host, "Docker's configuration holds an identity token for it")
    if entry.get("username") and isinstance(entry.get("password"), str):
        return Credentials(str(entry["username"]), entry["password"])
    try:
        user, colon, secret = base64.b64decode(str(entry.get("auth", "")), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        user = colon = secret = ""
    if not colon:
        raise FetchError(
            f"the credentials for {host} cannot be read",
            code="fetch-credentials",
            where=str(path),
            why="`auth` is not the base64 of user:password",
            fix=f"`docker login {host}` writes it anew",
        )
    return Credentials(user, secret.rstrip("\0"))


def _ask(helper: str, key: str, env: Mapping[str, str]) -> Credentials | None:
    """Return what the credential helper has for `key`; None for a helper that is absent or has nothing."""
    if not _HELPER.fullmatch(helper):
        raise FetchError(
            "Docker's configuration names a credential helper that cannot be one",
            code="fetch-credentials",
            why=repr(helper),
        )
    try:
        completed = programs.run(
            [f"docker-credential-{helper}", "get"],
            input=key.encode(),
            capture_output=True,
            timeout=_HELPER_TIMEOUT,
            env={name: env[name] for name in _PASSED_ON if name in env},
        )
    except (OSError, programs.TimeoutExpired):
        return None
    if completed.returncode:
        return None
    try:
        answer = parse_json(completed.stdout)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError):
        problem = f"docker-credential-{helper} answers in an unknown form"
        raise FetchError(
            problem, code="fetch-credentials", why="it should print an object with Username and Secret"
        ) from None
    if user == "<token>":
        raise _unusable(key, f"docker-credential-{helper} gives an identity token for it")
    return Credentials(str(user), str(secret)) if user or secret else None


def _unusable(host: str, why: str) -> FetchError:
    fix = f"`docker login {host}` with a user name and an access token"
    return FetchError(f"the credentials for {host} cannot be used", code="fetch-credentials", why=why, fix=fix)


def parse_challenges(header: str) -> dict[str, dict[str, str]]:
    """Parse WWW-Authenticate into scheme -> parameters, names in lower case; the first of a repeated scheme counts.

    Malformed parts are left out: such a server gets no credentials.
    """
    challenges: dict[str, dict[str, str]] = {}
    remaining = header[:_MAX_CHALLENGE].strip()
    while remaining:
        word = _WORD.match(remaining)
        if word is None:
            break
        remaining = remaining[word.end() :]
        parameters: dict[str, str] = {}
        while (parameter := _PARAMETER.match(remaining)) is not None:
            name, quoted, plain = parameter.groups()
            parameters.setdefault(name.lower(), plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
            remaining = remaining[parameter.end() :]
        challenges.setdefault(word[0].lower(), parameters)
        remaining = remaining.lstrip(" \t,")
    return challenges


# Authentication with a registry: its challenge answered with a token or a password, for reading and writing.
#
# Source: Docker Registry v2 authentication via central service: a refused client fetches a token from the realm that
# the refusal names and repeats the request with it. A token expires after minutes; a later refusal is answered in the
# same way.

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


# Lists that a registry gives page by page, each naming the next in its Link header (RFC 8288).

_MAX_PAGES = 1000
_MAX_BYTES = 64 << 20  # of all pages: half a million tags
_LINK = re.compile(r"<([^<>]*)>((?:\s*+;\s*+[^\s;,=]++\s*+=\s*+(?:\"[^\"]*\"|[^\s;,\"]*+))*)")
_RELATION = re.compile(r";\s*+rel\s*+=\s*+(?:\"([^\"]*)\"|([^\s;]*))", re.IGNORECASE)


def pages(session: RegistrySession, sender: Sender, url: str, accept: str) -> Iterator[Reply]:
    """The answers from `url` on, as long as each is fine and names a next one; the first, whatever it is.

    No redirect is followed: no registry has a list elsewhere, and some redirect to a page for human readers.
    Raises FetchError, DeniedError among its kinds.
    """
    seen, size = {url}, 0
    while True:
        reply = _page(session, sender, url, accept)
        size += len(reply.body)
        if reply.status != HTTPStatus.OK and len(seen) > 1:
            raise FetchError(
                f"{reply.url} is a part of a list that cannot be read",
                code="fetch-list-malformed",
                why=f"HTTP status {reply.status}",
            )
        yield reply
        following = next_page(reply.headers.get("Link", ""))
        if reply.status != HTTPStatus.OK or following is None:
            return
        after = redirected(parse_address(reply.url), following)
        if after.origin != parse_address(url).origin:
            raise FetchError(
                f"{reply.url} goes on at another host",
                code="fetch-host-not-allowed",
                why=f"at {after.url}",
                fix="do not trust it",
            )
        url = after.url
        if url in seen or len(seen) >= _MAX_PAGES or size > _MAX_BYTES:
            raise FetchError(f"{reply.url} is a list without an end", code="fetch-list-too-long")
        seen.add(url)


def _page(session: RegistrySession, sender: Sender, url: str, accept: str) -> Reply:
    def once(authorization: str | None) -> Reply:
        headers = {"Accept": accept}
        return sender.once("GET", url, authorization=authorization, headers=headers, limit=MAX_MANIFEST, follow=False)

    return session.asking(lambda authorization: sender.retry(url, lambda: once(authorization), aim="be fetched"))


def next_page(link: str) -> str | None:
    """The address that a Link header names as the next; None where it names none."""
    for address, parameters in _LINK.findall(link):
        if any("next" in f"{quoted}{word}".lower().split() for quoted, word in _RELATION.findall(parameters)):
            return str(address)
    return None
