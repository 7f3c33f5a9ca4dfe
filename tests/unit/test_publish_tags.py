"""Tags: valid, telling cells apart, and saying what people look for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen import lock
from imagegen.core.data import shipped
from imagegen.core.errors import PublishError
from imagegen.publish.tags import CHANNELS, COMPRESSIONS, TagInput, index_inputs, most_similar, tags
from imagegen.spec.cells import cell_id
from tests.support.errors import raises
from tests.support.golden import Golden

DEFAULTS = {"cuda": "cu130", "python": "3.11", "platform": "linux/amd64", "attention": "fa2"}
VALUE = st.from_regex(r"[a-z0-9]{1,4}([./-][a-z0-9]{1,4}){0,2}", fullmatch=True)
AXES = st.fixed_dictionaries(
    {
        "cuda": st.sampled_from(["cu128", "cu130", "cpu"]) | VALUE,
        "python": st.from_regex(r"3\.1[0-4]", fullmatch=True),
        "platform": st.sampled_from(["linux/amd64", "linux/arm64"]),
        "attention": st.sampled_from(["fa2", "sdpa"]) | VALUE,
    }
)
VERSION = st.from_regex(r"([0-9]!)?[0-9]{1,3}(\.[0-9]{1,3}){0,3}((a|b|rc)[0-9])?(\.dev[0-9]{1,8})?", fullmatch=True)


def subject(axes: dict[str, str], version: str = "2.13.0", **more: str) -> TagInput:
    rest = cell_id("demo", axes, DEFAULTS).removeprefix("demo-")
    title = f"torch{version}-{axes['cuda']}-py{axes['python'].replace('.', '')}"
    plain = TagInput(
        f"demo-{rest}", rest, axes, DEFAULTS, title, "2026-11-20T00:00:00Z", "sha256:" + "ab" * 32, "latest"
    )
    return replace(plain, **more)  # type: ignore[arg-type]


@given(AXES, VERSION, st.sampled_from(CHANNELS), st.sampled_from(COMPRESSIONS))
def test_every_tag_is_one_that_registries_take(axes: dict[str, str], version: str, channel: str, codec: str) -> None:
    try:
        found = tags(subject(axes, version, channel=channel, compression=codec))
    except PublishError:
        return
    for tag in (found.immutable, *found.mutable):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", tag)
    assert found.immutable not in found.mutable
    assert found.mutable, "a channel moves something for every cell"


@given(st.lists(AXES, min_size=2, max_size=4), st.sampled_from(COMPRESSIONS))
def test_two_cells_of_an_image_never_share_a_tag(cells: list[dict[str, str]], codec: str) -> None:
    """Even if their inputs had one hash; and neither do the channels, nor what is compressed otherwise."""
    owners: dict[str, tuple[str, str]] = {}
    for axes in cells:
        for channel in CHANNELS:
            try:
                found = tags(subject(axes, channel=channel, compression=codec))
            except PublishError:
                continue
            own = cell_id("demo", axes, DEFAULTS)
            for tag in (found.immutable, *(f"{each}" for each in found.mutable)):
                owner = owners.setdefault(tag, (own, codec))
                assert owner == (own, codec), tag


@pytest.mark.parametrize(
    ("changed", "channel", "mutable"),
    [
        ({}, "latest", ("latest", "cu130", "cu130-py311")),
        ({"cuda": "cu128"}, "latest", ("cu128", "cu128-py311")),
        ({"python": "3.12"}, "latest", ("cu130-py312",)),
        ({"attention": "sdpa"}, "latest", ("cu130-py311-sdpa",)),
        ({}, "nightly", ("nightly",)),
        ({"cuda": "cu128"}, "nightly", ("nightly-cu128-py311",)),
    ],
)
def test_mutable_tags(changed: dict[str, str], channel: str, mutable: tuple[str, ...]) -> None:
    assert tags(subject({**DEFAULTS, **changed}, channel=channel)).mutable == mutable
    packed = tags(subject({**DEFAULTS, **changed}, channel=channel, compression="gzip"))
    assert packed.mutable == tuple(f"{tag}-gzip" for tag in mutable)


def test_the_immutable_tag_has_date_software_and_inputs() -> None:
    assert tags(subject(DEFAULTS)).immutable == "2026.11.20-torch2.13.0-cu130-py311-abababab"
    other = {**DEFAULTS, "platform": "linux/arm64"}
    assert tags(subject(other)).immutable == "2026.11.20-torch2.13.0-cu130-py311-linux-arm64-abababab"
    long = tags(subject(DEFAULTS, "2." + "1" * 200, compression="gzip")).immutable
    assert len(long) == 128
    assert long.endswith("-abababab-gzip")


def test_a_committed_lock() -> None:
    found = lock.read(shipped("locks") / "blackwell-vllm-cu130-py311.toml")
    assert re.fullmatch(
        r"20\d\d\.\d\d\.\d\d-torch[\d.]+-cu130-vllm[\d.]+-py311-[0-9a-f]{8}",
        tags(TagInput.of(found, found.axes)).immutable,
    )


def test_an_index_has_the_tags_of_its_first_cell_and_a_hash_of_its_own() -> None:
    amd64 = lock.read(shipped("locks") / "cpu-grpo-cpu-py311.toml")
    arm64 = lock.read(shipped("locks") / "cpu-grpo-cpu-py311-linux-arm64.toml")
    found, alone = tags(TagInput.of_index([amd64, arm64], amd64.axes)), tags(TagInput.of(amd64, amd64.axes))
    assert found.mutable == alone.mutable == ("latest", "cpu", "cpu-py311")
    assert found.immutable[:-8] == alone.immutable[:-8]
    assert found.immutable != alone.immutable
    assert index_inputs([amd64, arm64]) == index_inputs([arm64, amd64]) != index_inputs([amd64])


@pytest.mark.parametrize("axis", ["cuda", "attention"])
def test_what_would_be_a_tag_of_two_meanings_is_refused(axis: str) -> None:
    with raises("publish-no-tags"):
        tags(subject({**DEFAULTS, axis: "nightly"}))


def test_a_moving_tag_that_no_registry_takes_is_refused(golden: Golden) -> None:
    with raises("publish-no-tags") as refused:
        tags(subject({**DEFAULTS, "attention": "x" * 120}))
    golden.check(refused.value)


def test_akin_is_the_newest_of_those_with_the_most_similar_title() -> None:
    own = "2026.11.20-torch2.13.0-cu130-py311-aaaaaaaa"
    far, older, newer = (
        "2026.11.19-torch2.12.0-cpu-py311-aaaaaaab",
        "2026.11.17-torch2.13.0-cu130-py311-ffffffff",
        "2026.11.18-torch2.13.0-cu130-py311-00000000",
    )
    others = ["latest", "2026.11.20", "sha256-" + "a" * 64]
    assert most_similar(own, [own, *others, far, newer, older]) == newer
    assert most_similar(own, [*others, f"{newer}-gzip", far]) == f"{newer}-gzip"
    assert most_similar(own, [far]) == far
    assert most_similar(own, [own, *others]) is None
