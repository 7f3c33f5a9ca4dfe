"""Write an image as a squashfs file for enroot and the Slurm plugin pyxis.

The file system is the image's, with three files that tell enroot how to start it: /etc/rc (entry point, command and
working directory), /etc/environment and /etc/fstab. It goes to mksquashfs as one tar stream in a fixed order, so the
bytes depend only on the image and on the release of squashfs-tools.

Sources: enroot, doc/image-format.md, and what its `common.sh` does to /etc/environment (3.5); mksquashfs(1); Linux,
fs/squashfs/squashfs_fs.h (superblock, inodes).
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from imagegen.core import programs
from imagegen.core.errors import StoreError
from imagegen.core.image_format import EPOCH
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store, disk
from imagegen.core.store.images import filling_file
from imagegen.export import Entry, RootFiles, contents, read_tree
from imagegen.image.layers import Image

PROGRAM = "mksquashfs"
BLOCK = 1 << 20  # bytes of a data block, the format's largest; files of a stack are large and read whole
LEVEL = 6  # of zstd
_FIX = "install squashfs-tools 4.5 or later: apt-get install squashfs-tools"
_IS_OLD = re.compile("invalid option|[Cc]ompressor")  # releases without -tar, or without zstd
_KINDS = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}
# Variables that enroot drops (another form of name, its own prefix) or changes. It replaces ${NAME} by the host's
# variable, ends a value at a newline, and removes quotes around it.
_VARIABLE = re.compile(r"(?!ENROOT_)[A-Za-z_][A-Za-z0-9_]*=(?![\"'])(?!.*\$\{)[^\n]*", re.DOTALL)


@dataclass(frozen=True)
class SquashfsFile:
    """A written squashfs: `size` is its bytes, `unpacked` the bytes of all files in it."""

    image: str  # digest
    file: Path
    size: int
    files: int
    unpacked: int

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "image": self.image,
            "file": str(self.file),
            "size": self.size,
            "files": self.files,
            "bytes": self.unpacked,
        }


def require_program(env: Mapping[str, str], system: Sequence[str] = ("/usr/sbin", "/sbin")) -> str:
    """Return the path of mksquashfs. Raises StoreError if it is not installed; call this before long work."""
    path = os.pathsep.join((env.get("PATH", os.defpath), *system))
    if program := shutil.which(PROGRAM, path=path):
        return program
    raise StoreError(f"{PROGRAM} is not installed", code="store-program-missing", why="it writes squashfs", fix=_FIX)


def write(image: Image, file: Path, store: Store, env: Mapping[str, str], progress: Progress) -> SquashfsFile:
    """Write the image's file system to a new file, which appears complete or not at all.

    Raises StoreError if mksquashfs is missing or fails, if the file exists or cannot be written, for a variable
    that enroot would change, and as `read_tree`.
    """
    program = require_program(env)
    added = enroot_files(image)
    with timed(progress, f"reading {len(image.layers)} layers"):
        tree = read_tree(image, store)
    with filling_file(file) as fresh, timed(progress, f"writing {file}"):
        with _mksquashfs(program, fresh) as stream:
            write_tar(image, tree, added, store, stream)
        _set_root_time(fresh, EPOCH)
        size = fresh.stat().st_size
    sizes = [entry.size for entry in tree.entries if entry.kind == "file"]
    return SquashfsFile(image.digest, file, size, len(sizes), sum(sizes))


def enroot_files(image: Image) -> dict[str, bytes]:
    """Return the files that tell enroot how to start the image: path -> content.

    Raises StoreError for a variable of the image that would have another value in enroot.
    """
    config = json.loads(image.config)["config"]
    variables: Sequence[str] = config.get("Env") or ()
    for variable in variables:
        if not _VARIABLE.fullmatch(variable):
            raise StoreError(
                f"the variable {variable.partition('=')[0]} cannot be exported",
                code="store-unsupported-variable",
                where=image.digest,
                why=f"enroot would change {variable!r}",
                fix="use letters, digits and _ in its name; and no ${, newline or first quote in its value",
            )
    entrypoint, command = config.get("Entrypoint") or [], config.get("Cmd") or []
    start = f"""\
# Image {image.digest}
cd {shlex.quote(config.get("WorkingDir") or "/")} || exit 1
if [ $# -eq 0 ]; then
    set -- {shlex.join(command or ([] if entrypoint else ["/bin/sh"]))}
fi
exec {shlex.join(entrypoint)} "$@"
"""
    return {
        "etc/environment": "".join(f"{variable}\n" for variable in variables).encode(),
        "etc/fstab": b"",
        "etc/rc": start.encode(),
    }


def write_tar(image: Image, tree: RootFiles, added: Mapping[str, bytes], store: Store, stream: IO[bytes]) -> None:
    """Write the tree with `added` files as a tar stream: directories and symbolic links, `added`, then files in the
    order of the layers.

    Raises StoreError as `contents`, OSError from the stream.
    """
    entries = {entry.path: entry for entry in tree.entries if entry.path not in added}
    by_origin: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    # GNU's format stores names that are not UTF-8 unchanged.
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
        for folder in sorted({path.rpartition("/")[0] for path in added} - entries.keys()):
            archive.addfile(_member(Entry(folder, "directory", 0o755, 0, 0, EPOCH)))
        for path, entry in entries.items():
            if entry.kind == "file":
                by_origin[tree.origins[path]].append(entry)
            else:
                archive.addfile(_member(entry))
        for path, text in added.items():
            archive.addfile(_member(Entry(path, "file", 0o644, 0, 0, EPOCH, len(text))), io.BytesIO(text))
        for index, layer in enumerate(image.layers):
            for number, content in contents(layer, store) if index in {index for index, _ in by_origin} else ():
                if files := by_origin.get((index, number)):
                    first, *links = files
                    archive.addfile(_member(first), content)
                    for other in links:
                        link = _member(other)
                        link.type, link.linkname, link.size = tarfile.LNKTYPE, first.path, 0
                        archive.addfile(link)


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.path)
    member.type, member.linkname, member.size = _KINDS[entry.kind], entry.target, entry.size
    member.mode, member.uid, member.gid, member.mtime = entry.mode, entry.uid, entry.gid, entry.mtime
    return member


@contextmanager
def _mksquashfs(program: str, file: Path) -> Iterator[IO[bytes]]:
    """Yield the standard input of mksquashfs, which writes `file`.

    Raises StoreError when it fails, OSError when it finds the disk full.
    """
    options = ["-tar", "-quiet", "-no-progress", "-exit-on-error", "-no-xattrs", "-no-exports", "-reproducible"]
    root = ["-mkfs-time", str(EPOCH), "-root-mode", "755", "-root-uid", "0", "-root-gid", "0"]
    compression = ["-comp", "zstd", "-Xcompression-level", str(LEVEL), "-b", str(BLOCK), "-noI"]
    argv = [program, "-", str(file), *options, *root, *compression]
    env = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}  # it refuses both
    with tempfile.TemporaryFile() as errors:
        process = programs.Program[bytes](
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, env=env
        )
        try:
            with suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as stream:
                yield stream
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if code:
            errors.seek(0)
            why = errors.read().decode(errors="replace").strip()[-1000:] or f"exit code {code}"
            disk.require_not_full(why)
            fix = _FIX if _IS_OLD.search(why) else None
            raise StoreError(f"{PROGRAM} failed", code="store-program-failed", where=str(file), why=why, fix=fix)


def _set_root_time(file: Path, time: int) -> None:
    """Set the time of the root directory: mksquashfs 4.5 takes the clock's with -tar, whatever -root-time says.

    The table of inodes is blocks of 8 KiB, each after its size in 2 bytes; with -noI they are not compressed. The
    superblock names the root's block (its distance from the table's start) and the inode's place in it; the time is at
    byte 8 of an inode.
    """
    with file.open("r+b") as image:
        superblock = image.read(96)
        (root,) = struct.unpack_from("<Q", superblock, 32)
        (table,) = struct.unpack_from("<Q", superblock, 64)
        for number, byte in enumerate(struct.pack("<I", time), start=(root & 0xFFFF) + 8):
            image.seek(table + (root >> 16) + 2 * (1 + number // 8192) + number)
            image.write(bytes([byte]))
