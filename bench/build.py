"""How long imagegen's own builds take, and how much memory: cold, unchanged, one pin; to the store and to Docker.

    python bench/build.py [IMAGE] [REPEAT]

Each cold build has an empty store. The pin that changes is filelock's, a small pure-Python package in a shared layer.
Needs an engine that answers (`imagegen engine up --if-needed`); leaves the images it loaded. Prints medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import yaml

from imagegen import lock, matrix
from imagegen.config import Settings
from imagegen.data import shipped
from imagegen.engine import Engine

PIN = "filelock"


def children(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [each for child in task.read_text().split() for each in children(int(child))]
        except OSError:
            continue
    return found


def memory(pid: int) -> int:
    """Bytes of the process tree, shared pages counted once (PSS)."""
    total = 0
    for each in children(pid):
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
    return total


def run(project: Path, cache: Path, docker_host: str | None, *arguments: str) -> tuple[float, int]:
    """(seconds, peak bytes) of one `imagegen`."""
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)} | ({"DOCKER_HOST": docker_host} if docker_host else {})
    command = [sys.executable, "-c", "from imagegen.cli import main; main()", "--project", str(project), *arguments]
    start = time.monotonic()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    said = process.communicate()[1]
    seconds = time.monotonic() - start
    watcher.join()
    if process.returncode:
        sys.exit(f"{arguments}: exit code {process.returncode}\n{said}")
    return seconds, peak


def changed(project: Path, image: str, cell: str) -> None:
    """A project whose image is the shipped one with an older release of one small package."""
    entry = next(
        document["images"][image]
        for path in sorted(shipped("matrices").rglob("*.yaml"))
        if image in (document := yaml.safe_load(path.read_text())).get("images", {})
    )
    locked = {wheel.name: wheel.version for wheel in lock.read(shipped("locks") / f"{cell}.toml").wheels}
    entry["override"] = True
    entry["components"][PIN] = {"version": f"<{locked[PIN]}", "because": "One pin changed, for the benchmark."}
    component = {"description": "File locks.", "imports": [PIN]}
    (project / "matrices").mkdir()
    document = {"components": {PIN: component}, "images": {image: entry}}
    (project / "matrices" / "mine.yaml").write_text(yaml.safe_dump(document))
    (project / "locks").mkdir()
    (project / "locks" / f"{cell}.toml").write_bytes((shipped("locks") / f"{cell}.toml").read_bytes())


def main(image: str, repeat: int) -> None:
    (cell,) = matrix.load([shipped("matrices")]).select(image)
    with Engine.connect(Settings.from_environment(os.environ)) as engine:
        host = engine.private.docker_host if engine.private else os.environ.get("DOCKER_HOST")
    results: dict[str, list[tuple[float, int]]] = {}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as name:
            room = Path(name)
            plain, other = room / "plain", room / "other"
            plain.mkdir()
            other.mkdir()
            changed(other, image, cell.id)

            def measure(what: str, project: Path, *arguments: str, room: Path = room) -> None:
                results.setdefault(what, []).append(run(project, room / "cache", host, *arguments))

            to_store = ("build", cell.id, "--output")
            measure("cold, to the store", plain, *to_store, f"oci:{room}/a")
            measure("unchanged, to the store", plain, *to_store, f"oci:{room}/b")
            measure("load into Docker (nothing, where it has the image)", plain, "build", cell.id, "--no-test")
            measure("unchanged, in Docker", plain, "build", cell.id, "--no-test")
            measure("(lock with one pin changed)", other, "lock", cell.id)
            measure("one pin, to the store", other, *to_store, f"oci:{room}/c")
            measure("one pin, into Docker", other, "build", cell.id, "--no-test")
    for what, runs in results.items():
        seconds, peak = (statistics.median(values) for values in zip(*runs, strict=True))
        print(json.dumps({"what": what, "seconds": round(seconds, 2), "peak MB": round(peak / 1e6), "runs": len(runs)}))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu-grpo", int(sys.argv[2]) if len(sys.argv) > 2 else 3)
