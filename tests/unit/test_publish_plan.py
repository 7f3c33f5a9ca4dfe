"""Output of a dry run: for a recorded lock without network, and for a registry that was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from imagegen.image.layers import Layer, LayerOrigin, LayerSource
from imagegen.image.layers.plan import LayerPlan
from imagegen.oci.documents import ZSTD_TYPE
from imagegen.publish.plan import PublishPlan, RegistryState, lines
from imagegen.publish.tags import Tags
from tests.support.golden import Golden

TAGS = Tags("2026.11.20-torch2.13.0-cu130-py311-1a2b3c4d", ("latest", "cu130", "cu130-py311"))
OLD, NEW = "sha256:" + "0" * 64, "sha256:" + "f" * 64


def layer_source(name: str, digit: str, size: int, origin: LayerOrigin = LayerOrigin.BUILD) -> LayerSource:
    digest = "sha256:" + digit * 64
    return LayerSource(LayerPlan(name, (), digest), origin, Layer(ZSTD_TYPE, digest, size, digest, name, digest))


WANTED = (
    layer_source("base", "a", 177_300_000),
    layer_source("nvidia-cublas", "b", 411_000_000, LayerOrigin.STORE),
    layer_source("torch", "c", 510_900_000, LayerOrigin.STORE),
    layer_source("vllm", "d", 271_100_000),
)
SEEN = RegistryState(
    frozenset({WANTED[0].plan.key}),
    frozenset({WANTED[1].plan.key}),
    {TAGS.immutable: None, "latest": OLD, "cu130": OLD, "cu130-py311": NEW},
)
STEPS = ("attached: lock, sbom; signed by release.key",)


def planned(
    required: tuple[LayerSource, ...] = WANTED,
    digest: str | None = NEW,
    seen: RegistryState | None = SEEN,
    *,
    moves: bool = True,
) -> PublishPlan:
    return PublishPlan("demo-cu130-py311", "ghcr.io/acme/rl/demo", digest, required, TAGS, seen, moves, STEPS)


def test_the_plan_as_text(golden: Callable[[str, str], None]) -> None:
    plans = {
        "of a registry that was queried": planned(),
        "of one that was not": planned(seen=None, moves=False),
        "of a lock without a record": planned((WANTED[0], LayerSource(LayerPlan("vllm", (), NEW))), None, None),
        "of a tag that is taken": planned(seen=RegistryState(frozenset(), frozenset(), {TAGS.immutable: OLD})),
    }
    text = "\n".join("\n".join([f"# {name}", *lines(each), ""]) for name, each in plans.items())
    golden("publish-plan.txt", text)


def test_tags_that_name_an_index(golden: Golden) -> None:
    index = "sha256:" + "d" * 64
    found = replace(planned(), platforms=("linux/amd64", "linux/arm64"), index=index)
    text = "\n".join(lines(found))
    golden.check(text)
    assert "already there)" not in text, "the image that a tag names is not the index"
    assert found.as_dict()["index"] == index


def test_as_data() -> None:
    values = planned().as_dict()
    assert [part["where"] for part in values["layers"]] == ["registry", "sibling", "store", "build"]
    assert values["sent"] == 510_900_000 + 271_100_000
    assert values["tags"] == {"fixed": TAGS.immutable, "moving": list(TAGS.mutable)}
    assert values["before"]["latest"] == OLD
    assert planned(moves=False).as_dict()["tags"]["moving"] == []
