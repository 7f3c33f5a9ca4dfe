"""HTTP and file:// for everything that imagegen fetches: credentials, proxies, retries, resume, verification."""

from imagegen.core.net.address import file_path, is_file
from imagegen.core.net.answer import DeniedError, NotFoundError, UnreadError
from imagegen.core.net.client import Client, Growing
from imagegen.core.net.exchange import UnreachableError
from imagegen.core.net.missing import Missing, MissingFiles
from imagegen.core.net.page import Page

__all__ = [
    "Client",
    "DeniedError",
    "Growing",
    "Missing",
    "MissingFiles",
    "NotFoundError",
    "Page",
    "UnreachableError",
    "UnreadError",
    "file_path",
    "is_file",
]
