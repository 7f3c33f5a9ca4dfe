"""A base's packages, resolved by apt from the signed archive, in an apt of our own (apt.py)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from imagegen.base import image
from imagegen.base.apt import Apt
from imagegen.base.mirrors import mirrors
from imagegen.base.model import Deb, LockedBase
from imagegen.config import Settings
from imagegen.errors import BaseError
from imagegen.matrix.model import Base
from imagegen.progress import Progress, timed

ARCHITECTURE = "amd64"
# What every base holds: apt's own idea of essential, apt itself for users' own Dockerfiles, and the choice of merged
# /usr by construction (the alternative, usrmerge, would convert at run time and brings 50 MB of Perl for it).
_ALWAYS = ("?essential", "apt", "usr-is-merged")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")  # Debian policy 5.6.1; apt takes a final "-" as "remove"
_URI_LINE = re.compile(
    r"'(?P<uri>[^']+)' (?P<name>[^ _]+)_(?P<version>[^ _]+)_(?P<architecture>[^ _]+)\.deb "
    r"(?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})"
)


def resolve(base: Base, settings: Settings, progress: Progress) -> LockedBase:
    """The exact packages of `base` in the archive as it is now: essential ones, apt, the base's own, dependencies.

    Recommended packages stay out. Of kind registry: the image that its name stands for now. Raises FetchError for that;
    BaseError: no apt or keyring on this machine, no mirror known, the archive unreachable or expired or not signed by
    Debian, a package that does not exist.
    """
    if base.kind == "registry":
        return image.resolve(base, settings, progress, architecture=ARCHITECTURE)
    if base.kind != "debian" or base.suite is None:
        raise BaseError(f"base {base.name}: unknown kind {base.kind!r}", fix="kind: debian")
    if wrong := [name for name in base.packages if not _NAME.fullmatch(name)]:
        raise BaseError(
            f"base {base.name}: {', '.join(map(repr, wrong))} cannot be a package's name",
            fix="name packages without version, architecture or suite: the lock pins them",
        )
    roots = mirrors(settings)
    suites = {
        "debian": (base.suite, f"{base.suite}-updates"),
        "debian-security": (f"{base.suite}-security",),
    }
    with tempfile.TemporaryDirectory(prefix="imagegen-apt-") as name, timed(progress, f"resolving base {base.name}"):
        apt = Apt(Path(name), suites, roots, settings, architecture=ARCHITECTURE)
        apt.run("update", "--error-on=any")
        archives = _archives(base, suites, apt.dates())
        wanted = (*_ALWAYS, *sorted(base.packages))
        debs = parse_uris(apt.run("install", "--yes", "--no-install-recommends", "--print-uris", *wanted), apt.roots)
    return LockedBase(base.name, base.kind, base.suite, archives, debs)


def _archives(base: Base, suites: Mapping[str, Sequence[str]], dates: Mapping[str, str]) -> dict[str, str]:
    """Archive and suite, as in "debian/bookworm" -> date of the Release file."""
    try:
        return {f"{archive}/{suite}": dates[suite] for archive in suites for suite in suites[archive]}
    except KeyError as error:
        raise BaseError(
            f"base {base.name}: {base.suite!r} is not a release's code name",
            why=f"the archive serves it as {', '.join(sorted(dates))}",
            fix="name the suite by its code name, as in bookworm: names such as stable move",
        ) from error


def parse_uris(text: str, roots: Mapping[str, str]) -> tuple[Deb, ...]:
    """The lines of `apt-get --print-uris` as packages, sorted by name.

    A line is 'URI' name_version_architecture.deb size SHA256:hash, with %XX for what a file name may not hold.
    Raises BaseError for a line of another form and for a URI that is in none of the archives.
    """
    debs = []
    for line in text.splitlines():
        match = _URI_LINE.fullmatch(line.strip())
        if match is None:
            raise BaseError("apt answered in an unknown form", why=line)
        name, version, architecture = (unquote(match[field]) for field in ("name", "version", "architecture"))
        for archive, root in sorted(roots.items(), key=lambda item: -len(item[1])):  # one may lie below another
            if match["uri"].startswith(root + "/"):
                path = unquote(match["uri"].removeprefix(root + "/"))
                debs.append(Deb(name, version, architecture, match["sha256"], int(match["size"]), archive, path))
                break
        else:
            raise BaseError("a package comes from none of the archives", why=line)
    return tuple(sorted(debs, key=lambda deb: deb.name))
