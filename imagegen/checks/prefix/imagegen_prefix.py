"""A build backend (PEP 517) for sources that are no Python package: their own commands install them below a prefix.

A recipe's `prefix:` adds this file, imagegen_prefix.json and a pyproject.toml to the sources. What the commands install
becomes a wheel whose files go to the same places below the environment (scheme `data` of the binary distribution
format). A wheel has no symbolic links: a file stands in place of each. Standard library only, Python 3.10 or newer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

DESTDIR = "imagegen-destdir"


def build_wheel(wheel_directory: str, *_: Any) -> str:
    """Run the commands and pack what they installed; return the wheel's name. Ends the process where that fails."""
    described = json.loads(Path("imagegen_prefix.json").read_text(encoding="utf-8"))
    destdir = Path(DESTDIR).resolve()
    shutil.rmtree(destdir, ignore_errors=True)  # objects of an earlier run stay, what it installed does not
    words = {
        "{jobs}": os.environ.get("MAX_JOBS", "1"),
        "{prefix}": described["prefix"],
        "{destdir}": str(destdir),
    }
    for command in described["commands"]:
        run([replaced(word, words) for word in command])
    return pack(described, destdir, Path(wheel_directory))


def run(command: list[str]) -> None:
    """Run a program to its end; print it, as make does."""
    print(" ".join(command), flush=True)
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started ({error.strerror}): add its package to the image's `packages`")
    if code:
        sys.exit(f"{command[0]} ended with exit code {code if code > 0 else 128 - code}")


def replaced(word: str, words: dict[str, str]) -> str:
    """Return the word with each placeholder replaced."""
    for name, value in words.items():
        word = word.replace(name, value)
    return word


def pack(described: dict[str, Any], destdir: Path, into: Path) -> str:
    """Write the installed files as a wheel; return its name."""
    top = destdir / described["prefix"].strip("/")
    found = sorted(path for path in destdir.rglob("*") if path.is_file())
    if elsewhere := [path for path in found if top not in path.parents]:
        sys.exit(f"/{elsewhere[0].relative_to(destdir)} was installed, which is not below {described['prefix']}")
    if missing := [name for name in described["files"] if not (top / name).is_file()]:
        sys.exit(f"{', '.join(missing)} was not installed; there are {len(found)} files below {described['prefix']}")
    name, version = described["name"].replace("-", "_"), described["version"]
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {described['name']}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {each}" for each in described["requires"]]
    wheel = ["Wheel-Version: 1.0", "Generator: imagegen", "Root-Is-Purelib: false", f"Tag: {tag}"]
    texts = {f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    members = [(f"{name}-{version}.data/data/{path.relative_to(top).as_posix()}", path) for path in found]
    rows = []
    filename = f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(into / filename, "w") as archive:
        for member, path in members:
            content = path.read_bytes()
            rows.append(_row(member, content))
            archive.writestr(_entry(member, executable=bool(path.stat().st_mode & 0o100)), content)
        for member, lines in texts.items():
            content = "".join(f"{line}\n" for line in lines).encode()
            rows.append(_row(member, content))
            archive.writestr(_entry(member), content)
        archive.writestr(_entry(f"{info}/RECORD"), "".join([*rows, f"{info}/RECORD,,\n"]))
    return filename


def _entry(name: str, *, executable: bool = False) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    return entry


def _row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"
