"""Names that a package requires of another one, and that the installed release of that one does not define.

Which packages are compared, and which of their modules normal use imports, is data (data/api.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imagegen.audit.api.missing import Api
from imagegen.audit.api.requirements import RequiredName
from imagegen.audit.api.scan import providers
from imagegen.audit.model import Finding, Package, Severity, Subject, few

_SHOWN = 20  # lines of details


def check(subject: Subject) -> Iterator[Finding]:
    """Yield an error for each file that cannot be imported, and a warning for each package whose functions may fail."""
    installed = {each.name: each for each in subject.packages if each.exports}
    tops = {top: installed[name] for name, top in providers().items() if name in installed}
    for package in (each for each in subject.packages if each.required_names):
        for top, provider in tops.items():
            required = [each for each in package.required_names if each.name.partition(".")[0] == top]
            yield from _compare(package, provider, required)


def _compare(package: Package, provider: Package, required: Sequence[RequiredName]) -> Iterator[Finding]:
    api = Api(provider.exports)
    missing: dict[tuple[bool, str, str], RequiredName] = {}  # by certainty, file and missing name
    for each in required:
        if name := api.missing(each.name, each.modules):
            missing.setdefault((each.certain, each.path, name), each)
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
