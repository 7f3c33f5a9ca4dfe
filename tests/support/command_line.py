"""The command line in this process: its project, exit code and output."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import click
import pytest

from imagegen import lock
from imagegen.cli import main
from imagegen.core.compiled import TreeResults
from imagegen.core.data import shipped
from imagegen.lock.model import Lock
from tests.support.shipped_locks import shipped_lock

IMAGE = """\
images:
  odd:
    description: Odd.
    purpose: >-
      For users of uvicorn[standard], who read a purpose that is longer than any terminal of eighty columns
      is wide, :smile: … [red]as this one is[/red].
    base: debian12
    components:
      numpy:
        because: Tests.
"""


@dataclass
class Ended:
    code: object
    out: str
    err: str


Run = Callable[..., Ended]
_SHIPPED = [shipped("matrices"), shipped("wheels")]
RESULTS: dict[tuple[bool, str, str, tuple[str, ...]], Any] = {}


def compiled_once(
    results: TreeResults,
    kind: str,
    subject: str,
    compute: Callable[[], Any],
    *inputs: str | None,
    usual: Callable[..., Any] = TreeResults.of,
) -> Any:
    """Return a result over shipped files, or over the project as `run` makes it, once computed; of others as usual."""
    known = tuple(each for each in inputs if each is not None)
    has_image = _has_image(results.directories)
    if len(known) < len(inputs) or not (has_image or results.directories == _SHIPPED):
        return usual(results, kind, subject, compute, *inputs)
    key = (has_image, kind, subject, known)
    if key not in RESULTS:
        RESULTS[key] = compute()
    return RESULTS[key]


def _has_image(directories: Sequence[Path]) -> bool:
    """Return whether the directories are the shipped ones and a project's as `run` makes it."""
    own = directories[-1]
    return (
        directories == [*_SHIPPED, own]
        and own.name == "matrices"
        and [path.read_text() for path in own.rglob("*") if path.is_file()] == [IMAGE]
    )


def _load_lock(text: str, path: Path, usual: Callable[..., Lock] = lock.loads) -> Lock:
    return shipped_lock(path.stem) if path.parent == shipped("locks") else usual(text, path)


def keep_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line leave the handlers of signals as the tests have them."""
    monkeypatch.setattr(sys.modules["imagegen.cli.main"], "SIGNALS", {})


def call(
    *arguments: str, env: Mapping[str, str], directory: Path, command: click.Command | None = None
) -> subprocess.CompletedProcess[str]:
    """Run imagegen, or a command of tools/, in this process, which saves a second."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_signals(monkeypatch)
        monkeypatch.setattr(sys, "argv", ["imagegen", *arguments])
        with (
            mock.patch.dict(os.environ, env, clear=True),
            contextlib.chdir(directory),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main(command)
    return subprocess.CompletedProcess(arguments, cast("int", ended.value.code), out.getvalue(), err.getvalue())


def runner(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    project: Path,
    command: click.Command | None = None,
) -> Run:
    """Return a function that runs imagegen, or a command of tools/, with its arguments in `project`."""
    (project / "matrices").mkdir()
    (project / "matrices" / "odd.yaml").write_text(IMAGE)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    keep_signals(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    monkeypatch.setattr(TreeResults, "of", compiled_once)
    monkeypatch.setattr(lock, "loads", _load_lock)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["imagegen", "--project", str(project), *arguments])
        with pytest.raises(SystemExit) as ended:
            main(command)
        return Ended(ended.value.code, *capsys.readouterr())

    return run
