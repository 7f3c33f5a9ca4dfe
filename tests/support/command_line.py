"""The command line in this process: its project, exit code and output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from imagegen.app.session import Session
from imagegen.cli import main
from imagegen.cli.app import App
from imagegen.core.data import shipped
from imagegen.plan import lock, rules
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix import Matrix
from imagegen.plan.matrix.model import Cell, Rule
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
_LOAD: Callable[[App], Matrix] = vars(Session)["matrix"].func
_LOADED: list[Matrix] = []


def _matrix(app: App, load: Callable[[App], Matrix] = _LOAD) -> Matrix:
    """An app's matrix; that of the project as `run` makes it is loaded and checked once for all tests."""
    files = [path for name in ("matrices", "wheels") for path in (app.project / name).rglob("*")]
    if [path.read_text() for path in files if path.is_file()] != [IMAGE]:
        return load(app)
    if not _LOADED:
        _LOADED.append(load(app))
    return _LOADED[0]


_ANSWERS: dict[tuple[str, ...], dict[str, rules.CellAnswer]] = {}


def _answers(
    cells: Sequence[Cell],
    given: Iterable[Rule],
    library: rules.MetadataCache,
    judge: Callable[..., dict[str, rules.CellAnswer]] = rules.cell_answers,
) -> dict[str, rules.CellAnswer]:
    """Return the answers about cells; those of the matrix that is loaded once are found once."""
    if not _LOADED or given is not _LOADED[0].rules:
        return judge(cells, given, library)
    names = tuple(cell.id for cell in cells)
    if names not in _ANSWERS:
        _ANSWERS[names] = judge(cells, given, library)
    return _ANSWERS[names]


def _read_lock(path: Path, *more: Path | None, read: Callable[..., Lock] = lock.read) -> Lock:
    return shipped_lock(path.stem) if path.parent == shipped("locks") else read(path, *more)


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], project: Path) -> Run:
    """Return a function that runs imagegen with its arguments in `project`."""
    (project / "matrices").mkdir()
    (project / "matrices" / "odd.yaml").write_text(IMAGE)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys.modules["imagegen.cli.main"], "_SIGNALS", {})  # they stay the tests' own
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    shared = cached_property(_matrix)
    shared.__set_name__(App, "matrix")
    monkeypatch.setattr(App, "matrix", shared)
    monkeypatch.setattr(rules, "cell_answers", _answers)
    monkeypatch.setattr(lock, "read", _read_lock)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["imagegen", "--project", str(project), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code, *capsys.readouterr())

    return run
