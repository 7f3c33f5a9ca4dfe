"""A scratch checkout in which scripts of continuous integration run.

Programs of the machine are stand-ins that write down what they are asked. `imagegen` is one that has its arguments
parsed by the real command line, then does what the test says instead of the work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from imagegen.cli.commands import cli
from tools.harvest.__main__ import command as harvest

CALL = """\
#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
script = os.environ.get("DO_{upper}")
sys.exit(os.system(script) >> 8 if script else 0)
"""
_PROGRAMS = ("gh", "docker", "sudo", "imagegen", "python", "buildkite-agent")


class Checkout:
    """A clone of a repository with locks, on a machine whose programs are stand-ins."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.origin, self.here = root, root / "log", root / "origin.git", root / "here"
        self.output, self.summary = root / "output", root / "summary"
        (root / "bin").mkdir()
        for name in _PROGRAMS:
            program = root / "bin" / name
            upper = name.upper().replace("-", "_")
            program.write_text(CALL.format(python=sys.executable, log=str(self.log), name=name, upper=upper))
            program.chmod(0o755)
        self.env = {
            "PATH": f"{root}/bin:{os.environ['PATH']}", "HOME": str(root), "LANG": "C.UTF-8",
            "GITHUB_OUTPUT": str(self.output), "GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_ACTOR": "me",
            "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@localhost", "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@localhost",
        }  # fmt: skip

    def create(self) -> Self:
        """Make the repository, with one lock, and a clone of it that reaches it from beside."""
        self.git("init", "-q", "--bare", "-b", "main", str(self.origin), cwd=self.root)
        self.git("clone", "-q", str(self.origin), str(self.here), cwd=self.root)
        self.git("remote", "set-url", "origin", "../origin.git")
        self.write("locks/a.toml", "a 1\n")
        self.git("add", ".")
        self.git("commit", "-qm", "first")
        self.git("push", "-q", "origin", "HEAD:main")
        return self

    def write(self, path: str, text: str) -> None:
        (self.here / path).parent.mkdir(parents=True, exist_ok=True)
        (self.here / path).write_text(text)

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd or self.here, env=self.env, capture_output=True, text=True, check=True
        )
        return done.stdout

    def play(self, script: str, *, fails: bool = False, **env: str) -> str:
        """Run a script in bash, which ends at the first command that fails; what it says."""
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.here, env={**self.env, **env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode != 0) is fails, done.stderr
        return done.stdout

    @property
    def calls(self) -> list[list[str]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        for each in found:
            if each[0] == "imagegen":
                with cli.make_context("imagegen", each[1:]) as context:
                    name, command, rest = cli.resolve_command(context, context._protected_args + context.args)
                    assert command
                    command.make_context(name, rest, parent=context)
            elif each[1:3] == ["-m", "tools.harvest"]:
                harvest.make_context("tools.harvest", each[3:])
        return found
