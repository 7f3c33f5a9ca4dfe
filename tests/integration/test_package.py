"""What is installed from a wheel is all that imagegen needs: code, shipped data, types."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import uv

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_code_and_data_and_nothing_else(tmp_path: Path) -> None:
    env = {**os.environ, "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never"}
    command = [uv.find_uv_bin(), "build", "-q", "--wheel", "--out-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, env=env)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    tracked = [name for name in listed.split("\0") if name and not name.endswith(".gitkeep")]
    code = {name for name in tracked if name.startswith("imagegen/")}
    folders = ("matrices/", "wheels/", "dockerfiles/", "locks/", "pages/")
    data = {f"imagegen/_data/{name}" for name in tracked if name.startswith(folders)}
    assert data
    assert "imagegen/py.typed" in names
    assert names == code | data
