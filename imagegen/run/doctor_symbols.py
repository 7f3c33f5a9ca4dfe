"""Symbols that a pasted message calls undefined: which releases of torch export them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagegen.audit import torch_exports
from imagegen.audit.demangle import demangle
from imagegen.audit.torch_exports import ExportIndex
from imagegen.incontainer.preflight.model import Finding

NAME = "symbols"  # of the check
_UNDEFINED = re.compile(r"(?:undefined symbol:|undefined reference to `?)\s*([A-Za-z_][\w.$]{1,4000})")
_LONGEST = 300  # characters of a readable name
_MOST = 20  # symbols that are explained


def explain_symbols(log: str, index: ExportIndex | None = None) -> Iterator[Finding]:
    """Yield a finding for each undefined symbol of torch's own in the log, by the shipped index of torch's exports."""
    found = [symbol for symbol in dict.fromkeys(_UNDEFINED.findall(log)) if torch_exports.owned(symbol)]
    index = index or (torch_exports.shipped() if found else ExportIndex())
    for symbol in found[:_MOST]:
        having = [release for release in index.releases if not index.lacks(release, [symbol])]
        name = demangle(symbol)[:_LONGEST]
        if having:
            text = f"{name}: torch exports it in {_spans(having, index.releases)}, and the torch that runs is another"
            fix = f"run a torch that has it, or take a build of the package for this torch; {symbol}"
        else:
            text = (
                f"{name}: no release of torch from {index.releases[0]} to {index.releases[-1]} exports it: the package "
                "was built against a pre-release, or with another C++ ABI"
            )
            fix = f"take a build of the package for this torch (`imagegen wheels find PACKAGE`); {symbol}"
        yield Finding(NAME, "error", text, fix)


def _spans(having: list[str], releases: tuple[str, ...]) -> str:
    """Return the releases as ranges: "2.4.0 to 2.6.0, 2.8.0"."""
    places = [releases.index(each) for each in having]
    spans: list[list[int]] = []
    for place in places:
        if spans and place == spans[-1][1] + 1:
            spans[-1][1] = place
        else:
            spans.append([place, place])
    return ", ".join(
        releases[first] if first == last else f"{releases[first]} to {releases[last]}" for first, last in spans
    )
