"""The system's git as a program: in an environment that is given to it, held to a size and a time.

Sources: git(1) and git-config(1), git 2.39; prlimit(1) and setpriv(1).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from imagegen.errors import FetchError

_TIMEOUT = 1800  # seconds for one command
_LONGEST_FILE = 4 << 30  # bytes: of a pack, before git stops
_LONGEST_SAID = 1 << 16  # bytes of an error
_LONGEST_ANSWER = 1 << 26  # bytes: the names of 200,000 files take a tenth of it


class FailedError(Exception):
    """What git said before it gave up, and its exit status."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said or f"exit status {status}")
        self.status = status


def run(where: Path, env: Mapping[str, str], arguments: Sequence[str]) -> str:
    """What git prints. Raises FailedError with what it says, FetchError where it cannot run or does not end."""
    # It ends with imagegen, however that ends, and fills no disk.
    bounds = ["setpriv", "--pdeathsig", "KILL", "prlimit", f"--fsize={_LONGEST_FILE}", "--core=0", "--"]
    # Files, since what a server has to say may be long.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                [*bounds, "git", *arguments],
                cwd=where,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                check=False,
                timeout=_TIMEOUT,
            )
        except FileNotFoundError as error:
            raise FetchError(f"{error.filename} is not installed", fix="apt-get install git util-linux") from error
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"git did not end in {_TIMEOUT // 60} minutes", why="the server is too slow") from error
        for file in (out, err):
            file.seek(0)
        if done.returncode:
            raise FailedError(err.read(_LONGEST_SAID).decode(errors="replace"), done.returncode)
        answer = out.read(_LONGEST_ANSWER + 1)
        if len(answer) > _LONGEST_ANSWER:
            raise FetchError(f"git {arguments[0]} has more to say than any repository should", where=str(where))
        return answer.decode(errors="surrogateescape")


@contextmanager
def started(repository: Path, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A git that reads what is there already."""
    with subprocess.Popen(
        ["git", "--no-replace-objects", *arguments],
        cwd=repository,
        env={"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield process


def alone(settings_env: Mapping[str, str], home: Path | str, configuration: Mapping[str, str]) -> dict[str, str]:
    """An environment in which git knows this configuration, and nothing of the user's but where programs are."""
    env = {
        "PATH": settings_env.get("PATH", os.defpath),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_CONFIG_COUNT": str(len(configuration)),
    }
    for index, (name, value) in enumerate(configuration.items()):
        env |= {f"GIT_CONFIG_KEY_{index}": name, f"GIT_CONFIG_VALUE_{index}": value}
    return env
