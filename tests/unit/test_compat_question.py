"""Queries as users type them, and how they are parsed."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen import spec as matrix
from imagegen.compat import MetadataCache, Question, explain
from imagegen.compat.knowledge import Knowledge
from imagegen.core.errors import UsageError
from imagegen.spec.questions import parse_question, vocabulary_of
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.matrix_samples import SHIPPED, shipped_matrix

MATRIX = shipped_matrix()
VOCABULARY = vocabulary_of(MATRIX, ["numba"])


def requested(*words: str, sets: tuple[str, ...] = ()) -> Question:
    return parse_question(words, sets, MATRIX, VOCABULARY)


@pytest.mark.parametrize(
    ("typed", "understood"),
    [
        ("mcore==0.16.1", {"megatron-core": "==0.16.1"}),
        ("Megatron_Core==0.16.1", {"megatron-core": "==0.16.1"}),
        ("TE", {"transformer-engine": ""}),
        ("fa2==2.8.3", {"flash-attn": "==2.8.3"}),
        ("flash_attn", {"flash-attn": ""}),
        ("flash attn", {"flash-attn": ""}),
        ("vllm=0.12.0", {"vllm": "==0.12.0"}),
        ("vllm >=0.11, <0.13", {"vllm": ">=0.11, <0.13"}),
        ("verl[sglang]==0.9.1", {"verl": "==0.9.1"}),
        ("numba", {"numba": ""}),
        ("cu128", {"cuda": "==12.8"}),
        ("cuda==cu128", {"cuda": "==12.8"}),
        ("cuda==12.8.1", {"cuda": "==12.8"}),
        ("cu12.8", {"cuda": "==12.8"}),
        ("cuda 12.8.1", {"cuda": "==12.8"}),
        ("CUDA>=12.8", {"cuda": ">=12.8"}),
        ("cpu", {"cuda": "==cpu"}),
        ("py312", {"python": "==3.12"}),
        ("python==3.12", {"python": "==3.12"}),
        ("Python==3.12.4", {"python": "==3.12.4"}),
        ("sm120", {"gpu": "==sm_120"}),
        ("gpu==sm_90a", {"gpu": "==sm_90"}),
        ("H100", {"gpu": "==sm_90"}),
        ("h200", {"gpu": "==sm_90"}),
        ("RTX 5090", {"gpu": "==sm_120"}),
        ("gpu==rtx5090", {"gpu": "==sm_120"}),
        ("gpu==12.0", {"gpu": "==sm_120"}),
        ("NVIDIA H100 80GB HBM3", {"gpu": "==sm_90"}),
        ("gpu==NVIDIA A100-SXM4-80GB", {"gpu": "==sm_80"}),
        ("NVIDIA GeForce RTX 5070 Ti", {"gpu": "==sm_120"}),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", {"gpu": "==sm_120"}),
        ("NVIDIA RTX 6000 Ada Generation", {"gpu": "==sm_89"}),
        ("gpu==H100,B200", {"gpu": "==sm_90,sm_100"}),
        ("blackwell", {"gpu": "==sm_100,sm_103,sm_120,sm_121"}),
        ("driver==580", {"driver": "==580"}),
        ("driver>=570.26", {"driver": ">=570.26"}),
        ("base==Ubuntu-22.04", {"base": "==ubuntu22.04"}),
        ("ubuntu2204", {"base": "==ubuntu22.04"}),
        ("rocky8", {"base": "==rocky8"}),
        ("torch 2.8", {"torch": "==2.8.*"}),
        ("torch 2.8.0", {"torch": "==2.8.0"}),
        ("torch 2.8.0+cu128", {"torch": "==2.8.0+cu128"}),
        ("vllm v0.11.0", {"vllm": "==0.11.0"}),
        ("transformers 5", {"transformers": "==5.*"}),
        ("vllm 0.8.5.post1", {"vllm": "==0.8.5.post1"}),
        ("cuda 13", {"cuda": "==13"}),
        ("CUDA 12.8", {"cuda": "==12.8"}),
        ("cuda13", {"cuda": "==13"}),
        ("cu13", {"cuda": "==13"}),
        ("cuda128", {"cuda": "==12.8"}),
        ("driver 570", {"driver": "==570"}),
        ("driver R570", {"driver": "==570"}),
        ("driver==R570", {"driver": "==570"}),
        ("driver>=R570", {"driver": ">=570"}),
        ("R570", {"driver": "==570"}),
        ("driver==570.124", {"driver": "==570.124"}),
        ("driver 570.124.06", {"driver": "==570.124.06"}),
        ("python 3.12", {"python": "==3.12"}),
        ("glibc 2.31", {"glibc": "==2.31"}),
        ("aarch64", {"platform": "==linux/arm64"}),
        ("linux/arm64", {"platform": "==linux/arm64"}),
        ("platform==x86_64", {"platform": "==linux/amd64"}),
        ("WSL2", {"platform": "==linux/amd64"}),
        ("GB200", {"gpu": "==sm_100", "platform": "==linux/arm64"}),
        ("env.VLLM_USE_V1==0", {"env.VLLM_USE_V1": "==0"}),
        ("ENV.VLLM_USE_V1=0", {"env.VLLM_USE_V1": "==0"}),
    ],
)
def test_names_are_understood_as_people_type_them(typed: str, understood: dict[str, str]) -> None:
    assert requested(typed).requested == understood


def test_words_that_belong_together_may_come_apart() -> None:
    assert requested("RTX", "5090", "torch==2.9.1").requested == {"gpu": "==sm_120", "torch": "==2.9.1"}
    assert requested("torch==2.9.1", "gpu==RTX", "PRO", "6000").requested == {"torch": "==2.9.1", "gpu": "==sm_120"}
    assert requested("H100", "B200").requested == {"gpu": "==sm_90,sm_100"}


def test_a_base_brings_its_glibc_and_a_label_stands_apart() -> None:
    facts = requested("rocky8", "torch==2.9.1+cu128", "driver==580").facts
    assert facts.versions["glibc"].text == "2.28"
    assert (facts.packages["torch"].text, facts.packages["torch"].local) == ("2.9.1+cu128", "cu128")
    assert "2.9.1" in facts.packages["torch"].range
    assert ["580.65.06" in facts.versions["driver"].range, "581.1" in facts.versions["driver"].range] == [True, False]


def test_a_release_has_no_label_where_there_is_one_build_of_it() -> None:
    """So that a rule about a commit, which the label tells from the release, can tell them apart."""
    packages = requested("mbridge==0.15.1", "mcore", "torch==2.9.1").facts.packages
    assert {name: fact.local for name, fact in packages.items()} == {
        "mbridge": "",
        "megatron-core": None,  # of no version in particular: perhaps a commit
        "torch": None,  # there is one for each CUDA
    }


def test_a_cell_is_a_start() -> None:
    changed = requested("cpu-grpo", sets=("torch=2.12.0", "python=3.12"))
    assert changed.cell is not None
    assert changed.requested == {"torch": "==2.12.0", "python": "==3.12"}
    assert changed.facts.packages["torch"].text == "2.12.0"
    assert changed.facts.packages["transformers"].text == ">=5.9,<5.11"
    assert changed.facts.names["cuda"] == "cpu"
    assert changed.command() == "imagegen why cpu-grpo-cpu-py311 --set torch==2.12.0 --set python==3.12"
    blackwell = requested("blackwell-vllm")
    assert [gpu.name for gpu in blackwell.facts.gpus] == ["sm_100", "sm_103", "sm_120", "sm_121"]
    assert [gpu.name for gpu in requested("blackwell-vllm", "H100").facts.gpus] == ["sm_90"]
    assert requested("blackwell-vllm", "cpu").facts.gpus == ()
    assert requested("blackwell-vllm", "cu128").facts.versions["cuda"].text == "12.8"


def test_another_cuda_changes_only_what_there_is_a_build_of_for_each() -> None:
    packages = requested("blackwell-vllm", sets=("cuda=12.8",)).facts.packages
    assert (packages["vllm"].local, packages["torch"].local) == ("", None)


@pytest.mark.parametrize(
    ("sentence", "understood"),
    [
        ("numba 0.61 on H100 with CUDA 12.8", {"numba": "==0.61.*", "gpu": "==sm_90", "cuda": "==12.8"}),
        ("numba and torch for py312", {"numba": "", "torch": "", "python": "==3.12"}),
        ("vllm 0.24 on 8x L40S", {"vllm": "==0.24.*", "gpu": "==sm_89"}),
    ],
)
def test_words_between_names_are_no_names(sentence: str, understood: dict[str, str]) -> None:
    question = requested(*sentence.split())
    assert (question.requested, question.unknown) == (understood, ())


@pytest.mark.parametrize("word", ["latest", "Newest", "nightly"])
def test_a_word_that_changes_its_meaning_from_day_to_day_is_refused(word: str) -> None:
    with raises("usage-invalid-value"):
        requested("numba", word)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["2.9", "torch"], '"2.9" is a version without a name'),
        (["deepspeed==0.16.x"], "not a PEP 440 version specifier"),
        (["torch==2.9.x"], "not a PEP 440 version specifier"),
        (["torch==="], "=== compares text"),
        (["torch===2.9"], "=== compares text"),
        (["torch==2.9.1", "torch==2.8.0"], "no version satisfies"),
        (["python==3.12", "py311"], "python is given twice"),
        (["gpu>=10"], "gpu takes =="),
        (["env.", "torch"], "env. of what variable"),
        (["gpu=="], "gpu of what version"),
        (["driver==" + "1" * 5000], "Exceeds the limit"),
        (["glibc==2." + "1" * 5000], "Exceeds the limit"),
        (["env.NCCL_DEBUG>=3"], "takes ==, not a range"),
        (["cuda==twelve"], "not a PEP 440 version specifier"),
        (["platform==linux/riscv64"], "there is no platform"),
        (["blackwell-vllm", "cpu-grpo"], "are several cells"),
        (["=="], "not of the form name==version"),
        ([], "there is nothing to explain"),
    ],
)
def test_words_that_are_not_understood_are_reported(typed: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)" + said):
        requested(*typed)


@pytest.mark.parametrize(
    ("typed", "name", "suggestion"),
    [
        ("troch==2.9.1", "troch", "torch"),
        ("flash-atn", "flash-atn", "flash-attn"),
        ("vlm", "vlm", "vllm"),
        ("deepface==0.0.93", "deepface", None),  # deepspeed resembles it, and is another package
        ("math-verify", "math-verify", None),
        ("blackwel-vllm", "blackwel-vllm", "blackwell-vllm"),
        ("hoper", "hoper", "hopper"),
        ("gpu==RTX 509", "RTX 509", "RTX 5090"),
        ("gpu==H300", "H300", None),  # H200 resembles it, and may be of another architecture
        ("gpu==RTX 30", "RTX 30", None),  # the RTX 3090 has another architecture than the RTX 3000 Ada
        ("gpu==RTX 6000", "RTX 6000", None),  # there are a Quadro, an Ada and a PRO of that name
        ("RTX 6000", "RTX 6000", None),
        ("MI300X", "MI300X", None),
        ("GTX 980 Ti", "GTX 980 Ti", None),
        ("base==ubuntu22.40", "ubuntu22.40", "ubuntu22.04"),
        ("base==winter", "winter", None),
    ],
)
def test_a_name_that_is_not_known_stays_beside_the_rest(typed: str, name: str, suggestion: str | None) -> None:
    question = requested(typed, "torch==2.9.1")
    assert [(each.name, each.suggestion) for each in question.unknown] == [(name, suggestion)]
    assert question.facts == requested("torch==2.9.1").facts
    assert not question.is_unknown
    assert requested(typed).is_unknown


def test_a_card_that_is_not_known_may_come_in_several_words() -> None:
    for words in (["GTX", "980", "Ti"], ["gpu==GTX", "980", "Ti"], ["GTX", "980"]):
        question = requested("torch==2.9.1", *words, "py312")
        assert [each.name for each in question.unknown] == [" ".join(words).removeprefix("gpu==")]
        assert (set(question.facts.packages), set(question.facts.versions)) == ({"torch"}, {"python"})


def test_what_a_cell_runs_on_is_free_where_the_word_for_it_is_not_known() -> None:
    """The cell's own GPU or base would be judged in its place."""
    elsewhere = requested("hopper-vllm", "gpu==GTX 980", "base==ubuntu22.10")
    assert (elsewhere.facts.gpus, [each.name for each in elsewhere.unknown]) == ((), ["GTX 980", "ubuntu22.10"])
    assert not {"base", "glibc", "gpu", "libstdcxx"} & {*elsewhere.facts.names, *elsewhere.facts.versions}
    assert [gpu.name for gpu in requested("hopper-vllm", "gpu==B200,GTX 980").facts.gpus] == ["sm_100"]
    assert requested("hopper-vllm", "base==ubuntu22.10", "glibc==2.36").facts.versions["glibc"].text == "2.36"


def test_set_changes_a_cell_alone() -> None:
    with raises("usage-option-conflict"):
        requested("torch==2.9.1", sets=("vllm=0.12.0",))


GPUS = """
sm_60: P100; Tesla P100-PCIE-16GB; Quadro GP100; 6.0; sm60
sm_61: P40; Tesla P4; GTX 1080 Ti; 1080ti; NVIDIA GeForce GTX 1060 6GB; TITAN Xp; Quadro P5000 with Max-Q Design
sm_62: Jetson TX2
sm_70: V100; Tesla V100-SXM2-32GB; v100s; TITAN V; Quadro GV100; sm_70
sm_72: Jetson AGX Xavier; Xavier NX
sm_75: T4; Tesla T4; TITAN RTX; RTX 2080 Ti; 2080ti; RTX 2070 SUPER; Quadro RTX 6000; RTX 8000; GTX 1660 Ti
sm_80: A100; NVIDIA A100-SXM4-80GB; A100 PCIe 40GB; A30; A800; 8xA100; DGX A100
sm_86: A10; A10G; NVIDIA A10G; A16; A2; A40; A6000; RTX A5000; rtx a2000 12gb; 3090; RTX 3060 Ti; RTX 3050 Laptop GPU
sm_87: Jetson AGX Orin 64GB; Orin NX; Jetson Orin Nano Super Developer Kit; sm_87
sm_88: sm_88; 8.8
sm_89: L4; L40; L40S; L20; L2; RTX 4090; 4090 D; RTX 4080 SUPER; 4070 Ti Super; RTX 6000 Ada; 4000 SFF Ada Generation
sm_90: H100; H100 NVL; H20; H20-3e; H200; H800; NVIDIA GH200 480GB; compute_90a; 8x H100; H100 x 8; H100x8
sm_100: B100; B200; NVIDIA B200; GB200; GB200 NVL72; HGX B200; sm_100f
sm_103: B300; GB300 NVL72
sm_110: Thor; Jetson AGX Thor; Jetson T5000; sm_110; sm_101; 10.1
sm_120: 5090; RTX 5060 Ti; 5070ti; RTX PRO 6000; RTX 6000 Pro; PRO 4500; RTX PRO 6000 Blackwell Server Edition
sm_121: GB10; DGX Spark; spark; 12.1
"""


@pytest.mark.parametrize("line", GPUS.split("\n")[1:-1])
def test_every_gpu_from_pascal_on_has_its_architecture(line: str) -> None:
    architecture, _, names = line.partition(": ")
    for name in names.split("; "):
        assert [gpu.name for gpu in requested(f"gpu=={name}").facts.gpus] == [architecture], name
        assert [gpu.name for gpu in VOCABULARY.gpus.find(name)] == [architecture], name


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("MI300X", "AMD"),
        ("Radeon RX 7900 XTX", "AMD"),
        ("gfx942", "AMD"),
        ("Gaudi 3", "Intel"),
        ("Ascend 910B", "Huawei"),
    ],
)
def test_hardware_of_other_makers_is_named_as_such(name: str, maker: str) -> None:
    for typed in (name, f"gpu=={name}"):
        (unknown,) = requested(typed, "torch==2.9.1").unknown
        assert (unknown.kind, unknown.suggestion, maker in unknown.reason) == ("GPU", None, True)


def test_the_name_of_several_architectures_lists_them() -> None:
    (unknown,) = requested("RTX", "5000", "torch==2.9.1").unknown
    assert all(each in unknown.reason for each in ("Quadro RTX 5000 (sm_75)", "RTX 5000 Ada (sm_89)", "RTX PRO 5000"))


def test_two_words_are_a_name_and_its_version() -> None:
    typed = requested("torch", "2.8", "driver", "570", "cuda", "13", "unheard", "0.3", "RTX", "5090")
    assert typed.requested == {
        "torch": "==2.8.*",
        "driver": "==570",
        "cuda": "==13",
        "unheard": "==0.3.*",
        "gpu": "==sm_120",
    }


@pytest.mark.parametrize(
    ("words", "understood"),
    [
        ("vllm flash-attn", ["vllm", "flash-attn"]),
        ("vllm flash attn", ["vllm", "flash-attn"]),
        ("verl vllm flash-attn H100 py311", ["verl", "vllm", "flash-attn", "gpu", "python"]),
        ("transformer engine torch RTX 5090", ["transformer-engine", "torch", "gpu"]),
        ("te torch", ["transformer-engine", "torch"]),
        ("transformer-engine cu12", ["transformer-engine", "cuda"]),
        ("vllm-flash-attn", ["vllm-flash-attn"]),
        ("transformer_engine_torch", ["transformer-engine-torch"]),
        ("flash attn", ["flash-attn"]),
        ("NVIDIA RTX PRO 6000 Blackwell vllm", ["gpu", "vllm"]),
    ],
)
def test_words_that_are_names_by_themselves_are_not_joined_to_another_name(words: str, understood: list[str]) -> None:
    question = requested(*words.split())
    assert (list(question.requested), question.assumed) == (understood, ())


@pytest.mark.parametrize("words", ["sglang router", "sglang kernel", "torch memory saver"])
def test_a_name_that_begins_with_another_name_is_reported_as_understood(words: str, golden: Golden) -> None:
    question = requested(*words.split())
    name = words.replace(" ", "-")
    golden.check(question.assumed)
    assert list(question.requested) == [name]


@given(
    st.lists(
        st.sampled_from(sorted({each.package for each in MATRIX.components.values()} - MATRIX.defaults.keys())),
        min_size=2,
        max_size=4,
        unique=True,
    )
)
def test_each_package_that_is_typed_is_asked_about(packages: list[str]) -> None:
    assert list(requested(*packages).requested) == packages


@pytest.mark.parametrize(
    ("words", "platform", "assumed"),
    [
        (["GH200"], "linux/arm64", True),
        (["Jetson AGX Thor"], "linux/arm64", True),
        (["sm_121"], "linux/arm64", True),  # of GB10 alone
        (["gpu==GB200,GB300"], "linux/arm64", True),
        (["gpu==GB200,H100"], "linux/amd64", False),
        (["sm_100"], "linux/amd64", False),
        (["blackwell"], "linux/amd64", False),
        (["GB200", "x86_64"], "linux/amd64", False),
        (["hopper-vllm", "GH200"], "linux/arm64", True),
        (["wsl2"], "linux/amd64", True),
        (["H100"], "linux/amd64", False),
    ],
)
def test_a_gpu_of_an_arm64_system_implies_that_platform(words: list[str], platform: str, assumed: bool) -> None:
    question = requested(*words)
    assert (question.facts.names["platform"], bool(question.assumed)) == (platform, assumed)


@pytest.mark.parametrize(
    ("words", "platforms"),
    [
        (["blackwell-vllm-cu130-py311-linux-arm64", "B200"], ["linux/amd64"]),
        (["blackwell-sglang-cu130-py311-linux-arm64", "HGX B300"], ["linux/amd64"]),
        (["hopper-vllm-cu130-py311-linux-arm64", "H100"], ["linux/amd64"]),
        (["blackwell-vllm-cu130-py311", "GB200"], ["linux/arm64"]),
        (["vllm", "B200", "aarch64"], ["linux/amd64"]),
        (["vllm", "GB200", "x86_64"], ["linux/arm64"]),
        (["vllm", "H100", "aarch64"], []),  # a card for PCIe slots fits hosts that are rare too
        (["hopper-vllm-cu130-py311-linux-arm64", "sm_90"], []),  # an architecture is of several cards
        (["blackwell-vllm-cu130-py311-linux-arm64", "gpu==B200,GB200"], []),
        (["blackwell-vllm", "GB200"], []),
    ],
)
def test_a_card_has_the_platform_of_its_hosts(words: list[str], platforms: list[str]) -> None:
    assert [rule.then["platform"] for rule in requested(*words).hosts] == platforms


def test_an_image_for_another_platform_than_the_hosts_of_a_card_is_a_conflict() -> None:
    question = requested("blackwell-vllm-cu130-py311-linux-arm64", "B200")
    found = explain(question, Knowledge((), MetadataCache(lambda _: None)))
    (conflict,) = found.conflicts
    assert (found.answer, conflict.kind, [rule.id for rule in conflict.rules]) == (
        "incompatible",
        "breaks",
        ["host:b200"],
    )
    assert "blackwell-vllm-cu130-py311," in conflict.rules[0].fix


@pytest.mark.parametrize(
    ("name", "system", "glibc"),
    [
        ("debian11", "debian11", "2.31"),
        ("base==debian:12-slim", "debian12", "2.36"),
        ("trixie", "debian13", "2.41"),
        ("ubuntu18.04", "ubuntu18.04", "2.27"),
        ("ubuntu:26.04", "ubuntu26.04", "2.43"),
        ("Ubuntu 22.04", "ubuntu22.04", "2.35"),
        ("rhel8", "rocky8", "2.28"),
        ("RHEL 9", "rocky9", "2.34"),
        ("almalinux9", "rocky9", "2.34"),
        ("CentOS 7", "centos7", "2.17"),
        ("amazonlinux2", "amazonlinux2", "2.26"),
        ("Amazon Linux 2023", "amazonlinux2023", "2.34"),
    ],
)
def test_a_base_is_known_by_its_names_with_its_glibc(name: str, system: str, glibc: str) -> None:
    facts = requested(name, "torch==2.9.1").facts
    assert (facts.names["base"], facts.versions["glibc"].text) == (system, glibc)


def test_a_base_brings_its_libstdcxx_unless_the_question_has_one() -> None:
    assert requested("vllm", "base==ubuntu20.04").facts.versions["libstdcxx"].text == "3.4.28"
    given = requested("vllm", "base==ubuntu20.04", "libstdcxx==3.4.30").facts.versions
    assert (given["libstdcxx"].text, given["glibc"].text) == ("3.4.30", "2.31")


def test_alpine_has_no_glibc() -> None:
    question = requested("alpine", "torch==2.9.1")
    assert question.facts.versions["glibc"].text == "none (musl)"
    assert not any(version in question.facts.versions["glibc"].range for version in ("2.17", "2.28"))
    assert question.assumed


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("nvidia/cuda:12.8.1-devel-ubuntu22.04", "cuda12.8-ubuntu22.04"),
        ("base==docker.io/nvidia/cuda:12.6.3-cudnn-runtime-ubuntu22.04", "cuda12.6-ubuntu22.04"),
        ("nvcr.io/nvidia/cuda:12.4.0-cudnn9-base-ubuntu22.04", "cuda12.4-ubuntu22.04"),
        ("nvidia/cuda:12.2.2-devel-ubuntu22.04", "ubuntu22.04"),
        ("nvidia/cuda:11.8.0-devel-rockylinux8", "rocky8"),
    ],
)
def test_an_image_of_cuda_is_a_base(name: str, base: str) -> None:
    assert requested(name).facts.names["base"] == base


@pytest.mark.parametrize("name", ["nvcr.io/nvidia/pytorch:25.03-py3", "base==nvidia/pytorch:25.03"])
def test_an_image_of_nvidia_brings_what_it_has(name: str) -> None:
    question = requested(name, "vllm==0.8.5")
    facts = question.facts
    assert {each: facts.versions[each].text for each in ("python", "cuda", "glibc")} == {
        "python": "3.12",
        "cuda": "12.8",
        "glibc": "2.39",
    }
    assert (facts.packages["torch"].text, facts.packages["torch"].built) == ("2.7.0a0+7c8ec84dab", True)
    assert question.assumed
    other = requested(name, "torch==2.6.0", "python==3.11").facts
    assert (other.packages["torch"].text, other.versions["python"].text) == ("2.6.0", "3.11")


@pytest.mark.parametrize("name", ["windows", "win_amd64", "platform==macOS", "darwin"])
def test_other_systems_than_linux_are_named_as_such(name: str) -> None:
    question = requested(name, "torch==2.9.1")
    assert [(each.kind, bool(each.reason)) for each in question.unknown] == [("platform", True)]
    assert question.facts.names["platform"] == "linux/amd64"


@given(st.sampled_from(sorted(VOCABULARY.gpus.known)), st.integers(0, 20), st.sampled_from(["", *"0123456789ax"]))
def test_a_guess_at_a_gpu_is_of_the_architecture_of_all_that_it_may_be(name: str, place: int, change: str) -> None:
    typed = name[:place] + change + name[place + 1 :]
    guess = VOCABULARY.gpus.suggestion(typed)
    if guess and not VOCABULARY.gpus.find(typed):
        (found,) = VOCABULARY.gpus.find(guess)
        same = [each for each in VOCABULARY.gpus.known if len(typed) >= 5 and each.startswith(typed)]
        assert {gpu.name for each in same for gpu in VOCABULARY.gpus.known[each]} <= {found.name}


WORDS = [
    "mcore==0.16",
    "vllm>=0.11,<0.13",
    "verl[sglang]",
    "H100",
    "B200",
    "cu128",
    "py312",
    "rocky8",
    "driver==580",
    "GB200",
]
WORDS += ["deepface==0.0.93", "gpu==GTX 980", "vlm"]  # not known


@given(st.lists(st.sampled_from(WORDS), min_size=1, unique=True))
def test_the_command_asks_the_same_again(words: list[str]) -> None:
    question = requested(*words)
    program, command, *again = shlex.split(question.command())
    assert (program, command) == ("imagegen", "why")
    assert requested(*again) == question


@given(
    st.lists(
        st.text(max_size=12) | st.sampled_from([*WORDS, "torch", "==", "cpu-grpo", "gpu==", "[", "RTX"]), max_size=4
    )
)
def test_anything_is_a_question_or_a_usage_error(words: list[str]) -> None:
    with suppress(UsageError):
        requested(*words)


def test_names_of_another_matrix_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("components:\n  my-thing: {description: d, aliases: [mt, My Thing]}\n")
    loaded = matrix.load([SHIPPED, tmp_path])
    understood = parse_question(["mt==1.0", "mything"], [], loaded, vocabulary_of(loaded)).requested
    assert understood == {"my-thing": "==1.0"}


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (("torch==2.9.1", "vllm==0.11.0", "cu128", "H100"), {"vllm": "==0.12.0"}),
        (("vllm[flashinfer]==0.11.0", "py312"), {"python": "==3.11", "torch": "==2.9.0"}),
        (("base==debian12", "torch==2.9.1"), {"base": "==ubuntu22.04"}),
        (("base==nvcr.io/nvidia/pytorch:25.03-py3", "vllm==0.8.5"), {"vllm": "==0.9.0"}),
        (("hopper-vllm-cu130-py311", "torch==2.9.1"), {"cuda": "==12.8", "torch": "==2.9.1+cu128"}),
    ],
)
def test_a_changed_question_is_the_one_of_its_command(words: tuple[str, ...], changes: dict[str, str]) -> None:
    asked = parse_question(words, [], MATRIX, VOCABULARY)
    again = [word for word in shlex.split(asked.command(changes))[2:] if word != "--set"]
    changed = asked.changed(changes)
    assert changed == parse_question(again, [], MATRIX, VOCABULARY)
    assert changed.hosts == parse_question(again, [], MATRIX, VOCABULARY).hosts
    assert changes.items() <= changed.requested.items()
