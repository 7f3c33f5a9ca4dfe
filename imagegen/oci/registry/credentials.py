"""Credentials of registries and the challenges that ask for them.

Nothing read here may reach a message. Sources: Docker's documentation of config.json (auths, credHelpers, credsStore)
and the docker-credential-helpers protocol; RFC 9110, 11.6.1, for challenges.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagegen.core import programs
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError
from imagegen.oci.registry.reference import HUB

_HUB_KEY = "https://index.docker.io/v1/"  # written by `docker login` without a server
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

    Raises FetchError when the file or a helper's answer cannot be read, or holds a token that only a browser can use.
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
    """Return the credential helper's credentials for `key`; None if the helper is absent or has none."""
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
