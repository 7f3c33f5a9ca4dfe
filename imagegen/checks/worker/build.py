"""Compile one wheel from its sources, measure what that takes, and report why a build failed.

    python -I build.py --spec spec.json --sources DIR --work DIR --out DIR [--throttle FILE]
    python -I build.py probe

Speaks in lines `@imagegen {json}` on stdout: start, progress, done or failed; of `probe`, what the machine has. The
compilers' own output goes to build.log in the work folder, since engines cut long output off; its end is printed where
the build fails. Exit code: 0 done, 1 failed, 2 refused before anything was compiled.

In the work folder stay sources and objects of a build that failed or was stopped: the next one goes on from there, as
long as its description and sources are the same. Standard library only, Python 3.10 or newer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if not __package__:  # as a program (PEP 366): its folder is the package, whatever it is called
    sys.path.insert(0, str(HERE.parent))
    __package__ = HERE.name

from . import requires, source, units
from .compiling import Attempt, Throttle, compile_wheel, emit
from .errors import Refused
from .memory import machine
from .repack import finish

_FIELDS = {
    "name": str,
    "version": str,
    "source": str,
    "build_requires": list,
    "env": dict,
    "epoch": int,
}


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["probe"]:
        emit({"event": "probe", **machine()})
        return 0
    parser = argparse.ArgumentParser(prog="build.py", description="compile one wheel")
    for name in ("--spec", "--sources", "--work", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--throttle", type=Path)
    options = parser.parse_args(arguments)
    try:
        spec, throttle = read_spec(options.spec), read_throttle(options.throttle)
        work, out = options.work.resolve(), options.out.resolve()
        runs = prepare(spec, options.sources.resolve(), work)
    except (Refused, OSError) as error:
        emit({"event": "failed", "cause": getattr(error, "cause", "refused"), "what": str(error)})
        return 2
    attempt = compile_wheel(spec, throttle, work)
    runs = [*runs, attempt.record]
    _write_state(work, {**_read_state(work), "runs": runs})
    if attempt.failure is None:
        return _done(spec, work, out, attempt, runs)
    print("\n".join(attempt.log), flush=True)
    emit({"event": "failed", **attempt.record, "cause": attempt.failure.cause, "what": attempt.failure.what})
    return 1


def read_spec(path: Path) -> dict[str, Any]:
    """Read the description of the build. Raises Refused."""
    spec = _json(path)
    if spec.get("format") != 2:
        raise Refused(f"{path.name}: format {spec.get('format')!r} is not known to this worker")
    for name, kind in _FIELDS.items():
        if not isinstance(spec.get(name), kind):
            raise Refused(f"{path.name}: {name} must be a {kind.__name__}")
    for name in [spec["source"], *spec["build_requires"]]:
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
            raise Refused(f"{path.name}: {name!r} is no file name")
    return {"jobs": None, "threads": None, "modules": [], "units": None, **spec}


def read_throttle(path: Path | None) -> Throttle:
    """Read the number of jobs and threads; without a file both are 1. Raises Refused."""
    if path is None or not path.exists():
        return Throttle(1, 1)
    given = _json(path)
    jobs, threads = given.get("jobs", 1), given.get("threads", 1)
    if not all(isinstance(number, int) and number > 0 for number in (jobs, threads)):
        raise Refused(f"{path.name}: jobs and threads must be numbers from 1")
    return Throttle(jobs, threads)


def prepare(spec: Mapping[str, Any], sources: Path, work: Path) -> list[dict[str, Any]]:
    """Unpack sources and build requirements; return the records of the interrupted runs that this one continues.

    Raises Refused.
    """
    for name in [spec["source"], *spec["build_requires"]]:
        if not (sources / name).is_file():
            raise Refused(f"{name} is not in {sources}")
    identity = source.identity(spec, sources, sys.executable)
    work.mkdir(parents=True, exist_ok=True)
    known = _read_state(work)
    if known.get("identity") != identity:
        empty(work)
        source.prepare(spec, sources, work / "source")
        wheels = [sources / name for name in spec["build_requires"]]
        requires.unpack(wheels, work / "requires", work / "programs", sys.executable)
        _write_state(work, {"identity": identity, "runs": []})
        known = {}
    for name in ("tmp", "dist", "home"):
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).mkdir()
    runs: list[dict[str, Any]] = known.get("runs", [])
    return runs


def empty(folder: Path) -> None:
    """Remove the folder's contents, not the folder, which may be a mount."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _done(spec: Mapping[str, Any], work: Path, out: Path, attempt: Attempt, runs: list[dict[str, Any]]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    try:
        wheel = finish(spec, work / "dist", out)
    except Refused as error:
        emit({"event": "failed", **attempt.record, "cause": error.cause, "what": str(error)})
        return 1
    times = units.seconds(work / "source")
    record = {
        **wheel,
        "runs": runs,
        "seconds": round(sum(run["seconds"] for run in runs), 1),
        "memory": max(run["memory"] for run in runs),
        "largest": max(run["largest"] for run in runs),
        "process": max(runs, key=lambda run: int(run["largest"]))["process"],
        "units": len(times) or attempt.record["done"],
        "unit_seconds": {"sum": round(sum(times), 1), "longest": round(times[0], 1)} if times else None,
        "toolchain": attempt.toolchain,
        "flags": units.flags(work / "source"),
        "env": spec["env"],
    }
    (out / "record.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    shutil.copyfile(work / "build.log", out / "build.log")
    empty(work)
    emit({"event": "done", **attempt.record, "wheel": wheel["wheel"], "sha256": wheel["sha256"]})
    return 0


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refused(f"{path.name}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(f"{path.name}: no object")
    return found


def _read_state(work: Path) -> dict[str, Any]:
    try:
        return _json(work / "state.json")
    except (OSError, Refused):
        return {}


def _write_state(work: Path, state: Mapping[str, Any]) -> None:
    part = work / "state.json.part"
    part.write_text(json.dumps(state))
    part.replace(work / "state.json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
