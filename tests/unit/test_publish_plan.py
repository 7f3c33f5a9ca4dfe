"""Output of a dry run: for a recorded lock without network, and for a registry that was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from imagegen.publish.plan import LocatedLayer, PublishPlan, RegistryState, lines, plan
from imagegen.publish.tags import Tags
from tests.support.golden import Golden

TAGS = Tags("2026.11.20-torch2.13.0-cu130-py311-1a2b3c4d", ("latest", "cu130", "cu130-py311"))
OLD, NEW = "sha256:" + "0" * 64, "sha256:" + "f" * 64
WANTED = (
    LocatedLayer("base", "sha256:" + "a" * 64, 177_300_000),
    LocatedLayer("nvidia-cublas", "sha256:" + "b" * 64, 411_000_000),
    LocatedLayer("torch", "sha256:" + "c" * 64, 510_900_000),
    LocatedLayer("vllm", "sha256:" + "d" * 64, 271_100_000),
)
SEEN = RegistryState(
    frozenset({WANTED[0].digest or ""}),
    frozenset({WANTED[1].digest or ""}),
    {TAGS.immutable: None, "latest": OLD, "cu130": OLD, "cu130-py311": NEW},
)
STEPS = ("attached: lock, sbom; signed by release.key",)


def planned(
    required: tuple[LocatedLayer, ...] = WANTED,
    digest: str | None = NEW,
    seen: RegistryState | None = SEEN,
    *,
    moves: bool = True,
) -> PublishPlan:
    in_store = {each.digest or "" for each in required[1:3]}
    name = "ghcr.io/acme/rl/demo"
    return plan(
        "demo-cu130-py311", name, digest, required, TAGS, in_store=in_store, seen=seen, moves=moves, steps=STEPS
    )


def test_the_plan_as_text(golden: Callable[[str, str], None]) -> None:
    plans = {
        "of a registry that was queried": planned(),
        "of one that was not": planned(seen=None, moves=False),
        "of a lock without a record": planned((WANTED[0], LocatedLayer("vllm")), None, None),
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
