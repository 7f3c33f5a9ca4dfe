"""Call a source's build backend (PEP 517) in the sources' folder: `hook.py FOLDER`.

The wheel goes to FOLDER. A source without pyproject.toml, or without a backend in it, gets setuptools' own for such
(PEP 517: `setuptools.build_meta:__legacy__`).
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

LEGACY = "setuptools.build_meta:__legacy__"
EASY_TO_END = "500"  # oom_score_adj: where memory ends, the kernel takes a compiler before anything else


def main(folder: str) -> None:
    # The programs beside this one must not be found in place of what the build imports.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(EASY_TO_END)
    os.umask(0o022)
    backend, paths = declared(Path("pyproject.toml"))
    sys.path[:0] = [str(Path(path).resolve()) for path in paths]
    module, _, attribute = backend.partition(":")
    hooks: Any = importlib.import_module(module)
    for name in filter(None, attribute.split(".")):
        hooks = getattr(hooks, name)
    print(f"{backend} made {hooks.build_wheel(folder)}", flush=True)


def declared(pyproject: Path) -> tuple[str, list[str]]:
    """Return (build backend, its path) of a source."""
    try:
        text = pyproject.read_text(encoding="utf-8")
    except FileNotFoundError:
        return LEGACY, []
    system = _build_system(text)
    return system.get("build-backend", LEGACY), system.get("backend-path", [])


def _build_system(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10: the two values are strings, and a list of strings, in the forms of Python
        section = re.search(r"^\[build-system\]\s*$(.*?)(^\[|\Z)", text, re.MULTILINE | re.DOTALL)
        pairs = re.findall(r"^(build-backend|backend-path)\s*=\s*(.+)$", section[1] if section else "", re.MULTILINE)
        return {name: ast.literal_eval(value.partition("#")[0].strip()) for name, value in pairs}
    found: dict[str, Any] = tomllib.loads(text).get("build-system", {})
    return found


if __name__ == "__main__":
    main(sys.argv[1])
