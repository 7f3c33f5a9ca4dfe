"""Write matrices/api/<package>.json and matrices/imports/<package>.json, and spans of releases in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple

from packaging.version import Version

from imagegen.compat.import_names import ImportNames
from imagegen.compat.package_names import PackageNames, SharedName
from imagegen.core.text import runs


def dump_imports(names: ImportNames) -> bytes:
    """The file of a package: one line for each provider and name, so that changes are readable."""
    rows: dict[str, list[str]] = {}
    for shared_name in sorted(names.names):
        provider, name, module, path, line, _, required_by, lacked_by, _ = astuple(shared_name)
        rows.setdefault(provider, []).append(_dumps([name, int(module), path, line, required_by, lacked_by]))
    providers = (f"{_dumps(name)}: {_dumps(spans)}" for name, spans in sorted(names.providers.items()))
    tables = (f"{_dumps(provider)}: {_block('[]', texts, 0)}" for provider, texts in sorted(rows.items()))
    fields = {
        "package": _dumps(names.package),
        "read": _dumps(names.read),
        "releases": _dumps(names.releases),
        "providers": _block("{}", providers, 0),
        "names": _block("{}", tables, 0),
    }
    return (_block("{}", (f'"{key}": {text}' for key, text in fields.items()), 0) + "\n").encode()


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def dump_names(names: PackageNames) -> bytes:
    """The file of a package: one line for each wheel and name, so that changes are readable."""
    wheels = {
        package: {version: hashes[version] for version in sorted(hashes, key=Version)}
        for package, hashes in sorted(names.wheels.items())
    }
    lines = [f'  "package": {json.dumps(names.package)}', f'  "read": {json.dumps(names.read)}']
    tables = (
        f"    {json.dumps(package)}: "
        + _block(
            "{}", (f"      {json.dumps(version)}: {json.dumps(sha256)}" for version, sha256 in releases.items()), 4
        )
        for package, releases in wheels.items()
    )
    lines.append(f'  "wheels": {_block("{}", tables, 2)}')
    lines.append(f'  "names": {_block("[]", (f"    {json.dumps(_fields(name))}" for name in sorted(names.names)), 2)}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _fields(name: SharedName) -> dict[str, object]:
    return {key: value for key, value in asdict(name).items() if key != "keyword" or value}


def _block(brackets: str, items: Iterable[str], indent: int) -> str:
    text = ",\n".join(items)
    return f"{brackets[0]}\n{text}\n{' ' * indent}{brackets[1]}" if text else brackets


def spans(chosen: Iterable[str], versions: Sequence[str], *, open_ended: bool) -> tuple[str, ...]:
    """Return releases as specifiers, one for each span of the `known` ones (oldest first) that are all chosen.

    With `open_ended`, a span from the oldest or to the newest known release goes on there, and ends before the next
    known release; else it is bounded by its first and last release.
    """
    positions = {version: index for index, version in enumerate(versions)}
    chosen_runs = runs(sorted(positions[version] for version in chosen))
    return tuple(_specifier(first, last, versions, open_ended=open_ended) for first, last in chosen_runs)


def _specifier(first: int, last: int, versions: Sequence[str], *, open_ended: bool) -> str:
    if open_ended:
        lower = [f">={versions[first]}"] if first else []
        return ",".join([*lower, *([f"<{versions[last + 1]}"] if last + 1 < len(versions) else [])])
    return f"=={versions[first]}" if first == last else f">={versions[first]},<={versions[last]}"
