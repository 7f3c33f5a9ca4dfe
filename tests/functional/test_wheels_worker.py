"""The worker as a program: it builds, resumes, stops, and says what went wrong. The backend here compiles nothing."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import imagegen.checks.worker.build as worker

PROGRAM = str(Path(worker.__file__).resolve())
EPOCH = 1_700_000_000
BACKEND = """
import os, subprocess, sys, time, zipfile
from pathlib import Path

def build_wheel(folder, *_):
    print("@ninja 1 3 @ cc -c a.c -o a.o")
    Path("object").write_text(Path("object").read_text() + "x" if Path("object").exists() else "x")
    Path("environment").write_text(repr(dict(os.environ)) + repr(sys.path))
    exec(os.environ["DO"])
    with zipfile.ZipFile(Path(folder, "it-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("it.so", "elf")
        wheel.writestr("environment", Path("environment").read_text())
        wheel.writestr("object", Path("object").read_text())
        wheel.writestr("it-1.0.dist-info/RECORD", "")
    return "it-1.0-py3-none-any.whl"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with sources/it-1.0.tar.gz."""
    (tmp_path / "sources").mkdir()
    files = {"pyproject.toml": '[build-system]\nbuild-backend = "mine"\nbackend-path = ["."]\n', "mine.py": BACKEND}
    with tarfile.open(tmp_path / "sources/it-1.0.tar.gz", "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"it-1.0/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    return tmp_path


def command(place: Path, do: str, **change: Any) -> list[str]:
    spec = {"format": 2, "name": "it", "version": "1.0", "source": "it-1.0.tar.gz", "units": 3}
    spec |= {"build_requires": [], "env": {"DO": do}, "modules": ["it"], "epoch": EPOCH, "jobs": "JOBS"} | change
    (place / "spec.json").write_text(json.dumps(spec))
    folders = ["--sources", str(place / "sources"), "--work", str(place / "work"), "--out", str(place / "out")]
    return [sys.executable, "-I", PROGRAM, "--spec", str(place / "spec.json"), *folders]


def run(place: Path, do: str = "", *more: str, **change: Any) -> tuple[int, list[dict[str, Any]]]:
    """(exit code, what it says)."""
    env = {"PATH": os.environ["PATH"], "CALLERS": "own"}
    argv = [*command(place, do, **change), *more]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, events(done.stdout)


def events(said: str) -> list[dict[str, Any]]:
    mark = "@imagegen "
    return [json.loads(line.removeprefix(mark)) for line in said.splitlines() if line.startswith(mark)]


def ended(pid: int) -> bool:
    """Return whether it ends within seconds; a zombie (state Z) has ended."""
    for _ in range(100):
        try:
            state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def member(place: Path, name: str) -> str:
    with zipfile.ZipFile(place / "out/it-1.0-py3-none-any.whl") as wheel:
        return wheel.read(name).decode()


def test_a_build_leaves_a_wheel_a_record_and_an_empty_folder(place: Path) -> None:
    (place / "throttle.json").write_text('{"jobs": 3, "threads": 1}')
    code, said = run(place, "x = bytearray(60 << 20); time.sleep(0.8)", "--throttle", str(place / "throttle.json"))
    assert code == 0
    assert [event["event"] for event in said] == ["start", "progress", "done"]
    assert said[0] | {"total": 3, "jobs": 3, "done": 0, "version": "1.0"} == said[0]
    record = json.loads((place / "out/record.json").read_text())
    assert record["wheel"] == said[-1]["wheel"] == "it-1.0-py3-none-any.whl"
    assert 60 << 20 < record["memory"] < 200 << 20
    assert record["largest"] >= record["memory"] and record["process"].startswith("python")
    assert record["toolchain"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert list((place / "work").iterdir()) == []
    assert "@ninja 1 3" in (place / "out/build.log").read_text()
    environment = member(place, "environment")
    assert "CALLERS" not in environment and "'JOBS': '3'" in environment
    assert f"'SOURCE_DATE_EPOCH': '{EPOCH}'" in environment
    assert str(Path(PROGRAM).parent) not in environment, "the worker's own modules could be taken for others"


def test_a_build_without_a_throttle_runs_one_job(place: Path) -> None:
    assert run(place, "", "--throttle", str(place / "missing"))[0] == 0
    assert "'JOBS': '1'" in member(place, "environment")


def test_what_failed_goes_on_where_it_was(place: Path) -> None:
    starved = "if len(Path('object').read_text()) == 1: print('Killed', flush=True); sys.exit(1)"
    code, said = run(place, starved)
    assert (code, said[-1]["event"], said[-1]["cause"]) == (1, "failed", "memory")
    (place / "throttle.json").write_text('{"jobs": 1}')
    assert run(place, starved, "--throttle", str(place / "throttle.json"))[0] == 0
    assert member(place, "object") == "xx"
    assert len(json.loads((place / "out/record.json").read_text())["runs"]) == 2


def test_another_description_starts_afresh(place: Path) -> None:
    assert run(place, "sys.exit(1)")[0] == 1
    assert run(place, "")[0] == 0
    assert member(place, "object") == "x"


def test_a_stopped_build_ends_its_children_and_keeps_what_it_has(place: Path) -> None:
    do = "child = subprocess.Popen(['sleep', '1000'], start_new_session=True); print(child.pid); "
    do += "Path('pid').write_text(str(child.pid)); print('@ninja 2 3 @ cc', flush=True); time.sleep(1000)"
    with subprocess.Popen(command(place, do), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any('"done": 2' in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 1
    assert events(rest)[-1]["cause"] == "stopped"
    child = int((place / "work/source/pid").read_text())
    assert ended(child)
    assert (place / "work/source/object").read_text() == "x"


def test_what_a_backend_leaves_running_does_not_hold_the_build(place: Path) -> None:
    assert run(place, "subprocess.Popen(['sleep', '1000'], start_new_session=True)")[0] == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"source": "other.tar.gz"}, r"other\.tar\.gz is not in"),
        ({"build_requires": ["../x"]}, "'../x' is no file name"),
        ({"build_requires": ["x.whl"]}, r"x\.whl is not in"),
        ({"format": 1}, "format 1 is not known"),
        ({"epoch": "1"}, "epoch must be a int"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_done(
    place: Path, capsys: pytest.CaptureFixture[str], change: Mapping[str, Any], why: str
) -> None:
    assert worker.main(command(place, "", **change)[3:]) == 2
    (event,) = events(capsys.readouterr().out)
    assert event["cause"] == "refused"
    assert re.search(why, event["what"])


def test_a_wheel_without_its_modules_is_a_failure(place: Path) -> None:
    code, said = run(place, "", modules=["it", "missing"])
    assert (code, said[-1]["cause"]) == (1, "empty")
    assert "missing" in said[-1]["what"]


def test_probe_says_what_the_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.main(["probe"]) == 0
    (event,) = events(capsys.readouterr().out)
    assert event.keys() == {"event", "cores", "memory", "available", "limit", "swap"}
