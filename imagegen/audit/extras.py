"""Imports of distributions that only an extra of the importing package names, and that are not installed.

Such an import often stands inside a function. The package is then imported without an error, and fails at its first
use. Sources: PEP 508 for requirements and their markers; The Python Language Reference, "The import statement".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from packaging.requirements import InvalidRequirement, Requirement

from imagegen.audit.catalogue import data
from imagegen.audit.imports import _SHOWN
from imagegen.audit.lists import few
from imagegen.audit.model import Finding, OptionalImport, Severity, Subject, required_name

# Extras for work on the package itself. Only its tests import the distributions that they name.
_FOR_DEVELOPERS = {"ci", "dev", "develop", "doc", "docs", "lint", "test", "testing", "tests", "typing"}
_IMPORT = re.compile(rb"[ \t]*(?:import[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)|from[ \t]+(\w[\w.]*)[ \t]+import\b)")
# As `("{3}|'{3})(?:\\.|[^\\])*?(\1|(?=\\?\Z))`, which takes one byte after another and much more time. A string
# without an end has no group and goes to the end of the file, so that each byte is read once.
STRING_LITERAL = re.compile(
    rb'''"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(""")?|''' rb"""'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(''')?""", re.DOTALL
)
_INDENTED = re.compile(rb"[ \t]*(.?)")
_HEADER = re.compile(rb"[ \t]*(async[ \t]+def|def|class|try|except|finally|if|elif|else|for|while|with|match|case)\b")


def optional_modules(requires: Iterable[str]) -> dict[str, str]:
    """Map each module that only extras among the Requires-Dist `requires` name to its distribution.

    Modules are compared without case and separators, because a distribution's name determines no more of its module's.
    """
    parsed = [requirement for text in requires if (requirement := _parsed(text))]
    plain = {required_name(requirement.name) for requirement in parsed if not _extras(requirement)}
    names = {
        required_name(requirement.name)
        for requirement in parsed
        if not all(map(_is_for_developers, _extras(requirement)))
    }
    return {squashed(data("modules").get(name, name)): name for name in sorted(names - plain)}


def _is_for_developers(extra: str) -> bool:
    return not _FOR_DEVELOPERS.isdisjoint(re.split(r"[-_.]", extra))


def scan_imports(path: str, source: bytes, modules: Mapping[str, str]) -> Iterator[OptionalImport]:
    """Yield the first import of each of `modules` (see optional_modules) in the Python file `path`.

    A statement inside a string in triple quotes does not count.
    """
    if not any(True for _ in _statements(source, modules)):
        return  # most files: nothing is copied
    seen = set()
    text = STRING_LITERAL.sub(_without_lines, source)
    for start, distribution in _statements(text, modules):
        if distribution not in seen:
            seen.add(distribution)
            headers = list(_headers(text, start))
            yield OptionalImport(
                distribution,
                path,
                text.count(b"\n", 0, start) + 1,
                lazy=any(header.endswith(b"def") for header in headers),
                guarded=any(header in (b"try", b"except", b"if", b"elif", b"else") for header in headers),
            )


def _without_lines(string: re.Match[bytes]) -> bytes:
    """Return the line ends of a string; a string without an end stays."""
    return b"\n" * string[0].count(b"\n") if string.lastindex else string[0]


def check_extras(subject: Subject) -> Iterator[Finding]:
    """Yield an error for each started module, and a note for each package, that imports a missing distribution."""
    installed = {package.name for package in subject.packages}
    tops = frozenset[str]().union(*(package.tops for package in subject.packages))
    provided = {squashed(top.partition(".")[0]) for top in tops}
    for package in (package for package in subject.packages if package.optional_imports):
        missing: dict[str, list[OptionalImport]] = {}
        for optional_import in package.optional_imports:
            name = optional_import.distribution
            module = squashed(data("modules").get(name, name).partition(".")[0])
            if name not in installed and module not in provided:
                missing.setdefault(name, []).append(optional_import)
        extras = _extras_by_distribution(
            [text for text in package.requires if required_name(text) in missing], subject.python
        )
        absent = {name: sites for name, sites in missing.items() if name in extras}
        starts = {f"{name.replace('.', '/')}{end}" for name in package.entry_points for end in (".py", "/__init__.py")}
        for name, sites in absent.items():
            for optional_import in sites:
                if optional_import.path in starts and not optional_import.guarded and name not in subject.omits:
                    evidence = f"line {optional_import.line} imports {name}, which only its extra {extras[name]} names"
                    fix = f"require {package.name}[{extras[name]}], or {name} itself"
                    yield Finding(Severity.ERROR, "extra-missing", str(package), optional_import.path, evidence, (fix,))
        if absent:
            evidence = f"imports {len(absent)} distributions that only its extras name and that are not installed"
            lines = [_line(name, extras[name], sites, subject.omits.get(name)) for name, sites in absent.items()]
            yield Finding(Severity.INFO, "extra-missing", str(package), None, evidence, few(lines, _SHOWN))


@lru_cache(1 << 14)
def squashed(module: str) -> str:
    """Return the name of a module or a distribution without case and separators."""
    return module.replace("-", "").replace("_", "").replace(".", "").lower()


def _line(name: str, extra: str, sites: list[OptionalImport], omitted: str | None) -> str:
    first = min(sites, key=lambda site: (site.guarded, site.path))
    suffix = f" and {len(sites) - 1} more files" if len(sites) > 1 else ""
    return f"{name} (extra {extra}): {first.path}:{first.line}{suffix}" + (f"; left out: {omitted}" if omitted else "")


def _extras_by_distribution(requires: Iterable[str], python: str | None) -> dict[str, str]:
    """Return each distribution with the first extra that names it, on Linux and for this Python."""
    extras_by_name: dict[str, str] = {}
    for text in requires:
        if requirement := _parsed(text):
            for extra in _extras(requirement):
                if requirement.marker and requirement.marker.evaluate(_environment(python) | {"extra": extra}):
                    extras_by_name.setdefault(required_name(requirement.name), extra)
    return extras_by_name


def _environment(python: str | None) -> dict[str, str]:
    environment = {"os_name": "posix", "platform_system": "Linux", "sys_platform": "linux"}
    return environment | ({"python_version": python, "python_full_version": f"{python}.0"} if python else {})


def _parsed(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except (InvalidRequirement, ValueError):  # a number of more digits than int() takes is a ValueError
        return None


def _extras(requirement: Requirement) -> list[str]:
    """Return the extras that a requirement's marker names; none if the requirement always holds."""
    return re.findall(r"extra == ['\"]([^'\"]+)", str(requirement.marker or ""))


def _statements(source: bytes, modules: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield (offset of the line, distribution) of each import of one of `modules`."""
    at = source.find(b"import")
    while at >= 0:
        start = source.rfind(b"\n", 0, at) + 1
        if match := _IMPORT.match(source, start):
            for name in (match[1] or match[2]).split(b","):
                components = name.strip().decode("utf-8", "replace").split(".")
                for length in range(1, len(components) + 1):
                    if distribution := modules.get(squashed("".join(components[:length]))):
                        yield start, distribution
        end = source.find(b"\n", at)
        at = source.find(b"import", end) if end >= 0 else -1


def _headers(text: bytes, start: int) -> Iterator[bytes]:
    """Yield the keywords of the blocks around the line at `start`, from the inside out, by their indentation."""
    depth = _depth(text, start)
    while depth and start:
        start = text.rfind(b"\n", 0, start - 1) + 1
        outer = _depth(text, start)
        if outer is not None and outer < depth:
            depth = outer
            if header := _HEADER.match(text, start):
                yield header[1]


def _depth(text: bytes, start: int) -> int | None:
    """Return the bytes of indentation of the line at `start`; None if the line begins no statement."""
    match = _INDENTED.match(text, start)
    return match.start(1) - start if match and match[1] not in (b"", b"\r", b"#", b")", b"]", b"}") else None
