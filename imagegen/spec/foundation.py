"""The system, the base and the interpreter below the packages of a cell, and the choice of the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.errors import ErrorList, MatrixError
from imagegen.core.matrix_entry import MatrixEntry
from imagegen.core.validation import EMPTY, Part, Written, doc

if TYPE_CHECKING:
    from imagegen.spec.references import PlacedEntry


@dataclass(frozen=True)
class Base:
    """The operating-system layers under the stack."""

    name: str  # "debian12"
    kind: Literal["debian", "registry"]
    suite: str | None  # of kind debian: "bookworm"
    image: str | None  # of kind registry: "docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04"
    system: str  # "debian12"
    glibc: str  # "2.36": decides which manylinux wheels fit
    packages: Mapping[str, str]  # package name -> why it is there; of kind registry, above the image
    description: str
    libstdcxx: str | None = None  # "3.4.30"; None if unknown

    @property
    def libraries(self) -> dict[str, str | None]:
        """Return the versions of glibc and libstdc++, which decide which wheels load."""
        return {"glibc": self.glibc, "libstdcxx": self.libstdcxx}


@dataclass(frozen=True)
class InterpreterFile(Part):
    """The archive of a standalone interpreter for one platform; `path` is below python-build-standalone's releases."""

    path: t.ReleaseFile
    sha256: t.Sha256


def interpreter_prefix(python: str) -> str:
    """Return the directory of the standalone interpreter of a minor version in an image: /opt/python/3.12."""
    return f"/opt/python/{python}"


@dataclass(frozen=True)
class Interpreter(MatrixEntry):
    """A Python that cells rest on, from a distribution's packages or from python-build-standalone."""

    REQUIRED = ("provider", "source", "date")

    name: str  # "debian12-3.11", "standalone-3.12"
    python: t.Minor
    path: Annotated[
        str,
        Written(t.AbsolutePath | None, lambda path: path or ""),
        doc("For a distribution, the path of the program.", default="", json_schema_extra={"default": None}),
    ]
    systems: Annotated[tuple[t.Name, ...], doc("For a distribution, the systems whose own Python it is.")] = ()
    version: Annotated[t.PythonRelease | None, doc("For a standalone build, the version.")] = None
    release: Annotated[t.GitName | None, doc("For a standalone build, the release of its archives.")] = None
    files: Annotated[Mapping[t.AxisValue, InterpreterFile], doc("Platform -> archive.", **EMPTY)] = field(
        default_factory=dict
    )
    provider: Literal["distribution", "standalone"] = field(default="standalone", compare=False)
    source: t.Text = field(default="", compare=False)
    date: t.Date = field(default="", compare=False)

    def check(self) -> None:
        distribution = [bool(self.systems), bool(self.path)]
        standalone = [self.version is not None, self.release is not None, bool(self.files)]
        needed, foreign = (distribution, standalone) if self.provider == "distribution" else (standalone, distribution)
        if not all(needed) or any(foreign):
            keys = {"distribution": "`systems` and `path`", "standalone": "`version`, `release` and `files`"}
            raise ValueError(f"an interpreter of a {self.provider} provider has {keys[self.provider]}, and no others")
        if self.version and not self.version.startswith(f"{self.python}."):
            raise ValueError(f"{self.version} is not a release of Python {self.python}")
        if wrong := [file.path for file in self.files.values() if not file.path.startswith(f"{self.release}/")]:
            raise ValueError(f"{wrong[0]} is not a file of release {self.release}")

    def named(self, name: str) -> Self:
        return replace(self, name=name, path=self.path or f"{interpreter_prefix(self.python)}/bin/python{self.python}")


class Interpreters:
    """The interpreters of a matrix; errors of a choice are appended to `errors`, once for each image.

    `entries` are valid. If other entries have errors (not `whole`), a missing interpreter is not reported.
    """

    def __init__(self, entries: Sequence[PlacedEntry], errors: ErrorList[MatrixError], *, whole: bool) -> None:
        self._errors, self._whole = errors, whole
        self._failed: set[tuple[str, str]] = set()  # image, message
        self.by_name = {placed.name: placed.entry for placed in entries}
        self._by_system: dict[tuple[str, str], Interpreter] = {}  # system, minor version
        for placed in entries:
            interpreter = self.by_name[placed.name]
            for system in interpreter.systems:
                other = self._by_system.setdefault((system, interpreter.python), interpreter)
                if other is not interpreter:
                    message = f'"{other.name}" is already the Python {interpreter.python} of {system}'
                    errors.append(placed.error(message, "systems", fix="keep one of them"))

    def choose(self, image: PlacedEntry, name: str | None, system: str, axes: Mapping[str, str]) -> Interpreter | None:
        """Return the interpreter of a cell of `image` on a base of `system`; None after an error.

        `name` is the one that the image or a variant requests. Otherwise it is the system's own for the value of the
        axis `python`, or the standalone build that is named after that value.
        """
        python = axes["python"]
        chosen = self.by_name.get(name or f"standalone-{python}")
        if name is None:
            chosen = self._by_system.get((system, python), chosen)
        if chosen is None and name is None and self._whole:
            fix = f"define the interpreter standalone-{python}, or leave the value {python} out"
            self._fail(image, f"no interpreter is Python {python} on {system}", fix)
        elif chosen and (wrong := _mismatch(chosen, system, axes)):
            self._fail(image, *wrong)
            return None
        return chosen

    def _fail(self, image: PlacedEntry, message: str, fix: str) -> None:
        if (image.name, message) not in self._failed:
            self._failed.add((image.name, message))
            self._errors.append(image.error(message, "interpreter", fix=fix))


def _mismatch(chosen: Interpreter, system: str, axes: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the error of a choice and its fix; None if the choice fits."""
    python, platform, name = axes["python"], axes["platform"], f'the interpreter "{chosen.name}"'
    if chosen.python != python:
        fix = "name it in a variant `when: {python: [...]}`, or leave the other values of that axis out"
        return f"{name} is Python {chosen.python}, not {python}", fix
    if chosen.systems and system not in chosen.systems:
        fix = "leave `interpreter` out, or name a standalone one"
        return f"{name} is of {', '.join(chosen.systems)}; the base is {system}", fix
    if not chosen.systems and platform not in chosen.files:
        return f"{name} has no archive for {platform}", "add it to the entry's `files`"
    return None
