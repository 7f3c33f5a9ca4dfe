"""The worker's parsers: control groups, ninja's lines, every known form of running out of memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.checks.worker import units
from imagegen.checks.worker.causes import DISK, FAILED, MEMORY, STOPPED, diagnose
from imagegen.checks.worker.memory import machine, own_cgroup, process_tree
from imagegen.checks.worker.units import UnitCounter
from tests.support.golden import Golden

MB = 1 << 20
MEMINFO = (
    "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:   12000000 kB\nSwapFree:  2048 kB\nHugePages_Total: 0\n"
)


def tree(root: Path, cgroup: str, mounts: str, files: dict[str, str]) -> Path:
    """A /proc with these memberships and mounts, beside group files; returns the /proc."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mounts.replace("ROOT", str(root)))
    (root / "proc/meminfo").write_text(MEMINFO)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root / "proc"


V2 = "31 23 0:28 / ROOT/sys rw - cgroup2 cgroup2 rw\n"
V1 = "35 31 0:32 INSIDE ROOT/sys/memory rw - cgroup cgroup rw,memory\n"


def test_a_limit_of_a_group_above_counts_in_version_2(tmp_path: Path) -> None:
    files = {
        "sys/a/b/memory.max": "max\n",
        "sys/a/b/memory.current": f"{100 * MB}\n",
        "sys/a/b/memory.peak": f"{300 * MB}\n",
        "sys/a/b/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
        "sys/a/memory.max": f"{1000 * MB}\n",
        "sys/a/memory.current": f"{600 * MB}\n",
        "sys/a/memory.stat": f"anon 1\ninactive_file {50 * MB}\n",
        "sys/a/memory.swap.max": "0\n",
        "sys/a/cpu.max": "150000 100000\n",
    }
    proc = tree(tmp_path, "0::/a/b\n", V2, files)
    group = own_cgroup(proc)
    assert group is not None
    assert (group.limit(), group.headroom(), group.kills(), group.peak()) == (1000 * MB, 450 * MB, 2, 300 * MB)
    assert machine(proc, tmp_path / "sys") == {
        "cores": len(os.sched_getaffinity(0)),  # the quota is of a group above
        "memory": 1000 * MB,
        "available": 450 * MB,
        "limit": 1000 * MB,
        "swap": 0,
    }


def test_version_1_says_the_limits_that_a_container_cannot_see(tmp_path: Path) -> None:
    """A container sees its own group as the mount's root; hierarchical_memory_limit tells of those above."""
    files = {
        "sys/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/memory/memory.memsw.limit_in_bytes": "9223372036854771712\n",
        "sys/memory/memory.usage_in_bytes": f"{10 * MB}\n",
        "sys/memory/memory.max_usage_in_bytes": f"{20 * MB}\n",
        "sys/memory/memory.stat": f"cache 1\nhierarchical_memory_limit {700 * MB}\n",
        "sys/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    }
    proc = tree(tmp_path, "4:cpu,memory:/docker/abc\n0::/\n", V1.replace("INSIDE", "/docker/abc") + V2, files)
    group = own_cgroup(proc)
    assert group is not None and group.version == 1
    assert (group.limit(), group.headroom(), group.kills(), group.peak()) == (700 * MB, None, 1, 20 * MB)
    assert machine(proc, tmp_path / "sys")["swap"] == 2048 << 10


def test_a_group_that_a_mount_does_not_show_is_read_at_the_mount(tmp_path: Path) -> None:
    proc = tree(
        tmp_path, "4:memory:/elsewhere\n", V1.replace("INSIDE", "/docker"), {"sys/memory/memory.limit_in_bytes": "5\n"}
    )
    group = own_cgroup(proc)
    assert group is not None and group.limit() == 5


@pytest.mark.parametrize(("cgroup", "mounts"), [("", ""), ("0::/\n", V2), ("4:memory:/\n", "")])
def test_without_a_group_the_machine_itself_counts(tmp_path: Path, cgroup: str, mounts: str) -> None:
    proc = tree(tmp_path, cgroup, mounts, {"sys/cgroup.procs": ""})
    assert own_cgroup(proc) is None
    found = machine(proc, tmp_path / "sys")
    assert (found["memory"], found["available"], found["limit"]) == (16000000 << 10, 12000000 << 10, None)


def test_a_quota_of_cpu_time_is_less_than_its_cores(tmp_path: Path) -> None:
    proc = tree(
        tmp_path, "1:cpu:/x\n", "", {"sys/cpu/x/cpu.cfs_quota_us": "100\n", "sys/cpu/x/cpu.cfs_period_us": "90"}
    )
    assert machine(proc, tmp_path / "sys")["cores"] == 1


def test_this_machine_has_memory_and_this_process_is_of_its_own_family() -> None:
    found = machine()
    assert 0 < (found["available"] or 0) <= (found["memory"] or 0) and (found["cores"] or 0) > 0
    own = next(process for process in process_tree(os.getpid()) if process.pid == os.getpid())
    assert own.parent == os.getppid() and own.memory > MB


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=6), st.integers(0, 50))
def test_all_runs_of_ninja_count(runs: list[tuple[int, int]], earlier: int) -> None:
    """Each run is (units, how many of them are said to be done)."""
    count = UnitCounter(earlier, None)
    expected = earlier
    for total, finished in runs:
        for number in range(1, min(finished, total) + 1):
            assert count.read(f"@ninja {number} {total} @ nvcc -c a.cu -o a.o")
            expected += 1
            assert not count.read("a.cu(3): warning: unused")
            assert count.done == expected <= count.total
    assert count.compiled == expected - earlier


def test_a_unit_that_failed_is_not_done() -> None:
    count = UnitCounter(5, 20)
    count.read("@ninja 1 9 @ nvcc -c a.cu -o a.o")
    count.read("@ninja 2 9 @ nvcc -c b.cu -o b.o")
    assert not count.read("FAILED: [code=137] b.o ")
    assert (count.done, count.total) == (6, 20)


def test_compilers_without_ninja_count_by_their_commands() -> None:
    count = UnitCounter(0, 2)
    assert count.read("gcc -O2 -fPIC -c a.c -o build/a.o")
    assert not count.read("gcc -shared build/a.o -o a.so")
    assert not count.read("ninja: error: loading 'build.ninja': -c x -o y.o")
    assert (count.done, count.total) == (1, 2)


def test_a_line_of_ninja_is_shown_without_its_status(golden: Golden) -> None:
    assert units.plain("@ninja 1 9 @ nvcc -c a.cu") == "nvcc -c a.cu"
    golden.check(units.plain("nvcc warning : x"))


def test_what_ninja_logged_and_still_lies_there_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "build/temp"
    folder.mkdir(parents=True)
    log = (
        "# ninja log v7\n0\t1500\t17\ta.o\tff\n10\t9010\t17\tb.o\tff\n20\t30\t17\ta.o\tff\n1\t2\t3\tx.so\tff\nbroken\n"
    )
    (folder / ".ninja_log").write_text(log)
    (folder / "a.o").touch()
    assert units.kept(tmp_path) == 1
    assert units.seconds(tmp_path) == [9.0, 0.01]
    (folder / "build.ninja").write_text("cuda_cflags = -O3\n  cflags = -g\nrule x\n  command = cc\n")
    assert units.flags(tmp_path) == ["cflags = -g", "cuda_cflags = -O3"]


@pytest.mark.parametrize(
    ("line", "process"),
    [
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "cicc"),
        ("g++: internal compiler error: Killed (program cc1plus)", "cc1plus"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "cc1plus"),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", "ld"),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 3 bytes", "cc1plus"),
        ("virtual memory exhausted: Cannot allocate memory", "cudafe++"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "cudafe++"),
        ("LLVM ERROR: out of memory", "cudafe++"),
        ("ninja: fatal: posix_spawn: Cannot allocate memory", "cudafe++"),
        ("Killed", "cudafe++"),
        ("/bin/sh: line 1: 12345 Killed                  nvcc -c a.cu", "cudafe++"),
        ("FAILED: [code=137] a.o ", "cudafe++"),
        ("FAILED: [code=143] a.o ", "cudafe++"),
    ],
)
def test_running_out_of_memory_is_known_by_its_words(line: str, process: str) -> None:
    found = diagnose(1, ["x.cu: note: nothing", line, "ninja: build stopped: subcommand failed."], 0, "cudafe++")
    assert (found.cause, found.process) == (MEMORY, process)
    assert found.what


@pytest.mark.parametrize("code", [137, 143, -9, -15])
def test_running_out_of_memory_is_known_by_how_it_ended(code: int) -> None:
    assert diagnose(code, [], 0, None).cause == MEMORY


def test_what_the_kernel_counted_decides(golden: Golden) -> None:
    found = diagnose(1, ["error: command 'nvcc' failed"], 2, "cicc")
    golden.check(found.what)
    assert found.cause == MEMORY


@pytest.mark.parametrize(
    ("lines", "cause", "says"),
    [
        (["a.cu(3): error: identifier x", "FAILED: [code=2] a.o "], FAILED, "a.cu(3): error: identifier x"),
        (
            ["g++: internal compiler error: Segmentation fault signal terminated (program cc1plus)"],
            FAILED,
            "Segmentation",
        ),
        (["a.cc:1: note: in Killed by the rest", "ModuleNotFoundError: No module named 'wheel'"], FAILED, "wheel"),
        (["fatal error: error writing to /tmp/x.s: No space left on device"], DISK, "disk"),
        ([], FAILED, "exit code 1 and said nothing"),
    ],
)
def test_other_failures_are_not_taken_for_it(lines: list[str], cause: str, says: str) -> None:
    found = diagnose(1, lines, 0, "cicc")
    assert found.cause == cause and says in found.what


def test_a_build_that_was_stopped_did_not_fail() -> None:
    assert diagnose(-2, ["Killed"], 0, None, stopped=True).cause == STOPPED


@given(st.integers(-64, 255), st.lists(st.text(max_size=80), max_size=5), st.integers(0, 3), st.booleans())
def test_there_is_always_a_reason(code: int, lines: list[str], kills: int, stopped: bool) -> None:
    assert diagnose(code, lines, kills, None, stopped=stopped).what
