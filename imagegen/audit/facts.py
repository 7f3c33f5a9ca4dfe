"""Serialise the scan of a package's files, or of a base's, as bytes (a few MB at most).

Compressed JSON. A set of names is one text with NUL between the names, because ELF files end names with NUL.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import Any

import zstandard
from pydantic_core import from_json

from imagegen.audit.api.exports import Module
from imagegen.audit.api.required import RequiredName
from imagegen.audit.model import (
    CUDA,
    CodeGroup,
    CodeTarget,
    Elf,
    File,
    InstalledDeb,
    Licence,
    OptionalImport,
    OsRelease,
    Package,
    SystemLibraries,
)

# Raise it whenever the readers return something else for the same file or base. Scans under the old number are then
# ignored.
FACTS_FORMAT = 9
_LEVEL = 6
_NUL = "\0"
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def packed(scan: Package | SystemLibraries) -> bytes:
    """Return the scan as bytes, equal for equal scans in any order."""
    if isinstance(scan, Package):
        return packed_package(scan, {path: file_text(file) for path, file in scan.files.items()})
    return _compressed(_text(_from_system(scan)))


def packed_package(scan: Package, files: dict[str, bytes]) -> bytes:
    """Return the scan of the package as bytes, with `files` (path -> result of `file_text`) instead of its own files.

    Empties `files`, since the names in large libraries take tens of MB.
    """
    value = _from_package(scan)
    text = bytearray(_text({name: part for name, part in value.items() if name < "files"})[:-1])
    text += b',"files":{'
    for number, path in enumerate(sorted(files)):
        text += b"%s%s:%s" % (b"," if number else b"", _text(path), files.pop(path))
    text += b"}," + _text({name: part for name, part in value.items() if name > "files"})[1:]
    return _compressed(text)


def file_text(file: File) -> bytes:
    """Return the scan of a file in the form that the scan of its package contains."""
    return _text(_from_file(file))


def _text(value: Any) -> bytes:
    return _JSON.encode(value).encode()


def _compressed(text: bytes | bytearray) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(text)


def package(data: bytes) -> Package:
    """Return the package of which `packed` made the bytes. Bytes of another origin raise any exception."""
    value = _value(data)
    files = {path: _to_file(file) for path, file in value["files"].items()}
    text_fields = {name: tuple(value[name]) for name in ("requires", "tags", "imports", "entry_points")}
    expression, text, classifiers = value["licence"]
    return Package(
        value["name"],
        value["version"],
        files,
        **text_fields,
        licence=Licence(expression, text, tuple(classifiers)),
        optional_imports=tuple(OptionalImport(*row) for row in value["optional_imports"]),
        exports={name: _to_module(row) for name, row in value["exports"].items()},
        required_names=tuple(RequiredName(*row) for row in value["required_names"]),
    )


def system(data: bytes) -> SystemLibraries:
    """Return the base of which `packed` made the bytes; as `package`."""
    value = _value(data)
    libraries = {name: _to_file(file) for name, file in value["libraries"].items()}
    interpreter = _to_file(value["interpreter"]) if value["interpreter"] else None
    debs = {name: _to_deb(row) for name, row in value["debs"].items()}
    release = OsRelease(*value["release"]) if value["release"] else None
    return SystemLibraries(libraries, value["paths"], tuple(value["preloaded"]), interpreter, debs, release)


def _value(data: bytes) -> dict[str, Any]:
    text = zstandard.ZstdDecompressor().decompress(data)
    try:
        value: dict[str, Any] = from_json(text, cache_strings="keys")  # takes two thirds of the time that `json` does
    except ValueError:  # it takes no half of a surrogate pair, which a package's metadata may hold
        value = json.loads(text)
    return value


def _from_package(scan: Package) -> dict[str, Any]:
    """Return the package as plain data, without its files."""
    return {
        "name": scan.name,
        "version": scan.version,
        "requires": scan.requires,
        "tags": scan.tags,
        "imports": scan.imports,
        "entry_points": scan.entry_points,
        "licence": [scan.licence.expression, scan.licence.text, scan.licence.classifiers],
        "optional_imports": [
            [
                optional_import.distribution,
                optional_import.path,
                optional_import.line,
                optional_import.lazy,
                optional_import.guarded,
            ]
            for optional_import in scan.optional_imports
        ],
        "exports": {name: _from_module(module) for name, module in scan.exports.items()},
        "required_names": [
            [required_name.name, required_name.modules, required_name.path, required_name.line, required_name.certain]
            for required_name in scan.required_names
        ],
    }


def _from_system(scan: SystemLibraries) -> dict[str, Any]:
    return {
        "libraries": {name: _from_file(file) for name, file in scan.libraries.items()},
        "paths": dict(scan.paths),
        "preloaded": scan.preloaded,
        "interpreter": _from_file(scan.interpreter) if scan.interpreter else None,
        "debs": {name: _from_deb(deb) for name, deb in scan.debs.items()},
        "release": [scan.release.id, scan.release.version, scan.release.codename] if scan.release else None,
    }


def _from_module(module: Module) -> list[Any]:
    return [" ".join(sorted(module.names)), module.stars, module.open, module.below]


def _to_module(row: list[Any]) -> Module:
    names, stars, anything, below = row
    return Module(frozenset(names.split()), tuple(stars), anything, below)


def _from_deb(deb: InstalledDeb) -> list[Any]:
    return [deb.version, deb.architecture, deb.source, deb.source_version, deb.licences]


def _to_deb(row: list[Any]) -> InstalledDeb:
    version, architecture, source, source_version, licences = row
    return InstalledDeb(version, architecture, source, source_version, None if licences is None else tuple(licences))


def _from_file(file: File) -> list[Any]:
    """Return a file as plain data. Most are neither ELF files nor GPU code, and have three fields."""
    row = [file.size, file.sha256, file.executable]
    if (file.elf, file.code, file.unreadable) == (None, (), None):
        return row
    code = [[[_from_target(target) for target in group.targets], group.count, group.sizes] for group in file.code]
    return [*row, _from_elf(file.elf) if file.elf else None, code, file.unreadable]


def _to_file(row: list[Any]) -> File:
    """Return the file of which `_from_file` made plain data."""
    if len(row) == 3:
        return File(*row)
    size, sha256, executable, elf, code, unreadable = row
    groups = tuple([CodeGroup(tuple(map(_to_target, targets)), count, tuple(sizes)) for targets, count, sizes in code])
    return File(size, sha256, executable, _to_elf(elf) if elf else None, groups, unreadable)


def _from_target(target: CodeTarget) -> list[Any]:
    return [target.kind, target.arch, target.variant, target.isa]


def _to_target(row: list[Any]) -> CodeTarget:
    kind, arch, variant, isa = row
    return CodeTarget(kind, arch, variant, tuple(isa) if isa else None)


def _from_elf(elf: Elf) -> dict[str, Any]:
    return {
        "machine": elf.machine,
        "soname": elf.soname,
        "needed": elf.needed,
        "rpath": elf.rpath,
        "runpath": elf.runpath,
        "undefined": _joined(elf.undefined),
        "exported": _joined(elf.exported),
        "requires": {name: _joined(nodes) for name, nodes in elf.requires.items()},
        "provides": _joined(elf.provides),
        "program": elf.program,
        "alignment": elf.alignment,
    }


def _to_elf(value: dict[str, Any]) -> Elf:
    if value == _CUBIN_VALUE:
        return _CUBIN
    return Elf(
        value["machine"],
        value["soname"],
        tuple(value["needed"]),
        tuple(value["rpath"]),
        tuple(value["runpath"]),
        _split(value["undefined"], shared=True),
        _split(value["exported"]),
        {name: _split(nodes) for name, nodes in value["requires"].items()},
        _split(value["provides"]),
        value["program"],
        value["alignment"],
    )


def _joined(names: Collection[str]) -> str | None:
    """Return the names as one text; None for no names, since an empty text is one empty name."""
    return _NUL.join(sorted(names)) if names else None


def _split(text: str | None, *, shared: bool = False) -> frozenset[str]:
    """Return the names of a text. `shared` names are interned, because a stack's libraries share symbols."""
    names = [] if text is None else text.split(_NUL)
    return frozenset(map(sys.intern, names) if shared else names)


_CUBIN = Elf(CUDA)  # stacks hold 15,000
_CUBIN_VALUE = json.loads(_text(_from_elf(_CUBIN)))
