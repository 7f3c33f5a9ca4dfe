"""Package URLs: one name for a package of whatever kind. Source: ECMA-427, Package-URL, and its registered types."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from imagegen.audit.model import Deb as InstalledDeb
from imagegen.audit.model import Release
from imagegen.plan.lock.base import Deb
from imagegen.plan.lock.model import File

_PLAIN = ".-_~:"  # beside letters and digits, what is never percent-encoded


def pypi(name: str, version: str, file: File | None) -> str:
    """Return the purl of a wheel, a source distribution, or a release; `name` is normalised as PyPI does."""
    return _purl("pypi", name, version, {"file_name": file.filename if file else None})


def deb(package: Deb, suite: str | None) -> str:
    """Return the purl of a .deb of Debian's archive, or of Ubuntu's; other archives are for one of the two."""
    vendor = "ubuntu" if package.archive == "ubuntu" else "debian"
    return _purl(f"deb/{vendor}", package.name, package.version, {"arch": package.architecture, "distro": suite})


def deb_of(release: Release | None, name: str, package: InstalledDeb) -> str:
    """Return the purl of a package that dpkg lists; the system's release names the distribution."""
    vendor, codename = (release.id, release.codename) if release else ("debian", "")
    return _purl(
        f"deb/{quote(vendor, _PLAIN)}", name, package.version, {"arch": package.architecture, "distro": codename}
    )


def oci(repository: str, digest: str, platform: str) -> str:
    """Return the purl of an image by its digest; `repository` is its name with registry and path, or its last part
    alone.
    """
    place, _, name = repository.rpartition("/")
    architecture = platform.rpartition("/")[2]
    return _purl("oci", name.lower(), digest, {"arch": architecture, "repository_url": repository if place else None})


def git(name: str, version: str, url: str, commit: str) -> str:
    """Return the purl of a commit's tree."""
    return _purl("generic", name, version, {"vcs_url": f"git+{url}@{commit}"})


def generic(name: str, version: str, url: str, sha256: str) -> str:
    """Return the package URL of a file that is downloaded from an address."""
    return _purl("generic", name, version, {"download_url": url, "checksum": f"sha256:{sha256}"})


def _purl(kind: str, name: str, version: str, qualifiers: Mapping[str, str | None]) -> str:
    said = "&".join(f"{key}={quote(value, _PLAIN + '/')}" for key, value in sorted(qualifiers.items()) if value)
    return f"pkg:{kind}/{quote(name, _PLAIN)}@{quote(version, _PLAIN)}" + (f"?{said}" if said else "")
