"""Completion of cells, as the shells ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = f"""#!/bin/sh
exec {sys.executable} -P -c 'from imagegen.cli.main import main; main()' "$@"
"""


def shell(script: str, folder: Path, **env: str) -> list[str]:
    """Run a script of bash that has `imagegen` as a program; returns the words of its output."""
    program = folder / "bin" / "imagegen"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture(autouse=True)
def _kept_results(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    """Let imagegen keep results over shipped files in a directory of the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("build cpu-g", ["cpu-grpo"]),
        ("build hopper-sglang", ["hopper-sglang", "hopper-sglang-cu130-py311"]),
        ("launch cpu-grpo-cpu-py311", ["cpu-grpo-cpu-py311"]),
        ("launch cpu-grpo --for sky", ["skypilot"]),
        ("build nothing-of-this-name", []),
    ],
)
def test_a_script_of_bash_completes_cells(typed: str, expected: list[str], tmp_path: Path) -> None:
    ask = f"""
        eval "$(_IMAGEGEN_COMPLETE=bash_source imagegen)"
        COMP_WORDS=(imagegen {typed}) COMP_CWORD={len(typed.split())}
        _imagegen_completion imagegen; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    found = shell(ask, tmp_path)
    assert (found[: len(expected)], bool(found)) == (expected, bool(expected))
    assert all(each.startswith(typed.rsplit(maxsplit=1)[-1]) for each in found)


def test_zsh_and_fish_get_descriptions(tmp_path: Path) -> None:
    asked = {"COMP_WORDS": "imagegen build cpu-g", "COMP_CWORD": "2", "_IMAGEGEN_COMPLETE": "zsh_complete"}
    zsh = shell("imagegen", tmp_path, **asked)
    assert zsh[:2] == ["plain", "cpu-grpo"]
    assert len(zsh) > 3
    fish = shell("imagegen", tmp_path, **{**asked, "COMP_CWORD": "cpu-g", "_IMAGEGEN_COMPLETE": "fish_complete"})
    assert fish[0] == "plain,cpu-grpo"
    assert len(fish) > 1


def test_a_project_is_completed_and_a_broken_one_stays_silent(tmp_path: Path) -> None:
    (tmp_path / "matrices").mkdir()
    file = tmp_path / "matrices" / "own.yaml"
    words = f"imagegen --project {tmp_path} build sm"
    env = {"COMP_WORDS": words, "COMP_CWORD": "4", "_IMAGEGEN_COMPLETE": "bash_complete"}
    file.write_text("images: [")
    assert shell("imagegen", tmp_path, **env) == []
    file.write_text("""images:
  small-one:
    description: Small.
    purpose: Tests.
    base: debian12
    components: {numpy: {because: Tests.}}
""")
    assert shell("imagegen", tmp_path, **env) == ["plain,small-one"]
