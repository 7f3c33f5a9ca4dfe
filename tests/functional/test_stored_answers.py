"""Answers that are printed again, and each input whose change gives another answer."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# A command that prints another text in each run. It reads one file, one directory and the presence of two paths.
PROGRAM = """
import os, sys, types
from pathlib import Path
from imagegen.cli import stored_answers

stored_answers._UNSETTLED = 0
commands = sys.modules["imagegen.cli.commands"] = types.ModuleType("commands")

def run():
    stored_answers.watch([Path("watched"), Path("present")])
    for name in ("file", "absent"):
        if os.path.exists(name):
            open(name).read()
        else:
            try:
                open(name)
            except FileNotFoundError:
                pass
    os.listdir("directory")
    print("first", os.urandom(8).hex(), flush=True)
    print("second", os.urandom(8).hex(), file=sys.stderr, flush=True)
    print("third")
    {more}

commands.run = run
from imagegen.cli import main
main()
"""
PROGRAM = PROGRAM.replace("os.urandom(8).hex()", "id(object()) + __import__('time').time_ns()")


@dataclass
class Machine:
    """A project, and the surroundings of a command."""

    root: Path
    more: str = "pass"
    arguments: tuple[str, ...] = ("list",)
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "project"

    def ask(self) -> str:
        """Run the command, and return stdout and stderr in their order."""
        return self.run(stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.decode()

    def run(self, **streams: int) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, *self.options, "-P", "-c", PROGRAM.replace("{more}", self.more), *self.arguments],
            cwd=self.root / self.cwd,
            env={**os.environ, "XDG_CACHE_HOME": str(self.root / "cache"), **self.env},
            stdin=subprocess.DEVNULL,
            check=False,
            **streams,  # type: ignore[call-overload]
        )

    @property
    def entries(self) -> list[Path]:
        return list((self.root / "cache" / "imagegen" / "answers").glob("*"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name in ("project", "other"):
        (tmp_path / name / "directory").mkdir(parents=True)
        (tmp_path / name / "file").write_text("content")
        (tmp_path / name / "present").touch()
    return Machine(tmp_path)


def test_the_answer_is_repeated_when_nothing_changed(machine: Machine) -> None:
    answers = {machine.ask() for _ in range(3)}
    (answer,) = answers
    assert [line.split()[0] for line in answer.splitlines()] == ["first", "second", "third"]
    assert machine.entries[0].stat().st_mode & 0o022 == 0


def test_streams_are_separate_in_a_stored_answer(machine: Machine) -> None:
    runs = [machine.run(stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stderr == runs[1].stderr
    assert runs[1].stdout.split()[0] == b"first"


def _edit(machine: Machine) -> None:
    """Change a file, and restore size and time."""
    path = machine.root / "project" / "file"
    status = path.stat()
    path.write_text("CONTENT")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace(machine: Machine) -> None:
    path = machine.root / "project" / "file"
    path.rename(path.with_name("old"))
    path.write_text("content")


CHANGES: dict[str, Callable[[Machine], object]] = {
    "an argument": lambda machine: setattr(machine, "arguments", ("list", "cpu-grpo")),
    "another command": lambda machine: setattr(machine, "arguments", ("matrix",)),
    "the working directory": lambda machine: setattr(machine, "cwd", "other"),
    "a variable of imagegen": lambda machine: machine.env.update(IMAGEGEN_MIRROR="/mirror"),
    "a variable of the terminal": lambda machine: machine.env.update(COLUMNS="40"),
    "NO_COLOR": lambda machine: machine.env.update(NO_COLOR="1"),
    "the home directory": lambda machine: machine.env.update(HOME="/nowhere"),
    "the locale": lambda machine: machine.env.update(LC_ALL="C", PYTHONIOENCODING="ascii"),
    "the cache": lambda machine: machine.env.update(XDG_CACHE_HOME=str(machine.root / "other-cache")),
    "a flag of Python": lambda machine: setattr(machine, "options", ("-O",)),
    "the content of a file": _edit,
    "another file of the same content": _replace,
    "the mode of a file": lambda machine: (machine.root / "project" / "file").chmod(0o600),
    "a removed file": lambda machine: (machine.root / "project" / "file").unlink(),
    "a file that was absent": lambda machine: (machine.root / "project" / "absent").touch(),
    "an entry of a directory": lambda machine: (machine.root / "project" / "directory" / "new").touch(),
    "a watched path that was absent": lambda machine: (machine.root / "project" / "watched").mkdir(),
    "a watched path that was present": lambda machine: (machine.root / "project" / "present").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_answer_is_computed_again_when_an_input_changes(
    machine: Machine, change: Callable[[Machine], object]
) -> None:
    first = machine.ask()
    assert machine.ask() == first
    change(machine)
    assert machine.ask() != first


def test_the_answer_is_computed_again_when_the_code_changes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine.ask()
    other_code = "from imagegen.core import compiled; compiled.digest_of_code = lambda: 'other'"
    monkeypatch.setitem(globals(), "PROGRAM", other_code + PROGRAM)
    assert machine.ask() != first


def test_a_terminal_has_an_answer_of_its_own(machine: Machine) -> None:
    first = machine.ask()
    terminal, device = pty.openpty()
    try:
        machine.run(stdout=device, stderr=device)
        answer = os.read(terminal, 4096).decode()
    finally:
        os.close(terminal)
        os.close(device)
    assert answer.split()[1] != first.split()[1]


@pytest.mark.parametrize(
    "more",
    [
        "open('written', 'w').close()",
        "os.rename('file', 'renamed'); os.rename('renamed', 'file')",
        "__import__('subprocess').run(['true'])",
        "__import__('socket').socket(__import__('socket').AF_UNIX).connect_ex('nothing')",
        "open('/proc/uptime').read()",
        "stored_answers.watch(None)",
        "open('directory/new', 'w').close(); os.unlink('directory/new')",
        "print('x' * (2 << 20))",
        "return 1",
        "sys.exit(0)",
        "raise ValueError",
    ],
)
def test_an_answer_is_not_stored_when_it_depends_on_more(machine: Machine, more: str) -> None:
    machine.more = more
    machine.ask()
    assert machine.entries == []


def test_an_answer_is_not_stored_when_a_file_changed_just_now(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PROGRAM", PROGRAM.replace("_UNSETTLED = 0", "_UNSETTLED = 60 * 10**9"))
    machine.ask()
    assert machine.entries == []


@pytest.mark.parametrize(
    "arguments", ["build cpu-grpo", "lock cpu-grpo", "show --size cpu-grpo", "wheels list", "why list", "--help list"]
)
def test_other_commands_have_no_stored_answer(machine: Machine, arguments: str) -> None:
    machine.arguments = tuple(arguments.split())
    machine.ask()
    assert machine.entries == []


@pytest.mark.parametrize("arguments", ["--project . list", "--project=. --debug show x", "lock --check x", "matrix"])
def test_questions_have_a_stored_answer(machine: Machine, arguments: str) -> None:
    machine.arguments = tuple(arguments.split())
    assert machine.ask() == machine.ask()


def _truncate(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:-1])


def _alter(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes().replace(b"first", b"forge"))


def _link(entry: Path) -> None:
    entry.rename(entry.parent.parent / "moved")
    entry.symlink_to(entry.parent.parent / "moved")


def _fifo(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)


def _give_away(entry: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(entry, 12345, -1)


@pytest.mark.parametrize("damage", [_truncate, _alter, _link, _fifo, _give_away, lambda entry: entry.chmod(0o666)])
def test_a_damaged_or_foreign_entry_is_absent(machine: Machine, damage: Callable[[Path], None]) -> None:
    first = machine.ask()
    (entry,) = machine.entries
    damage(entry)
    assert machine.ask() != first


def test_the_oldest_entries_are_removed(machine: Machine) -> None:
    folder = machine.root / "cache" / "imagegen" / "answers"
    folder.mkdir(parents=True)
    for number in range(120):
        (folder / f"answer-{number}").touch()
        os.utime(folder / f"answer-{number}", (number, number))
    assert machine.ask() == machine.ask()
    assert len(machine.entries) == 100
    assert not (folder / "answer-20").exists()


def test_a_stored_answer_of_a_command_needs_no_click(shared: Path, tmp_path: Path) -> None:
    program = "import atexit, sys; atexit.register(lambda: print('click' in sys.modules)); "
    program += "from imagegen.cli import main; main()"
    line = [sys.executable, "-P", "-c", program, "show", "cpu-grpo"]
    env = {**os.environ, "XDG_CACHE_HOME": str(shared / "cache")}
    runs = [subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, check=True) for _ in range(4)]
    *answer, imports_click = runs[-1].stdout.splitlines()
    assert imports_click == b"False"
    assert answer == runs[0].stdout.splitlines()[:-1]
    assert runs[-1].stderr == runs[0].stderr
