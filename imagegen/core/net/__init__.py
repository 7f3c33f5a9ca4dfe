"""HTTP and file:// for everything that imagegen fetches: credentials, proxies, retries, resume, verification."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.core.net.address import file_path, is_file
    from imagegen.core.net.client import ByteSink, Client
    from imagegen.core.net.missing import Missing, MissingFiles
    from imagegen.core.net.package_index import with_indexes
    from imagegen.core.net.page import Page
    from imagegen.core.net.status import DeniedError, NotFoundError, UnavailableError, UnreachableError

__getattr__ = lazy_names(
    __name__,
    {
        "address": ("file_path", "is_file"),
        "client": ("ByteSink", "Client"),
        "missing": ("Missing", "MissingFiles"),
        "package_index": ("with_indexes",),
        "page": ("Page",),
        "status": ("DeniedError", "NotFoundError", "UnavailableError", "UnreachableError"),
    },
)
