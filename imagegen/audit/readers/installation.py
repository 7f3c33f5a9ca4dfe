"""The files that installing a wheel creates: at absolute paths in the image, sorted.

Sources: "Binary distribution format" and "Entry points specification" of packaging.python.org; the layout is the venv
scheme of sysconfig. The result equals an installation by `uv pip install`, install records and script texts aside.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from packaging.utils import canonicalize_name

from imagegen.audit.readers.wheel import Member, Wheel
from imagegen.core.errors import WheelError
from imagegen.core.image_format import PREFIX
from imagegen.core.layer_tree import parents
from imagegen.core.zip_archive import MAX_PART

# Bytes. Compiling takes 50 times a source's size, a hostile one's 700 times; the longest of the field's has 4 MB. The
# interpreter compiles longer ones itself, when they are imported.
MAX_SOURCE = 8 << 20
_SCRIPT = """\
#!{python}
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.argv[0] = sys.argv[0].removesuffix(".exe")
    sys.exit({call}())
"""
_SCRIPTS = ("console_scripts", "gui_scripts")
_QUOTED = 200  # characters of a line that an error shows
_ENTRY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_TARGET = re.compile(rf"(?P<module>{_DOTTED})\s*:\s*(?P<attribute>{_DOTTED})\s*(?:\[.*\])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """One file to be. `path` is absolute, `size` bytes, `sha256` hex or None where a wheel gives none (RECORD.jws)."""

    path: str
    size: int
    executable: bool
    sha256: str | None
    chunks: Callable[[], Iterable[bytes]]


def site_packages(python: str, prefix: str = PREFIX) -> str:
    """Return the directory of modules for Python "3.11" of the environment at `prefix`."""
    return f"{prefix}/lib/python{python}/site-packages"


def skeleton(python: str, prefix: str = PREFIX) -> dict[str, str]:
    """The links of the environment itself, path -> target; "" stands for the base's interpreter and for pyvenv.cfg."""
    return {
        f"{prefix}/bin/python": "",
        f"{prefix}/bin/python3": "python",
        f"{prefix}/bin/python{python}": "python",
        f"{prefix}/lib64": "lib",
        f"{prefix}/pyvenv.cfg": "",
    }


def pyc_path(path: str, python: str) -> str:
    """Return where the import system looks for the byte-code of a source (PEP 3147)."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.cpython-{python.replace('.', '')}.pyc"


def compiles(file: InstalledFile, python: str, prefix: str = PREFIX) -> bool:
    """Return whether a file gets byte-code: a source in site-packages for which a file system can hold it."""
    name = pyc_path(file.path, python).rpartition("/")[2]
    is_source = file.path.endswith(".py") and file.path.startswith(site_packages(python, prefix) + "/")
    return is_source and file.size <= MAX_SOURCE and len(name.encode()) <= MAX_PART


def installation(wheel: Wheel, python: str, prefix: str = PREFIX) -> list[InstalledFile]:
    """Return every file that installing this wheel in the environment at `prefix` creates, sorted by path.

    Raises WheelError where two have one path.
    """
    site = site_packages(python, prefix)
    files = [*_members(wheel, site, python, prefix), *_console_scripts(wheel, python, prefix)]
    sources = {pyc_path(file.path, python) for file in files if file.path.endswith(".py")}
    files = [file for file in files if file.path not in sources]  # a shipped pyc gives way to ours, as with installers
    files.append(_file(f"{site}/{wheel.dist_info}/INSTALLER", b"imagegen\n"))
    record = f"{site}/{wheel.dist_info}/RECORD"
    files = [file for file in files if file.path != record]
    files.append(_file(record, _record(files, record, site)))
    files.sort(key=lambda file: file.path)
    _check_paths(wheel, files, python, prefix)
    return files


def _check_paths(wheel: Wheel, files: Sequence[InstalledFile], python: str, prefix: str) -> None:
    """Raise WheelError unless each path is one file, no file is another's directory, the environment itself stays
    unchanged, and no metadata is another release's. The byte-code that will be compiled has its paths, too.
    """
    links = set(skeleton(python, prefix))
    site = site_packages(python, prefix)
    skeleton_directories = {directory for path in (*links, f"{site}/x") for directory in parents(path)}
    paths: set[str] = set()
    directories: set[str] = set()
    byte_code = [pyc_path(file.path, python) for file in files if compiles(file, python, prefix)]
    for path in (*(file.path for file in files), *byte_code):
        where = f"{wheel.filename}: {path}"
        above = set()
        for directory in parents(path):
            if directory in directories:
                break
            above.add(directory)
        directories |= above
        if path in links or path in skeleton_directories or above & links:
            raise WheelError(
                "a wheel replaces a part of the environment itself", code="wheel-replaces-environment", where=where
            )
        if path in paths:
            raise WheelError(
                "two files of the wheel are installed at one path", code="wheel-path-conflict", where=where
            )
        if _is_foreign_metadata(wheel, path, site):
            raise WheelError(
                "a wheel brings the metadata of another distribution or release",
                code="wheel-foreign-metadata",
                where=where,
            )
        paths.add(path)
    for path in sorted(paths & directories):
        raise WheelError(
            "a path is a file and a directory", code="wheel-path-conflict", where=f"{wheel.filename}: {path}"
        )


def _is_foreign_metadata(wheel: Wheel, path: str, site: str) -> bool:
    """Return whether importlib.metadata, which ignores case, takes the path for metadata that are not the wheel's own.

    An .egg-info of the wheel's own distribution is left from its build and says nothing of others.
    """
    top = relative(path, site).partition("/")[0]
    name, _, kind = top.rpartition(".")
    if kind.lower() == "egg-info":
        return canonicalize_name(name.partition("-")[0]) != wheel.distribution
    return kind.lower() == "dist-info" and top != wheel.dist_info


def _members(wheel: Wheel, site: str, python: str, prefix: str) -> Iterator[InstalledFile]:
    data = wheel.dist_info.removesuffix(".dist-info") + ".data/"
    schemes = {
        "purelib": site,
        "platlib": site,
        "scripts": f"{prefix}/bin",
        "data": prefix,
        "headers": f"{prefix}/include/site/python{python}/{wheel.distribution}",
    }
    for member in wheel.members.values():
        if member.name == f"{wheel.dist_info}/INSTALLER":
            continue
        if not member.name.startswith(data):
            if member.name.partition("/")[0].endswith(".data"):  # installers treat it differently
                where = f"{wheel.filename}: {member.name}"
                raise WheelError(
                    "a wheel's data lie in a directory of another name",
                    code="wheel-data-invalid",
                    where=where,
                    why=f"its own is {data}",
                )
            target = f"{site}/{member.name}"
        else:
            scheme, _, data_path = member.name.removeprefix(data).partition("/")
            if scheme not in schemes or not data_path:
                where = f"{wheel.filename}: {member.name}"
                raise WheelError("a wheel's data belongs to an unknown scheme", code="wheel-data-invalid", where=where)
            target = f"{schemes[scheme]}/{data_path}"
            if target.startswith(f"{prefix}/lib64/"):  # a link to lib, which installers write through
                target = f"{prefix}/lib/{target.removeprefix(f'{prefix}/lib64/')}"
            if scheme == "scripts":
                yield _script(wheel, member, target, prefix)
                continue
        yield InstalledFile(target, member.size, member.executable, member.sha256, partial(wheel.chunks, member.name))


def _script(wheel: Wheel, member: Member, target: str, prefix: str) -> InstalledFile:
    """Return a script of the wheel: `#!python` becomes the environment's interpreter (PEP 427). Programs stay."""
    head = next(wheel.chunks(member.name), b"")
    if not head.startswith(b"#!python"):
        return InstalledFile(
            target, member.size, executable=True, sha256=member.sha256, chunks=partial(wheel.chunks, member.name)
        )
    old = b"#!pythonw" if head.startswith(b"#!pythonw") else b"#!python"
    new = f"#!{prefix}/bin/python".encode()

    def chunks() -> Iterator[bytes]:
        stream = wheel.chunks(member.name)
        yield new + next(stream).removeprefix(old)
        yield from stream

    digest = hashlib.sha256()
    for chunk in chunks():
        digest.update(chunk)
    size = member.size - len(old) + len(new)
    return InstalledFile(target, size, executable=True, sha256=digest.hexdigest(), chunks=chunks)


def _console_scripts(wheel: Wheel, python: str, prefix: str) -> Iterator[InstalledFile]:
    content = wheel.optional("entry_points.txt")
    if content is None:
        return
    file = f"{wheel.filename}: entry_points.txt"
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise WheelError(
            "the entry points cannot be read", code="wheel-entry-points-invalid", where=file, why=str(error)
        ) from error
    scripts = {(group, name): (where, target) for where, group, name, target in _scripts(text, file)}
    if wheel.distribution == "pip":
        # Installers, uv among them, add the launcher that is named after the interpreter.
        scripts |= {(group, f"pip{python}"): script for (group, name), script in scripts.items() if name == "pip3"}
    for (_, name), (where, target) in scripts.items():
        match = _TARGET.fullmatch(target)
        # These become lines of a program and a file's name, so they may hold nothing but identifiers.
        if not _ENTRY.fullmatch(name) or match is None:
            raise WheelError(
                "a script does not name a function",
                code="wheel-entry-points-invalid",
                where=where,
                why=f"{name} = {target}"[:_QUOTED],
            )
        module, attribute = match["module"], match["attribute"]
        first = attribute.partition(".")[0]
        script = _SCRIPT.format(python=f"{prefix}/bin/python", module=module, name=first, call=attribute)
        yield _file(f"{prefix}/bin/{name}", script.encode(), executable=True)


def _scripts(text: str, file: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the scripts of entry_points.txt: file and line, group, name, object reference. WheelError for other lines.

    Parsed line by line: configparser, which the specification names, backtracks for hours on a long line. Refused are
    lines that readers understand differently: a value that continues in the next line, text behind a header. Lines of
    other groups are skipped.
    """
    group = ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith(("#", ";")):
            continue
        name, equals, target = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        elif not group or line.startswith("[") or (group in _SCRIPTS and not equals):
            why = f"neither [group] nor name = module:function: {line[:_QUOTED]}"
            raise WheelError(
                "the entry points cannot be read", code="wheel-entry-points-invalid", where=f"{file}:{number}", why=why
            )
        elif group in _SCRIPTS:
            yield f"{file}:{number}", group, name.rstrip(), target.lstrip()


def _file(path: str, content: bytes, *, executable: bool = False) -> InstalledFile:
    return InstalledFile(path, len(content), executable, hashlib.sha256(content).hexdigest(), lambda: [content])


def _record(files: Iterable[InstalledFile], record: str, site: str) -> bytes:
    """RECORD (PEP 376): paths relative to site-packages, sorted; byte-code is not listed, as pip derives it."""
    rows = [(relative(record, site), "", "")]
    for file in files:
        digest = base64.urlsafe_b64encode(bytes.fromhex(file.sha256)).rstrip(b"=").decode() if file.sha256 else ""
        hashed = (f"sha256={digest}", str(file.size)) if digest else ("", "")
        rows.append((relative(file.path, site), *hashed))
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(sorted(rows))
    return out.getvalue().encode()


def relative(path: str, site: str) -> str:
    """A path of the image as RECORD has it: from site-packages."""
    if path.startswith(site + "/"):
        return path.removeprefix(site + "/")
    return "../../../" + path.removeprefix(_prefix_of(site) + "/")


def absolute(path: str, site: str) -> str:
    """The path of the image that `relative` has made this one of."""
    outside = path.removeprefix("../../../")
    return f"{site}/{path}" if outside == path else f"{_prefix_of(site)}/{outside}"


def _prefix_of(site: str) -> str:
    """Return the prefix of the environment with this site-packages: PREFIX/lib/python3.11/site-packages."""
    return site.rsplit("/", 3)[0]


def relocated(files: Iterable[InstalledFile], wheel: Wheel, python: str, prefix: str) -> list[InstalledFile]:
    """Return the files of a wheel's `installation` at PREFIX, moved to the environment at another prefix.

    A file that names no prefix keeps its content and its reader; scripts and RECORD are other files.
    """
    if prefix == PREFIX:
        return list(files)
    at_prefix = {file.path: file for file in installation(wheel, python, prefix)}
    moved = []
    for file in files:
        path = prefix + file.path.removeprefix(PREFIX)
        moved.append(replace(file, path=path) if is_same(file, at_prefix[path]) else at_prefix[path])
    return moved


def is_same(first: InstalledFile, other: InstalledFile) -> bool:
    """Return whether two files are known to have the same content and mode."""
    return first.sha256 is not None and (first.sha256, first.executable) == (other.sha256, other.executable)
