"""An exported image on this host, without an engine: the files, the namespaces, and the results that come back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_cell import Machine, Site

pytestmark = pytest.mark.integration

STATE = """
import json, os, pathlib, socket, sys
import heavy, light0.m3
pathlib.Path("/usr/written").write_text("by the container")
sys.stdout.write(json.dumps({
    "heavy": heavy.__file__,
    "pid": os.getpid(),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "loopback": socket.create_server(("127.0.0.1", 0)).getsockname()[0],
    "host": socket.gethostname(),
    "home": os.environ["HOME"],
    "devices": sorted(os.listdir("/dev")),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "x": light0.m3.X,
}))
"""


@pytest.fixture(scope="module")
def machine(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return site.machine(tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def exported(machine: Machine) -> Path:
    directory = machine.root / "out"
    figures = json.loads(machine.imagegen("export", "small", "-o", str(directory), "--no-audit", "--json"))
    assert figures["image"] == machine.site.reference
    assert figures["missing_bytes"] > 11_000_000
    assert figures["parts"] == len(list(directory.glob("part-*.zst")))
    return directory


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(directory / "run_image.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_a_command_runs_in_namespaces_of_its_own(exported: Path) -> None:
    ended = run(exported, "exec", "python", "-c", STATE)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["heavy"].startswith("/opt/venv/")
    assert (found["pid"], found["processes"]) == (2, 2)
    assert (found["interfaces"], found["loopback"], found["host"]) == (["lo"], "127.0.0.1", "imagegen")
    assert {"null", "urandom", "shm", "pts"} <= set(found["devices"])
    assert found["shm"] == 1 << 30
    assert found["x"] == 3
    assert not (exported / "root/usr/written").exists()


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 247)])
def test_the_command_s_exit_code_is_returned(exported: Path, program: str, code: int) -> None:
    assert run(exported, "exec", "python", "-c", program).returncode == code


def test_checks_run_and_their_results_come_back(exported: Path, machine: Machine) -> None:
    ended = run(exported, "test", "versions", "environment")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads((exported / "results.json").read_text())
    assert results["image"] == machine.site.reference
    assert {each["check"]: each["status"] for each in results["results"]} == {"versions": "pass", "environment": "pass"}


def test_a_check_that_is_not_done_in_time_has_failed(exported: Path) -> None:
    ended = run(exported, "test", "--limit", "1", "imports", "loading")
    assert ended.returncode == 1
    results = json.loads((exported / "results.json").read_text())["results"]
    assert {each["status"] for each in results if each["check"] == "loading"} == {"fail"}
