"""One file, as the checks see it: what the loader reads of it, and the GPU code in it."""

from __future__ import annotations

from imagegen.audit import elf, fatbin
from imagegen.audit.model import CodeGroup, Elf, File
from imagegen.audit.window import Data, Holes, Unreadable

HEAD = 4096  # bytes from which `concerns` tells


def concerns(head: bytes) -> bool:
    """Return whether a file that begins with these bytes has content for the readers; of any other only the size is
    recorded.
    """
    return head.startswith((elf.MAGIC, fatbin.MAGIC)) or fatbin.ptx(head[:HEAD]) is not None


def examine(data: Data, *, size: int, sha256: str | None = None, executable: bool = False, holes: Holes = ()) -> File:
    """Parse a file of any kind; errors are in `unreadable`, beside what could be parsed.

    Args:
        data: all of the file; for a file that the readers skip, the first HEAD bytes suffice.
        size: of the file, in bytes.
        sha256: of the file, hex; None if not known.
        executable: whether its mode has an execute bit.
        holes: ranges of `data` that were not kept and are zeros: code behind its headers in a container of GPU code.
    """
    read: Elf | None = None
    code: tuple[CodeGroup, ...] = ()
    why = None
    try:
        if bytes(data[:4]) == elf.MAGIC:
            read = elf.read(data, holes)
            code = _code(data, holes, read)
        elif bytes(data[:8]) == fatbin.MAGIC:
            code = fatbin.groups(data, [(0, len(data))], holes)
        elif found := fatbin.ptx(data):
            code = (found,)
    except Unreadable as error:
        why = str(error)
    return File(size, sha256, executable, read, code, why)


def _code(data: Data, holes: Holes, read: Elf) -> tuple[CodeGroup, ...]:
    if read.machine == elf.CUDA:
        return (fatbin.cubin(data, holes),)
    return fatbin.groups(data, elf.code_ranges(data, holes), holes)
