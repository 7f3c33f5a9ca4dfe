"""Requests with a body, and their answers.

Credentials are not sent to a redirect's target; certificates, proxies, time limits and cancellation are the client's. A
request that failed half-way may have taken effect: a caller whose request must not be repeated asks the server for its
state before it retries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from imagegen.core.net.client import Client
from imagegen.core.net.page import Body, authorized

_SILENCE = 300.0  # seconds: a registry moves gigabytes before it answers the request that ends an upload
WRITTEN = "be written to"  # the aim of requests with a body, in errors
_MAX_SAID = 1 << 16  # bytes that are read of a server's answer

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """A server's answer with any status (404, 405, 201); `url` is the answering address, without credentials."""

    url: str
    status: int
    headers: Mapping[str, str]  # names in any case
    body: bytes  # its beginning


def small(data: bytes) -> Body:
    """A body that is in memory already."""
    return Body(len(data), lambda: iter((data,)))


class Sender:
    """Sends requests; thread-safe. `silence` is how many seconds a server may take to answer after a body was sent."""

    def __init__(self, client: Client, *, silence: float = _SILENCE) -> None:
        self.exchange, self._silence = client.exchange, silence

    def ask(
        self,
        method: str,
        url: str,
        *,
        authorization: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Reply:
        """Send a request as `once`, and again where that may help: for requests that may arrive twice.

        Raises FetchError.
        """
        return self.exchange.retry(
            url, lambda: self.once(method, url, authorization=authorization, headers=headers, body=body), aim=WRITTEN
        )

    def once(
        self,
        method: str,
        url: str,
        *,
        authorization: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        limit: int = _MAX_SAID,
        follow: bool = True,
    ) -> Reply:
        """Send one request, inside `Exchange.retry`. Raises DeniedError, and the errors of transient faults.

        `limit` is the number of bytes of the answer to read; without `follow`, a redirect is returned like another
        answer. `authorization` is a header for the first origin only; redirects to another origin do not get it.
        """
        sent_headers = {"Accept-Encoding": "identity", **(headers or {}), **authorized(authorization)}
        exchange, silence = self.exchange, self._silence if method in ("PUT", "PATCH") else None
        with exchange.answer(
            method, url, sent_headers, body, any_status=True, silence=silence, follow=follow
        ) as answer:
            exchange.alive(answer)
            reply_body = b""
            for chunk in exchange.chunks(answer):
                reply_body += chunk
                if len(reply_body) >= limit:
                    break
            return Reply(answer.url, answer.response.status_code, answer.response.headers, reply_body[:limit])
