"""Names of images, and where their registries are asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.oci.registry.reference import endpoint, parse, variable
from tests.support.errors import raises

DIGEST = "sha256:" + "a" * 64
part = st.from_regex(r"[a-z0-9]{1,5}(?:(?:\.|_|__|-{1,2})[a-z0-9]{1,5}){0,2}", fullmatch=True)
registries = st.sampled_from(
    ["docker.io", "ghcr.io", "localhost", "localhost:5000", "r.example.com:8443", "[::1]:5000"]
)


def settings(**env: str) -> Settings:
    return Settings.from_environment({"HOME": "/nonexistent", **env})


@pytest.mark.parametrize(
    ("text", "name", "tag", "digest"),
    [
        ("debian", "docker.io/library/debian", None, None),
        ("debian:12", "docker.io/library/debian", "12", None),
        ("nvidia/cuda:13.0.2-devel", "docker.io/nvidia/cuda", "13.0.2-devel", None),
        ("docker.io/debian:12", "docker.io/library/debian", "12", None),
        ("index.docker.io/nvidia/cuda:13", "docker.io/nvidia/cuda", "13", None),
        ("localhost/x:1", "localhost/x", "1", None),
        ("localhost:5000/x", "localhost:5000/x", None, None),
        ("127.0.0.1:5000/x/y:1", "127.0.0.1:5000/x/y", "1", None),
        (f"nvcr.io/nvidia/pytorch:25.03-py3@{DIGEST}", "nvcr.io/nvidia/pytorch", "25.03-py3", DIGEST),
        (f"ghcr.io/a/b@{DIGEST}", "ghcr.io/a/b", None, DIGEST),
    ],
)
def test_names_are_read_as_docker_reads_them(text: str, name: str, tag: str | None, digest: str | None) -> None:
    found = parse(text)
    assert (found.name, found.tag, found.digest) == (name, tag, digest)


@pytest.mark.parametrize(
    "text",
    [
        "", ":1", "debian:", "Debian", "a//b", "/a", "a/", "a/../b", "a@sha256:12", f"a@{DIGEST}x", "a:b:c", "a b",
        "a:-x", "a\n:1", "ghcr.io/", "-x.io/a", "x.io:123456/a", "http://x.io/a", "x.io/a:1?y", "u:p@x.io/a",
        "a" * 300, "x.io:/a",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused(text: str) -> None:
    with raises("fetch-invalid-reference"):
        parse(text)


@pytest.mark.parametrize("text", ["u:sec@x.io/a", "u:s@sec@x.io/a:1", f"u:sec@x.io/a@{DIGEST}", "sec@x.io/a"])
def test_a_password_before_a_name_is_not_shown(text: str) -> None:
    with raises("fetch-invalid-reference") as caught:
        parse(text)
    assert "sec" not in str(caught.value)


@given(
    registries, st.lists(part, min_size=1, max_size=3), st.none() | st.from_regex(r"[\w][\w.-]{0,9}", fullmatch=True)
)
def test_a_name_in_full_means_itself(registry: str, parts: list[str], tag: str | None) -> None:
    if tag is not None and not tag.isascii():
        return
    path = "/".join(parts if registry != "docker.io" or len(parts) > 1 else ["library", *parts])
    found = parse(f"{registry}/{path}" + (f":{tag}" if tag else ""))
    assert (found.registry, found.repository, found.tag) == (registry, path, tag)
    assert parse(str(found)) == found


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_an_error(text: str) -> None:
    try:
        found = parse(text)
    except FetchError:
        return
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    ("name", "env", "base"),
    [
        ("debian:12", {}, "https://registry-1.docker.io/v2/library/debian"),
        ("ghcr.io/a/b:1", {}, "https://ghcr.io/v2/a/b"),
        ("localhost:5000/a:1", {}, "http://localhost:5000/v2/a"),
        ("[::1]:5000/a:1", {}, "http://[::1]:5000/v2/a"),
        ("debian:12", {"IMAGEGEN_REGISTRY_DOCKER_IO": "harbor.example.com/hub"}, "https://harbor.example.com/v2/hub/library/debian"),
        ("debian:12", {"IMAGEGEN_REGISTRY_DOCKER_IO": "127.0.0.1:5000"}, "http://127.0.0.1:5000/v2/library/debian"),
        ("debian:12", {"IMAGEGEN_REGISTRY_GHCR_IO": "https://x.io"}, "https://registry-1.docker.io/v2/library/debian"),
        ("r.example.com:8443/a:1", {"IMAGEGEN_REGISTRY_R_EXAMPLE_COM_8443": "https://x.io/"}, "https://x.io/v2/a"),
    ],
)  # fmt: skip
def test_where_a_registry_is_asked(name: str, env: dict[str, str], base: str) -> None:
    assert endpoint(parse(name), settings(**env)).base == base


@pytest.mark.parametrize("address", ["http://mirror.example.com", "ftp://x.io", "http://[bad", "https://"])
def test_a_bad_mirror_is_refused(address: str) -> None:
    with pytest.raises(FetchError):
        endpoint(parse("debian:12"), settings(IMAGEGEN_REGISTRY_DOCKER_IO=address))


def test_the_variable_of_a_registry() -> None:
    assert variable("docker.io") == "IMAGEGEN_REGISTRY_DOCKER_IO"
    assert variable("r.example.com:5000") == "IMAGEGEN_REGISTRY_R_EXAMPLE_COM_5000"
