"""Package indexes and find-links places: their addresses on this machine, and the files that they list.

An alias stands for an index in a matrix and a lock; settings say from where this machine gets it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote, urlsplit

from imagegen.core.config import Settings, mirror_name
from imagegen.core.data import parse_json
from imagegen.core.deferred import dataclass
from imagegen.core.errors import FetchError
from imagegen.core.net.address import file_path, is_file
from imagegen.core.net.page import Page
from imagegen.core.text import redact
from imagegen.core.types import names_file, url_path

if TYPE_CHECKING:
    import pypi_simple

    from imagegen.core.net.client import Client

DEFAULT = "pypi"
_PREAMBLE = 1024  # bytes of a page in which HTML shows itself
_MAX_LINKS = 200_000  # the longest pages have some ten thousand
_MAX_TAG = 1 << 14  # bytes
# Characters. File systems take no longer name; on one, parsers backtrack, and its tags are the product of its parts.
_MAX_NAME = 255
# No part of it reads over the beginning of another tag, so that any page takes time in proportion to its length.
_ATTRIBUTES = (
    "data-requires-python",
    "data-upload-time",
    "data-yanked",
    "data-core-metadata",
    "data-dist-info-metadata",
)
_TAG = re.compile(rb"""<(a|base|meta)\s(?:[^<>"']|"(?:[^"<]|<[^a-z/!"])*"|'(?:[^'<]|<[^a-z/!'])*')*>""", re.IGNORECASE)


@dataclass(frozen=True)
class IndexLink:
    """A file on a page or in a directory, and its attributes on the page (PEP 503, 592, 658, 700)."""

    filename: str
    url: str
    sha256: str | None
    python: str = ""  # the specifier of Requires-Python, unchanged
    uploaded: dt.date | None = None  # in UTC
    yanked: bool = False
    metadata_sha256: str | None = None


class DeclaredIndex(Protocol):
    """The entry of an index in a matrix."""

    @property
    def url(self) -> str | None: ...


def with_indexes(settings: Settings, indexes: Mapping[str, DeclaredIndex]) -> Settings:
    """Return the settings with the address of each alias of the matrix; addresses of the user take precedence.

    User and password of uv's variables for an index of that name become part of the address, for uv and for ourselves.
    """
    urls = {alias: index.url for alias, index in indexes.items() if index.url} | dict(settings.index_urls)
    # No variable's name has a dot.
    urls |= {alias: urls[spelled] for alias in indexes if (spelled := alias.replace(".", "-")) in settings.index_urls}
    return replace(settings, index_urls={alias: _signed(alias, url, settings) for alias, url in urls.items()})


def _signed(alias: str, url: str, settings: Settings) -> str:
    name = f"UV_INDEX_{mirror_name(alias)}"
    user, password = (settings.env.get(f"{name}_{part}", "") for part in ("USERNAME", "PASSWORD"))
    scheme, separator, location = url.partition("://")
    if not (user or password) or "@" in location.partition("/")[0] or scheme not in ("http", "https"):
        return url
    return f"{scheme}{separator}{quote(user, safe='')}:{quote(password, safe='')}@{location}"


def url_of(alias: str, settings: Settings) -> str | None:
    """Return the address that serves `alias` here, without a trailing slash."""
    if alias == DEFAULT and alias not in settings.index_urls:
        import pypi_simple  # late, here and below, since an unchanged build needs no HTML parser

        return pypi_simple.PYPI_SIMPLE_ENDPOINT.rstrip("/")
    return settings.index_urls.get(alias, "").rstrip("/") or None


def variable(alias: str) -> str:
    """Return the environment variable that gives an alias another address."""
    return f"IMAGEGEN_INDEX_{mirror_name(alias)}"


def project(client: Client, index_url: str, name: str) -> list[IndexLink]:
    """Return the files of a project (PEP 503, PEP 691). Raises FetchError."""
    import pypi_simple

    return _links(client.page(f"{index_url}/{name}/", accept=pypi_simple.ACCEPT_JSON_PREFERRED), name)


def find_links(client: Client, location: str) -> list[IndexLink]:
    """Return the files of a find-links directory (a path or a file:// address) or page. Raises FetchError."""
    directory = local_directory(location)
    if directory is not None:
        return [IndexLink(path.name, path.resolve().as_uri(), None) for path in sorted(directory.iterdir())]
    return _links(client.page(location if "://" in location else Path(location).resolve().as_uri()), "")


def local_directory(location: str) -> Path | None:
    """Return the directory that a find-links location names; None if it is not a directory."""
    path = file_path(location) if is_file(location) else Path(location)
    return path if ("://" not in location or is_file(location)) and path.is_dir() else None


def _links(page: Page, name: str) -> list[IndexLink]:
    import pypi_simple

    # By content, not by its declared type, since some mirrors serve HTML as JSON.
    try:
        if page.body.lstrip()[:1] == b"{":
            data = parse_json(page.body)
            _check_count(len(data["files"]))
            data["files"] = [file for file in data["files"] if len(file["filename"]) <= _MAX_NAME]
            project_page = pypi_simple.ProjectPage.from_json_data(data, page.url)
            links = [_link_of(package) for package in project_page.packages]
        else:
            links = [_link(anchor) for anchor in pypi_simple.RepositoryPage.from_html(_tags(page.body), page.url).links]
            if not links and b"<" not in page.body[:_PREAMBLE]:
                raise ValueError(f"it begins with {page.body[:40]!r}")  # noqa: TRY301 - as the parsers raise
        return [link for link in links if len(link.filename) <= _MAX_NAME and _may_link(page.url, link.url)]
    except (ValueError, KeyError, TypeError, RecursionError, pypi_simple.UnsupportedRepoVersionError) as error:
        message = f"{redact(page.url)} is not a page of a package index" + (f" about {name}" if name else "")
        raise FetchError(message, why=redact(str(error))) from error


def _tags(body: bytes) -> str:
    """Return the tags of an HTML page that name files: an HTML parser can take days over other contents."""
    matches = list(itertools.islice(_TAG.finditer(body), _MAX_LINKS + 1))
    _check_count(len(matches))
    tags = (match[0] + (b"</a>" if match[1] in b"aA" else b"") for match in matches if len(match[0]) <= _MAX_TAG)
    return b"".join(tags).decode(errors="replace")


def _check_count(links: int) -> None:
    if links > _MAX_LINKS:
        raise ValueError(f"it has more than {_MAX_LINKS} links")


def _may_link(page: str, link: str) -> bool:
    """Return whether a page may link there. A page on the network must not lead to files of this machine."""
    return urlsplit(link).scheme in ("http", "https") or (is_file(page) and is_file(link))


def _link_of(file: pypi_simple.DistributionPackage) -> IndexLink:
    return IndexLink(
        file.filename,
        file.url,
        file.digests.get("sha256"),
        file.requires_python or "",
        upload_day(file.upload_time.isoformat() if file.upload_time else ""),
        file.is_yanked,
        (file.metadata_digests or {}).get("sha256"),
    )


def _link(anchor: pypi_simple.Link) -> IndexLink:
    address = urlsplit(anchor.url)
    attributes = {name: text for name in _ATTRIBUTES if (text := anchor.get_str_attrib(name)) is not None}
    return IndexLink(
        unquote(address.path.rpartition("/")[2]),
        address._replace(fragment="").geturl(),
        _sha256(address.fragment),
        attributes.get("data-requires-python", ""),
        upload_day(attributes.get("data-upload-time", "")),
        "data-yanked" in attributes,
        _sha256(attributes.get("data-core-metadata") or attributes.get("data-dist-info-metadata", "")),
    )


def _sha256(text: str) -> str | None:
    algorithm, _, digest = text.partition("=")
    return digest.lower() if algorithm == "sha256" else None


def upload_day(text: str) -> dt.date | None:
    """Parse an upload time (RFC 3339). The standard has it only in JSON; some mirrors have it in HTML too."""
    try:
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC).date()
    except (ValueError, OverflowError):
        return None


def hint(url: str, filename: str) -> str | None:
    """Return the path of a file's address without the host, for a lock; None if a lock cannot have it."""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not names_file(address.path, filename):
        return None
    try:
        return url_path(address.path.removeprefix("/"))
    except ValueError:
        return None


def file_host(links: Iterable[IndexLink]) -> str | None:
    """Return the address of the file host that an index's page shows; hints are relative to it."""
    for link in links:
        address = urlsplit(link.url)
        if address.scheme in ("http", "https"):
            return f"{address.scheme}://{address.netloc}"
    return None
