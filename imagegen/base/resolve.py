"""A base's packages, resolved by apt from the signed archive, in an apt of its own.

Nothing of the host's apt takes part: not its configuration, hooks, preferences, lists, installed packages or
architecture. apt checks the archive's signatures against Debian's keyring. Sources of the formats: apt.conf(5),
sources.list(5), and wiki.debian.org/DebianRepository/Format.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote

from imagegen.base.mirrors import host_env, mirrors
from imagegen.base.model import Deb, LockedBase
from imagegen.config import Settings
from imagegen.errors import BaseError
from imagegen.matrix.model import Base
from imagegen.net import redact
from imagegen.progress import Progress, timed

ARCHITECTURE = "amd64"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# What every base holds: apt's own idea of essential, apt itself for users' own Dockerfiles, and the choice of merged
# /usr by construction (the alternative, usrmerge, would convert at run time and brings 50 MB of Perl for it).
_ALWAYS = ("?essential", "apt", "usr-is-merged")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")  # Debian policy 5.6.1; apt takes a final "-" as "remove"
_URI_LINE = re.compile(
    r"'(?P<uri>[^']+)' (?P<name>[^ _]+)_(?P<version>[^ _]+)_(?P<architecture>[^ _]+)\.deb "
    r"(?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})"
)
_CONFIGURATION = """\
Dir "{root}";
Dir::State::status "{root}/status";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
{extra}
"""


def resolve(base: Base, settings: Settings, progress: Progress) -> LockedBase:
    """The exact packages of `base` in the archive as it is now: essential ones, apt, the base's own, dependencies.

    Recommended packages stay out. Raises BaseError: no apt or keyring on this machine, no mirror known, the archive
    unreachable or expired or not signed by Debian, a package that does not exist.
    """
    if base.kind != "debian":
        raise BaseError(f"base {base.name}: unknown kind {base.kind!r}", fix="kind: debian")
    if wrong := [name for name in base.packages if not _NAME.fullmatch(name)]:
        raise BaseError(
            f"base {base.name}: {', '.join(map(repr, wrong))} cannot be a package's name",
            fix="name packages without version, architecture or suite: the lock pins them",
        )
    if not _KEYRING.exists():
        raise BaseError(
            "Debian's keyring is not installed", why=f"no {_KEYRING}", fix="apt-get install debian-archive-keyring"
        )
    roots = mirrors(settings)
    suites = {
        "debian": (base.suite, f"{base.suite}-updates"),
        "debian-security": (f"{base.suite}-security",),
    }
    with tempfile.TemporaryDirectory(prefix="imagegen-apt-") as name, timed(progress, f"resolving base {base.name}"):
        apt = _Apt(Path(name), settings)
        apt.write_sources(suites, roots)
        apt.run("update", "--error-on=any")
        archives = _archives(base, suites, apt.dates())
        wanted = (*_ALWAYS, *sorted(base.packages))
        debs = parse_uris(apt.run("install", "--yes", "--no-install-recommends", "--print-uris", *wanted), roots)
    return LockedBase(base.name, base.kind, base.suite, base.interpreter, archives, debs)


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


class _Apt:
    """apt-get with all its state below `root`."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root = root
        for name in ("apt.conf.d", "preferences.d", "sources.list.d", "trusted.gpg.d"):
            (root / "etc/apt" / name).mkdir(parents=True)
        for name in ("lib/apt/lists/partial", "cache/apt/archives/partial"):
            (root / "var" / name).mkdir(parents=True)
        (root / "status").touch()
        extra = "".join(f"{option}\n" for option in _of_host(settings))
        (root / "apt.conf").write_text(_CONFIGURATION.format(root=root, architecture=ARCHITECTURE, extra=extra))
        self._env = {**host_env(settings), "APT_CONFIG": str(root / "apt.conf")}

    def write_sources(self, suites: Mapping[str, Sequence[str]], roots: Mapping[str, str]) -> None:
        lines = [
            f"deb [signed-by={_KEYRING}] {roots[archive]} {suite} main\n"
            for archive in suites
            for suite in suites[archive]
        ]
        (self._root / "etc/apt/sources.list").write_text("".join(lines))

    def run(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                ["apt-get", "--quiet", "--quiet", *arguments],
                capture_output=True,
                text=True,
                env=self._env,
                check=False,
            )
        except FileNotFoundError as error:
            raise BaseError(
                "apt-get is not installed",
                why="a Debian base is resolved by apt",
                fix="on Debian and Ubuntu it is always there; elsewhere, run imagegen in a Debian container",
            ) from error
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:", "Err:"))]
            raise BaseError(
                f"apt cannot {'read the archive' if arguments[0] == 'update' else 'resolve the base'}",
                why="\n       ".join(redact(line) for line in said or done.stderr.strip().splitlines()[-5:]),
                fix=_advice(done.stderr),
            )
        return done.stdout

    def dates(self) -> dict[str, str]:
        """Code name -> date of every Release file that was read."""
        lists = sorted((self._root / "var/lib/apt/lists").glob("*Release"))
        return dict(parse_release(path.read_text(errors="replace")) for path in lists)


def _of_host(settings: Settings) -> list[str]:
    """The options of the host's apt that decide whether an archive is trusted, not what is in it.

    The administrator of a frozen mirror says so there; the dates in the lock show what was read. TLS follows the
    settings.
    """
    try:
        done = subprocess.run(
            ["apt-config", "dump", "--format", '%F "%v";%n', "Acquire::Check-Valid-Until", "Acquire::Check-Date"],
            capture_output=True,
            text=True,
            env=host_env(settings),
            check=False,
        )
    except FileNotFoundError:
        return []
    ca = [f'Acquire::https::CAInfo "{settings.ca_bundle}";'] if settings.ca_bundle else []
    return [*done.stdout.splitlines(), *ca]


def _advice(stderr: str) -> str:
    if "Unable to locate package" in stderr or "no installation candidate" in stderr:
        return "correct the base's packages in the matrix; only the archive's `main` component is used"
    if "expired" in stderr or "not valid yet" in stderr:
        return "the mirror is stale or this machine's clock is wrong: use another mirror (IMAGEGEN_DEBIAN_MIRROR)"
    return "check the network and IMAGEGEN_DEBIAN_MIRROR, IMAGEGEN_DEBIAN_SECURITY_MIRROR where set"


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


def parse_release(text: str) -> tuple[str, str]:
    """(code name, date in RFC 3339) of a Release or InRelease file."""
    fields = dict(re.findall(r"^(Codename|Date): *(.+?) *$", text, re.MULTILINE))
    try:
        date: datetime = parsedate_to_datetime(fields["Date"])
        return fields["Codename"], date.strftime("%Y-%m-%dT%H:%M:%SZ")
    except (KeyError, ValueError) as error:
        raise BaseError("a Release file of the archive has no code name or date", why=text[:200]) from error
