"""What a wheel becomes when it is installed: files at absolute paths in the image, sorted.

Sources: "Binary distribution format" and "Entry points specification" of packaging.python.org; the layout is the venv
scheme of sysconfig. The result equals what `uv pip install` puts there, install records and script texts aside.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from installer.utils import parse_entrypoints

from imagegen.errors import WheelError
from imagegen.layers.wheel import Wheel

PREFIX = "/opt/venv"
_SCRIPT = """\
#!{python}
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.argv[0] = sys.argv[0].removesuffix(".exe")
    sys.exit({call}())
"""
_ENTRY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Installed:
    """One file to be. `path` is absolute, `size` bytes, `sha256` hex or None where a wheel gives none (RECORD.jws)."""

    path: str
    size: int
    executable: bool
    sha256: str | None
    chunks: Callable[[], Iterable[bytes]]


def site_packages(python: str) -> str:
    """Where modules live for Python "3.11"."""
    return f"{PREFIX}/lib/python{python}/site-packages"


def pyc_path(path: str, python: str) -> str:
    """Where the import system looks for the byte-code of a source (PEP 3147)."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.cpython-{python.replace('.', '')}.pyc"


def installation(wheel: Wheel, python: str) -> list[Installed]:
    """Every file that installing this wheel creates, sorted by path. WheelError where two of them have one path."""
    site = site_packages(python)
    files = [*_members(wheel, site, python), *_console_scripts(wheel)]
    sources = {pyc_path(file.path, python) for file in files if file.path.endswith(".py")}
    files = [file for file in files if file.path not in sources]  # a shipped pyc gives way to ours, as with installers
    files.append(_file(f"{site}/{wheel.dist_info}/INSTALLER", b"imagegen\n"))
    record = f"{site}/{wheel.dist_info}/RECORD"
    files = [file for file in files if file.path != record]
    files.append(_file(record, _record(files, record, site)))
    files.sort(key=lambda file: file.path)
    for before, after in itertools.pairwise(files):
        if before.path == after.path:
            where = f"{wheel.filename}: {after.path}"
            raise WheelError("two files of the wheel are installed at one path", where=where)
    return files


def _members(wheel: Wheel, site: str, python: str) -> Iterator[Installed]:
    data = wheel.dist_info.removesuffix(".dist-info") + ".data/"
    schemes = {
        "purelib": site,
        "platlib": site,
        "scripts": f"{PREFIX}/bin",
        "data": PREFIX,
        "headers": f"{PREFIX}/include/site/python{python}/{wheel.distribution}",
    }
    for member in wheel.members.values():
        if member.name == f"{wheel.dist_info}/INSTALLER":
            continue
        if not member.name.startswith(data):
            target = f"{site}/{member.name}"
        else:
            scheme, _, rest = member.name.removeprefix(data).partition("/")
            if scheme not in schemes or not rest:
                where = f"{wheel.filename}: {member.name}"
                raise WheelError("a wheel's data belongs to an unknown scheme", where=where)
            target = f"{schemes[scheme]}/{rest}"
            if scheme == "scripts":
                yield _script(target, wheel.read(member.name))
                continue
        if target in (f"{PREFIX}/pyvenv.cfg", f"{PREFIX}/bin/python"):
            where = f"{wheel.filename}: {member.name}"
            raise WheelError("a wheel replaces a part of the environment itself", where=where)
        chunks = _reader(wheel, member.name)
        yield Installed(target, member.size, member.executable, member.sha256, chunks)


def _reader(wheel: Wheel, name: str) -> Callable[[], Iterable[bytes]]:
    return lambda: wheel.chunks(name)


def _script(path: str, content: bytes) -> Installed:
    """A script of the wheel: `#!python` becomes the environment's interpreter, as PEP 427 asks."""
    if content.startswith(b"#!python"):
        content = f"#!{PREFIX}/bin/python".encode() + content[len(b"#!python") :].removeprefix(b"w")
    return _file(path, content, executable=True)


def _console_scripts(wheel: Wheel) -> Iterator[Installed]:
    text = wheel.optional("entry_points.txt")
    if text is None:
        return
    for name, module, attribute, _section in parse_entrypoints(text.decode("utf-8", "strict")):
        where = f"{wheel.filename}: entry_points.txt"
        # These become lines of a program, so they may hold nothing but identifiers.
        if not _ENTRY.fullmatch(name):
            raise WheelError(f"a script cannot be called {name!r}", where=where)
        if not (_DOTTED.fullmatch(module) and attribute and _DOTTED.fullmatch(attribute)):
            raise WheelError(f"the script {name} does not name a function", where=where, why=f"{module}:{attribute}")
        first = attribute.partition(".")[0]
        content = _SCRIPT.format(python=f"{PREFIX}/bin/python", module=module, name=first, call=attribute)
        yield _file(f"{PREFIX}/bin/{name}", content.encode(), executable=True)


def _file(path: str, content: bytes, *, executable: bool = False) -> Installed:
    return Installed(path, len(content), executable, hashlib.sha256(content).hexdigest(), lambda: [content])


def _record(files: Iterable[Installed], record: str, site: str) -> bytes:
    """RECORD (PEP 376): paths relative to site-packages, sorted; byte-code is not listed, as pip derives it."""
    rows = [(_relative(record, site), "", "")]
    for file in files:
        digest = base64.urlsafe_b64encode(bytes.fromhex(file.sha256)).rstrip(b"=").decode() if file.sha256 else ""
        hashed = (f"sha256={digest}", str(file.size)) if digest else ("", "")
        rows.append((_relative(file.path, site), *hashed))
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(sorted(rows))
    return out.getvalue().encode()


def _relative(path: str, site: str) -> str:
    if path.startswith(site + "/"):
        return path.removeprefix(site + "/")
    return "../../../" + path.removeprefix(PREFIX + "/")
