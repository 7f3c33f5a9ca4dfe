"""Find the likely cause why a rebuilt file differs, with a function for each known cause.

Sources: measured differences between two builds of a set (docs/explanation/determinism.md); PEP 552 for the header of
byte-code; PEP 376 and PEP 610 for files of installers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imagegen.compare.layer_entries import EntryDifference
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.lock.model import LockedBuild, LockedWheel

_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_INSTALLER_FILES = (".lock", *_INSTALLERS)
_STATE = ("/var/cache/", "/var/log/", "/var/lib/apt/", "/etc/ssh/ssh_host_", "/etc/machine-id", "/var/lib/dpkg/")
_FLAGS = {0: "by time", 1: "unchecked, by hash", 3: "checked, by hash"}


@dataclass(frozen=True)
class Clue:
    """The first file that differs, with the packages of its layer and the recorded layer format."""

    layer: str
    entry: EntryDifference
    layer_format: int | None
    packages: Sequence[LockedWheel | LockedBuild] = ()


def likely_cause(clue: Clue) -> str:
    """Return the first cause that explains the difference."""
    return next(filter(None, (cause(clue) for cause in _CAUSES)), "no known cause explains it")


def _format(clue: Clue) -> str | None:
    if clue.layer_format in (None, LAYER_FORMAT):
        return None
    return f"the layer was written in format {clue.layer_format}, and this imagegen writes {LAYER_FORMAT}"


def _order(clue: Clue) -> str | None:
    return "another program wrote the layer, with the same files in another order" if clue.entry.order else None


def _one_sided(clue: Clue) -> str | None:
    entry = clue.entry
    if entry.published and entry.rebuilt:
        return None
    where = "only the published image has it" if entry.published else "only the rebuilt image has it"
    name = posixpath.basename(entry.path)
    if name.startswith(".wh."):
        return f"{where}: a command removed a file, and imagegen's layers remove no files"
    if name.endswith(".pyc"):
        return f"{where}: a program wrote byte-code when it ran, or byte-code was not compiled"
    if name in _INSTALLER_FILES:
        return f"{where}: an installer writes it, with the time and paths of the installation"
    if _is_state(entry.path):
        return f"{where}: a system program writes it when it runs"
    return f"{where}: the packages of the layer have other files"


def _times(clue: Clue) -> str | None:
    published, rebuilt = clue.entry.published, clue.entry.rebuilt
    if not published or not rebuilt or published.timeless() != rebuilt.timeless():
        return None
    return f"times are not fixed: {published.mtime:.0f} in the published layer, {rebuilt.mtime:.0f} in the rebuilt one"


def _owner(clue: Clue) -> str | None:
    if not {"uid", "gid", "names"} & set(clue.entry.fields) or "sha256" in clue.entry.fields:
        return None
    owners = [entry and (entry.uid, entry.gid) for entry in (clue.entry.published, clue.entry.rebuilt)]
    return f"its owner differs: {owners[0]}, rebuilt {owners[1]}"


def _mode(clue: Clue) -> str | None:
    entry = clue.entry
    if "mode" not in entry.fields or "sha256" in entry.fields or not entry.published or not entry.rebuilt:
        return None
    modes = f"{entry.published.mode:04o}, rebuilt {entry.rebuilt.mode:04o}"
    return f"its mode differs, as with another umask: {modes}"


def _byte_code(clue: Clue) -> str | None:
    entry = clue.entry
    if not entry.path.endswith(".pyc") or not entry.published or not entry.rebuilt or "sha256" not in entry.fields:
        return None
    published, rebuilt = entry.published.head, entry.rebuilt.head
    if published[:4] != rebuilt[:4]:
        return "another version of Python compiled the byte-code"
    if published[4:8] != rebuilt[4:8]:
        kinds = [_FLAGS.get(int.from_bytes(head[4:8], "little"), "unknown") for head in (published, rebuilt)]
        return f"the byte-code is validated {kinds[0]}, the rebuilt one {kinds[1]}"
    if published[8:16] != rebuilt[8:16]:
        return "the byte-code was compiled from another source, or has the time of its source"
    return "the byte-code was compiled in another order or under another path, which changes its bytes"


def _records(clue: Clue) -> str | None:
    name = posixpath.basename(clue.entry.path)
    if name not in _INSTALLERS or "sha256" not in clue.entry.fields:
        return None
    return f"another installer wrote {name}, or other files were installed"


def _state(clue: Clue) -> str | None:
    if not _is_state(clue.entry.path):
        return None
    return "caches and logs of the system differ in each run, so imagegen did not build this base"


def _link(clue: Clue) -> str | None:
    if not {"kind", "target"} & set(clue.entry.fields):
        return None
    return "it is not a link to the same path, so the interpreter or the layout of the environment differs"


def _compiled(clue: Clue) -> str | None:
    if "sha256" not in clue.entry.fields:
        return None
    names = [
        package.name
        for package in clue.packages
        if isinstance(package, LockedBuild) or package.build or package.sdist is not None
    ]
    return f"{', '.join(names)} was built again, and the compiler or the backend wrote other bytes" if names else None


def _wheel(clue: Clue) -> str | None:
    if "sha256" not in clue.entry.fields:
        return None
    # If a layer has several packages, prefer the package that the directory is named after.
    path_parts = {part.partition("-")[0] for part in clue.entry.path.split("/")}
    candidates = [package for package in clue.packages if package.name.replace("-", "_") in path_parts] or clue.packages
    names = ", ".join(f"{package.name} {package.version}" for package in candidates) or "the packages of the lock"
    return f"its bytes differ from {names}: the published layer was built from other files, or changed later"


def _is_state(path: str) -> bool:
    return f"/{path.lstrip('./')}".startswith(_STATE)


_CAUSES: tuple[Callable[[Clue], str | None], ...] = (
    *(_format, _order, _one_sided, _times, _owner, _mode, _byte_code, _records, _state, _link, _compiled, _wheel),
)
