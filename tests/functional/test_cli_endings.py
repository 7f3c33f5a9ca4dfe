"""However a run ends, it says so in a sentence, with an exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.golden import Golden
from tests.support.http_server import Loopback
from tests.support.project import Project, processes_of

RUN = [sys.executable, "-c", "from imagegen.cli import main; main()"]
LIST = ["list", "cpu-grpo"]  # the whole list judges every image


class Silent(Loopback):
    """Takes requests and never answers them; `requested` is set with the first."""

    def __init__(self) -> None:
        self.requested, self.over = threading.Event(), threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requested.set()
                server.over.wait(60)

        super().__init__(Handler)

    def close(self) -> None:
        self.over.set()
        super().close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


@pytest.mark.fault(
    "Killed and damaged",
    "SIGINT, SIGTERM or SIGHUP while a lock is made, also twice in a row",
    "one line, exit code 128 + signal; no process, no temporary file, and the lock as it was",
)
@pytest.mark.parametrize(
    ("number", "said", "delay"),
    [
        *((signal.SIGINT, "interrupted", delay) for delay in (0.2, 0.5, None)),
        (signal.SIGTERM, "terminated", None),
        (signal.SIGHUP, "hung up", None),
    ],
)
def test_a_signal_ends_all_in_one_line(
    number: signal.Signals, said: str, delay: float | None, silent: Silent, tmp_path: Path
) -> None:
    project = Project(tmp_path / "project", env={"PIP_INDEX_URL": f"http://{silent.host}/simple"})
    before = project.lock.read_bytes()
    with project.start("lock", "demo") as process:
        if delay is None:
            assert silent.requested.wait(30)
        else:
            time.sleep(delay)
        process.send_signal(number)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number, err
    assert err.splitlines()[-1].partition(";")[0] == said
    assert "Traceback" not in err
    assert processes_of(project.root) == []
    assert project.leftovers() == []
    assert project.lock.read_bytes() == before


def test_a_second_signal_while_python_ends_changes_nothing() -> None:
    program = "import atexit, signal, imagegen.cli.commands as c; atexit.register(signal.raise_signal, 2); "
    program += "c.run = lambda: signal.raise_signal(2); from imagegen.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_ignored_signal_stays_ignored() -> None:
    program = "import signal, imagegen.cli.commands as c; c.run = lambda: signal.raise_signal(1) or 7; "
    program += "from imagegen.cli import main; main()"
    line = f"trap '' HUP; exec {sys.executable} -c '{program}'"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")  # the exit code is what run returned


def crash(statement: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """imagegen, where any command runs `statement` instead."""
    program = textwrap.dedent("""
        import sys, imagegen.cli.commands as commands
        from imagegen.cli import main
        def run():
            STATEMENT
        commands.run = run
        main()
    """).replace("STATEMENT", statement)
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("raise ValueError('two\\nlines \\x1b[31m of https://me:s3cret@host/')", 70),
        ("raise OSError(28, 'No space left on device')", 69),
        ("raise BrokenPipeError(32, 'Broken pipe')", 70),  # to a program, not of stdout
        ("raise RecursionError", 70),
        ("raise MemoryError", 70),
        ("from imagegen.core.errors import LockError; raise LockError('x https://me:s3cret@host/')", 67),
    ],
)
def test_no_error_shows_a_traceback_unasked_nor_a_secret_ever(statement: str, code: int) -> None:
    done = crash(statement)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert code != 70 or "--debug" in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    requested = crash(statement, "--debug")
    assert requested.returncode == code
    assert "Traceback" in requested.stderr
    assert "s3cret" not in done.stderr + requested.stderr
    assert "\x1b" not in done.stderr + requested.stderr


@pytest.mark.fault("Disk", "stdout is a full disk", "one sentence and an exit code; with a reader who has gone: quiet")
@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [(LIST, ""), (LIST, "1"), (["render", "cpu-grpo"], ""), (["--help"], "")],
)
def test_output_that_cannot_be_written(arguments: list[str], unbuffered: str, shared: Path, golden: Golden) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(shared / "cache"), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run([*RUN, *arguments], stdout=full, stderr=subprocess.PIPE, env=env, text=True, check=False)
    assert done.returncode == 76
    golden.check(done.stderr)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*RUN, *arguments], stdout=writer, stderr=subprocess.PIPE, env=env, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_streams_do_no_harm(shared: Path) -> None:
    """The first opened file must not get the number of a closed stream: children would write into it."""
    env = {**os.environ, "XDG_CACHE_HOME": str(shared / "cache")}
    line = f"{sys.executable} -c 'from imagegen.cli import main; main()' list cpu-grpo <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], env=env, check=False).returncode == 0


@pytest.mark.parametrize(
    "env", [{"TERM": "dumb"}, {"COLUMNS": "20"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
@pytest.mark.parametrize("arguments", [["show", "cpu-grpo"], ["nonsense"]])
def test_terminals_of_every_kind(env: dict[str, str], arguments: list[str], shared: Path) -> None:
    """On a real terminal (a pty), one that can little."""
    parent, child = pty.openpty()
    env = {**os.environ, "XDG_CACHE_HOME": str(shared / "cache"), **env}
    env.pop("NO_COLOR", None)
    with subprocess.Popen([*RUN, *arguments], stdout=child, stderr=child, stdin=child, env=env) as process:
        os.close(child)
        text = b""
        while True:
            try:
                text += os.read(parent, 1 << 16)
            except OSError:  # the terminal's other side is closed
                break
    os.close(parent)
    assert process.returncode == (64 if arguments == ["nonsense"] else 0), text
    assert b"Traceback" not in text
    assert env.get("TERM") != "dumb" or b"\x1b" not in text


@pytest.mark.fault(
    "Shared store", "a umask under which everybody may write everywhere", "other users may not write to the store"
)
def test_no_umask_opens_the_store_to_everybody(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([*RUN, *LIST], env=env, cwd=tmp_path, umask=0, check=True, stdout=subprocess.DEVNULL)
    open_to_all = [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_mode & 0o002]
    assert (tmp_path / "cache" / "imagegen" / "store" / "blobs").is_dir()
    assert not open_to_all


@pytest.mark.fault("Disk", "a limit on the length of files (ulimit -f)", "said with its reason; nothing is kept")
def test_a_limit_on_the_length_of_files(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *RUN, *LIST]
    done = subprocess.run(limited, env=env, cwd=tmp_path, check=False, capture_output=True)
    assert done.returncode == 69
    assert b"File too large" in done.stderr


def test_a_file_where_the_rendered_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "cpu-grpo-cpu-py311").touch()
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [*RUN, "render", "cpu-grpo", "-o", str(tmp_path)]
    done = subprocess.run(command, env=env, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 69
    assert "error[store-output-is-file]" in done.stderr


LOST = """
import ctypes, signal, time, imagegen.cli.commands as c
from imagegen.cli import main

def compare(one, other):
    if not done:
        done.append(1)
        signal.raise_signal(2)
    return 0

done = []
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

def run():
    ctypes.CDLL(None).qsort(ctypes.create_string_buffer(8), 2, 4, kind(compare))
    END

c.run = run
main()
"""


@pytest.mark.fault(
    "Killed and damaged",
    "SIGINT while a C library runs our code and drops its exception",
    "the run ends as at any other time, also if an error follows from it",
)
@pytest.mark.parametrize("end", ["time.sleep(20)", "raise ValueError('what the library made of it')"])
def test_a_signal_is_not_lost_in_a_callback(end: str) -> None:
    program = [sys.executable, "-c", LOST.replace("END", end)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=10)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
