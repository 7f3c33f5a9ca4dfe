"""Get packages of one Debian suite through apt and its signature checks, leaving the host's own apt state alone."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagegen.base.mirrors import mirrors
from imagegen.config import Settings
from imagegen.errors import EngineError
from imagegen.progress import Progress, timed

_KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")


def unpack(suite: str, packages: Sequence[str], target: Path, settings: Settings, progress: Progress) -> None:
    """Unpack the suite's newest `packages`, without what they depend on, into `target`, which appears when complete.

    No maintainer script runs and the host's dpkg learns nothing of it. Raises EngineError when apt cannot have them,
    BaseError when no mirror is known here.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".debs-") as name:
        work = Path(name)
        apt = _Apt(work, suite, settings)
        with timed(progress, f"get {', '.join(packages)} from Debian {suite}"):
            apt.run("update", "--error-on=any")
            apt.run("download", *packages)
        (work / "root").mkdir()
        with timed(progress, "unpack them"), ThreadPoolExecutor() as threads:
            commands = [["dpkg-deb", "-x", str(deb), str(work / "root")] for deb in work.glob("*.deb")]
            list(threads.map(lambda command: _run(command, work, settings), commands))
        os.replace(work / "root", target)


class _Apt:
    """apt-get with state, cache and sources of its own; proxies and certificates stay as the host's apt has them."""

    def __init__(self, work: Path, suite: str, settings: Settings) -> None:
        for directory in ("lists/partial", "archives/partial"):
            (work / directory).mkdir(parents=True)
        (work / "status").touch()
        sources = work / "debian.sources"
        sources.write_text(
            f"Types: deb\nURIs: {mirrors(settings)['debian']}\nSuites: {suite}\nComponents: main\n"
            f"Signed-By: {_keyring()}\n",
            encoding="utf-8",
        )
        options = {
            "Dir::State::status": work / "status",
            "Dir::State::lists": work / "lists",
            "Dir::Cache": work,
            "Dir::Cache::archives": work / "archives",
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Default-Release": "",
            "APT::Sandbox::User": "root",  # its user for downloads cannot enter a private cache directory
            "APT::Get::AllowUnauthenticated": "false",
            "Acquire::AllowInsecureRepositories": "false",
            "Acquire::Languages": "none",
        }
        self._command = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
        self._work, self._settings = work, settings

    def run(self, *args: str) -> None:
        _run([*self._command, *args], self._work, self._settings)


def _run(command: Sequence[str], cwd: Path, settings: Settings) -> None:
    done = subprocess.run(
        command, cwd=cwd, env={**settings.env, "LC_ALL": "C.UTF-8"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = [word for word in command if not word.startswith("-o")]
        tail = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise EngineError(
            f"`{' '.join(words)}` failed",
            why="\n".join(tail),
            fix="check that the Debian mirror is reachable; IMAGEGEN_DEBIAN_MIRROR names another",
        )


def _keyring() -> str:
    found = next((path for path in _KEYRINGS if Path(path).exists()), None)
    if found is None:
        raise EngineError(
            "Debian's signing keys are missing",
            why=f"there is no {_KEYRINGS[0]}",
            fix="apt-get install debian-archive-keyring",
        )
    return found
