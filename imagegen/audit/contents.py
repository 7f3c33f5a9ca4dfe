"""Check the contents of packages: extension modules, a torch for the GPUs, files with one owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.audit import tags
from imagegen.audit.elf import CUDA
from imagegen.audit.model import File, Finding, Package, Severity, Subject
from imagegen.audit.ownership import clashes
from imagegen.audit.shipped import data
from imagegen.audit.wording import few

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
    """Packages built without the extension modules that they are for."""
    if subject.cuda is False:
        return
    for package in subject.packages:
        rule = _extension_rules().get(package.name)
        if rule is None or not package.files or not _within(package.version, rule.get("versions", "")):
            continue
        there = {_stem(path) for path in package.files if _is_library(path)}
        missing = [name for name in rule.get("all", ()) if name not in there]
        if rule.get("any") and not there.intersection(rule["any"]):
            missing.append(" or ".join(rule["any"]))
        if missing:
            evidence = f"has no extension module {', '.join(missing)}"
            yield Finding(
                Severity.ERROR, "extension-missing", str(package), None, evidence, (rule["because"], rule["fix"])
            )


def _native_code(subject: Subject) -> Iterator[Finding]:
    """Wheels whose tags promise compiled code that is not there, or hide what is."""
    for package in subject.packages:
        native = [path for path, file in package.files.items() if _is_native(file)]
        compiled = _has_modules(package) and tags.promise_modules(package.tags) and not _gave_away(package, subject)
        if compiled and not native:
            evidence = f"its tag {package.tags[0]} is that of compiled code, and there is none in it"
            yield Finding(Severity.WARNING, "native-code-missing", str(package), None, evidence)
        elif native and tags.promise_none(package.tags):
            evidence = f"its tag {package.tags[0]} is that of Python alone, and it holds {len(native)} ELF files"
            yield Finding(Severity.INFO, "native-code-untagged", str(package), native[0], evidence)


def _torch(subject: Subject) -> Iterator[Finding]:
    """A torch without CUDA where GPUs are promised, or one with CUDA where none are."""
    wanted = bool(subject.gpus) if subject.cuda is None else subject.cuda
    for package in subject.packages:
        if package.name != "torch" or not package.files:
            continue
        folders = (path.rpartition("/") for path in package.files)
        libraries = {name for folder, _, name in folders if f"/{folder}".endswith("/torch/lib")}
        has_cuda = "libtorch_cuda.so" in libraries
        built = "ROCm" if "libtorch_hip.so" in libraries else "CPUs alone"
        if wanted and libraries and not has_cuda:
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
        found = [
            installed[name]
            for name in rule["packages"]
            if name in installed and _within(installed[name].version, versions.get(name, ""))
        ]
        if len(found) > 1:
            first, *others = (str(package) for package in found)
            evidence = f"beside {', '.join(others)}: {rule['because']}"
            yield Finding(Severity(rule["severity"]), "name-confusion", first, None, evidence, (rule["fix"],))


def _clashes(subject: Subject) -> Iterator[Finding]:
    """Yield paths that two packages install with different contents, after file-conflict overrides are applied."""
    contents = {
        str(package): {path: _identity(file) for path, file in package.files.items() if file.sha256 is not None}
        for package in subject.packages
    }
    for (one, two, why), paths in sorted(clashes(contents).items()):
        code = [path for path in sorted(paths) if _is_code(path)]
        shown = code or sorted(paths)
        severity = Severity.ERROR if code else Severity.WARNING
        more = f" ({len(paths)} paths, {len(code)} of them code)" if len(paths) > 1 else ""
        yield Finding(severity, "file-clash", one, shown[0], f"and {two}: {why}{more}", few(shown, _SHOWN))


def _imports(subject: Subject) -> Iterator[Finding]:
    """Yield findings about modules that the matrix declares for a package and that no package installs."""
    promised = {package.name: (*package.imports, *package.entry_points) for package in subject.packages}
    wanted = {name.replace(".", "/") for names in promised.values() for name in names}
    if not wanted:
        return
    there = set(_modules(subject.packages, {path.partition("/")[0] for path in wanted}))
    for package in subject.packages:
        missing = [name for name in promised[package.name] if name.replace(".", "/") not in there]
        if missing and package.files:
            evidence = f"has no module {', '.join(missing)}, and neither has another package"
            yield Finding(Severity.ERROR, "import-missing", str(package), None, evidence)


def _modules(packages: Iterable[Package], tops: set[str]) -> Iterator[str]:
    """Modules and packages, with slashes for dots, that lie under the top-level names; folders count as packages."""
    for package in packages:
        for path in package.files:
            if path.partition("/")[0].partition(".")[0] not in tops:
                continue
            folder, _, _ = path.rpartition("/")
            if path.endswith(".py") or _is_library(path):
                yield f"{folder}/{_stem(path)}" if folder else _stem(path)
            while folder:
                yield folder
                folder, _, _ = folder.rpartition("/")


def _is_native(file: File) -> bool:
    """Return whether it is the processor's code, or might be."""
    return file.unreadable is not None or (file.elf is not None and file.elf.machine != CUDA)


def _has_modules(package: Package) -> bool:
    return any(path.endswith(".py") and ".dist-info/" not in path for path in package.files)


def _gave_away(package: Package, subject: Subject) -> bool:
    """Return whether a file-conflict override leaves out libraries in the package's folders."""
    folders = {path.partition("/")[0] for path in package.files}
    return any(_is_library(path) and path.partition("/")[0] in folders for path in subject.excused)


def _identity(file: File) -> str:
    return f"{file.sha256} {'x' if file.executable else '-'}"


def _is_code(path: str) -> bool:
    """Return whether the file at this path can be imported or loaded."""
    return (path.endswith(".py") or _is_library(path)) and path.partition("/")[0] not in _LEFT_BEHIND


def _is_library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".so") or ".so." in name


def _stem(path: str) -> str:
    """The name of a file up to the first dot: a module's name, whatever interpreter it is for."""
    return path.rpartition("/")[2].partition(".")[0]


def _within(version: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except ValueError:
        return not specifier


@cache
def _extension_rules() -> Mapping[str, Any]:
    """Package -> the modules that it must have."""
    rules = data("extensions")
    return {name: rule for key, rule in rules.items() for name in (key, *rule.get("also", ()))}
