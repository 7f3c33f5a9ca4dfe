"""Parse in a wheel's file name the torch, CUDA and ABI that it was built for, and compare them with a cell.

Projects that publish wheels for several torches name theirs in the local version label, each in its own way:
"+cu12torch2.8cxx11abiTRUE" (flash-attn, causal-conv1d, mamba-ssm), "+cu130torch2.11" (flash-attention-prebuild-wheels),
"+cu13torch2.11.0+cu130cxx11abiTRUE" (TransformerEngine, whose second plus is invalid in PEP 440), "+pt28cu128"
(xformers). A name without these is decided by its file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.tags import Tag
from packaging.utils import BuildTag, parse_wheel_filename
from packaging.version import Version

from imagegen.core.types import minor

_CUDA = re.compile(r"cu([0-9]{2})([0-9]?)(?![0-9])")
_TORCH = re.compile(r"(?:torch|(?<![a-z])pt)([12])\.?([0-9]{1,2})(?![0-9])")
_ABI = re.compile(r"abi(true|false|[01])(?![a-z0-9])")
_OTHER = re.compile(r"(?<![a-z])(rocm|hip|xpu|cpu)(?![a-z])")
CPU = "the CPU alone"
_OTHERS = {"rocm": "ROCm", "hip": "ROCm", "xpu": "Intel's GPUs", "cpu": CPU}
_NAME = re.compile(r"[A-Za-z0-9._+!-]{1,200}\.whl")  # nothing that a path or a terminal reads as more than a name
_INTERPRETER = re.compile(r"(cp|py)([23])([0-9]*)")


@dataclass(frozen=True)
class WheelRequirement:
    """A cell's requirement on the wheel of a component."""

    package: str  # normalised (PEP 503)
    version: str  # as the resolution chose it: "2.8.3"
    python: str  # "3.11"
    platform: str  # as uv calls it: "x86_64-manylinux_2_36"
    ranks: Mapping[Tag, int]  # every tag that fits -> its rank, 0 for the most specific: `WheelTarget.ranks`
    torch: str | None  # the cell's release: "2.11.0", "2.8.0+cu128"; None without torch
    cuda: str | None  # the CUDA of torch's build: "13.0"; None without CUDA
    key: str | None = None  # of the source build, "sha256:..."; None if it is not known, so that no wheelhouse is asked
    source: str | None = None  # file of a source build: "flash_attn-2.8.3.tar.gz"; None without a recipe
    obstacle: str | None = None  # why it cannot be compiled, though there may be a recipe
    from_source: bool = False  # the matrix asks for one that is compiled here, even where another fits

    @property
    def new_abi(self) -> bool | None:
        """Return whether torch has the new C++ ABI; None where there is no torch.

        Measured on PyPI's torch for x86-64: 2.6.0 has the old, 2.7 to 2.15 the new. PyTorch's own index has the new one
        in its 2.6.0 for CUDA 12.6 as well, as its release notes say.
        """
        if self.torch is None:
            return None
        version = Version(self.torch)
        return version.release[:2] >= (2, 7) or (version.release[:2] == (2, 6) and version.local == "cu126")


@dataclass(frozen=True)
class ParsedWheelName:
    """A parsed wheel name. Attributes that it does not state are None."""

    filename: str  # one that PEP 427 takes
    package: str  # normalised (PEP 503)
    version: Version  # without its label
    build: BuildTag
    tags: frozenset[Tag]
    torch: str | None = None  # "2.8"
    cuda: str | None = None  # "12", "12.8"
    new_abi: bool | None = None
    other: str | None = None  # its target instead of CUDA: "ROCm"

    def rank(self, need: WheelRequirement) -> int | None:
        """Return the rank of its best tag for the cell; None when none fits."""
        return min((need.ranks[tag] for tag in self.tags if tag in need.ranks), default=None)


def read(filename: str) -> ParsedWheelName | None:
    """Parse a file name; None if it is not a wheel's."""
    if not _NAME.fullmatch(filename):
        return None
    name, _, remainder = filename.partition("-")
    version, dash, remainder = remainder.partition("-")
    public, _, label = version.partition("+")
    plain = f"{name}-{public}{dash}{remainder}"
    try:
        package, parsed, build, tags = parse_wheel_filename(plain)
    except ValueError:
        return None
    label = label.lower()
    torch, abi, other = _TORCH.search(label), _ABI.search(label), _OTHER.search(label)
    return ParsedWheelName(
        filename=filename if _is_valid(filename) else plain,
        package=package,
        version=parsed,
        build=build,
        tags=tags,
        torch=f"{int(torch[1])}.{int(torch[2])}" if torch else None,
        cuda=max((_cuda(match) for match in _CUDA.finditer(label)), key=len, default=None),
        new_abi=abi[1] in ("true", "1") if abi else None,
        other=_OTHERS[other[1]] if other else None,
    )


def mismatch(parsed: ParsedWheelName, need: WheelRequirement) -> str | None:
    """Return the first contradiction between the name and the cell, in one clause; None without one."""
    if parsed.rank(need) is None:
        return _other_tags(parsed, need)
    if parsed.other and (need.cuda or parsed.other != CPU):
        return f"for {parsed.other}"
    if parsed.torch and parsed.torch != (need.torch and minor(need.torch)):
        return f"built for torch {parsed.torch}, the cell has {minor(need.torch) if need.torch else 'none'}"
    if parsed.cuda and _major(parsed.cuda) != (need.cuda and _major(need.cuda)):
        return f"built for CUDA {parsed.cuda}, {f'torch is for {need.cuda}' if need.cuda else 'the cell has none'}"
    if parsed.new_abi is not None and need.new_abi is not None and parsed.new_abi != need.new_abi:
        return f"built with the {_abi(parsed.new_abi)} C++ ABI, torch has the {_abi(need.new_abi)} one"
    return None


def sayings(parsed: ParsedWheelName) -> str:
    """Return the parsed name as a list: "torch 2.8, CUDA 12"; "" where it states nothing."""
    labels = (parsed.torch and f"torch {parsed.torch}", parsed.cuda and f"CUDA {parsed.cuda}")
    return ", ".join(part for part in labels if part)


def _other_tags(parsed: ParsedWheelName, need: WheelRequirement) -> str:
    platforms = {tag.platform for tag in need.ranks}
    if not any(tag.platform in platforms for tag in parsed.tags):
        return f"for {' or '.join(sorted({tag.platform for tag in parsed.tags}))}, the cell is {need.platform}"
    return f"for {' or '.join(sorted({_python(tag) for tag in parsed.tags}))}, the cell has {need.python}"


def _python(tag: Tag) -> str:
    match = _INTERPRETER.fullmatch(tag.interpreter)
    if not match:
        return tag.interpreter
    version = f"{match[2]}.{match[3]}" if match[3] else match[2]
    if tag.abi.endswith("t"):
        return f"free-threaded Python {version}"
    return f"Python {version}{' or newer' if tag.abi in ('abi3', 'none') else ''}"


def _cuda(match: re.Match[str]) -> str:
    return f"{match[1]}.{match[2]}" if match[2] else match[1]


def _major(cuda: str) -> str:
    return cuda.partition(".")[0]


def _abi(new: bool) -> str:
    return "new" if new else "old"


def _is_valid(filename: str) -> bool:
    try:
        parse_wheel_filename(filename)
    except ValueError:
        return False
    return True
