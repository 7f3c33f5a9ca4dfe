"""HTTP and file:// for everything that imagegen fetches: credentials, proxies, retries, resume, verification."""

from imagegen.net.address import file_path, is_file, redact
from imagegen.net.client import Client, NotFoundError, Page, UnreachableError

__all__ = ["Client", "NotFoundError", "Page", "UnreachableError", "file_path", "is_file", "redact"]
