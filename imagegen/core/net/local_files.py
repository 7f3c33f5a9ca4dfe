"""Local inputs of a client: files by file://, and the CA bundle."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from imagegen.core.errors import FetchError

if TYPE_CHECKING:
    pass
from imagegen.core.net.status import NotFoundError


def bundle(path: Path) -> str:
    """The CA bundle, a file or an OpenSSL directory. Raises FetchError when it is none."""
    try:
        location = {"capath" if path.is_dir() else "cafile": str(path)}
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(**location)
    except OSError as error:  # ssl.SSLError is one
        raise FetchError(
            "the CA bundle cannot be read",
            code="fetch-ca-bundle-unreadable",
            where=str(path),
            why=error.strerror or str(error),
            fix="SSL_CERT_FILE, REQUESTS_CA_BUNDLE, PIP_CERT or pip's `cert` names it: a file of certificates in PEM",
        ) from error
    return str(path)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise NotFoundError(f"{path} does not exist or is not a file")
        file = path.open("rb")
    except OSError as error:
        raise FetchError(
            f"{path} cannot be read", code="fetch-file-unreadable", why=os.strerror(error.errno or 0)
        ) from error
    with file:
        yield file
