"""conda's environment.yml: packages that PyPI or Debian has too, and the requirements of its part for pip.

Source of the format: conda's documentation, "Managing environments" and "Package match specifications" (conda 26):
`=1.2` after a name is a prefix, `==1.2` exact, and a second `=` begins the build.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet

from imagegen.core.errors import ErrorList, Location, ProjectFileError
from imagegen.core.text import cut
from imagegen.core.types import parse_specifier
from imagegen.projects import requirements
from imagegen.projects.model import (
    MarkerTarget,
    Omission,
    PackagePin,
    Recovered,
    malformed,
    merge,
    raise_all,
    read_text,
)
from imagegen.projects.names import conda_names

_SPEC = re.compile(r"(?:[^\s:]+::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]*+)\s*+(?P<rest>.*)")
_LONGEST = 200  # characters of a specification
_MAX_DEPTH = 20


@dataclass
class CondaFile:
    """The packages of an environment by their place, and the part for pip."""

    path: Path
    pip: requirements.RequirementsFile
    specs: list[tuple[str, str, Location]] = field(default_factory=list)  # name, version, place
    python: str = ""

    def recover(self, target: MarkerTarget) -> Recovered:
        """Return conda's packages that PyPI or Debian has, and pip's. Raises ProjectFileError."""
        pip_contents = self.pip.recover(target)
        names = conda_names()
        pins: list[PackagePin] = []
        debian: dict[str, Location] = {}
        omissions = [*pip_contents.omissions]
        cuda: tuple[str, Location] | None = None
        for name, version, location in self.specs:
            if name in names.pypi:
                pins.append(PackagePin(names.pypi[name], version, (location,)))
            elif name in names.debian:
                debian |= dict.fromkeys(names.debian[name], location)
                if version:
                    omissions.append(_other_version(name, version, location))
            elif name in names.cuda:
                release = re.search(r"(?<!\d)\d+\.\d+", version)
                cuda = (release[0], location) if release else cuda
            elif name not in names.base:
                omissions.append(_unmapped(name, location))
        return Recovered(
            merge([*pins, *pip_contents.pins]),
            tuple(omissions),
            debian=debian,
            indexes=pip_contents.indexes,
            cuda=cuda,
            other_platforms=pip_contents.other_platforms,
        )


def read(path: Path, project: Path) -> CondaFile:
    """Read an environment.yml of a project. Raises ProjectFileError."""
    return parse(read_text(path, project), path, project)


def parse(text: str, path: Path, project: Path | None = None) -> CondaFile:
    """Return the contents of a file of a project (default: its directory); `path` names it.

    Raises ProjectFileError.
    """
    environment = CondaFile(path, requirements.RequirementsFile(project or path.parent))
    errors: ErrorList[ProjectFileError] = ErrorList()
    pip: list[tuple[int, str]] = []
    for node in _dependencies(text, path):
        if isinstance(node, yaml.ScalarNode):
            try:
                _add_spec(environment, node.value, _place(path, node))
            except ValueError as error:
                message = f"{cut(node.value, _LONGEST)!r} cannot be read"
                errors.append(malformed(message, _place(path, node), str(error)))
        elif isinstance(node, yaml.MappingNode) and _is_pip(node):
            lines = node.value[0][1].value
            pip += [(line.start_mark.line, line.value) for line in lines if isinstance(line, yaml.ScalarNode)]
        else:
            errors.append(malformed("a dependency is neither a package nor the part `pip`", _place(path, node)))
    raise_all(errors)
    environment.pip = requirements.parse(_as_file(pip), path, project)
    return environment


def _as_file(lines: list[tuple[int, str]]) -> str:
    """Return requirements as a text in which each stands on its line (from 0) of the environment file."""
    rows: list[str] = []
    for number, text in lines:
        rows += [""] * (number - len(rows))
        rows.append(" ".join(text.split()))
    return "\n".join(rows)


def _dependencies(text: str, path: Path) -> list[yaml.Node]:
    """Return the nodes of the list `dependencies`. Raises ProjectFileError for a file without one."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                where = Location(path, event.start_mark.line + 1 if event.start_mark else None)
                raise malformed("the file has aliases, or lists within lists", where)
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Location(path, mark.line + 1, mark.column + 1) if mark else Location(path)
        raise malformed("this is not valid YAML", where, error.problem) from error
    except yaml.YAMLError as error:
        raise malformed("this is not valid YAML", Location(path), str(error)) from error
    table: Mapping[str, yaml.Node] = {}
    if isinstance(root, yaml.MappingNode):
        table = {key.value: value for key, value in root.value if isinstance(key, yaml.ScalarNode)}
    listed = table.get("dependencies")
    if not isinstance(listed, yaml.SequenceNode):
        raise malformed("the file has no list `dependencies`", Location(path), fix="see conda's environment.yml")
    return list(listed.value)


def _is_pip(node: yaml.MappingNode) -> bool:
    return (
        len(node.value) == 1
        and isinstance(node.value[0][0], yaml.ScalarNode)
        and node.value[0][0].value == "pip"
        and isinstance(node.value[0][1], yaml.SequenceNode)
    )


def _place(path: Path, node: yaml.Node) -> Location:
    return Location(path, node.start_mark.line + 1)


def _add_spec(environment: CondaFile, text: str, location: Location) -> None:
    """Add a package of conda. Raises ValueError for a specification that is not understood."""
    spec = _SPEC.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if spec is None:
        raise ValueError("a specification is a name with a version, as in numpy=1.26")
    name, version = spec["name"].lower(), spec["rest"]
    if name == "python":  # the axis has minor versions
        environment.python = re.sub(r"==(\d+\.\d+)\.\d+(?:\.\*)?$", r"==\1.*", specifier(version))
        return
    pypi = conda_names().pypi.get(name)
    if pypi == "torch" and (release := re.search(r"cuda_?(\d+\.\d+)", version)):
        environment.specs.append(("pytorch-cuda", release[1], location))  # of its build: py3.11_cuda12.6_cudnn9.5.1_0
    if pypi:
        version = specifier(version)
        parse_specifier(version)
        version = re.sub(r"==(\d+\.\d+\.\d+)\.\*$", r"==\1", version) if pypi == "torch" else version
    environment.specs.append((name, version, location))


def specifier(text: str) -> str:
    """Return the PEP 440 specifier of a version as conda writes it behind a name, without its build.

    Raises ValueError for alternatives (`|`), which have no equal, and for text that is not a version.
    """
    text = text.strip().strip("'\"")
    if text.startswith("["):
        raise ValueError("keys in brackets are not read")
    text = re.sub(r"([<>=!~,|])\s+", r"\1", text)
    text = re.sub(r"(?<!\s)\s+([<>=!~,|])", r"\1", text)
    version, *build = text.split() or [""]
    if len(build) > 1:
        raise ValueError(f"{text!r} is more than a version and a build")
    return ",".join(_clauses(version)) if version else ""


def _clauses(version: str) -> Iterator[str]:
    if "|" in version:
        raise ValueError("alternatives (|) have no equal in PEP 440")
    for part in version.split(","):
        operator = re.match(r"==|>=|<=|!=|~=|=|<|>", part)
        number, _, build = part[operator.end() if operator else 0 :].partition("=")
        if number in ("", "*"):
            if operator and not number:
                raise ValueError(f"{part!r} names no version")
            continue
        sign = "==" if not operator or (operator[0] == "=" and build) else operator[0]  # with a build, it is exact
        if sign == "=" or (sign == "==" and number.endswith("*")):
            number = number.rstrip("*").rstrip(".") + ".*"
            sign = "=="
        elif number.endswith("*"):
            number = number.rstrip("*").rstrip(".")
        clause = f"{sign}{number}"
        SpecifierSet(clause)  # InvalidSpecifier is a ValueError
        yield clause


def _other_version(name: str, version: str, location: Location) -> Omission:
    why = "the image has the version of its Debian release"
    return Omission(location, f"{name} {version}", why, "check that this version serves; otherwise choose another base")


def _unmapped(name: str, location: Location) -> Omission:
    why = "it is a package of conda, of which no equal on PyPI or in Debian is known here"
    fix = "add its equal to `components` (PyPI) or `packages` (Debian) of the entry, if it is needed"
    return Omission(location, name, why, fix, is_package=True)
