"""Why buildx cannot reach a remote builder: real TLS servers on loopback, and a buildx that only plays one."""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import docker
import pytest

from imagegen.core.config import Settings
from imagegen.engine import Engine
from imagegen.engine.buildx import nodes_of, unreachable
from tests.support.errors import raises
from tests.support.tls_proxy import Authority

HOST = "builder.invalid"
INSPECTED = """\
Name:          far
Driver:        remote
Last Activity: 2026-11-26 14:33:24 +0000 UTC

Nodes:
Name:           far0
Endpoint:       {endpoint}
Driver Options: {options}
Status:         inactive
"""
WAITED = "#1 [internal] waiting for connection"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours", "The CA of the builder")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs", "Another CA")


@pytest.fixture(scope="module")
def endpoint(authority: Authority) -> Iterator[str]:
    """A server that takes certificates of `authority` alone, and has a word for each client that shows one."""
    context = authority.context(HOST)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.pem)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), context.wrap_socket(self.request, server_side=True) as client:
                client.sendall(b"settings")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"tcp://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def options_of(trusted: Authority, client: Authority, *, days: int = 2, host: str = HOST) -> dict[str, str]:
    certificate, key = client.issue("client", days=days)
    return {"cacert": str(trusted.pem), "cert": str(certificate), "key": str(key), "servername": host}


def test_certificates_that_fit_are_no_fault(endpoint: str, authority: Authority) -> None:
    assert unreachable("far", endpoint, options_of(authority, authority)) is None


@pytest.mark.parametrize("fault", ["client", "expired", "none"])
def test_a_client_certificate_that_the_daemon_refuses_is_named(
    fault: str, endpoint: str, authority: Authority, stranger: Authority
) -> None:
    options = options_of(authority, stranger if fault == "client" else authority, days=-1 if fault == "expired" else 2)
    if fault == "none":
        del options["cert"], options["key"]
    error = unreachable("far", endpoint, options)
    assert error
    assert (error.code, error.where) == ("engine-builder-unreachable", endpoint)
    assert "cert=" in str(error.fix)
    assert "cacert=" not in str(error.fix)


@pytest.mark.parametrize("fault", ["authority", "name"])
def test_a_daemon_whose_certificate_is_not_trusted_is_named(
    fault: str, endpoint: str, authority: Authority, stranger: Authority
) -> None:
    trusted, host = (stranger, HOST) if fault == "authority" else (authority, "other.invalid")
    error = unreachable("far", endpoint, options_of(trusted, authority, host=host))
    assert error
    assert (error.code, error.where) == ("engine-builder-unreachable", endpoint)
    assert "cacert=" in str(error.fix)
    assert "servername=" in str(error.fix)


@pytest.mark.parametrize(
    ("option", "content"),
    [
        *((option, content) for option in ("cacert", "cert", "key") for content in (None, "no certificate")),
        *(("cert", "another's"), ("key", "another's"), ("key", "encrypted")),
    ],
)
def test_files_that_cannot_be_used_are_named(
    option: str, content: str | None, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    options = options_of(authority, authority)
    place = tmp_path / "file.pem"
    options[option] = str(place)
    if content == "another's":
        place.write_bytes(stranger.issue("client")[option == "key"].read_bytes())
    elif content == "encrypted":
        words = [
            "openssl",
            "pkey",
            "-aes256",
            "-passout",
            "pass:secret",
            "-in",
            str(authority.directory / "client.key"),
        ]
        place.write_bytes(subprocess.run(words, check=True, capture_output=True).stdout)
    elif content:
        place.write_text(content)
    error = unreachable("far", "tcp://127.0.0.1:9", options)
    assert error
    assert (error.code, error.where) == ("engine-builder-unreachable", "tcp://127.0.0.1:9")
    assert str(place) in str(error.why)


@pytest.mark.parametrize("options", [{}, {"servername": HOST}])
def test_a_port_at_which_nothing_listens_is_named(options: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        error = unreachable("far", closed, options)
    assert error
    assert (error.code, error.where) == ("engine-builder-unreachable", closed)


@pytest.mark.parametrize(
    "place", ["unix:///run/b.sock", "tcp://", "tcp://host", "tcp://host:x", "tcp://[::1", "", "docker-container://b"]
)
def test_other_endpoints_are_left_to_buildx(place: str) -> None:
    assert unreachable("far", place, {}) is None


def test_nodes_are_read_from_what_buildx_prints() -> None:
    text = INSPECTED.format(endpoint="tcp://a:1", options=r'key="/a \"b\"/k" cacert="/a=b"')
    text += "\nName:           far1\nEndpoint:       unix:///run/b.sock\nStatus:         running\n"
    assert nodes_of(text) == [("tcp://a:1", {"key": '/a "b"/k', "cacert": "/a=b"}), ("unix:///run/b.sock", {})]
    assert nodes_of("ERROR: no builder") == []


def buildx(folder: Path, place: str, options: Mapping[str, str], failure: str) -> Engine:
    """An engine whose buildx knows the builder, and ends each build with this line."""
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    (folder / "inspected").write_text(INSPECTED.format(endpoint=place, options=words))
    program = folder / "docker"
    program.write_text(
        "#!/bin/sh\nshift\ncase $1 in version) echo github.com/docker/buildx v0.13.1 abc ;;\n"
        f"inspect) [ \"$2\" = far ] && cat '{folder}/inspected' ;;\n*) echo '{failure}' >&2; exit 1 ;;\nesac\n"
    )
    program.chmod(0o755)
    client = docker.DockerClient(base_url="unix:///run/x/docker.sock", version="1.44")
    return Engine(client, Settings.from_environment({"HOME": str(folder), "PATH": f"{folder}:/usr/bin:/bin"}))


def test_a_build_on_a_builder_that_does_not_answer_says_why(
    endpoint: str, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    with buildx(tmp_path, endpoint, options_of(stranger, authority), WAITED) as engine:
        with raises("engine-builder-unreachable", where=endpoint):
            engine.buildx(["build", "."], tmp_path, builder="far")
        with raises("engine-buildx-failed"):
            engine.buildx(["build", "."], tmp_path)


@pytest.mark.parametrize(("failure", "fits"), [("ERROR: no such file", False), (WAITED, True)])
def test_other_failures_are_buildxs_own(
    failure: str, fits: bool, endpoint: str, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    options = options_of(authority if fits else stranger, authority)
    with buildx(tmp_path, endpoint, options, failure) as engine, raises("engine-buildx-failed") as caught:
        engine.buildx(["build", "."], tmp_path, builder="far")
    assert failure in str(caught.value.why)
