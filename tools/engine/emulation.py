"""Register emulators of other processors in the kernel (binfmt_misc) for a private engine, and remove them.

Debian's qemu-user-static describes its emulators in /usr/share/binfmts. binfmt-support registers them when a machine
boots with an init system; on a machine without one, the kernel has no emulators.
Sources: Linux, Documentation/admin-guide/binfmt-misc.rst; update-binfmts(8), "FORMAT FILES".
"""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.progress import Progress
from imagegen.oci.documents import PLATFORMS

BINFMT_MISC = Path("/proc/sys/fs/binfmt_misc")
_FORMATS = Path("/usr/share/binfmts")
_FLAGS = {"preserve": "P", "credentials": "C", "fix_binary": "F"}  # a format's key -> the kernel's flag


@dataclass(frozen=True)
class Emulation:
    """The emulators to register: their names in the kernel, and the lines that register them.

    `mounts` is whether binfmt_misc is to be mounted.
    """

    handlers: tuple[tuple[str, str], ...] = ()
    mounts: bool = False


def plan(engine: str, *, mounted: bool = False) -> Emulation:
    """Return the emulators that this machine has and its kernel does not start, under names that contain `engine`.

    `mounted` is whether another private engine mounted binfmt_misc; the last engine unmounts it.
    """
    machines = [machine for machine in PLATFORMS if machine != platform.machine()]
    handlers = []
    for machine in machines:
        name = f"imagegen-{engine}-{machine}"
        if not _is_enabled(f"qemu-{machine}") and (line := registration(_read_format(f"qemu-{machine}"), name)):
            handlers.append((name, line))
    absent = not (BINFMT_MISC / "register").exists()
    return Emulation(tuple(handlers), bool(handlers) and (absent or mounted))


def register(emulation: Emulation, progress: Progress) -> None:
    """Register the emulators. If the kernel refuses one, report that: programs for this processor still run."""
    if not emulation.handlers:
        return
    if not (BINFMT_MISC / "register").exists():
        mount = ["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT_MISC)]
        subprocess.run(mount, capture_output=True, check=False)
    for name, line in emulation.handlers:
        try:
            if not (BINFMT_MISC / name).exists():
                (BINFMT_MISC / "register").write_text(line, encoding="ascii")
        except OSError as error:
            progress.say(f"note: the kernel refuses the emulator {name} ({error.strerror})")
        else:
            progress.say(f"programs for {PLATFORMS[name.rpartition('-')[2]]} run under qemu, slowly")


def remove(emulation: Emulation) -> None:
    """Undo `register`; other emulators stay."""
    for name, _ in emulation.handlers:
        with suppress(OSError):
            (BINFMT_MISC / name).write_text("-1", encoding="ascii")
    if emulation.mounts and not _others():
        subprocess.run(["umount", "--lazy", str(BINFMT_MISC)], capture_output=True, check=False)


def registration(fields: dict[str, str], name: str) -> str | None:
    """Return the line that registers a format under a name, or None if its interpreter is not installed."""
    interpreter = fields.get("interpreter", "")
    if not interpreter or not Path(interpreter).exists() or not fields.get("magic"):
        return None
    flags = "".join(flag for key, flag in _FLAGS.items() if fields.get(key) == "yes")
    offset, magic, mask = fields.get("offset", "0"), fields["magic"], fields.get("mask", "")
    return f":{name}:M:{offset}:{magic}:{mask}:{interpreter}:{flags}"


def _read_format(name: str) -> dict[str, str]:
    """Return the fields of a format file; an empty dictionary if there is no such file."""
    try:
        lines = (_FORMATS / name).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {key: value.strip() for key, _, value in (line.partition(" ") for line in lines)}


def _is_enabled(name: str) -> bool:
    try:
        return (BINFMT_MISC / name).read_text(encoding="ascii").startswith("enabled")
    except OSError:
        return False


def _others() -> list[str]:
    """Return the names of the emulators that are registered."""
    with suppress(OSError):
        return sorted({entry.name for entry in BINFMT_MISC.iterdir()} - {"register", "status"})
    return []
