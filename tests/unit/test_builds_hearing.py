"""Parsing of a build's output: the worker's lines among buildx's, and every known form of running out of memory."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.wheels.builds.stage import Event, LogParser, disguise
from tests.support.golden import Golden


def ear_after(*lines: str) -> tuple[LogParser, list[Event]]:
    ear = LogParser()
    events = [event for line in lines if (event := ear.feed(line))]
    return ear, events


def test_events_and_log_come_out_of_the_plain_progress() -> None:
    ear, events = ear_after(
        '#0 building with "default" instance using docker driver',
        "#7 [build-demo 1/1] RUN <<IMAGEGEN (set -eu...)",
        '#7 0.412 @imagegen {"event": "start", "total": 73}',
        "#7 1.003 running build_ext",
        '#7 88.10 @imagegen {"event": "progress", "done": 3, "total": 73, "memory": 9, "peak": 12, "largest": 7}',
        '#7 88.20 @imagegen {"event": "progress", "done": true, "total": "x", "memory": -1}',
        '#7 88.20 @imagegen {"event": "progress", "done": 1e999, "total": NaN, "seconds": 1' + 400 * "0" + "}",
        "#7 88.21 @imagegen {broken",
        "#7 88.22 @imagegen [1]",
        "#7 DONE 90.1s",
    )
    assert events == [
        Event("start", total=73),
        Event("progress", done=3, total=73, memory=9, peak=12, largest=7),
        *2 * [Event("progress")],
    ]
    assert ear.log == "running build_ext\n@imagegen {broken\n@imagegen [1]\n"
    assert ear.starved() is None


@pytest.mark.fault(
    "Source builds",
    "memory runs out as exit code 137, exit code 143, `Killed`, `Killed (program cc1plus)`, or a lost BuildKit",
    "recognised and named; run again with half the jobs, from the objects that are there",
)
@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('#7 ERROR: process "/bin/sh" did not complete successfully: exit code: 137', "137"),
        ('#7 ERROR: process "/bin/sh" did not complete successfully: exit code: 143', "143"),
        ("#7 812.1 Killed", "a process was killed"),
        ("#7 812.1 /bin/sh: line 1:   71 Killed                  nvcc -c x.cu", "a process was killed"),
        ("#7 812.1 g++: internal compiler error: Killed (program cc1plus)", "a compiler was killed"),
        ("#7 812.1 g++: fatal error: Killed signal terminated program cc1plus", "a compiler was killed"),
        ("#7 812.1 nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "nvcc's was killed"),
        (
            "ERROR: failed to receive status: rpc error: code = Unavailable desc = error reading from server: EOF",
            "BuildKit",
        ),
        ("ERROR: keepalive ping failed to receive ACK within timeout", "BuildKit"),
    ],
)
def test_every_disguise_of_memory_that_ran_out(line: str, named: str) -> None:
    ear, _ = ear_after("#7 1.0 g++ -c a.cpp", line)
    assert named in (ear.starved() or "")


@pytest.mark.parametrize(
    "line",
    [
        '#7 ERROR: process "/bin/sh" did not complete successfully: exit code: 1',
        '#7 9.1 x.cu(12): error: identifier "Killed" is undefined',
        "#7 9.1 g++: internal compiler error: Segmentation fault (program cc1plus)",
        "#7 9.1 warning: 137 functions",
        "#7 ERROR: process did not complete successfully: exit code: 137: context canceled",
    ],
)
def test_other_failures_are_not_taken_for_it(line: str) -> None:
    assert ear_after(line)[0].starved() is None


def test_the_workers_own_diagnosis_comes_first(golden: Golden) -> None:
    killed = '#7 ERROR: process "/bin/sh" did not complete successfully: exit code: 137'

    def failed(cause: str) -> str:
        return "#7 9.0 @imagegen " + json.dumps({"event": "failed", "cause": cause, "what": "so it was"})

    golden.check(ear_after(failed("memory"))[0].starved())
    assert ear_after(failed("disk"), killed)[0].starved() is None


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=40), max_size=8))
def test_whatever_a_compiler_prints_is_taken(texts: list[str]) -> None:
    ear, events = ear_after(*(f"#7 1.5 {text}" for text in texts), *texts)
    assert not events or any("@imagegen" in text for text in texts)
    assert disguise(texts) is None or any("Killed" in text or "rpc" in text or "signal" in text for text in texts)
    assert isinstance(ear.ending(3), str)
