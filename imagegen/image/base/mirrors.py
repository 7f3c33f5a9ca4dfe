"""The mirrors that serve Debian's archives to this machine.

Mirrors come from the settings, else from the host's own apt. A lock names archives by their official addresses, or by a
name that stands for these; never this machine's mirrors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from imagegen.core import programs
from imagegen.core.config import APT_VARIABLE, Settings, archive_variable, mirror_name
from imagegen.core.errors import BaseError
from imagegen.lock.distributions import archives

_LABELS = {"Debian": "debian", "Debian-Security": "debian-security"}  # of Release files -> archive
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_FORMAT = "$(ORIGIN)\t$(LABEL)\t$(REPO_URI)"


def mirrors(names: Sequence[str], settings: Settings) -> dict[str, str]:
    """Return each archive's root (the directory that holds dists/ and pool/), without a slash at its end.

    `names` are names of archives; Ubuntu's official address serves where no mirror is named, Debian's are taken from
    the host's apt. Raises BaseError, naming the variables to set, when an archive's address is not known here.
    """
    addresses = {name: root for name in names if (root := _named(name, settings))}
    if unknown := [name for name in names if name not in addresses]:
        addresses |= {name: root for name, root in _of_host(settings).items() if name in unknown}
        unknown = [name for name in names if name not in addresses]
    if unknown:
        variables = " and ".join(map(archive_variable, unknown))
        raise BaseError(
            f"no mirror is known here for {' and '.join(unknown)}",
            code="base-mirror-unknown",
            why=f"{variables} not set, and the host's apt has no lists of such an archive (apt-get indextargets)",
            fix=f"set {variables} to the address of a mirror, the directory that holds dists/; "
            "on a Debian host, `apt-get update` is enough",
        )
    return {name: addresses[name].rstrip("/") for name in names}


def _named(name: str, settings: Settings) -> str | None:
    """The address that the settings name for an archive; of Ubuntu's also the official one."""
    if name in settings.archive_mirrors:
        return settings.archive_mirrors[name]
    address = archives()[name].address
    return served(address, settings) if address else None


def variable(uri: str) -> str:
    """Return the variable that names a mirror of an address's host: IMAGEGEN_APT_MIRROR_ARCHIVE_UBUNTU_COM."""
    return APT_VARIABLE + mirror_name(urlsplit(uri).netloc)


def served(uri: str, settings: Settings) -> str:
    """Return the address of an unnamed archive on this machine: its own, or the path below its host's mirror."""
    mirror = settings.apt_mirrors.get(mirror_name(urlsplit(uri).netloc))
    return f"{mirror.rstrip('/')}{urlsplit(uri).path}" if mirror else uri


def roots(uris: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return where each archive of `uris` (name -> official address) is served here. Raises BaseError as `mirrors`."""
    named_archives = [name for name in uris if name in archives()]
    unnamed = {name: served(uri, settings).rstrip("/") for name, uri in uris.items() if name not in named_archives}
    return {**mirrors(named_archives, settings), **unnamed}


def _of_host(settings: Settings) -> dict[str, str]:
    try:
        command = ["apt-get", "indextargets", "--format", _FORMAT]
        process = programs.run(command, capture_output=True, text=True, env=host_env(settings))
    except FileNotFoundError:  # a host without apt
        return {}
    return parse_targets(process.stdout)


def parse_targets(text: str) -> dict[str, str]:
    """Return archive -> address, from lines of origin, label and address separated by tabs; the first of each wins.

    Only addresses that can be fetched from count: not cdrom: or mirror+... ones.
    """
    addresses: dict[str, str] = {}
    for line in text.splitlines():
        origin, label, address = [*line.split("\t"), "", ""][:3]
        if origin == "Debian" and label in _LABELS and address.startswith(("http://", "https://", "file:/")):
            addresses.setdefault(_LABELS[label], address)
    return addresses


def host_env(settings: Settings) -> Mapping[str, str]:
    """Return the few variables that programs of the host get: where programs are, and the way to the network."""
    variables = {name: settings.env[name] for name in ("PATH", "TMPDIR") if name in settings.env}
    # apt reads only the small ones; other readers take both.
    proxies = {name: settings.env.get(name) or settings.env.get(name.upper()) for name in _PROXIES}
    return {"LC_ALL": "C.UTF-8", **variables, **{name: value for name, value in proxies.items() if value}}
