"""Names that users type: components by their names and aliases, GPUs by architecture or card, systems, versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from imagegen.core.errors import UsageError
from imagegen.core.text import nearest
from imagegen.core.types import Gpu
from imagegen.plan.matrix.cells import Matrix
from imagegen.plan.matrix.model import NO_CUDA, SURROUNDINGS, NgcImage, System, cuda_version
from imagegen.plan.rules.gpu_names import GpuNames, architectures, plain

T = TypeVar("T")

_NGC = re.compile(r"(?:nvcr\.io/)?(?:nvidia/|ngc)pytorch:?([0-9]{2}\.[0-9]{2})(?:-?py3)?(?:-?igpu)?")
# Before and after the name of a system in the name of an image: docker.io/library/debian:12-slim.
_IMAGE = re.compile(r"^(?:docker\.io/)?(?:library/)?|(?:-?slim)?$")

# What users call a platform, without punctuation; OCI's name is first.
_PLATFORMS = {
    "linux/amd64": ("linux/amd64", "amd64", "x8664", "x64", "linux/x8664", "wsl2", "wsl"),
    "linux/arm64": ("linux/arm64", "arm64", "aarch64", "linux/aarch64", "sbsa", "arm"),
    "windows": ("windows", "win", "win32", "win64", "winamd64", "windows/amd64", "windows10", "windows11"),
    "macos": ("macos", "mac", "darwin", "osx", "macosx", "darwin/arm64"),
}
_WITHOUT_IMAGES = {
    "windows": "images, rules and metadata here are of Linux; on Windows that is WSL 2: name wsl2",
    "macos": "images, rules and metadata here are of Linux",
}
WSL = frozenset({"wsl", "wsl2"})

_LIKENESS = 0.8  # difflib's ratio, at least, of a typing error: "troch" and "torch" have 0.8
_CUDA = re.compile(r"(?:cuda|cu)([1-9][0-9](?:\.[0-9](?:\.[0-9]+)?)?)")
_DRIVER = re.compile(r"(?:driver|r|driverr)([3-9][0-9]{2}(?:\.[0-9]+)*)")
_PYTHON = re.compile(r"(?:py|cp|python)?3\.?([0-9]{1,2})")


@dataclass(frozen=True)
class UnknownName:
    """A name that neither the matrix nor the harvested metadata has."""

    kind: str  # "component", "GPU", "base" or "platform"
    name: str
    suggestion: str | None  # a known name that resembles it
    known: tuple[str, ...] = ()  # all names of its kind, where these are few
    reason: str = ""  # why it is not known

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: {self.reason}"
        if self.suggestion:
            return f"{self.name} (did you mean {self.suggestion}?)"
        return f"{self.name} (known are {', '.join(self.known)})" if self.known else self.name


class UnknownNameError(UsageError):
    """A name that is not known, where a known one is needed."""

    code = "usage-unknown-name"

    def __init__(self, unknown: UnknownName) -> None:
        fix = f'did you mean "{unknown.suggestion}"?' if unknown.suggestion else None
        fix = fix or (f"known are {', '.join(unknown.known)}" if unknown.known else None)
        super().__init__(f'there is no {unknown.kind} "{unknown.name}"', why=unknown.reason or None, fix=fix)
        self.unknown = unknown


@dataclass(frozen=True)
class Vocabulary:
    """Names that users may type. Each map is keyed by a normalised form; `written` maps it to the usual spelling."""

    packages: Mapping[str, str]
    gpus: GpuNames
    systems: Mapping[str, System]
    labelled: frozenset[str]  # packages of which there are builds with a local version label, one for each CUDA, say
    written: Mapping[str, str]
    ngc_images: Mapping[str, NgcImage] = field(default_factory=dict)  # of nvcr.io/nvidia/pytorch, by tag

    @classmethod
    def of(cls, matrix: Matrix, harvested: Iterable[str] = ()) -> Vocabulary:
        """`harvested` are packages whose metadata is known, components or not."""
        names = {name: name for name in harvested}
        for component in matrix.components.values():
            names |= dict.fromkeys(component.aliases, component.package)
        names |= {component.package: component.package for component in matrix.components.values()}
        names |= {name: component.package for name, component in matrix.components.items()}
        gpus = GpuNames(tuple(matrix.gpus.values()), matrix.accelerators)
        systems = {cell.base.name: System(cell.base.name, cell.base.glibc) for cell in matrix.all_cells}
        systems |= {each: system for system in matrix.systems.values() for each in _spellings(system)}
        cells = (*matrix.defaults, *(cell.id for cell in matrix.all_cells))
        written = {plain(each): each for each in (*SURROUNDINGS, *names, *gpus.families, *matrix.systems, *cells)}
        several = (each for each in matrix.components.values() if each.index or each.local or each.compiled)
        labelled = frozenset(each.package for each in several)
        return cls(_plain(names), gpus, _plain(systems), labelled, written, matrix.ngc_images)

    def package(self, name: str) -> str:
        """Return the package that the name stands for. Raises UnknownNameError, as `gpu` and `system` do."""
        if plain(name) in self.packages:
            return self.packages[plain(name)]
        raise UnknownNameError(UnknownName("component", name, self.near(name)))

    def gpu(self, name: str) -> tuple[Gpu, ...]:
        """Return the GPUs of that name: several for a family."""
        if found := self.gpus.find(name):
            return found
        raise UnknownNameError(self.unknown_gpu(name))

    def unknown_gpu(self, name: str) -> UnknownName:
        """Return the unknown name with its reason, or a suggestion that names no other architecture."""
        near = self.gpus.suggestion(name) or self.near(name, self.gpus.families)
        return UnknownName("GPU", name, near, tuple(architectures(self.gpus.gpus)), self.gpus.reason(name))

    def system(self, name: str) -> System:
        known = sorted({system.name for system in self.systems.values()})
        name = _IMAGE.sub("", name.lower()).replace(":", "")
        return self._find(self.systems, name, "base", known)

    def image(self, name: str) -> NgcImage | None:
        """Return the image of NVIDIA that the name is of, if any: "nvcr.io/nvidia/pytorch:25.03-py3"."""
        found = _NGC.fullmatch(name.lower())
        return self.ngc_images.get(found[1]) if found else None

    def meaning(self, word: str) -> tuple[str, str] | None:
        """Return (surrounding or package, specifier) for a single word: "cu128", "py312", "H100"; None if unknown."""
        key = plain(word)
        if key in self.packages:
            return self.packages[key], ""
        if found := _version_of_surrounding(key):
            return found
        if any(key in spellings for spellings in _PLATFORMS.values()):
            return "platform", f"=={word}"
        if _IMAGE.sub("", key).replace(":", "") in self.systems or _NGC.fullmatch(key):
            return "base", f"=={word}"
        return ("gpu", f"=={word}") if self.gpus.find(word) else None

    def platform(self, name: str) -> str:
        """Return OCI's name of a platform of Linux. Raises UnknownNameError; its reason is there for other systems."""
        found = next((each for each, spellings in _PLATFORMS.items() if plain(name) in spellings), None)
        if found is None or found in _WITHOUT_IMAGES:
            known = tuple(each for each in _PLATFORMS if each not in _WITHOUT_IMAGES)
            raise UnknownNameError(UnknownName("platform", name, None, known, _WITHOUT_IMAGES.get(found or "", "")))
        return found

    def near(self, word: str, among: Iterable[str] | None = None) -> str | None:
        """Return the known name that the user probably meant.

        That is a name with a typing error, not a similar name (deepspeed, deep-ep), and no GPU but a family of them.
        """
        known = self.written.keys() if among is None else set(among) & self.written.keys()
        found = nearest(plain(word), known, _LIKENESS)
        return self.written[found] if found else None

    def _find(self, known: Mapping[str, T], name: str, kind: str, written: Iterable[str]) -> T:
        if plain(name) in known:
            return known[plain(name)]
        raise UnknownNameError(UnknownName(kind, name, self.near(name, known), tuple(written)))


def _plain(known: Mapping[str, T]) -> dict[str, T]:
    return {plain(name): value for name, value in known.items()}


def python_of(text: str) -> str | None:
    """The minor version: "3.12" of "3.12", "312" and "py312"; None for anything else."""
    found = _PYTHON.fullmatch(plain(text))
    return f"3.{found[1]}" if found else None


def cuda_of(text: str) -> str | None:
    """The minor version: "12.8" of "12.8", "12.8.1" and "cu128"; None for anything else."""
    found = re.fullmatch(r"([1-9][0-9])\.([0-9])(?:\.[0-9]+)?", text)
    return f"{found[1]}.{found[2]}" if found else cuda_version(plain(text))


def _version_of_surrounding(key: str) -> tuple[str, str] | None:
    """Return CUDA, Python or the driver with its specifier for a plain word: "cu128", "cuda13", "py312", "r570"."""
    label = key.replace("cuda", "cu")  # cuda128 is cu128
    if key == NO_CUDA or cuda_version(label):
        return "cuda", f"=={label}"
    if found := _CUDA.fullmatch(key):
        return "cuda", f"=={found[1]}"
    if found := _DRIVER.fullmatch(key):
        return "driver", f"=={found[1]}"
    return ("python", f"=={key}") if re.fullmatch(r"(?:py|cp|python)3\.?[0-9]{1,2}", key) else None


def _spellings(system: System) -> set[str]:
    return {each for name in (system.name, *system.aliases) for each in (name, name.replace(".", ""))}
