"""The registry client against a stand-in on loopback (tests/support/registry_server.py), honest and not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client
from imagegen.core.net.address import parse as parse_address
from imagegen.core.net.status import DeniedError
from imagegen.core.store import Store
from imagegen.oci.documents import Platform, RemoteImage
from imagegen.oci.registry import Repository, parse, resolve
from imagegen.oci.registry.credentials import credentials_for, parse_challenges
from imagegen.oci.registry.reference import endpoint
from imagegen.oci.registry.session import RegistrySession
from tests.support.errors import raises
from tests.support.meter import Meter
from tests.support.registry_server import CONFIG, INDEX, LAYER, MANIFEST, StandIn, basic, digest_of, send

AMD64 = Platform("linux", "amd64")
LAYERS = [b"bottom" * 1000, b"top" * 1000]
ENV = ["PATH=/usr/bin", "EMPTY="]


@pytest.fixture
def registry() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.close()


@pytest.fixture
def other() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.close()


def ask(registry: StandIn, name: str = "a/b:1", **env: str) -> RemoteImage:
    settings = Settings.from_environment({"HOME": "/nonexistent", **env})
    client = Client(settings, attempts=2, timeout=(2.0, 1.0), backoff=0.01)
    return resolve(parse(f"{registry.host}/{name}"), AMD64, client, settings)


def login(home: Path, host: str, user: str = "me:secret") -> dict[str, str]:
    config = {"auths": {host: {"auth": base64.b64encode(user.encode()).decode()}}}
    (home / "config.json").write_text(json.dumps(config))
    return {"DOCKER_CONFIG": str(home)}


@pytest.mark.parametrize("docker", [False, True], ids=["OCI", "Docker"])
@pytest.mark.parametrize("index", [False, True], ids=["manifest", "index"])
def test_an_image_is_resolved_to_digests(registry: StandIn, *, docker: bool, index: bool) -> None:
    digest = registry.push("a/b:1", LAYERS, docker=docker, index=index, Env=ENV, Entrypoint=["/run"], Cmd=None)
    image = ask(registry)
    assert image.digest == digest
    assert [layer.diff_id for layer in image.layers] == [digest_of(layer) for layer in LAYERS]
    assert image.config.env == tuple(ENV)
    assert image.config.entrypoint == ("/run",)
    assert ask(registry, f"a/b:gone@{digest}") == image


def test_layers_come_into_the_store(registry: StandIn, other: StandIn, tmp_path: Path) -> None:
    """By a redirect to another host, which learns no token."""
    registry.push("a/b:1", LAYERS)
    other.documents = registry.documents
    registry.token, registry.elsewhere = "t0ken", other.host
    settings = Settings.from_environment({"HOME": "/nonexistent"})
    store, meter = Store(tmp_path / "store"), Meter()
    with Client(settings, attempts=1) as client:
        image = resolve(parse(f"{registry.host}/a/b:1"), AMD64, client, settings)
        repository = Repository(parse(f"{registry.host}/a/b@{image.digest}"), client, settings)
        for layer in image.layers:
            repository.download(layer.digest, layer.size, store, meter)
    assert all(store.intact(layer.digest, layer.size) for layer in image.layers)
    assert meter.total == sum(layer.size for layer in image.layers)
    assert other.requests
    assert {authorization for _, authorization in other.requests} == {None}


def test_a_token_is_fetched_without_credentials(registry: StandIn) -> None:
    registry.push("a/b:1", LAYERS)
    registry.token = "t0ken"
    ask(registry)
    requested = [path for path, _ in registry.requests if path.startswith("/token")]
    assert requested == ["/token?service=stand-in&scope=repository%3Aa%2Fb%3Apull"]


def test_credentials_go_to_the_realm_alone(registry: StandIn, other: StandIn, tmp_path: Path) -> None:
    registry.push("a/b:1", LAYERS)
    registry.token = other.token = "t0ken"
    other.user = "me:secret"
    registry.realm = f"http://{other.host}/token"
    ask(registry, **login(tmp_path, registry.host))
    assert [authorization for _, authorization in other.requests] == [basic("me:secret")]
    assert basic("me:secret") not in {authorization for _, authorization in registry.requests}


def test_a_registry_may_want_the_password_itself(registry: StandIn, tmp_path: Path) -> None:
    registry.push("a/b:1", LAYERS)
    registry.basic, registry.user = True, "me:secret"
    ask(registry, **login(tmp_path, registry.host))
    with raises("fetch-unavailable") as caught:
        ask(registry)
    assert "docker login" in str(caught.value)


def test_wrong_credentials_do_not_show_secrets(registry: StandIn, tmp_path: Path) -> None:
    registry.push("a/b:1", LAYERS)
    registry.token, registry.user = "t0ken", "me:right"
    with raises("fetch-unavailable") as caught:
        ask(registry, **login(tmp_path, registry.host))
    assert "secret" not in str(caught.value)
    assert base64.b64encode(b"me:secret").decode() not in str(caught.value)


def test_a_mirror_answers_for_a_registry(registry: StandIn) -> None:
    registry.push("hub/nvidia/cuda:13", LAYERS)
    settings = Settings.from_environment(
        {"HOME": "/nonexistent", "IMAGEGEN_REGISTRY_DOCKER_IO": f"http://me:pw@{registry.host}/hub"}
    )
    registry.basic, registry.user = True, "me:pw"
    image = resolve(parse("nvidia/cuda:13"), AMD64, Client(settings, attempts=1), settings)
    assert len(image.layers) == 2


@pytest.mark.fault("Network", "no registry answers", "says so, and names the variable for a mirror")
def test_a_registry_out_of_reach() -> None:
    settings = Settings.from_environment({"HOME": "/nonexistent", "IMAGEGEN_REGISTRY_DOCKER_IO": "127.0.0.1:1"})
    with raises("fetch-unreachable") as caught:
        resolve(parse("debian:12"), AMD64, Client(settings), settings)
    assert "IMAGEGEN_REGISTRY_DOCKER_IO" in str(caught.value)


def test_an_image_that_is_not_there(registry: StandIn) -> None:
    with raises("fetch-not-found"):
        ask(registry)
    with raises("fetch-no-tag"):
        ask(registry, "a/b")


def answering(data: bytes, kind: str = MANIFEST, **headers: str) -> object:
    return lambda handler: send(handler, 200, data, Content_Type=kind, **headers)


def hostile(registry: StandIn) -> dict[str, object]:
    """Return behaviours in place of a/b:1's manifest, of which none is accepted."""
    small = {"mediaType": CONFIG, "digest": "sha256:" + "1" * 64, "size": 2}
    good = json.loads(registry.documents["/v2/a/b/manifests/1"][1])
    layer = {"mediaType": LAYER, "digest": "sha256:" + "2" * 64, "size": 1}
    changed = {
        "schema 1": {"schemaVersion": 1, "fsLayers": []},
        "no schema": {"mediaType": MANIFEST},
        "both": good | {"manifests": []},
        "other type": good | {"mediaType": "application/vnd.example+json"},
        "artifact": good | {"config": small | {"mediaType": "application/vnd.example.config+json"}},
        "no layers": good | {"layers": []},
        "too many layers": good | {"layers": good["layers"] * 100},
        "foreign layer": good | {"layers": [layer | {"mediaType": "application/vnd.example.layer"}]},
        "huge layer": good | {"layers": [layer | {"size": 1 << 60}]},
        "negative size": good | {"layers": [layer | {"size": -1}]},
        "size true": good | {"layers": [layer | {"size": True}]},
        "short digest": good | {"layers": [layer | {"digest": "sha256:12"}]},
        "sha512": good | {"layers": [layer | {"digest": "sha512:" + "0" * 128}]},
        "huge config": good | {"config": good["config"] | {"size": 1 << 30}},
        "no platform": {"schemaVersion": 2, "mediaType": INDEX, "manifests": []},
        "other platform": {
            "schemaVersion": 2, "mediaType": INDEX,
            "manifests": [small | {"mediaType": MANIFEST, "platform": {"os": "linux", "architecture": "arm64"}}],
        },
        "index in index": {
            "schemaVersion": 2, "mediaType": INDEX,
            "manifests": [small | {"mediaType": INDEX, "platform": {"os": "linux", "architecture": "amd64"}}],
        },
        "layers no list": good | {"layers": {"a": 1}},
        "config no table": good | {"config": "x"},
    }  # fmt: skip
    answers = {name: answering(json.dumps(document).encode(), document.get("mediaType", MANIFEST))
               for name, document in changed.items()}  # fmt: skip
    whole = registry.documents["/v2/a/b/manifests/1"][1]
    return {
        **answers,
        "no JSON": answering(b"<html>"),
        "deep": answering(b"[" * 100_000),
        "a list": answering(b"[]"),
        "other digest told": answering(whole, Docker_Content_Digest="sha256:" + "0" * 64),
        "endless": endless,
    }


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", MANIFEST)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" " * (1 << 18))


NAMES = [
    "schema 1", "no schema", "both", "other type", "artifact", "no layers", "too many layers", "foreign layer",
    "huge layer", "negative size", "size true", "short digest", "sha512", "huge config", "no platform",
    "other platform", "index in index", "layers no list", "config no table", "no JSON", "deep", "a list",
    "other digest told", "endless",
]  # fmt: skip


@pytest.mark.fault(
    "Network", "a registry lies: digest, size, format, platform, an endless answer", "refused in a sentence"
)
@pytest.mark.parametrize("name", NAMES)
def test_documents_that_are_not_taken(name: str, registry: StandIn) -> None:
    registry.push("a/b:1", LAYERS, index=False)
    answers = hostile(registry)
    assert answers.keys() == set(NAMES)
    registry.instead["/v2/a/b/manifests/1"] = answers[name]  # type: ignore[assignment]
    with pytest.raises(FetchError):
        ask(registry)
    del registry.instead["/v2/a/b/manifests/1"]
    ask(registry)


def download_all(repository: Repository, store: Store) -> None:
    for layer in repository.image(AMD64).layers:
        repository.download(layer.digest, layer.size, store, Meter())


@pytest.mark.parametrize("what", ["manifest", "config", "layer"])
def test_bytes_of_another_digest_are_refused(what: str, registry: StandIn, tmp_path: Path) -> None:
    digest = registry.push("a/b:1", LAYERS)
    image = ask(registry)
    path = {
        "manifest": f"/v2/a/b/manifests/{digest}",
        "config": f"/v2/a/b/blobs/{image.config_digest}",
        "layer": f"/v2/a/b/blobs/{image.layers[0].digest}",
    }[what]
    kind, data = registry.documents[path]
    for wrong in (data[:-1] + b"?", data + b" ", data[:-1]):
        registry.instead[path] = answering(wrong, kind)  # type: ignore[assignment]
        settings = Settings.from_environment({"HOME": "/nonexistent"})
        client = Client(settings, attempts=1, timeout=(2.0, 1.0))
        repository = Repository(parse(f"{registry.host}/a/b:1"), client, settings)
        store = Store(tmp_path / "store")
        with pytest.raises(FetchError):
            download_all(repository, store)
        assert not store.has(image.layers[0].digest)


CHANGES = {
    "other system": {"os": "windows"},
    "other processor": {"architecture": "arm64"},
    "one layer more": {"rootfs": {"diff_ids": ["sha256:" + "0" * 64] * 3}},
    "no digest": {"rootfs": {"diff_ids": ["x", "y"]}},
    "no rootfs": {"rootfs": None},
    "no value": {"config": {"Env": ["PATH"]}},
    "no name": {"config": {"Env": ["=x"]}},
    "odd name": {"config": {"Env": ["A B=x"]}},
    "line break": {"config": {"Env": ["A=1\nB=2"]}},
    "no list": {"config": {"Cmd": "sh"}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_configs_that_are_not_taken(name: str, registry: StandIn) -> None:
    registry.push("a/b:1", LAYERS, index=False)
    manifest = json.loads(registry.documents["/v2/a/b/manifests/1"][1])
    config = json.loads(registry.documents[f"/v2/a/b/blobs/{manifest['config']['digest']}"][1]) | CHANGES[name]
    manifest["config"] = registry.blob("a/b", json.dumps(config).encode(), CONFIG)
    registry.put("a/b", manifest, "1")
    with pytest.raises(FetchError):
        ask(registry)


@pytest.mark.fault(
    "Secrets", "a registry names a token server in plain http, on this machine, or one that gives a header's end",
    "refused; no credentials go there",
)  # fmt: skip
@pytest.mark.parametrize(
    ("realm", "why"),
    [
        ("http://auth.example.com/token", "in plain http"), ("ftp://x/", "neither an http"), ("", "neither an http"),
        ("file:///etc/passwd", "neither an http"),
    ],
)  # fmt: skip
def test_realms_that_get_nothing(realm: str, why: str, registry: StandIn, tmp_path: Path) -> None:
    registry.push("a/b:1", LAYERS)
    registry.token = "t0ken"
    registry.instead["/v2/a/b/manifests/1"] = lambda handler: send(
        handler, 401, b"", WWW_Authenticate=f'Bearer realm="{realm}"'
    )
    with pytest.raises(FetchError) as caught:
        ask(registry, **login(tmp_path, registry.host))
    assert why in str(caught.value)


def test_a_remote_registry_cannot_redirect_to_this_machine() -> None:
    settings = Settings.from_environment({"HOME": "/nonexistent"})
    registry = endpoint(parse("ghcr.io/a/b:1"), settings)
    session = RegistrySession(registry, Client(settings, attempts=1), settings, actions="pull")

    def refuse(_: str | None) -> None:
        raise DeniedError(parse_address(registry.base), 401, 'Bearer realm="http://127.0.0.1:1/token"')

    with raises("fetch-host-not-allowed"):
        session.asking(refuse)


@pytest.mark.parametrize("token", ["a\r\nX: y", "", "ü", None, 5, "a b"])
def test_tokens_that_are_none(token: object, registry: StandIn) -> None:
    registry.push("a/b:1", LAYERS)
    registry.token = "t0ken"
    registry.instead["/token"] = lambda handler: send(handler, 200, json.dumps({"token": token}).encode())
    with raises("fetch-unavailable"):
        ask(registry)


def test_the_reason_of_a_token_server_is_shown(registry: StandIn) -> None:
    """The registry's refusal before it, with the status 401, was no failure."""
    registry.push("a/b:1", LAYERS)
    registry.token = "t0ken"
    registry.instead["/token"] = lambda handler: send(handler, 429, b"", Retry_After="3600")
    with pytest.raises(FetchError) as caught:
        ask(registry)
    message = str(caught.value).replace(registry.host, "registry")  # a port may have any digits
    assert "429" in message
    assert "401" not in message
    assert "netrc" not in message


@pytest.mark.fault("Secrets", "a server that a registry redirects to requests the user's password", "it gets none")
def test_the_target_of_a_redirect_gets_no_credentials(registry: StandIn, other: StandIn, tmp_path: Path) -> None:
    registry.push("a/b:1", LAYERS)
    registry.elsewhere = other.host
    other.token = "t0ken"  # so that it refuses, and names itself as realm
    with raises("fetch-unavailable"):
        ask(registry, **login(tmp_path, registry.host))
    assert {authorization for _, authorization in other.requests} == {None}


def test_redirects_in_circles_end(registry: StandIn) -> None:
    registry.push("a/b:1", LAYERS)
    registry.instead["/v2/a/b/manifests/1"] = lambda handler: send(handler, 307, b"", Location="/v2/a/b/manifests/1")
    with raises("fetch-too-many-redirects"):
        ask(registry)


def test_a_mirror_in_plain_http_is_refused() -> None:
    settings = Settings.from_environment({"HOME": "/x", "IMAGEGEN_REGISTRY_DOCKER_IO": "http://mirror.example.com"})
    with raises("fetch-plain-http"):
        resolve(parse("debian:12"), AMD64, Client(settings, attempts=1), settings)


def test_challenges_are_read_as_they_are_written() -> None:
    text = 'Negotiate, Bearer realm="https://a/t?x=1,2",service="a \\"b\\"" , scope=x, Basic realm="y"'
    assert parse_challenges(text) == {
        "negotiate": {},
        "bearer": {"realm": "https://a/t?x=1,2", "service": 'a "b"', "scope": "x"},
        "basic": {"realm": "y"},
    }
    assert parse_challenges('Bearer realm="unclosed') == {"bearer": {}, "realm": {}}
    assert parse_challenges("=,,=") == {}


def config(home: Path, **content: object) -> dict[str, str]:
    (home / "config.json").write_text(json.dumps(content))
    return {"DOCKER_CONFIG": str(home), "PATH": f"{home}:/usr/bin:/bin"}


def test_the_hub_has_a_key_of_its_own(tmp_path: Path) -> None:
    entry = {"auth": base64.b64encode(b"me:pass:word").decode()}
    found = credentials_for("docker.io", config(tmp_path, auths={"https://index.docker.io/v1/": entry}))
    assert found and (found.user, found.secret) == ("me", "pass:word")
    assert "word" not in repr(found)
    assert credentials_for("ghcr.io", {"DOCKER_CONFIG": str(tmp_path)}) is None
    assert credentials_for("ghcr.io", {}) is None
    assert credentials_for("ghcr.io", {"HOME": "/nonexistent"}) is None


def test_helpers_are_asked(tmp_path: Path) -> None:
    helper = tmp_path / "docker-credential-fake"
    helper.write_text('#!/bin/sh\nread key\n[ "$key" = ghcr.io ] || exit 1\necho \'{"Username":"u","Secret":"s"}\'\n')
    helper.chmod(0o755)
    env = config(tmp_path, credHelpers={"ghcr.io": "fake"})
    found = credentials_for("ghcr.io", env)
    assert found and found.secret == "s"
    assert credentials_for("quay.io", config(tmp_path, credsStore="fake")) is None
    assert credentials_for("quay.io", config(tmp_path, credsStore="absent")) is None


@pytest.mark.parametrize(
    "content",
    [
        {"auths": {"ghcr.io": {"auth": "%%%"}}}, {"auths": {"ghcr.io": {"auth": "c2VjcmV0"}}},
        {"auths": {"ghcr.io": {"identitytoken": "secret"}}}, {"credsStore": "../evil"},
    ],
    ids=["no base64", "no colon", "identity token", "path"],
)  # fmt: skip
def test_configurations_that_cannot_be_used(content: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(FetchError) as caught:
        credentials_for("ghcr.io", config(tmp_path, **content))
    assert "secret" not in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)


def test_a_configuration_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{secret")
    with raises("fetch-credentials") as caught:
        credentials_for("ghcr.io", {"DOCKER_CONFIG": str(tmp_path)})
    assert "secret" not in str(caught.value)
