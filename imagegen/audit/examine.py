"""Scan one file for the parts that the loader reads, and for GPU code."""

from __future__ import annotations

from imagegen.audit import elf, fatbin
from imagegen.audit.model import CUDA, CodeGroup, Elf, File
from imagegen.audit.window import Data, Holes, Unreadable

HEAD = 4096  # bytes from which `concerns` tells


def concerns(head: bytes) -> bool:
    """Return whether a file that begins with these bytes has content for the readers; of any other only the size is
    recorded.
    """
    return head.startswith((elf.MAGIC, fatbin.MAGIC)) or fatbin.ptx(head[:HEAD]) is not None


def examine(data: Data, *, size: int, sha256: str | None = None, executable: bool = False, holes: Holes = ()) -> File:
    """Parse a file of any kind. The result has the parts that could be parsed, and an error in `unreadable`.

    Args:
        data: All of the file; for a file that the readers skip, the first HEAD bytes suffice.
        size: The file's size in bytes.
        sha256: The file's digest in hexadecimal; None if not known.
        executable: Whether its mode has an execute bit.
        holes: Ranges of `data` that were not kept and are zeros, as GPU code behind its headers.
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
        elif group := fatbin.ptx(data):
            code = (group,)
    except Unreadable as error:
        why = str(error)
    return File(size, sha256, executable, read, code, why)


def _code(data: Data, holes: Holes, read: Elf) -> tuple[CodeGroup, ...]:
    if read.machine == CUDA:
        return (fatbin.cubin(data, holes),)
    return fatbin.groups(data, elf.code_ranges(data, holes), holes)
