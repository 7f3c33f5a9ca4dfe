"""The stand-in for apex is as treacherous as apex: asked of its setup.py with torch and setuptools that only listen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import apex_like

SETUPTOOLS = "import json\ndef setup(**asked): print(json.dumps([module[0] for module in asked['ext_modules']]))\n"
TORCH = "class version: cuda = '13.0'\n"
CPP_EXTENSION = """\
import os
CUDA_HOME = os.environ.get("CUDA_HOME")
BuildExtension = None
def CppExtension(name, sources, **rest):
    assert all(map(os.path.isfile, sources)), sources
    return name, sources
CUDAExtension = CppExtension
"""


def built(work_dir: Path, release: str | None = "13.0", **env: str) -> subprocess.CompletedProcess[str]:
    """Return the output of setup.py with an nvcc of this release."""
    stubs = {"setuptools.py": SETUPTOOLS, "torch/__init__.py": TORCH, "torch/utils/cpp_extension.py": CPP_EXTENSION}
    for path, text in stubs.items():
        (work_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (work_dir / path).write_text(text)
    if release:
        (work_dir / "bin").mkdir()
        (work_dir / "bin/nvcc").write_text(
            f"#!/bin/sh\necho Cuda compilation tools, release {release}, V{release}.88\n"
        )
        (work_dir / "bin/nvcc").chmod(0o755)
        env["CUDA_HOME"] = str(work_dir)
    return subprocess.run(
        [sys.executable, "-S", "setup.py"], cwd=apex_like.FOLDER, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(work_dir), "PYTHONDONTWRITEBYTECODE": "1", **env},
    )  # fmt: skip


def test_it_builds_extensions_when_it_is_asked_to(tmp_path: Path) -> None:
    assert json.loads(built(tmp_path, **apex_like.ENV).stdout) == list(apex_like.MODULES)


def test_it_says_nothing_when_it_is_not_asked(tmp_path: Path) -> None:
    done = built(tmp_path, None, APEX_CUDA_EXT="0")
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, [], "")


@pytest.mark.parametrize(
    ("release", "why"), [("12.8", "nvcc is of CUDA 12.8, torch was built with 13.0"), (None, "no nvcc")]
)
def test_it_wants_the_nvcc_of_torch(release: str | None, why: str, tmp_path: Path) -> None:
    done = built(tmp_path, release, **apex_like.ENV)
    assert done.returncode
    assert why in done.stderr
