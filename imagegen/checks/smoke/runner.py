"""Runs checks, each as a process of its own, and prints one JSON line for each as it finishes.

    python -m smoke.runner SPEC [--times FACTOR] [--seconds LIMIT] [CHECK ...]

FACTOR multiplies the limit of each check: an emulated processor is slow. LIMIT is for all checks together: the one
that runs then fails with the end of its log.
What a program can do wrong is an answer too: dying from a signal is "crash" with the signal's name; no output, output
that is not the promised JSON, and running past the time limit are "fail".
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smoke.forks import signal_name
from smoke.program import SECONDS
from smoke.table import CHECKS, Check, applicable

ROOT = Path(__file__).resolve().parent.parent  # the folder that holds the package `smoke`
LONGEST = 1 << 20  # bytes of each output stream that are read, from its end: the host reads 8 MiB of the answer
LOG_LINES = 120  # an engine of several processes says why it died far above its last traceback
KILLED_HINT = "; the kernel may have ended it for want of memory"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="smoke.runner")
    parser.add_argument("spec")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("checks", nargs="*")
    given = parser.parse_intermixed_args(arguments)
    fields = json.loads(Path(given.spec).read_text(encoding="utf-8"))
    unknown = set(given.checks) - {check.name for check in CHECKS}
    if unknown:
        sys.exit(f"no such check: {', '.join(sorted(unknown))}")
    deadline = time.monotonic() + given.seconds
    for check in applicable({*fields["versions"], *fields["env"]}, given.checks):
        left = max(1.0, deadline - time.monotonic())
        limited = replace(check, timeout=math.ceil(min(check.timeout * given.times, left)))
        print(json.dumps(run(limited, command(check, given.spec))), flush=True)


def command(check: Check, spec: str) -> list[str]:
    return [sys.executable, "-m", "smoke.entry", check.name, str(Path(spec).resolve())]


def run(check: Check, argv: Sequence[str]) -> dict[str, Any]:
    """The check's answer with `seconds`, and the end of its stderr as `log` where it did not pass."""
    start = time.monotonic()
    # Files, not pipes: a grandchild that outlives the check would hold a pipe open for ever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", SECONDS: str(check.timeout)},
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(check.timeout)
        except subprocess.TimeoutExpired:
            code = None
        _end_session(process)
        seconds = time.monotonic() - start
        texts = []
        for stream in (out, err):
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - LONGEST))
            texts.append(stream.read().decode("utf-8", "replace"))
    result = {"check": check.name, **verdict(check, code, texts[0]), "seconds": round(seconds, 2)}
    if result["status"] not in ("pass", "skip"):
        result["log"] = "\n".join(texts[1].splitlines()[-LOG_LINES:])
    return result


def verdict(check: Check, code: int | None, output: str) -> dict[str, Any]:
    """Return the status of an exit code (negative: a signal; None: still running at its limit) and an output."""
    lines = [line for line in output.splitlines() if line.strip()]
    when = f"at: {lines[-1][:200]}" if lines else "before it said anything"
    if code is None:
        return _no("fail", f"still running after {check.timeout} s, {when}")
    if code < 0:
        name = signal_name(-code)
        return _no("crash", f"killed by {name} {when}{KILLED_HINT if name == 'SIGKILL' else ''}", {"signal": name})
    if not lines:
        return _no("fail", f"exit code {code} and no output: nothing was proven")
    answer = _parse(lines[-1])
    if answer is None or answer["check"] != check.name:
        return _no("fail", f"exit code {code} and no result in its last line: {lines[-1][:200]}")
    if code != (answer["status"] == "fail"):
        return _no("fail", f"said {answer['status']} and then ended with exit code {code}", answer["details"])
    return {"status": answer["status"], "reason": answer["reason"], "details": answer["details"]}


def _parse(line: str) -> dict[str, Any] | None:
    """The promised object, or None."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("details"), dict):
        return None
    if not all(isinstance(answer.get(key), str) for key in ("check", "reason")):
        return None
    return answer if answer.get("status") in ("pass", "fail", "skip") else None


def _no(status: str, reason: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"status": status, "reason": reason, "details": details or {}}


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever the check left running, itself included; its session is its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
