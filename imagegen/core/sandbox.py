"""A container for untrusted programs: byte-compiling a wheel's sources, building an sdist.

bubblewrap (`bwrap`) creates it: a root that cannot be written, a /tmp of its own, no network, no process, file
descriptor or variable of the host, no privilege, and no system call that only attacks need (`seccomp`). Started as
root, the program runs as an unprivileged user (id 65534) on the real machine, since the kernel exempts root from
process limits even inside a user namespace; started as a user, it runs as that user in a user namespace. Every process
has an address-space limit; where this user may make a control group (cgroup v1 or v2), one limit more holds for all of
them together.

Sources: bwrap(1), setpriv(1), prlimit(1), getrlimit(2), the kernel's admin-guide/cgroup-v1 and cgroup-v2.
"""

from __future__ import annotations

import os
import platform
import resource
import secrets
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from imagegen.core import programs, stopping
from imagegen.core.errors import SandboxError
from imagegen.core.seccomp import program

_UNPRIVILEGED = 65534
_TASKS = 128  # processes and threads together
_OPEN_FILES = 1024
_LONGEST_FILE = 256 << 20  # bytes; stdout and stderr of what `run` runs are files too
_SAID = 8000  # bytes of stderr that are looked at
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own /tmp
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
}
_PRIVATE = ("proc", "dev", "tmp", "sys", "run", "root")  # never taken from the root file tree
_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
_GROUP = "imagegen-sandbox-"  # and the number of the process that made it
_CAUSES = {
    "SIGKILL": "perhaps by the memory limit",
    "SIGSYS": "by the system-call filter: 32-bit programs do not run in the sandbox",
}
_FORBIDDEN = ("new namespace", "uid map", "gid map", "unshare", "Operation not permitted", "Permission denied")


@dataclass(frozen=True)
class Sandbox:
    """The view of a sandboxed program. `read_only` and `writable` map paths inside to paths on the host.

    `rootfs` is an unpacked file tree. Only /tmp and the `writable` directories can be written; as root, the owner of
    those directories becomes the unprivileged user. `memory` is in bytes: for each process, for /tmp, and, where
    control groups can be made, for everything in the sandbox together.
    """

    rootfs: Path
    read_only: Mapping[str, Path] = field(default_factory=dict)
    writable: Mapping[str, Path] = field(default_factory=dict)
    memory: int = 2 << 30

    def popen(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> programs.Program[bytes]:
        """Start `argv` with pipes on stdin, stdout and stderr, for a worker that answers requests.

        `kill` ends the whole sandbox; so does the end of the thread that called this (the kernel's parent-death
        signal follows threads). Raises SandboxError when bubblewrap is missing, or when this machine's system calls are
        not in the filter's table; `failure` reports what happens later.
        """
        if os.geteuid() == 0:
            for path in self.writable.values():
                os.chown(path, _UNPRIVILEGED, _UNPRIVILEGED)
        filter_program = program(platform.machine())
        groups = _make_cgroups(self.memory)
        try:
            with pipe_from(filter_program) as filter_fd:
                process = programs.Program[bytes](
                    [*_enter(groups), *self._limits(), *self._command(argv, env, filter_fd)],
                    stdin=subprocess.PIPE,
                    stdout=stdout,
                    stderr=stderr,
                    env={"PATH": os.environ.get("PATH", os.defpath)},
                    cwd="/",
                    pass_fds=[filter_fd],
                )
        except FileNotFoundError as error:
            _remove_cgroups(groups)
            raise SandboxError(
                f"{error.filename} is not installed",
                code="sandbox-not-installed",
                why="untrusted code runs under bubblewrap (bwrap), started by util-linux's prlimit",
                fix="apt-get install bubblewrap util-linux",
            ) from error
        weakref.finalize(process, _remove_cgroups, groups)
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        input: bytes = b"",  # noqa: A002 - as in subprocess.run
        timeout: float,
    ) -> bytes:
        """Run `argv` to its end and return its stdout. `timeout` is in seconds; after it everything is killed.

        stdout is at most 256 MiB. Raises SandboxError: cannot start, timed out, or failed (exit status or signal, and
        the end of stderr).
        """
        # Files, since a pipe would have to be emptied into our own memory, however much comes.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self.popen(argv, env or {}, stdout=out, stderr=err) as process:
                try:
                    process.communicate(input, timeout)
                except subprocess.TimeoutExpired as error:
                    process.kill()
                    process.communicate()
                    what, why = f"{argv[0]} was stopped after {timeout:g} s", _tail(_end(err)) or None
                    raise SandboxError(what, where=str(self.rootfs), why=why) from error
                except BaseException:
                    process.kill()
                    raise
            stopping.check()
            if process.returncode:
                raise failure(argv, process.returncode, _end(err))
            out.seek(0)
            return out.read()

    def _limits(self) -> list[str]:
        user = _UNPRIVILEGED if os.geteuid() == 0 else os.geteuid()
        tasks = _tasks_of(user) + _TASKS  # the kernel counts all tasks of the user, not the sandbox's alone
        limits = {"as": self.memory, "nproc": tasks, "nofile": _OPEN_FILES, "fsize": _LONGEST_FILE, "core": 0}
        return ["prlimit", *(f"--{name}={_allowed(name, value)}" for name, value in limits.items()), "--"]

    def _command(self, argv: Sequence[str], env: Mapping[str, str], filter_fd: int) -> list[str]:
        command = ["bwrap", *_NAMESPACES, "--hostname", "sandbox", "--die-with-parent", "--new-session"]
        command += ["--cap-drop", "ALL", "--seccomp", str(filter_fd), "--clearenv"]
        for name, value in {**_ENVIRONMENT, **env}.items():
            command += ["--setenv", name, value]
        command += _root(self.rootfs)
        command += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        command += ["--perms", "1777", "--size", str(self.memory), "--tmpfs", "/tmp"]  # noqa: S108 - as above
        for option, mounts in (("--ro-bind", self.read_only), ("--bind", self.writable)):
            for inside, path in sorted(mounts.items()):
                for parent in reversed(PurePosixPath(inside).parents[:-1]):
                    command += ["--dir", str(parent)]  # the mount itself would make them unreadable for the program
                command += [option, str(path), inside]
        command += ["--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108 - as above
        if os.geteuid() != 0:
            return [*command, "--unshare-user", "--uid", str(_UNPRIVILEGED), "--gid", str(_UNPRIVILEGED), "--", *argv]
        # Without a user namespace: become the unprivileged user inside, with the root file tree's own setpriv.
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--"]
        become = [
            "setpriv",
            f"--reuid={_UNPRIVILEGED}",
            f"--regid={_UNPRIVILEGED}",
            "--clear-groups",
            "--inh-caps=-all",
            "--",
        ]
        return [*command, *become, *argv]


def failure(argv: Sequence[str], status: int, stderr: bytes) -> SandboxError:
    """The error for a sandboxed program that ended with `status` (as Popen.returncode has it)."""
    tail = _tail(stderr)
    if tail.startswith(("bwrap: execvp", "setpriv: failed to execute")):
        return SandboxError(f"{argv[0]} cannot be run in the sandbox", code="sandbox-program-missing", why=tail)
    if tail.startswith("bwrap: ") and "\n" not in tail:
        if any(sign in tail for sign in _FORBIDDEN):
            return SandboxError(
                "this machine forbids the namespaces that a sandbox is made of",
                code="sandbox-no-namespaces",
                why=tail,
                fix="run as root, or let users make user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
                "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0: those that exist here); "
                "inside a container, give it CAP_SYS_ADMIN",
            )
        return SandboxError("the sandbox cannot start", code="sandbox-start-failed", why=tail)
    number = -status if status < 0 else status - 128  # bwrap reports a death by signal as a shell does
    try:
        name = signal.Signals(number).name
    except ValueError:
        return SandboxError(
            f"{argv[0]} failed in the sandbox with exit status {status}",
            code="sandbox-program-failed",
            why=tail or None,
        )
    why = "\n".join(filter(None, (_CAUSES.get(name), tail))) or None
    return SandboxError(f"{argv[0]} was killed in the sandbox by {name}", code="sandbox-killed", why=why)


@contextmanager
def pipe_from(data: bytes) -> Iterator[int]:
    """Yield a file descriptor from which `data` can be read once; at most a page, the minimum capacity of a pipe."""
    reader, writer = os.pipe()
    try:
        with open(writer, "wb") as file:
            file.write(data)
        yield reader
    finally:
        os.close(reader)


def _root(rootfs: Path) -> Iterator[str]:
    """Options that put the tree's top-level entries into an empty root, so that mounts may be made beside them."""
    for entry in sorted(rootfs.iterdir()):
        inside = f"/{entry.name}"
        if entry.name in _PRIVATE:
            continue
        if entry.is_symlink():
            yield from ("--symlink", os.readlink(entry), inside)
        elif entry.is_dir() and not any(entry.iterdir()):
            yield from ("--dir", inside)
        else:
            yield from ("--ro-bind", str(entry), inside)


def _allowed(name: str, value: int) -> int:
    """Return `value`, or this process's own hard limit if that is lower: raising a hard limit takes a privilege."""
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _end(file: IO[bytes]) -> bytes:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _SAID))
    return file.read()


def _tail(stderr: bytes) -> str:
    return stderr.decode(errors="replace").strip()[-2000:]


def _tasks_of(user: int) -> int:
    """Return how many processes and threads `user` has on this machine."""
    count = 0
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it may end while we look
            if process.name.isdecimal() and process.stat().st_uid == user:
                count += (process / "task").stat().st_nlink - 2
    return count


def _make_cgroups(memory: int) -> tuple[Path, ...]:
    """New control groups with limits for a whole sandbox; none where this user may not make them."""
    made: list[Path] = []
    try:
        for parent, limits in _cgroup_places(memory, Path("/proc/self/cgroup").read_text()):
            _sweep(parent)
            group = parent / f"{_GROUP}{os.getpid()}-{secrets.token_hex(8)}"
            group.mkdir()
            made.append(group)
            for name, value in limits.items():
                if (group / name).exists():  # swap accounting is a matter of the kernel's configuration
                    (group / name).write_text(str(value))
    except OSError:
        _remove_cgroups(tuple(made))
        return ()
    return tuple(made)


def _sweep(parent: Path) -> None:
    """Remove the groups of builds that were killed and could not remove them; their processes died with them."""
    for group in parent.glob(f"{_GROUP}*"):
        if not Path("/proc", group.name.removeprefix(_GROUP).partition("-")[0]).exists():
            with suppress(OSError):
                group.rmdir()


def _cgroup_places(memory: int, own: str) -> Iterator[tuple[Path, dict[str, int]]]:
    """(parent, files and limits) for each hierarchy, from the text of /proc/self/cgroup.

    In version 2 a group that holds processes cannot have children with limits, so ours is made beside our own group.
    """
    top = Path("/sys/fs/cgroup")
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        place = path.lstrip("/")
        if controllers == "memory":
            # memsw (memory and swap together) can only be set after, and not below, the limit for memory alone.
            yield (
                top / "memory" / place,
                {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
            )
        elif controllers == "pids":
            yield top / "pids" / place, {"pids.max": _TASKS}
        elif not controllers and (top / "cgroup.controllers").exists():
            parent = (top / place).parent if place else top
            enabled = (parent / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(enabled):
                yield parent, {"memory.max": memory, "memory.swap.max": 0, "memory.oom.group": 1, "pids.max": _TASKS}


def _enter(groups: tuple[Path, ...]) -> list[str]:
    """A command that moves itself into the groups and becomes the command that follows it."""
    if not groups:
        return []
    move = "".join(f'echo $$ > "${index}"; ' for index in range(1, len(groups) + 1))
    return ["sh", "-c", f'{move}shift {len(groups)}; exec "$@"', "sh", *(f"{group}/cgroup.procs" for group in groups)]


def _remove_cgroups(groups: tuple[Path, ...]) -> None:
    """Remove the groups once their killed processes are gone; an empty group that stays behind does no harm."""
    for group in groups:
        for _ in range(20):
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)
