"""Choose base, CUDA, GPUs and Python of an imported image, and write its entry as YAML.

Each choice has the statement of the file that decides it. A comment of the YAML explains each line that the file does
not say itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.compat.rule import NO_CUDA, cuda_version
from imagegen.core.errors import Location, ProjectFileError
from imagegen.core.text import shown
from imagegen.projects.model import Omission, PackagePin, Recovered, unsupported
from imagegen.projects.names import accelerator_in, accelerator_of, gpus_for, needs_gpu
from imagegen.spec.model import Component, StackFile

TORCH = "torch"
_CUDA_NAME = re.compile(r"(?:-cu|-cuda|^cuda)(1[1-9])x?$")  # nvidia-nccl-cu12, cupy-cuda12x, the extra cuda12


@dataclass(frozen=True)
class Choice:
    """A value of the entry, and the reason as a sentence. `omission` is a statement of the file that differs."""

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
class CudaFacts:
    """The facts of the matrix that decide on CUDA.

    `cuda` are the values of that axis, `indexes` the addresses of PyTorch's indexes with their values, and
    `torch_cuda` gives the CUDA release of PyPI's build of torch that a pin means: "12.8", or None. `brings_torch` says
    whether a pin is torch or requires it. `gpus` are the architectures of the matrix.
    """

    cuda: Sequence[str]
    indexes: Mapping[str, str]
    torch_cuda: Callable[[PackagePin], str | None]
    brings_torch: Callable[[PackagePin], bool]
    gpus: Collection[str]


def exact_version(specifier: str) -> Version | None:
    """Return the one version that a PEP 440 specifier admits by ==; None for any other specifier."""
    clauses = list(SpecifierSet(specifier))
    if len(clauses) != 1 or clauses[0].operator != "==" or clauses[0].version.endswith("*"):
        return None
    return Version(clauses[0].version)


def platform(
    recovered: Recovered,
    python: Choice,
    facts: CudaFacts,
    *,
    is_locked: bool = False,
    cuda_value: str = "",
    gpus: tuple[str, ...] = (),
) -> ImagePlatform:
    """Return base, stacks, GPUs and CUDA for the recovered packages; with `is_locked`, their builds stay unchanged.

    `cuda_value` and `gpus` are the user's choices, "" and () for none. Raises ProjectFileError as `choose_cuda`.
    """
    if cuda_value:
        cuda = Choice(cuda_value, "`--cuda` states it.")
    else:
        cuda = choose_cuda(recovered, facts, is_locked=is_locked, has_gpu=bool(gpus))
    version = cuda_version(cuda.value)
    if version is None:
        return ImagePlatform("debian12", (), (), cuda, python)
    built = gpus_for(version)
    listed = tuple(gpu for gpu in recovered.gpus if gpu in facts.gpus)  # a list for compiling has old GPUs too
    chosen = gpus or tuple(gpu for gpu in built if gpu in listed) or listed or built
    return ImagePlatform("debian12-gpu", ("gpu",), chosen, cuda, python)


def choose_cuda(recovered: Recovered, facts: CudaFacts, *, is_locked: bool = False, has_gpu: bool = False) -> Choice:
    """Return the value of the axis cuda: by torch's label, an index, conda's CUDA, or the build that a torch means.

    Without any of these, only a file whose packages need neither torch nor a GPU has no CUDA; with `has_gpu`, other
    files get the newest value. Raises ProjectFileError if nothing decides.
    """
    if choice := next(chain(_stated(recovered, facts), _implied(recovered, facts)), None):
        return choice
    newest = max(value for value in facts.cuda if value != NO_CUDA)
    if has_gpu:
        return Choice(newest, "Nothing names a CUDA: the newest one here for the GPU that `--gpu` names.")
    torch = _torch(recovered) if is_locked else None
    pins = (torch,) if torch else recovered.pins
    needing = next((pin for pin in pins if needs_gpu(pin.package) or facts.brings_torch(pin)), None)
    if recovered.unknown_base:
        where, why = recovered.unknown_base[1], f"nothing is known of {shown(recovered.unknown_base[0])}"
    elif needing:
        need = "is for GPUs" if needs_gpu(needing.package) else "needs torch, which has builds for CUDA and for CPUs"
        where, why = needing.places[0], f"{needing.package} {need}"
    else:
        return Choice(NO_CUDA, "No CUDA: nothing in the file names one, and no package of it needs torch or a GPU.")
    raise ProjectFileError(
        "the CUDA of the image is unknown",
        code="project-cuda-unknown",
        where=where,
        why=f"{why}, and no statement of the file decides on a CUDA",
        fix=f"add --cuda with one of {', '.join(facts.cuda)}; or --gpu with a GPU, such as --gpu H100",
    )


def _stated(recovered: Recovered, facts: CudaFacts) -> Iterator[Choice]:
    """Yield the choices that the file states, the most specific first."""
    torch = _torch(recovered)
    version = exact_version(torch.specifier) if torch else None
    if torch and version and version.local and re.fullmatch(r"cpu|cu\d{3}", version.local):
        yield _offered(version.local, f"the label of torch is {version.local}", torch.places[0], facts)
    for address, location in recovered.indexes.items():
        if label := facts.indexes.get(address.rstrip("/")):
            yield _offered(label, "an index of PyTorch is for it", location, facts)
    if recovered.base_image:  # pip puts PyPI's build of torch there, for whatever CUDA the base has
        installed = tuple(pin for pin in recovered.pins if not pin.is_replaceable)
        yield from _implied_by_torch(installed, facts)
    if recovered.cuda:
        release, location = recovered.cuda
        if release == NO_CUDA:
            yield Choice(NO_CUDA, f"The file names an image without CUDA ({location}).")
        elif "." in release:
            yield _offered("cu" + "".join(release.split(".")[:2]), f"the file names CUDA {release}", location, facts)
        else:
            yield from _newest_of(release, f"The file names CUDA {release}", location, facts)


def _implied(recovered: Recovered, facts: CudaFacts) -> Iterator[Choice]:
    """Yield the choices that follow from the build of an exact torch, and from names such as nvidia-nccl-cu12."""
    yield from _implied_by_torch(recovered.pins, facts)
    for pin in recovered.pins:
        for match in filter(None, map(_CUDA_NAME.search, (pin.package, *pin.extras))):
            yield from _newest_of(match[1], f"{pin.package} is for CUDA {match[1]}", pin.places[0], facts)


def _implied_by_torch(pins: Sequence[PackagePin], facts: CudaFacts) -> Iterator[Choice]:
    for pin in sorted(pins, key=lambda pin: pin.package != TORCH):
        if cuda := facts.torch_cuda(pin):
            why = f"the torch of PyPI that {pin.package}{pin.specifier} means has it"
            yield _offered("cu" + cuda.replace(".", ""), why, pin.places[0], facts)


def _newest_of(major: str, why: str, location: Location, facts: CudaFacts) -> Iterator[Choice]:
    """Yield the newest value for a major version of CUDA, if there is one."""
    if offered := [value for value in facts.cuda if value.startswith(f"cu{major}")]:
        yield Choice(max(offered), f"{why} ({location}): the newest one of it here.")


def require_supported(recovered: Recovered) -> None:
    """Raise ProjectFileError for packages, indexes and variables for another accelerator than NVIDIA's GPUs."""
    names = [(f"{pin.package}{pin.specifier}", pin.places[0]) for pin in recovered.pins]
    for name, location in (*names, *recovered.indexes.items(), *recovered.debian.items()):
        if accelerator := accelerator_in(name):
            raise unsupported(accelerator, name, location)
    for variable, (_, location) in recovered.env.items():
        if accelerator := accelerator_of(variable):
            raise unsupported(accelerator, f"the variable {variable}", location)


def _torch(recovered: Recovered) -> PackagePin | None:
    return next((pin for pin in recovered.pins if pin.package == TORCH), None)


def _offered(label: str, why: str, location: Location, facts: CudaFacts) -> Choice:
    """Return the label as the choice, or the next newer one that the matrix has."""
    if label in facts.cuda:
        return Choice(label, f"{why[0].upper()}{why[1:]} ({location}).")
    values = sorted(value for value in facts.cuda if value != NO_CUDA)
    chosen = next((other for other in values if other > label), values[-1])
    fix = f"check that your driver runs {chosen}"
    omission = Omission(location, f"CUDA {label}", f"the axis `cuda` has the values {', '.join(values)}", fix)
    return Choice(chosen, f"The nearest value to {label}: {why} ({location}).", omission)


def choose_python(
    asked: Sequence[tuple[str, str]],
    values: Sequence[str],
    versions: Mapping[str, str],
    base_python: str,
    where: Location,
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
    chosen = (
        base_python
        if base_python in admitted
        else next((newer for newer in admitted if Version(newer) > Version(base_python)), admitted[-1])
    )
    sources = ", ".join(f"{bound} of {source}" for bound, source in bounds)
    return Choice(chosen, f"It satisfies {sources}." if sources else "The base's own Python: the file names none.")


MARK = "# Written by `imagegen import`, which replaces this file; remove this line to keep it as your own.\n"
_PLAIN = re.compile(r"[A-Za-z_](?:[A-Za-z0-9 ._+/()-]|,(?= )|:(?! |$)|;)*")
_KEYWORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_SHOWN = 3  # places in a reason


def render(
    name: str,
    source: str,
    recovered: Recovered,
    platform: ImagePlatform,
    components: Mapping[str, Component],
    family: Collection[str],
    *,
    stack: StackFile | None = None,
    override: bool = False,
) -> str:
    """Return the file of the image `name`, recovered from the file `source`.

    `components` is the matrix's components by package, `family` the packages whose builds are for one CUDA release
    each. With `stack`, the image takes that lock file of the project unchanged. With `override`, the entry replaces
    another one of its name.
    """
    lines = [
        "images:",
        f"  {scalar(name)}:",
        *(["    override: true"] if override else []),
        f"    description: {scalar(f'The packages of {source}.')}",
        "    # Say here what the image is for.",
        f"    purpose: {scalar(f'What {source} is for.')}",
        "    # The base for the CUDA that is chosen below.",
        f"    base: {platform.base}",
    ]
    lines += _axes(platform)
    if stack:
        lines += _stack(stack, recovered, components)
    elif recovered.pins:
        lines += ["    # Each package of the file; what these require comes with them.", "    components:"]
        named_pins = [
            (components[pin.package].name if pin.package in components else pin.package, pin) for pin in recovered.pins
        ]
        for package, pin in sorted(named_pins, key=lambda pair: pair[0]):
            lines += _component(package, pin, recovered, platform, components, family)
    lines += _additions(source, recovered)
    lines += _config(recovered)
    return MARK + "\n".join(lines) + "\n"


def _axes(platform: ImagePlatform) -> Iterator[str]:
    if platform.gpus:
        yield "    # GPUs that the file or `--gpu` names, else all that builds of torch for this CUDA run on."
        yield f"    gpus: [{', '.join(platform.gpus)}]"
        yield "    # Variables that every image for GPUs needs."
        yield f"    stacks: [{', '.join(platform.stacks)}]"
    yield "    axes:"
    yield f"      # {_comment(platform.cuda.because)}"
    yield f"      cuda: [{platform.cuda.value}]"
    yield f"      # {_comment(platform.python.because)}"
    yield f'      python: ["{platform.python.value}"]'


def _additions(source: str, recovered: Recovered) -> Iterator[str]:
    """Yield overrides of requirements, variables and Debian packages."""
    if recovered.overrides:
        yield from ("    # Requirements that replace all others, as the project declares them to uv.", "    overrides:")
    for pin in recovered.overrides:
        yield f"      {scalar(pin.package)}:"
        yield f"        version: {json.dumps(pin.specifier)}"
        yield f"        because: {scalar(f'An override of {source}.')}"
    if recovered.env:
        yield from ("    # Variables that the file sets for the image.", "    env:")
    for variable, (value, location) in sorted(recovered.env.items()):
        texts = f"value: {json.dumps(value)}, because: {json.dumps(reason([location]))}"
        yield f"      {variable}: {{{texts}}}"
    if recovered.debian:
        yield from ("    # Debian packages that the file names, or that stand in place of conda's.", "    packages:")
    for debian_package, origin in sorted(recovered.debian.items()):
        yield f"      {scalar(debian_package)}: {scalar(reason([origin]))}"


def _config(recovered: Recovered) -> Iterator[str]:
    if recovered.config:
        yield "    # Fields of the config that the file sets."
        yield "    config:"
    for field, (words, location) in sorted(recovered.config.items()):
        value = json.dumps(words[0] if field in ("user", "workdir") else list(words))
        yield f"      {field}: {{value: {value}, because: {json.dumps(reason([location]))}}}"
    if recovered.labels:
        yield "    labels:"
    for name, (value, location) in sorted(recovered.labels.items()):
        yield f"      {name}: {{value: {json.dumps(value)}, because: {json.dumps(reason([location]))}}}"
    if recovered.ports:
        yield "    ports:"
    for port, location in sorted(recovered.ports.items()):
        yield f"      {json.dumps(port)}: {scalar(reason([location]))}"
    yield from _files(recovered)


def _files(recovered: Recovered) -> Iterator[str]:
    if recovered.files:
        yield "    # Files of the project that are copied: after an edit, lock again."
        yield "    files:"
    for path, (source, location) in sorted(recovered.files.items()):
        because = json.dumps(reason([location]))
        yield f"      {scalar(path)}: {{source: {scalar(source.as_posix())}, because: {because}}}"
    if recovered.ldconfig:
        yield "    # Directories in which the dynamic loader finds libraries."
        yield "    ldconfig:"
    for path, location in sorted(recovered.ldconfig.items()):
        yield f"      {scalar(path)}: {json.dumps(reason([location]))}"


def _stack(stack: StackFile, recovered: Recovered, components: Mapping[str, Component]) -> Iterator[str]:
    chosen = [("extras", stack.extras), ("groups", stack.groups)]
    options = [f"{key}: [{', '.join(map(scalar, names))}]" for key, names in chosen if names]
    yield "    # Versions, files and hashes are those of this file: nothing is resolved."
    yield f"    stack: {{{', '.join([f'{stack.kind}: ./{stack.path}', *options])}}}"
    directories = {pin.package: pin.directory for pin in recovered.pins if pin.directory}
    shown_packages = {pin.package for pin in recovered.pins} & {*recovered.direct, *directories}
    if shown_packages:
        yield "    # Packages of the file that the project itself requires: their modules must import in the image."
        yield "    components:"
    for package, name in sorted(
        (distribution, components[distribution].name if distribution in components else distribution)
        for distribution in shown_packages
    ):
        where = f"path: {scalar(directories[package].as_posix())}, " if package in directories else ""
        because = "It is the project's own package." if where else "The project requires it."
        yield f"      {scalar(name)}: {{{where}because: {scalar(because)}}}"


def _component(
    name: str,
    pin: PackagePin,
    recovered: Recovered,
    platform: ImagePlatform,
    components: Mapping[str, Component],
    family: Collection[str],
) -> Iterator[str]:
    yield f"      {scalar(name)}:"
    if pin.directory:
        yield "        # The project's own package: after an edit of its files, lock again."
        yield f"        path: {scalar(pin.directory.as_posix())}"
    specifier = _without_label(pin.specifier) if pin.package in family else pin.specifier
    if specifier:
        yield f"        version: {json.dumps(specifier)}"
    if pin.extras:
        yield f"        extras: [{', '.join(map(scalar, pin.extras))}]"
    if index := _index(pin, recovered, platform, components, family):
        yield "        # Without an exact torch, an index decides for which CUDA its build is."
        yield f"        index: {index}"
    yield f"        because: {scalar(pin.because or reason(pin.places))}"


def _without_label(specifier: str) -> str:
    """Return the specifier without its local version label, which the axis cuda decides."""
    version = exact_version(specifier)
    return f"=={version.public}" if version and version.local else specifier


def _index(
    pin: PackagePin,
    recovered: Recovered,
    platform: ImagePlatform,
    components: Mapping[str, Component],
    family: Collection[str],
) -> str | None:
    """Return the alias that a package with one build for each CUDA needs, unless an exact torch decides it."""
    cuda = platform.cuda.value
    if cuda == NO_CUDA or pin.package not in family:
        return None
    torch = next((candidate for candidate in recovered.pins if candidate.package == TORCH), None)
    is_exact = torch is not None and exact_version(torch.specifier) is not None
    return None if is_exact else components[pin.package].index.get(cuda)


def reason(locations: Collection[Location]) -> str:
    """Return the file and line of a pin as its reason."""
    texts = [
        f"{shown(str(location.file))}, line {location.line}" if location.line else shown(str(location.file))
        for location in locations
    ]
    suffix = f" and {len(texts) - _SHOWN} more places" if len(texts) > _SHOWN else ""
    return f"From {'; '.join(texts[:_SHOWN])}{suffix}."


def scalar(text: str) -> str:
    """Return a text as a YAML scalar on one line, with quotes where it needs them."""
    plain = _PLAIN.fullmatch(text) and text.casefold() not in _KEYWORDS and text == text.strip()
    return text if plain else json.dumps(text, ensure_ascii=False)


def _comment(text: str) -> str:
    return shown(text).replace("\n", " ")
