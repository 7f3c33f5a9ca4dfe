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

import errno
import os
import platform
import resource
import secrets
import signal
import socket
import struct
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO

from imagegen.core import programs, stopping
from imagegen.core.errors import SandboxError

# The filter of system calls that every sandbox has: a classic BPF program that the kernel runs at each call.
#
# The filter lists what is refused, not what is allowed, and it ends the list: a call that is newer than the list does
# not exist in the sandbox. Refused is what reaches beyond the sandbox (keyrings outlive it; AF_VSOCK reaches the
# hypervisor) and what no build needs but attacks use. Keyrings have no namespace for a user that is not in a user
# namespace, so a build has no keyring of its own: it has none at all.
#
# load arch of another architecture (i386 by `int 0x80`, 32-bit Arm) -> kill the process load number > _NEWEST (also all
# of x32, which have bit 30 set) -> ENOSYS == each of _ABSENT -> ENOSYS == each of _REFUSED -> EPERM == clone load
# argument 0: & _NEW_NAMESPACES -> EPERM == socket, socketpair load argument 0: none of _FAMILIES -> EAFNOSUPPORT ->
# allow
#
# Sources: the kernel's userspace-api/seccomp_filter and networking/filter; include/uapi/linux/{audit,bpf_common,filter,
# sched,seccomp}.h; Docker's default profile (moby, profiles/seccomp/default.json) and Flatpak's (common/flatpak-run.c)
# for what to refuse. _Numbers of calls: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
#
# libseccomp would take names in place of numbers. Its releases know no call that is newer than they are, so they cannot
# refuse it by name, and it is a library of the system that no wheel brings: this program is shorter than its binding.

_Numbers = tuple[int | None, int | None]  # on x86-64 and on AArch64; None where the architecture lacks the call

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column in `_Numbers`, AUDIT_ARCH_*
_NEWEST = 456  # futex_requeue, Linux 6.7; from 424 on all architectures have the same numbers
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_CLONE = (56, 220)
_SOCKETS = ((41, 198), (53, 199))  # socket, socketpair

# fmt: off
# Programs do without these where the kernel is older. A filter cannot read clone3's flags, which lie in memory: without
# it, the C library uses clone.
_ABSENT: Mapping[str, _Numbers] = {
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}
_REFUSED: Mapping[str, _Numbers] = {
    # Keyrings belong to a user or a session, not to a sandbox.
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # A user namespace gives all capabilities, and so most of the kernel's code, to a program that has none.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "mount_setattr": (442, 442),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    # No build looks into other processes, and before Linux 4.8 a tracer could change calls behind the filter.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    # Parts of the kernel that had many faults, or that make use of other faults easier.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "personality": (135, 92),
    "modify_ldt": (154, None), "syslog": (103, 116), "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262), "open_by_handle_at": (304, 265),
    "get_mempolicy": (239, 236), "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450),
    "mbind": (237, 235), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # The machine's own state; all of these ask for a capability as well.
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "swapon": (167, 224), "swapoff": (168, 225),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161), "acct": (163, 89),
    "setdomainname": (171, 162), "vhangup": (153, 58), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "iopl": (172, None), "ioperm": (173, None), "uselib": (134, None),
    "ustat": (136, None), "sysfs": (139, None),
}
# fmt: on

_Instruction = tuple[int, int, int, int]  # code, instructions to skip where true and where false, operand
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENT_0 = 0, 4, 16  # offsets in struct seccomp_data; the argument's lower half
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000  # SECCOMP_RET_ALLOW, _KILL_PROCESS, _ERRNO


@cache
def program(machine: str) -> bytes:
    """Return the filter for `machine` (as in uname(2)): an array of struct sock_filter, as `bwrap --seccomp` reads it.

    Raises SandboxError for a machine whose numbers of system calls are not in the table.
    """
    if machine not in _MACHINES:
        raise SandboxError(
            f"no system-call filter is known for {machine}",
            code="sandbox-unknown-machine",
            why="untrusted code runs only under a filter, and system calls have other numbers on each architecture",
            fix=f"run imagegen on {' or '.join(_MACHINES)}",
        )
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions(*_MACHINES[machine]))


def _instructions(column: int, architecture: int) -> Iterator[_Instruction]:
    yield (_LOAD, 0, 0, _AT_ARCHITECTURE)
    yield (_EQUAL, 1, 0, architecture)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _AT_NUMBER)
    yield from _refuse(_GREATER, _NEWEST, errno.ENOSYS)
    for calls, error in ((_ABSENT, errno.ENOSYS), (_REFUSED, errno.EPERM)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                yield from _refuse(_EQUAL, number, error)
    yield from _argument(_CLONE[column], [*_refuse(_ANY_BIT, _NEW_NAMESPACES, errno.EPERM)])
    allowed = [(_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    for numbers in _SOCKETS:
        yield from _argument(numbers[column], [*allowed, (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT)])
    yield (_RETURN, 0, 0, _ALLOW)


def _refuse(test: int, operand: int, error: int) -> Iterator[_Instruction]:
    yield (test, 0, 1, operand)
    yield (_RETURN, 0, 0, _ERROR | error)


def _argument(number: int, rules: list[_Instruction]) -> Iterator[_Instruction]:
    """Apply `rules` to the first argument of the call `number`; a call that they do not refuse is allowed."""
    yield (_EQUAL, 0, len(rules) + 2, number)
    yield (_LOAD, 0, 0, _AT_ARGUMENT_0)
    yield from rules
    yield (_RETURN, 0, 0, _ALLOW)


# A container for untrusted programs: byte-compiling a wheel's sources, building an sdist.

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
