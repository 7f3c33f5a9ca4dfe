"""Run buildx, the plugin of the user's Docker client, and find why it cannot reach a builder of its driver `remote`.

buildx 0.13 to 0.29 waits 20 s and then prints "context deadline exceeded", whatever the reason. So the connection is
made again, and its failure is named.
"""

from __future__ import annotations

import re
import socket
import ssl
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from imagegen.core import programs
from imagegen.core.data import parse_json
from imagegen.core.errors import EngineError
from imagegen.core.net.reason import reason_of
from imagegen.core.progress import Progress
from imagegen.engine.connection import BUILDX_FLOOR, buildx_version

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_TAIL = 30  # lines of output in an error
_CANCEL = 1.0  # seconds in which buildx tells the engine that a build is cancelled
_LONGEST_LINE = 1 << 16  # bytes; a longer one counts as several

WAITED = "[internal] waiting for connection"  # buildx's name of the step that fails

_TIMEOUT = 5  # seconds for the connection, and for each step of the handshake
_REFUSAL = 2  # seconds for the daemon to refuse a certificate: in TLS 1.3, after the handshake (RFC 8446, 4.4.2.4)
_OPTION = re.compile(r'(?<!\w)(\w+)=("(?:[^"\\]|\\.)*")')


def run_buildx(
    env: Mapping[str, str], args: Sequence[str], cwd: Path, progress: Progress, output: SupportsWrite[str] | None = None
) -> str:
    """Run buildx with `env` as its whole environment: see `Engine.buildx`."""
    _check_buildx(env)
    # Attestations and git labels would make a build's digest depend on more than its Dockerfile.
    # So would a commit, which buildx has the user's git look for in every directory above, unprotected.
    env = {name: value for name, value in env.items() if name != "BUILDX_GIT_LABELS"}
    env |= {"BUILDX_GIT_INFO": "false", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "BUILDKIT_PROGRESS": "plain"}
    tail: deque[str] = deque(maxlen=_TAIL)
    with tempfile.TemporaryFile() as stdout:
        process = programs.Program[bytes](
            ["docker", "buildx", *args],
            patience=_CANCEL,
            cwd=cwd,
            env=env,
            stdin=programs.DEVNULL,
            stdout=stdout,
            stderr=programs.PIPE,
        )
        assert process.stderr is not None  # noqa: S101 - PIPE was requested
        try:
            for raw in iter(partial(process.stderr.readline, _LONGEST_LINE), b""):
                line = raw.decode(errors="replace").rstrip()
                tail.append(line)
                if output:
                    output.write(line)
                elif line.startswith("#"):
                    progress.say(f"buildx: {line}")
            code = process.wait()
        finally:
            if process.poll() is None:
                process.stop()
                process.wait()
            process.stderr.close()
        stdout.seek(0)
        printed = stdout.read().decode(errors="replace")
    if code:
        raise EngineError(
            f"buildx {args[0]} failed with exit code {code}",
            code="engine-buildx-failed",
            where=str(cwd),
            why="\n".join(tail),
        )
    return printed


def _check_buildx(env: Mapping[str, str]) -> None:
    try:
        completed = programs.run(["docker", "buildx", "version"], env=dict(env), capture_output=True, text=True)
    except FileNotFoundError as error:
        raise EngineError(
            "no docker on PATH", code="engine-buildx-missing", fix="install Docker's command line"
        ) from error
    version = buildx_version(completed.stdout) if completed.returncode == 0 else None
    if version is None:
        raise EngineError(
            "`docker buildx` does not work",
            code="engine-buildx-missing",
            why=(completed.stderr or completed.stdout).strip(),
            fix="install the buildx plugin (the package is docker-buildx, or docker-buildx-plugin from Docker's own)",
        )
    if version < BUILDX_FLOOR:
        raise EngineError(
            f"`docker buildx` is {version}",
            code="engine-buildx-too-old",
            why=f"{BUILDX_FLOOR} is the oldest that works",
            fix="upgrade it",
        )


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
