"""Addresses, with credentials kept apart from the shown text, and the proxy and netrc entry that belong to a host.

All of it is read from the environment that is passed in, never from os.environ.
"""

from __future__ import annotations

import ipaddress
import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from imagegen.core.deferred import dataclass
from imagegen.core.errors import FetchError
from imagegen.core.text import redact

Origin = tuple[str, str, int]  # scheme, host, port


@dataclass(frozen=True)
class Address:
    """An http(s) address with its credentials kept apart, so that no message and no Referer can show them."""

    url: str
    scheme: str
    host: str
    port: int
    auth: tuple[str, str] | None

    @property
    def origin(self) -> Origin:
        return self.scheme, self.host, self.port


def parse(url: str) -> Address:
    """Parse an address. Raises FetchError if it is not an http(s) address."""
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:  # its message quotes the address, perhaps a password
        fix = "percent-encode what is special in a user name or password: %2F for /, %40 for @"
        raise FetchError(
            f"{redact(url)} is not an address", code="fetch-invalid-address", why="it is malformed", fix=fix
        ) from None
    if split.scheme not in ("http", "https") or not split.hostname:
        raise FetchError(
            f"{redact(url)} cannot be fetched",
            code="fetch-scheme-unsupported",
            why="it is neither an http, an https nor a file address",
        )
    netloc = split.netloc.rpartition("@")[2]
    auth = (unquote(split.username), unquote(split.password or "")) if split.username is not None else None
    clean = urlunsplit((split.scheme, netloc, split.path, split.query, ""))
    return Address(clean, split.scheme, split.hostname, port or (443 if split.scheme == "https" else 80), auth)


def is_file(url: str) -> bool:
    return url.lower().startswith("file:")


def file_path(url: str) -> Path:
    """The local path behind a file:// address. Raises FetchError when it names another host."""
    split = urlsplit(url)
    if split.netloc not in ("", "localhost"):
        raise FetchError(
            f"{redact(url)} names another machine", code="fetch-host-not-allowed", fix="write file:///path"
        )
    return Path(unquote(split.path))


def proxy_for(address: Address, env: Mapping[str, str]) -> str | None:
    """The proxy that curl and pip would use: {http,https,all}_proxy unless no_proxy names the host."""
    if _bypassed(address, _either(env, "no_proxy")):
        return None
    proxy = _either(env, f"{address.scheme}_proxy") or _either(env, "all_proxy")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def _either(env: Mapping[str, str], name: str) -> str:
    return env.get(name) or env.get(name.upper()) or ""


def _bypassed(address: Address, no_proxy: str) -> bool:
    for entry in no_proxy.replace(",", " ").split():
        name, _, port = entry.partition(":") if entry.count(":") == 1 else (entry, "", "")
        if port and port != str(address.port):
            continue
        name = name.lower().removeprefix("*").lstrip(".")
        if not name or address.host == name or address.host.endswith(f".{name}") or _in_network(address.host, name):
            return True
    return False


def _in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def netrc_auth(address: Address, env: Mapping[str, str]) -> tuple[str, str] | None:
    """User and password for a host from $NETRC or ~/.netrc. Raises FetchError when that file is malformed."""
    home = env.get("HOME")
    file = Path(env["NETRC"]) if env.get("NETRC") else Path(home, ".netrc") if home else None
    if file is None or not file.is_file():
        return None
    try:
        entry = netrc.netrc(file).authenticators(address.host)
    except netrc.NetrcParseError as error:  # its message quotes the file, perhaps a password
        raise FetchError(
            "netrc cannot be read",
            code="fetch-netrc-unreadable",
            where=f"{file}:{error.lineno}",
            why="its syntax is wrong",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FetchError(
            "netrc cannot be read", code="fetch-netrc-unreadable", where=str(file), why=str(error)
        ) from error
    return (entry[0], entry[2] or "") if entry else None
