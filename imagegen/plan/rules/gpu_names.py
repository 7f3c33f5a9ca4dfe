"""Names of GPUs as users type them: "RTX 6000 Pro", "4090", "NVIDIA A100-SXM4-80GB", "sm_90a", "hopper"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from imagegen.core.types import Gpu

_MAKER = {"nvidia", "geforce", "tesla", "quadro", "jetson", "agx", "igx", "drive", "dgx", "hgx"}  # before the name
# Words after a card's name that do not change its architecture, as nvidia-smi and shops write them.
_VARIANT = re.compile(
    r"sxm[0-9]?|pcie|nvl[0-9]*|hbm[0-9]?e?|[0-9]+gb?|3e|ti|super|d|laptop|mobile|notebook|gpu|blackwell|max|q|with|design"
    r"|generation|server|workstation|edition|sff|agx|developer|dev|kit|devkit|tensor|core"
)
_COUNT = re.compile(r"^[0-9]+\s*[x*]\s*(?=[a-z])|(?:(?<=[0-9])|\s+)[x*]\s*[0-9]+$")  # "8xH100", "H100 x 8"
_SERIES = re.compile(r"(?:RTX|GTX) (.+)")
_PRO = re.compile(r"RTX PRO (.+)")
_ARCHITECTURE = re.compile(r"(?:sm|compute)?_?([0-9]{2,3})[af]?")
_SHORTEST = 5  # characters of a beginning that a guess may complete: "RTX 509"
_LISTED = 4  # products that the reason of an ambiguous name lists


def plain(text: str) -> str:
    """The same for "flash-attn", "Flash_Attn" and "flash attn"."""
    return re.sub(r"[\s_-]+", "", text.lower())


def is_variant(word: str) -> bool:
    """Return whether a word belongs to the name of a GPU before it, as "Ti" does."""
    return _VARIANT.fullmatch(word.lower()) is not None


@dataclass(frozen=True)
class GpuNames:
    """All names of GPUs. `accelerators` maps the maker of what is no NVIDIA GPU to globs over plain names."""

    gpus: tuple[Gpu, ...]
    accelerators: Mapping[str, tuple[str, ...]]

    @cached_property
    def known(self) -> Mapping[str, tuple[Gpu, ...]]:
        """Plain name -> architectures: several for a family, else one."""
        families: dict[str, tuple[Gpu, ...]] = {}
        names: dict[str, tuple[Gpu, ...]] = {}
        for gpu in self.gpus:
            families[gpu.family] = (*families.get(gpu.family, ()), gpu)
            for each in (gpu.name, gpu.capability, *gpu.products, *gpu.aliases):
                names |= {plain(form): (gpu,) for form in _forms(each)}
        return families | names

    @cached_property
    def families(self) -> frozenset[str]:
        return frozenset(gpu.family for gpu in self.gpus)

    def find(self, name: str) -> tuple[Gpu, ...]:
        """Return the architectures of that name, none if it is not known. sm_90a is sm_90, which runs its code."""
        found = _ARCHITECTURE.fullmatch(name.lower().strip())
        if found and f"sm{found[1]}" in self.known:
            return self.known[f"sm{found[1]}"]
        return self.known.get(self._card(name), ())

    def is_arm64(self, name: str) -> bool:
        """Return whether the host of the named GPU has an arm64 processor: a GB200, or any Jetson."""
        found = self.find(name)
        if len(found) != 1 or name.lower() in self.families:
            return False
        arm64 = {plain(form) for each in found[0].arm64 for form in _forms(each)}
        products = {plain(each) for each in found[0].products}
        return self._card(name) in arm64 or (bool(products) and products <= arm64)

    def reason(self, name: str) -> str:
        """Return why a name is not known: another maker's accelerator, or a name of several architectures."""
        for maker, globs in self.accelerators.items():
            if any(fnmatchcase(plain(name), glob) for glob in globs):
                return f"hardware of {maker}; rules and images here are for NVIDIA GPUs"
        found = self._candidates(name)
        if len({gpu.name for gpu in found.values()}) < 2:
            return ""
        listed = [f"{product} ({gpu.name})" for product, gpu in found.items()]
        return f"it may be {', '.join(listed[:_LISTED])}{' and others' if len(listed) > _LISTED else ''}"

    def suggestion(self, name: str) -> str | None:
        """Return a product that contains the words of the name or begins with it, if all such have one architecture."""
        begun = {
            product: gpu
            for gpu in self.gpus
            for product in gpu.products
            if len(plain(name)) >= _SHORTEST and plain(product).startswith(plain(name))
        }
        found = self._candidates(name) or begun
        return min(found, key=len) if len({gpu.name for gpu in found.values()}) == 1 else None

    def _candidates(self, name: str) -> dict[str, Gpu]:
        """Return the products that have all words of the name, and more."""
        typed = _tokens(name) - _MAKER
        if not any(each.isdigit() for each in typed):
            return {}
        return {each: gpu for gpu in self.gpus for each in gpu.products if typed <= _tokens(each)}

    def _card(self, name: str) -> str:
        """Return the plain name of a card without its number, its maker and its variant, as far as it is not known."""
        words = re.split(r"[\s_-]+", _COUNT.sub("", name.lower().strip()))
        while words and words[0] in _MAKER and "".join(words) not in self.known:
            words.pop(0)
        while words and "".join(words) not in self.known and is_variant(words[-1]):
            words.pop()
        return "".join(words)


def _forms(name: str) -> Iterator[str]:
    """Yield the name as users shorten and turn it: "5090"; "RTX 6000 PRO" for "RTX PRO 6000"."""
    yield name
    if found := _SERIES.fullmatch(name):
        yield found[1]
    if found := _PRO.fullmatch(name):
        yield from (f"RTX {found[1]} PRO", f"{found[1]} PRO")


def _tokens(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+|[0-9]+", name.lower()))


def architectures(gpus: Iterable[Gpu]) -> list[str]:
    """Return the names of the architectures, the oldest first."""
    return sorted({gpu.name for gpu in gpus}, key=lambda each: (len(each), each))
