"""The filter of system calls that every sandbox has, a classic BPF program that the kernel runs at each call.

The filter lists refused calls, not allowed ones, and it ends the list: a call that is newer than the list does not
exist in the sandbox. It refuses calls that reach beyond the sandbox (keyrings outlive it; AF_VSOCK reaches the
hypervisor), and calls that attacks use but no build needs. Keyrings have no namespace for a user that is not in a user
namespace, so a build has no keyring at all.

    load arch               of another architecture (i386 by `int 0x80`, 32-bit Arm) -> kill the process
    load number             > _NEWEST (also all of x32, which have bit 30 set)       -> ENOSYS
                            == each of ABSENT                                        -> ENOSYS
                            == each of REFUSED                                       -> EPERM
    clone                   load argument 0: & _NEW_NAMESPACES                       -> EPERM
    socket, socketpair      load argument 0: none of _FAMILIES                       -> EAFNOSUPPORT
                                                                                     -> allow

Sources: the kernel's userspace-api/seccomp_filter and networking/filter; include/uapi/linux/{audit,bpf_common,filter,
sched,seccomp}.h; Docker's default profile (moby, profiles/seccomp/default.json) and Flatpak's (common/flatpak-run.c)
for the refused calls. Numbers of calls: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.

libseccomp would take names instead of numbers. Its releases know no call that is newer than they are, so they cannot
refuse it by name, and it is a library of the system that no wheel brings: this program is shorter than its binding.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Mapping
from functools import cache

from imagegen.core.errors import SandboxError

_Numbers = tuple[int | None, int | None]  # on x86-64 and on AArch64; None where the architecture lacks the call

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column in `_Numbers`, AUDIT_ARCH_*
_NEWEST = 456  # futex_requeue, Linux 6.7; from 424 on all architectures have the same numbers
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
CLONE = (56, 220)
SOCKETS = ((41, 198), (53, 199))  # socket, socketpair

# fmt: off
# Programs do without these where the kernel is older. A filter cannot read clone3's flags, which lie in memory: without
# it, the C library uses clone.
ABSENT: Mapping[str, _Numbers] = {
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}
REFUSED: Mapping[str, _Numbers] = {
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
    for calls, error in ((ABSENT, errno.ENOSYS), (REFUSED, errno.EPERM)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                yield from _refuse(_EQUAL, number, error)
    yield from _argument(CLONE[column], [*_refuse(_ANY_BIT, _NEW_NAMESPACES, errno.EPERM)])
    allowed = [(_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    for numbers in SOCKETS:
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
