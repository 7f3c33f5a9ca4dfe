"""The record of a lock that changed: kept where every layer stays as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen import lock
from imagegen.core.data import shipped
from imagegen.image.layers import keep_record, record_contradictions
from imagegen.lock.model import Lock


@pytest.fixture(scope="module")
def recorded() -> Lock:
    found = lock.read(shipped("locks") / "cpu-grpo-cpu-py311.toml", shipped("locks").parent)
    assert found.record
    return found


def test_a_changed_input_keeps_the_layers_and_gives_another_digest(recorded: Lock) -> None:
    made = replace(recorded, inputs={**recorded.inputs, "rules": "0" * 64}, record=None)
    kept = keep_record(made, recorded)
    assert kept.record
    assert recorded.record
    assert kept.record.layers == recorded.record.layers
    assert kept.record.digest != recorded.record.digest
    assert not record_contradictions(kept)


def test_a_changed_wheel_drops_the_record(recorded: Lock) -> None:
    first = recorded.wheels[0]
    wheels = (replace(first, file=replace(first.file, sha256="0" * 64)), *recorded.wheels[1:])
    made = replace(recorded, wheels=wheels, record=None)
    assert keep_record(made, recorded) is made


def test_a_compiled_wheel_of_another_key_drops_the_record() -> None:
    found = lock.read(shipped("locks") / "hopper-vllm-cu130-py311-megatron-te.toml", shipped("locks").parent)
    record = lock.read(shipped("locks") / "hopper-vllm-cu130-py311.toml", shipped("locks").parent).record
    previous = replace(found, record=record)
    other = replace(found, builds=tuple(replace(each, key="sha256:" + "0" * 64) for each in found.builds))
    assert keep_record(other, previous) is other


def test_without_a_record_nothing_is_kept(recorded: Lock) -> None:
    made = replace(recorded, record=None)
    assert keep_record(made, made) is made
