"""Package URLs of the components of an image.

Source: ECMA-427, Package-URL, and its registered types.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from imagegen.audit.model import InstalledDeb, OsRelease
from imagegen.lock.foundation import LockedDeb
from imagegen.lock.model import LOCAL, LockedFile

_PLAIN = ".-_~:"  # never percent-encoded, as letters and digits


def pypi(name: str, version: str, file: LockedFile | None) -> str:
    """Return the purl of a wheel, a source distribution, or a release; `name` is normalised as PyPI does.

    A package of the project is generic, because a package of this name on PyPI has other vulnerabilities.
    """
    kind = "generic" if file and file.index == LOCAL else "pypi"
    return _purl(kind, name, version, {"file_name": file.filename if file else None})


def deb(package: LockedDeb, suite: str | None) -> str:
    """Return the purl of a .deb in an archive for Debian or Ubuntu."""
    vendor = "ubuntu" if package.archive == "ubuntu" else "debian"
    return _purl(f"deb/{vendor}", package.name, package.version, {"arch": package.architecture, "distro": suite})


def deb_of(release: OsRelease | None, name: str, package: InstalledDeb) -> str:
    """Return the purl of a package that dpkg lists; `release` names the distribution."""
    vendor, codename = (release.id, release.codename) if release else ("debian", "")
    return _purl(
        f"deb/{quote(vendor, _PLAIN)}", name, package.version, {"arch": package.architecture, "distro": codename}
    )


def oci(repository: str, digest: str, platform: str) -> str:
    """Return the purl of an image by its digest; `repository` is its name, with or without registry and path."""
    prefix, _, name = repository.rpartition("/")
    architecture = platform.rpartition("/")[2]
    return _purl("oci", name.lower(), digest, {"arch": architecture, "repository_url": repository if prefix else None})


def git(name: str, version: str, url: str, commit: str) -> str:
    """Return the purl of a commit's tree."""
    return _purl("generic", name, version, {"vcs_url": f"git+{url}@{commit}"})


def generic(name: str, version: str, url: str, sha256: str) -> str:
    """Return the package URL of a file that is downloaded from an address."""
    return _purl("generic", name, version, {"download_url": url, "checksum": f"sha256:{sha256}"})


def _purl(kind: str, name: str, version: str, qualifiers: Mapping[str, str | None]) -> str:
    query = "&".join(f"{key}={quote(value, _PLAIN + '/')}" for key, value in sorted(qualifiers.items()) if value)
    return f"pkg:{kind}/{quote(name, _PLAIN)}@{quote(version, _PLAIN)}" + (f"?{query}" if query else "")
