"""Programs that run in containers, with what is installed there; they import nothing of imagegen.

`smoke` holds the smoke checks, `preflight` the startup checks that every image contains, `worker` the source builds,
and `prefix` the build backend of sources that have none.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

SMOKE = Path(__file__).parent / "smoke"
WORKER = Path(__file__).parent / "worker"
PREFIX_BACKEND = Path(__file__).parent / "prefix" / "imagegen_prefix.py"
_SCRIPTS = ("doctor", "entrypoint")  # programs of their own in the image; the rest is the package they share
_FLAGS = "-BIS"  # nothing of the user's environment, no site-packages, no byte-code written


@functools.cache
def _sources() -> Mapping[str, bytes]:
    folder = Path(__file__).parent / "preflight"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


def modules() -> dict[str, bytes]:
    """The package `preflight`: path below the directory that holds it -> source."""
    scripts = {f"{name}.py" for name in _SCRIPTS}
    return {f"preflight/{path}": source for path, source in _sources().items() if path not in scripts}


def scripts(interpreter: str) -> dict[str, bytes]:
    """Name -> program, to be run by `interpreter`, the absolute path of the base's Python."""
    head = f"#!{interpreter} {_FLAGS}\n".encode()
    return {name: head + _sources()[f"{name}.py"] for name in _SCRIPTS}


@functools.cache
def digest() -> str:
    """Hex sha256 of all sources: what a lock is made with, since they are part of the image."""
    found = hashlib.sha256()
    for path, source in _sources().items():
        found.update(f"{path} {len(source)}\n".encode() + source)
    return found.hexdigest()
