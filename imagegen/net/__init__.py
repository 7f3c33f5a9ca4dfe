"""HTTP and file:// for everything that imagegen fetches: credentials, proxies, retries, resume, verification."""

from imagegen.net.address import file_path, is_file
from imagegen.net.answer import DeniedError, NotFoundError, UnreadError
from imagegen.net.client import Client, Growing
from imagegen.net.exchange import UnreachableError
from imagegen.net.missing import Missing, MissingFiles
from imagegen.net.page import Page

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
