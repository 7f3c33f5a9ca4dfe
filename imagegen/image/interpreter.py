"""The archive of a standalone interpreter, unpacked and patched. It is hostile: nothing is ever written outside.

An `install_only` archive of python-build-standalone is a gzipped tar of one directory, `python`, which becomes the
interpreter's prefix in an image. Source: its docs/distributions.rst. Left out: byte-code, which images get from the
interpreter itself, and EXTERNALLY-MANAGED, since a stack is a venv that users install into.

python-build-standalone builds with prefix /install and a clang of its own; `sysconfig`, `python3-config`, pkg-config
files and the Makefile in config-* repeat both, and builds of extension modules follow them. uv corrects the same after
unpacking (crates/uv-python/src/sysconfig of uv 0.13): the prefix becomes the real one, compilers become cc and c++, the
archiver ar, and flags that only the build machine had go.
"""

from __future__ import annotations

import ast
import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from imagegen.core.errors import BaseError
from imagegen.core.layer_tar import DAMAGED, Bounded, members
from imagegen.core.store import Store
from imagegen.core.text import unprintable
from imagegen.image.base.unpack import ODD, UnpackTarget
from imagegen.lock.interpreter import InterpreterArchive

_PREFIX = re.compile(r"(?<![^\s'\":=!])(-[LI]|#!)?/install(?![^\s'\":/])", re.MULTILINE)
# As uv's table of variables has it; each is a command, whose options stay.
_COMMANDS = ("CC", "CXX", "BLDSHARED", "LDSHARED", "LDCXXSHARED", "LINKCC")
_C = re.compile(r"(?<!\S)(?:/\S*/)?(?:[a-z0-9_]+-)*(?:clang|gcc|cc)(?:-[0-9.]+)?(?!\S)")
_CXX = re.compile(r"(?<!\S)(?:/\S*/)?(?:[a-z0-9_]+-)*(?:clang\+\+|g\+\+|c\+\+)(?:-[0-9.]+)?(?!\S)")
# Options that only clang knows, or that name directories of the build machine.
_FOREIGN = re.compile(
    r"(?<!\S)(?:-isysroot\s+\S+|--sysroot=\S+|-fdebug-default-version=\S+|-flto=thin|-fprofile-instr-use=\S+|-[IL]/tools/\S+)"
    r"(?:\s+|$)"
)
_MAKE = re.compile(rf"^({'|'.join((*_COMMANDS, 'AR'))})(\s*=\s*)(.*)", re.MULTILINE)
_HEAD = "# system configuration generated and used by the sysconfig module\n"


def patched(path: str, content: bytes, prefix: str) -> bytes:
    """Return the file at `path`, relative to the interpreter's directory, as it is in an image, where `prefix` is that.

    Raises BaseError for sysconfig data of another form than CPython's.
    """
    if re.fullmatch(r"lib/python3\.[0-9]+/_sysconfigdata_[^/]*\.py", path):
        return sysconfig_data(path, content, prefix)
    if re.fullmatch(r"lib/python3\.[0-9]+/config-[^/]*/Makefile", path):
        text = _PREFIX.sub(rf"\g<1>{prefix}", content.decode(errors="surrogateescape"))
        return _MAKE.sub(_make_line, text).encode(errors="surrogateescape")
    is_script = path.startswith("bin/") and content.startswith(b"#!")
    if is_script or re.fullmatch(r"lib/pkgconfig/[^/]*\.pc|lib/python3\.[0-9]+/config-[^/]*/python-config\.py", path):
        text = content.decode(errors="surrogateescape")
        return _PREFIX.sub(rf"\g<1>{prefix}", text).encode(errors="surrogateescape")
    return content


def may_change(path: str) -> bool:
    """Return whether `patched` may change the file at this path; no other file need be read for it."""
    return bool(
        re.fullmatch(
            r"bin/[^/]*|lib/pkgconfig/[^/]*\.pc"
            r"|lib/python3\.[0-9]+/(_sysconfigdata_[^/]*\.py|config-[^/]*/(Makefile|python-config\.py))",
            path,
        )
    )


def sysconfig_data(path: str, content: bytes, prefix: str) -> bytes:
    """Return the module of `sysconfig` with its variables corrected, one per line, sorted."""
    variables = _variables(path, content)
    for name, value in variables.items():
        if isinstance(value, str):
            patched_value = _FOREIGN.sub("", _PREFIX.sub(rf"\g<1>{prefix}", value)).rstrip()
            variables[name] = _command(name, patched_value)
    variables["PYTHON_BUILD_STANDALONE"] = 1  # as uv marks it
    lines = "".join(f" {name!r}: {value!r},\n" for name, value in sorted(variables.items()))
    return f"{_HEAD}build_time_vars = {{\n{lines}}}\n".encode()


def _command(name: str, value: str) -> str:
    if name == "AR":
        return "ar"
    return _C.sub("cc", _CXX.sub("c++", value)) if name in _COMMANDS else value


def _make_line(line: re.Match[str]) -> str:
    return line[1] + line[2] + _command(line[1], _FOREIGN.sub("", line[3]).rstrip())


def _variables(path: str, content: bytes) -> dict[str, str | int | float | None]:
    """Return the dictionary that the module assigns; nothing of it is run."""
    try:
        (statement,) = ast.parse(content.decode()).body
        variables = ast.literal_eval(statement.value) if isinstance(statement, ast.Assign) else None
        if not isinstance(variables, Mapping) or not all(
            isinstance(name, str) and (value is None or isinstance(value, str | int | float))
            for name, value in variables.items()
        ):
            raise ValueError("it assigns no table of texts and numbers")  # noqa: TRY301 - the parser raises the same
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise BaseError(
            "the interpreter's sysconfig data cannot be read",
            code="base-interpreter-invalid",
            where=path,
            why=str(error),
        ) from error
    return dict(variables)


_TOP = "python"
MAX_BYTES = 2 << 30  # unpacked; the field's have 0.2 GB
_MAX_ENTRIES = 100_000  # the field's have 6000
_MAX_TEXT = 16 << 20  # bytes of a file that is patched
_LEFT_OUT = {"__pycache__", "EXTERNALLY-MANAGED"}


def unpack(archive: InterpreterArchive, store: Store, root: Path, prefix: str) -> None:
    """Put the interpreter of an archive in the store below `root`, an existing directory, patched for `prefix`.

    Raises BaseError for an archive that is damaged, holds anything outside its directory, or no interpreter.
    """
    with _explained(archive), store.open(archive.digest) as blob:
        stream = _Limited(gzip.GzipFile(fileobj=cast("BinaryIO", blob)))
        tree = UnpackTarget(root)
        with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r|", errorlevel=2, tarinfo=Bounded) as tar:
            for number, member in enumerate(members(tar), 1):
                if number > _MAX_ENTRIES:
                    raise BaseError(
                        "the archive holds more files than any interpreter", code="base-interpreter-invalid"
                    )
                if not set(_checked(member).name.split("/")) & _LEFT_OUT:
                    tree.add(member, tar)
        while stream.read(1 << 20):  # the store verifies the bytes at their end
            pass
        _finish(root, prefix)


def _inside(path: str) -> str:
    """Return a path of the archive from its directory on; "" for that directory. Raises BaseError for others."""
    names = path.split("/")
    if names[0] != _TOP or _is_odd(path):
        raise BaseError(f"a path does not lie below {_TOP}/", code="base-interpreter-invalid", where=repr(path[:200]))
    if any(part.startswith(".wh.") for part in names):
        raise BaseError("a name has another meaning in layers", code="base-interpreter-invalid", where=path[:200])
    return "/".join(names[1:])


def _checked(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the member with its paths from the archive's directory on. Raises BaseError for an invalid one."""
    if not (member.isdir() or member.isreg() or member.issym() or member.islnk()):
        raise BaseError(
            "a member is not a file, directory or link", code="base-interpreter-invalid", where=member.name[:200]
        )
    member.name = _inside(member.name)
    if member.islnk():
        member.linkname = _inside(member.linkname)
    elif member.issym() and (member.linkname.startswith("/") or _is_odd(member.linkname)):
        raise BaseError(
            f"a link leads out of {_TOP}/",
            code="base-interpreter-invalid",
            where=member.name[:200],
            why=f"to {member.linkname[:200]!r}",
        )
    return member


def _is_odd(text: str) -> bool:
    return unprintable(text) is not None or not text.isprintable()


def _finish(root: Path, prefix: str) -> None:
    """Check the links, and patch the files that name the build machine."""
    root = root.resolve()
    for folder, below, names in os.walk(root):
        for name in (*below, *names):
            file = Path(folder, name)
            path = str(file.relative_to(root))
            if file.is_symlink():
                if not Path(os.path.realpath(file)).is_relative_to(root):
                    why = f"to {os.readlink(file)[:200]!r}"
                    raise BaseError(
                        f"a link leads out of {_TOP}/", code="base-interpreter-invalid", where=path, why=why
                    )
            elif may_change(path) and file.stat().st_size <= _MAX_TEXT:
                old = file.read_bytes()
                if (new := patched(path, old, prefix)) != old:
                    file.write_bytes(new)


class _Limited:
    """A stream that ends with an error where more comes than any interpreter holds."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._left = stream, MAX_BYTES

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise BaseError("the archive unpacks to more than any interpreter holds", code="base-interpreter-invalid")
        return data


@contextmanager
def _explained(archive: InterpreterArchive) -> Iterator[None]:
    try:
        yield
    except BaseError as error:
        where = f"{archive.filename}: {error.where}" if error.where else archive.filename
        why = error.summary
        raise BaseError(
            "the interpreter cannot be unpacked", code="base-interpreter-invalid", where=where, why=why
        ) from error
    except (*DAMAGED, zlib.error, gzip.BadGzipFile) as error:
        raise BaseError(
            "the interpreter cannot be unpacked",
            code="base-interpreter-invalid",
            where=archive.filename,
            why=str(error),
        ) from error
    except OSError as error:
        if error.errno not in ODD:  # the disk's own trouble
            raise
        raise BaseError(
            "the interpreter cannot be unpacked",
            code="base-interpreter-invalid",
            where=archive.filename,
            why=error.strerror,
        ) from error
