"""A separate apt that reads signed archives and changes nothing on the machine.

It ignores the host's configuration, hooks, preferences, lists and packages, except for the administrator's settings for
trusting expired archives and for network access.

Sources of the formats: apt.conf(5), apt_auth.conf(5), sources.list(5), and wiki.debian.org/DebianRepository/Format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from imagegen.core import programs
from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.core.net.address import file_path, is_file, netrc_auth, parse
from imagegen.core.text import redact
from imagegen.image.base.mirrors import host_env
from imagegen.lock.distributions import DebianRelease

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
TIMEOUT = 900  # seconds; the lists of a release are some tens of MB
_DOING = {"update": "read the archives", "install": "resolve the packages", "download": "fetch the packages"}


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
        extra = host_options(settings)
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
                timeout=TIMEOUT,
            )
        except programs.TimeoutExpired as error:
            # apt's own timeout is for a single read, which never comes where a mirror drips.
            raise BaseError(
                f"apt did not {_DOING[arguments[0]]} in {TIMEOUT // 60} minutes",
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


def host_options(settings: Settings) -> list[str]:
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
