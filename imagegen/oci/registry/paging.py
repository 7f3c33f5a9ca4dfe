"""Lists that a registry gives page by page, each naming the next in its Link header (RFC 8288)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus

from imagegen.core.errors import FetchError
from imagegen.core.net.address import parse as parse_address
from imagegen.core.net.sender import Reply, Sender
from imagegen.core.net.status import redirected
from imagegen.oci.documents import MAX_MANIFEST
from imagegen.oci.registry.session import RegistrySession

_MAX_PAGES = 1000
MAX_BYTES = 64 << 20  # of all pages: half a million tags
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
        if url in seen or len(seen) >= _MAX_PAGES or size > MAX_BYTES:
            raise FetchError(f"{reply.url} is a list without an end", code="fetch-list-too-long")
        seen.add(url)


def _page(session: RegistrySession, sender: Sender, url: str, accept: str) -> Reply:
    def once(authorization: str | None) -> Reply:
        headers = {"Accept": accept}
        return sender.once("GET", url, authorization=authorization, headers=headers, limit=MAX_MANIFEST, follow=False)

    return session.asking(lambda authorization: sender.exchange.retry(url, lambda: once(authorization)))


def next_page(link: str) -> str | None:
    """The address that a Link header names as the next; None where it names none."""
    for address, parameters in _LINK.findall(link):
        if any("next" in f"{quoted}{word}".lower().split() for quoted, word in _RELATION.findall(parameters)):
            return str(address)
    return None
