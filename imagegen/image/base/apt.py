"""A separate apt that reads signed archives and changes nothing on the machine.

It ignores the host's configuration, hooks, preferences, lists and packages, except for the administrator's settings for
trusting expired archives and for network access.

Sources of the formats: apt.conf(5), apt_auth.conf(5), sources.list(5), and wiki.debian.org/DebianRepository/Format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote

from imagegen.core import programs, temporary
from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.core.net.address import file_path, is_file, netrc_auth, parse
from imagegen.core.progress import Progress, timed
from imagegen.core.text import redact
from imagegen.image.base import image
from imagegen.image.base.fetch import (
    AptSuite,
    host_env,
    keys_of,
    mirrors,
    read_preferences,
    read_sources,
    roots,
    trusted_keys,
)
from imagegen.image.base.image import inside, read_inside
from imagegen.lock.distributions import DebianRelease, archive_at, archives, release
from imagegen.lock.foundation import LockedArchive, LockedBase, LockedDeb, LockedPackages
from imagegen.spec.foundation import Base

_OF_HOST = ("Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::http", "Acquire::https")
_CONFIGURATION = """\
Dir "{root}";
Dir::State::status "{root}/status";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
{extra}
"""
_VARIABLES = (
    "IMAGEGEN_DEBIAN_MIRROR, IMAGEGEN_DEBIAN_SECURITY_MIRROR, IMAGEGEN_UBUNTU_MIRROR, IMAGEGEN_APT_MIRROR_<HOST>"
)
_TIMEOUT = 900  # seconds; the lists of a release are some tens of MB
_DOING = {
    "update": "read the archives",
    "install": "resolve the packages",
    "download": "fetch the packages",
}


@dataclass(frozen=True)
class AptSource:
    """One suite of an archive, as apt reads it. A flat archive's suite ends in a slash, and it has no components."""

    archive: str  # its name in locks
    address: str  # where it is served here, perhaps with credentials
    suite: str
    components: tuple[str, ...]
    signed_by: str | Mapping[str, bytes]  # keyring's path or fingerprints; or keyrings' contents by file name
    valid_until: bool = True  # whether the archive's own expiry date counts


@dataclass(frozen=True)
class AptSystem:
    """The installed packages, keys and preferences that apt resolves with; empty without an image."""

    status: bytes = b""  # dpkg's
    trusted: Mapping[str, bytes] = field(default_factory=dict)  # keyrings for all archives, by file name
    preferences: Mapping[str, bytes] = field(default_factory=dict)  # apt_preferences(5), by file name


class Apt:
    """apt-get with all its state below `root`, an empty directory, for the given sources.

    The attribute `roots` maps each archive to its address as apt prints it, without credentials. Without
    `architecture` it is the host's. Raises BaseError if the machine has no apt; `run` raises it with apt's errors.
    """

    def __init__(
        self,
        root: Path,
        sources: Sequence[AptSource],
        settings: Settings,
        *,
        architecture: str | None = None,
        system: AptSystem | None = None,
    ) -> None:
        system = system or AptSystem()
        self._root, self._sources = root, tuple(sources)
        for name in ("apt.conf.d", "preferences.d", "sources.list.d", "trusted.gpg.d"):
            (root / "etc/apt" / name).mkdir(parents=True)
        for name in ("lib/apt/lists/partial", "cache/apt/archives/partial"):
            (root / "var" / name).mkdir(parents=True)
        (root / "status").write_bytes(system.status)
        for folder, files in (("trusted.gpg.d", system.trusted), ("preferences.d", system.preferences)):
            _write(root / "etc/apt" / folder, files)
        addresses = {source.archive: source.address for source in sources}
        signs = {archive: _credentials(address, settings) for archive, address in addresses.items()}
        self.roots = {archive: address for archive, (address, _) in signs.items()}
        (root / "etc/apt/auth.conf").write_text("".join(line for _, line in signs.values()))
        stanzas = [self._stanza(number, source) for number, source in enumerate(sources)]
        (root / "etc/apt/sources.list.d/imagegen.sources").write_text("\n".join(stanzas))
        extra = _of_host(settings)
        if settings.ca_bundle:
            extra.append(f'Acquire::https::CAInfo "{settings.ca_bundle}";')
        if architecture:
            extra += [f'APT::Architecture "{architecture}";', f'APT::Architectures {{ "{architecture}"; }};']
        (root / "apt.conf").write_text(_CONFIGURATION.format(root=root, extra="\n".join(extra)))
        self._env = {**host_env(settings), "APT_CONFIG": str(root / "apt.conf")}

    def _stanza(self, number: int, source: AptSource) -> str:
        signed_by = source.signed_by
        if not isinstance(signed_by, str):
            folder = self._root / "keys" / str(number)
            folder.mkdir(parents=True)
            _write(folder, signed_by)
            signed_by = ", ".join(str(folder / name) for name in sorted(signed_by))
        fields = {
            "Types": "deb",
            "URIs": self.roots[source.archive],
            "Suites": source.suite,
            "Components": " ".join(source.components),
            "Signed-By": signed_by,
            "Check-Valid-Until": "" if source.valid_until else "no",
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)

    def run(self, *arguments: str) -> str:
        """Run apt-get and return its stdout; `download` puts its files into `root`."""
        command = ["apt-get", "--quiet", "--quiet", *arguments]
        try:
            process = programs.run(
                command,
                cwd=self._root,
                capture_output=True,
                text=True,
                errors="replace",
                env=self._env,
                timeout=_TIMEOUT,
            )
        except programs.TimeoutExpired as error:
            # apt's own timeout is for a single read, which never comes where a mirror drips.
            raise BaseError(
                f"apt did not {_DOING[arguments[0]]} in {_TIMEOUT // 60} minutes",
                code="base-apt-timeout",
                why=f"a mirror is too slow: {', '.join(sorted(map(redact, set(self.roots.values()))))}",
                fix=_advice(""),
            ) from error
        except FileNotFoundError as error:
            raise BaseError(
                "apt-get is not installed",
                code="base-program-missing",
                why="Debian's packages are chosen and fetched by apt",
                fix="on Debian and Ubuntu it is always there; elsewhere, run imagegen in a Debian container",
            ) from error
        if process.returncode:
            reported = [line for line in process.stderr.splitlines() if line.startswith(("E:", "W:", "Err:"))]
            reported += self._unmet(arguments)
            raise BaseError(
                f"apt cannot {_DOING[arguments[0]]}",
                code="base-apt-failed",
                why="\n       ".join(redact(line) for line in reported or process.stderr.strip().splitlines()[-5:]),
                fix=_advice(process.stderr),
            )
        return process.stdout

    def _unmet(self, arguments: Sequence[str]) -> list[str]:
        """The dependencies that cannot be met: a quiet apt does not print them."""
        if arguments[0] != "install":
            return []
        command = ["apt-get", *arguments]
        process = programs.run(command, capture_output=True, text=True, errors="replace", env=self._env)
        return process.stdout.partition("unmet dependencies:")[2].strip().splitlines()[:10]

    def releases(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Return (archive, suite) -> (code name, date) of every Release file that was read."""
        dates = {}
        for source in self._sources:
            root = self.roots[source.archive].rstrip("/") + "/"
            folder = f"{root}dists/{source.suite}/" if source.components else root + source.suite.removeprefix("/")
            files = [self._root / "var/lib/apt/lists" / list_name(folder + name) for name in ("InRelease", "Release")]
            text = next((file.read_text(errors="replace") for file in files if file.exists()), "")
            dates[source.archive, source.suite] = parse_release(text)
        return dates


def list_name(uri: str) -> str:
    """Return the name that apt gives to its copy of a file: apt-pkg/contrib/strutl.cc, URItoFileName."""
    address = re.sub(r"^[a-z+]+:(//)?", "", uri)
    quoted = re.sub(r"[^ -~]|[ \\|{}\[\]<>\"^~_=!@#$%&*]", lambda match: f"%{ord(match[0]):02x}", address)
    return quoted.replace("/", "_")


def parse_release(text: str) -> tuple[str, str]:
    """Return (code name, date in RFC 3339) of a Release or InRelease file; flat archives may have no code name."""
    fields = {name: value.strip() for name, value in re.findall(r"^(Codename|Date):(.*)$", text, re.MULTILINE)}
    try:
        date: datetime = parsedate_to_datetime(fields["Date"])
        return fields.get("Codename", ""), date.strftime("%Y-%m-%dT%H:%M:%SZ")
    except (KeyError, ValueError) as error:
        raise BaseError("a Release file of the archive has no date", code="base-apt-failed", why=text[:200]) from error


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _credentials(root: str, settings: Settings) -> tuple[str, str]:
    """An archive's address without its credentials, and the line of auth.conf that has them instead.

    apt prints parts of an address whose password has special characters. It does not read ~/.netrc.
    """
    if is_file(root):
        return f"file:{file_path(root)}", ""  # apt prints it so, however it was written
    address = parse(root)
    auth = address.auth or netrc_auth(address, settings.env)
    return address.url, f"machine {address.url} login {auth[0]} password {auth[1]}\n" if auth else ""


def _of_host(settings: Settings) -> list[str]:
    """Return the options of the host's apt that decide whether and how an archive is reached, not its content.

    The administrator of a frozen mirror sets them; the dates in the lock show what was read.
    """
    try:
        process = programs.run(
            ["apt-config", "dump", "--format", '%F "%v";%n', *_OF_HOST],
            capture_output=True,
            text=True,
            env=host_env(settings),
        )
    except FileNotFoundError:
        return []
    return process.stdout.splitlines()


def keyring(release: DebianRelease) -> str:
    """Return the path of the keyring, on this machine, that signs a release's archives. Raises BaseError."""
    installed = next((path for path in release.keyrings if Path(path).exists()), None)
    if installed is None:
        raise BaseError(
            f"the keyring of {release.name}'s archives is not installed",
            code="base-keyring-missing",
            why=f"no {release.keyrings[0]}",
            fix=f"apt-get install {release.keyring_package}",
        )
    return installed


def _advice(stderr: str) -> str:
    if "certificate" in stderr:
        return "set SSL_CERT_FILE to the CA bundle of your network"
    if "Unable to locate package" in stderr or "no installation candidate" in stderr:
        return "correct `packages` in the matrix: only the components that the archive is configured with are searched"
    if "expired" in stderr or "not valid yet" in stderr:
        return f"the mirror is stale or this machine's clock is wrong: use another mirror ({_VARIABLES})"
    if "not signed" in stderr or "NO_PUBKEY" in stderr or "BADSIG" in stderr or "is invalid" in stderr:
        return f"use a mirror that serves the archive unchanged ({_VARIABLES}), or an image that has the archive's key"
    if any(sign in stderr for sign in ("held broken packages", "need to be removed", "Held packages", "unmet")):
        return "leave out the package, or use an image whose own packages it goes with"
    return f"check the network and the variables that name mirrors ({_VARIABLES})"


# Resolve Debian packages from signed archives, in this apt: of a base, and those above one.

STATUS = "var/lib/dpkg/status"  # dpkg's database, in a tree
LONGEST_STATUS = 64 << 20  # bytes; of all of Debian's packages it would have as many
_ESSENTIAL = "?essential"  # apt's own idea of it (apt-patterns(7))
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")  # Debian policy 5.6.1; apt takes a final "-" as "remove"
_URI_LINE = re.compile(
    r"'(?P<uri>[^']+)' (?P<name>[^ _]+)_(?P<version>[^ _]+)_(?P<architecture>[^ _]+)\.deb "
    r"(?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})"
)


def resolve(base: Base, platform: str, settings: Settings, progress: Progress) -> LockedBase:
    """Return the exact packages of `base` in today's archive: essential ones, apt, its own, dependencies.

    `platform` is the cell's, "linux/arm64". Recommended packages stay out. For kind registry, return the image that its
    name resolves to now, or raise FetchError. Raises BaseError: no apt or keyring on this machine, no mirror known, the
    archive unreachable or expired or not signed by Debian, a package that does not exist.
    """
    if base.kind == "registry":
        return image.resolve(base, settings, progress, architecture=architecture_of(platform))
    if base.kind != "debian" or base.suite is None:
        raise BaseError(f"base {base.name}: unknown kind {base.kind!r}", code="base-unknown-kind", fix="kind: debian")
    check_names(base.packages, f"base {base.name}")
    debian = release(base.suite)
    sources = official(debian, settings)
    with temporary.temporary_directory() as work, timed(progress, f"resolving base {base.name}"):
        apt = Apt(work, sources, settings, architecture=architecture_of(platform))
        apt.run("update", "--error-on=any")
        archives = {f"{archive}/{suite}": date for (archive, suite), (_, date) in apt.releases().items()}
        required = (_ESSENTIAL, *debian.packages, *sorted(base.packages))
        debs = parse_uris(apt.run("install", "--yes", "--no-install-recommends", "--print-uris", *required), apt.roots)
    return LockedBase(base.name, base.kind, base.suite, archives, debs)


def architecture_of(platform: str) -> str:
    """Return Debian's name of a platform's architecture, which is the OCI's as well: "arm64" of "linux/arm64"."""
    return platform.rpartition("/")[2]


def official(release: DebianRelease, settings: Settings, *, pockets: bool = True) -> list[AptSource]:
    """Return the sources of a release, with its updates; without `pockets` only the first suite.

    Raises BaseError: no mirror known, no keyring on this machine.
    """
    signed_by = keyring(release)
    suites = [(archive, suite) for archive, suites in release.suites.items() for suite in suites]
    suites = suites if pockets else suites[:1]
    served = mirrors(list(dict(suites)), settings)
    return [AptSource(archive, served[archive], suite, release.components, signed_by) for archive, suite in suites]


def check_names(packages: Iterable[str], where: str) -> None:
    """Raise BaseError for a text that cannot be a package's name, before apt reads it as an option or an action."""
    if wrong := [name for name in packages if not _NAME.fullmatch(name)]:
        raise BaseError(
            f"{where}: {', '.join(map(repr, wrong))} cannot be a package's name",
            code="base-package-name-invalid",
            fix="name packages without version, architecture or suite: the lock pins them",
        )


def parse_uris(text: str, roots: Mapping[str, str]) -> tuple[LockedDeb, ...]:
    """Return the lines of `apt-get --print-uris` as packages, sorted by name.

    A line is 'URI' name_version_architecture.deb size SHA256:hash, with %XX for characters unfit for a file name.
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


# Packages above a base, resolved by apt against the base's dpkg status, from the base's own sources.
#
# The base's file tree is read for dpkg's status, sources, keyrings and preferences; imagegen's apt is
# separate from the host's. So a base that imagegen made and an image of a registry are the same here.


def resolve_packages(
    requested: Mapping[str, str], tree: Path, name: str, platform: str, settings: Settings, progress: Progress
) -> LockedPackages:
    """Return the debs that the base `name`, unpacked at `tree`, lacks of the `requested` packages (name -> reason).

    Recommended packages stay out. Nothing is removed, and nothing that is on hold changes. Raises BaseError: no dpkg in
    the base, no archive that can be fetched from, one that is unsigned, expired or unreachable, a package that does not
    exist or conflicts with the base's packages.
    """
    where = f"packages above base {name}"
    check_names(requested, where)
    status = read_status(tree, name)
    architecture = architecture_of(platform)
    entries, unsupported = read_sources(tree, architecture)
    for other in unsupported:
        progress.say(
            f"note: the archive {other[:200]} of base {name} is left out: only http and https are fetched from"
        )
    if not entries:
        raise BaseError(
            f"base {name} has no archive of packages",
            code="base-no-package-sources",
            why="/etc/apt/sources.list and /etc/apt/sources.list.d name none that can be fetched from",
            fix="use an image whose apt is configured",
        )
    addresses: dict[str, str] = {}
    for entry in entries:
        addresses.setdefault(archive_at(entry.uri), entry.uri)
    served = roots(addresses, settings)
    sources = [_source(entry, served, tree) for entry in entries]
    system = AptSystem(status, trusted_keys(tree), read_preferences(tree))
    with temporary.temporary_directory() as work, timed(progress, f"resolving {where}"):
        apt = Apt(work, sources, settings, architecture=architecture, system=system)
        apt.run("update", "--error-on=any")
        options = ("--yes", "--no-remove", "--no-install-recommends", "--print-uris")
        debs = parse_uris(apt.run("install", *options, *sorted(requested)), apt.roots)
        dates = {key: date for key, (_, date) in apt.releases().items()}
    return LockedPackages(dict(sorted(requested.items())), _archives(entries, debs, addresses, dates), debs)


def read_status(tree: Path, name: str) -> bytes:
    """Return dpkg's status of the tree of the base `name`. Raises BaseError where it has no dpkg and apt."""
    status = inside(tree, STATUS)
    if not status.is_file() or not inside(tree, "usr/bin/apt-get").is_file():
        raise BaseError(
            f"base {name} has no dpkg and apt",
            code="base-no-package-manager",
            where=f"/{STATUS}",
            why="packages are added only to distributions that are made of Debian packages",
            fix="leave `packages` out, or use an image of Debian or Ubuntu",
        )
    return read_inside(tree, STATUS, LONGEST_STATUS)


def _source(entry: AptSuite, served: Mapping[str, str], tree: Path) -> AptSource:
    archive = archive_at(entry.uri)
    keys = keys_of(entry, tree)
    return AptSource(archive, served[archive], entry.suite, entry.components, keys, entry.valid_until)


def _archives(
    entries: list[AptSuite],
    debs: tuple[LockedDeb, ...],
    addresses: Mapping[str, str],
    dates: Mapping[tuple[str, str], str],
) -> tuple[LockedArchive, ...]:
    """Return every suite of the archives that debs come from: any of them may have given the package."""
    used = {deb.archive for deb in debs}
    used_archives = {
        LockedArchive(
            archive,
            entry.suite,
            entry.components,
            dates[archive, entry.suite],
            None if archive in archives() else addresses[archive],
        )
        for entry in entries
        if (archive := archive_at(entry.uri)) in used
    }
    return tuple(sorted(used_archives, key=lambda suite: (suite.archive, suite.suite)))
