"""Imports of names that another package does not define, and calls with keywords that it does not take.

Which packages are compared, and which of their modules normal use imports, is data (data/api.yaml). The exported and
required names of a distribution are read while its files pass by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagegen.audit.api.exports import OPEN, Module, module, with_namespaces
from imagegen.audit.api.lookup import Api
from imagegen.audit.api.required import RequiredName, called, required, tops_of
from imagegen.audit.api.source import is_package, module_name
from imagegen.audit.api.uses import NameUse, uses
from imagegen.audit.catalogue import data
from imagegen.audit.lists import few
from imagegen.audit.model import Finding, Package, Severity, Subject

_SHOWN = 20  # lines of details


def providers() -> Mapping[str, str]:
    """Return the distributions whose names are compared, with the top-level module of each."""
    tops: Mapping[str, str] = data("api")["providers"]
    return tops


def starts(distribution: str) -> Mapping[str, Sequence[str]]:
    """Return the modules that runs of a distribution import first, as `required` takes them; none for most."""
    globs: Mapping[str, Sequence[str]] = data("api")["users"].get(distribution, {})
    return globs


class ApiScanner:
    """Collects the names of a distribution. Most distributions are not compared; it `reads` none of their files.

    `paths` are all files of the distribution, relative to site-packages.
    """

    def __init__(self, distribution: str, paths: Sequence[str]) -> None:
        self._top, self._starts, self._paths = providers().get(distribution), starts(distribution), paths
        self._tops = tops_of(filter(self.reads, paths), self._starts)
        self._modules: dict[str, Module] = {}
        self._read: list[str] = []
        self._uses: list[NameUse] = []

    def reads(self, path: str) -> bool:
        """Return whether the file at `path` is to be added."""
        return bool((self._top or self._starts) and path.endswith(".py") and module_name(path))

    def add(self, path: str, source: bytes) -> None:
        """Read a Python file; its source is not kept."""
        name = module_name(path)
        if name and name.partition(".")[0] == self._top:
            self._modules[name] = module(source, name, package=is_package(path))
        if self._starts:
            self._read.append(path)
            self._uses += uses(path, source, self._tops, called(path, self._starts))

    def exports(self) -> dict[str, Module]:
        """Return the modules by name, compiled modules among them."""
        names = (module_name(path) for path in self._paths if not path.endswith(".py"))
        compiled = {name: OPEN for name in names if name and self._top and name.partition(".")[0] == self._top}
        return with_namespaces(self._modules | compiled)

    def required_names(self) -> tuple[RequiredName, ...]:
        """Return the required names of other distributions, without keyword arguments: no signatures are kept."""
        return tuple(name for name in required(self._read, self._uses, self._starts) if not name.keyword)


def check(subject: Subject) -> Iterator[Finding]:
    """Yield an error for each file that cannot be imported, and a warning for each package whose functions may fail."""
    installed = {package.name: package for package in subject.packages if package.exports}
    tops = {top: installed[name] for name, top in providers().items() if name in installed}
    for package in (package for package in subject.packages if package.required_names):
        for top, provider in tops.items():
            required = [use for use in package.required_names if use.name.partition(".")[0] == top]
            yield from _compare(package, provider, required)


def _compare(package: Package, provider: Package, required: Sequence[RequiredName]) -> Iterator[Finding]:
    api = Api(provider.exports)
    missing: dict[tuple[bool, str, str], RequiredName] = {}  # by certainty, file and missing name
    for reference in required:
        if name := api.missing(reference.name, reference.modules):
            missing.setdefault((reference.certain, reference.path, name), reference)
    certain: dict[str, list[str]] = {}
    uncertain: list[str] = []
    for (always, path, name), use in sorted(missing.items(), key=lambda item: item[1]):
        if always:
            certain.setdefault(path, []).append(f"line {use.line} imports {name}")
        elif (True, path, name) not in missing:
            uncertain.append(f"{path}:{use.line}: {name}")
    for path, lines in certain.items():
        evidence = f"{lines[0]}, which {provider} does not define"
        yield Finding(Severity.ERROR, "api-missing", str(package), path, evidence, few(lines[1:], _SHOWN))
    if uncertain:
        names = "name" if len(uncertain) == 1 else "names"
        evidence = f"functions use {len(uncertain)} {names} that {provider} does not define"
        details = few(uncertain, _SHOWN)
        yield Finding(Severity.WARNING, "api-missing", str(package), None, evidence, details)


@dataclass(frozen=True)
class RefusedKeyword:
    """A call of `name` in `package` with a keyword argument that the installed release of `provider` does not take."""

    package: str
    provider: str
    name: str  # "vllm.LLM"
    keyword: str
    path: str | None  # of the call, relative to site-packages; None where another release has the file that was read
    line: int
    certain: bool  # normal use makes the call


def keyword_findings(subject: Subject, refused: Iterable[RefusedKeyword]) -> Iterator[Finding]:
    """Yield an error for each file whose calls end with TypeError, and a note for calls that normal use does not make.

    `refused` comes from wheels of these releases that were read before, because the scan of a package has no
    signatures.
    """
    installed = {package.name: str(package) for package in subject.packages}
    calls: dict[tuple[str, str, str | None, bool], list[str]] = {}
    for refused_call in sorted(
        refused, key=lambda call: (call.package, call.provider, call.path or "", call.line, call.keyword)
    ):
        subject_text = f"line {refused_call.line}" if refused_call.path else "it"
        line = f"{subject_text} passes {refused_call.keyword} to {refused_call.name}"
        calls.setdefault(
            (refused_call.package, refused_call.provider, refused_call.path, refused_call.certain), []
        ).append(line)
    for (package, provider, path, certain), lines in calls.items():
        severity = Severity.ERROR if certain else Severity.INFO
        evidence = f"{lines[0]}, which {installed[provider]} does not take"
        yield Finding(severity, "api-keyword", installed[package], path, evidence, few(lines[1:], _SHOWN))
