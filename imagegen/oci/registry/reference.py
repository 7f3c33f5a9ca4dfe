"""Names of images: which registry, which repository, which tag or digest; and where the registry is found here.

Sources: grammar of distribution's `reference` package (domain, path components, tag), OCI distribution-spec v1.1
for repository names and tags. A name without a registry is Docker Hub's, as Docker reads it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from imagegen.core.config import REGISTRY_VARIABLE, Settings, mirror_name
from imagegen.core.errors import FetchError
from imagegen.core.net.address import Address
from imagegen.core.net.address import parse as parse_address

HUB = "docker.io"
HUB_NAMES = ("docker.io", "index.docker.io", "registry-1.docker.io")
_HUB_ADDRESS = "registry-1.docker.io"  # who answers for docker.io
_LONGEST_NAME = 255  # characters of registry and repository
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_LONGEST_TAG = 128  # characters
_TAG = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{_LONGEST_TAG - 1}}}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """An image's name in full. With a digest, the tag is only for human readers."""

    registry: str  # "docker.io", "registry.example.com:5000"
    repository: str  # "library/debian"
    tag: str | None
    digest: str | None

    @property
    def name(self) -> str:
        """The repository with its registry."""
        return f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> Reference:
    """Parse a name as `docker pull` does. Raises FetchError if it is not the name of an image."""
    if "://" in text:
        raise _no_name(text, "it is an address", f"leave {text.partition('://')[0]}:// out")
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _no_digest(text, digest)
    head, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        head, tag = name, ""
    elif not _TAG.fullmatch(tag):
        raise _no_name(text, f"{tag!r} is not a tag: {why_no_tag(tag)}")
    first, slash, path = head.partition("/")
    if slash and (first == "localhost" or set(first) & set(".:") or first != first.lower()):
        registry = HUB if first in HUB_NAMES else first
    else:
        registry, path = HUB, head
    if registry == HUB and "/" not in path:
        path = f"library/{path}"
    if not _REGISTRY.fullmatch(registry):
        raise _no_name(text, f"{registry!r} is not a registry's host")
    if not _REPOSITORY.fullmatch(path):
        raise _no_name(text, f"{path!r} is not a repository's name: lower-case letters, digits, and . _ - between them")
    if len(registry) + len(path) >= _LONGEST_NAME:
        raise _no_name(text, f"it is longer than {_LONGEST_NAME} characters")
    return Reference(registry, path, tag or None, digest or None)


def is_tag(text: str) -> bool:
    """Return whether a manifest can have this tag."""
    return _TAG.fullmatch(text) is not None


def why_no_tag(text: str) -> str:
    """Why a manifest cannot have this tag."""
    if len(text) > _LONGEST_TAG:
        return f"a tag has at most {_LONGEST_TAG} characters, and this one {len(text)}"
    return "a tag is letters, digits, and . _ - after the first of them"


def _no_digest(text: str, digest: str) -> FetchError:
    if set(digest) & set("./"):  # a host follows the @, and a password may come before it
        fix = "leave that out: `docker login` keeps credentials"
        return _no_name(f"***@{text.rpartition('@')[2]}", "it begins with a user", fix)
    return _no_name(text, "what follows the @ is not a digest (sha256: and 64 lower-case hex digits)")


def _no_name(text: str, why: str, fix: str = "write docker.io/library/debian:12, say") -> FetchError:
    return FetchError(f"{text!r} is not the name of an image", code="fetch-invalid-reference", why=why, fix=fix)


def variable(registry: str) -> str:
    """The environment variable that names a mirror of the registry: IMAGEGEN_REGISTRY_DOCKER_IO."""
    return REGISTRY_VARIABLE + mirror_name(registry)


@dataclass(frozen=True)
class Endpoint:
    """The address of a repository. `host` is the key of its credentials in Docker's configuration."""

    base: str  # "https://registry-1.docker.io/v2/library/debian", with credentials where the mirror's address has some
    host: str


def endpoint(reference: Reference, settings: Settings) -> Endpoint:
    """The registry itself, or the mirror that the environment names for it. Raises FetchError for a bad address.

    A mirror's address may have a path, as the proxies of Harbor and Artifactory have; it comes before the repository.
    """
    mirror = settings.registry_mirrors.get(mirror_name(reference.registry))
    if mirror is None:
        registry_host = _HUB_ADDRESS if reference.registry == HUB else reference.registry
        return Endpoint(f"{_scheme(registry_host)}://{registry_host}/v2/{reference.repository}", reference.registry)
    whole = mirror if "://" in mirror else f"{_scheme(mirror.partition('/')[0])}://{mirror}"
    address = parse_address(whole)
    secure(address, f"the mirror that {variable(reference.registry)} names")
    scheme, _, authority = whole.partition("://")
    netloc, _, path = authority.partition("/")
    prefix = f"{path.strip('/')}/" if path.strip("/") else ""
    host = netloc.rpartition("@")[2]
    return Endpoint(f"{scheme}://{netloc}/v2/{prefix}{reference.repository}", host)


def engine_name(reference: Reference, settings: Settings) -> str:
    """Return the repository's name for an engine, which connects to the host of `endpoint`. Raises FetchError."""
    if reference.registry == HUB and mirror_name(HUB) not in settings.registry_mirrors:
        return reference.name
    host, _, path = endpoint(reference, settings).base.partition("://")[2].rpartition("@")[2].partition("/v2/")
    return f"{host}/{path}"


def secure(address: Address, subject: str) -> None:
    """Raise FetchError for plain HTTP to another machine, where tokens and passwords could be read in transit."""
    if address.scheme == "http" and not is_loopback(address.host):
        raise FetchError(
            f"{subject} is spoken to in plain http", code="fetch-plain-http", why=f"at {address.url}", fix="use https"
        )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _scheme(netloc: str) -> str:
    host = netloc.rpartition("@")[2]
    host = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return "http" if is_loopback(host) else "https"
