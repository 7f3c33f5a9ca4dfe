"""GPU code of a file by target."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from imagegen.audit.capability import releases
from imagegen.audit.model import CodeTarget


def target(text: str) -> CodeTarget:
    """A target from its name: "sm_90a" or "compute_90@8.8", with the PTX ISA behind the @."""
    found = re.fullmatch(r"(sm|compute)_(\d+)([af]?)(?:@(\d+)\.(\d+))?", text)
    assert found, text
    isa = (int(found[4]), int(found[5])) if found[4] else None
    return CodeTarget("sass" if found[1] == "sm" else "ptx", int(found[2]), found[3], isa)  # type: ignore[arg-type]


def targets(text: str) -> tuple[CodeTarget, ...]:
    return tuple(target(each) for each in text.split())


ISAS = st.sampled_from([release.isa for release in releases()] + [(99, 9)])
TARGETS = st.builds(
    lambda sass, arch, variant, isa: CodeTarget("sass" if sass else "ptx", arch, variant, None if sass else isa),
    st.booleans(),
    st.sampled_from([75, 80, 86, 89, 90, 100, 101, 103, 110, 120, 121]),
    st.sampled_from(["", "a", "f"]),
    ISAS,
)
