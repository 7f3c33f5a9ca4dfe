"""Package indexes, and the machine that an image is made for.

An alias stands for an index in a lock; settings say from where this machine gets it. Lists the files of an index or a
find-links place, and selects the wheels that fit.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote, urlsplit

from packaging.version import Version

from imagegen.core.config import Settings, mirror_name
from imagegen.core.data import parse_json
from imagegen.core.deferred import dataclass
from imagegen.core.errors import FetchError, LockError
from imagegen.core.net.address import Page, file_path, is_file
from imagegen.core.oci import MACHINES
from imagegen.core.text import redact
from imagegen.core.types import names_file, url_path
from imagegen.plan.matrix.model import Base, Index

if TYPE_CHECKING:
    import pypi_simple
    from packaging.tags import Tag

    from imagegen.core.net import Client

_OLDEST = {"x86_64": 5, "aarch64": 17}  # minor versions of glibc 2 at which manylinux begins (PEP 513, 599)
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_UV_GLIBC = (17, 28, *range(31, 41))  # what `uv pip compile --python-platform` knows, uv 0.13.8

T = TypeVar("T")


@dataclass(frozen=True)
class WheelTarget:
    """The interpreter and machine that a wheel must fit. `python` is the interpreter's full version, "3.11.2",
    where it is known; else "3.11".
    """

    python: str
    machine: str  # "x86_64"
    glibc: int  # minor version: 36 for 2.36

    @classmethod
    def of(cls, platform: str, base: Base, python: str) -> WheelTarget:
        """Raises LockError for a platform or a base that wheels have no name for."""
        glibc = re.fullmatch(r"2\.(\d+)", base.glibc)
        if platform not in MACHINES or not glibc:
            raise LockError(
                f"no wheel can be chosen for {platform} with glibc {base.glibc}",
                code="lock-glibc-unsupported",
                why=f"known are {', '.join(MACHINES)} and glibc 2.x",
            )
        return cls(python, MACHINES[platform], int(glibc[1]))

    @property
    def uv_platform(self) -> str:
        minor = max(release for release in _UV_GLIBC if release <= self.glibc)
        return f"{self.machine}-manylinux_2_{minor}"

    @cached_property
    def ranks(self) -> dict[Tag, int]:
        """Every tag that fits -> its rank, 0 for the most specific (PEP 425 and 600)."""
        from packaging.tags import compatible_tags, cpython_tags  # late, here and below: a kept lock has its wheels

        version = tuple(int(part) for part in self.python.split(".")[:2])
        platforms = list(self._platforms())
        tags = [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}

    def _platforms(self) -> Iterator[str]:
        for minor in range(self.glibc, _OLDEST[self.machine] - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{self.machine}"
        yield f"linux_{self.machine}"

    def best(self, wheels: Iterable[tuple[str, T]]) -> T | None:
        """Return the value beside the file name that fits best, then has the highest build tag; or None."""
        fitting = [(key, item) for name, item in wheels if (key := self._fitness(name)) is not None]
        return max(fitting, key=lambda pair: pair[0])[1] if fitting else None

    def _fitness(self, filename: str) -> tuple[int, tuple[int, str] | tuple[()], str] | None:
        from packaging.utils import parse_wheel_filename

        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except ValueError:
            return None
        ranks = [self.ranks[tag] for tag in tags if tag in self.ranks]
        return (-min(ranks), build, filename) if ranks else None


# Package indexes: where an alias is served from on this machine, and what an index or a find-links place holds.

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
    python: str = ""  # the specifier of Requires-Python, as it is written there
    uploaded: dt.date | None = None  # in UTC
    yanked: bool = False
    metadata_sha256: str | None = None


def with_indexes(settings: Settings, indexes: Mapping[str, Index]) -> Settings:
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
    """The address that serves `alias` here, without a trailing slash."""
    if alias == DEFAULT and alias not in settings.index_urls:
        import pypi_simple  # late, here and below: it brings an HTML parser, which an unchanged build never needs

        return pypi_simple.PYPI_SIMPLE_ENDPOINT.rstrip("/")
    return settings.index_urls.get(alias, "").rstrip("/") or None


def variable(alias: str) -> str:
    """The environment variable that gives an alias another address."""
    return f"IMAGEGEN_INDEX_{mirror_name(alias)}"


def project(client: Client, index_url: str, name: str) -> list[IndexLink]:
    """The files of a project (PEP 503, PEP 691). Raises FetchError."""
    import pypi_simple

    return _links(client.page(f"{index_url}/{name}/", accept=pypi_simple.ACCEPT_JSON_PREFERRED), name)


def find_links(client: Client, location: str) -> list[IndexLink]:
    """The files at a find-links place: a directory, a file:// address, or a page. Raises FetchError."""
    directory = local_directory(location)
    if directory is not None:
        return [IndexLink(path.name, path.resolve().as_uri(), None) for path in sorted(directory.iterdir())]
    return _links(client.page(location if "://" in location else Path(location).resolve().as_uri()), "")


def local_directory(location: str) -> Path | None:
    """The directory that a find-links place names, if it is one."""
    path = file_path(location) if is_file(location) else Path(location)
    return path if ("://" not in location or is_file(location)) and path.is_dir() else None


def stand_in(settings: Settings, package: str, version: str, target: WheelTarget) -> Path | None:
    """The one wheel of exactly this release (local version included) for the target in the find-links directories.

    None when there is none, or when several file names fit and a choice would have to be made.
    """
    paths: dict[str, Path] = {}
    for directory in filter(None, map(local_directory, settings.find_links)):
        for path in sorted(directory.glob("*.whl")):
            if _is_release(path.name, package, version) and target.best([(path.name, path)]) is not None:
                paths.setdefault(path.name, path)
    return next(iter(paths.values())) if len(paths) == 1 else None


def _is_release(filename: str, package: str, version: str) -> bool:
    from packaging.utils import parse_wheel_filename

    try:
        name, wheel_version, _, _ = parse_wheel_filename(filename)
    except ValueError:
        return False
    return name == package and wheel_version == Version(version)


def _links(page: Page, name: str) -> list[IndexLink]:
    import pypi_simple

    # By content, not by its declared type: there are mirrors that serve HTML as JSON.
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
                raise ValueError(f"it begins with {page.body[:40]!r}")  # noqa: TRY301 - as what the parsers raise
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
    """A page on the network must not send us to this machine's files; what is neither cannot be fetched."""
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
    """Parse an upload time (RFC 3339). The standard has it in JSON alone; some mirrors have it in HTML too."""
    try:
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC).date()
    except (ValueError, OverflowError):
        return None


def hint(url: str, filename: str) -> str | None:
    """Return the host-free part of a file's address for a lock; None where there is none that a lock may hold."""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not names_file(address.path, filename):
        return None
    try:
        return url_path(address.path.removeprefix("/"))
    except ValueError:
        return None


def file_host(links: Iterable[IndexLink]) -> str | None:
    """Return the address of the file host that an index's page shows, without a path: what a hint is relative to."""
    for link in links:
        address = urlsplit(link.url)
        if address.scheme in ("http", "https"):
            return f"{address.scheme}://{address.netloc}"
    return None
