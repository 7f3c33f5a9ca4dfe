"""Where Debian's archives are on this machine: from the settings, else from the host's own apt.

No address of a mirror stands in this project: a host knows its own, and a lock names archives, never hosts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from imagegen.config import Settings
from imagegen.errors import BaseError

ARCHIVES = ("debian", "debian-security")
_VARIABLES = {"debian": "IMAGEGEN_DEBIAN_MIRROR", "debian-security": "IMAGEGEN_DEBIAN_SECURITY_MIRROR"}
_LABELS = {"Debian": "debian", "Debian-Security": "debian-security"}  # of Release files -> archive
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_FORMAT = "$(ORIGIN)\t$(LABEL)\t$(REPO_URI)"


def mirrors(settings: Settings) -> dict[str, str]:
    """The address of each archive's root (the directory that holds dists/ and pool/), without a slash at its end.

    Raises BaseError, naming the variables to set, when an archive's address is not known here.
    """
    found = {**_of_host(settings), **settings.debian_mirrors}
    unknown = [archive for archive in ARCHIVES if archive not in found]
    if unknown:
        variables = " and ".join(_VARIABLES[archive] for archive in unknown)
        raise BaseError(
            f"no mirror is known here for {' and '.join(unknown)}",
            why=f"{variables} not set, and the host's apt has no lists of such an archive (apt-get indextargets)",
            fix=f"set {variables} to the address of a mirror, the directory that holds dists/; "
            "on a Debian host, `apt-get update` is enough",
        )
    return {archive: found[archive].rstrip("/") for archive in ARCHIVES}


def _of_host(settings: Settings) -> dict[str, str]:
    if all(archive in settings.debian_mirrors for archive in ARCHIVES):
        return {}
    try:
        command = ["apt-get", "indextargets", "--format", _FORMAT]
        done = subprocess.run(command, capture_output=True, text=True, env=host_env(settings), check=False)
    except FileNotFoundError:  # a host without apt
        return {}
    return parse_targets(done.stdout)


def parse_targets(text: str) -> dict[str, str]:
    """Archive -> address, from lines of origin, label and address separated by tabs; the first of each wins.

    Only addresses that can be fetched from count: not cdrom: or mirror+... ones.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        origin, label, address = [*line.split("\t"), "", ""][:3]
        if origin == "Debian" and label in _LABELS and address.startswith(("http://", "https://", "file:/")):
            found.setdefault(_LABELS[label], address)
    return found


def host_env(settings: Settings) -> Mapping[str, str]:
    """The few variables that programs of the host get: where programs are, and the way to the network."""
    kept = {name: settings.env[name] for name in ("PATH", "TMPDIR") if name in settings.env}
    # apt reads only the small ones; everybody else takes both.
    proxies = {name: settings.env.get(name) or settings.env.get(name.upper()) for name in _PROXIES}
    return {"LC_ALL": "C.UTF-8", **kept, **{name: value for name, value in proxies.items() if value}}
