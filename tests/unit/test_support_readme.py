"""tests/support/README.md lists every module there."""

from __future__ import annotations

import re
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"


def test_the_readme_lists_every_module() -> None:
    modules = {path.stem for path in SUPPORT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    rows = re.findall(r"^\| (`.*?) \|", (SUPPORT / "README.md").read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(modules - {"__init__"})
