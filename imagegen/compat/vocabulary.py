"""Names that users type: components by their names and aliases, GPUs by architecture or card, systems, versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeVar

from imagegen.compat.derived import derived_rule
from imagegen.compat.rule import NO_CUDA, Rule, cuda_version
from imagegen.compat.systems import NgcImage, System
from imagegen.core.errors import UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.text import nearest

T = TypeVar("T")

_NGC = re.compile(r"(?:nvcr\.io/)?(?:nvidia/|ngc)pytorch:?([0-9]{2}\.[0-9]{2})(?:-?py3)?(?:-?igpu)?")
# Before and after the name of a system in the name of an image: docker.io/library/debian:12-slim.
_IMAGE = re.compile(r"^(?:docker\.io/)?(?:library/)?|(?:-?slim)?$")
_CUDA_IMAGE = re.compile(  # nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04
    r"(?:docker\.io/|nvcr\.io/)?nvidia/cuda:([0-9]++\.[0-9]++)[0-9.]*+-(?:cudnn[0-9]*+-)?(?:base|runtime|devel)-(\w++\.?\w*+)"
)

# OCI's name of a platform -> names that users type, without punctuation.
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
_PROCESSORS = {"linux/amd64": "x86-64", "linux/arm64": "arm64"}

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LIKENESS = 0.8  # difflib's ratio, at least, of a typing error: "troch" and "torch" have 0.8
_CUDA = re.compile(r"(?:cuda|cu)([1-9][0-9](?:\.[0-9](?:\.[0-9]+)?)?)")
_DRIVER = re.compile(r"(?:driver|r|driverr)([3-9][0-9]{2}(?:\.[0-9]+)*)")
_PYTHON = re.compile(r"(?:py|cp|python)?3\.?([0-9]{1,2})")
_MAKER = {"nvidia", "geforce", "tesla", "quadro", "jetson", "agx", "igx", "drive", "dgx", "hgx"}  # before the name
# Words after a card's name that do not change its architecture, as nvidia-smi and shops write them.
_VARIANT = re.compile(
    r"sxm[0-9]?|pcie|nvl[0-9]*|hbm[0-9]?e?|[0-9]+gb?|3e|ti|super|d|laptop|mobile|notebook|gpu|blackwell|max|q|with|design"
    r"|generation|server|workstation|edition|sff|agx|developer|dev|kit|devkit|tensor|core"
)
_COUNT = re.compile(r"^[0-9]+\s*[x*]\s*(?=[a-z])|(?:(?<=[0-9])|(?<!\s)\s+)[x*]\s*[0-9]+$")  # "8xH100", "H100 x 8"
_SERIES = re.compile(r"(?:RTX|GTX) (.+)")
_PRO = re.compile(r"RTX PRO (.+)")
_ARCHITECTURE = re.compile(r"(?:sm|compute)?_?([0-9]{2,3})[af]?")
_SHORTEST = 5  # characters of a beginning that a guess may complete: "RTX 509"
_LISTED = 4  # products that the reason of an ambiguous name lists


def plain(text: str) -> str:
    """Return one form for "flash-attn", "Flash_Attn" and "flash attn"."""
    return re.sub(r"[\s_-]+", "", text.lower())


def is_variant(word: str) -> bool:
    """Return whether a word belongs to the name of a GPU before it, as "Ti" does."""
    return _VARIANT.fullmatch(word.lower()) is not None


@dataclass(frozen=True)
class CardHost:
    """The host of a card."""

    card: str  # as it was typed
    platform: str
    is_only: bool  # whether the card has no other hosts
    source: str

    def __str__(self) -> str:
        return f"the host of {self.card} has an {_PROCESSORS[self.platform]} processor"

    def rule(self, cells: Mapping[str, str]) -> Rule:
        """Return the rule that an image for the card is for the platform of its host; `cells` are the image's."""
        cell = cells.get(self.platform)
        return derived_rule(
            f"host:{plain(self.card)}",
            f"{str(self)[0].upper()}{str(self)[1:]}, and images for it are for {self.platform}.",
            then={"platform": self.platform},
            source=self.source,
            date=max(_DATE.findall(self.source), default=""),
            message="exec format error",
            fix=f"Use {cell}, the cell for {self.platform}." if cell else f"Use an image for {self.platform}.",
        )


@dataclass(frozen=True)
class GpuNames:
    """All names of GPUs. `accelerators` maps other makers to globs over the plain names of their hardware."""

    gpus: tuple[Gpu, ...]
    accelerators: Mapping[str, tuple[str, ...]]

    @cached_property
    def known(self) -> Mapping[str, tuple[Gpu, ...]]:
        """Plain name -> architectures: several for a family, else one."""
        families: dict[str, tuple[Gpu, ...]] = {}
        names: dict[str, tuple[Gpu, ...]] = {}
        for gpu in self.gpus:
            families[gpu.family] = (*families.get(gpu.family, ()), gpu)
            for product in (gpu.name, gpu.capability, *gpu.products, *gpu.aliases):
                names |= {plain(form): (gpu,) for form in _forms(product)}
        return families | names

    @cached_property
    def families(self) -> frozenset[str]:
        return frozenset(gpu.family for gpu in self.gpus)

    def find(self, name: str) -> tuple[Gpu, ...]:
        """Return the architectures of that name, none if it is not known. sm_90a is sm_90, which runs its code."""
        match = _ARCHITECTURE.fullmatch(name.lower().strip())
        if match and f"sm{match[1]}" in self.known:
            return self.known[f"sm{match[1]}"]
        return self.known.get(self._card(name), ())

    def host(self, name: str) -> CardHost | None:
        """Return the host of the named card; None for an architecture whose cards come for several kinds of hosts."""
        gpus = self.find(name)
        if len(gpus) != 1:
            return None
        (gpu,) = gpus
        only = {*gpu.amd64, *gpu.arm64}
        card = self._card(name)
        cards = [product for product in {*gpu.products, *only} if card in map(plain, _forms(product))]
        platforms = {gpu.platform_of(product) for product in cards or gpu.products}
        is_only = only.issuperset(cards or gpu.products)
        if len(platforms) != 1 or not (cards or is_only):
            return None
        return CardHost(name, platforms.pop(), is_only, gpu.source)

    def reason(self, name: str) -> str:
        """Return why a name is not known: another maker's accelerator, or a name of several architectures."""
        for maker, globs in self.accelerators.items():
            if any(fnmatchcase(plain(name), glob) for glob in globs):
                return f"hardware of {maker}; rules and images here are for NVIDIA GPUs"
        candidates = self._candidates(name)
        if len({gpu.name for gpu in candidates.values()}) < 2:
            return ""
        listed = [f"{product} ({gpu.name})" for product, gpu in candidates.items()]
        return f"it may be {', '.join(listed[:_LISTED])}{' and others' if len(listed) > _LISTED else ''}"

    def suggestion(self, name: str) -> str | None:
        """Return a product that has the words of the name or begins with it, if all of these have one architecture."""
        begun = {
            product: gpu
            for gpu in self.gpus
            for product in gpu.products
            if len(plain(name)) >= _SHORTEST and plain(product).startswith(plain(name))
        }
        candidates = self._candidates(name) or begun
        return min(candidates, key=len) if len({gpu.name for gpu in candidates.values()}) == 1 else None

    def _candidates(self, name: str) -> dict[str, Gpu]:
        """Return the products that have all words of the name, and more."""
        typed = _tokens(name) - _MAKER
        if not any(word.isdigit() for word in typed):
            return {}
        return {product: gpu for gpu in self.gpus for product in gpu.products if typed <= _tokens(product)}

    def _card(self, name: str) -> str:
        """Return the plain name of a card without the parts that are not known: number, maker and variant."""
        words = re.split(r"[\s_-]+", _COUNT.sub("", name.lower().strip()))
        while words and words[0] in _MAKER and "".join(words) not in self.known:
            words.pop(0)
        while words and "".join(words) not in self.known and is_variant(words[-1]):
            words.pop()
        return "".join(words)


def _forms(name: str) -> Iterator[str]:
    """Yield the name as users shorten and turn it: "5090"; "RTX 6000 PRO" for "RTX PRO 6000"."""
    yield name
    if match := _SERIES.fullmatch(name):
        yield match[1]
    if match := _PRO.fullmatch(name):
        yield from (f"RTX {match[1]} PRO", f"{match[1]} PRO")


def _tokens(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+|[0-9]+", name.lower()))


def architectures(gpus: Iterable[Gpu]) -> list[str]:
    """Return the names of the architectures, the oldest first."""
    return sorted({gpu.name for gpu in gpus}, key=lambda name: (len(name), name))


@dataclass(frozen=True)
class UnknownName:
    """A name that neither the matrix nor the harvested metadata has."""

    kind: str  # "component", "GPU", "base" or "platform"
    name: str
    suggestion: str | None  # a known name that resembles it
    known: tuple[str, ...] = ()  # all names of its kind, if these are few
    reason: str = ""  # why it is not known

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: {self.reason}"
        if self.suggestion:
            return f"{self.name} (did you mean {self.suggestion}?)"
        return f"{self.name} (known are {', '.join(self.known)})" if self.known else self.name


class UnknownNameError(UsageError):
    """A name is not known, and a known one is needed."""

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
    from_sources: frozenset[str] = frozenset()  # components whose name an index may have for another project

    def package(self, name: str) -> str:
        """Return the package that the name stands for. Raises UnknownNameError, as `gpu` and `system` do."""
        if plain(name) in self.packages:
            return self.packages[plain(name)]
        raise UnknownNameError(UnknownName("component", name, self.near(name)))

    def gpu(self, name: str) -> tuple[Gpu, ...]:
        """Return the GPUs of that name: several for a family."""
        if gpus := self.gpus.find(name):
            return gpus
        raise UnknownNameError(self.unknown_gpu(name))

    def unknown_gpu(self, name: str) -> UnknownName:
        """Return the unknown name with its reason, or a suggestion that names no other architecture."""
        near = self.gpus.suggestion(name) or self.near(name, self.gpus.families)
        return UnknownName("GPU", name, near, tuple(architectures(self.gpus.gpus)), self.gpus.reason(name))

    def system(self, name: str) -> System:
        system_names = sorted({system.name for system in self.systems.values()})
        return self._find(self.systems, self._system_name(name), "base", system_names)

    def _system_name(self, name: str) -> str:
        """Return the name of a system without the parts of an image's reference; it may not be known."""
        if match := _CUDA_IMAGE.fullmatch(name.lower()):
            base = f"cuda{match[1]}-{match[2]}"
            return base if plain(base) in self.systems else match[2]
        return _IMAGE.sub("", name.lower()).replace(":", "")

    def image(self, name: str) -> NgcImage | None:
        """Return the image of NVIDIA that the name is of, if any: "nvcr.io/nvidia/pytorch:25.03-py3"."""
        match = _NGC.fullmatch(name.lower())
        return self.ngc_images.get(match[1]) if match else None

    def meaning(self, word: str) -> tuple[str, str] | None:
        """Return (surrounding or package, specifier) for a single word: "cu128", "py312", "H100"; None if unknown."""
        key = plain(word)
        if key in self.packages:
            return self.packages[key], ""
        if surrounding := _version_of_surrounding(key):
            return surrounding
        if any(key in spellings for spellings in _PLATFORMS.values()):
            return "platform", f"=={word}"
        if plain(self._system_name(word)) in self.systems or _NGC.fullmatch(key):
            return "base", f"=={word}"
        return ("gpu", f"=={word}") if self.gpus.find(word) else None

    def platform(self, name: str) -> str:
        """Return OCI's name of a platform of Linux. Raises UnknownNameError; its reason is there for other systems."""
        oci_name = next(
            (platform_name for platform_name, spellings in _PLATFORMS.items() if plain(name) in spellings), None
        )
        if oci_name is None or oci_name in _WITHOUT_IMAGES:
            image_platforms = tuple(
                platform_name for platform_name in _PLATFORMS if platform_name not in _WITHOUT_IMAGES
            )
            raise UnknownNameError(
                UnknownName("platform", name, None, image_platforms, _WITHOUT_IMAGES.get(oci_name or "", ""))
            )
        return oci_name

    def near(self, word: str, among: Iterable[str] | None = None) -> str | None:
        """Return the known name that the user probably meant.

        It is a name with a typing error, not a similar name (deepspeed, deep-ep). It may be a GPU family, not a GPU.
        """
        candidates = self.written.keys() if among is None else set(among) & self.written.keys()
        match = nearest(plain(word), candidates, _LIKENESS)
        return self.written[match] if match else None

    def _find(self, entries: Mapping[str, T], name: str, kind: str, written: Iterable[str]) -> T:
        if plain(name) in entries:
            return entries[plain(name)]
        raise UnknownNameError(UnknownName(kind, name, self.near(name, entries), tuple(written)))


def python_of(text: str) -> str | None:
    """Return the minor version: "3.12" of "3.12", "312" and "py312"; None for anything else."""
    match = _PYTHON.fullmatch(plain(text))
    return f"3.{match[1]}" if match else None


def cuda_of(text: str) -> str | None:
    """Return the minor version: "12.8" of "12.8", "12.8.1" and "cu128"; None for anything else."""
    match = re.fullmatch(r"([1-9][0-9])\.([0-9])(?:\.[0-9]+)?", text)
    return f"{match[1]}.{match[2]}" if match else cuda_version(plain(text))


def _version_of_surrounding(key: str) -> tuple[str, str] | None:
    """Return CUDA, Python or the driver with its specifier for a plain word: "cu128", "cuda13", "py312", "r570"."""
    label = key.replace("cuda", "cu")  # cuda128 is cu128
    if key == NO_CUDA or cuda_version(label):
        return "cuda", f"=={label}"
    if match := _CUDA.fullmatch(key):
        return "cuda", f"=={match[1]}"
    if match := _DRIVER.fullmatch(key):
        return "driver", f"=={match[1]}"
    return ("python", f"=={key}") if re.fullmatch(r"(?:py|cp|python)3\.?[0-9]{1,2}", key) else None
