"""A container for untrusted programs: byte-compiling a wheel's sources, building an sdist.

bubblewrap (`bwrap`) creates it: a root that cannot be written, a /tmp of its own, no network, no process, file
descriptor or variable of the host, no privilege, and no system call that only attacks need (`seccomp`). It runs in a
user namespace, whose ids are the starting user's, or for root, ids of the host that own nothing: root of
the host may write /proc/sys and change /dev/null without any capability. Every process has an address-space limit;
where this user may make a control group (cgroup v1 or v2), one limit more holds for all of them together.

Sources: bwrap(1), setpriv(1), prlimit(1), nsenter(1), user_namespaces(7), getrlimit(2), the kernel's
admin-guide/cgroup-v1 and cgroup-v2.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import secrets
import select
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from imagegen.core import programs, stopping
from imagegen.core.errors import SandboxError
from imagegen.core.seccomp import program

_UNPRIVILEGED = 65534
_IDS = 1 << 16  # of a user namespace
# The last ids below 2**31 belong to nothing: systemd ("Users, Groups, UIDs and GIDs on systemd systems") leaves them
# free, shadow gives out subordinate ids up to 600,100,000, and SSSD maps domains to ids up to 2,000,200,000.
_FIRST_ID = 0x7FFF0000
_VIEW = "/sys"  # where bubblewrap finds its sources: no directory above them has to be open to the ids of the namespace
_OPEN_VIEW = f"""
set -e
mount -t tmpfs -o mode=0755 sandbox {_VIEW}
number=0
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir {_VIEW}/$number; else : > {_VIEW}/$number; fi
    mount --bind "$1" {_VIEW}/$number
    number=$((number + 1))
    shift
done
shift
exec "$@"
"""
_OPEN_FILES = 1024
_LONGEST_OUTPUT = 256 << 20  # bytes
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
_OPTIONS = (
    *_NAMESPACES,
    "--hostname",
    "sandbox",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    "--cap-drop",
    "ALL",
)
GROUP_PREFIX = "imagegen-sandbox-"  # and the number of the process that made it
_CAUSES = {
    "SIGKILL": "perhaps by the memory limit",
    "SIGSYS": "by the system-call filter: 32-bit programs do not run in the sandbox",
}
_FORBIDDEN = ("new namespace", "uid map", "gid map", "unshare", "Operation not permitted", "Permission denied")
_STARTERS = ("bwrap: ", "unshare: ", "nsenter: ", "mount: ")


@dataclass(frozen=True)
class Limits:
    """Limits of a sandbox: bytes of `memory`, processes and threads together, bytes of the longest file.

    `memory` holds for each process and, where control groups can be made, for everything in the sandbox together.
    """

    memory: int = 2 << 30
    tasks: int = 128
    file: int = _LONGEST_OUTPUT  # `Sandbox.run` writes the output to files

    def processes(self) -> int:
        """Return the limit for RLIMIT_NPROC. The kernel counts all tasks of a user, not only the sandbox's."""
        users = range(first_id(), first_id() + _IDS) if os.geteuid() == 0 else (os.geteuid(),)
        return _allowed("nproc", _tasks_of(users) + self.tasks)

    def command(self) -> list[str]:
        """Return a command that limits itself and becomes the command that follows it."""
        limits = {"as": self.memory, "nofile": _OPEN_FILES, "fsize": self.file, "core": 0}
        allowed = {name: _allowed(name, value) for name, value in limits.items()} | {"nproc": self.processes()}
        return ["prlimit", *(f"--{name}={value}" for name, value in allowed.items()), "--"]


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
            owner = first_id() + _UNPRIVILEGED
            for path in self.writable.values():
                os.chown(path, owner, owner)
        sources = (self.rootfs, *self.read_only.values(), *self.writable.values())
        options = self._options(argv, env, dict(zip(sources, visible(sources), strict=True)))
        return _start(options, sources, Limits(self.memory), stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)

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
                    problem, why = f"{argv[0]} was stopped after {timeout:g} s", _tail(_end(err)) or None
                    raise SandboxError(problem, where=str(self.rootfs), why=why) from error
                except BaseException:
                    process.kill()
                    raise
            stopping.check()
            if process.returncode:
                raise failure(argv, process.returncode, _end(err))
            out.seek(0)
            return out.read()

    def _options(self, argv: Sequence[str], env: Mapping[str, str], seen: Mapping[Path, str]) -> list[str]:
        command = []
        for name, value in {**_ENVIRONMENT, **env}.items():
            command += ["--setenv", name, value]
        mounts = {PurePosixPath(inside).parts[1] for inside in (*self.read_only, *self.writable)}
        command += _root(self.rootfs, seen[self.rootfs], mounts)
        command += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        command += ["--perms", "1777", "--size", str(self.memory), "--tmpfs", "/tmp"]  # noqa: S108 - as above
        for option, paths in (("--ro-bind", self.read_only), ("--bind", self.writable)):
            for inside, path in sorted(paths.items()):
                for parent in reversed(PurePosixPath(inside).parents[:-1]):
                    command += ["--dir", str(parent)]  # the mount itself would make them unreadable for the program
                command += [option, seen[path], inside]
        command += ["--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108 - as above
        if os.geteuid() != 0:
            return [*command, "--unshare-user", "--uid", str(_UNPRIVILEGED), "--gid", str(_UNPRIVILEGED), "--", *argv]
        # Root of the namespace becomes an unprivileged user inside, with the root file tree's own setpriv.
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


def first_id() -> int:
    """Return the id of this machine that is user and group 0 of a sandbox: for root, an id that owns nothing.

    It is 0 for all others, because they are in a user namespace themselves, or bubblewrap makes one.
    """
    return _FIRST_ID if os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split()[-1] == "4294967295" else 0


def visible(sources: Sequence[Path]) -> list[str]:
    """Return where bubblewrap finds the sources of its mounts."""
    return [f"{_VIEW}/{number}" if first_id() else str(path) for number, path in enumerate(sources)]


def run_to_end(
    options: Sequence[str], sources: Sequence[Path], argv: Sequence[str], limits: Limits, timeout: float
) -> None:
    """Run `argv` under bubblewrap with `options`, and return when the last process of the sandbox is gone.

    `options` name what is `visible` of `sources`. Raises SandboxError: cannot start, failed, timed out after `timeout`
    seconds, or printed more than 256 MiB.
    """
    info, writer = os.pipe()
    with open(info, "rb") as file:
        try:
            process = _start(
                ["--info-fd", str(writer), *options, "--", *argv],
                sources,
                limits,
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.close(writer)
        with process:
            first = _first_process(file.read())
            try:
                end = _end_of_output(process, argv, timeout)
            except BaseException:
                process.kill()
                raise
            finally:
                if first is not None:
                    select.select([first], [], [])
                    os.close(first)
    stopping.check()
    if process.returncode:
        raise failure(argv, process.returncode, end)


def _first_process(info: bytes) -> int | None:
    """Open the first process of the sandbox that wrote `info`; None if it is gone.

    bubblewrap ends with the program that it started, and kills the remaining processes only then. The first process
    of a PID namespace is gone only when all others are, and the descriptor can be read then (pidfd_open(2)).
    """
    try:
        return os.pidfd_open(json.loads(info)["child-pid"])
    except (ValueError, ProcessLookupError):
        return None


def _end_of_output(process: subprocess.Popen[bytes], argv: Sequence[str], timeout: float) -> bytes:
    """Return the end of the output of a process when it has ended; the rest is not kept."""
    assert process.stdout is not None  # noqa: S101 - asked for a pipe
    deadline, length, end = time.monotonic() + timeout, 0, b""
    while length <= _LONGEST_OUTPUT:
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise SandboxError(f"{argv[0]} was stopped after {timeout:g} s", why=_tail(end) or None)
        if not (chunk := os.read(process.stdout.fileno(), 1 << 16)):
            process.wait(max(0.0, deadline - time.monotonic()))
            return end
        length += len(chunk)
        end = (end + chunk)[-_SAID:]
    raise SandboxError(f"{argv[0]} was stopped after {_LONGEST_OUTPUT >> 20} MiB of output", why=_tail(end))


def _start(
    options: Sequence[str],
    sources: Sequence[Path],
    limits: Limits,
    *,
    stdin: int,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    pass_fds: Sequence[int] = (),
) -> programs.Program[bytes]:
    """Start bubblewrap with `options` under the limits and the filter of system calls."""
    filter_program = program(platform.machine())
    groups = make_cgroups(limits)
    try:
        with pipe_from(filter_program) as bpf_fd, _namespace(limits, sources) as (enter, namespace):
            command = [*enter_cgroups(groups), *limits.command(), *enter, "--seccomp", str(bpf_fd), *_OPTIONS, *options]
            process = programs.Program[bytes](
                command,
                env=_environment(),
                cwd="/",
                umask=0o022,
                pass_fds=[bpf_fd, *namespace, *pass_fds],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
    except FileNotFoundError as error:
        remove_cgroups(groups)
        raise SandboxError(
            f"{error.filename} is not installed",
            code="sandbox-not-installed",
            why="untrusted code runs under bubblewrap (bwrap), started by util-linux's prlimit",
            fix="apt-get install bubblewrap util-linux",
        ) from error
    weakref.finalize(process, remove_cgroups, groups)
    return process


@contextmanager
def _namespace(limits: Limits, sources: Sequence[Path]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the command of bubblewrap, and the file descriptors that it takes.

    For root it enters a new user namespace whose ids begin at `first_id`. The program's processes have ids there that
    it chooses, and together they are within the limit of the user who made the namespace: not root, who has none.
    """
    first = first_id()
    if not first:
        yield ["bwrap"], []
        return
    owner = f"--reuid={first} --regid={first} --clear-groups --inh-caps=+sys_admin --ambient-caps=+sys_admin".split()
    make = ["setpriv", *owner, "prlimit", f"--nproc={limits.processes()}", "--", "unshare", "--user", "cat"]
    pipe = subprocess.PIPE
    with subprocess.Popen(make, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment(), cwd="/") as maker:
        assert maker.stdin and maker.stdout and maker.stderr  # noqa: S101 - asked for pipes
        try:
            maker.stdin.write(b"\n")
            if not maker.stdout.read(1):  # cat answers from within the namespace
                raise failure(make, 1, maker.stderr.read())
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{maker.pid}/{name}").write_text(f"0 {first} {_IDS}")
            namespace = os.open(f"/proc/{maker.pid}/ns/user", os.O_RDONLY)
        except OSError as error:
            raise failure(make, 1, f"unshare: {error}".encode()) from error
    try:
        enter = ["unshare", "--mount-proc", "--", "sh", "-c", _OPEN_VIEW, "sh", *map(str, sources), "--"]
        # bubblewrap keeps a --sync-fd from the program.
        join = ["nsenter", f"--user=/proc/self/fd/{namespace}", "--", "bwrap", "--sync-fd", str(namespace)]
        yield [*enter, *join], [namespace]
    finally:
        os.close(namespace)


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath)}


def failure(argv: Sequence[str], status: int, stderr: bytes) -> SandboxError:
    """The error for a sandboxed program that ended with `status` (as Popen.returncode has it)."""
    tail = _tail(stderr)
    if tail.startswith(("bwrap: execvp", "setpriv: failed to execute")):
        return SandboxError(f"{argv[0]} cannot be run in the sandbox", code="sandbox-program-missing", why=tail)
    if tail.startswith(_STARTERS) and "\n" not in tail:
        if any(sign in tail for sign in _FORBIDDEN):
            return SandboxError(
                "this machine forbids the namespaces that a sandbox is made of",
                code="sandbox-no-namespaces",
                why=tail,
                fix="allow user namespaces: user.max_user_namespaces above 0 and, unless you run as root, "
                "kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0, if they exist "
                "here; inside a container, give it CAP_SYS_ADMIN",
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


def _root(rootfs: Path, seen: str, mounts: Container[str]) -> Iterator[str]:
    """Options that put the tree's top-level entries into an empty root, so that mounts may be made next to them.

    bubblewrap finds the tree at `seen`. An entry of the name of one of `mounts` is left out: bubblewrap would follow a
    link there to the host's files, and create its target.
    """
    for entry in sorted(rootfs.iterdir()):
        inside = f"/{entry.name}"
        if entry.name in _PRIVATE or entry.name in mounts:
            continue
        if entry.is_symlink():
            yield from ("--symlink", os.readlink(entry), inside)
        elif entry.is_dir() and not any(entry.iterdir()):
            yield from ("--dir", inside)
        else:
            yield from ("--ro-bind", f"{seen}{inside}", inside)


def _allowed(name: str, value: int) -> int:
    """Return `value`, or this process's own hard limit if that is lower: raising a hard limit takes a privilege."""
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _end(file: IO[bytes]) -> bytes:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _SAID))
    return file.read()


def _tail(stderr: bytes) -> str:
    return stderr.decode(errors="replace").strip()[-2000:]


def _tasks_of(users: Container[int]) -> int:
    """Return how many processes and threads `users` have on this machine."""
    count = 0
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it may end while we look
            if process.name.isdecimal() and process.stat().st_uid in users:
                count += (process / "task").stat().st_nlink - 2
    return count


def make_cgroups(limits: Limits) -> tuple[Path, ...]:
    """Make control groups with limits for a whole sandbox; return none if this user may not make them."""
    directories: list[Path] = []
    try:
        for parent, files in _cgroup_places(limits, Path("/proc/self/cgroup").read_text()):
            remove_stale_cgroups(parent)
            group = parent / f"{GROUP_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
            group.mkdir()
            directories.append(group)
            for name, value in files.items():
                if (group / name).exists():  # swap accounting is a matter of the kernel's configuration
                    (group / name).write_text(str(value))
    except OSError:
        remove_cgroups(tuple(directories))
        return ()
    return tuple(directories)


def remove_stale_cgroups(parent: Path) -> None:
    """Remove the groups of builds that were killed and could not remove them; their processes died with them."""
    for group in parent.glob(f"{GROUP_PREFIX}*"):
        if not Path("/proc", group.name.removeprefix(GROUP_PREFIX).partition("-")[0]).exists():
            with suppress(OSError):
                group.rmdir()


def _cgroup_places(limits: Limits, process_cgroups: str) -> Iterator[tuple[Path, dict[str, int]]]:
    """(parent, files and limits) for each hierarchy, from the text of /proc/self/cgroup.

    In version 2 a group that holds processes cannot have children with limits, so ours is made next to our own group.
    """
    top = Path("/sys/fs/cgroup")
    for line in process_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        cgroup = path.lstrip("/")
        if controllers == "memory":
            # memsw (memory and swap together) can only be set after, and not below, the limit for memory.
            files = {"memory.limit_in_bytes": limits.memory, "memory.memsw.limit_in_bytes": limits.memory}
            yield top / "memory" / cgroup, files
        elif controllers == "pids":
            yield top / "pids" / cgroup, {"pids.max": limits.tasks}
        elif not controllers and (top / "cgroup.controllers").exists():
            parent = (top / cgroup).parent if cgroup else top
            enabled = (parent / "cgroup.subtree_control").read_text().split()
            files = {"memory.max": limits.memory, "memory.swap.max": 0, "memory.oom.group": 1, "pids.max": limits.tasks}
            if {"memory", "pids"} <= set(enabled):
                yield parent, files


def enter_cgroups(groups: tuple[Path, ...]) -> list[str]:
    """Return a command that moves itself into the groups and becomes the command that follows it."""
    if not groups:
        return []
    move = "".join(f'echo $$ > "${index}"; ' for index in range(1, len(groups) + 1))
    return ["sh", "-c", f'{move}shift {len(groups)}; exec "$@"', "sh", *(f"{group}/cgroup.procs" for group in groups)]


def remove_cgroups(groups: tuple[Path, ...]) -> None:
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
