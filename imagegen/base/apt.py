"""An apt of our own, beside the host's: it reads one suite's signed archive and changes nothing on the machine.

Nothing of the host's apt takes part: not its configuration, hooks, preferences, lists or packages. But whether
an old archive is to be trusted, and the way to the network, are for the machine's administrator to say.
Sources of the formats: apt.conf(5), apt_auth.conf(5), sources.list(5), and wiki.debian.org/DebianRepository/Format.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from imagegen.base.mirrors import host_env
from imagegen.config import Settings
from imagegen.errors import BaseError
from imagegen.net.address import is_file, netrc_auth, parse
from imagegen.text import redact

_KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
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
_TIMEOUT = 900  # seconds; the lists of a release are some tens of MB
_DOING = {"update": "read the archive", "install": "resolve the packages", "download": "fetch the packages"}


class Apt:
    """apt-get with all its state below `root`, an empty directory, for the `main` component of the given suites.

    `suites` maps an archive to its suites, `roots` an archive to its address; the attribute `roots` has the addresses
    as apt prints them, without credentials. Without `architecture` it is the host's.
    Raises BaseError: no apt or keyring on this machine, and from `run` whatever apt complains of.
    """

    def __init__(
        self,
        root: Path,
        suites: Mapping[str, Sequence[str]],
        roots: Mapping[str, str],
        settings: Settings,
        *,
        architecture: str | None = None,
    ) -> None:
        self._root, self._roots = root, sorted(set(roots.values()))
        for name in ("apt.conf.d", "preferences.d", "sources.list.d", "trusted.gpg.d"):
            (root / "etc/apt" / name).mkdir(parents=True)
        for name in ("lib/apt/lists/partial", "cache/apt/archives/partial"):
            (root / "var" / name).mkdir(parents=True)
        (root / "status").touch()
        signed = f"[signed-by={_keyring()}]"
        signs = {archive: _credentials(address, settings) for archive, address in roots.items()}
        self.roots = {archive: address for archive, (address, _) in signs.items()}
        (root / "etc/apt/auth.conf").write_text("".join(line for _, line in signs.values()))
        lines = [
            f"deb {signed} {self.roots[archive]} {suite} main\n" for archive in suites for suite in suites[archive]
        ]
        (root / "etc/apt/sources.list").write_text("".join(lines))
        extra = _of_host(settings)
        if settings.ca_bundle:
            extra.append(f'Acquire::https::CAInfo "{settings.ca_bundle}";')
        if architecture:
            extra += [f'APT::Architecture "{architecture}";', f'APT::Architectures {{ "{architecture}"; }};']
        (root / "apt.conf").write_text(_CONFIGURATION.format(root=root, extra="\n".join(extra)))
        self._env = {**host_env(settings), "APT_CONFIG": str(root / "apt.conf")}

    def run(self, *arguments: str) -> str:
        """What apt-get prints on stdout; `download` puts its files into `root`."""
        command = ["apt-get", "--quiet", "--quiet", *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self._root,
                capture_output=True,
                text=True,
                errors="replace",
                env=self._env,
                check=False,
                timeout=_TIMEOUT,
            )
        except subprocess.TimeoutExpired as error:
            # apt's own timeout is for a single read, which never comes where a mirror drips.
            raise BaseError(
                f"apt did not {_DOING[arguments[0]]} in {_TIMEOUT // 60} minutes",
                why=f"a mirror is too slow: {', '.join(map(redact, self._roots))}",
                fix=_advice(""),
            ) from error
        except FileNotFoundError as error:
            raise BaseError(
                "apt-get is not installed",
                why="Debian's packages are chosen and fetched by apt",
                fix="on Debian and Ubuntu it is always there; elsewhere, run imagegen in a Debian container",
            ) from error
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:", "Err:"))]
            raise BaseError(
                f"apt cannot {_DOING[arguments[0]]}",
                why="\n       ".join(redact(line) for line in said or done.stderr.strip().splitlines()[-5:]),
                fix=_advice(done.stderr),
            )
        return done.stdout

    def dates(self) -> dict[str, str]:
        """Code name -> date of every Release file that was read."""
        lists = sorted((self._root / "var/lib/apt/lists").glob("*Release"))
        return dict(parse_release(path.read_text(errors="replace")) for path in lists)


def parse_release(text: str) -> tuple[str, str]:
    """(code name, date in RFC 3339) of a Release or InRelease file."""
    fields = {name: value.strip() for name, value in re.findall(r"^(Codename|Date):(.*)$", text, re.MULTILINE)}
    try:
        date: datetime = parsedate_to_datetime(fields["Date"])
        return fields["Codename"], date.strftime("%Y-%m-%dT%H:%M:%SZ")
    except (KeyError, ValueError) as error:
        raise BaseError("a Release file of the archive has no code name or date", why=text[:200]) from error


def _credentials(root: str, settings: Settings) -> tuple[str, str]:
    """An archive's address without its credentials, and the line of auth.conf that has them instead.

    apt shows parts of what stands in an address, wherever a password holds what is special there. It reads no ~/.netrc.
    """
    if is_file(root):
        return root, ""
    address = parse(root)
    auth = address.auth or netrc_auth(address, settings.env)
    return address.url, f"machine {address.url} login {auth[0]} password {auth[1]}\n" if auth else ""


def _of_host(settings: Settings) -> list[str]:
    """The options of the host's apt that decide whether and how an archive is reached, not what is in it.

    The administrator of a frozen mirror says so there; the dates in the lock show what was read.
    """
    try:
        done = subprocess.run(
            ["apt-config", "dump", "--format", '%F "%v";%n', *_OF_HOST],
            capture_output=True,
            text=True,
            env=host_env(settings),
            check=False,
        )
    except FileNotFoundError:
        return []
    return done.stdout.splitlines()


def _keyring() -> str:
    found = next((path for path in _KEYRINGS if Path(path).exists()), None)
    if found is None:
        raise BaseError(
            "Debian's keyring is not installed", why=f"no {_KEYRINGS[0]}", fix="apt-get install debian-archive-keyring"
        )
    return found


def _advice(stderr: str) -> str:
    if "certificate" in stderr:
        return "set SSL_CERT_FILE to the CA bundle of your network"
    if "Unable to locate package" in stderr or "no installation candidate" in stderr:
        return "correct the base's packages in the matrix; only the archive's `main` component is used"
    if "expired" in stderr or "not valid yet" in stderr:
        return "the mirror is stale or this machine's clock is wrong: use another mirror (IMAGEGEN_DEBIAN_MIRROR)"
    return "check the network and IMAGEGEN_DEBIAN_MIRROR, IMAGEGEN_DEBIAN_SECURITY_MIRROR where set"
