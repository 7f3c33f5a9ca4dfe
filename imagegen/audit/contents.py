"""Check the contents of packages: extension modules, a torch for the GPUs, files with one owner."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.message import Message
from functools import cache
from typing import Any, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.audit import tags
from imagegen.audit.catalogue import Single, cuda_major, data, is_driver, singles
from imagegen.audit.closure import How, Library, Loader
from imagegen.audit.model import CUDA, File, Finding, Licence, Package, Severity, Subject, few

_SHOWN = 12  # lines of details
# Top-level modules that builds leave behind and no program imports: overwriting them breaks nothing.
_LEFT_BEHIND = {"benchmark", "benchmarks", "build_backend.py", "doc", "docs", "example", "examples", "scripts"}
_LEFT_BEHIND |= {"setup.py", "test", "tests", "tools"}


def check(subject: Subject) -> Iterator[Finding]:
    """Yield findings about missing, duplicate and foreign contents of packages."""
    yield from _extensions(subject)
    yield from _native_code(subject)
    yield from _torch(subject)
    yield from _names(subject)
    yield from _clashes(subject)
    yield from _imports(subject)
    yield from tags.check(subject)


def _extensions(subject: Subject) -> Iterator[Finding]:
    """Yield findings about packages that were built without their extension modules."""
    if subject.cuda is False:
        return
    for package in subject.packages:
        rule = _extension_rules().get(package.name)
        if rule is None or not package.files or not _within(package.version, rule.get("versions", "")):
            continue
        modules = {_stem(path) for path in package.files if _is_library(path)}
        missing = [name for name in rule.get("all", ()) if name not in modules]
        if rule.get("any") and not modules.intersection(rule["any"]):
            missing.append(" or ".join(rule["any"]))
        if missing:
            evidence = f"has no extension module {', '.join(missing)}"
            yield Finding(
                Severity.ERROR, "extension-missing", str(package), None, evidence, (rule["because"], rule["fix"])
            )


def _native_code(subject: Subject) -> Iterator[Finding]:
    """Yield findings about wheels whose tags promise missing compiled code, or hide existing compiled code."""
    for package in subject.packages:
        native = [path for path, file in package.binaries.items() if _is_native(file)]
        if not native:
            if _has_modules(package) and tags.promise_modules(package.tags) and not _gave_away(package, subject):
                evidence = f"its tag {package.tags[0]} promises compiled code, and the wheel has none"
                yield Finding(Severity.WARNING, "native-code-missing", str(package), None, evidence)
        elif tags.promise_none(package.tags):
            evidence = f"its tag {package.tags[0]} promises only Python, and the wheel has {len(native)} ELF files"
            yield Finding(Severity.INFO, "native-code-untagged", str(package), native[0], evidence)


def _torch(subject: Subject) -> Iterator[Finding]:
    """Yield findings about a torch without CUDA if GPUs are promised, or with CUDA if none are."""
    required = bool(subject.gpus) if subject.cuda is None else subject.cuda
    for package in subject.packages:
        if package.name != "torch" or not package.files:
            continue
        folders = (path.rpartition("/") for path in package.files)
        libraries = {name for folder, _, name in folders if f"/{folder}".endswith("/torch/lib")}
        has_cuda = "libtorch_cuda.so" in libraries
        built = "ROCm" if "libtorch_hip.so" in libraries else "CPUs only"
        if required and libraries and not has_cuda:
            evidence = f"is built for {built}: torch/lib/libtorch_cuda.so is missing"
            yield Finding(Severity.ERROR, "torch-without-cuda", str(package), None, evidence)
        elif subject.cuda is False and has_cuda:
            size = sum(file.size for file in package.files.values())
            evidence = f"is built for CUDA, and this is for CPUs: {size / 1_000_000:,.0f} MB"
            yield Finding(Severity.WARNING, "torch-with-cuda", str(package), None, evidence)


def _names(subject: Subject) -> Iterator[Finding]:
    """Yield findings about packages that are another project than their name suggests, and about incompatible pairs."""
    installed = {package.name: package for package in subject.packages}
    for rule in data("names")["mistaken"]:
        package = installed.get(rule["package"])
        if package and _within(package.version, rule["versions"]):
            severity = Severity(rule["severity"])
            yield Finding(severity, "name-confusion", str(package), None, rule["because"], (rule["fix"],))
    for rule in data("names")["alone"]:
        versions = rule.get("versions", {})
        present = [
            installed[name]
            for name in rule["packages"]
            if name in installed and _within(installed[name].version, versions.get(name, ""))
        ]
        if len(present) > 1:
            first, *conflicting = (str(package) for package in present)
            evidence = f"with {', '.join(conflicting)}: {rule['because']}"
            yield Finding(Severity(rule["severity"]), "name-confusion", first, None, evidence, (rule["fix"],))


def _clashes(subject: Subject) -> Iterator[Finding]:
    """Yield paths that two packages install with different contents, after file-conflict overrides are applied."""
    tops = Counter(top for package in subject.packages for top in package.tops)
    contents = {
        str(package): {
            path: (file.sha256, file.executable)
            for path, file in package.files.items()
            if tops[path.partition("/")[0]] > 1 and file.sha256 is not None
        }
        for package in subject.packages
        if any(tops[top] > 1 for top in package.tops)
    }
    for (first, second, why), paths in sorted(clashes(contents).items()):
        code = [path for path in sorted(paths) if _is_code(path)]
        shown = code or sorted(paths)
        severity = Severity.ERROR if code else Severity.WARNING
        count = f" ({len(paths)} paths, {len(code)} of them code)" if len(paths) > 1 else ""
        yield Finding(severity, "file-clash", first, shown[0], f"and {second}: {why}{count}", few(shown, _SHOWN))


def _imports(subject: Subject) -> Iterator[Finding]:
    """Yield findings about modules that the matrix declares for a package and that no package installs."""
    promised = {
        package.name: [
            name
            for name in (*package.imports, *package.entry_points)
            if not any(_has_source(candidate, name) for candidate in (package, *subject.packages))
        ]
        for package in subject.packages
    }
    required = {name.replace(".", "/") for names in promised.values() for name in names}
    if not required:
        return
    modules = _modules(subject.packages, {path.partition("/")[0] for path in required})
    for package in subject.packages:
        missing = [name for name in promised[package.name] if name.replace(".", "/") not in modules]
        if missing and package.files:
            evidence = f"has no module {', '.join(missing)}, and neither has another package"
            yield Finding(Severity.ERROR, "import-missing", str(package), None, evidence)


def _has_source(package: Package, module: str) -> bool:
    """Return whether the package has the module as a Python file. It saves most calls of `_modules`."""
    path = module.replace(".", "/")
    return f"{path}/__init__.py" in package.files or f"{path}.py" in package.files


def _modules(packages: Iterable[Package], tops: set[str]) -> set[str]:
    """Return modules and packages below the top-level names, with slashes for dots; folders count as packages."""
    modules: set[str] = set()
    for package in packages:
        own_tops = {top for top in package.tops if top.partition(".")[0] in tops}
        for path in package.files if own_tops else ():
            if path.partition("/")[0] not in own_tops:
                continue
            folder, _, _ = path.rpartition("/")
            if path.endswith(".py") or _is_library(path):
                modules.add(f"{folder}/{_stem(path)}" if folder else _stem(path))
            while folder and folder not in modules:  # the folders above one that was found are found too
                modules.add(folder)
                folder, _, _ = folder.rpartition("/")
    return modules


def _is_native(file: File) -> bool:
    """Return whether the file holds, or may hold, code for the processor."""
    return file.unreadable is not None or (file.elf is not None and file.elf.machine != CUDA)


def _has_modules(package: Package) -> bool:
    return any(path.endswith(".py") and ".dist-info/" not in path for path in package.files)


def _gave_away(package: Package, subject: Subject) -> bool:
    """Return whether a file-conflict override leaves out libraries in the package's folders."""
    return any(_is_library(path) and path.partition("/")[0] in package.tops for path in subject.excused)


def _is_code(path: str) -> bool:
    """Return whether the file at this path can be imported or loaded."""
    return (path.endswith(".py") or _is_library(path)) and path.partition("/")[0] not in _LEFT_BEHIND


def _is_library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name


def _stem(path: str) -> str:
    """Return the name of a file up to the first dot, which is a module's name for any interpreter."""
    return path.rpartition("/")[2].partition(".")[0]


def _within(version: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except ValueError:
        return not specifier


@cache
def _extension_rules() -> Mapping[str, Any]:
    """Return the rule about required modules of each package."""
    rules = data("extensions")
    return {name: rule for key, rule in rules.items() for name in (key, *rule.get("also", ()))}


# File ownership: paths that two packages install and only one can have.

Clash = tuple[str, str, str]  # two packages, and the kind of their conflict
Identity = TypeVar("Identity")  # of a file; equal identities mean the same bytes and mode
CONTENTS = "both install it, with different contents"
DIRECTORY = "the one installs a file where the other installs a directory"
BYTE_CODE = "the one brings byte-code for the other's source"


def clashes(
    contents: Mapping[str, Mapping[str, Identity]], byte_code: Callable[[str], str] | None = None
) -> dict[Clash, list[str]]:
    """Return the pairs of packages that install conflicting files, with the paths.

    `contents` maps packages to paths to the identities of files. `byte_code` returns the path of a source's byte-code
    in a directory __pycache__; pass it only for packages that bring no byte-code of their own. A file at that path,
    below it, or instead of its directory is a clash.
    """
    owners: dict[str, str] = {}  # path -> the first package that has it
    directories: dict[str, str] = {}  # path -> the first package that has a file below
    paths_by_clash: dict[Clash, list[str]] = {}
    for name, identities in contents.items():
        shared = {path: owners[path] for path in owners.keys() & identities.keys()}
        for path, first in shared.items():
            if contents[first][path] != identities[path]:
                paths_by_clash.setdefault((first, name, CONTENTS), []).append(path)
        owners |= dict.fromkeys(identities, name) | shared
        for directory in _directories(identities):
            directories.setdefault(directory, name)
    for path in directories.keys() & owners.keys():
        paths_by_clash.setdefault((owners[path], directories[path], DIRECTORY), []).append(path)
    if byte_code and any("__pycache__" in path for path in owners):
        for clash, path in _byte_code_clashes(owners, directories, byte_code):
            paths_by_clash.setdefault(clash, []).append(path)
    return paths_by_clash


def _directories(paths: Iterable[str]) -> set[str]:
    """Return all directories above the paths."""
    directories: set[str] = set()
    above = {path.rpartition("/")[0] for path in paths}
    while above := above - directories - {""}:
        directories |= above
        above = {path.rpartition("/")[0] for path in above}
    return directories


def _byte_code_clashes(
    owners: Mapping[str, str], directories: Mapping[str, str], byte_code: Callable[[str], str]
) -> Iterator[tuple[Clash, str]]:
    for path, name in owners.items():
        if not path.endswith(".py"):
            continue
        compiled = byte_code(path)
        directory = compiled.rpartition("/")[0]
        if compiled in owners:  # it would run instead of the source
            yield (owners[compiled], name, BYTE_CODE), compiled
        if directory in owners:
            yield (owners[directory], name, DIRECTORY), directory
        if compiled in directories:
            yield (name, directories[compiled], DIRECTORY), compiled


def parents(path: str) -> Iterator[str]:
    """Yield the directories above a path, nearest first, without the root."""
    while path := path.rpartition("/")[0]:
        yield path


# Libraries that get into each other's way: two of one kind in a process, and stand-ins for the driver's.

_LIBRARIES_SHOWN = 20  # lines of one finding
_STUBS, _COMPAT = "stubs", "compat"  # directories of a CUDA toolkit, as NVIDIA lays it out


def rivals(loader: Loader) -> Iterator[Finding]:
    for single in singles():
        yield from _several(loader, single)
    yield from _majors(loader)
    yield from _drivers(loader)


def _several(loader: Loader, single: Single) -> Iterator[Finding]:
    """Yield findings about one kind of library in several directories."""
    libraries = dict.fromkeys([*loader.libraries, *loader.system.values()])
    by_directory: dict[str, Library] = {}
    for library in libraries:
        name = library.elf.soname or library.name
        if re.fullmatch(single.pattern, name):
            by_directory.setdefault(posixpath.dirname(library.path), library)
    if len(by_directory) < 2:
        return
    described = [f"{directory} ({library.package or library.name})" for directory, library in by_directory.items()]
    choices: dict[str, None] = {}
    for requester in loader.libraries:
        for name in requester.elf.needed:
            if re.fullmatch(single.pattern, name) and (taker := loader.find(requester, name).library):
                choices[f"{requester.package} takes {name} from {posixpath.dirname(taker.path)}"] = None
    evidence = f"{single.name} lies in {len(by_directory)} places: {', '.join(described)}"
    yield Finding(Severity.WARNING, "several-libraries", "", None, evidence, tuple(choices)[:_LIBRARIES_SHOWN])


def _majors(loader: Loader) -> Iterator[Finding]:
    """Yield a finding if one process loads two major versions of CUDA."""
    requested: dict[int, dict[str, str]] = {}
    for library in loader.libraries:
        majors = {name: stem_and_major[1] for name in library.elf.needed if (stem_and_major := cuda_major(name))}
        if not majors or not loader.imported(library):
            continue
        for name, major in majors.items():
            if loader.find(library, name).library:
                requested.setdefault(major, {}).setdefault(name, f"{library.package}: {library.path}")
    if len(requested) > 1:
        names = [min(requested[major]) for major in sorted(requested)]
        details = [
            f"{name}: {requester}"
            for major in sorted(requested)
            for name, requester in sorted(requested[major].items())
        ]
        evidence = f"one process loads {' and '.join(names)}"
        yield Finding(Severity.WARNING, "cuda-majors-mixed", "", None, evidence, tuple(details[:_LIBRARIES_SHOWN]))


def _drivers(loader: Loader) -> Iterator[Finding]:
    """Yield findings about files that the loader would use instead of the host's driver."""
    paths_by_kind: dict[tuple[Severity, str, str], dict[str, str]] = {}
    for name, library in sorted(loader.system.items()):
        if is_driver(name):
            paths_by_kind.setdefault(_stand_in(library, loader.forced(name)), {})[name] = library.path
    for (severity, id_, description), paths in paths_by_kind.items():
        name, path = next(iter(paths.items()))
        evidence = f"{name}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {description}"
        yield Finding(severity, id_, "", path, evidence, tuple(paths.values())[:_LIBRARIES_SHOWN])
    led: dict[Library, dict[str, None]] = {}
    for requester in loader.libraries:
        for name in requester.elf.needed:
            resolution = loader.find(requester, name)
            if is_driver(name) and resolution.how is How.PATH and resolution.library and resolution.library.package:
                led.setdefault(resolution.library, {})[requester.path] = None
    for library, askers in led.items():
        id_ = "driver-stub" if _STUBS in posixpath.dirname(library.path).split("/") else "driver-in-image"
        evidence = f"{next(iter(askers))} finds it by its own path, instead of the host's"
        yield Finding(Severity.ERROR, id_, library.package, library.path, evidence, tuple(askers)[:_LIBRARIES_SHOWN])


def _stand_in(library: Library, forced: bool) -> tuple[Severity, str, str]:
    """Return (severity, id, description) of a system library that has the name of a driver library."""
    folders = posixpath.dirname(library.path).split("/")
    lookup = "LD_LIBRARY_PATH leads to it" if forced else "the loader finds it"
    if _STUBS in folders:
        return Severity.ERROR if forced else Severity.WARNING, "driver-stub", f"the toolkit's stub, and {lookup}"
    if _COMPAT in folders:
        return Severity.WARNING, "cuda-compat", f"of cuda-compat, and {lookup}"
    return Severity.INFO, "driver-in-image", "a driver's, right on a host and wrong in an image"


# The licence that a distribution's metadata states. Source: "Core metadata specifications" of packaging.python.org.
#
# Three fields state it, from three ages: License-Expression (an SPDX expression), License (free text), and classifiers.

_ABOVE = "License :: "
_LONGEST = 64 << 10  # characters of one field; the GPL has half as many
_MOST = 20  # classifiers


def stated(metadata: Message) -> Licence:
    """Return the licence fields of METADATA; a missing field is None, as is the placeholder word of tools."""
    classifiers = (" ".join(str(value).split()) for value in metadata.get_all("Classifier", ()))
    return Licence(
        " ".join(_field(metadata, "License-Expression").split()) or None,
        _field(metadata, "License") or None,
        tuple(sorted({classifier.removeprefix(_ABOVE) for classifier in classifiers if classifier.startswith(_ABOVE)}))[
            :_MOST
        ],
    )


def _field(metadata: Message, name: str) -> str:
    """Return a field of one or many lines, without the indentation that tools give to later lines."""
    value = str(metadata.get(name, ""))[:_LONGEST]
    lines = [line.strip().removeprefix("|").strip() for line in value.splitlines()]
    text = "\n".join(lines).strip()
    return "" if text.upper() == "UNKNOWN" else text
