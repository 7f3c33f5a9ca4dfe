"""The base, CUDA, GPUs and Python of an imported image, each with the statement of the file that decides it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.core.errors import Location, ProjectFileError
from imagegen.plan.matrix.model import NO_CUDA, cuda_version
from imagegen.plan.projects.model import Omission, PackagePin, Recovered
from imagegen.plan.projects.names import gpus_for, needs_gpu

TORCH = "torch"
_CUDA_SUFFIX = re.compile(r"-cu(1[1-9])$")


@dataclass(frozen=True)
class Choice:
    """A value of the entry, and the reason as a sentence. `omission` is what the file says otherwise."""

    value: str
    because: str
    omission: Omission | None = None


@dataclass(frozen=True)
class ImagePlatform:
    """The surroundings of the imported stack."""

    base: str
    stacks: tuple[str, ...]
    gpus: tuple[str, ...]
    cuda: Choice
    python: Choice


@dataclass(frozen=True)
class Known:
    """The facts of the matrix that decide on CUDA.

    `cuda` are the values of that axis, `indexes` the addresses of PyTorch's indexes with their values, and
    `torch_cuda` gives the CUDA release of PyPI's build of torch that a pin means: "12.8", or None.
    """

    cuda: Sequence[str]
    indexes: Mapping[str, str]
    torch_cuda: Callable[[PackagePin], str | None]


def exact_version(specifier: str) -> Version | None:
    """Return the one version that a PEP 440 specifier admits by ==; None for any other specifier."""
    clauses = list(SpecifierSet(specifier))
    if len(clauses) != 1 or clauses[0].operator != "==" or clauses[0].version.endswith("*"):
        return None
    return Version(clauses[0].version)


def platform(found: Recovered, python: Choice, known: Known, *, is_locked: bool = False) -> ImagePlatform:
    """Return base, stacks, GPUs and CUDA for what was recovered; with `is_locked`, its builds stay as they are."""
    cuda = choose_cuda(found, known, is_locked=is_locked)
    version = cuda_version(cuda.value)
    if version is None:
        return ImagePlatform("debian12", (), (), cuda, python)
    return ImagePlatform("debian12-gpu", ("gpu",), gpus_for(version), cuda, python)


def choose_cuda(found: Recovered, known: Known, *, is_locked: bool = False) -> Choice:
    """Return the value of the axis cuda: by torch's label, an index, conda's CUDA, or the packages for GPUs.

    Without any of these, torch of a locked set is the build that it is, and otherwise the one for the CPU.
    """
    stated = next(_stated(found, known), None)
    if stated:
        return stated
    gpu = next((pin for pin in found.pins if needs_gpu(pin.package)), None) or (_torch(found) if is_locked else None)
    if gpu is None:
        reason = "No CUDA: nothing in the file names one, and no package of it is of use with a GPU alone."
        return Choice(NO_CUDA, reason)
    newest = max(each for each in known.cuda if each != NO_CUDA)
    reason = f"{gpu.package} is for GPUs ({gpu.places[0]}), and nothing names a CUDA: the newest one here."
    return next(_implied(found, known), Choice(newest, reason))


def _stated(found: Recovered, known: Known) -> Iterator[Choice]:
    """Yield the choices that the file states, the most specific first."""
    torch = _torch(found)
    version = exact_version(torch.specifier) if torch else None
    if torch and version and version.local and re.fullmatch(r"cpu|cu\d{3}", version.local):
        yield _offered(version.local, f"the label of torch is {version.local}", torch.places[0], known)
    for address, place in found.indexes.items():
        if label := known.indexes.get(address.rstrip("/")):
            yield _offered(label, "an index of PyTorch is for it", place, known)
    if found.cuda:
        release, place = found.cuda
        yield _offered("cu" + "".join(release.split(".")[:2]), f"the file names CUDA {release}", place, known)


def _implied(found: Recovered, known: Known) -> Iterator[Choice]:
    """Yield the choices that follow from packages: the build of an exact torch, and names such as nvidia-nccl-cu12."""
    torch = _torch(found)
    for pin in (torch, *found.pins) if torch else found.pins:
        if cuda := known.torch_cuda(pin):
            why = f"the torch of PyPI that {pin.package}{pin.specifier} means has it"
            yield _offered("cu" + cuda.replace(".", ""), why, pin.places[0], known)
    for pin in found.pins:
        if suffix := _CUDA_SUFFIX.search(pin.package):
            major = suffix[1]
            if offered := [each for each in known.cuda if each.startswith(f"cu{major}")]:
                why = f"{pin.package} is for CUDA {major} ({pin.places[0]}): the newest one of it here."
                yield Choice(max(offered), why)


def _torch(found: Recovered) -> PackagePin | None:
    return next((pin for pin in found.pins if pin.package == TORCH), None)


def _offered(label: str, why: str, place: Location, known: Known) -> Choice:
    """Return the label as the choice, or the next newer one that the matrix has."""
    if label in known.cuda:
        return Choice(label, f"{why[0].upper()}{why[1:]} ({place}).")
    others = sorted(each for each in known.cuda if each != NO_CUDA)
    chosen = next((each for each in others if each > label), others[-1])
    fix = f"check that your driver runs {chosen}"
    omission = Omission(place, f"CUDA {label}", f"the axis `cuda` has the values {', '.join(others)}", fix)
    return Choice(chosen, f"The nearest value to {label}: {why} ({place}).", omission)


def choose_python(
    asked: Sequence[tuple[str, str]], values: Sequence[str], versions: Mapping[str, str], own: str, where: Location
) -> Choice:
    """Return the value of the axis python that all specifiers of `asked` admit, each with its source in words.

    `versions` has the full version of each value where it is known. The base's `own` Python is preferred, then the next
    newer one. Raises ProjectFileError where no value fits.
    """
    bounds = [(SpecifierSet(text), source) for text, source in asked if text]
    admitted = [
        value
        for value in values
        if all(bound.contains(versions.get(value, value), prereleases=True) for bound, _ in bounds)
    ]
    if not admitted:
        requested = " and ".join(f"{bound} of {source}" for bound, source in bounds)
        raise ProjectFileError(
            "no Python here is the one of the project",
            code="project-mismatch",
            where=where,
            why=f"it requires {requested}, and the axis `python` has {', '.join(values)}",
            fix="correct the requirement, or add the Python to the matrix",
        )
    admitted.sort(key=Version)
    chosen = own if own in admitted else next((each for each in admitted if Version(each) > Version(own)), admitted[-1])
    sources = ", ".join(f"{bound} of {source}" for bound, source in bounds)
    return Choice(chosen, f"It satisfies {sources}." if sources else "The base's own Python: the file names none.")
