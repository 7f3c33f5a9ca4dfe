"""What people call things: components by their names and aliases, GPUs by architecture or card, systems, versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from imagegen.errors import UsageError
from imagegen.matrix.cells import Matrix
from imagegen.matrix.fields import NO_CUDA, SURROUNDINGS
from imagegen.matrix.model import Gpu, System, cuda_version
from imagegen.text import did_you_mean

T = TypeVar("T")

_PYTHON = re.compile(r"(?:py|cp|python)?3\.?([0-9]{1,2})")


def plain(text: str) -> str:
    """The same for "flash-attn", "Flash_Attn" and "flash attn"."""
    return re.sub(r"[\s_-]+", "", text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Each map goes from the plain form of what people type."""

    packages: Mapping[str, str]
    gpus: Mapping[str, tuple[Gpu, ...]]
    systems: Mapping[str, System]

    @classmethod
    def of(cls, matrix: Matrix, harvested: Iterable[str] = ()) -> Vocabulary:
        """`harvested` are packages whose metadata is known, components or not."""
        packages = {plain(name): name for name in harvested}
        for component in matrix.components.values():
            packages |= {plain(each): component.package for each in component.aliases}
        packages |= {plain(each.package): each.package for each in matrix.components.values()}
        packages |= {plain(name): component.package for name, component in matrix.components.items()}
        gpus: dict[str, tuple[Gpu, ...]] = {}
        for gpu in matrix.gpus.values():
            gpus[plain(gpu.family)] = (*gpus.get(plain(gpu.family), ()), gpu)
            for each in (gpu.name, gpu.capability, *gpu.products):
                gpus[plain(each)] = (gpu,)
        systems = {each: system for system in matrix.systems.values() for each in _spellings(system.name)}
        for cell in matrix.all_cells:  # the bases of images go by the name of their system too
            systems.setdefault(plain(cell.base.name), System(cell.base.name, cell.base.glibc, cell.base.python))
        return cls(packages, gpus, systems)

    def package(self, name: str) -> str:
        """Raises UsageError for a name that nobody knows."""
        return self._find(self.packages, name, "component")

    def gpu(self, name: str) -> tuple[Gpu, ...]:
        """The GPUs of that name: several for a family. sm_90a is sm_90, for which `a` code runs as well."""
        found = re.fullmatch(r"(?:sm|compute)?_?([0-9]{2,3})[af]?", name.lower().strip())
        if found and f"sm{found[1]}" in self.gpus:
            return self.gpus[f"sm{found[1]}"]
        return self._find(self.gpus, name, "GPU")

    def system(self, name: str) -> System:
        return self._find(self.systems, name, "base")

    def meaning(self, word: str) -> tuple[str, str] | None:
        """(surrounding or package, specifier) of a word alone: "cu128", "py312", "H100"; None if unknown."""
        key = plain(word)
        if key in self.packages:
            return self.packages[key], ""
        if key == NO_CUDA or cuda_version(key):
            return "cuda", f"=={key}"
        if found := re.fullmatch(r"(?:py|cp|python)3\.?[0-9]{1,2}", key):
            return "python", f"=={found[0]}"
        if key in self.systems:
            return "base", f"=={word}"
        try:
            self.gpu(word)
        except UsageError:
            return None
        return "gpu", f"=={word}"

    def near(self, word: str) -> str | None:
        """A sentence that offers what was perhaps meant."""
        known = {*self.packages.values(), *self.packages, *self.gpus, *self.systems, *SURROUNDINGS}
        return did_you_mean(plain(word), known)

    def _find(self, known: Mapping[str, T], name: str, kind: str) -> T:
        if plain(name) in known:
            return known[plain(name)]
        fix = did_you_mean(plain(name), known) or self.near(name) or f"known here: {_some(known)}"
        raise UsageError(f'there is no {kind} "{name}"', fix=fix)


def python_of(text: str) -> str | None:
    """The minor version: "3.12" of "3.12", "312" and "py312"; None for anything else."""
    found = _PYTHON.fullmatch(plain(text))
    return f"3.{found[1]}" if found else None


def cuda_of(text: str) -> str | None:
    """The minor version: "12.8" of "12.8", "12.8.1" and "cu128"; None for anything else."""
    found = re.fullmatch(r"([1-9][0-9])\.([0-9])(?:\.[0-9]+)?", text)
    return f"{found[1]}.{found[2]}" if found else cuda_version(plain(text))


def _spellings(system: str) -> set[str]:
    return {plain(system), plain(system).replace(".", "")}


def _some(known: Iterable[str]) -> str:
    names = sorted(known)
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
