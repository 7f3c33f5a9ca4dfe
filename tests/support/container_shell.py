"""Commands in a container."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from imagegen.engine import Engine


@dataclass(frozen=True)
class Shell:
    """The engine's client, for what the SDK hides: streams, exit codes and signals as a user has them."""

    engine: Engine
    ref: str

    def docker(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=120
        )

    def run(self, *command: str, options: Sequence[str] = (), stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self.docker("run", "--rm", "-i", *options, self.ref, *command, stdin=stdin)

    def python(self, program: str, *options: str) -> str:
        """Run a program and return what it prints; it must succeed."""
        done = self.run("python", "-c", program, options=options)
        assert done.returncode == 0, done.stderr
        return done.stdout
