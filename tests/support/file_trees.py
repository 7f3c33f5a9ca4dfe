"""File trees as mappings, path -> content of a file, `To` for a link, None for a directory: on disk, and as a tar.

What lies in a bin/ is executable.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.layer_tar import Allowance
from imagegen.image.inventory.layers import LayeredTree, read_layer


@dataclass(frozen=True)
class To:
    """A link; a hard one leads to a path in the tar."""

    target: str
    hard: bool = False


Things = Mapping[str, bytes | To | None]


def on_disk(root: Path, tree: Things) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, what in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if what is None:
            path.mkdir(exist_ok=True)
        elif isinstance(what, To):
            path.symlink_to(what.target)
        else:
            path.write_bytes(what)
            path.chmod(0o755 if "bin/" in name else 0o644)
    return root


def as_tar(tree: Things) -> bytes:
    """Uncompressed."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, what in tree.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755 if "bin/" in name else 0o644
            if what is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(what, To):
                info.type, info.linkname = tarfile.LNKTYPE if what.hard else tarfile.SYMTYPE, what.target
            data = what if isinstance(what, bytes) else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def layered(scratch: Path, *layers: Things) -> LayeredTree:
    found = LayeredTree()
    for each in layers:
        found.add(read_layer(io.BytesIO(as_tar(each)), scratch, Allowance()))
    return found


def site_of(
    tags: Sequence[str] = ("cp311-cp311-linux_x86_64",), /, **distributions: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Installed distributions, name -> files, with metadata and RECORD; of version 1.0 for Python 3.11."""
    lines = "".join(f"Tag: {tag}\n" for tag in tags)
    found: dict[str, bytes] = {}
    for name, files in distributions.items():
        info = f"{name}-1.0.dist-info"
        own = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: x>1\n".encode(),
            f"{info}/WHEEL": f"Wheel-Version: 1.0\n{lines}".encode(),
        }
        rows = "".join(f"{path},,\n" for path in [*files, *own, f"{info}/RECORD"])
        found |= {**files, **own, f"{info}/RECORD": rows.encode()}
    return found


def below(prefix: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{prefix}/{name}": data for name, data in files.items()}
