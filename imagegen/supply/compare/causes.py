"""Why a file that was made again differs: a function for each cause that is known, in the order of trying.

Source: what was measured to differ between two builds of one set (docs/explanation/determinism.md); PEP 552 for the
header of byte-code; PEP 376 and PEP 610 for what installers leave behind.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.plan.lock.model import LockedBuild, LockedWheel
from imagegen.supply.compare.trees import Pair

_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_LEFT = (".lock", *_INSTALLERS)
_STATE = ("/var/cache/", "/var/log/", "/var/lib/apt/", "/etc/ssh/ssh_host_", "/etc/machine-id", "/var/lib/dpkg/")
_FLAGS = {0: "by time", 1: "unchecked, by hash", 3: "checked, by hash"}


@dataclass(frozen=True)
class Clue:
    """The first file that differs; `packages` are those of its layer, `layer_format` is the one that was recorded."""

    layer: str
    pair: Pair
    layer_format: int | None
    packages: Sequence[LockedWheel | LockedBuild] = ()


def likely(clue: Clue) -> str:
    """The cause in words."""
    return next(filter(None, (cause(clue) for cause in _CAUSES)), "nothing that is known explains it")


def _format(clue: Clue) -> str | None:
    if clue.layer_format in (None, LAYER_FORMAT):
        return None
    return f"the layer was written in format {clue.layer_format}, and this imagegen writes {LAYER_FORMAT}"


def _order(clue: Clue) -> str | None:
    return "the same files come in another order: another program wrote the layer" if clue.pair.order else None


def _one_sided(clue: Clue) -> str | None:
    pair = clue.pair
    if pair.there and pair.here:
        return None
    where = "only the published image has it" if pair.there else "only the image that was made again has it"
    name = posixpath.basename(pair.path)
    if name.startswith(".wh."):
        return f"{where}: it says that a command removed a file, and imagegen's layers remove none"
    if name.endswith(".pyc"):
        return f"{where}: byte-code that was written while something ran, or was left out"
    if name in _LEFT:
        return f"{where}: an installer leaves it behind, with its own time and paths"
    if _is_state(pair.path):
        return f"{where}: a program of the system writes it when it runs"
    return f"{where}: what the layer is made of holds another set of files"


def _times(clue: Clue) -> str | None:
    pair = clue.pair
    if not pair.there or not pair.here or pair.there.timeless() != pair.here.timeless():
        return None
    return f"times are not fixed: {pair.there.mtime:.0f} in the published layer, {pair.here.mtime:.0f} here"


def _owner(clue: Clue) -> str | None:
    if not {"uid", "gid", "names"} & set(clue.pair.fields) or "sha256" in clue.pair.fields:
        return None
    there, here = clue.pair.there, clue.pair.here
    return f"its owner is another: {there and (there.uid, there.gid)}, here {here and (here.uid, here.gid)}"


def _mode(clue: Clue) -> str | None:
    pair = clue.pair
    if "mode" not in pair.fields or "sha256" in pair.fields or not pair.there or not pair.here:
        return None
    return f"its mode is another, as under another umask: {pair.there.mode:04o}, here {pair.here.mode:04o}"


def _byte_code(clue: Clue) -> str | None:
    pair = clue.pair
    if not pair.path.endswith(".pyc") or not pair.there or not pair.here or "sha256" not in pair.fields:
        return None
    there, here = pair.there.head, pair.here.head
    if there[:4] != here[:4]:
        return "another version of Python compiled the byte-code"
    if there[4:8] != here[4:8]:
        kinds = [_FLAGS.get(int.from_bytes(head[4:8], "little"), "unknown") for head in (there, here)]
        return f"the byte-code is validated otherwise: {kinds[0]}, here {kinds[1]}"
    if there[8:16] != here[8:16]:
        return "the byte-code is of another source, or keeps its time"
    return "the byte-code was compiled in another order or under another path: compilers are not deterministic in that"


def _records(clue: Clue) -> str | None:
    name = posixpath.basename(clue.pair.path)
    if name not in _INSTALLERS or "sha256" not in clue.pair.fields:
        return None
    return f"{name} tells of the installation: another installer wrote it, or other files were installed"


def _state(clue: Clue) -> str | None:
    if not _is_state(clue.pair.path):
        return None
    return "the system's own caches and logs differ from run to run: the base was not made by imagegen's steps"


def _link(clue: Clue) -> str | None:
    if not {"kind", "target"} & set(clue.pair.fields):
        return None
    return "it is a link to elsewhere, or no link: another interpreter or another layout of the environment"


def _compiled(clue: Clue) -> str | None:
    if "sha256" not in clue.pair.fields:
        return None
    made = [
        each.name for each in clue.packages if isinstance(each, LockedBuild) or each.build or each.sdist is not None
    ]
    return f"{', '.join(made)} was built again, and the compiler or the backend wrote other bytes" if made else None


def _wheel(clue: Clue) -> str | None:
    if "sha256" not in clue.pair.fields:
        return None
    # Of several in one layer, the one whose directory it is in, where that has its name.
    parts = {part.partition("-")[0] for part in clue.pair.path.split("/")}
    own = [each for each in clue.packages if each.name.replace("-", "_") in parts] or clue.packages
    names = ", ".join(f"{each.name} {each.version}" for each in own) or "what the lock pins"
    return f"its bytes are not those of {names}: the published layer was made of something else, or changed"


def _is_state(path: str) -> bool:
    return f"/{path.lstrip('./')}".startswith(_STATE)


_CAUSES: tuple[Callable[[Clue], str | None], ...] = (
    *(_format, _order, _one_sided, _times, _owner, _mode, _byte_code, _records, _state, _link, _compiled, _wheel),
)
