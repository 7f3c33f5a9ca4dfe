"""Check the contents of packages: extension modules, a torch for the GPUs, files with one owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.audit import tags
from imagegen.audit.catalogue import data
from imagegen.audit.lists import few
from imagegen.audit.model import CUDA, File, Finding, Package, Severity, Subject
from imagegen.audit.ownership import clashes

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
        if rule is None or not package.files or not satisfies(package.version, rule.get("versions", "")):
            continue
        modules = {_stem(path) for path in package.files if _is_library(path)}
        missing = [name for name in rule.get("all", ()) if name not in modules]
        if rule.get("any") and not modules.intersection(rule["any"]):
            missing.append(" or ".join(rule["any"]))
        if missing:
            evidence = f"has no extension module {', '.join(missing)}"
            details = rule["because"], rule["fix"]
            yield Finding(Severity.ERROR, "extension-missing", str(package), None, evidence, details)


def _native_code(subject: Subject) -> Iterator[Finding]:
    """Yield findings about wheels whose tags promise missing compiled code, or hide existing compiled code."""
    for package in subject.packages:
        native = [path for path, file in package.binaries.items() if _is_native(file)]
        if not native:
            has_modules = any(path.endswith(".py") and ".dist-info/" not in path for path in package.files)
            if has_modules and tags.promise_modules(package.tags) and not _gave_away(package, subject):
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
        if package and satisfies(package.version, rule["versions"]):
            severity = Severity(rule["severity"])
            yield Finding(severity, "name-confusion", str(package), None, rule["because"], (rule["fix"],))
    for rule in data("names")["alone"]:
        versions = rule.get("versions", {})
        present = [
            installed[name]
            for name in rule["packages"]
            if name in installed and satisfies(installed[name].version, versions.get(name, ""))
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


def satisfies(version: str, specifier: str) -> bool:
    """Return whether a specifier contains a version; invalid versions are only in the empty specifier."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except ValueError:
        return not specifier


@cache
def _extension_rules() -> Mapping[str, Any]:
    """Return the rule about required modules of each package."""
    rules = data("extensions")
    return {name: rule for key, rule in rules.items() for name in (key, *rule.get("also", ()))}
