"""Minimum versions of NVIDIA's libraries, from the requirements of torch releases on PyPI.

A build of torch requires the libraries of its CUDA by exact version. Newer ones usually work; older ones lack symbols
or are refused. Builds for other CUDA releases of the same major version require no older ones, except cuBLAS, which
belongs to a CUDA release. If PyPI's build is for another major version, the minimum of the last release before it
counts. Source: pytorch's .github/scripts/generate_binary_build_matrix.py, which has for CUDA 12.6 cuDNN
9.5.1 before torch 2.8 and 9.10.2 since, and NCCL 2.28.9 at the time of 2.11; read on 2026-11-24.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from imagegen.compat.derived import derived_rule, release_span
from imagegen.compat.metadata import ReleaseMetadata
from imagegen.compat.rule import Rule
from imagegen.core.types import parse_requirement

if TYPE_CHECKING:
    from imagegen.compat.knowledge import RuleSubject

TORCH = "torch"
# Package of NVIDIA -> its library as people call it, and the major version of its CUDA.
LIBRARIES = {
    "nvidia-cublas-cu12": ("cuBLAS", 12),
    "nvidia-cublas": ("cuBLAS", 13),
    "nvidia-cudnn-cu12": ("cuDNN", 12),
    "nvidia-cudnn-cu13": ("cuDNN", 13),
    "nvidia-nccl-cu12": ("NCCL", 12),
    "nvidia-nccl-cu13": ("NCCL", 13),
    "nvidia-nvshmem-cu12": ("NVSHMEM", 12),
    "nvidia-nvshmem-cu13": ("NVSHMEM", 13),
}
_OF_CUDA_RELEASE = "nvidia-cublas-cu12"  # its minor version equals the minor version of its CUDA release
# torch compares the minor versions itself. Source: _init in torch/backends/cudnn/__init__.py, torch 2.4 to 2.15
_COMPARED = "cuDNN"
_LOWER = {"==", ">="}


class _Minimum(NamedTuple):
    version: str
    required_by: str  # the release of torch that requires it


def rules(subject: RuleSubject) -> Iterable[Rule]:
    """Return the rules of torch, unless it is compiled from sources."""
    fact, releases = subject.facts.packages.get(TORCH), subject.knowledge.metadata.of(TORCH)
    if subject.package != TORCH or releases is None or (fact and fact.built):
        return ()
    return library_rules(releases.all, subject.facts.packages.keys(), releases.package.read or "")


def library_rules(releases: Sequence[ReleaseMetadata], names: Collection[str], read: str) -> Iterator[Rule]:
    """Yield the rules about the named packages of NVIDIA; `releases` of torch are sorted, the oldest first."""
    for name in sorted(LIBRARIES.keys() & set(names)):
        minimums = zip(releases, _minimums(releases, name), strict=True)
        for minimum, run in groupby(minimums, lambda pair: pair[1]):
            if minimum:
                versions = [release.version for release, _ in run]
                yield _rule(name, minimum, versions, read)


def _minimums(releases: Sequence[ReleaseMetadata], name: str) -> Iterator[_Minimum | None]:
    """Yield the minimum of each release, or the one of the last release before it that requires the package."""
    last: _Minimum | None = None
    for release in releases:
        parsed = (parse_requirement(text) for text in release.requires or ())
        specifiers = [bound for requirement in parsed if requirement.name == name for bound in requirement.specifier]
        bounds = [Version(bound.version) for bound in specifiers if bound.operator in _LOWER]
        if bounds and (last is None or max(bounds) != Version(last.version)):
            last = _Minimum(str(max(bounds)), release.version)
        yield last


def _rule(name: str, minimum: _Minimum, versions: Sequence[str], read: str) -> Rule:
    library, cuda = LIBRARIES[name]
    span, specifier = release_span(versions)
    is_compared = library == _COMPARED
    major, minor = Version(minimum.version).release[:2]
    needed = f"{major}.{minor}" if is_compared else minimum.version
    source = f"PyPI metadata of torch {minimum.required_by}"
    result = "which refuse an older minor version when they first use it" if is_compared else "which they require"
    because = f"Builds of torch {span} for CUDA {cuda} are compiled against {library} {needed} or newer, {result}."
    return derived_rule(
        f"torch-pin:{versions[0]}:{name}",
        because,
        when={TORCH: specifier, **({"cuda": f">={major}.{minor}"} if name == _OF_CUDA_RELEASE else {})},
        then={name: f">={needed}"},
        source=f"{source}; torch/backends/cudnn/__init__.py" if is_compared else source,
        date=read,
        kind="breaks" if is_compared else "pip-refuses",
        message="RuntimeError: cuDNN version incompatibility" if is_compared else "",
        fix=f"Take {name} {minimum.version} or newer, or leave the choice to torch.",
    )
