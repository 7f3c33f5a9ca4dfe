"""The directories that a Dockerfile adds to the dynamic loader's configuration; nothing runs.

Sources: ldconfig(8) and ld.so(8) for the files and for the directories that the loader searches without a cache;
/etc/ld.so.conf.d of Debian 12 for those that its own cache has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

from imagegen.core import types as t
from imagegen.core.errors import Location
from imagegen.core.text import redact
from imagegen.plan.projects.dockerfile_syntax import Command
from imagegen.plan.projects.model import Omission, read_text

_FILE = re.compile(r"/etc/ld\.so\.conf|/etc/ld\.so\.conf\.d/[^/]+\.conf")
_LDCONFIG = frozenset({"ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"})
_MULTIARCH = ("", "/x86_64-linux-gnu", "/aarch64-linux-gnu")
_SEARCHED = {f"{path}{below}" for path in ("/lib", "/usr/lib") for below in _MULTIARCH} | {"/lib64", "/usr/lib64"}
_CACHED = tuple(f"/usr/local/lib{below}" for below in _MULTIARCH)  # where a cache has what ldconfig finds there
_LIBRARY = re.compile(r".+\.so(?:\.[\w.]+)?")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
_SHOWN = 70  # characters of a command
_FIX = "add it to `ldconfig` once the image has it: docs/how-to/replace-a-dockerfile.md"


def is_configuration(path: str) -> bool:
    """Return whether ldconfig reads the file for directories."""
    return _FILE.fullmatch(path) is not None


@dataclass
class LoaderReader:
    """A reader of the commands and copied files that configure the loader. `document` is a RUN's here-document."""

    omissions: list[Omission] = field(default_factory=list)
    document: str = ""
    _named: dict[str, Location] = field(default_factory=dict)
    _updated: Location | None = None  # of the last ldconfig

    def read(self, command: Command, words: Sequence[str], place: Location) -> bool:
        """Read a command, whose words follow `sudo` and the like; return whether it is about the loader."""
        if words[0] in _LDCONFIG:
            self._updated = place
            texts: list[str] | None = [word for word in words[1:] if word.startswith("/")]
        elif is_configuration(command.output):
            texts = _written(words, self.document)
        elif words[0] == "tee" and any(map(is_configuration, words)):
            texts = _written(command.source, "")
        else:
            return False
        what = redact(" ".join(words))[:_SHOWN]
        if command.is_conditional:
            self._omit(place, what, "whether it runs is known only when it runs", _FIX)
        elif command.unknown:
            self._omit(place, what, f"the value of {', '.join(command.unknown)} is not in the file", _FIX)
        elif texts is None:
            self._omit(place, what, "what it writes is known only when it runs", _FIX)
        else:
            self._add(texts, place, what)
        return True

    def copied(self, source: Path, place: Location) -> None:
        """Read a file of the project that is copied to where ldconfig reads it. Raises ProjectFileError."""
        self._add(read_text(source).splitlines(), place, f"the copy of {source.name}")

    def directories(self, files: Mapping[str, tuple[Path, Location]]) -> dict[str, Location]:
        """Return the directories with copied `files`, by path in the image; the others are added to the omissions."""
        found = {path: place for path, place in self._named.items() if _has(path, files)}
        if self._updated:
            updated = {path: self._updated for path in _CACHED if path not in found and _has_library(path, files)}
            found |= updated
        for path, place in self._named.items():
            if path not in found and path not in _CACHED:
                why = "no file of the project is copied there, and a build rejects a directory that it does not have"
                self._omit(place, f"the loader's directory {path}", why, _FIX)
        return found

    def _add(self, lines: Iterable[str], place: Location, what: str) -> None:
        for line in lines:
            path = line.partition("#")[0].strip().rstrip("/")
            if not path or path in _SEARCHED:
                continue
            try:
                self._named.setdefault(TypeAdapter(t.AbsolutePath).validate_python(path), place)
            except ValidationError:
                self._omit(place, what, f"{path!r} is not the absolute path of a directory", _FIX)

    def _omit(self, place: Location, what: str, why: str, fix: str) -> None:
        self.omissions.append(Omission(place, what, why, fix))


def _written(words: Sequence[str], document: str) -> list[str] | None:
    """Return the lines that a command writes to its output; None where only running it tells."""
    if not words:
        return None
    program, arguments = words[0], list(words[1:])
    if program == "cat" and not arguments and document:
        return document.splitlines()
    if program == "echo":
        while arguments and re.fullmatch("-[neE]+", arguments[0]):
            arguments.pop(0)
        text = " ".join(arguments)
    elif program == "printf" and arguments:
        form, *values = arguments
        text = form
        if "%" in form:
            if not re.fullmatch(r"(?:%s|\\n|\s)+", form):
                return None
            text = "\n".join(values)
    else:
        return None
    if re.search(r"[$`]", text):
        return None
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match[0]], text).splitlines()


def _has(directory: str, files: Mapping[str, tuple[Path, Location]]) -> bool:
    """Return whether files are copied into the directory."""
    for path, (source, _) in files.items():
        if PurePosixPath(path).is_relative_to(directory):
            return True
        if (
            PurePosixPath(directory).is_relative_to(path)
            and (source / PurePosixPath(directory).relative_to(path)).is_dir()
        ):
            return True
    return False


def _has_library(directory: str, files: Mapping[str, tuple[Path, Location]]) -> bool:
    """Return whether a library is copied into the directory itself."""
    for path, (source, _) in files.items():
        if path == directory and source.is_dir() and any(_LIBRARY.fullmatch(each.name) for each in source.iterdir()):
            return True
        if str(PurePosixPath(path).parent) == directory and source.is_file() and _LIBRARY.fullmatch(source.name):
            return True
    return False
