"""An image that runs on this host without an engine: its files, its namespaces and the results of its checks."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_cell import Machine, Site
from tools.run_image.__main__ import command

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
    "mode": os.stat("/").st_mode & 0o777,
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
    figures = json.loads(
        machine.call("export", "small", "-o", str(directory), "--no-audit", "--json", command=command).stdout
    )
    assert figures["image"] == machine.site.reference
    assert figures["missing_bytes"] > 11_000_000
    assert figures["parts"] == len(list(directory.glob("part-*.zst")))
    return directory


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(directory / "run_image.py"), *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_a_command_runs_in_namespaces_of_its_own(exported: Path) -> None:
    ended = run(exported, "exec", "python", "-c", STATE)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["heavy"].startswith("/opt/venv/")
    assert (found["pid"], found["processes"]) == (2, 2)
    assert (found["interfaces"], found["loopback"], found["host"]) == (["lo"], "127.0.0.1", "imagegen")
    assert {"null", "urandom", "shm", "pts"} <= set(found["devices"])
    assert found["shm"] == 1 << 30
    assert found["mode"] == 0o755
    assert found["x"] == 3
    assert not (exported / "root/usr/written").exists()


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 247)])
def test_the_command_s_exit_code_is_returned(exported: Path, program: str, code: int) -> None:
    assert run(exported, "exec", "python", "-c", program).returncode == code


@pytest.mark.parametrize("before", ["", "/proc/self/cwd", "/proc/1/cwd"])
@pytest.mark.parametrize("name", ["imagegen-smoke", "etc/hosts"])
def test_links_of_the_image_lead_to_nothing_of_the_host(name: str, before: str, exported: Path, tmp_path: Path) -> None:
    assert run(exported, "exec", "true").returncode == 0
    host, odd = tmp_path / "host", tmp_path / "out"
    host.mkdir()
    shutil.copytree(exported, odd, symlinks=True, copy_function=os.link)
    link = odd / "root" / name
    shutil.rmtree(link) if link.is_dir() else link.unlink(missing_ok=True)
    link.symlink_to(f"{before}{host if name == 'imagegen-smoke' else host / 'x'}")
    assert run(odd, "test", "versions").returncode == 1
    assert not list(host.iterdir())


def test_relative_paths_of_a_description_are_the_container_s(exported: Path, tmp_path: Path) -> None:
    assert run(exported, "exec", "true").returncode == 0
    odd = tmp_path / "out"
    shutil.copytree(exported, odd, symlinks=True, copy_function=os.link)
    image = json.loads(gzip.decompress((odd / "image.json.gz").read_bytes()))
    program = Path(f"srv/{tmp_path.name}-{os.getpid()}")  # no mount of the container hides it
    image["environments"][0]["programs"][str(program)] = "of the container"
    (odd / "image.json.gz").unlink()  # a hard link
    (odd / "image.json.gz").write_bytes(gzip.compress(json.dumps({**image, "workdir": "etc"}).encode()))
    ended = run(odd, "exec", "python", "-c", f"import os; print(os.getcwd(), open('/{program}').read())")
    assert ended.stdout.splitlines()[-1:] == ["/etc of the container"], ended.stderr
    assert not (Path("/") / program).exists()


def test_checks_run_and_their_results_come_back(exported: Path, machine: Machine) -> None:
    ended = run(exported, "test", "versions", "environment")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads((exported / "results.json").read_text())
    assert results["image"] == machine.site.reference
    assert {each["check"]: each["status"] for each in results["results"]} == {"versions": "pass", "environment": "pass"}


def test_a_check_that_is_not_done_in_time_has_failed(exported: Path) -> None:
    document = exported / "image.json.gz"
    before = document.read_bytes()
    image = json.loads(gzip.decompress(before))
    image["environments"][0]["programs"]["/imagegen-smoke/smoke/checks/imports.py"] = (
        "def check(_):\n    __import__('time').sleep(60)\n"
    )
    document.write_bytes(gzip.compress(json.dumps(image).encode()))
    ended = run(exported, "test", "--limit", "1", "imports", "versions")
    document.write_bytes(before)
    assert ended.returncode == 1
    (result, *_) = json.loads((exported / "results.json").read_text())["results"]
    assert (result["check"], result["status"]) == ("imports", "fail")
