"""Check that the GPU code of a stack's libraries runs on the promised GPUs, and what unused code weighs.

A library holds containers, one for each translation unit; each needs code that the GPU runs. Where a container has only
PTX, the driver compiles it when it is first used: that takes time, and a driver that is not older than the code.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import PurePosixPath

from imagegen.audit.capability import Isa, arch, compiled_by, driver_floor, isa_needed, runs
from imagegen.audit.catalogue import data, is_module
from imagegen.audit.lists import few
from imagegen.audit.model import CUDA, CodeGroup, CodeTarget, Elf, File, Finding, Package, Severity, Subject
from imagegen.audit.tags import for_another_python
from imagegen.core.gpu import Gpu
from imagegen.core.text import counted

_MODULE = re.compile(r"\.(abi3|cpython-\d+[a-z]*-[^.]+)\.so$")
_WORDS = re.compile(r"[^0-9A-Za-z]+")
_TORCH = re.compile(r"lib(torch|c10)(_\w+)?\.so")
_VARIANT = re.compile(r"(sm|compute|arch|cuda|cu|cp|py)[_-]?\d+[a-z]?")  # a folder for one build of a module
_FOR_CUDA = re.compile(r"(?<=cuda)\d+|(?<=cu)\d+")  # in a name: libbitsandbytes_cuda128.so
_MB = 1_000_000
_HEAVY = 100 * _MB  # of one package; less gets no line of its own
_FEW = 0.05  # of a library's containers: with so few it is of no use. NVIDIA's own have at least a seventh
_SLOW = 1 * _MB  # of PTX; the driver compiles less in no time
_SHOWN = 12  # lines of details


@dataclass(frozen=True)
class Use:
    """The numbers of a library's containers that run natively, by PTX or not on one GPU."""

    native: int = 0  # run by machine code
    compiled: int = 0  # after the driver has compiled their PTX
    refused: int = 0  # have PTX that fits, but is too new for the promised driver
    nothing: int = 0
    isa: Isa | None = None  # the newest PTX that the driver must compile for it

    @property
    def usable(self) -> int:
        return self.native + self.compiled

    @property
    def count(self) -> int:
        return self.usable + self.refused + self.nothing


@dataclass
class _Notes:
    """Notes of one kind about one package, with the GPUs and a line for each library."""

    gpus: dict[str, int] = field(default_factory=dict)  # name -> number of its architecture
    lines: dict[str, str] = field(default_factory=dict)  # path -> its description

    def add(self, path: str, gpus: Iterable[Gpu], description: str) -> None:
        """Note the description of a library on these GPUs, if there are any."""
        if numbers := {gpu.name: arch(gpu.capability) for gpu in gpus}:
            self.gpus |= numbers
            self.lines[path] = f"{', '.join(numbers)}: {description}"

    def finding(self, severity: Severity, id_: str, package: Package, evidence: str, *hints: str) -> Finding:
        only = next(iter(self.lines)) if len(self.lines) == 1 else None
        lines = [f"{path}: {line}" for path, line in self.lines.items()]
        return Finding(severity, id_, str(package), only, evidence, (*few(lines, _SHOWN), *hints))

    def __str__(self) -> str:
        return ", ".join(sorted(self.gpus, key=self.gpus.__getitem__))


def check(subject: Subject) -> Iterator[Finding]:
    """Yield findings about GPU code that does not run, or only after compiling, on the subject's GPUs."""
    if not subject.gpus:
        return
    newest = compiled_by(subject.driver) if subject.driver else None
    needed = frozenset[str]().union(*(package.needed for package in subject.packages))
    for package in subject.packages:
        libraries = {
            path: file
            for path, file in package.binaries.items()
            if file.code and _is_library(path, file) and not for_another_python(path, subject.python)
        }
        if libraries:
            yield from _Judge(package, libraries, subject, newest, needed).findings()
    yield from _dead_weight(subject)


class _Judge:
    """One package's libraries on each GPU."""

    def __init__(
        self,
        package: Package,
        libraries: Mapping[str, File],
        subject: Subject,
        newest: Isa | None,
        needed: frozenset[str],
    ) -> None:
        self.package = package
        self.needed = needed  # names of libraries that others link to
        self.libraries = dict(sorted(libraries.items()))
        self.gpus = subject.gpus
        self.driver = subject.driver
        self.uses = {
            path: {gpu.name: use(file.code, gpu, newest) for gpu in subject.gpus}
            for path, file in self.libraries.items()
        }
        self.builds: dict[tuple[str, str], list[str]] = defaultdict(list)
        for path in self.libraries:
            self.builds[build_of(path)].append(path)

    def findings(self) -> Iterator[Finding]:
        yield from self._missing()
        yield from self._refused()
        yield from self._compiled()
        yield from self._partial()

    def _missing(self) -> Iterator[Finding]:
        """Yield findings about libraries with no code for a GPU; errors if they are loaded and it is not by design."""
        loaded, missing, gated, useless = _Notes(), _Notes(), _Notes(), _Notes()
        for path, file in self.libraries.items():
            lacking = [gpu for gpu, use in self._uses(path) if use.usable + use.refused == 0]
            if not lacking:
                continue
            targets = _targets(file)
            holds = f"holds {', '.join(map(str, targets))}"
            served = [gpu for gpu in lacking if any(use[gpu.name].usable for use in self.uses.values())]
            for_others = _rule("gated", path) is not None
            if _says_for_what(path, targets):
                gated.add(path, lacking, holds)
            elif for_others or all(target.variant for target in targets):
                gated.add(path, served, holds)
                unserved = useless if for_others else loaded if self._is_loaded(path, file) else missing
                unserved.add(path, [gpu for gpu in lacking if gpu not in served], holds)
            else:
                (loaded if self._is_loaded(path, file) else missing).add(path, lacking, holds)
        for severity, notes in ((Severity.ERROR, loaded), (Severity.WARNING, missing)):
            if notes.lines:
                evidence = f"no code that runs on {notes}"
                hints = first_builds(self.package.name, [gpu for gpu in self.gpus if gpu.name in notes.gpus])
                yield notes.finding(severity, "gpu-code-missing", self.package, evidence, *hints)
        if useless.lines:
            evidence = f"is made for other GPUs than {useless}, and nothing else of the package runs there"
            yield useless.finding(Severity.WARNING, "gpu-code-gated", self.package, evidence, *_reasons(useless.lines))
        if gated.lines:
            evidence = f"is made for other GPUs than {gated}"
            yield gated.finding(Severity.INFO, "gpu-code-gated", self.package, evidence, *_reasons(gated.lines))

    def _refused(self) -> Iterator[Finding]:
        """Yield findings about PTX that the promised driver does not compile, which is CUDA's error 222 at run time."""
        whole, part = _Notes(), _Notes()
        floor: Isa = (0, 0)
        for path, file in self.libraries.items():
            gpus = [gpu for gpu, use in self._uses(path) if use.refused > 0]
            stops = [gpu for gpu in gpus if self._is_loaded(path, file) and self._stops(path, gpu)]
            for notes, affected in ((whole, stops), (part, [gpu for gpu in gpus if gpu not in stops])):
                if affected:
                    worst = max((self.uses[path][gpu.name] for gpu in affected), key=lambda use: use.refused)
                    needed = self._newest(path, affected)
                    floor = max(floor, needed)
                    description = (
                        f"{worst.refused} of {worst.count} containers have only PTX of up to {_dotted(needed)}"
                    )
                    notes.add(path, affected, description)
        for severity, notes in ((Severity.ERROR, whole), (Severity.WARNING, part)):
            if notes.lines:
                evidence = f"driver {self.driver} cannot compile its PTX for {notes}: that takes {_floor(floor)}"
                yield notes.finding(severity, "ptx-too-new", self.package, evidence)

    def _stops(self, path: str, gpu: Gpu) -> bool:
        """Return whether neither a library nor a replacement for it in the package runs on a GPU."""
        replacements = [other for other in self.uses if _replaces(other, path)]
        return not any(self.uses[candidate][gpu.name].usable for candidate in (path, *replacements))

    def _compiled(self) -> Iterator[Finding]:
        """Yield a finding about libraries that run only by PTX. A few kB of PTX are compiled at once."""
        notes = _Notes()
        floor: Isa = (0, 0)
        size = 0
        for path in self.libraries:
            if gpus := [gpu for gpu, use in self._uses(path) if not use.native and use.compiled > 0]:
                needed = self._newest(path, gpus)
                floor = max(floor, needed)
                count = self.uses[path][gpus[0].name].compiled
                size += _ptx_size(self.libraries[path])
                notes.add(path, gpus, f"{counted(count, 'container')}, PTX of up to {_dotted(needed)}")
        if notes.lines:
            evidence = f"runs on {notes} only after the driver has compiled it, which takes {_floor(floor)}"
            severity = Severity.WARNING if size >= _SLOW else Severity.INFO
            yield notes.finding(severity, "ptx-only", self.package, evidence)

    def _partial(self) -> Iterator[Finding]:
        """Yield findings about libraries that partly have no code for a GPU; warnings if it is nearly all of it."""
        some, most = _Notes(), _Notes()
        for path in self.libraries:
            gpus = [gpu for gpu, use in self._uses(path) if use.usable > 0 and use.nothing > 0]
            scarce = [gpu for gpu in gpus if is_useless(self.uses[path][gpu.name])]
            for notes, affected in ((most, scarce), (some, [gpu for gpu in gpus if gpu not in scarce])):
                nothing = ", ".join(str(self.uses[path][gpu.name].nothing) for gpu in affected)
                notes.add(
                    path, affected, f"{nothing} of {sum(group.count for group in self.libraries[path].code)} containers"
                )
        for severity, notes, how_many in ((Severity.WARNING, most, "nearly all"), (Severity.INFO, some, "some")):
            if notes.lines:
                evidence = f"{how_many} of its containers hold nothing for {notes}"
                yield notes.finding(severity, "gpu-code-partial", self.package, evidence)

    def _uses(self, path: str) -> list[tuple[Gpu, Use]]:
        """Return the GPUs with their use of a library, without GPUs on which another build of it does better."""
        other_builds = [self.uses[other] for other in self.builds[build_of(path)] if other != path]
        return [
            (gpu, use)
            for gpu in self.gpus
            if (use := self.uses[path][gpu.name])
            and not any(
                other[gpu.name].native > use.native or other[gpu.name].usable > use.usable for other in other_builds
            )
        ]

    def _is_loaded(self, path: str, file: File) -> bool:
        return file.elf is not None and is_loaded(path, file.elf, self.needed)

    def _newest(self, path: str, gpus: Iterable[Gpu]) -> Isa:
        return max(self.uses[path][gpu.name].isa or (0, 0) for gpu in gpus)


def is_loaded(path: str, elf: Elf, needed: Collection[str]) -> bool:
    """Return whether importing a module, or loading an operator library of torch, or of another library loads it.

    `needed` are the names of libraries that others link to.
    """
    name = path.rpartition("/")[2]
    if _MODULE.search(name) or name in needed or (elf.soname or name) in needed:
        return True
    return any(_TORCH.match(needed_name) for needed_name in elf.needed) or is_module(elf.exported)


def is_essential(path: str) -> bool:
    """Return whether a package does not work on a GPU for which its library at the path has no code."""
    return _rule("essential", path) is not None


def is_useless(use: Use) -> bool:
    """Return whether too little of a library runs on a GPU for it to be of use there."""
    return use.usable < use.count * _FEW


def use(code: Iterable[CodeGroup], gpu: Gpu, driver_isa: Isa | None) -> Use:
    """Return how containers of one library run on a GPU whose driver compiles PTX up to `driver_isa` (None: all)."""
    counts: Counter[str] = Counter()
    newest: Isa | None = None
    for group in code:
        verdict: str = runs(group.targets, gpu.capability)
        if verdict == "ptx":
            needed = isa_needed(group.targets, gpu.capability)
            newest = max(filter(None, (newest, needed)), default=None)
            if runs(group.targets, gpu.capability, driver_isa) == "no":
                verdict = "refused"
        counts[verdict] += group.count
    return Use(counts["sass"], counts["ptx"], counts["refused"], counts["no"], newest)


def first_builds(package: str, gpus: Iterable[Gpu]) -> Iterator[str]:
    """Yield a line for each known first release with code for a GPU."""
    for gpu in gpus:
        for entry in data("gpu")["first_builds"]:
            if entry["package"] == package and gpu.capability in entry["gpus"]:
                if first := entry.get("first"):
                    yield f"{gpu.name}: {package} {first} is the first on PyPI with code for it"
                else:
                    yield f"{gpu.name}: no {package} on PyPI up to {entry['listed']} has code for it"


def _dead_weight(subject: Subject) -> Iterator[Finding]:
    """Yield findings about GPU code that the promised GPUs do not run, in total and by package."""
    whole = _Weight()
    for package in (package for package in subject.packages if package.code_sizes):
        weight = _weigh(package, subject.gpus)
        whole.total += weight.total
        whole.nowhere += weight.nowhere
        whole.dead.update(weight.dead)
        useless = weight.total >= _HEAVY and weight.total in weight.dead.values()
        if useless or weight.nowhere >= _HEAVY:
            yield Finding(Severity.INFO, "dead-weight", str(package), None, str(weight))
    if any(whole.dead.values()):
        yield Finding(Severity.INFO, "dead-weight", "", None, str(whole))


@dataclass
class _Weight:
    """Bytes of GPU code in total, bytes that a GPU does not run by the GPU's name, and bytes that no GPU runs."""

    total: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    nowhere: int = 0

    def __str__(self) -> str:
        unused = "".join(f", not for {name}: {_mb(size)}" for name, size in self.dead.items())
        nowhere = f", for none of them: {_mb(self.nowhere)}" if len(self.dead) > 1 else ""
        return f"of {_mb(self.total)} of GPU code{unused}{nowhere}"


def _weigh(package: Package, gpus: tuple[Gpu, ...]) -> _Weight:
    sizes = package.code_sizes
    weight = _Weight(sum(sizes.values()), Counter({gpu.name: 0 for gpu in gpus}))
    for target, size in sizes.items():
        unusable = [gpu.name for gpu in gpus if runs((target,), gpu.capability) == "no"]
        weight.dead.update(dict.fromkeys(unusable, size))
        weight.nowhere += size if len(unusable) == len(gpus) else 0
    return weight


def _is_library(path: str, file: File) -> bool:
    """Return whether the file is a library that contains its own kernels."""
    return file.elf is not None and file.elf.machine != CUDA and _rule("hidden", path) is None


@lru_cache(1 << 14)  # asked for each GPU
def build_of(path: str) -> tuple[str, str]:
    """Return the common part of the paths of one module's builds: sm90/ops.abi3.so, sm100/ops.abi3.so; ops_cu12.so."""
    module_path = PurePosixPath(path)
    folder = module_path.parent.parent if _VARIANT.fullmatch(module_path.parent.name) else module_path.parent
    return str(folder), _FOR_CUDA.sub("", module_path.name.partition(".")[0])


def cuda_of_build(path: str) -> str:
    """Return the CUDA release in the name of a library that is built for one ("12.6", or "12"); "" without one."""
    match = _FOR_CUDA.search(path.rpartition("/")[2].partition(".")[0])
    return f"{match[0][:2]}.{match[0][2:]}".rstrip(".") if match and 2 <= len(match[0]) <= 3 else ""


def _reasons(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(reason for path in paths if (reason := _rule("gated", path))))


@cache
def _rule(kind: str, path: str) -> str | None:
    """Return why a library is of this kind, if the data have a rule. "gated" libraries are only for some GPUs."""
    for entry in data("gpu")[kind]:
        if _matches(path, entry["paths"]):
            return str(entry["because"])
    return None


@cache
def _replaces(other: str, path: str) -> bool:
    """Return whether the data say that a package uses the library `other` instead of the one at `path`."""
    return any(_matches(path, entry["paths"]) and _matches(other, entry["by"]) for entry in data("gpu")["replaced"])


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _ptx_size(file: File) -> int:
    pairs = (pair for group in file.code for pair in zip(group.targets, group.sizes, strict=True))
    return sum(size for target, size in pairs if target.kind == "ptx")


def _targets(file: File) -> list[CodeTarget]:
    targets = {target for group in file.code for target in group.targets}
    return sorted(
        targets, key=lambda target: (target.kind != "sass", target.arch, target.variant, target.isa or (0, 0))
    )


def _says_for_what(path: str, targets: Iterable[CodeTarget]) -> bool:
    """Return whether a library is named after its architecture: _C_cutlass_90a.abi3.so, libops_sm100.so."""
    words = _WORDS.split(path.rpartition("/")[2])
    return not {f"{mark}{target.arch}{target.variant}" for target in targets for mark in ("", "sm")}.isdisjoint(words)


def _dotted(isa: Isa) -> str:
    return f"{isa[0]}.{isa[1]}"


def _floor(isa: Isa) -> str:
    release = driver_floor(isa)
    return f"driver {release[1]} (CUDA {release[0]})" if release else f"a driver that knows PTX {_dotted(isa)}"


def _mb(size: int) -> str:
    return f"{size / _MB:,.0f} MB"
