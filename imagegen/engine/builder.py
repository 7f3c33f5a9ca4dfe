"""Why buildx cannot reach a builder of its driver `remote`: the connection is made again, and its failure is named.

buildx 0.13 to 0.29 waits 20 s and then prints "context deadline exceeded", whatever the reason.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from imagegen.core.data import parse_json
from imagegen.core.errors import EngineError
from imagegen.core.net.reason import reason_of

WAITED = "[internal] waiting for connection"  # buildx's name of the step that fails

_TIMEOUT = 5  # seconds for the connection, and for each step of the handshake
_REFUSAL = 2  # seconds for the daemon to refuse a certificate: in TLS 1.3, after the handshake (RFC 8446, 4.4.2.4)
_OPTION = re.compile(r'(?<!\w)(\w+)=("(?:[^"\\]|\\.)*")')


def nodes_of(inspected: str) -> list[tuple[str, dict[str, str]]]:
    """Return endpoint and driver options of each node in the output of `docker buildx inspect` (0.13 and later)."""
    nodes: list[tuple[str, dict[str, str]]] = []
    for line in inspected.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "Endpoint":
            nodes.append((value, {}))
        elif name == "Driver Options" and nodes:
            for option, quoted in _OPTION.findall(value):
                with suppress(ValueError):  # Go's quotes have escapes that JSON has not
                    nodes[-1][1][option] = parse_json(quoted)
    return nodes


def unreachable(builder: str, endpoint: str, options: Mapping[str, str]) -> EngineError | None:
    """Connect to a node of `builder` as buildx does; return the error that explains a failure.

    None where the connection works, or the endpoint is not tcp://HOST:PORT.
    """
    try:
        address = urlsplit(endpoint)
        host, port = address.hostname, address.port
    except ValueError:
        return None
    if address.scheme != "tcp" or not host or not port:
        return None
    fault = _fault(host, port, options)
    if fault is None:
        return None
    why, fix = fault
    return EngineError(
        f"builder {builder} cannot be reached",
        code="engine-builder-unreachable",
        where=endpoint,
        why=why,
        fix=f"{fix}; `docker buildx rm` and `docker buildx create` give a builder other options",
    )


def _fault(host: str, port: int, options: Mapping[str, str]) -> tuple[str, str] | None:
    """Return why a connection fails, and how to fix it."""
    trusted, certificate, key = (options.get(name) for name in ("cacert", "cert", "key"))
    context = None
    if trusted or certificate or key:
        context = ssl.create_default_context()
        if fault := _load(context, trusted, certificate, key):
            return fault
    try:
        with socket.create_connection((host, port), _TIMEOUT) as plain:
            return _refusal(plain, context, options.get("servername") or host, certificate) if context else None
    except OSError as error:
        return reason_of(error), "see that its BuildKit daemon runs and listens there"


def _load(
    context: ssl.SSLContext, trusted: str | None, certificate: str | None, key: str | None
) -> tuple[str, str] | None:
    """Load the files of a builder's options; return the first fault."""
    for name, path in (("cacert", trusted), ("cert", certificate), ("key", key)):
        try:
            if path is not None:
                Path(path).read_bytes()
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}", f"put the file of `{name}=` there"
    try:
        if trusted:
            context.load_verify_locations(trusted)
    except ssl.SSLError:
        return f"{trusted} has no certificate in PEM", "name the CA of the daemon's certificate in `cacert=`"
    try:
        if certificate:
            context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks at the terminal
    except ssl.SSLError as error:
        why = f"{certificate} and {key} are not certificate and its key in PEM: {error.reason or error}"
        return why, "name a certificate in `cert=` and its own key in `key=`"
    return None


def _refusal(
    plain: socket.socket, context: ssl.SSLContext, name: str, certificate: str | None
) -> tuple[str, str] | None:
    """Return which side refuses the other one's certificate, and how to fix it; None where both are accepted."""
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain, server_hostname=name) as connection:
            connection.settimeout(_REFUSAL)
            with suppress(TimeoutError):
                connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return (
            f"the certificate of the daemon is not trusted: {error.verify_message}",
            f"name the CA that signed it in `cacert=`, and in `servername=` a name that it is for (now {name})",
        )
    except ssl.SSLError as error:
        shown = f"the certificate {certificate}" if certificate else "clients without a certificate"
        return (
            f"the daemon refuses {shown}: {error.reason or error}",
            "have a CA that the daemon trusts sign one, and name it in `cert=` and its key in `key=`",
        )
    return None
