"""A base's packages, resolved by apt from the signed archive, in an apt of our own (apt.py)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.core.progress import Progress, timed
from imagegen.image.base import image
from imagegen.image.base.apt import Apt, AptSource, keyring
from imagegen.image.base.fetch import mirrors
from imagegen.plan.distributions import DebianRelease, release
from imagegen.plan.lock.base import LockedBase, LockedDeb
from imagegen.plan.matrix.model import Base

ARCHITECTURE = "amd64"
_ESSENTIAL = "?essential"  # apt's own idea of it (apt-patterns(7))
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")  # Debian policy 5.6.1; apt takes a final "-" as "remove"
_URI_LINE = re.compile(
    r"'(?P<uri>[^']+)' (?P<name>[^ _]+)_(?P<version>[^ _]+)_(?P<architecture>[^ _]+)\.deb "
    r"(?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})"
)


def resolve(base: Base, settings: Settings, progress: Progress) -> LockedBase:
    """Return the exact packages of `base` in the archive as it is now: essential ones, apt, its own, dependencies.

    Recommended packages stay out. For kind registry, return the image that its name resolves to now, or raise
    FetchError. Raises BaseError: no apt or keyring on this machine, no mirror known, the archive unreachable or expired
    or not signed by Debian, a package that does not exist.
    """
    if base.kind == "registry":
        return image.resolve(base, settings, progress, architecture=ARCHITECTURE)
    if base.kind != "debian" or base.suite is None:
        raise BaseError(f"base {base.name}: unknown kind {base.kind!r}", code="base-unknown-kind", fix="kind: debian")
    check_names(base.packages, f"base {base.name}")
    found = release(base.suite)
    sources = official(found, settings)
    with tempfile.TemporaryDirectory(prefix="imagegen-apt-") as name, timed(progress, f"resolving base {base.name}"):
        apt = Apt(Path(name), sources, settings, architecture=ARCHITECTURE)
        apt.run("update", "--error-on=any")
        archives = {f"{archive}/{suite}": date for (archive, suite), (_, date) in apt.releases().items()}
        required = (_ESSENTIAL, *found.packages, *sorted(base.packages))
        debs = parse_uris(apt.run("install", "--yes", "--no-install-recommends", "--print-uris", *required), apt.roots)
    return LockedBase(base.name, base.kind, base.suite, archives, debs)


def official(release: DebianRelease, settings: Settings, *, pockets: bool = True) -> list[AptSource]:
    """Return the sources of a release, with its updates; without `pockets` the first suite alone.

    Raises BaseError: no mirror known, no keyring on this machine.
    """
    signed_by = keyring(release)
    suites = [(archive, suite) for archive, suites in release.suites.items() for suite in suites]
    suites = suites if pockets else suites[:1]
    served = mirrors(list(dict(suites)), settings)
    return [AptSource(archive, served[archive], suite, release.components, signed_by) for archive, suite in suites]


def check_names(packages: Iterable[str], where: str) -> None:
    """Raise BaseError for what cannot be the name of a package, before apt reads it as an option or an action."""
    if wrong := [name for name in packages if not _NAME.fullmatch(name)]:
        raise BaseError(
            f"{where}: {', '.join(map(repr, wrong))} cannot be a package's name",
            code="base-package-name-invalid",
            fix="name packages without version, architecture or suite: the lock pins them",
        )


def parse_uris(text: str, roots: Mapping[str, str]) -> tuple[LockedDeb, ...]:
    """Return the lines of `apt-get --print-uris` as packages, sorted by name.

    A line is 'URI' name_version_architecture.deb size SHA256:hash, with %XX for what a file name may not hold.
    Raises BaseError for a line of another form and for a URI that is in none of the archives.
    """
    debs = []
    for line in text.splitlines():
        match = _URI_LINE.fullmatch(line.strip())
        if match is None:
            raise BaseError("apt answered in an unknown form", code="base-apt-output-invalid", why=line)
        name, version, architecture = (unquote(match[field]) for field in ("name", "version", "architecture"))
        for archive, root in sorted(roots.items(), key=lambda item: -len(item[1])):  # one may lie below another
            if match["uri"].startswith(root + "/"):
                path = unquote(match["uri"].removeprefix(root + "/")).removeprefix("./")  # of a flat archive
                debs.append(LockedDeb(name, version, architecture, int(match["size"]), match["sha256"], archive, path))
                break
        else:
            raise BaseError("a package comes from none of the archives", code="base-apt-output-invalid", why=line)
    return tuple(sorted(debs, key=lambda deb: deb.name))
