"""An exported image on this host, without an engine: the files, the namespaces, and the results that come back."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import stat
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
    figures = json.loads(machine.call("export", "small", "-o", str(directory), "--no-audit", "--json").stdout)
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
    assert found["mode"] == 0o755
    assert found["x"] == 3
    assert not (exported / "root/usr/written").exists()


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 247)])
def test_the_command_s_exit_code_is_returned(exported: Path, program: str, code: int) -> None:
    assert run(exported, "exec", "python", "-c", program).returncode == code


@pytest.mark.fault(
    "Wheels",
    "an image in which paths that every container gets written (/etc/hosts, the checks' programs) are links",
    "the links lead where they lead inside the image; nothing of the host is written",
)
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


@pytest.fixture(scope="module")
def squashfs(machine: Machine) -> Path:
    """The directory of a written squashfs, small.sqsh, and of its files, in root."""
    directory = machine.root / "squashfs"
    directory.mkdir()
    file = directory / "small.sqsh"
    figures = json.loads(machine.call("export", "small", "--no-audit", "--json", "--squashfs", str(file)).stdout)
    assert (figures["image"], figures["size"]) == (machine.site.reference, file.stat().st_size)
    unpack = ["unsquashfs", "-q", "-n", "-d", directory / "root", file]
    subprocess.run(unpack, check=True, stdout=subprocess.DEVNULL)
    return directory


def test_a_squashfs_holds_all_files_of_the_image(squashfs: Path, exported: Path) -> None:
    root = squashfs / "root"
    entries = json.loads(gzip.decompress((exported / "image.json.gz").read_bytes()))["entries"]
    own = {"etc/rc", "etc/fstab", "etc/environment"}
    for entry in entries:
        path, status = root / entry["path"], (root / entry["path"]).lstat()
        if entry["path"] in own:
            continue
        assert (status.st_uid, status.st_gid, int(status.st_mtime)) == (entry["uid"], entry["gid"], entry["mtime"])
        if entry["kind"] == "symlink":
            assert str(path.readlink()) == entry["target"]
            continue
        assert stat.S_IMODE(status.st_mode) == entry["mode"]
        if entry["kind"] == "file":
            assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
    names = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert names - own == {entry["path"] for entry in entries} - own


def test_a_squashfs_runs_the_image_s_entry_point(squashfs: Path) -> None:
    """Debian has no enroot, whose rule is that /etc/rc gets the command, with the variables of /etc/environment."""
    root = squashfs / "root"
    environment = dict(line.split("=", 1) for line in (root / "etc/environment").read_text().splitlines())
    command = ["chroot", str(root), "/bin/sh", "/etc/rc", "python", "-c", "import light0.m3; print(light0.m3.X)"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "3"
    assert (root / "usr/bin/perl").samefile(next((root / "usr/bin").glob("perl5.*")))


def test_a_squashfs_is_the_same_each_time(machine: Machine, squashfs: Path) -> None:
    again = machine.root / "again.sqsh"
    machine.call("export", "small", "--no-audit", "--squashfs", str(again))
    assert again.read_bytes() == (squashfs / "small.sqsh").read_bytes()
