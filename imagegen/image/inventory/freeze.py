"""Packages of a file tree as an entry could name them: Python distributions and how they came, and Debian packages.

Sources: "Recording installed projects" and PEP 610 (direct_url.json) of packaging.python.org; deb822(5) and Debian's
policy for /var/lib/dpkg/status; apt-mark(8) for extended_states.
"""

from __future__ import annotations

import email.parser
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name

from imagegen.core.data import parse_json
from imagegen.image.inventory.environments import Environment
from imagegen.image.inventory.system import paragraphs, read_text
from imagegen.image.inventory.tree import FileTree, Regular, join, place

_MAX_TEXT = 4 << 20  # bytes
_MAX_STATUS = 64 << 20
_DEBIAN_SITE = "/python3/dist-packages"  # of Debian's own packages
_MINIMAL = frozenset({"required", "important"})  # priorities of packages that every system has


@dataclass(frozen=True)
class InstalledDistribution:
    """A distribution, by its metadata. `direct_url` is as in PEP 610; {} if it came from an index."""

    name: str  # normalised
    version: str  # "" where the metadata does not say
    path: str  # of its metadata
    installer: str  # "pip", "uv"; "" where it is not recorded
    is_recorded: bool  # it has a RECORD
    direct_url: Mapping[str, Any]


def distributions(tree: FileTree, environment: Environment) -> tuple[InstalledDistribution, ...]:
    """Return the distributions of the environment but Debian's, by name; of a duplicate, the one that is imported."""
    by_name: dict[str, InstalledDistribution] = {}
    for site in environment.sites:
        if site.endswith(_DEBIAN_SITE):
            continue
        for name, node in sorted(tree.entries(site)):
            if name.endswith((".dist-info", ".egg-info")):
                path = join(site, name)
                metadata_path = (
                    path if isinstance(node, Regular) else join(path, "METADATA" if name[-9] == "d" else "PKG-INFO")
                )
                if (text := read_text(tree, metadata_path, _MAX_TEXT)) is not None:
                    distribution = _distribution(tree, path, text)
                    by_name.setdefault(distribution.name, distribution)
    return tuple(by_name[name] for name in sorted(by_name))


def _distribution(tree: FileTree, path: str, metadata: str) -> InstalledDistribution:
    headers = email.parser.HeaderParser().parsestr(metadata.partition("\n\n")[0])
    try:
        direct = parse_json(read_text(tree, join(path, "direct_url.json"), _MAX_TEXT) or "{}")
    except ValueError:
        direct = {"url": "unknown"}
    return InstalledDistribution(
        canonicalize_name(" ".join(str(headers.get("Name", "")).split())),
        " ".join(str(headers.get("Version", "")).split()),
        path,
        (read_text(tree, join(path, "INSTALLER"), _MAX_TEXT) or "").strip(),
        place(tree, join(path, "RECORD")) is not None,
        direct if isinstance(direct, dict) else {"url": "unknown"},
    )


def requested_debs(tree: FileTree, base_packages: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the packages that no other one depends on, and apt did not install for another; then NVIDIA's of them.

    Essential packages are left out, and so are the entry's `base_packages`.
    """
    installed = {
        paragraph["package"]: paragraph
        for paragraph in paragraphs(read_text(tree, "/var/lib/dpkg/status", _MAX_STATUS) or "")
        if paragraph.get("package") and paragraph.get("status", "").endswith(" installed")
    }
    automatic = {
        paragraph["package"]
        for paragraph in paragraphs(read_text(tree, "/var/lib/apt/extended_states", _MAX_STATUS) or "")
        if paragraph.get("package") and paragraph.get("auto-installed") == "1"
    }
    needed = {
        name
        for paragraph in installed.values()
        for key in ("depends", "pre-depends", "recommends")
        for name in re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]+)", paragraph.get(key, ""))
    }
    requested = [
        fields
        for name, fields in sorted(installed.items())
        if name not in {*automatic, *needed, *base_packages}
        and fields.get("essential") != "yes"
        and fields.get("priority") not in _MINIMAL
    ]
    is_nvidia = {paragraph["package"]: "nvidia" in paragraph.get("maintainer", "").lower() for paragraph in requested}
    nvidia_names = [name for name, nvidia in is_nvidia.items() if nvidia]
    return [name for name, nvidia in is_nvidia.items() if not nvidia], nvidia_names
