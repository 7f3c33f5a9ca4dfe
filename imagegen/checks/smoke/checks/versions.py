"""The installed distributions are exactly the locked ones: none more, none less, none different."""

from __future__ import annotations

import importlib.metadata
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from smoke.program import Details, Findings, Spec


def check(spec: Spec) -> Details:
    installed: dict[str, list[str]] = defaultdict(list)
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or f"(no name: {distribution.locate_file('')})"
        installed[canonical_name(name)].append(distribution.version or "(no version)")
    return compare(spec.versions, installed)


def compare(locked: Mapping[str, str], installed: Mapping[str, Sequence[str]]) -> Details:
    """Raises Failed with every difference. An installed name can have several versions: metadata left behind."""
    findings = Findings()
    for name in sorted({*locked, *installed}):
        have = ", ".join(installed.get(name, ()))
        if name not in installed:
            findings.expect(name, False, f"{name} {locked[name]} is locked and not installed")
        elif name not in locked:
            findings.expect(name, False, f"{name} {have} is installed and not locked")
        else:
            same = len(installed[name]) == 1 and canonical_version(installed[name][0]) == canonical_version(
                locked[name]
            )
            findings.expect(name, same, f"{name} {have} is installed, {locked[name]} is locked")
    return findings.done({"distributions": len(locked)})


def canonical_name(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def canonical_version(version: str) -> str:
    """Enough of PEP 440's normal form to compare a lock with metadata: case, leading v and zeros, separators."""
    text = version.strip().lower().removeprefix("v")
    return re.sub(r"(?<![a-z0-9])0+(?=\d)", "", re.sub(r"[-_]", ".", text))
