"""A signal ends every kind of work within two seconds, and leaves no process and no temporary file."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.http_server import Loopback
from tests.support.project import BASE, PYTHON, Project, processes_of

LIMIT = 5  # seconds; the goal is 2, on a machine that does nothing else
# Runs WORK in a thread of a pool, as builds do, instead of the command.
PROGRAM = """
import contextlib, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import imagegen.cli.commands as commands
from imagegen.cli import main
from imagegen.core import programs
from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.engine.buildx import run_buildx

root, url = Path(sys.argv[1]), sys.argv[2]

def write(store):
    with store.writer() as blob:
        while True:
            blob.write(bytes(1000))

def work():
    WORK

def run():
    with Store(root / "store").lock("held"), ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work) for _ in range(2)]
        (root / "up").touch()
        for future in futures:
            future.result()

commands.run = run
main()
"""
WORK: Mapping[str, str] = {
    "a program": "programs.run(['sleep', '60'], cwd=root)",
    "a program that started another": "programs.run(['sh', '-c', 'sleep 60; true'], cwd=root)",
    "program after program": "[programs.run(['sh', '-c', 'sleep 0.1; exit 1'], cwd=root) for _ in range(600)]",
    "a request without an answer": "Client(Settings.from_environment({'HOME': '/'})).get(url)",
    "a pause before the next try": "Client(Settings.from_environment({'HOME': '/'})).get(url + '/busy')",
    "a lock of another build": "contextlib.ExitStack().enter_context(Store(root / 'store').lock('held'))",
    "a blob that is written": "write(Store(root / 'store'))",
    "buildx": "run_buildx({**os.environ, 'PATH': f'{root}:/usr/bin:/bin'}, ['bake'], root, Quiet())",
}


class Server(Loopback):
    """Answers no request, and at /busy asks for patience."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/busy":
                    time.sleep(LIMIT)
                    return
                self.send_response(503)
                self.send_header("Retry-After", "30")
                self.send_header("Content-Length", "0")
                self.end_headers()

        super().__init__(Handler)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


def stop(process: subprocess.Popen[str], number: signal.Signals, *, group: bool) -> str:
    """Send the signal to the process, or to all of its group as a terminal does; return stderr."""
    start = time.monotonic()
    os.killpg(process.pid, number) if group else process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - start < LIMIT, err
    assert (process.returncode, "Traceback" in err) == (128 + number, False), err
    return err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.fault(
    "Killed and damaged",
    "Ctrl-C while threads wait: programs, requests, back-off, locks, writing, buildx that ignores SIGTERM",
    "ends within 2 s; no process, no temporary file",
)
@pytest.mark.parametrize("name", WORK)
def test_a_signal_ends_work_in_threads(name: str, server: Server, tmp_path: Path) -> None:
    buildx = tmp_path / "docker"
    buildx.write_text("#!/bin/sh\n[ $2 = version ] && exec echo v0.13.1\ntrap '' TERM\nwhile :; do sleep 1; done\n")
    buildx.chmod(0o755)
    argv = [sys.executable, "-c", PROGRAM.replace("WORK", WORK[name]), str(tmp_path), f"http://{server.host}"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_for(tmp_path / "up", process)
        time.sleep(0.3)
        assert stop(process, signal.SIGINT, group=False).startswith("interrupted")
    assert processes_of(tmp_path) == []
    assert list((tmp_path / "store/tmp").glob("*")) == []


def test_a_signal_that_wakes_another_thread_ends_the_run(tmp_path: Path) -> None:
    """The main thread, which runs Python's handlers, may sleep on: it waits for a thread, and another one was woken."""
    work = "time.sleep(0.3); signal.pthread_kill(threading.get_ident(), signal.SIGINT); programs.run(['sleep', '60'])"
    argv = [sys.executable, "-c", PROGRAM.replace("WORK", work), str(tmp_path), ""]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr.startswith("interrupted")) == (130, True)


def test_work_goes_on_when_a_signal_is_not_one_that_ends_a_run(tmp_path: Path) -> None:
    """A program that imports imagegen may have handlers of its own, and Python reports their signals too."""
    work = "programs.run(['sleep', '0.5'])"
    program = PROGRAM.replace("WORK", work).replace('(root / "up").touch()', "signal.raise_signal(signal.SIGUSR1)")
    argv = [sys.executable, "-c", f"import signal; signal.signal(signal.SIGUSR1, lambda *_: None)\n{program}"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    completed = subprocess.run(
        [*argv, str(tmp_path), ""], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose base is one package of a mirror, with programs that do not end."""
    content = b"a package"
    package = replace(PYTHON, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    found = Project(tmp_path / "project", base=replace(BASE, debs=(package,)))
    file = found.root / "mirror" / package.path
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    for name in ("mmdebstrap", "apt-get"):
        program = found.root / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch {found.root}/started\nsleep 60; true\n")
        program.chmod(0o755)
    mirror = (found.root / "mirror").as_uri()
    found.env |= {
        "PATH": f"{found.root}/bin:{os.environ['PATH']}",
        "PIP_INDEX_URL": (found.root / "index").as_uri(),
        "IMAGEGEN_DEBIAN_MIRROR": mirror,
        "IMAGEGEN_DEBIAN_SECURITY_MIRROR": mirror,
    }
    return found


@pytest.mark.fault(
    "Killed and damaged",
    "SIGINT or SIGTERM to imagegen or to the terminal's process group while a base is built or resolved",
    "ends within 2 s with one line that names the stopped step; no process, no temporary file",
)
@pytest.mark.parametrize(
    ("command", "group", "number"),
    [
        ("build", False, signal.SIGINT),
        ("build", True, signal.SIGTERM),
        ("lock", True, signal.SIGINT),
        ("lock", False, signal.SIGTERM),
    ],
)
def test_a_signal_ends_the_making_of_a_base(
    command: str, group: bool, number: signal.Signals, project: Project
) -> None:
    arguments = ["lock", "demo", "--upgrade-base"]
    if command == "build":
        assert project.call("lock", "demo").returncode == 0
        arguments = ["build", "demo", "--output", "oci:out", "--no-test"]
    # mmdebstrap gets a PATH of its own, which is the machine's.
    program = "import os, imagegen.image.base.installer as i; i.ENVIRONMENT['PATH'] = os.environ['PATH']; "
    program += "from imagegen.cli import main; main()"
    argv = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(
        argv, env=project.env, cwd=project.root, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        wait_for(project.root / "started", process)
        last = stop(process, number, group=group).splitlines()[-1]
    assert last.startswith("interrupted" if number == signal.SIGINT else "terminated")
    assert "stopped: " in last
    assert "base debian12" in last
    assert processes_of(project.root) == []
    assert project.leftovers() == []
    assert not list((project.root / "cache/imagegen/store/tmp").glob("base-*"))
