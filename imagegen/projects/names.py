"""The tables of data/projects.yaml: names of conda, packages and GPU architectures, images, words of commands."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.compat.rule import NO_CUDA

# In the name of an image: cu130, cuda12.9.1, cuda:12.4.1-devel, cuda-12-4, cu13.
_CUDA_IN_NAME = re.compile(r"(?<![a-z])cu(?:da[-_:]?)?(1[1-9])(?:\.?(\d)|-(\d)(?!\d))?")
# In the name of an image: torch2.8.0, th2.6.0, vllm0.9.1, sglang0.4.6.post1.
_PACKAGE_IN_NAME = re.compile(r"(?<![a-z])(torch|th|vllm|sglang)-?v?(\d+\.\d+\.\d+(?:\.post\d+)?)(?![.\d])")
# In the name of an image: python:3.12-slim, py312, python3.10.
_PYTHON_IN_NAME = re.compile(r"(?<![a-z])py(?:thon)?[:_-]?3\.?(\d{1,2})(?!\d)")
# In commands: python3.12, python=3.12, --python 3.12, PYTHON_VERSION=3.12, Miniconda3-py312_25, and a wheel's -cp312-.
_PYTHON_IN_COMMANDS = re.compile(
    r"(?:(?<![\w/.-])(?:/usr(?:/local)?/bin/)?python={0,2}3\.|--python[= ]3\.|PYTHON_VERSION[= ][\"']?3\."
    r"|conda\d?-py3|-cp3(?=\d+-(?!abi3)))(\d{1,2})(?!\d)"
)
_FILE = Path(__file__).parent / "data" / "projects.yaml"


@dataclass(frozen=True)
class CondaNames:
    """The equals of conda's packages. Keys and names are as conda writes them."""

    pypi: Mapping[str, str]  # -> normalised name
    debian: Mapping[str, tuple[str, ...]]
    cuda: frozenset[str]  # whose version is CUDA's
    base: frozenset[str]  # that every base has


@cache
def conda_names() -> CondaNames:
    """Return the equals of conda's packages."""
    table = _read()["conda"]
    return CondaNames(
        {**{name: canonicalize_name(name) for name in table["same"]}, **table["pypi"]},
        {name: tuple(packages) for name, packages in table["debian"].items()},
        frozenset(table["cuda"]),
        frozenset(table["base"]),
    )


def needs_gpu(package: str) -> bool:
    """Return whether a package is of use only with a GPU."""
    return any(fnmatch.fnmatchcase(package, pattern) for pattern in _read()["gpu"])


def gpus_for(cuda: str) -> tuple[str, ...]:
    """Return the GPU architectures of an imported image with this CUDA release ("12.8")."""
    gpus = _read()["gpus"]
    fitting = [release for release in gpus if Version(release) <= Version(cuda)]
    return tuple(gpus[max(fitting or gpus, key=Version)])


@dataclass(frozen=True)
class BaseConfig:
    """The known part of a base image's config. `workdir` is "" if it is unknown."""

    workdir: str = ""
    runs_command: bool = False  # its entry point, if any, runs the command that it is given


@dataclass(frozen=True)
class KnownImage:
    """The contents of a published image: versions of packages, its CUDA release ("12.8"), its Python and its config.

    `note` says what the image has and an entry cannot have: what, why and what to do.
    """

    packages: Mapping[str, str]
    cuda: str | None = None
    python: str | None = None  # "3.12"
    config: BaseConfig = BaseConfig()
    note: tuple[str, str, str] | None = None


def known_image(name: str, published: Mapping[str, KnownImage]) -> KnownImage | None:
    """Return the contents of a published image, of `others` by name and tag, else by the versions in its name.

    None stands for an image that neither knows.
    """
    plain = _plain(name)
    if plain in published:
        return published[plain]
    for entry in _read()["images"]:
        if match := re.fullmatch(entry["image"], plain):
            groups = {key: value for key, value in match.groupdict().items() if value}
            cuda = groups.pop("cuda", None)
            cuda = cuda if cuda is None or "." in cuda else f"{cuda[:2]}.{cuda[2:]}"
            config = BaseConfig(entry.get("workdir", ""), entry.get("runs_command", False))
            return KnownImage({canonicalize_name(key): value for key, value in groups.items()}, cuda, config=config)
    return None


def _plain(name: str) -> str:
    """Return the name and tag of an image without its digest, Docker Hub's host and the folder of official images."""
    return re.sub(r"^(?:(?:\S*/)?library/|(?:index\.)?docker\.io/)", "", name.partition("@")[0])


def cuda_in_name(image: str) -> str | None:
    """Return the CUDA release ("12.8"), its major version or "cpu", as the name or tag of an image states it."""
    name = image.partition("@")[0].lower()
    if match := _CUDA_IN_NAME.search(name):
        return ".".join(filter(None, match.groups()))
    return NO_CUDA if re.search(r"(?<![a-z])cpu(?![a-z])", name) else None


def packages_in_name(image: str) -> dict[str, str]:
    """Return the versions of torch, vLLM and SGLang that the name or tag of an image states."""
    matches = _PACKAGE_IN_NAME.findall(image.partition("@")[0].lower())
    return {"torch" if name == "th" else name: version for name, version in matches}


def python_in_name(image: str) -> str | None:
    """Return the version of Python ("3.12") that the name or tag of an image states."""
    match = _PYTHON_IN_NAME.search(image.partition("@")[0].lower())
    return f"3.{match[1]}" if match else None


def pythons_in_commands(text: str) -> list[str]:
    """Return the versions of Python ("3.12") that shell commands name."""
    return [f"3.{minor}" for minor in _PYTHON_IN_COMMANDS.findall(text)]


def is_system(image: str) -> bool:
    """Return whether an image is known to have no CUDA, whatever its tag."""
    folder, slash, tagged = _plain(image).rpartition("/")
    name = f"{folder}{slash}{tagged.partition(':')[0]}"
    return any(re.fullmatch(pattern, name) for pattern in _read()["systems"])


def accelerator_in(text: str) -> str | None:
    """Return the accelerator other than NVIDIA's GPUs that a name of an image, package or index states; else None."""
    text = text.lower()
    return next((name for name, entry in _read()["accelerators"].items() if re.search(entry["names"], text)), None)


def accelerator_of(variable: str) -> str | None:
    """Return the accelerator other than NVIDIA's GPUs that a variable is for; else None."""
    return next((name for name, entry in _read()["accelerators"].items() if variable in entry["variables"]), None)


@cache
def command_words(kind: str) -> frozenset[str]:
    """Return a list of words of shell commands: "silent" or "pip_values", as the table says."""
    return frozenset(_read()["commands"][kind])


@cache
def uv_keys(kind: str) -> frozenset[str]:
    """Return the keys of `tool.uv` that import takes into an entry ("taken"), or that decide nothing ("silent")."""
    return frozenset(_read()["uv_keys"][kind])


def export_command(name: str) -> str | None:
    """Return the command that writes the packages of a file, such as poetry.lock, to one that is read; None if none."""
    export: dict[str, str] = _read()["exports"].get(name, {})
    return export.get("command")


def describes_base(variable: str) -> bool:
    """Return whether base images describe themselves by a variable, which sets nothing for programs."""
    return any(fnmatch.fnmatchcase(variable, pattern) for pattern in _read()["base_variables"])


@cache
def system_directories() -> frozenset[str]:
    """Return the directories that every image has: a file that is copied to one of them goes below it."""
    return frozenset(_read()["directories"])


@cache
def _read() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return table
