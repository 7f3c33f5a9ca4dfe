"""`pip check` by the image's own pip."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from suite.program import Details, Failed, Skipped, Spec


def check(_: Spec) -> Details:
    if importlib.util.find_spec("pip") is None:
        raise Skipped("the image holds no pip")
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = (result.stdout + result.stderr).strip().splitlines()
    if result.returncode != 0:
        raise Failed("; ".join(lines), {"output": lines})
    return {"output": lines}
