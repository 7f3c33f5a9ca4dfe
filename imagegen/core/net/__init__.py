"""HTTP and file:// for everything that imagegen fetches: credentials, proxies, retries, resume, verification."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.core.net.address import Page, file_path, is_file
    from imagegen.core.net.answer import (
        DeniedError,
        Missing,
        MissingFiles,
        NotFoundError,
        UnavailableError,
        UnreachableError,
    )
    from imagegen.core.net.client import ByteSink, Client
    from imagegen.core.net.package_index import with_indexes

__all__ = [
    "ByteSink",
    "Client",
    "DeniedError",
    "Missing",
    "MissingFiles",
    "NotFoundError",
    "Page",
    "UnavailableError",
    "UnreachableError",
    "file_path",
    "is_file",
    "with_indexes",
]

__getattr__ = lazy_names(
    __name__,
    {
        "address": ("Page", "file_path", "is_file"),
        "answer": ("DeniedError", "Missing", "MissingFiles", "NotFoundError", "UnavailableError", "UnreachableError"),
        "client": ("ByteSink", "Client"),
        "package_index": ("with_indexes",),
    },
)
