"""FACTS: what a store knows of a cell's wheels and base, as one archive that another store takes it back from.

An audit then needs no wheel, and the check that no two packages own one file neither. The archive is a tar of what the
store keeps, each named by its sha256: no name in it is believed. Source: POSIX.1-2001, ustar.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imagegen.errors import TrustError
from imagegen.inventory import cell
from imagegen.layers import watch
from imagegen.layers.tar import TarWriter
from imagegen.lock.model import Lock
from imagegen.store import Store, digest_of, kept

MAX_ARCHIVE = 1 << 30  # bytes


@dataclass(frozen=True)
class Facts:
    """`named` is for the LAYERS document: key of facts -> digest of their bytes. `archive` holds these bytes."""

    named: Mapping[str, str]
    archive: bytes


def packed(locked: Lock, store: Store) -> Facts:
    """All that the store knows of the lock's wheels and base; the same bytes wherever the same is known."""
    found = {key: data for kind, key in _keys(locked) if (data := kept.recall(store, kind, key)) is not None}
    contents = {digest_of(data): data for data in found.values()}
    archive = bytearray()
    tar = TarWriter(archive.extend, below=("/",))
    for digest, data in sorted(contents.items()):
        tar.file(digest.removeprefix("sha256:"), len(data), [data])
    tar.close()
    return Facts({key: digest_of(data) for key, data in sorted(found.items())}, bytes(archive))


def take(locked: Lock, store: Store, facts: Facts) -> None:
    """Let the store know what `facts` say of the lock's wheels and base; their other contents are left.

    `facts.named` must be believed: it is what a LAYERS document says whose signer is trusted. The archive need not be.
    Raises TrustError for an archive that is not the one that `named` speaks of: nothing is taken then.
    """
    contents = {digest_of(data): data for data in _members(facts.archive)}
    if lacking := set(facts.named.values()) - contents.keys():
        why = f"{len(lacking)} of the {len(set(facts.named.values()))} that are named are not in it: {min(lacking)}"
        raise _malformed(why)
    for kind, key in _keys(locked):
        if key in facts.named:
            kept.keep(store, kind, key, contents[facts.named[key]])


def _keys(locked: Lock) -> Iterator[tuple[str, str]]:
    """Kind and key of every record that an audit of the cell asks for."""
    for wheel in locked.wheels:
        yield watch.FACTS, watch.key(wheel, locked.python)
    yield cell.SYSTEM, cell.system_key(locked)


def _members(archive: bytes) -> Iterator[bytes]:
    """The contents of the archive's files, which lie one after the other; it holds nothing else."""
    if len(archive) > MAX_ARCHIVE:
        raise _malformed(f"it has {len(archive)} bytes, and at most {MAX_ARCHIVE} are read")
    start, block = 0, tarfile.BLOCKSIZE
    while (header := archive[start : start + block]) != bytes(block):
        try:
            member = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise _malformed(f"at byte {start}: {error}") from error
        start += block
        if member.type != tarfile.REGTYPE or not 0 <= member.size <= len(archive) - start:
            raise _malformed(f"at byte {start - block}: neither a file nor the end")
        yield archive[start : start + member.size]
        start += -(-member.size // block) * block


def _malformed(why: str) -> TrustError:
    fix = "go without: what it would tell is then learned from the wheels"
    return TrustError("what is attached is not what an audit knows of the image's wheels", why=why, fix=fix)
