"""The config of an image, the copied files and the directories of the dynamic loader that a Dockerfile states.

Only certain statements are taken, and nothing runs. Sources: Dockerfile reference (CMD, ENTRYPOINT, COPY, ADD, EXPOSE,
LABEL, USER, WORKDIR), and dispatchers.go of BuildKit for the effect of an instruction on fields of earlier ones;
ldconfig(8) and ld.so(8) for the loader's files and for the directories that it searches without a cache, and
/etc/ld.so.conf.d of Debian 12 for those that its own cache has.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from imagegen.core import types as t
from imagegen.core.data import is_within, parse_json
from imagegen.core.errors import Location
from imagegen.core.text import redact
from imagegen.core.validation import explain_mismatch
from imagegen.projects.dockerfile_syntax import Command, Instruction, Variables, assignments
from imagegen.projects.model import Omission, read_text
from imagegen.projects.names import BaseConfig, system_directories
from imagegen.spec.model import ConfigName

_FILE = re.compile(r"/etc/ld\.so\.conf|/etc/ld\.so\.conf\.d/[^/]+\.conf")
_LDCONFIG = frozenset({"ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"})
_MULTIARCH = ("", "/x86_64-linux-gnu", "/aarch64-linux-gnu")
_SEARCHED = {f"{path}{below}" for path in ("/lib", "/usr/lib") for below in _MULTIARCH} | {"/lib64", "/usr/lib64"}
_CACHED = tuple(f"/usr/local/lib{below}" for below in _MULTIARCH)  # where a cache has the libraries that ldconfig finds
_LONGEST_CONFIGURATION = 1 << 16  # bytes of a file of directories
_LIBRARY = re.compile(r".+\.so(?:\.[\w.]{1,50})?")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
_SHOWN_LINE = 70  # characters of a command
_FIX = "add it to `ldconfig` once the image has it: docs/how-to/replace-a-dockerfile.md"


def is_configuration(path: str) -> bool:
    """Return whether ldconfig reads the file for directories."""
    return _FILE.fullmatch(path) is not None


@dataclass
class LoaderReader:
    """A reader of the commands and copied files that configure the loader. `document` is a RUN's here-document."""

    omissions: list[Omission] = field(default_factory=list)
    document: str = ""
    _directories: dict[str, Location] = field(default_factory=dict)
    _read: set[Path] = field(default_factory=set)  # copied files
    _updated: Location | None = None  # of the last ldconfig

    def read(self, command: Command, words: Sequence[str], location: Location) -> bool:
        """Read a command, whose words follow `sudo` and the like; return whether it is about the loader."""
        if words[0] in _LDCONFIG:
            self._updated = location
            texts: list[str] | None = [word for word in words[1:] if word.startswith("/")]
        elif is_configuration(command.output):
            texts = _written(words, self.document)
        elif words[0] == "tee" and any(map(is_configuration, words)):
            texts = _written(command.source, "")
        else:
            return False
        shown_command = redact(" ".join(words))[:_SHOWN_LINE]
        if command.is_conditional:
            self._omit(location, shown_command, "whether it runs is known only when it runs", _FIX)
        elif command.unknown:
            self._omit(location, shown_command, f"the value of {', '.join(command.unknown)} is not in the file", _FIX)
        elif texts is None:
            self._omit(location, shown_command, "its output is known only when it runs", _FIX)
        else:
            self._add(texts, location, shown_command)
        return True

    def copied(self, source: Path, project: Path, location: Location) -> None:
        """Read a file of the project that is copied to where ldconfig reads it. Raises ProjectFileError."""
        if source not in self._read:
            self._read.add(source)
            lines = read_text(source, project, location, longest=_LONGEST_CONFIGURATION).splitlines()
            self._add(lines, location, f"the copy of {source.name}")

    def directories(self, files: Mapping[str, tuple[Path, Location]]) -> dict[str, Location]:
        """Return the directories with copied `files`, by path in the image; the others are added to the omissions."""
        above = _directories_of(files)
        existing = {
            path: named_at
            for path, named_at in self._directories.items()
            if PurePosixPath(path) in above or _is_in_copied_directory(path, files)
        }
        if self._updated:
            updated = {path: self._updated for path in _CACHED if path not in existing and _has_library(path, files)}
            existing |= updated
        for path, location in self._directories.items():
            if path not in existing and path not in _CACHED:
                why = "no file of the project is copied there, and a build rejects a directory that it does not have"
                self._omit(location, f"the loader's directory {path}", why, _FIX)
        return existing

    def _add(self, lines: Iterable[str], location: Location, statement: str) -> None:
        for line in lines:
            path = line.partition("#")[0].strip().rstrip("/")
            if not path or path in _SEARCHED:
                continue
            try:
                self._directories.setdefault(TypeAdapter(t.AbsolutePath).validate_python(path), location)
            except ValidationError:
                self._omit(location, statement, f"{path!r} is not the absolute path of a directory", _FIX)

    def _omit(self, location: Location, statement: str, why: str, fix: str) -> None:
        self.omissions.append(Omission(location, statement, why, fix))


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


def _directories_of(files: Iterable[str]) -> set[PurePosixPath]:
    """Return the paths and all directories above them."""
    above: set[PurePosixPath] = set()
    for path in map(PurePosixPath, files):
        for directory in (path, *path.parents):
            if directory in above:
                break
            above.add(directory)
    return above


def _is_in_copied_directory(path: str, files: Mapping[str, tuple[Path, Location]]) -> bool:
    """Return whether a directory of the project that is copied above has a directory for this path."""
    for directory in PurePosixPath(path).parents:
        source, _ = files.get(str(directory), (None, None))
        if source and (source / PurePosixPath(path).relative_to(directory)).is_dir():
            return True
    return False


def _has_library(directory: str, files: Mapping[str, tuple[Path, Location]]) -> bool:
    """Return whether a library is copied into the directory itself."""
    for path, (source, _) in files.items():
        if path == directory and source.is_dir() and any(_LIBRARY.fullmatch(file.name) for file in source.iterdir()):
            return True
        if str(PurePosixPath(path).parent) == directory and source.is_file() and _LIBRARY.fullmatch(source.name):
            return True
    return False


REPLACE = "docs/how-to/replace-a-dockerfile.md shows how an image says it"
_SHOWN = 70  # characters of an instruction
_LONGEST_PATH = 1024  # characters
_MOST_PATTERNS = 200  # of COPY: each reads directories
_COPY_FLAGS = frozenset({"--chmod", "--chown", "--from", "--link"})
_ARCHIVES = re.compile(r".*\.(?:tar(?:\.\w+)?|tgz|tbz2?|txz)")  # that ADD unpacks
_REMOTE = re.compile(r"(?:https?|ftp|ssh)://|git@")
_CHANGES = frozenset({"chgrp", "chmod", "chown", "cp", "ln", "mv", "rm", "sed", "tar", "unzip"})
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(/(?:tcp|udp|sctp))?")
_MOST_PORTS = 20  # of a range


@dataclass
class ConfigReader:
    """A reader of the instructions of a stage and of the stages that it begins with, in their order."""

    path: Path
    project: Path
    base: BaseConfig = field(default_factory=BaseConfig)
    labels: dict[str, tuple[str, Location]] = field(default_factory=dict)
    ports: dict[str, Location] = field(default_factory=dict)
    files: dict[str, tuple[Path, Location]] = field(default_factory=dict)  # path in the image -> its source
    omissions: list[Omission] = field(default_factory=list)
    loader: LoaderReader = field(default_factory=LoaderReader)
    _fields: dict[ConfigName, tuple[tuple[str, ...], Location]] = field(default_factory=dict)
    _shell: tuple[str, ...] = ("/bin/sh", "-c")
    _workdir: str = ""  # "" where it is unknown
    _directory: str = ""  # in which the next command of a RUN runs
    _patterns: int = 0  # of COPY, that were looked for
    _stage: int = 0  # the line of its FROM
    _copied: dict[str, Path] = field(default_factory=dict)  # path in the image -> any file or directory of the context

    @property
    def contexts(self) -> list[Path]:
        """Return the directories of the project that may be the build context."""
        folders = (self.path.parent, self.path.parent.parent)
        return [folder for folder in folders if is_within(folder, self.project)]

    def begin_stage(self, line: int, base: BaseConfig | None) -> None:
        """Begin the stage whose FROM has that line, with the base image of the first one."""
        self._stage, self._shell = line, ("/bin/sh", "-c")
        if base:
            self.base, self._workdir = base, base.workdir

    def read(self, instruction: Instruction, variables: Variables) -> None:
        """Read an instruction; a statement without a field in an entry is an omission. Raises ProjectFileError."""
        unknown: list[str] = []
        location, value = Location(self.path, instruction.line), instruction.value
        if instruction.name not in ("CMD", "ENTRYPOINT", "SHELL", "LABEL"):  # a shell of the container reads these
            value = variables.expand(value, unknown, location)
        if unknown:
            self._omit(instruction, f"the value of {', '.join(unknown)} is not in the file", REPLACE)
        elif instruction.name in ("COPY", "ADD"):
            self._copy(instruction, value, location)
        elif instruction.name == "LABEL":
            self._labels(instruction, variables, location)
        elif instruction.name == "EXPOSE":
            self._expose(instruction, value, location)
        elif instruction.name == "USER":
            self._fields["user"] = (value,), location
        elif instruction.name == "WORKDIR":
            self._change_directory(instruction, value.strip("\"'"), location)
        else:
            self._program(instruction, location)

    @property
    def is_in_workdir(self) -> bool:
        """Return whether the next command of a RUN runs in the working directory."""
        return self._directory == self._workdir

    def begin_run(self) -> None:
        """Begin the commands of a RUN."""
        self._directory = self._workdir

    def enter(self, path: str | None) -> None:
        """Change the directory of the commands behind this one; None stands for one that is not known."""
        self._directory = (self._absolute(path, self._directory) or "") if path else ""

    def config(self) -> dict[ConfigName, tuple[tuple[str, ...], Location]]:
        """Return the fields of the final image that an entry can say; the others are added to the omissions."""
        fields = dict(self._fields)
        if "cmd" in fields and "entrypoint" not in fields and not self.base.runs_command:
            why = "the entry point of the base image gets it as arguments, and is not in the file"
            fix = "add the whole command to `config` as `cmd`"
            self._omit_field("CMD", *fields.pop("cmd"), why, fix)
        if "user" in fields and fields["user"][0][0].partition(":")[0] in ("root", "0"):
            del fields["user"]  # the user of every image
        if "user" in fields and self._refusal(t.User, fields["user"][0][0]):
            why = "a user is named by number, since no command of the file has run"
            self._omit_field("USER", *fields.pop("user"), why, "add its number to `config`, as in `user: 1000:1000`")
        return fields

    def source(self, path: str) -> Path | None:
        """Return the file or directory of the build context that a COPY brought to a path in the image."""
        whole = self._absolute(path, self._directory)
        for target in map(str, (PurePosixPath(whole), *PurePosixPath(whole).parents)) if whole else ():
            if (
                target in self._copied
                and (existing := self._copied[target] / os.path.relpath(str(whole), target)).exists()
            ):
                return existing
        return None

    def changed(self, words: list[str]) -> str | None:
        """Return the reason why a command leaves copied files otherwise than they were copied; None if it does not."""
        if words[0] not in _CHANGES:
            return None
        for word in words[1:]:
            path = self._absolute(word, self._directory)
            target = next((file for file in self.files if path is not None and _overlap(path.rstrip("*/"), file)), None)
            if target is None:
                continue
            source = self.files[target][0]
            adds_bit = words[0] == "chmod" and re.fullmatch(r"[au]*\+x|0?[57][57][57]", words[1])
            if not (adds_bit and source.is_file() and os.access(source, os.X_OK)):
                return f"{target} is copied unchanged from the project"
        return None

    def _copy(self, instruction: Instruction, value: str, location: Location) -> None:
        flags, words = _flags(value)
        if instruction.document:
            self._omit(instruction, "its text is in the Dockerfile", "write it to a file of the project, and name that")
        elif "--from" in flags:
            why = f"{flags['--from']} is another stage or image, of which nothing is built"
            fix = "name a package of it as a component, or its files under `files` once the project has them"
            self._omit(instruction, why, fix)
        elif len(words) < 2 or flags.keys() - _COPY_FLAGS:
            self._omit(instruction, "it is not read", REPLACE)
        elif not (target := self._absolute(words[-1], self._workdir)):
            self._omit(
                instruction, "the working directory of the base image is not in the file", "write an absolute path"
            )
        else:
            if (owner := flags.get("--chown", "root").partition(":")[0]) not in ("root", "0"):
                why = "root owns the files of an image, and everybody may read them"
                self._note(location, f"--chown={owner}", why, "let the program write below /workspace or HOME")
            self._copy_all(
                instruction, words[:-1], target, flags.get("--chmod", ""), is_directory=words[-1][-1] in "/."
            )

    def _copy_all(
        self, instruction: Instruction, names: list[str], target: str, mode: str, *, is_directory: bool
    ) -> None:
        matches: list[tuple[Path, Path]] = []  # the context and the source in it
        for name in names:
            if _REMOTE.match(name):
                self._omit(
                    instruction, "its file is not in the project", "bring it into the project, and name it there"
                )
            elif instruction.name == "ADD" and _ARCHIVES.fullmatch(name):
                self._omit(instruction, "ADD unpacks an archive", "unpack it in the project, and name the directory")
            elif sources := self._sources(name):
                matches += sources
            else:
                why = f"the project has no {name} in the Dockerfile's directory or the one above it"
                self._omit(instruction, why, "name it under `files`")
        is_directory = (
            is_directory or len(matches) > 1 or target in {*system_directories(), *self._copied, self._workdir}
        )
        for context, source in matches:
            path = target if source.is_dir() or not is_directory else str(PurePosixPath(target, source.name))
            self._copied[path] = source
            if source == context:
                why = "an entry names the files and directories that the image needs, not a whole build context"
                fix = "name them under `files`, and the project's own package as a component with `path:`"
                self._omit(instruction, why, fix)
            elif is_configuration(path) and source.is_file():
                self.loader.copied(source, self.project, Location(self.path, instruction.line))
            elif (refusal := self._refusal(t.TargetPath, path)) is not None:
                self._omit(instruction, refusal, "name the files under `files`, with another path")
            else:
                self._add(instruction, path, source, mode)

    def _add(self, instruction: Instruction, path: str, source: Path, mode: str) -> None:
        if path in self.files and source.is_dir():
            why = f"line {self.files[path][1].line} copies a directory to the same path"
            self._omit(instruction, why, "name the files of both under `files`")
            return
        self.files[path] = source, Location(self.path, instruction.line)
        if mode and source.is_file() and os.access(source, os.X_OK) != bool(re.search(r"\+x|^0?[1357]", mode)):
            why = "the executable bit comes from the file in the project"
            self._note(Location(self.path, instruction.line), f"--chmod={mode}", why, f"chmod {mode} {source.name}")

    def _sources(self, name: str) -> list[tuple[Path, Path]]:
        """Return the matches of a name or pattern of COPY, in the first possible build context that has one."""
        segments = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in segments:
            return []
        for context in self.contexts:
            pattern = "/".join(segments)
            if re.search(r"[*?\[]", pattern):
                self._patterns += 1
                if self._patterns > _MOST_PATTERNS or segments.count("**") > 1:
                    return []
                matches = sorted(context.glob(pattern))
            else:
                matches = [context / pattern]
            if existing := [(context, match) for match in matches if match.exists() and is_within(match, self.project)]:
                return existing
        return []

    def _labels(self, instruction: Instruction, variables: Variables, location: Location) -> None:
        for name, value in assignments(instruction, self.path):
            unknown: list[str] = []
            text = variables.expand(value or "", unknown, location)
            why = f"the value of {', '.join(unknown)} is not in the file" if unknown else None
            if why := why or self._refusal(t.LabelName, name) or self._refusal(t.EnvValue, text):
                self._note(location, f"the label {name}", why, "leave it out, or add it to `labels`")
            else:
                self.labels[name] = text, location

    def _expose(self, instruction: Instruction, value: str, location: Location) -> None:
        for word in value.split():
            ports = _PORTS.fullmatch(word.lower())
            first, last = (int(ports[1]), int(ports[2] or ports[1])) if ports else (0, 0)
            if not ports or last - first >= _MOST_PORTS or self._refusal(t.Port, str(last)):
                self._omit(instruction, f"{word} is not a port", "add it to `ports`")
                continue
            protocol = "" if ports[3] in (None, "/tcp") else ports[3]
            self.ports |= {f"{port}{protocol}": location for port in range(first, last + 1)}

    def _change_directory(self, instruction: Instruction, value: str, location: Location) -> None:
        path = self._absolute(value, self._workdir)
        if path is None:
            self._omit(
                instruction, "the working directory of the base image is not in the file", "write an absolute path"
            )
            self._workdir = ""
            return
        self._workdir = path
        self._fields.pop("workdir", None)
        if why := self._refusal(t.AbsolutePath, path):
            self._omit(instruction, why, "add it to `config`")
        else:
            self._fields["workdir"] = (path,), location

    def _program(self, instruction: Instruction, location: Location) -> None:
        """Read CMD, ENTRYPOINT or SHELL: a list of arguments, else a line for the shell."""
        try:
            words = parse_json(instruction.value)
            is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
        except ValueError:
            is_list = False
        command = tuple(words) if is_list else (*self._shell, instruction.value)
        if instruction.name == "SHELL":
            self._shell = command if is_list else self._shell
            return
        if instruction.name == "ENTRYPOINT":  # drops the command of an earlier stage, and of the base image
            if "cmd" in self._fields and (self._fields["cmd"][1].line or 0) < self._stage:
                del self._fields["cmd"]
            self.base = BaseConfig(self.base.workdir, runs_command=True)
        name: ConfigName = "cmd" if instruction.name == "CMD" else "entrypoint"
        self._fields.pop(name, None)
        if why := next((why for word in command if (why := self._refusal(t.Argument, word))), None):
            self._omit(instruction, why, f"add it to `config` as `{name}`")
        elif command:
            self._fields[name] = command, location

    @staticmethod
    def _absolute(path: str, directory: str) -> str | None:
        """Return a path in the image, normalised; None if it is too long, or relative to an unknown directory."""
        if not path.startswith("/") and not directory:
            return None
        joined = os.path.normpath(PurePosixPath(directory or "/", path))
        return joined if len(joined) <= _LONGEST_PATH else None

    @staticmethod
    def _refusal(kind: Any, value: str) -> str | None:
        """Return why the matrix has no such value; None where it has."""
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            detail = error.errors()[0]
            if detail["type"] == "string_pattern_mismatch":
                return f"{value!r} {explain_mismatch(detail['ctx'])}"
            return str(detail["msg"]).removeprefix("Value error, ")
        return None

    def _omit_field(self, name: str, value: tuple[str, ...], location: Location, why: str, fix: str) -> None:
        self._note(location, f"{name} {shlex.join(value)}"[:_SHOWN], why, fix)

    def _omit(self, instruction: Instruction, why: str, fix: str) -> None:
        self._note(Location(self.path, instruction.line), f"{instruction.name} {instruction.value}"[:_SHOWN], why, fix)

    def _note(self, location: Location, statement: str, why: str, fix: str) -> None:
        self.omissions.append(Omission(location, redact(statement), why, fix))


def _overlap(path: str, target: str) -> bool:
    """Return whether one of two paths is the other one, or above it; the root directory counts as above none."""
    return path != "" and (f"{path}/".startswith(f"{target}/") or f"{target}/".startswith(f"{path}/"))


def _flags(value: str) -> tuple[dict[str, str], list[str]]:
    """Return the flags and the paths of COPY and ADD, the last of which is the target."""
    words: Iterator[str] = iter(value.split())
    flags: dict[str, str] = {}
    paths: list[str] = []
    for word in words:
        if word.startswith("--") and not paths:
            name, _, flag = word.partition("=")
            flags[name] = flag
        else:
            paths.append(word)
    text = " ".join(paths)
    if text.startswith("["):
        try:
            return flags, [str(path) for path in parse_json(text)]
        except ValueError:
            return flags, []
    return flags, [word.strip("\"'") for word in paths]
