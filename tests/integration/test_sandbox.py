"""The sandbox holds: each test tries to get out of it, or to use more than its share."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from imagegen.core import sandbox
from imagegen.core.errors import SandboxError
from imagegen.core.sandbox import Sandbox
from tests.support.machines import Debian

pytestmark = pytest.mark.integration
PYTHON = "/usr/bin/python3.11"


@pytest.fixture(scope="session")
def box(debian: Debian) -> Sandbox:
    return Sandbox(debian.rootfs)


def python(box: Sandbox, program: str, timeout: float = 30) -> str:
    return box.run([PYTHON, "-I", "-c", program], timeout=timeout).decode().strip()


def test_input_and_output_pass(box: Sandbox) -> None:
    assert box.run(["cat"], input=b"x" * 1_000_000, timeout=30) == b"x" * 1_000_000


def test_it_has_no_network(box: Sandbox) -> None:
    with pytest.raises(SandboxError, match="Network is unreachable"):
        python(box, "import socket; socket.create_connection(('192.0.2.1', 80), 5)")
    assert python(box, "import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']"


@pytest.mark.parametrize("path", ["/x", "/usr/bin/x", "/etc/passwd", "/var/x", "/dev/x", "/dev/shm/x", "/opt/x"])
def test_it_cannot_write_outside_tmp(box: Sandbox, path: str) -> None:
    with pytest.raises(SandboxError, match=r"Read-only file system|Permission denied"):
        python(box, f"open({path!r}, 'w')")


def test_its_tmp_is_private_and_limited(debian: Debian) -> None:
    box = Sandbox(debian.rootfs, memory=64 << 20)
    assert python(box, "import os; open('/tmp/x', 'w'); print(os.listdir('/tmp'))") == "['x']"
    assert python(box, "import os; print(os.listdir('/tmp'))") == "[]"
    with pytest.raises(SandboxError):
        python(box, "f = open('/tmp/x', 'wb')\nfor _ in range(200): f.write(bytes(1 << 20)); f.flush()")


@pytest.mark.fault(
    "Wheels", "an sdist's build prints without end", "stopped at 256 MiB; imagegen's own memory does not grow"
)
@pytest.mark.parametrize("stream", [1, 2])
def test_endless_output_is_contained(box: Sandbox, stream: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SandboxError, match=r"File too large|failed in the sandbox"):
            python(box, f"import os\nwhile True: os.write({stream}, bytes(1 << 20))")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_it_sees_nothing_of_the_host(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    names = set(python(box, "import os; print(*os.environ)").split())
    assert names <= {"HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "PYTHONHASHSEED", "TZ"}
    assert python(box, "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))") in {"1", "2"}
    assert python(box, "import socket; print(socket.gethostname())") == "sandbox"
    with pytest.raises(SandboxError, match="No such file"):
        python(box, f"open({str(Path(__file__))!r})")


def test_it_inherits_no_file_descriptors(box: Sandbox, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert (
            python(box, "import os; print([fd for fd in range(3, 100) if os.path.exists(f'/proc/self/fd/{fd}')])")
            == "[]"
        )


def test_it_has_no_privileges(box: Sandbox) -> None:
    status = dict(line.split(":\t") for line in python(box, "print(open('/proc/self/status').read())").splitlines())
    assert set(status["Uid"].split()) == {"65534"}
    assert {status[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


# Calls with arguments that the kernel accepts without the filter, so that only the filter can refuse them.
_CALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    return "done" if libc.syscall(*arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
"""


@pytest.mark.fault(
    "Wheels", "a build asks the kernel for what no build needs", "refused: keyrings, namespaces, io_uring, BPF and more"
)
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        pytest.param("248, b'user', b'name', b'data', 4, -4", "EPERM", id="add_key"),
        pytest.param("249, b'user', b'name', None, -4", "EPERM", id="request_key"),
        pytest.param("250, 0, -4, 1", "EPERM", id="keyctl: the user's keyring"),
        pytest.param("272, 0x10000000", "EPERM", id="unshare: a user namespace"),
        pytest.param("272, 0x10020000", "EPERM", id="unshare: user and mount namespaces"),
        pytest.param("56, 0x10000000 | 17, 0, 0, 0, 0", "EPERM", id="clone: a user namespace"),
        pytest.param("435, (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17), 64", "ENOSYS", id="clone3"),
        pytest.param("425, 4, ctypes.create_string_buffer(120)", "ENOSYS", id="io_uring_setup"),
        pytest.param("323, 1", "EPERM", id="userfaultfd"),
        pytest.param("321, 0, None, 0", "EPERM", id="bpf"),
        pytest.param("298, None, 0, -1, -1, 0", "EPERM", id="perf_event_open"),
        pytest.param("101, 0, 0, 0, 0", "EPERM", id="ptrace: be traced"),
        pytest.param("135, 0x0040000", "EPERM", id="personality: addresses without randomness"),
    ],
)
def test_the_kernel_does_nothing_that_no_build_needs(box: Sandbox, arguments: str, answer: str) -> None:
    # A child that clone made must not print a second time.
    program = (
        f"{_CALL}import os\nparent = os.getpid()\nanswer = call({arguments})\nif os.getpid() == parent: print(answer)"
    )
    assert python(box, program) == answer


@pytest.mark.fault("Wheels", "a build connects to the machine's hypervisor (vsock)", "no such socket is made")
@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET"])
def test_other_families_of_sockets_are_refused(box: Sandbox, family: str) -> None:
    program = f"""
import socket
try: socket.socket(socket.{family}, socket.SOCK_STREAM)
except OSError as error: print(error.errno)
"""
    assert python(box, program) == str(errno.EAFNOSUPPORT)


def test_sockets_of_usual_families_are_made(box: Sandbox) -> None:
    families = "socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK"
    program = f"import socket\nfor family in ({families}): socket.socket(family, socket.SOCK_DGRAM)\nprint('made')"
    assert python(box, program) == "made"
    assert python(box, "import socket; a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))") == "b'x'"


def test_threads_and_processes_start(box: Sandbox) -> None:
    """clone3 is refused as a kernel without it would, so glibc uses clone."""
    program = """
import subprocess, threading
thread = threading.Thread(target=lambda: print(subprocess.run(["echo", "child"], capture_output=True).stdout))
thread.start()
thread.join()
"""
    assert python(box, program) == "b'child\\n'"


@pytest.mark.fault("Wheels", "a build leaves data in the kernel's keyrings for the next one", "it cannot add a key")
def test_no_key_passes_from_one_build_to_the_next(box: Sandbox) -> None:
    name = f"key-of-{os.getpid()}"
    for keyring in (-3, -4, -5):  # the session's, the user's, the user's session's
        python(box, f"{_CALL}call(248, b'user', {name.encode()!r}, b'from-A', 6, {keyring})")
    read = f"""{_CALL}
buffer = ctypes.create_string_buffer(16)
for keyring in (-3, -4, -5):
    number = libc.syscall(250, 10, keyring, b'user', {name.encode()!r}, 0)
    libc.syscall(250, 11, number, buffer, 16)
print(buffer.value)
"""
    assert python(box, read) == "b''"
    assert name not in python(box, "print(open('/proc/keys').read())")


@pytest.mark.fault("Wheels", "a build makes system calls of 32-bit programs", "it is killed; those of x32 do not exist")
def test_system_calls_of_other_architectures_are_refused(box: Sandbox) -> None:
    assert python(box, f"{_CALL}print(call(0x40000000 | 39))") == "ENOSYS"
    # mov eax, 20 (getpid of i386); int 0x80; ret
    program = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000 cd80 c3"))
print(ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""
    with pytest.raises(SandboxError) as caught:
        python(box, program)
    assert "SIGSYS" in caught.value.what


def test_a_memory_bomb_is_contained(debian: Debian) -> None:
    with pytest.raises(SandboxError, match="MemoryError"):
        python(Sandbox(debian.rootfs, memory=256 << 20), "bytearray(1 << 30)")


def test_many_processes_share_one_memory_limit_as_root(debian: Debian) -> None:
    """Each takes a third of the limit. Without control groups (no root) only each one's own limit holds."""
    program = """
import os, sys, time
children = []
for _ in range(8):
    pid = os.fork()
    if not pid:
        data = bytearray(80 << 20)
        time.sleep(1)
        os._exit(0)
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
"""
    box = Sandbox(debian.rootfs, memory=256 << 20)
    if os.geteuid() != 0:
        assert python(box, program) == str([0] * 8)
        return
    process = box.popen([PYTHON, "-c", program], {})
    out, _ = process.communicate(timeout=30)
    assert b"-9" in out or process.returncode == 128 + 9  # cgroup v2 kills the whole group


def test_a_fork_bomb_is_contained(box: Sandbox) -> None:
    program = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError as error:
    print(count, error.strerror)
"""
    count, _, reason = python(box, program).partition(" ")
    assert int(count) < 300
    assert reason == "Resource temporarily unavailable"


def test_after_the_timeout_nothing_of_it_runs(box: Sandbox) -> None:
    mark = f"sleeper-{os.getpid()}"
    program = f"import os, time\nif os.fork() == 0: os.setsid()\nprint({mark!r}, flush=True)\ntime.sleep(1000)"
    start = time.monotonic()
    with pytest.raises(SandboxError, match="was stopped after 1 s"):
        python(box, program, timeout=1)
    assert time.monotonic() - start < 5
    assert not _running(mark)


def test_killing_a_worker_kills_all_of_it(box: Sandbox) -> None:
    mark = f"worker-{os.getpid()}"
    program = f"import os, sys, time\nos.fork()\nprint({mark!r}, flush=True)\ntime.sleep(1000)"
    with box.popen([PYTHON, "-c", program], {}) as process:
        assert process.stdout is not None
        assert mark.encode() in process.stdout.readline()
        assert _running(mark)
        process.kill()
    assert not _running(mark)


def test_mounts_are_where_they_should_be(debian: Debian, tmp_path: Path) -> None:
    for name in ("source", "result"):
        (tmp_path / name).mkdir()
    (tmp_path / "source/file").write_text("given")
    box = Sandbox(
        debian.rootfs,
        read_only={"/src": tmp_path / "source"},
        writable={"/out/deep": tmp_path / "result"},
    )
    python(box, "open('/out/deep/copy', 'w').write(open('/src/file').read())")
    assert (tmp_path / "result/copy").read_text() == "given"
    with pytest.raises(SandboxError, match="Read-only file system"):
        python(box, "open('/src/file', 'w')")


def test_it_starts_under_narrower_limits_than_its_own(debian: Debian) -> None:
    program = (
        "import sys; from pathlib import Path; from imagegen.core.sandbox import Sandbox\n"
        "sys.stdout.buffer.write(Sandbox(Path(sys.argv[1])).run(['echo', 'well'], timeout=30))"
    )
    command = ["sh", "-c", 'ulimit -n 64; ulimit -f 1000; exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run([*command, str(debian.rootfs)], capture_output=True, check=False)
    assert done.stdout == b"well\n", done.stderr


def test_failures_say_how(box: Sandbox) -> None:
    for program, what, why in (
        ("import sys; sys.exit('bad input')", "exit status 1", "bad input"),
        ("import os; os.abort()", "SIGABRT", ""),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV", ""),
    ):
        with pytest.raises(SandboxError) as caught:
            python(box, program)
        assert what in caught.value.what
        assert why in (caught.value.why or "")
    with pytest.raises(SandboxError, match="cannot be run"):
        box.run(["/no/such/program"], timeout=30)


def _running(mark: str) -> bool:
    """Return whether any process of the machine has `mark` on its command line, after killed ones had time to go."""
    for _ in range(50):
        listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        if not any(mark in line for line in listing.splitlines()):
            return False
        time.sleep(0.02)
    return True


def test_groups_of_killed_builds_go_with_the_next_sandbox(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    dead, own = (tmp_path / f"{sandbox.GROUP_PREFIX}{number}-0" for number in (ended.pid, os.getpid()))
    dead.mkdir()
    own.mkdir()
    sandbox.remove_stale_cgroups(tmp_path)
    assert list(tmp_path.iterdir()) == [own]
