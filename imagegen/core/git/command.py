"""The system's git as a program: in an environment that is given to it, limited in size and time.

Which settings of a repository can start a program, and what stops each, is listed in docs/explanation/security.md.
Sources: git(1) and git-config(1), git 2.39; release notes of git 2.32 (GIT_CONFIG_GLOBAL) and 2.39.4
(GIT_NO_LAZY_FETCH); prlimit(1) and setpriv(1).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType

from packaging.version import Version

from imagegen.core import programs
from imagegen.core.errors import FetchError
from imagegen.core.text import redact

_TIMEOUT = 1800  # seconds for one command
_LONGEST_FILE = 4 << 30  # bytes: of a pack, before git stops
_MINIMUM = Version("2.32")  # GIT_CONFIG_GLOBAL; GIT_CONFIG_COUNT came with 2.31
_LONGEST_SAID = 1 << 16  # bytes of an error
_LONGEST_ANSWER = 1 << 26  # bytes; names of 200,000 files take a tenth of it
_USERS = "GIT_CONFIG"  # how the variables begin that say where the user's configuration is, or what it is
_NOT_FOUND = 1  # exit status if nothing matches: git-config(1)
_CONFIGURATION = {"core.fsmonitor": "false", "core.hooksPath": os.devnull, "credential.helper": ""}


class FailedError(Exception):
    """A failed git command: its output and its exit status."""

    def __init__(self, output: str, status: int) -> None:
        super().__init__(output or f"exit status {status}")
        self.status = status


def run(where: Path, env: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Run git and return its stdout. Raises FailedError with its stderr; FetchError if it is too old, cannot run, or
    does not end.
    """
    _require_minimum(env.get("PATH", os.defpath))
    # It ends with imagegen, however that ends, and fills no disk.
    bounds = ["setpriv", "--pdeathsig", "KILL", "prlimit", f"--fsize={_LONGEST_FILE}", "--core=0", "--"]
    # Files, since a server's messages may be long.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            completed = programs.run(
                [*bounds, "git", *arguments],
                cwd=where,
                env=dict(env),
                stdin=programs.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=_TIMEOUT,
            )
        except FileNotFoundError as error:
            raise _not_installed(error) from error
        except OSError as error:  # more settings than a process takes
            raise FetchError(
                "git cannot be started", code="fetch-git-failed", where=str(where), why=error.strerror
            ) from error
        except programs.TimeoutExpired as error:
            raise FetchError(
                f"git did not end in {_TIMEOUT // 60} minutes", code="fetch-git-timeout", why="the server is too slow"
            ) from error
        for file in (out, err):
            file.seek(0)
        if completed.returncode:
            raise FailedError(err.read(_LONGEST_SAID).decode(errors="replace"), completed.returncode)
        answer = out.read(_LONGEST_ANSWER + 1)
        if len(answer) > _LONGEST_ANSWER:
            raise FetchError(
                f"git {arguments[0]} has more to say than any repository should",
                code="fetch-git-too-large",
                where=str(where),
            )
        return answer.decode(errors="surrogateescape")


@cache
def _require_minimum(path: str) -> None:
    """Raise FetchError for a git that does not know the variables with which `environment` overrides a repository."""
    try:
        completed = programs.run(["git", "version"], cwd="/", env={"PATH": path}, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise _not_installed(error) from error
    match = re.match(r"git version (\d+\.\d+)", completed.stdout)
    if match and Version(match[1]) < _MINIMUM:
        why = f"it would run programs that a repository names; {_MINIMUM} and newer can be kept from it"
        raise FetchError(f"{match[0]} is too old", code="fetch-git-too-old", why=why, fix="upgrade git")


def _not_installed(error: FileNotFoundError) -> FetchError:
    return FetchError(
        f"{error.filename} is not installed", code="fetch-git-missing", fix="apt-get install git util-linux"
    )


@contextmanager
def started(repository: Path, env: Mapping[str, str], arguments: Sequence[str]) -> Iterator[programs.Program[bytes]]:
    """Start a git that reads the bare repository that imagegen made at `repository`; its stdin and stdout are pipes."""
    with programs.Program[bytes](
        ["git", *arguments],
        cwd=repository,
        env={**environment(env, os.devnull), "GIT_DIR": str(repository)},
        stdin=programs.PIPE,
        stdout=programs.PIPE,
        stderr=programs.DEVNULL,
    ) as process:
        yield process


def environment(
    env: Mapping[str, str],
    home: Path | str,
    configuration: Mapping[str, str] = MappingProxyType({}),
    protocols: Iterable[str] = (),
) -> dict[str, str]:
    """Return an environment in which git starts no program that a repository names, and searches for no repository.

    It has only PATH of `env`. `configuration` overrides a repository's own. git may use `protocols` ("https", "file")
    and no others: by default none, so that a repository that lacks an object does not fetch it.
    """
    settings = {**_CONFIGURATION, **configuration}
    variables = {
        "PATH": env.get("PATH", os.defpath),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "GIT_DIR": os.devnull,  # no repository: callers name theirs
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_SSH_COMMAND": "false",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",  # an index that is written back runs a hook
        # It goes before every `protocol.*` of a repository, and ends the fetch of a git without GIT_NO_LAZY_FETCH.
        "GIT_ALLOW_PROTOCOL": ":".join(protocols) or "none",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for index, (name, value) in enumerate(settings.items()):
        variables |= {f"GIT_CONFIG_KEY_{index}": name, f"GIT_CONFIG_VALUE_{index}": value}
    return variables


def user_configuration(env: Mapping[str, str], pattern: str) -> list[tuple[str, str]]:
    """Return (name, value) of the user's and the system's settings that match `pattern`, in git's order.

    Raises FetchError where git cannot read them.
    """
    user_env = {name: value for name, value in env.items() if name.startswith(_USERS)}
    user_env |= {name: env[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in env}
    user_env |= {"PATH": env.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "GIT_DIR": os.devnull}
    try:
        output = run(Path("/"), user_env, ["config", "--null", "--get-regexp", pattern])
    except FailedError as error:
        if error.status == _NOT_FOUND:
            return []
        why = redact(str(error).strip())
        raise FetchError(
            "git's configuration cannot be read",
            code="fetch-git-configuration",
            why=why,
            fix="correct it, or set GIT_CONFIG_GLOBAL",
        ) from error
    return [(name, value) for name, _, value in (entry.partition("\n") for entry in output.split("\0") if entry)]
