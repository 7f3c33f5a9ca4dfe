"""Explain undefined symbols of a log: which releases of torch export them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagegen.audit import torch_exports
from imagegen.audit.demangle import demangle
from imagegen.audit.torch_exports import ExportIndex
from imagegen.checks.preflight.model import Finding
from imagegen.core.text import runs

SYMBOLS = "symbols"  # the name of the check
_UNDEFINED = re.compile(r"(?:undefined symbol:|undefined reference to `?)\s*([A-Za-z_][\w.$]{1,4000})")
_MACHINE = re.compile(r"(?<![A-Za-z0-9])(?:aarch64|x86_64)(?![A-Za-z0-9])")
_LONGEST = 300  # characters of a readable name
_MOST = 20  # symbols that are explained


def machine_of(log: str) -> str:
    """Return the processor that a log names, as extension modules and tags of wheels do, else x86_64."""
    names = set(_MACHINE.findall(log))
    return "aarch64" if names == {"aarch64"} else "x86_64"


def symbols_of_torch(log: str) -> list[str]:
    """Return the undefined symbols in the log that only torch may define."""
    return [symbol for symbol in dict.fromkeys(_UNDEFINED.findall(log)) if torch_exports.owned(symbol)]


def explain_symbols(log: str, index: ExportIndex | None = None, machine: str | None = None) -> Iterator[Finding]:
    """Yield a finding for each undefined symbol of torch's own in the log.

    The default `index` is the index of torch's wheels for the processor `machine`, by default the one that the log
    names.
    """
    symbols = symbols_of_torch(log)
    machine = machine or machine_of(log)
    on = "" if machine == "x86_64" else f" for {machine}"
    index = index or (torch_exports.shipped(machine) if symbols else ExportIndex())
    for symbol in symbols[:_MOST]:
        having = [release for release in index.releases if not index.lacks(release, [symbol])]
        name = demangle(symbol)[:_LONGEST]
        if having:
            text = (
                f"{name}: torch exports it in {_spans(having, index.releases)}{on}, and the torch that runs is another"
            )
            fix = f"run a torch that has it, or take a build of the package for this torch; {symbol}"
        else:
            text = (
                f"{name}: no release of torch from {index.releases[0]} to {index.releases[-1]}{on} exports it: the "
                "package was built against an older release or a pre-release, or with another C++ ABI"
            )
            fix = f"take a build of the package for this torch (`imagegen wheels find PACKAGE`); {symbol}"
        yield Finding(SYMBOLS, "error", text, fix)


def _spans(having: list[str], releases: tuple[str, ...]) -> str:
    """Return the releases as ranges: "2.4.0 to 2.6.0, 2.8.0"."""
    return ", ".join(
        releases[first] if first == last else f"{releases[first]} to {releases[last]}"
        for first, last in runs(releases.index(release) for release in having)
    )
