"""Build requirements beside the cell's own packages: wheels in a folder of their own, on PYTHONPATH and PATH.

Nothing is installed: what lies in the interpreter's own site-packages is the cell's and stays as it is. Formats: the
binary distribution format (PyPA specifications), entry points (PyPA specifications).
"""

from __future__ import annotations

import configparser
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from .errors import Refused

_SCRIPT = """#!{interpreter}
import sys
from {module} import {first}
sys.exit({call}())
"""


def unpack(wheels: Iterable[Path], modules: Path, programs: Path, interpreter: str) -> None:
    """Unpack wheels: importable files below `modules`, executables below `programs`.

    Raises Refused for what is no wheel or has members outside.
    """
    modules.mkdir(parents=True)
    programs.mkdir(parents=True)
    for wheel in wheels:
        if not wheel.is_file():
            raise Refused(f"the build requirement {wheel.name} is not in {wheel.parent}")
        try:
            with zipfile.ZipFile(wheel) as archive:
                _unpack(archive, wheel.name, modules, programs, interpreter)
        except zipfile.BadZipFile as error:
            raise Refused(f"{wheel.name}: no wheel: {error}") from error


def _unpack(archive: zipfile.ZipFile, wheel: str, modules: Path, programs: Path, interpreter: str) -> None:
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            raise Refused(f"{wheel}: the member {member.filename!r} would lie outside")
        if member.is_dir():
            continue
        content = archive.read(member)
        folder, inside = modules, path
        if path.parts[0].endswith(".data") and len(path.parts) > 2:
            inside = PurePosixPath(*path.parts[2:])
            if path.parts[1] == "scripts":
                folder = programs
                content = _script(content, interpreter)
            elif path.parts[1] not in ("purelib", "platlib"):
                continue  # headers and data: nothing that a build finds without an installation
        place = folder / inside
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        # The upper half holds the mode where a Unix made the archive.
        place.chmod(0o755 if folder is programs or (member.external_attr >> 16) & 0o100 else 0o644)
        if path.name == "entry_points.txt" and path.parts[0].endswith(".dist-info"):
            _console(content.decode(), programs, interpreter)


def _script(content: bytes, interpreter: str) -> bytes:
    if content.startswith(b"#!python"):
        return b"#!" + interpreter.encode() + content[content.index(b"\n") :]
    return content


def _console(text: str, programs: Path, interpreter: str) -> None:
    """Write a program for each console script."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    if not parser.has_section("console_scripts"):
        return
    for name, value in parser.items("console_scripts"):
        module, _, call = value.partition("[")[0].strip().partition(":")
        place = programs / name
        if "/" not in name and call and not place.exists():
            first = call.partition(".")[0]
            place.write_text(_SCRIPT.format(interpreter=interpreter, module=module, first=first, call=call))
            place.chmod(0o755)
