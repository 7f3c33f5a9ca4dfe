"""Files outside of a project that its files name, by a path or a link: refused, and nothing of them is shown."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Run

SECRET = "root:$6$salt$hash:1::::::"
PYPROJECT = '[project]\nname = "x"\nversion = "1"\ndependencies = ["numpy"]\n'
COPY = "FROM debian:12\nCOPY {} /tmp/r.txt\nRUN pip install numpy -r /tmp/r.txt\n"

Write = Callable[[Path, Path], str]  # (project, file outside) -> the imported file


def text(name: str, content: str) -> Write:
    """Return a writer of one file, in which {} stands for the path of the file outside."""

    def write(project: Path, outside: Path) -> str:
        (project / name).write_text(content.format(outside))
        return name

    return write


def links(name: str, linked: str, content: str = "numpy\n") -> Write:
    """Return a writer of a file `name`, and of a link to the file outside, or to its directory if it ends in "/"."""

    def write(project: Path, outside: Path) -> str:
        (project / name).write_text(content)
        path = project / linked
        path.unlink(missing_ok=True)
        path.symlink_to(outside.parent if linked.endswith("/") else outside)
        return name

    return write


OUTSIDE: dict[str, tuple[Write, str]] = {  # -> the file and the line that name the file outside
    "-r": (text("requirements.txt", "numpy\n-r {}\n"), "requirements.txt:2"),
    "-c": (text("requirements.txt", "numpy\n--constraint={}\n"), "requirements.txt:2"),
    "-r ..": (text("requirements.txt", "numpy\n-r ../secret/secret.txt\n"), "requirements.txt:2"),
    "-r of conda": (text("environment.yml", "dependencies:\n  - pip:\n    - -r {}\n"), "environment.yml:3"),
    "-r, a link": (links("requirements.txt", "more.txt", "numpy\n-r more.txt\n"), "requirements.txt:2"),
    "-r, a linked folder": (links("requirements.txt", "more/", "numpy\n-r more/secret.txt\n"), "requirements.txt:2"),
    "-r of git's own files": (text("requirements.txt", "numpy\n-r .git/config\n"), "requirements.txt:2"),
    "-r of the environment": (text("requirements.txt", "-r /proc/self/environ\n"), "requirements.txt:1"),
    "requirements.txt": (links("requirements.txt", "requirements.txt"), "requirements.txt"),
    "uv.lock": (links("uv.lock", "uv.lock"), "uv.lock"),
    "pylock.toml": (links("pylock.toml", "pylock.toml"), "pylock.toml"),
    "pyproject.toml": (links("pyproject.toml", "pyproject.toml"), "pyproject.toml"),
    "environment.yml": (links("environment.yml", "environment.yml"), "environment.yml"),
    "Dockerfile": (links("Dockerfile", "Dockerfile"), "Dockerfile"),
    ".python-version": (links("requirements.txt", ".python-version"), ".python-version"),
    "pyproject.toml next to it": (links("requirements.txt", "pyproject.toml"), "pyproject.toml"),
    "pyproject.toml of -e": (links("requirements.txt", "pyproject.toml", "numpy\n-e .\n"), "pyproject.toml"),
    "COPY of a link": (links("Dockerfile", "r.txt", COPY.format("r.txt")), "Dockerfile:2"),
    "COPY of a linked folder": (links("Dockerfile", "more/", COPY.format("more/secret.txt")), "Dockerfile:2"),
    "COPY of a linked folder's names": (links("Dockerfile", "more/", COPY.format("more/*")), "Dockerfile:2"),
    "RUN pip install -r": (
        links("Dockerfile", "r.txt", "FROM debian:12\nWORKDIR /x\nRUN pip install numpy -r r.txt\n"),
        "Dockerfile:3",
    ),
    "COPY for ldconfig": (
        links("Dockerfile", "x.conf", "FROM debian:12\nCOPY x.conf /etc/ld.so.conf.d/\nRUN pip install numpy\n"),
        "Dockerfile:2",
    ),
}


@pytest.mark.fault(
    "Matrices, rules, locks",
    "an imported file names a file outside of the project, by `-r`, `-c`, COPY, `..` or a link",
    "refused with file and line; nothing of that file is shown",
)
@pytest.mark.parametrize("way", OUTSIDE)
def test_a_file_outside_of_the_project_is_not_read(
    way: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", SECRET)
    project, outside = tmp_path / "project", tmp_path / "secret" / "secret.txt"
    for folder in (project / ".git", outside.parent):
        folder.mkdir(parents=True)
    outside.write_text(f"{SECRET}\n")
    (project / ".git/config").write_text(f"{SECRET}\n")
    write, where = OUTSIDE[way]
    ended = run("import", str(project / write(project, outside)), "--name", "x")
    shown = ended.out + ended.err + "".join(each.read_text() for each in tmp_path.glob("**/matrices/*.yaml"))
    assert f"{where}" in ended.out + ended.err
    assert SECRET[:8] not in shown
    if not where.startswith("Dockerfile:"):  # a copy that an entry cannot name is an omission
        assert (ended.code, "outside of the project" in ended.err) == (81, True), ended.err


@pytest.mark.parametrize("way", ["checkout", "--project", "directory"])
def test_files_of_the_project_are_read(way: str, run: Run, tmp_path: Path) -> None:
    """A project is the checkout of git, else imagegen's project, else the imported file's directory."""
    project = tmp_path if way == "--project" else tmp_path / "p"
    folder = project / "below"
    folder.mkdir(parents=True)
    if way == "checkout":
        subprocess.run(["git", "init", "-q", project], check=True)
    shared = folder if way == "directory" else project
    (shared / "base.txt").write_text("numpy==2.3.5\n")
    (folder / "linked.txt").symlink_to(os.path.relpath(shared / "base.txt", folder))
    (folder / "requirements.txt").write_text(f"-r {os.path.relpath(shared, folder)}/base.txt\n-c linked.txt\n")
    ended = run("import", str(folder / "requirements.txt"), "--name", "x")
    assert (ended.code, "1 package of 1" in ended.out) == (0, True), ended.err
