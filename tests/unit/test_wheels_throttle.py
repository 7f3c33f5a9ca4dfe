"""The throttle never plans more than there is, uses what there is, and says so."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from imagegen.spec.recipe import Cost
from imagegen.wheels.throttle import (
    BACKEND,
    GB,
    UNKNOWN,
    BuildJob,
    Machine,
    budget,
    duration,
    halved,
    learned,
    needed,
    plan,
    share,
)
from imagegen.wheels.throttle import machine as machine_of
from tests.support.golden import Golden

# flash-attn 2.8.3 for one architecture, as facts of the recipe have it.
FLASH = Cost(units=73, seconds=220.0, memory=4_650_000_000, largest=7_040_000_000, source="measured")
SMALL = Machine(cores=2, memory=25_276_502_016, available=23_308_922_880, limited=False)
HOST = Machine(cores=16, memory=125 << 30, available=122 << 30, limited=False)

costs = st.builds(
    lambda units, seconds, memory, extra: Cost(units, seconds, memory, memory + extra, "made up"),
    st.integers(1, 200),
    st.floats(0.1, 1000),
    st.integers(1, 20 * GB),
    st.integers(0, 20 * GB),
)
works = st.builds(BuildJob, st.none() | costs, st.integers(1, 7), st.booleans(), st.booleans())
machines = st.builds(
    lambda cores, memory, share, limited: Machine(cores, memory, int(memory * share), limited),
    st.integers(1, 256),
    st.integers(1, 2000 * GB),
    st.floats(0, 1),
    st.booleans(),
)


@given(works, machines, st.integers(0, 100 * GB))
def test_a_plan_fits_or_says_that_it_does_not(work: BuildJob, machine: Machine, reserved: int) -> None:
    found = plan(work, machine, reserved)
    assert found.jobs >= 1 and found.threads >= 1
    assert found.memory == needed(work.price, found.jobs * found.threads)
    assert (found.memory <= budget(machine, reserved)) == (found.warning is None)
    assert found.jobs * found.threads <= machine.cores
    if found.warning:
        assert found.jobs == found.threads == 1
    else:
        assert BACKEND + found.jobs * found.threads * work.price.largest <= machine.memory


@given(works, machines, st.integers(0, 100 * GB), st.integers(0, 500 * GB), st.integers(0, 64))
def test_more_of_anything_is_never_less_work_at_once(
    work: BuildJob, machine: Machine, reserved: int, memory: int, cores: int
) -> None:
    larger = replace(machine, memory=machine.memory + memory, available=machine.available + memory)
    before = plan(work, machine, reserved)
    assert budget(larger, reserved) >= budget(machine, reserved)
    assert plan(work, larger, reserved).jobs >= before.jobs
    after = plan(work, replace(larger, cores=machine.cores + cores), reserved)
    assert after.jobs * after.threads >= before.jobs * before.threads
    assert plan(work, machine, reserved + memory).jobs <= before.jobs


@given(works, machines)
def test_no_job_is_left_that_would_fit(work: BuildJob, machine: Machine) -> None:
    found = plan(work, machine)
    more = found.jobs + 1
    assert (
        more > machine.cores
        or (work.most is not None and more > work.most)
        or needed(work.price, more) > budget(machine)
        or BACKEND + more * work.price.largest > max(budget(machine), min(machine.memory, machine.available))
    )


@given(works, machines)
def test_threads_only_where_all_units_run_and_more_architectures_than_one_are_left(
    work: BuildJob, machine: Machine
) -> None:
    found = plan(work, machine)
    if found.threads > 1:
        assert work.threads and found.jobs == work.most and found.jobs < machine.cores
        assert found.threads <= work.architectures


@given(st.dictionaries(st.sampled_from("abcdef"), works, min_size=1), machines, st.integers(0, 100 * GB))
def test_builds_that_run_together_share_one_budget(
    several: dict[str, BuildJob], machine: Machine, reserved: int
) -> None:
    plans = share(several, machine, reserved)
    assert plans and plans.keys() <= several.keys()
    if any(found.warning for found in plans.values()):
        assert len(plans) == 1
    else:
        assert sum(found.memory for found in plans.values()) <= budget(machine, reserved)
    assert sum(found.jobs * found.threads for found in plans.values()) <= machine.cores


@given(works, machines)
def test_halving_ends_at_one_job_and_never_takes_more(work: BuildJob, machine: Machine) -> None:
    found = plan(work, machine)
    while smaller := halved(found):
        assert smaller.jobs * smaller.threads <= found.jobs * found.threads / 2 or found.jobs % 2 or found.threads % 2
        assert smaller.jobs * smaller.threads < found.jobs * found.threads
        assert smaller.memory <= found.memory
        assert smaller.threads == found.threads or smaller.jobs == 1
        assert (smaller.seconds is None) == (found.seconds is None)
        found = smaller
    assert found.jobs == found.threads == 1


@given(costs, st.integers(1, 300))
def test_a_slot_more_takes_at_least_its_mean_and_all_at_most_the_largest_each(cost: Cost, slots: int) -> None:
    assert needed(cost, slots + 1) >= needed(cost, slots) + cost.memory
    assert slots * cost.memory <= needed(cost, slots) - BACKEND <= slots * cost.largest
    assert needed(cost, 0) == 0


def test_flash_attn_on_two_cores(golden: Golden) -> None:
    found = plan(BuildJob(FLASH, threads=True), SMALL)
    golden.check(found.sentence("flash-attn"))
    assert found.memory == BACKEND + 2 * FLASH.largest


def test_flash_attn_on_sixteen_cores_is_planned_no_slower_than_it_was_with_fourteen_jobs() -> None:
    found = plan(BuildJob(FLASH, threads=True), HOST)
    assert found.seconds is not None
    assert found.jobs >= 14 and found.threads == 1 and found.seconds <= 1154
    assert 65 * GB < found.memory <= budget(HOST)


def test_a_group_too_small_for_one_job_is_reported(golden: Golden) -> None:
    found = plan(BuildJob(FLASH), Machine(8, 6 * GB, 6 * GB, limited=True))
    assert found.jobs == 1
    golden.check(found.sentence("flash-attn"))


def test_a_build_without_measurements_is_planned_with_a_stated_cost(golden: Golden) -> None:
    found = plan(BuildJob(None), Machine(16, 64 * GB, 64 * GB, limited=False))
    assert (found.mean, found.largest, found.seconds) == (UNKNOWN.memory, UNKNOWN.largest, None)
    golden.check(found.sentence("apex"))


def test_few_units_for_many_architectures_get_threads() -> None:
    work = BuildJob(Cost(4, 100.0, GB, 2 * GB, "made up"), architectures=3, threads=True)
    found = plan(work, replace(HOST, cores=16))
    assert (found.jobs, found.threads) == (4, 3)
    assert found.seconds == 100.0
    assert plan(replace(work, threads=False), HOST).threads == 1


def test_a_second_build_takes_what_the_first_leaves() -> None:
    small = Cost(2, 60.0, GB, 2 * GB, "made up")
    plans = share({"flash-attn": BuildJob(FLASH), "conv": BuildJob(small), "apex": BuildJob(None)}, HOST)
    assert set(plans) == {"flash-attn", "conv", "apex"}
    assert plans["conv"].jobs == 1  # it would end long before the others
    alone = share({"flash-attn": BuildJob(FLASH), "conv": BuildJob(small)}, SMALL)
    assert {name: found.jobs for name, found in alone.items()} == {"flash-attn": 1, "conv": 1}
    one = replace(SMALL, cores=1)
    assert set(share({"flash-attn": BuildJob(FLASH), "conv": BuildJob(small)}, one)) == {"flash-attn"}


def test_a_build_that_takes_no_jobs_gets_one() -> None:
    assert plan(BuildJob(FLASH, jobs=False), HOST).jobs == 1


def test_a_finished_build_teaches_its_cost() -> None:
    run = {"jobs": 2, "threads": 1, "memory": 9 * GB, "seconds": 500.0}
    record = {"units": 4, "unit_seconds": {"sum": 880.0, "longest": 300.0}, "largest": 7 * GB, "runs": [run]}
    found = learned(record, 2, "here")
    assert found == Cost(4, 110.0, 9 * GB // 2, 7 * GB, "here")
    assert learned({**record, "unit_seconds": None}, 1, "here").seconds == 250.0


def test_durations_are_as_exact_as_estimates() -> None:
    cases = {0.2: "1 s", 42.0: "42 s", 130.0: "2 min", 1154.0: "19 min", 3600.0: "1 h", 8030.0: "2 h 15 min"}
    assert {seconds: duration(seconds) for seconds in cases} == cases


def test_a_probe_says_whether_a_group_limits() -> None:
    seen = {"cores": 4, "memory": 8 * GB, "available": 7 * GB, "limit": None, "swap": 0}
    assert machine_of(seen) == Machine(4, 8 * GB, 7 * GB, limited=False)
    assert machine_of({**seen, "limit": 8 * GB}).limited
    assert not machine_of({**seen, "limit": 9 * GB}).limited
    assert math.isclose(budget(machine_of({**seen, "limit": 8 * GB})), 6.65 * GB)
