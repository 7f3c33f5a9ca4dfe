"""The packages and variables that a Dockerfile and its base image install and set; nothing runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile, pairwise
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from imagegen.core import types as t
from imagegen.core.data import parse_json
from imagegen.core.errors import Location, UsageError
from imagegen.core.text import redact
from imagegen.projects import requirements
from imagegen.projects.dockerfile_config import REPLACE, ConfigReader
from imagegen.projects.dockerfile_syntax import Command, Instruction, Piece, Variables, assignments, commands, parse
from imagegen.projects.model import (
    MarkerTarget,
    Omission,
    PackagePin,
    Recovered,
    malformed,
    raise_all,
    read_text,
    unsupported,
)
from imagegen.projects.names import (
    BaseConfig,
    KnownImage,
    accelerator_in,
    accelerator_of,
    command_words,
    cuda_in_name,
    is_system,
    known_image,
    packages_in_name,
    python_in_name,
    pythons_in_commands,
)

_PIP = re.compile(r"(?:.*/)?pip3?(?:\.\d+)?")
_APT = frozenset({"apt", "apt-get"})
_SHELLS = frozenset({"sh", "bash", "/bin/sh", "/bin/bash"})
_PREFIXES = frozenset({"sudo", "exec", "env", "command", "eatmydata"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PIP_FILES = {
    "-r": "-r",
    "--requirement": "-r",
    "--requirements": "-r",
    "-c": "-c",
    "--constraint": "-c",
    "--constraints": "-c",
}
_PIP_INDEXES = frozenset({"-i", "--index-url", "--extra-index-url", "--index", "--default-index", "-f", "--find-links"})
_APT_VALUES = frozenset({"-t", "--target-release", "-o", "--option", "-c", "--config-file"})
_CONFIG = frozenset({"ADD", "CMD", "COPY", "ENTRYPOINT", "EXPOSE", "LABEL", "SHELL", "USER", "WORKDIR"})
_AT_RUN_TIME = "state it where the container starts, as `docker run` and Kubernetes do"
_NO_FIELD = {
    **dict.fromkeys(("HEALTHCHECK", "STOPSIGNAL", "VOLUME"), ("an entry has no field for it", _AT_RUN_TIME)),
    "ONBUILD": ("it is for images that are built on this one", "leave it out"),
}
_BUILD_VARIABLES = frozenset({"DEBIAN_FRONTEND", "PIP_NO_CACHE_DIR", "MAX_JOBS", "PIP_ROOT_USER_ACTION", "TZ"})
_DEBIAN_PYTHON = "3.11"  # of Debian 12, which the bases of imported images have
_SHOWN = 70  # characters of a command


@dataclass(frozen=True)
class BuildStage:
    """A stage: its image with variables replaced, its name, and the instructions behind FROM."""

    image: str
    name: str
    line: int
    instructions: tuple[Instruction, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dockerfile:
    """The instructions of a file. `stage` is the name or number of the stage that the image is, "" for the last one."""

    path: Path
    instructions: tuple[Instruction, ...]
    images: Mapping[str, KnownImage]  # published ones, by name and tag, besides those that their names describe
    project: Path  # no file outside of it is read
    stage: str = ""

    @property
    def python(self) -> str:
        """The specifier of the one Python that the stage's commands name, else the one of its base image."""
        chain = self._chosen()
        values = (
            instruction.value
            for stage in chain
            for instruction in stage.instructions
            if instruction.name in ("ARG", "ENV", "RUN")
        )
        stated = set(pythons_in_commands("\n".join(values)))
        known_base = known_image(chain[0].image, self.images)
        of_base = python_in_name(chain[0].image) or (known_base.python if known_base else None)
        version = stated.pop() if len(stated) == 1 else of_base
        return f"=={version}.*" if version else ""

    def _chosen(self) -> list[BuildStage]:
        stages = self._stages()
        return _chain(stages, _position(stages, self.stage) if self.stage else len(stages) - 1)

    def recover(self, target: MarkerTarget) -> Recovered:
        """Return the contents of the chosen stage and of those that it begins with.

        Raises ProjectFileError, UsageError for a stage that the file does not have.
        """
        recovery = _DockerfileRecovery(self.path, target, self.images, self.project)
        stages = self._stages()
        position = _position(stages, self.stage) if self.stage else len(stages) - 1
        recovered = recovery.run(_chain(stages, position), self._globals())
        offered = _final(stages) if recovered.pins else range(len(stages))  # an environment may be copied from any
        return replace(recovered, other_stages=tuple(_label(stages, at) for at in offered if at != position))

    def _globals(self) -> Variables:
        """Return the variables before the first FROM, which names of images may use."""
        variables = Variables()
        for instruction in self.instructions:
            if instruction.name == "FROM":
                break
            if instruction.name == "ARG":
                for name, value in assignments(instruction, self.path):
                    if value is not None:
                        variables[name] = variables.expand(value, [], Location(self.path, instruction.line))
        return variables

    def _stages(self) -> list[BuildStage]:
        variables = Variables({"TARGETARCH": "amd64", "TARGETPLATFORM": "linux/amd64", **self._globals()})
        stages: list[BuildStage] = []
        starts = [at for at, instruction in enumerate(self.instructions) if instruction.name == "FROM"]
        for start, end in pairwise([*starts, len(self.instructions)]):
            location = Location(self.path, self.instructions[start].line)
            unknown: list[str] = []
            words = [word for word in self.instructions[start].value.split() if not word.startswith("--")]
            if not words or (len(words) > 1 and (len(words) != 3 or words[1].lower() != "as")):
                raise malformed("FROM names no image", location, fix="FROM IMAGE [AS NAME]")
            name = words[2].lower() if len(words) > 1 else ""
            image = variables.expand(words[0].strip("\"'"), unknown, location) or words[0]
            instructions = self.instructions[start + 1 : end]
            stages.append(BuildStage(image, name, location.line or 0, instructions, tuple(unknown)))
        if not stages:
            raise malformed("the Dockerfile has no FROM", Location(self.path))
        return stages


def read(path: Path, images: Mapping[str, KnownImage], stage: str = "", project: Path | None = None) -> Dockerfile:
    """Read a Dockerfile of a project (default: its directory).

    `images` are published ones whose names do not say what they hold, by name and tag. `stage` is as in Dockerfile.
    Raises ProjectFileError, with the line that cannot be read.
    """
    project = project or path.parent
    return Dockerfile(path, tuple(parse(read_text(path, project), path)), images, project, stage)


def _label(stages: list[BuildStage], position: int) -> str:
    """Return the label of a stage for Docker's `--target`: its name, else its number from 0."""
    return stages[position].name or str(position)


def _position(stages: list[BuildStage], label: str) -> int:
    """Return the position of a stage by name or number. Raises UsageError where there is none."""
    names = [stage.name for stage in stages]
    if label.lower() in names:
        return len(names) - 1 - names[::-1].index(label.lower())
    if re.fullmatch(r"[0-9]{1,4}", label) and int(label) < len(stages):
        return int(label)
    labels = [_label(stages, at) for at in range(len(stages))]
    raise UsageError(
        f'the Dockerfile has no stage "{label}"', code="usage-unknown-stage", fix=f"its stages are {', '.join(labels)}"
    )


def _final(stages: list[BuildStage]) -> list[int]:
    """Return the positions of the stages that no other stage begins with or takes files of, and the last one's."""
    used = {candidate.image.lower() for candidate in stages}
    for stage in stages:
        for instruction in stage.instructions:
            if instruction.name in ("COPY", "ADD", "RUN"):
                used |= {name.lower() for name in re.findall(r"(?:--|,|mount=)from=([\w.-]+)", instruction.value)}
    last = len(stages) - 1
    return [at for at, item in enumerate(stages) if at == last or not {item.name or str(at), str(at)} & used]


def _chain(stages: list[BuildStage], position: int) -> list[BuildStage]:
    """Return a stage behind the stages that it begins with, the first one first."""
    position_of: dict[str, int] = {}
    bases: list[int | None] = []  # the last earlier stage of the name that each stage's image has
    for at, stage in enumerate(stages[: position + 1]):
        bases.append(position_of.get(stage.image.lower()))
        if stage.name:
            position_of[stage.name] = at
    chain = []
    base: int | None = position
    while base is not None:
        chain.append(stages[base])
        base = bases[base]
    return chain[::-1]


@dataclass
class _Words(Iterator[str]):
    """The last words of a command, one by one; `line` is the line of the previous word."""

    words: list[str]
    lines: tuple[int, ...]
    position: int = 0

    @property
    def line(self) -> int:
        return self.lines[len(self.lines) - len(self.words) + self.position - 1]

    def __next__(self) -> str:
        if self.position == len(self.words):
            raise StopIteration
        self.position += 1
        return self.words[self.position - 1]


@dataclass
class _DockerfileRecovery:
    path: Path
    target: MarkerTarget
    images: Mapping[str, KnownImage]
    project: Path
    variables: Variables = field(default_factory=Variables)
    env: dict[str, tuple[str, Location]] = field(default_factory=dict)
    debian: dict[str, Location] = field(default_factory=dict)
    omissions: list[Omission] = field(default_factory=list)
    base: list[PackagePin] = field(default_factory=list)
    cuda: tuple[str, Location] | None = None
    unknown_base: tuple[str, Location] | None = None
    clone: tuple[str, Omission] | None = None  # the repository that a RUN clones, and its line
    has_own_build: bool = False  # the base's torch is on no index
    gpus: dict[str, None] = field(default_factory=dict)  # in the order of the file

    def __post_init__(self) -> None:
        self.reader = requirements.RequirementsReader(requirements.RequirementsFile(self.project))
        self.config = ConfigReader(self.path, self.project)

    def run(self, chain: list[BuildStage], outer: Mapping[str, str]) -> Recovered:
        base = self._base(chain[0])
        for stage in chain:  # a stage inherits the variables of the one that it begins with
            self.config.begin_stage(stage.line, base if stage is chain[0] else None)
            for instruction in stage.instructions:
                self._instruction(instruction, outer)
        raise_all(self.reader.errors)
        requirements_file = self.reader.file
        recovered = replace(requirements_file, lines=_last_wins(requirements_file.lines)).recover(self.target)
        pins = {pin.package: pin for pin in (*self.base, *recovered.pins)}
        for base_pin in self.base:  # pip replaces the base's torch and its CUDA, unless it satisfies the command
            if base_pin.package == "torch" and pins["torch"] is not base_pin:
                allowed = SpecifierSet(pins["torch"].specifier)
                if self.has_own_build or not allowed.contains(base_pin.specifier.removeprefix("==")):
                    self.cuda = None
                else:
                    pins["torch"] = base_pin
        config, ldconfig = self.config.config(), self.config.loader.directories(self.config.files)
        omissions = (*self.omissions, *self.config.omissions, *self.config.loader.omissions, *recovered.omissions)
        return replace(
            recovered,
            pins=tuple(pins[name] for name in sorted(pins)),
            omissions=tuple(
                sorted(omissions, key=lambda omission: (str(omission.place.file), omission.place.line or 0))
            ),
            debian=self.debian,
            cuda=self.cuda,
            base_image="" if chain[0].unknown else chain[0].image,
            unknown_base=self.unknown_base,
            gpus=tuple(self.gpus),
            env=self.env,
            config=config,
            labels=self.config.labels,
            ports=self.config.ports,
            files=self.config.files,
            ldconfig=ldconfig,
        )

    def _base(self, stage: BuildStage) -> BaseConfig:
        """Read the first image, and return its config. Raises ProjectFileError for one for another accelerator."""
        location = Location(self.path, stage.line)
        if accelerator := accelerator_in(stage.image):
            raise unsupported(accelerator, f"the image {stage.image}", location)
        if stage.image == "scratch":
            return BaseConfig("/", runs_command=True)
        image_contents = None if stage.unknown else known_image(stage.image, self.images)
        if image_contents is None:
            why = (
                f"the value of {', '.join(stage.unknown)} is not in the file"
                if stage.unknown
                else "its contents are unknown"
            )
            self._omit(
                location, f"the image {stage.image}", why, "name the packages that the image gets from it as components"
            )
            if cuda := cuda_in_name(stage.image):
                self.cuda = cuda, location
            elif not is_system(stage.image):
                self.unknown_base = f"the image {stage.image}", location
            self.base = _base_pins(packages_in_name(stage.image), location)
            return BaseConfig()
        if image_contents.note:
            self._omit(location, *image_contents.note)
        self.base, self.has_own_build = _base_pins(image_contents.packages, location), image_contents.note is not None
        self.cuda = (image_contents.cuda, location) if image_contents.cuda else None
        return image_contents.config

    def _instruction(self, instruction: Instruction, outer: Mapping[str, str]) -> None:
        location = Location(self.path, instruction.line)
        if instruction.name == "ARG":
            for name, default in assignments(instruction, self.path):
                if default is not None:
                    self._architectures(name, default)
                    self.variables[name] = self.variables.expand(default, [], location)
                elif name in outer:
                    self.variables[name] = outer[name]
        elif instruction.name == "ENV":
            for name, value in assignments(instruction, self.path):
                self._variable(name, value or "", location)
        elif instruction.name == "RUN":
            self._run(instruction)
        elif instruction.name in _CONFIG:
            self.config.read(instruction, self.variables)
        elif instruction.name in _NO_FIELD:
            self._omit(location, f"{instruction.name} {instruction.value}"[:_SHOWN], *_NO_FIELD[instruction.name])

    def _variable(self, name: str, value: str, location: Location) -> None:
        if accelerator := accelerator_of(name):
            raise unsupported(accelerator, f"the variable {name}", location)
        unknown: list[str] = []
        expanded = self.variables.expand(value, unknown, location)
        self.variables[name] = expanded
        self._architectures(name, expanded)
        if name == "UV_TORCH_BACKEND":
            self._torch_backend(expanded, location)
        if unknown:
            why = f"the value of {', '.join(unknown)} is not in the file"
            self._omit(location, f"the variable {name}", why, "add it to `env` with its value")
            return
        try:
            TypeAdapter(t.EnvName).validate_python(name)
            TypeAdapter(t.EnvValue).validate_python(expanded)
            t.require_absolute(name, expanded)
        except ValueError as error:
            why = str(error.errors()[0]["msg"] if isinstance(error, ValidationError) else error)
            why = why.removeprefix("Value error, ")
            self._omit(location, f"the variable {name}", why, "leave it out")
            return
        if name not in _BUILD_VARIABLES:
            self.env[name] = (expanded, location)

    def _architectures(self, name: str, value: str) -> None:
        if name == "TORCH_CUDA_ARCH_LIST":
            self.gpus |= {f"sm_{''.join(digits)}": None for digits in re.findall(r"(\d{1,2})\.(\d)", value)}

    def _torch_backend(self, value: str, location: Location) -> None:
        """Record the index of PyTorch that uv takes for a backend such as cu126; uv chooses one itself for "auto"."""
        if re.fullmatch(r"cpu|cu\d{3}", value):
            self.reader.file.indexes.setdefault(f"https://download.pytorch.org/whl/{value}", location)
        elif accelerator := accelerator_in(value):
            raise unsupported(accelerator, f"--torch-backend {value}", location)

    def _run(self, instruction: Instruction) -> None:
        pieces = list(instruction.pieces)
        while pieces and re.match(r"\s*--[a-z]+=", pieces[0].text):
            remainder = re.sub(r"^\s*--[a-z]+=\S*\s?", "", pieces[0].text)
            pieces = [Piece(pieces[0].line, remainder), *pieces[1:]] if remainder.strip() else pieces[1:]
        if not pieces:
            return
        if instruction.value.startswith("["):
            try:
                words = parse_json("".join(piece.text for piece in pieces))
                script = words[-1] if words[0] in _SHELLS else " ".join(map(shlex.quote, words))
            except (ValueError, TypeError, IndexError, AttributeError):
                script = None
            if isinstance(script, str):
                pieces = [Piece(instruction.line, script)]
        body = "".join(piece.text for piece in pieces)
        if instruction.document and re.match(r"\s*(?:\S*sh\s+)?<<", body):
            pieces = list(instruction.document)
        self.config.begin_run()
        self.clone = None
        self.config.loader.document = "".join(piece.text for piece in instruction.document)
        for command in commands(tuple(pieces), self.variables, self.path):
            self._command(command)

    def _command(self, command: Command) -> None:
        for word in filter(_ASSIGNMENT.fullmatch, command.words):
            self._architectures(*word.split("=", 1))
        words = list(dropwhile(_is_prefix, command.words))
        if words and words[0] in _SHELLS and len(words) > 2 and words[1].lstrip("-").endswith("c"):
            for inner in commands((Piece(command.lines[0], words[2]),), self.variables, self.path):
                self._command(replace(inner, is_conditional=inner.is_conditional or command.is_conditional))
        elif words and words[0] in ("cd", "pushd", "popd"):
            is_known = len(words) == 2 and not command.unknown and not command.is_conditional
            self.config.enter(words[1] if is_known else None)
        elif words and not self.config.loader.read(command, words, Location(self.path, command.lines[0])):
            self._simple(command, words)

    def _simple(self, command: Command, words: list[str]) -> None:
        location, text = Location(self.path, command.lines[0]), redact(" ".join(words))[:_SHOWN]
        packages, kind = _installed(words)
        if kind is None:
            self._unread(words, text, location)
        elif kind == "other" or (kind == "uninstall" and (command.is_conditional or command.unknown)):
            return
        elif command.is_conditional:
            why = "whether it runs is known only when it runs"
            self._omit(location, text, why, "add the packages that it installs by hand", package=True)
        elif unknown := sorted({*command.unknown, *(word for word in packages if re.search(r"[$`]", word))}):
            why = f"the value of {', '.join(unknown)} is not in the file"
            self._omit(
                location,
                text,
                why,
                "give it a default by ARG, or add the packages that it installs by hand",
                package=True,
            )
        elif kind == "uninstall":
            self._uninstall({canonicalize_name(word) for word in packages})
        elif kind == "apt":
            self._apt(packages, command.lines)
        elif kind == "pip":
            self._pip(packages, command.lines)
        elif kind == "project":
            fix = "`imagegen import uv.lock`, or `imagegen import pyproject.toml`"
            self._omit(location, text, "the packages come from the project's own files", fix, package=True)

    def _unread(self, words: list[str], text: str, location: Location) -> None:
        """Record the omission of a command that is not read, unless it leaves nothing behind."""
        if why := self.config.changed(words):
            self._omit(location, text, why, "change it in the project")
        elif words[0] not in command_words("silent"):
            is_conda = words[0].endswith(("conda", "mamba")) and not {"install", "create"}.isdisjoint(words)
            self._omit(location, text, "only apt, pip and uv are read, and nothing runs", REPLACE, package=is_conda)
            if words[:2] == ["git", "clone"]:
                address = next((word for word in words if re.match(r"(?:https?|ssh|git)(?:://|@)", word)), "")
                self.clone = (address, self.omissions[-1]) if address else None

    def _uninstall(self, packages: Collection[str]) -> None:
        self.base = [pin for pin in self.base if pin.package not in packages]
        lines = self.reader.file.lines
        lines[:] = [line for line in lines if canonicalize_name(re.split(r"[^\w.-]", line.text)[0]) not in packages]

    def _apt(self, words: list[str], lines: tuple[int, ...]) -> None:
        remaining = _Words(words, lines)
        for word in remaining:
            location = Location(self.path, remaining.line)
            if word in _APT_VALUES:
                next(remaining, None)
            elif not word.startswith("-"):
                name, _, version = word.partition("=")
                name = re.split(r"[:/]", name)[0]
                python = re.fullmatch(r"python(3\.\d+)(?:-.+)?", name)
                if python and python[1] != _DEBIAN_PYTHON:
                    continue  # the axis `python` has it
                try:
                    TypeAdapter(t.DebianPackage).validate_python(name)
                except ValidationError:
                    why = "it is not the name of a Debian package"
                    self._omit(location, f"the package {word}", why, REPLACE, package=True)
                    continue
                self.debian.setdefault(name, location)
                if version:
                    why = "a lock pins the version that Debian's archive has on its day"
                    self._omit(location, f"the version of {word}", why, "`imagegen lock` records one")

    def _pip(self, words: list[str], lines: tuple[int, ...]) -> None:
        remaining = _Words(words, lines)
        for word in remaining:
            location = Location(self.path, remaining.line)
            name, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
            if name in _PIP_FILES:
                self._file(_PIP_FILES[name], value if has_value else next(remaining, ""), location)
            elif name in ("-e", "--editable"):
                self._requirement(value if has_value else next(remaining, "."), location, option="-e ")
            elif name in _PIP_INDEXES:
                option = "--find-links" if name in ("-f", "--find-links") else "--index-url"
                address = value if has_value else next(remaining, "")
                address = address.partition("=")[2] if re.match(r"[\w-]+=http", address) else address  # uv's NAME=URL
                self.reader.line(f"{option} {shlex.quote(address)}", location)
            elif name == "--no-deps":
                why = "packages of an entry bring their requirements"
                self._omit(location, "--no-deps", why, "name unwanted packages under `overrides` with `omit: true`")
            elif name == "--torch-backend":
                self._torch_backend(value if has_value else next(remaining, ""), location)
            elif name in command_words("pip_values"):
                _ = has_value or next(remaining, None)
            elif not word.startswith("-"):
                self._requirement(word, location)

    def _requirement(self, word: str, location: Location, option: str = "") -> None:
        """Read a requirement, which may be a directory that COPY brought."""
        directory = self.config.source(word.partition("[")[0]) if requirements.is_path(word) else None
        if self.clone and word.startswith(".") and directory is None:  # one statement: the clone and its installation
            address, omission = self.clone
            self.omissions = [other for other in self.omissions if other is not omission]
            word, option = f"git+{address}", "-e "
        self.reader.line(f"{option}{word}", location, directory=directory)

    def _file(self, option: str, name: str, location: Location) -> None:
        """Read a file that a command names, copied by COPY, next to the Dockerfile or in the directory above."""
        if copied := self.config.source(name):
            self.reader.read(copied, constraints=option == "-c", location=location)
            return
        for folder in self.config.contexts if self.config.is_in_workdir else ():
            if (folder / name).is_file() and not name.startswith("/"):
                self.reader.read(folder / name, constraints=option == "-c", location=location)
                return
        why = "the file is not next to the Dockerfile"
        self._omit(location, f"{option} {name}", why, "`imagegen import` of that file", package=option == "-r")

    def _omit(self, location: Location, statement: str, why: str, fix: str, *, package: bool = False) -> None:
        self.omissions.append(Omission(location, redact(statement), why, fix, is_package=package))


def _base_pins(packages: Mapping[str, str], location: Location) -> list[PackagePin]:
    return [PackagePin(name, f"=={version}", (location,), is_replaceable=True) for name, version in packages.items()]


def _is_prefix(word: str) -> bool:
    return word in _PREFIXES or _ASSIGNMENT.fullmatch(word) is not None


def _installed(words: list[str]) -> tuple[list[str], str | None]:
    """Return the words behind an installing command, and its kind: apt, pip, the project's own files, or None."""
    if words[0] in _APT:
        at = next((at for at, word in enumerate(words) if word == "install"), None)
        return (words[at + 1 :], "apt") if at else ([], None)
    if words[1:3] == ["-m", "pip"]:
        words = ["pip", *words[3:]]
    if words[0] in ("uv", "/root/.local/bin/uv") and words[1:2] == ["pip"]:
        words = ["pip", *words[2:]]
    if words[0] == "uv" and words[1:2] in (["sync"], ["run"]):
        return [], "project"
    if words[0] == "uv" and words[1:2] == ["add"]:
        return words[2:], "pip"
    if _PIP.fullmatch(words[0]):
        at = next((at for at, word in enumerate(words[1:], 1) if not word.startswith("-")), None)
        kind = {"install": "pip", "uninstall": "uninstall"}.get(words[at], "other") if at else "other"
        return (words[at + 1 :] if at else [], kind)
    return [], None


def _last_wins(lines: Iterable[requirements.Line]) -> list[requirements.Line]:
    """Return the requirements of which each package has the last: a later `pip install` replaces an earlier release."""
    line_of: dict[str, requirements.Line] = {}
    for line in lines:
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*(?=\s*(?:\[|[=<>!~;@]|$))", line.text)
        line_of[canonicalize_name(name[0]) if name else f"{line.directory or (line.text, line.location)}"] = line
    return list(line_of.values())
