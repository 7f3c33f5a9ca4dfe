"""Repositories that have git run a program: each leaves a marker file where it succeeds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OTHER_USER = 65534  # no user that runs tests
_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@localhost",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@localhost",
}


def plain_git(folder: Path, *arguments: str, fails: bool = False, read: str = "") -> str:
    """Run git as a user does who takes no precautions; `read` is its stdin. Return what it prints."""
    command = ["git", "-c", "safe.directory=*", *arguments]
    done = subprocess.run(command, cwd=folder, env=_ENV, input=read, capture_output=True, text=True, check=False)
    assert fails or done.returncode == 0, done.stderr
    return done.stdout.strip()


def fetch_lazily(folder: Path, marker: Path, sub: str = "sub") -> None:
    """Make `folder` a repository in which `ls-files --others` and `status` want an object that ssh would bring.

    They want it for the directory `sub`. `core.sshCommand` makes the marker.
    """
    ignored = folder / sub / ".gitignore"
    ignored.parent.mkdir(parents=True, exist_ok=True)
    ignored.write_text("x\n")
    ignored.with_name("file").write_text("f\n")
    plain_git(folder, "init", "-q")
    plain_git(folder, "add", f"{sub}/.gitignore", f"{sub}/file")
    plain_git(folder, "commit", "-qm", "one")
    blob = plain_git(folder, "rev-parse", f":{sub}/.gitignore")
    plain_git(folder, "update-index", "--skip-worktree", f"{sub}/.gitignore")
    ignored.unlink()
    (folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
    ignored.with_name("untracked").touch()
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "core.sshCommand": f"touch '{marker}'; false",
        "extensions.partialClone": "origin",
        "protocol.ssh.allow": "always",  # it goes before protocol.allow
        "remote.origin.url": "ssh://evil.invalid/x",
        "remote.origin.promisor": "true",
    }.items():
        plain_git(folder, "config", name, value)


def look_bare(folder: Path) -> None:
    """Lay a repository out so that a clone of a project carries it: as a bare one whose files lie beside it."""
    plain_git(folder, "config", "core.bare", "false")
    plain_git(folder, "config", "core.worktree", ".")
    shutil.rmtree(folder / ".git/hooks", ignore_errors=True)
    for each in (folder / ".git").iterdir():
        each.rename(folder / each.name)
    (folder / ".git").rmdir()
    (folder / "refs/heads/.keep").touch()


def give_away(path: Path) -> bool:
    """Give a directory to another user and return whether that worked: only root can."""
    if os.geteuid() != 0:
        return False
    for each in (path, *path.rglob("*")):
        os.chown(each, OTHER_USER, OTHER_USER, follow_symlinks=False)
    return True


@dataclass(frozen=True)
class Trap:
    """Settings of a repository, with RUN for a command, and the plain git that runs it."""

    settings: dict[str, str]
    springs: Sequence[str]
    read: str = ""  # its stdin


LOGIN = "protocol=https\nhost=example.org\n\n"
TRAPS = {
    "alias.*": Trap({"alias.x": "!RUN"}, ["x"]),
    "core.askPass": Trap({"core.askPass": "PROGRAM"}, ["credential", "fill"], LOGIN),
    "core.editor": Trap({"core.editor": "RUN"}, ["commit", "--amend"]),
    "core.fsmonitor": Trap({"core.fsmonitor": "PROGRAM"}, ["status"]),
    "core.gitProxy": Trap({"core.gitProxy": "PROGRAM"}, ["fetch", "git://example.invalid/x"]),
    "core.hooksPath": Trap({"core.hooksPath": "HOOKS"}, ["status"]),
    "core.pager": Trap({"core.pager": "RUN"}, ["grep", "-O", "two"]),
    "core.sshCommand": Trap({"core.sshCommand": "RUN"}, ["fetch", "ssh://example.invalid/x"]),
    "credential.helper": Trap({"credential.helper": "!RUN"}, ["credential", "fill"], LOGIN),
    "diff.*.command": Trap({"diff.x.command": "RUN"}, ["diff"]),
    "diff.*.textconv": Trap({"diff.x.textconv": "RUN"}, ["diff"]),
    "diff.external": Trap({"diff.external": "PROGRAM"}, ["diff"]),
    "filter.*.clean": Trap({"filter.x.clean": "RUN"}, ["diff"]),
    "filter.*.process": Trap({"filter.x.process": "RUN", "filter.x.required": "true"}, ["diff"]),
    "filter.*.smudge": Trap({"filter.x.smudge": "RUN"}, ["checkout", "HEAD", "--", "a"]),
    "gpg.program": Trap({"gpg.program": "PROGRAM", "log.showSignature": "true"}, ["log"]),
    "gpg.ssh.program": Trap({"gpg.program": "PROGRAM", "gpg.format": "ssh", "log.showSignature": "true"}, ["show"]),
    "include.path": Trap({"include.path": "INCLUDED"}, ["status"]),
    "remote.*.receivepack": Trap(
        {"remote.origin.receivepack": "RUN", "remote.origin.url": "."}, ["push", "origin", "main"]
    ),
    "remote.*.uploadpack": Trap({"remote.origin.uploadpack": "RUN", "remote.origin.url": "."}, ["fetch"]),
    "remote.*.url": Trap({"remote.origin.url": "ext::PROGRAM", "protocol.ext.allow": "always"}, ["fetch"]),
    "tar.*.command": Trap({"tar.x.command": "RUN"}, ["archive", "--format=x", "HEAD"]),
    "trailer.*.command": Trap({"trailer.x.command": "RUN"}, ["interpret-trailers"], "subject\n\nbody\n"),
}
