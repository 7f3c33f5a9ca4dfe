"""The memory planner: how many jobs a build may run at once. Pure: numbers in, a plan out.

A slot is one nvcc thread of one job. A plan fits twice. With all slots at the mean, and a few at their largest, it
stays below the memory that is left after the hold-back. With all slots at their largest it stays below all memory.
Sources: flash-attention#2079 (jobs times threads), #2493 and #2548 (a host that died, 1 % reserved),
NVIDIA/apex#1882 (per GB, jobs are faster than threads), and the measurement that recipes name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from imagegen.core.text import counted
from imagegen.spec.recipe import Cost

CORES = 16  # of the machine that build times are estimated for
_ENOUGH = 1 << 40  # bytes of its memory

GB = 10**9

# Without measurements. 5 GB is the value that flash-attention's setup.py at 0251105a uses for an nvcc thread.
# 8 GB: more than the largest single compiler that was measured (7.04 GB, cicc, flash-attn 2.8.3, 2026-11-20).
UNKNOWN = Cost(0, 0.0, 5 * GB, 8 * GB, "flash-attention's setup.py at 0251105a, and its largest compiler, 2026-11-20")

# Bytes of the process that calls the compilers. 235 MB: setuptools with torch 2.13.0 imported, 2026-11-21.
BACKEND = 300_000_000


@dataclass(frozen=True)
class Machine:
    """The machine that compiles. Bytes; `limited`: by a control group that holds nothing but the build."""

    cores: int
    memory: int  # that may be used at all
    available: int  # now
    limited: bool


@dataclass(frozen=True)
class BuildJob:
    """One build, as far as its plan depends on it."""

    cost: Cost | None  # None: not measured
    architectures: int = 1
    jobs: bool = True  # whether it takes a number of jobs
    threads: bool = False  # whether it takes a number of nvcc's threads

    @property
    def price(self) -> Cost:
        return self.cost or UNKNOWN

    @property
    def seconds(self) -> float:
        """Return the seconds on one core; infinite where they are unknown."""
        return self.price.units * self.price.seconds * self.architectures or math.inf

    @property
    def most(self) -> int | None:
        """The largest number of jobs that are of use; None if not known."""
        return (self.price.units or None) if self.jobs else 1


@dataclass(frozen=True)
class JobPlan:
    """The job counts of a build, and its expected cost."""

    jobs: int
    threads: int
    memory: int  # bytes of all processes together at the peak
    mean: int  # bytes of a slot
    largest: int  # bytes of the largest process
    seconds: float | None  # None: not measured
    units: int | None
    warning: str | None = None  # why it may run out of memory all the same

    def sentence(self, name: str) -> str:
        """The plan in words, on one line."""
        words = [counted(self.units, "unit") if self.units else "not measured"]
        words.append(f"{counted(self.jobs, 'job')} x {counted(self.threads, 'thread')}")
        words.append(f"{_gb(self.mean)} each and {_gb(self.largest)} at most")
        if self.seconds is not None:
            words.append(f"about {duration(self.seconds)} here")
        return f"{name}: {', '.join(words)}{'; ' + self.warning if self.warning else ''}"


def machine(probe: Mapping[str, Any]) -> Machine:
    """Parse the output of the worker's `probe`."""
    limit = probe.get("limit")
    return Machine(probe["cores"], probe["memory"], probe["available"], limit is not None and limit <= probe["memory"])


def budget(machine: Machine, reserved: int = 0) -> int:
    """Bytes that builds may plan with; `reserved` are planned for others already.

    On a whole machine, a quarter is reserved up to 64 GB, then 16 GB, on the largest 15 %. In a control group, which
    has only the build, a tenth is reserved. A twentieth of the available memory stays for other processes.
    """
    memory = machine.memory
    reserve = memory // 10 if machine.limited else max(min(memory // 4, 16 * GB), memory * 15 // 100)
    return max(0, min(memory - reserve - reserved, machine.available - machine.available // 20))


def needed(cost: Cost, slots: int) -> int:
    """Bytes at the peak of a build with so many slots: all at the mean, and the square root of them at the largest.

    With one or two slots that is the largest each. With 14, flash-attn 2.8.3 is planned with 75 GB and took 65.
    """
    if not slots:
        return 0
    coinciding = math.isqrt(slots - 1) + 1  # the root, rounded up
    return BACKEND + slots * cost.memory + min(slots, coinciding) * max(0, cost.largest - cost.memory)


def plan(work: BuildJob, machine: Machine, reserved: int = 0) -> JobPlan:
    """The plan for one build that has the machine to itself, but for `reserved` bytes."""
    return share({"": work}, machine, reserved)[""]


def estimate(work: BuildJob) -> float | None:
    """Return the seconds that a build takes on CORES cores with enough memory; None if its cost is not known."""
    return plan(work, Machine(CORES, _ENOUGH, _ENOUGH, limited=True)).seconds


def share(works: Mapping[str, BuildJob], machine: Machine, reserved: int = 0) -> dict[str, JobPlan]:
    """Return plans for builds that can run at once, within one budget. Those without a plan have to wait.

    The longest is planned first and always, with a warning where it does not fit; every further job goes to the build
    that would last longest without it.
    """
    capacity = _Capacity(machine, reserved)
    order = sorted(works, key=lambda name: (-works[name].seconds, name))
    slots: dict[str, tuple[int, int]] = {}  # build -> jobs, threads
    for name in order:
        if not slots or capacity.takes(works, {**slots, name: (1, 1)}):
            slots[name] = (1, 1)
    while options := [option for name in order if name in slots if (option := _one_more(name, works, slots, capacity))]:
        slots = max(options, key=lambda choice: choice[0])[1]
    for name in slots:
        slots = _threads(name, works, slots, capacity)
    return {name: _plan(works[name], jobs, threads, capacity) for name, (jobs, threads) in slots.items()}


def halved(plan: JobPlan) -> JobPlan | None:
    """Return the plan to try after a build ran out of memory; None if nothing is smaller.

    Jobs first: another number of nvcc's threads changes the commands, and ninja would compile everything again.
    """
    if plan.jobs == plan.threads == 1:
        return None
    jobs, threads = (plan.jobs // 2, plan.threads) if plan.jobs > 1 else (1, plan.threads // 2)
    slower = plan.jobs * plan.threads / (jobs * threads)
    cost = replace(UNKNOWN, memory=plan.mean, largest=plan.largest)
    return replace(
        plan,
        jobs=jobs,
        threads=threads,
        memory=needed(cost, jobs * threads),
        seconds=None if plan.seconds is None else plan.seconds * slower,
    )


def learned(record: Mapping[str, Any], architectures: int, source: str) -> Cost:
    """The cost that a finished build has shown, from the worker's record."""
    units = record["units"]
    times = record["unit_seconds"]
    worked = times["sum"] if times else sum(run["seconds"] * min(run["jobs"], units) for run in record["runs"])
    mean = max(run["memory"] / min(run["jobs"] * run["threads"], units * architectures) for run in record["runs"])
    largest = record["largest"]
    return Cost(units, worked / units / architectures, min(math.ceil(mean), largest), largest, source)


def duration(seconds: float) -> str:
    """Format a duration with the precision of an estimate: 40 s, 19 min, 2 h 15 min."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes >= 60:
        minutes = 5 * round(minutes / 5)
    hours, minutes = divmod(minutes, 60)
    return " ".join(filter(None, [f"{hours} h" if hours else "", f"{minutes} min" if minutes else ""]))


class _Capacity:
    """The memory and cores for all builds together."""

    def __init__(self, machine: Machine, reserved: int) -> None:
        self.cores = machine.cores
        self.budget = budget(machine, reserved)
        self.brim = max(self.budget, min(machine.memory - reserved, machine.available))

    def takes(self, works: Mapping[str, BuildJob], slots: Mapping[str, tuple[int, int]]) -> bool:
        counts = {name: jobs * threads for name, (jobs, threads) in slots.items()}
        return (
            sum(counts.values()) <= self.cores
            and sum(needed(works[name].price, count) for name, count in counts.items()) <= self.budget
            and sum(BACKEND + works[name].price.largest * count for name, count in counts.items()) <= self.brim
        )


_Slots = dict[str, tuple[int, int]]


def _one_more(
    name: str, works: Mapping[str, BuildJob], slots: _Slots, capacity: _Capacity
) -> tuple[float, _Slots] | None:
    """Return (the build's duration without it, the slots with one more job for it); None if that does not fit."""
    jobs = slots[name][0]
    extended = {**slots, name: (jobs + 1, 1)}
    most = works[name].most
    if (most is not None and jobs >= most) or not capacity.takes(works, extended):
        return None
    return works[name].seconds / jobs, extended


def _threads(name: str, works: Mapping[str, BuildJob], slots: _Slots, capacity: _Capacity) -> _Slots:
    """More threads for a build whose units all run at once already: per GB, jobs are faster than threads."""
    work, (jobs, threads) = works[name], slots[name]
    while work.threads and jobs == work.most and threads < work.architectures:
        threads += 1
        extended = {**slots, name: (jobs, threads)}
        if not capacity.takes(works, extended):
            break
        slots = extended
    return slots


def _plan(work: BuildJob, jobs: int, threads: int, capacity: _Capacity) -> JobPlan:
    cost = work.price
    memory = needed(cost, jobs * threads)
    seconds = None
    if work.cost and math.isfinite(work.seconds):
        # A build lasts at least as long as one unit; a unit's architectures are all that its threads can share.
        seconds = max(work.seconds / (jobs * threads), cost.seconds * work.architectures / threads)
    warning = None
    if memory > capacity.budget:
        warning = (
            f"even one job needs {_gb(memory)} and {_gb(capacity.budget)} may be used, so that it may run out of memory"
        )
    return JobPlan(jobs, threads, memory, cost.memory, cost.largest, seconds, cost.units or None, warning)


def _gb(size: int) -> str:
    return f"{size / GB:.1f}".removesuffix(".0") + " GB"
