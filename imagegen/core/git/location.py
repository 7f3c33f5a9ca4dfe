"""The addresses of a git repository: its own, and mirrors that the user configures.

A mirror may be outdated or hostile: commit and tree decide what is built, whatever their source. So a mirror may be a
directory or use plain http, which an address of the matrix may not.

Sources: git-config(1), url.<base>.insteadOf, and git(1), GIT_CONFIG_*, git 2.39; how mirrors lay repositories out:
git-cache-http-server and ghq by host and path, Gitea and GitLab as organisation and name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from imagegen.core.config import GIT_MIRROR_VARIABLE, GIT_VARIABLE, Settings, mirror_name
from imagegen.core.errors import FetchError
from imagegen.core.git import command
from imagegen.core.net import file_path, is_file
from imagegen.core.net.address import Address, parse
from imagegen.core.text import redact

_USABLE = ("https://", "http://", "file:///", "/")  # others need the user's keys and programs


@dataclass(frozen=True)
class RemoteLocation:
    """An address that git fetches a repository from: on a server (`address`), or a directory."""

    url: str  # without credentials
    address: Address | None  # None: `url` is a path
    by: str | None  # the user's file or setting that names it; None if the matrix does


def places(url: str, settings: Settings) -> list[RemoteLocation]:
    """Return where to fetch the repository at `url`, in order; the first mirror that matches it.

    Raises FetchError if `url` is not an address.
    """
    address = parse(url)
    path, mirror_directory = urlsplit(address.url).path, mirror_name(address.host)
    if mirror := settings.git_mirrors.get(mirror_directory):
        return [_named(mirror, path, GIT_VARIABLE + mirror_directory)]
    if mirror := settings.git_mirror:
        return [_named(mirror, below, GIT_MIRROR_VARIABLE) for below in (f"/{address.host}{path}", path)]
    rules = [(base, start) for base, start in _rules(settings) if address.url.startswith(start)]
    if rules:
        base, start = max(rules, key=lambda rule: len(rule[1]))  # the first of the longest, as git does
        suffix = address.url.removeprefix(start)
        return [_named(base + suffix, "", "`url.<base>.insteadOf` in git's configuration")]
    return [RemoteLocation(address.url, address, None)]


def hint(url: str) -> str:
    """Return how to fix a repository that cannot be fetched."""
    host = parse(url).host
    return (
        f"set {GIT_VARIABLE}{mirror_name(host)} to an address or directory below which {host}'s repositories are "
        f"mirrored, or {GIT_MIRROR_VARIABLE} to one for all hosts"
    )


def _named(base: str, path: str, by: str) -> RemoteLocation:
    try:
        if base.startswith("/") or is_file(base):
            folder = Path(base) if base.startswith("/") else file_path(base)
            return RemoteLocation(
                f"{folder}".rstrip("/") + (os.path.normpath(path) if path else ""), None, by
            )  # never above it
        address = parse(f"{base.rstrip('/')}{path}" if path else base)
    except FetchError as error:
        fix = "an https or http address, file:///directory, or an absolute path"
        raise FetchError(
            f"{by} names nothing to fetch from: {redact(base)}",
            code="fetch-git-address-invalid",
            why=error.why,
            fix=fix,
        ) from error
    return RemoteLocation(address.url, address, by)


def _rules(settings: Settings) -> Iterator[tuple[str, str]]:
    """Return the (base, replaced prefix) pairs of `url.<base>.insteadOf`, in git's order, of user and system."""
    for name, start in command.user_configuration(settings.env, r"^url\..*\.insteadof$"):
        base = name.removeprefix("url.").removesuffix(".insteadof")
        if start and base.startswith(_USABLE):
            yield base, start
