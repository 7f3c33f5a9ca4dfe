"""The difference of two locks, and its sentences."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen import lock
from imagegen.compare import wording
from imagegen.compare.difference import ComparisonFacts, Difference, difference, goes_back
from imagegen.compare.operands import ComparedLayer, DiffOperand, of_image, of_lock
from imagegen.compat.rule import Override
from imagegen.core.data import shipped
from imagegen.image.layers.plan import plan
from imagegen.lock.model import (
    PATCHED,
    CopiedFile,
    Lock,
    LockedBuild,
    LockedCopy,
    LockedDeb,
    LockedGpus,
    LockedWheel,
    Record,
    RecordedLayer,
    WheelPatch,
)
from imagegen.oci.documents import ImageConfig, LayerDescriptor, RemoteImage
from imagegen.spec.model import ConfigField, EnvVar, ExposedPort, Label, LibraryDirectory
from imagegen.spec.recipe import Cost
from imagegen.wheels.throttle import BuildJob
from tests.support.environment_samples import combined
from tests.support.golden import Golden
from tests.support.source_builds import BUILD, WITH_BUILD
from tests.support.tiny_lock import LOCK, wheel

FLASH = Cost(units=73, seconds=220.0, memory=4_650_000_000, largest=7_040_000_000, source="a test")
STATED = {
    ("vllm", "0.32.0"): ("torch==2.14.0", "numpy<2.3", "xformers==0.1; sys_platform == 'win32'", "outlines"),
    ("vllm", "0.31.0"): ("torch==2.13.0",),
    ("torch", "2.14.0"): ("triton==3.8.0",),
}


def known(name: str, version: str) -> Sequence[str] | None:
    return STATED.get((name, version))


def hashed(name: str, version: str) -> str:
    return random.Random(f"{name} {version}").randbytes(32).hex()


def pinned(name: str, version: str, *via: str, because: str | None = None, size: int = 1000) -> LockedWheel:
    made = wheel(name, version, hashed(name, version), via=via, because=because)
    return replace(made, file=replace(made.file, size=size))


def stack(*wheels: LockedWheel, builds: tuple[LockedBuild, ...] = (), **more: Any) -> Lock:
    ordered = tuple(sorted(wheels, key=lambda each: each.name))
    return replace(LOCK, axes={**LOCK.axes, "cuda": "cu130"}, wheels=ordered, builds=builds, file_conflicts=(), **more)


def recorded(locked: Lock) -> Lock:
    """With a record as a build would give: a layer's digest follows from its key, and it weighs what its wheels do."""
    layers = [("base", "sha256:" + "b" * 64, 44_000_000)]
    layers += [(part.name, part.key, sum(each.file.size for each in part.wheels) or 300) for part in plan(locked)]
    rows = tuple(RecordedLayer(name, size, key, key, key) for name, key, size in layers)
    return replace(locked, record=Record(2, "zstd", "sha256:" + hashed("image", str(rows)), rows))


def flash(torch: str) -> LockedBuild:
    return replace(
        BUILD, name="flash-attn", version="2.8.3", against=("torch",), architectures=("9.0",),
        key="sha256:" + hashed("flash-attn", torch), because="Attention.",
    )  # fmt: skip


BEFORE = stack(
    pinned("torch", "2.13.0", "vllm", because="The one that vllm is made for.", size=510_000_000),
    pinned("vllm", "0.31.0", because="The newest that resolved.", size=270_000_000),
    pinned("triton", "3.7.1", "torch", size=190_000_000),
    pinned("numpy", "2.3.1", "vllm", because="Arrays."),
    pinned("xformers", "0.0.9", "vllm"),
    pinned("idna", "3.10", "requests"),
    builds=(flash("2.13.0"),),
)
AFTER = stack(
    pinned("torch", "2.14.0", "vllm", because="The one that vllm is made for.", size=530_000_000),
    pinned("vllm", "0.32.0", because="The newest that resolved.", size=110_000_000),
    pinned("triton", "3.7.1", "torch", size=190_000_000),
    pinned("numpy", "2.3.1", "vllm", because="Arrays."),
    pinned("xformers", "0.0.9", "vllm"),
    pinned("idna", "3.10", "requests"),
    builds=(flash("2.14.0"),),
)
WORKS = ComparisonFacts(known, lambda build: BuildJob(FLASH, len(build.architectures), threads=True))


def side(locked: Lock) -> DiffOperand:
    return of_lock("a cell", "a lock", locked)


def sentences(before: Lock, after: Lock, more: ComparisonFacts = WORKS) -> list[str]:
    return wording.sentences(difference(side(before), side(after), more))


def test_the_sentence_of_a_changelog(golden: Golden) -> None:
    golden.check("; ".join(sentences(recorded(BEFORE), recorded(AFTER))))


def test_environments_of_one_name_are_compared() -> None:
    alone = replace(BEFORE, env=(EnvVar("MODE", "a", "Tests."),))
    before = combined({"main": BEFORE, "beside": alone, "old": BEFORE})
    after = combined({"main": BEFORE, "beside": replace(AFTER, env=()), "new": BEFORE})
    found = difference(side(before), side(after), WORKS)
    single = difference(side(BEFORE), side(AFTER), WORKS)
    for name in ("components", "packages"):
        changes, own = getattr(found, name), getattr(single, name)
        assert [each.name for each in changes] == [f"beside: {each.name}" for each in own]
        assert [each.by for each in changes] == [tuple(f"beside: {by}" for by in each.by) for each in own]
    assert [each.name for each in found.rebuilds] == [f"beside: {each.name}" for each in single.rebuilds]
    assert [(each.name, each.before, each.after) for each in found.env] == [("beside: MODE", "a", None)]
    assert [(each.name, each.before, each.after) for each in found.environments] == [
        ("new", None, "new-cpu-py311"),
        ("old", "old-cpu-py311", None),
    ]
    assert difference(side(before), side(before), WORKS).empty


def test_locks_of_two_platforms_share_debian_packages() -> None:
    debs = tuple(
        LockedDeb(name, "1.0", arch, 10, hashed("lib", name), "debian", "x")
        for name, arch in (("libc6", "amd64"), ("adduser", "all"))
    )
    theirs = (replace(debs[0], version="1.1", architecture="arm64"), debs[1])
    arm64 = replace(LOCK, axes={**LOCK.axes, "platform": "linux/arm64"}, base=replace(LOCK.base, debs=theirs))
    found = difference(side(replace(LOCK, base=replace(LOCK.base, debs=debs))), side(arm64), WORKS)
    assert [(each.name, each.before, each.after) for each in found.debs] == [("libc6", "1.0", "1.1")]


def variants() -> dict[str, tuple[Lock, Lock, ComparisonFacts]]:
    """Name -> before, after, what is known: one for each kind of sentence."""
    debs = tuple(LockedDeb(f"lib{n}", "1.0", "amd64", 10, hashed("lib", str(n)), "debian", "x") for n in range(5))
    newer = (*(replace(deb, version="1.1") for deb in debs[:4]), replace(debs[4], version="1.0~rc1"))
    many = [pinned(f"light{n}", "1.0") for n in range(6)]
    moved = [*(pinned(f"light{n}", "2.0") for n in range(4)), pinned("light4", "0.9"), pinned("light6", "1.0")]
    gpu = LockedGpus(("9.0",), "580.65.06")
    return {
        "nothing": (BEFORE, BEFORE, WORKS),
        "no record": (BEFORE, AFTER, WORKS),
        "kept": (recorded(BEFORE), recorded(AFTER), replace(WORKS, kept=lambda _: True)),
        "without a measured time": (recorded(BEFORE), recorded(AFTER), ComparisonFacts(known)),
        "nothing is known of requirements": (recorded(BEFORE), recorded(AFTER), ComparisonFacts()),
        "forced back": (
            recorded(BEFORE),
            recorded(_with(AFTER, pinned("numpy", "2.2.6", "vllm", because="Arrays."))),
            WORKS,
        ),
        "brought and dropped": (
            recorded(BEFORE),
            recorded(_without(_with(AFTER, pinned("outlines", "1.2", "vllm")), "xformers")),
            WORKS,
        ),
        "another image": (recorded(stack(*many)), recorded(stack(pinned("sglang", "0.5", because="Serving."))), WORKS),
        "brought and dropped that nobody chose": (
            recorded(stack(*BEFORE.wheels, pinned("one", "1", "vllm"), pinned("two", "1", "vllm"))),
            recorded(stack(*AFTER.wheels, pinned("three", "1", "vllm"))),
            WORKS,
        ),
        "many": (recorded(stack(*many)), recorded(stack(*moved)), WORKS),
        "few": (recorded(stack(*many)), recorded(stack(*many[:-1], pinned("light5", "1.1"))), WORKS),
        "Debian": (
            recorded(stack(*many, base=replace(LOCK.base, debs=debs))),
            recorded(stack(*many, base=replace(LOCK.base, debs=newer))),
            WORKS,
        ),
        "surroundings": (
            recorded(stack(*many)),
            recorded(stack(*many, gpu=gpu, env=(EnvVar("A", "1", "."), EnvVar("B", "2", ".")))),
            WORKS,
        ),
        "another Python": (recorded(stack(*many)), recorded(_python(stack(*many))), WORKS),
        "compiled now": (
            recorded(stack(*many, pinned("flash-attn", "2.8.3", because="Attention."))),
            recorded(stack(*many, builds=(flash("2.14.0"),))),
            WORKS,
        ),
        "not built yet": (stack(*many), stack(*many, builds=(flash("2.14.0"),)), WORKS),
        "another file": (
            recorded(stack(*many)),
            recorded(stack(replace(many[0], file=replace(many[0].file, sha256="f" * 64)), *many[1:])),
            WORKS,
        ),
        "other layers": (recorded(BEFORE), _other_layer(recorded(BEFORE)), WORKS),
        "labels": (recorded(BEFORE), _other_digest(recorded(BEFORE)), WORKS),
    }


def _with(locked: Lock, *wheels: LockedWheel) -> Lock:
    kept = [each for each in locked.wheels if each.name not in {wheel.name for wheel in wheels}]
    return replace(locked, wheels=tuple(sorted((*kept, *wheels), key=lambda each: each.name)))


def _without(locked: Lock, name: str) -> Lock:
    return replace(locked, wheels=tuple(each for each in locked.wheels if each.name != name))


def _python(locked: Lock) -> Lock:
    return replace(locked, axes={**locked.axes, "python": "3.12"})


def _other_layer(locked: Lock) -> Lock:
    assert locked.record
    first, *rest = locked.record.layers
    return replace(locked, record=replace(locked.record, layers=(replace(first, digest="sha256:" + "0" * 64), *rest)))


def _other_digest(locked: Lock) -> Lock:
    assert locked.record
    return replace(locked, record=replace(locked.record, digest="sha256:" + "0" * 64))


def test_every_kind_of_sentence(golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, (before, after, more) in variants().items():
        lines += [f"## {name}", *sentences(before, after, more), ""]
    golden("differences.txt", "\n".join(lines))


def test_changes_of_config_files_and_overrides(golden: Golden) -> None:
    file = CopiedFile("/srv/a", "0644", 1, "1" * 64)
    before = stack(
        config=(ConfigField("entrypoint", ("a", "b c"), "."),),
        labels=(Label("org.acme", "1", "."),),
        copies=(LockedCopy("/srv/a", "a", ".", (file,)),),
        overrides=(Override("numpy", "<3", because="."),),
    )
    after = stack(
        ports=(ExposedPort("80/tcp", "Web."),),
        ldconfig=(LibraryDirectory("/opt/lib", "Own."),),
        labels=(Label("org.acme", "2", "."),),
        copies=(LockedCopy("/srv/a", "a", ".", (replace(file, mode="0755"),)),),
        overrides=(Override("numpy", None, because="."),),
    )
    found = difference(side(before), side(after))
    golden.check([(each.name, each.before, each.after) for each in found.config])
    short = f"sha256:{'1' * 12}"
    assert [(each.name, each.before, each.after) for each in found.files] == [
        ("/srv/a", f"0644 {short}", f"0755 {short}")
    ]
    assert [(each.name, each.before, each.after) for each in found.overrides] == [("numpy", "<3", "not installed")]
    assert not found.empty
    assert len(wording.sentences(found)) == 4
    assert wording.sentences(found)[1].startswith("4 config fields ")


def test_another_file_of_one_version_has_its_cause(golden: Golden) -> None:
    plain = pinned("idna", "3.10", because="Names.")
    one, two = (WheelPatch(f"patches/{name}.patch", "1" * 64, 1, "It is broken.") for name in ("one", "two"))
    edited = replace(one, sha256="2" * 64)

    def cause(before: tuple[WheelPatch, ...], after: tuple[WheelPatch, ...], version: str = "3.10") -> str | None:
        had, has = (_patched(plain, patches) for patches in (before, after))
        found = difference(side(stack(had)), side(stack(replace(has, version=version))))
        (change,) = found.components
        assert wording.arrow(change) in wording.sentences(found)
        return change.cause

    assert cause((one,), (edited,)) == "patches/one.patch changed"
    golden.check(cause((one,), ()), cause((), (one, two)), cause((one, two), (two, one)), cause((one,), (two,), "3.11"))
    found = difference(side(stack(plain)), side(stack(replace(plain, file=replace(plain.file, sha256="3" * 64)))))
    assert found.components[0].cause is None


def _patched(wheel: LockedWheel, patches: tuple[WheelPatch, ...]) -> LockedWheel:
    if not patches:
        return wheel
    sha256 = hashed("patched", str(patches)).removeprefix("sha256:")
    file = replace(wheel.file, sha256=sha256, index=PATCHED, path=None)
    return replace(wheel, file=file, original=wheel.file, patches=patches)


def test_the_shipped_locks_can_be_compared() -> None:
    cell = "blackwell-vllm-cu130-py311"
    default, newest = (lock.read(shipped("locks") / f"{name}.toml") for name in (cell, f"{cell}-newest"))
    found = difference(side(default), side(newest))
    assert [each.name for each in found.components][:2] == ["torch", "vllm"]
    assert "vllm" in found.components[0].by
    assert found.pull
    assert found.pull.exact, "both are recorded"
    assert difference(side(default), side(default)).empty


def test_what_forces_a_change_is_distinguished_from_what_only_asks() -> None:
    found = difference(side(BEFORE), side(AFTER), WORKS)
    assert {each.name: each.by for each in found.components} == {"torch": ("vllm",), "vllm": ()}
    also = _with(AFTER, pinned("numpy", "2.3.2", "vllm", because="Arrays."))
    # vllm 0.32.0 wants numpy<2.3: that forbids 2.3.1. Were it content with it, numpy would have moved by itself.
    assert difference(side(BEFORE), side(also), WORKS).components[-1].by == ("vllm",)
    content = ComparisonFacts(lambda name, version: ("numpy>=2",) if name == "vllm" else known(name, version))
    assert difference(side(BEFORE), side(also), content).components[-1].by == ()


def test_why_something_must_be_compiled(golden: Golden) -> None:
    def because(after: Lock, before: Lock = WITH_BUILD) -> tuple[str, ...]:
        (found,) = difference(side(before), side(after)).rebuilds
        return found.because

    def with_(**changes: Any) -> Lock:
        return replace(WITH_BUILD, builds=(replace(BUILD, key="sha256:" + "9" * 64, **changes),))

    assert because(with_(version="1.1")) == ("demo-ext 1.0 -> 1.1",)
    assert because(with_(architectures=("9.0",))) == ("its GPUs",)
    assert because(with_(env={"X": "1"})) == ("its variables",)
    golden.check(
        because(WITH_BUILD, replace(WITH_BUILD, builds=())), because(with_(build_requires=())), because(with_())
    )
    nvcc = next(each for each in WITH_BUILD.wheels if each.name == "nvidia-cuda-nvcc")
    newer = replace(nvcc, version="13.1", file=replace(nvcc.file, sha256="e" * 64))
    assert because(_with(with_(), newer)) == ("nvidia-cuda-nvcc 13.0.88 -> 13.1",)


def test_an_image_without_a_lock_shows_its_main_versions(golden: Golden) -> None:
    labels = {"dev.imagegen.version.torch": "2.12.0", "dev.imagegen.gpu.driver": "570.1", "else": "x"}
    config = ImageConfig(("PATH=/bin",), (), (), "", "", labels)
    layers = (
        LayerDescriptor(
            "application/vnd.oci.image.layer.v1.tar", "sha256:" + "1" * 64, 5_000_000, "sha256:" + "2" * 64
        ),
    )
    bare = of_image("x:1", "labels", RemoteImage("sha256:" + "3" * 64, "sha256:" + "4" * 64, config, layers))
    found = difference(bare, side(recorded(AFTER)))
    assert [(each.name, each.before, each.after) for each in found.components] == [
        ("torch", "2.12.0", "2.14.0"),
        ("vllm", None, "0.32.0"),
        ("flash-attn", None, "2.8.3"),
    ]
    assert found.pull
    assert (found.pull.exact, len(found.pull.gone), found.driver and found.driver.before) == (True, 1, "570.1")
    # A lock without a record has no digests, and an image has no keys.
    golden.check(wording.sentences(difference(bare, side(AFTER)))[-1])


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdef"), unique=True))
def test_what_there_is_to_pull(had: list[str], has: list[str]) -> None:
    """Shared and new are the second image, shared and gone the first; the size is that of the new."""

    def parts(names: list[str]) -> tuple[ComparedLayer, ...]:
        return tuple(ComparedLayer(name, None, f"sha256:{name * 64}", ord(name)) for name in names)

    found: Difference = difference(replace(side(BEFORE), layers=parts(had)), replace(side(BEFORE), layers=parts(has)))
    assert found.pull
    assert {*found.pull.shared, *found.pull.new} == set(parts(has))
    assert {*found.pull.shared, *found.pull.gone} == set(parts(had))
    assert found.pull.size == sum(part.size or 0 for part in parts(has) if part.name not in had)
    assert found.empty is (set(had) == set(has))


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=3)))
def test_every_change_is_listed_once_even_in_cycles(asks: dict[str, list[str]]) -> None:
    """Whatever asks for whatever, all that changes is in the counts or in a name."""
    old = stack(*(pinned(name, "1.0", *via, because=".") for name, via in asks.items()))
    new = stack(*(pinned(name, "2.0", *via, because=".") for name, via in asks.items()))
    text = "; ".join(sentences(recorded(old), recorded(new), ComparisonFacts()))
    for name in asks:
        assert text.count(f"{name} 1.0 -> 2.0") + text.count(f"{name} 2.0") == 1, text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "1 byte"), (999, "999 bytes"), (1500, "2 kB"), (999_499, "999 kB"), (999_500, "1.0 MB"),
        (9_940_000, "9.9 MB"), (9_950_000, "10 MB"), (640_000_000, "640 MB"), (1_234_000_000, "1.2 GB"),
    ],
)  # fmt: skip
def test_amounts(size: int, text: str) -> None:
    assert wording.amount(size) == text


def test_which_version_is_older() -> None:
    assert goes_back("1.10", "1.9")
    assert not goes_back("2.0", "2.0.post1")
    assert not goes_back("1.0", "no version")


def test_layers_that_weigh_nothing_are_nothing_to_pull(golden: Golden) -> None:
    """A guess from the wheels' sizes knows none of the layer that imagegen adds."""
    changed = difference(side(BEFORE), side(AFTER))
    assert changed.pull
    light = replace(changed, pull=replace(changed.pull, size=0, exact=False, unknown=()))
    assert light.pull and light.pull.new
    golden.check(wording.sentences(light)[-1])
