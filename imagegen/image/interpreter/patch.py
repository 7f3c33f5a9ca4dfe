"""Patch a standalone interpreter's records of itself for its place in an image and for the compiler there.

python-build-standalone builds with prefix /install and a clang of its own; `sysconfig`, `python3-config`, pkg-config
files and the Makefile in config-* repeat both, and builds of extension modules follow them. uv corrects the same after
unpacking (crates/uv-python/src/sysconfig of uv 0.13): the prefix becomes the real one, compilers become cc and c++, the
archiver ar, and flags that only the build machine had go. Pure: text in, text out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from imagegen.core.errors import BaseError

_BUILT_AT = "/install"
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
_MAKE = re.compile(rf"^({'|'.join((*_COMMANDS, 'AR'))})(\s*=\s*)(.*)$", re.MULTILINE)
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
            variables[name] = _variable(name, value, prefix)
    variables["PYTHON_BUILD_STANDALONE"] = 1  # as uv marks it
    lines = "".join(f" {name!r}: {value!r},\n" for name, value in sorted(variables.items()))
    return f"{_HEAD}build_time_vars = {{\n{lines}}}\n".encode()


def _variable(name: str, value: str, prefix: str) -> str:
    value = _FOREIGN.sub("", _PREFIX.sub(rf"\g<1>{prefix}", value)).rstrip()
    return _command(name, value)


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
        found = ast.literal_eval(statement.value) if isinstance(statement, ast.Assign) else None
        if not isinstance(found, Mapping) or not all(
            isinstance(name, str) and (value is None or isinstance(value, str | int | float))
            for name, value in found.items()
        ):
            raise ValueError("it assigns no table of texts and numbers")  # noqa: TRY301 - as what the parser raises
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise BaseError(
            "the interpreter's sysconfig data cannot be read",
            code="base-interpreter-invalid",
            where=path,
            why=str(error),
        ) from error
    return dict(found)
