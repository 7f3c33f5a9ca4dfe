"""Check a backend's wheel and rewrite it so that equal contents are equal bytes.

Members are sorted, the install records last, as the binary distribution format recommends; times, modes and the
compression do not depend on who built it. A member's bytes are never changed.
"""

from __future__ import annotations

import hashlib
import re
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import Refused

_FIRST = 315532800  # 1980-01-01, before which a zip archive has no time
_SUFFIX = re.compile(r"\.(abi3|cpython-[^/.]+|cp\d[^/.]*)?\.?so$|\.so$")


def finish(spec: Mapping[str, Any], dist: Path, out: Path) -> dict[str, Any]:
    """Check the one wheel in `dist` and write it to `out`; return its name, sha256 and size. Raises Refused."""
    made = sorted(dist.glob("*.whl"))
    if len(made) != 1:
        raise Refused(f"the build ended well and made {len(made)} wheels", "empty")
    wheel = made[0]
    with zipfile.ZipFile(wheel) as archive:
        _check(spec, wheel.name, archive)
        _write(archive, out / wheel.name, max(spec["epoch"], _FIRST))
    content = (out / wheel.name).read_bytes()
    return {
        "name": spec["name"],
        "version": spec["version"],
        "wheel": wheel.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }


def _check(spec: Mapping[str, Any], filename: str, archive: zipfile.ZipFile) -> None:
    name, version = filename.split("-")[:2]
    if re.sub(r"[-_.]+", "-", name).lower() != re.sub(r"[-_.]+", "-", spec["name"]).lower():
        raise Refused(f"the build made {filename}, which is no {spec['name']}", "another")
    if version.partition("+")[0] != spec["version"].partition("+")[0]:
        raise Refused(f"the build made {filename}, version {spec['version']} was asked for", "another")
    missing = [module for module in spec["modules"] if not _holds(archive.namelist(), module)]
    if missing:
        raise Refused(f"{filename} lacks the extension modules {', '.join(missing)}: nothing was compiled", "empty")


def _holds(members: Sequence[str], module: str) -> bool:
    path = module.replace(".", "/")
    return any(
        member.startswith(path) and _SUFFIX.fullmatch(member[len(path) :])
        for member in (re.sub(r"^[^/]+\.data/(pure|plat)lib/", "", member) for member in members)
    )


def _write(archive: zipfile.ZipFile, place: Path, epoch: int) -> None:
    when = time.gmtime(epoch)[:6]

    def order(member: zipfile.ZipInfo) -> tuple[bool, str]:
        return ".dist-info/" in member.filename, member.filename

    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as written:
        for member in sorted(archive.infolist(), key=order):
            if member.is_dir():
                continue
            entry = zipfile.ZipInfo(member.filename, when)
            mode = 0o755 if (member.external_attr >> 16) & 0o100 else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3  # Unix, whose modes these are
            entry.compress_type = zipfile.ZIP_DEFLATED
            written.writestr(entry, archive.read(member), compresslevel=6)
