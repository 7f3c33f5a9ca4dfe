"""A version without a label means PyPI's build, unless the question names a CUDA release, or a label that does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.compat import (
    MetadataCache,
    Question,
    ScanCache,
    choose_builds,
    explain,
    load_demands,
    load_table,
    suggest,
)
from imagegen.compat import builds as build_source
from imagegen.compat.evaluate import evaluate
from imagegen.compat.knowledge import Knowledge, RuleSubject
from imagegen.compat.published_builds import Builds, PublishedBuild
from imagegen.compat.rule import Rule
from imagegen.compat.suggestions import PlatformChoices
from imagegen.core.data import shipped
from imagegen.spec.questions import parse_question, vocabulary_of
from tests.support.command_line import Run
from tests.support.matrix_samples import shipped_matrix
from tests.support.package_metadata import library, package, question
from tests.support.rule_cases import stack

MATRIX = shipped_matrix()
VOCABULARY = vocabulary_of(MATRIX)
NOTHING = MetadataCache(lambda _: None)


def build_rules(asked: Question, known: MetadataCache, builds: Builds) -> tuple[Rule, ...]:
    return build_source.rules(RuleSubject.of_question(asked, Knowledge(metadata=known, builds=builds)))


def chosen(*words: str) -> Question:
    return choose_builds(
        parse_question(words, [], MATRIX, VOCABULARY), Knowledge(metadata=NOTHING, builds=MATRIX.builds)
    )


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (["torch==2.11.0", "driver==570"], {"torch": ""}),
        (["torch>=2.8"], {"torch": ""}),
        (["torch"], {"torch": None}),  # no version is named
        (["torch==2.11.0", "cu128"], {"torch": None}),
        (["torch==2.11.0", "cuda==cpu"], {"torch": None}),
        (["torch==2.11.0", "vllm==0.20.0+cu129"], {"torch": None, "vllm": "cu129"}),
        (["torch==2.6.0", "flash-attn==2.8.3+cu12torch2.6cxx11abiTRUE"], {"torch": ""}),  # of a major version alone
        (["torch==2.11.0", "flash-attn==2.8.3+cu128torch2.11"], {"torch": None}),
        (["torch==2.11.0+cu128"], {"torch": "cu128"}),
        (["torch==2.9.1", "linux/arm64"], {"torch": ""}),
        (["torch==2.11.0", "torchvision==0.26.0"], {"torch": "", "torchvision": ""}),
        (["torchvision==0.26.0"], {"torchvision": ""}),
        (["vllm==0.20.0"], {"vllm": ""}),
        (["flash-attn==2.8.3"], {"flash-attn": None}),  # PyPI has its sources alone
    ],
)
def test_a_question_is_about_the_builds_that_its_words_mean(words: list[str], labels: dict[str, str | None]) -> None:
    packages = chosen(*words).facts.packages
    assert {name: packages[name].local for name in labels} == labels


def test_a_sentence_says_which_build_is_meant() -> None:
    knowledge = Knowledge((), library(package("torch", {"2.11.0": ()}, cuda="13.0")), MATRIX.builds)
    for words, spoken in (
        (("torch==2.11.0",), "torch 2.11.0 (PyPI's build, CUDA 13.0)"),
        (("torch==2.11.0", "cu130"), "torch 2.11.0 (PyPI's build, CUDA 13.0)"),
        (("torch==2.11.0", "cu128"), "torch 2.11.0+cu128 (PyTorch's index, CUDA 12.8)"),
    ):
        asked = parse_question(words, [], MATRIX, VOCABULARY)
        (sentence,) = choose_builds(asked, knowledge).assumed
        assert sentence.startswith(spoken)
    for words in (("torch==2.11.0+cu128",), ("torch",), ("numpy==2.0.0",), ("torch==2.4.0", "cu130")):
        assert not choose_builds(parse_question(words, [], MATRIX, VOCABULARY), knowledge).assumed


def test_rules_about_pypis_builds_follow_from_metadata() -> None:
    before = ["nvidia-cudnn-cu12==9; platform_machine == 'x86_64'"]
    releases = {"2.8.0": before, "2.9.0": before, "2.11.0": ["nvidia-cudnn-cu13==9; platform_system == 'Linux'"]}
    older, newest = package("torch", releases, cuda="12.8"), package("torch", releases, cuda="13.0")
    made = library(replace(older, releases={**older.releases, "2.11.0": newest.releases["2.11.0"]}))
    found = {rule.id: rule for rule in build_rules(question(torch="==2.9.0"), made, Builds((_build(),)))}
    assert {name: (dict(rule.when), {**rule.then, **rule.conflict}) for name, rule in found.items()} == {
        "build:torch-2.8.0:arm64": ({"torch": ">=2.8.0,<=2.9.0 +", "platform": "linux/arm64"}, {"gpu": ">=1.0"}),
        "build:torch-2.8.0": ({"torch": ">=2.8.0,<=2.9.0 +", "platform": "linux/amd64"}, {"cuda": "==12.8"}),
        "build:torch-2.11.0": ({"torch": "==2.11.0 +"}, {"cuda": "==13.0"}),
    }
    assert not build_rules(question(numpy="==2.0"), made, Builds((_build(),)))


def test_a_label_of_another_platform_alone_is_refused_there_with_that_reason() -> None:
    shared = replace(_build("cu130"), package="kernels", platforms=("linux/amd64", "linux/arm64"))
    builds = Builds((replace(_build("cu128"), package="kernels", platforms=("linux/amd64",)), shared))
    for label, platform, ids in (
        ("cu128", "linux/arm64", ["build:kernels-1.0+cu128:platform"]),
        ("cu128", "linux/amd64", []),
        ("cu130", "linux/arm64", []),
    ):
        asked = question(kernels=f"==1.0+{label}")
        asked = replace(asked, facts=replace(asked.facts, names={"platform": platform}))
        known = library(package("kernels", {"1.0": ()}))
        rules = build_rules(asked, known, builds)
        assert [rule.id for rule in rules] == ids
        assert explain(asked, Knowledge(rules, known)).answer == ("incompatible" if ids else "compatible")
    assert builds.labels("kernels", "1.0", "linux/arm64") == ("cu130",)


def _build(*labels: str) -> PublishedBuild:
    return PublishedBuild("torch-cu128", "torch", labels or ("cu128",), "", "12.8", "an index", "s", "2026-11-24")


def test_a_proposal_takes_the_build_of_the_same_release_before_another_release() -> None:
    wheels = ("cp311-cp311-manylinux_2_28_x86_64",)
    known = library(package("torch", {"2.7.1": (), "2.8.0": ()}, cuda="12.6", wheels=wheels))
    builds = Builds((_build(),))
    knowledge = Knowledge([*MATRIX.rules, *builds.rules()], known, builds)
    asked = choose_builds(question(torch="==2.7.1", driver="==570"), knowledge)
    assert asked.facts.packages["torch"].local == ""
    refused = parse_question(["torch==2.7.1", "gpu==12.0"], [], MATRIX, VOCABULARY)
    near = suggest(choose_builds(refused, knowledge), knowledge, PlatformChoices())
    assert [dict(each.changes) for each in near] == [{"torch": "==2.7.1+cu128"}]


@pytest.mark.parametrize(("label", "code"), [("+cu126", 0), ("+cu124", 1), ("", 1)])
def test_a_build_of_torchs_index_has_the_abi_of_torchs_build_with_its_label(run: Run, label: str, code: int) -> None:
    """Of torch 2.6, the build for CUDA 12.6 has the new C++ ABI, and so have the builds of torchvision beside it."""
    assert run("why", "python==3.10", "torch==2.6.0+cu126", f"torchvision==0.21.0{label}").code == code


@pytest.mark.parametrize(
    ("words", "code", "rule", "offered"),
    [
        # modelscope/FunASR#2973: PyPI's torch 2.11.0 with driver 570
        (["torch==2.11.0", "driver==570.86.10"], 1, "driver-cuda13", {"torch": "==2.11.0+cu129"}),
        # vllm#14452: PyPI's torch 2.7.1 is for CUDA 12.6
        (["torch==2.7.1", "RTX PRO 6000"], 1, "scan:torch-2.7.1:gpu-10.0", {"torch": "==2.7.1+cu128"}),
        # flash-attention#1717
        (
            ["torch==2.6.0", "flash-attn==2.8.0.post2+cu12torch2.6cxx11abiTRUE"],
            1,
            "flash-attn-2.8-torch26",
            {"torch": "==2.6.0+cu126"},
        ),
        (
            ["vllm==0.20.0", "torch==2.11.0", "driver==570"],
            1,
            "driver-cuda13",
            {"torch": "==2.11.0+cu129", "vllm": "==0.20.0+cu129"},
        ),
        # up to 2.10, torch on PyPI requires CUDA's libraries on x86-64 alone
        (["torch==2.9.1", "GH200"], 1, "build:torch-2.8.0:arm64", {"torch": "==2.9.1+cu130"}),
        (["torch==2.6.0+cu128"], 1, "build:torch-2.6.0+cu128", {"torch": "==2.6.0"}),
        (["vllm==0.31.0+cu124"], 1, "build:vllm-0.31.0+cu124", {"vllm": "==0.31.0"}),
        (
            ["flash-attn==2.7.4.post1+cu12torch2.9cxx11abiTRUE"],
            2,
            "build:flash-attn-2.7.4.post1+cu12torch2.9cxx11abitrue",
            {"flash-attn": "==2.7.4.post1+cu130torch2.9"},
        ),
        # PyPI's build of torch 2.8.0 is the one with the label cu128: its scan is true of both
        (["torch==2.8.0+cu128", "GTX 1080 Ti"], 1, "torch-without-pascal", {"torch": "==2.8.0+cu126"}),
        # vllm#13608: all builds of 0.8.5 are compiled beside torch 2.6.0 for CUDA 12.4
        (["vllm==0.8.5+cu121", "torch==2.6.0+cu126"], 1, "scan:vllm-0.8.5:c++-abi+cu121", {"torch": "==2.6.0"}),
    ],
)
def test_builds_decide_answers_and_proposals(
    run: Run, words: list[str], code: int, rule: str, offered: dict[str, str]
) -> None:
    ended = run("why", *words, "--json")
    found = json.loads(ended.out)
    assert ended.code == code
    assert rule in {each["rule"] for each in found["conflicts"]}
    assert offered in [each["changes"] for each in found["nearest"]]


@pytest.mark.parametrize(
    "words",
    [
        ["torch==2.11.0", "cu128", "driver==570"],
        ["torch==2.11.0", "vllm==0.20.0+cu129", "driver==570"],
        ["torch==2.11.0", "driver==580"],
        ["torch==2.11.0", "GH200", "driver==580"],
        ["torch==2.9.1", "linux/arm64"],
        ["vllm==0.10.0", "RTX 5090"],  # the torch that it requires may be any build
        ["sgl-kernel==0.2.7+cu128", "B200"],  # PyPI's build of it is for CUDA 12.4, and has no code for Blackwell
    ],
)
def test_another_build_is_meant_where_the_question_says_so(run: Run, words: list[str]) -> None:
    assert run("why", *words).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["torch==2.9.1", "torchaudio==2.11.0"],
        ["torch==2.9.1+cu128", "torchaudio==2.11.0"],
        ["torch==2.9.1", "torchaudio==2.11.0", "cu128"],
        ["torch==2.10.0+cu126", "torchaudio>=2.11"],
        ["torch>=2.8,<2.10", "torchaudio==2.11.0"],
        ["torch==2.9.1+cu129", "sgl-kernel==0.3.9"],
        ["torch==2.8.0", "vllm==0.12.0", "cu128"],
    ],
)
def test_a_wheel_that_lacks_symbols_of_torch_is_refused_with_labels_and_without(run: Run, words: list[str]) -> None:
    assert run("why", *words).code == 1


DIRECTORIES = [shipped("matrices")]
SCANNED = MetadataCache(
    lambda package: load_table(DIRECTORIES, package), ScanCache(lambda package: load_demands(DIRECTORIES, package))
)


def pairs() -> Iterator[tuple[str, str, str, str]]:
    """Yield torch, the label of its CUDA on PyPI, and each release of a package that follows it."""
    torch, *followers = (SCANNED.of(name) for name in ("torch", "torchaudio", "torchvision"))
    for release in torch.all if torch else ():
        for follower in followers:
            if release.cuda and follower:
                label = f"cu{release.cuda.replace('.', '')}"
                yield from ((release.version, label, follower.package.name, each.version) for each in follower.all)


def answer_of(*words: str) -> str:
    about = choose_builds(
        parse_question(words, [], MATRIX, VOCABULARY), Knowledge(metadata=SCANNED, builds=MATRIX.builds)
    )
    return explain(about, Knowledge(MATRIX.rules, SCANNED, MATRIX.builds)).answer


@given(st.sampled_from(list(pairs())))
@example(("2.9.1", "cu128", "torchaudio", "2.11.0"))
@example(("2.11.0", "cu130", "torchaudio", "2.11.0"))
def test_labels_change_no_answer_about_torch_and_what_follows_it(pair: tuple[str, str, str, str]) -> None:
    torch, label, name, release = pair
    spellings = (
        (f"torch=={torch}", f"{name}=={release}"),
        (f"torch=={torch}+{label}", f"{name}=={release}+{label}"),
        (f"torch=={torch}+{label}", f"{name}=={release}"),
        (f"torch=={torch}", f"{name}=={release}", label),
    )
    assert len({answer_of(*words) for words in spellings}) == 1


FOR_TORCH_2_6 = [
    pytest.param(build, label, id=f"{build.name}-{label}")
    for build in MATRIX.builds.of("flash-attn")
    for label in build.labels
    if build.cuda == "12" and "torch2.6" in label
]


@pytest.mark.parametrize(("build", "label"), FOR_TORCH_2_6)
def test_a_listed_build_of_flash_attn_is_refused_beside_a_torch_with_the_other_abi(
    build: PublishedBuild, label: str
) -> None:
    """PyTorch's builds of torch 2.6 have both ABIs. Source: https://github.com/pytorch/pytorch/issues/142064."""
    release = re.findall(r"[0-9][0-9.]+(?:post[0-9])?", build.releases)[-1]
    is_old = label.startswith("cu124") or ("abifalse" in label and Version(release) < Version("2.8"))
    for cuda, torch, has_old in (("12.4", "2.6.0", True), ("12.6", "2.6.0+cu126", False), ("12.6", "2.7.1", False)):
        answer = evaluate(MATRIX.rules, stack(cuda, torch=torch, flash_attn=f"{release}+{label}")).answer
        assert (answer == "incompatible") is (is_old is not has_old)
