"""HTTP and file:// for everything that imagegen fetches: credentials, proxies, retries, resume, verification."""

from imagegen.core.net.address import Page, file_path, is_file
from imagegen.core.net.answer import DeniedError, Missing, MissingFiles, NotFoundError, UnavailableError
from imagegen.core.net.client import ByteSink, Client
from imagegen.core.net.exchange import UnreachableError

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
]
