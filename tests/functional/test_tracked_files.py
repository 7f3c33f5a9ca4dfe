"""The files that git tracks name no machine and no package registry's host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_nothing_names_a_registrys_host_or_a_machine() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    words = [r"pythonh[o]sted", r"registry\.n[p]m", r"pypi\.o[r]g", r"deb\.deb[i]an", r"/wor[k]/", r"/op[t]/(whe|pyp)"]
    pattern = re.compile("|".join(words).encode())
    found = [
        name.decode()
        for name in tracked.split(b"\0")
        if name and (ROOT / name.decode()).is_file() and pattern.search((ROOT / name.decode()).read_bytes())
    ]
    assert not found
