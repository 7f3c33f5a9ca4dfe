"""The filter of system calls, run by a small interpreter of classic BPF (the kernel's networking/filter)."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core import seccomp
from imagegen.core.errors import SandboxError
from imagegen.core.seccomp import program

ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
machines = st.sampled_from(sorted(ARCHITECTURES))
words = st.integers(0, 2**32 - 1)
longs = st.integers(0, 2**64 - 1)


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Run the filter for `machine` on one call and return its answer; reading past the program's end is an error."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number - (number >> 31 << 32), architecture or ARCHITECTURES[machine], 0, *values)
    code = [*struct.iter_unpack("=HBBI", program(machine))]
    accumulator = position = 0
    while True:
        operation, true, false, operand = code[position]
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, operand)
                position += 1
                continue
            case 0x06:
                return int(operand)
            case 0x15:
                met = accumulator == operand
            case 0x25:
                met = accumulator > operand
            case 0x45:
                met = bool(accumulator & operand)
            case _:
                raise AssertionError(f"no such instruction: {operation:#x}")
        position += 1 + (true if met else false)


@pytest.mark.parametrize(
    ("x86_64", "aarch64", "arguments", "answer"),
    [
        pytest.param(0, 63, (), ALLOW, id="read"),
        pytest.param(59, 221, (), ALLOW, id="execve"),
        pytest.param(117, 147, (), ALLOW, id="setresuid, which setpriv calls"),
        pytest.param(317, 277, (), ALLOW, id="seccomp: a stricter filter of its own"),
        pytest.param(456, 456, (), ALLOW, id="futex_requeue, the newest"),
        pytest.param(457, 457, (), ERROR | errno.ENOSYS, id="statmount"),
        pytest.param(435, 435, (), ERROR | errno.ENOSYS, id="clone3"),
        pytest.param(425, 425, (), ERROR | errno.ENOSYS, id="io_uring_setup"),
        pytest.param(248, 217, (), ERROR | errno.EPERM, id="add_key"),
        pytest.param(250, 219, (), ERROR | errno.EPERM, id="keyctl"),
        pytest.param(272, 97, (0x10000000,), ERROR | errno.EPERM, id="unshare"),
        pytest.param(165, 40, (), ERROR | errno.EPERM, id="mount"),
        pytest.param(101, 117, (), ERROR | errno.EPERM, id="ptrace"),
        pytest.param(321, 280, (), ERROR | errno.EPERM, id="bpf"),
        pytest.param(323, 282, (), ERROR | errno.EPERM, id="userfaultfd"),
        pytest.param(298, 241, (), ERROR | errno.EPERM, id="perf_event_open"),
        pytest.param(56, 220, (0x11,), ALLOW, id="clone: fork"),
        pytest.param(56, 220, (0x3D0F00,), ALLOW, id="clone: a thread"),
        pytest.param(56, 220, (0x10000011,), ERROR | errno.EPERM, id="clone: a user namespace"),
        pytest.param(41, 198, (40, 1), ERROR | errno.EAFNOSUPPORT, id="socket: AF_VSOCK"),
        pytest.param(41, 198, (1 << 32 | 40, 1), ERROR | errno.EAFNOSUPPORT, id="socket: AF_VSOCK and a bit more"),
        pytest.param(53, 199, (40, 1), ERROR | errno.EAFNOSUPPORT, id="socketpair: AF_VSOCK"),
        pytest.param(53, 199, (1, 1), ALLOW, id="socketpair: AF_UNIX"),
    ],
)
def test_the_same_calls_are_refused_on_both_architectures(
    x86_64: int, aarch64: int, arguments: tuple[int, ...], answer: int
) -> None:
    assert decide("x86_64", x86_64, *arguments) == answer
    assert decide("aarch64", aarch64, *arguments) == answer


@given(machines, st.sampled_from(["socket", "socketpair"]), longs)
def test_only_four_families_of_sockets_are_made(machine: str, name: str, family: int) -> None:
    number = {"x86_64": {"socket": 41, "socketpair": 53}, "aarch64": {"socket": 198, "socketpair": 199}}[machine][name]
    allowed = family & 0xFFFFFFFF in (1, 2, 10, 16)  # the kernel reads an int
    assert decide(machine, number, family) == (ALLOW if allowed else ERROR | errno.EAFNOSUPPORT)


@given(machines, longs)
def test_clone_makes_no_namespace(machine: str, flags: int) -> None:
    new = any(flags & bit for bit in (0x20000, *(0x2000000 << shift for shift in range(6))))
    assert decide(machine, {"x86_64": 56, "aarch64": 220}[machine], flags) == (ERROR | errno.EPERM if new else ALLOW)


@given(machines, st.integers(457, 2**32 - 1), longs)
def test_calls_that_are_newer_than_the_table_or_of_x32_do_not_exist(machine: str, number: int, argument: int) -> None:
    assert decide(machine, number, argument) == ERROR | errno.ENOSYS


@given(machines, words, words, longs)
def test_programs_of_other_architectures_are_killed(machine: str, number: int, other: int, argument: int) -> None:
    architecture = other if other not in (0, ARCHITECTURES[machine]) else 0x40000003  # i386
    assert decide(machine, number, argument, architecture=architecture) == KILL


@given(machines, words, longs)
def test_every_call_has_an_answer(machine: str, number: int, argument: int) -> None:
    answer = decide(machine, number, argument)
    assert answer == ALLOW or answer ^ ERROR in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_the_program_fits_into_a_pipe_and_the_kernel(machine: str) -> None:
    size = len(program(machine))
    assert size % 8 == 0
    assert size <= 4096


def test_no_number_stands_for_two_calls() -> None:
    calls = [*seccomp.ABSENT.values(), *seccomp.REFUSED.values(), seccomp.CLONE, *seccomp.SOCKETS]
    for column in (0, 1):
        numbers = [each[column] for each in calls if each[column] is not None]
        assert len(numbers) == len(set(numbers))


def test_an_architecture_without_a_table_is_refused() -> None:
    with pytest.raises(SandboxError) as caught:
        program("riscv64")
    assert caught.value.fix
