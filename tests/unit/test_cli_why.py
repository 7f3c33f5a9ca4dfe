"""imagegen why and imagegen matrix, over the shipped rules and metadata, which need neither a lock nor a network."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.golden import Golden
from tests.support.matrix_samples import shipped_matrix

ASKED = ("torch==2.9.1", "vllm==0.11.0", "cuda==12.8", "gpu==sm_120", "python==3.12")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_why_says_no_with_reason_source_date_and_what_works(run: Run) -> None:
    ended = run("why", *ASKED)
    assert (ended.code, ended.err) == (1, "")
    verdict, assumed, *reasons, _, ways = ended.out.split("\n\n")
    assert verdict == f"conflict (breaks): {', '.join(ASKED)}"
    assert assumed.startswith("assumed: torch 2.9.1 (PyPI's build, CUDA 12.8)")
    assert [each.splitlines()[0] for each in reasons] == [
        "1. error (breaks): torch 2.9.1, vllm 0.11.0",
        "2. error (pip refuses): torch 2.9.1, vllm 0.11.0",
    ]
    assert "[scan:vllm-0.11.0:torch]" in reasons[0]
    assert "source: read from vllm-0.11.0-cp38-abi3-manylinux1_x86_64.whl on PyPI, sha256 3861c75f" in reasons[0]
    assert "vllm 0.11.0 requires torch==2.8.0. [pypi:vllm-0.11.0:torch]" in reasons[1]
    assert "source: PyPI metadata of vllm 0.11.0 (documented, 20" in reasons[1]
    first, offered, *_ = ways.splitlines()
    assert first == "Try:"
    assert offered.startswith("  vllm==0.14.0: imagegen why torch==2.9.1 vllm==0.14.0")  # torch 2.8.0 has a warning


@pytest.mark.parametrize("requested", [("torch==2.6.0", "RTX 5090"), ("blackwell-vllm", "--set", "vllm=0.12.0")])
def test_each_reason_is_a_block_of_its_own(run: Run, requested: tuple[str, ...]) -> None:
    verdict, *blocks, _ = run("why", *requested).out.split("\n\n")
    assert "\n" not in verdict
    blocks = [block for block in blocks if not block.startswith(("assumed: ", "examined: "))]
    rules = json.loads(run("why", *requested, "--json").out)["conflicts"]
    assert [int(block.partition(".")[0]) for block in blocks] == sorted({each["conflict"] for each in rules})
    for number, block in enumerate(blocks, 1):
        ids = [each["rule"] for each in rules if each["conflict"] == number]
        assert block.count("because: ") == 1
        assert [block.count(f"[{each}]") for each in ids] == [1] * len(ids)


def test_a_malformed_file_of_names_stops_only_questions_about_its_package(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "matrices" / "api" / "trl.json"
    path.parent.mkdir()
    path.write_text("{")
    assert run("why", "verl==0.8.0", "sglang==0.5.2").code == 1
    ended = run("why", "trl==0.25.0", "vllm==0.12.0")
    assert ended.code not in {0, 1, 2}
    assert str(path) in ended.err


def test_what_is_offered_can_be_pasted_and_works(run: Run) -> None:
    for requested in (ASKED, ("blackwell-vllm", "--set", "vllm=0.12.0")):
        found = json.loads(run("why", *requested, "--json").out)
        assert set(found) == {
            "question",
            "verdict",
            "kind",
            "overridden_by",
            "rest",
            "state",
            "conflicts",
            "nearest",
            "unknown",
            "assumed",
            "unknown_names",
            "examined",
            "witness",
        }
        assert found["verdict"] == "incompatible"
        assert found["question"]["requested"]["vllm"] in {"==0.11.0", "==0.12.0"}
        for conflict in found["conflicts"]:
            assert {"rule", "components", "reason", "source", "fix"} <= set(conflict)
        assert found["nearest"]
        for each in found["nearest"]:
            program, *arguments = shlex.split(each["command"])
            assert program == "imagegen"
            assert run(*arguments).code == 0


def test_a_proposal_names_what_it_has_compiled(run: Run) -> None:
    requested = ("transformer-engine==2.11.0", "transformer-engine-torch==2.9.0", "torch==2.11.0")
    first, second = json.loads(run("why", *requested, "--json").out)["nearest"]
    assert first["changes"] == {"transformer-engine-torch": "==2.11.0"}
    (build,) = first["builds"]
    assert (build["component"], build["version"]) == ("transformer-engine-torch", "2.11.0")
    assert build["core_seconds"] > 0
    assert second["builds"] == []
    assert "compiles transformer-engine-torch 2.11.0" in run("why", *requested).out


def test_why_says_yes_or_that_it_does_not_know(run: Run) -> None:
    works = run("why", "torch==2.8.0", *ASKED[1:], "--json")
    assert (works.code, json.loads(works.out)["verdict"]) == (0, "compatible")
    unknown = run("why", "vllm==99.0")
    assert unknown.code == 2
    assert unknown.out.startswith("unknown: vllm==99.0\n\nnot known: vllm 99.0: no such release is known here")


def verdict(run: Run, *requested: str) -> tuple[str, list[str], list[dict[str, str]]]:
    """Return the answer, the ids of the rules in its conflicts, and the changes that it suggests."""
    found = json.loads(run("why", *requested, "--json").out)
    return (
        found["verdict"],
        [each["rule"] for each in found["conflicts"]],
        [each["changes"] for each in found["nearest"]],
    )


def test_a_torch_without_a_build_for_the_gpu_is_refused_though_no_cuda_is_named(run: Run) -> None:
    """The first builds for CUDA 12.8, which is the first that knows Blackwell, are torch 2.7's, and PyPI's is 2.8's."""
    answer, rules, offered = verdict(run, "torch==2.6.0", "RTX 5090")
    assert answer == "incompatible"
    assert {"cuda-blackwell", "build:torch-2.5.0"} <= set(rules)
    assert offered == [{"torch": "==2.7.1+cu128"}]  # the triton of 2.7.0 has a warning
    assert verdict(run, "torch==2.7.0", "RTX 5090")[0] == "incompatible"
    assert verdict(run, "torch==2.7.0+cu128", "RTX 5090")[0] == "compatible"
    assert verdict(run, "torch==2.8.0", "RTX 5090")[0] == "compatible"
    assert verdict(run, "torch==2.6.0", "H100")[0] == "compatible"
    assert verdict(run, "torch==2.6.0")[0] == "compatible"


@pytest.mark.parametrize("cuda", ["cuda==99", "cuda==12.7", "cu999", "cuda>=14"])
def test_a_cuda_that_nothing_is_built_for_is_unknown(cuda: str, run: Run) -> None:
    answer, rules, offered = verdict(run, cuda, "torch")
    assert (answer, rules) == ("unknown", [])
    assert [set(each) for each in offered] == [{"cuda"}]


def test_a_cuda_that_is_not_known_is_refused_where_that_is_proven(run: Run) -> None:
    assert verdict(run, "cuda==12.5", "B200")[:2] == ("incompatible", ["cuda-blackwell"])
    assert verdict(run, "cuda==11.8", "torch==2.6.0")[0] == "compatible"


def test_a_cell_on_another_cuda_is_judged_as_its_wheels_are(run: Run) -> None:
    """PyPI's vllm 0.24 needs libcudart.so.13."""
    answer, rules, _ = verdict(run, "blackwell-vllm", "--set", "cuda=12.8")
    assert (answer, rules[0]) == ("incompatible", "scan:vllm-0.24.0:cuda")


@pytest.mark.parametrize(
    ("rule", "refused", "accepted"),
    [
        ("cuda13-before-turing", ("V100", "cu130"), ("V100", "cu126")),
        ("torch-without-volta", ("V100", "torch==2.11.0", "cu128"), ("T4", "torch==2.11.0", "cu128")),
        ("torch-without-thor", ("torch==2.13.0", "Thor", "platform==linux/amd64"), ("torch==2.13.0", "B200")),
        ("cuda-thor", ("Jetson AGX Thor", "cu128"), ("Jetson AGX Thor", "cu130")),
    ],
)
def test_rules_on_the_oldest_and_the_embedded_gpus_apply(
    run: Run, rule: str, refused: tuple[str, ...], accepted: tuple[str, ...]
) -> None:
    for words, applies in ((refused, True), (accepted, False)):
        found = json.loads(run("why", *words, "--json").out)["conflicts"]
        assert (rule in {each["rule"] for each in found}) is applies


def test_nothing_is_offered_where_gpu_and_driver_do_not_go_together(run: Run) -> None:
    answer, rules, offered = verdict(run, "torch==2.8.0", "cu128", "driver==550.54.14", "B200")
    assert (answer, rules, offered) == ("unknown", ["driver-blackwell"], [])


def test_an_old_sglang_counts_with_its_engine_though_its_metadata_keeps_that_in_an_extra(run: Run) -> None:
    assert verdict(run, "sglang==0.4.10.post2", "vllm==0.24.0")[0] == "incompatible"
    assert verdict(run, "sglang==0.4.6.post5", "torch==2.6.0")[1] == []
    assert verdict(run, "blackwell-sglang-cu130-py311", "--set", "sglang=0.4.4")[0] == "incompatible"
    assert verdict(run, "blackwell-sglang-cu130-py311", "--set", "sglang=0.5.14")[0] == "compatible"


def test_a_variable_that_is_to_blame_is_named(run: Run) -> None:
    ended = run("why", "vllm==0.12.0", "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert ended.code == 1
    assert "error (breaks): env.PYTORCH_CUDA_ALLOC_CONF expandable_segments:True, vllm 0.12.0\n" in ended.out


def test_why_refuses_what_it_does_not_understand(run: Run) -> None:
    assert run("why").code == 64
    assert run("why", "torch==x").code == 64
    assert run("why", "deepspeed==x").code == 64


@pytest.mark.parametrize(
    ("requested", "code", "verdict", "rest", "unknown"),
    [
        (("torch==2.8.0", "vllm==0.11.0", "unheard-of==0.16.2"), 2, "unknown", "compatible", {"unheard-of": None}),
        (("torch==2.9.1", "vllm==0.11.0", "unheard-of"), 1, "incompatible", "incompatible", {"unheard-of": None}),
        (("vllm==99.0", "unheard"), 2, "unknown", "unknown", {"unheard": None}),
        (("torch==2.9.1", "vlm==0.11.0"), 2, "unknown", "compatible", {"vlm": "vllm"}),
        (("troch==2.9.1",), 2, "unknown", None, {"troch": "torch"}),
        (("torch==2.8.0", "gpu==GTX 980"), 2, "unknown", "compatible", {"GTX 980": None}),
        (("torch==2.8.0", "MI300X"), 2, "unknown", "compatible", {"MI300X": None}),
        (("torch==2.8.0", "GTX", "980", "Ti"), 2, "unknown", "compatible", {"GTX 980 Ti": None}),
        (("torch==2.6.0", "gpu==RTX 5090,GTX 980"), 1, "incompatible", "incompatible", {"GTX 980": None}),
        (("hopper-vllm-cu130-py313",), 2, "unknown", None, {"hopper-vllm-cu130-py313": "hopper-vllm-cu130-py312"}),
        (("torch==2.8.0", "base==ubuntu22.40"), 2, "unknown", "compatible", {"ubuntu22.40": "ubuntu22.04"}),
        (("hopper-vllm", "--set", "gpu=GTX 980"), 2, "unknown", "compatible", {"GTX 980": None}),
        (("hopper-vllm", "--set", "vllm=0.12.0", "--set", "x=1"), 1, "incompatible", "incompatible", {"x": None}),
    ],
)
def test_a_name_that_is_not_known_leaves_the_verdict_of_the_rest(
    run: Run,
    requested: tuple[str, ...],
    code: int,
    verdict: str,
    rest: str | None,
    unknown: dict[str, str | None],
) -> None:
    ended = run("why", *requested, "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["verdict"], found["rest"]) == (code, verdict, rest)
    assert {each["name"]: each["suggestion"] for each in found["unknown_names"]} == unknown
    text = run("why", *requested).out
    for name, suggestion in unknown.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"not known: {name}"))
        assert ("(did you mean" in line) == (suggestion is not None)


@pytest.mark.parametrize(
    "requested", [("torch==2.9.1", "deep-ep==1.2.1"), ("torch==2.9.1", "unheard-of"), ("unheard-of",)]
)
def test_nothing_is_offered_where_no_change_of_what_is_known_helps(run: Run, requested: tuple[str, ...]) -> None:
    assert verdict(run, *requested) == ("unknown", [], [])


@pytest.mark.parametrize(
    ("cell", "state"),
    [("cpu-grpo", "locked"), ("odd", "no known conflict"), ("hopper-vllm-cu130-py312-nvidia", "no known conflict")],
)
def test_every_command_gives_a_cell_the_same_state(run: Run, cell: str, state: str) -> None:
    (row,) = json.loads(run("matrix", cell, "--json").out)
    (listed,) = json.loads(run("list", cell, "--json").out)
    requested = json.loads(run("why", cell, "--json").out)["state"]
    assert row["state"] == listed["state"] == requested["state"] == state
    assert row["reason"] == listed["reason"] == requested["reason"]
    assert state in run("list", cell).out
    assert row["rules"] == "compatible"
    assert row["buildable"] == (not row["missing"])
    assert row["missing"] == listed["missing"]
    assert any("nvidia/cuda" in each for each in row["missing"]) == cell.endswith("-nvidia")
    assert run("why", cell).out.startswith(f"{state}: {row['cell']}\n")


def test_a_changed_cell_has_neither_lock_nor_test(run: Run) -> None:
    found = json.loads(run("why", "cpu-grpo", "--set", "transformers=5.9.0", "--json").out)
    assert found["state"]["state"] == "no known conflict"
    assert json.loads(run("why", "torch==2.8.0", "--json").out)["state"] is None


def test_matrix_shows_every_cell(run: Run) -> None:
    cells = json.loads(run("matrix", "--all", "--json").out)
    shipped = shipped_matrix()
    assert {each["cell"] for each in cells} == {*(cell.id for cell in shipped.all_cells), "odd-cpu-py311"}
    for each in cells:
        assert each["reason"] or each["state"] in {"tested", "locked", "no known conflict"}
    (flagship,) = json.loads(run("matrix", "blackwell-vllm", "--json").out)
    assert flagship["state"] == "locked"
    lines = run("matrix", "verl-enhanced-vllm*").out.splitlines()
    assert lines[0].split() == ["cell", "rules", "lock", "builds", "here", "reason"]
    assert len(lines) == 1 + sum(each["cell"].startswith("verl-enhanced-vllm") for each in cells)
    assert run("matrix", "nothing*").code == 64


def test_rules_that_contradict_each_other_end_every_command(run: Run, tmp_path: Path, golden: Golden) -> None:
    rule = 'because: b, source: s, date: "2026-11-20", severity: error, evidence: measured, kind: breaks, fix: f'
    text = f'rules:\n  high: {{when: {{peft: ""}}, then: {{trl: ">=1"}}, {rule}}}\n'
    text += f'  low: {{when: {{peft: ""}}, then: {{trl: "<1"}}, {rule}}}\n'
    (tmp_path / "matrices" / "rules.yaml").write_text(text)
    ended = run("matrix")
    assert ended.code == 65
    golden.check(ended.err)


def test_what_an_image_of_nvidia_has_is_held_against_the_packages(run: Run) -> None:
    ended = run("why", "nvcr.io/nvidia/pytorch:25.03-py3", "flash-attn==2.8.3+cu12torch2.8cxx11abiTRUE", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["verdict"]) == (1, "incompatible")
    assert any("nvidia/pytorch:25.03" in each for each in found["assumed"])
    assert [set(each["components"]) for each in found["conflicts"]] == [{"flash-attn", "torch"}]
    assert run("why", "nvcr.io/nvidia/pytorch:25.09-py3", "driver==570").code == 1
    assert run("why", "nvcr.io/nvidia/pytorch:26.03-py3").code == 0  # no index has its torch, nor need any


@pytest.mark.parametrize(("words", "code"), [(("cudnn", "9.1"), 1), (("cudnn", "9.16"), 0), (("nccl==2.20.5",), 1)])
def test_a_library_of_nvidia_is_that_of_the_cuda_that_torch_is_built_for(
    run: Run, words: tuple[str, ...], code: int
) -> None:
    ended = run("why", "torch==2.9.1", *words, "--json")
    assert ended.code == code
    assert "nvidia-cudnn-cu13" not in ended.out


def test_an_extra_is_shown_and_its_requirements_count(run: Run) -> None:
    ended = run("why", "trl[Math_Verify,deepspeed]==1.0.0", "transformers==5.1.0", "math-verify==0.4.0", "--json")
    assert ended.code == 1
    needed = {(each["rule"], each["reason"].partition(" ")[0]) for each in json.loads(ended.out)["conflicts"]}
    assert needed == {
        ("pypi:trl-1.0.0:transformers", "trl[deepspeed]"),
        ("pypi:trl-1.0.0:math-verify", "trl[math-verify]"),
    }
    assert "trl[deepspeed,math-verify]==1.0.0" in run("why", "trl[math_verify,deepspeed]==1.0.0").out


@pytest.mark.parametrize(
    ("words", "unknown"),
    [
        ("verl[cupy-cu130,vllm]==0.9.0", {"verl[cupy-cu130]"}),
        ("verl[cupy_cu130,vllm]==0.9.0", {"verl[cupy-cu130]"}),
        ("verl[cupy.cu130]==0.9.1", set()),
        ("vllm[nonsense]", {"vllm[nonsense]"}),
        ("trl[vllm,nonsense,Math_Verify,other]==0.24.0", {"trl[nonsense]", "trl[other]"}),
        ("sglang[srt]>=0.4", set()),  # a release in question has it
        ("ray[default]==2.55.0", set()),
        ("verl06-sglang", set()),  # a cell's extras are its own
    ],
)
def test_an_extra_that_no_release_is_known_to_have_is_unknown(run: Run, words: str, unknown: set[str]) -> None:
    ended = run("why", words, "--json")
    assert {sentence.partition(":")[0] for sentence in json.loads(ended.out)["unknown"]} == unknown
    assert ended.code == (2 if unknown else 0)


def test_no_way_out_loses_an_extra(run: Run) -> None:
    ended = run("why", "blackwell-sglang", "--set", "vllm==0.12.0", "--json")
    extras = json.loads(ended.out)["question"]["extras"]["verl"]
    assert {"cupy-cu130", "verl-core"} <= set(extras)
    for way in json.loads(ended.out)["nearest"]:
        assert not json.loads(run(*shlex.split(way["command"])[1:], "--json").out)["unknown"]


@pytest.mark.parametrize(
    "words",
    ["torch==2.9.1+foo", "torchaudio==2.9.1+foo", "vllm==0.11.0+mine", "flash-attn==2.8.3+local", "trl==0.24.0+cu128"],
)
def test_a_label_that_no_known_build_has_is_unknown(run: Run, words: str) -> None:
    found = json.loads((ended := run("why", words, "--json")).out)
    assert (ended.code, [each["rule"] for each in found["conflicts"]]) == (2, [f"build:{words.replace('==', '-')}"])


@pytest.mark.parametrize("package", ["torchaudio==2.11.0", "torchvision==0.26.0", "torchcodec==0.11.1"])
@pytest.mark.parametrize("label", ["", "+cu128", "+cu130", "+cpu"])
def test_a_package_next_to_torch_is_compiled_with_one_torch_whatever_its_build(
    run: Run, package: str, label: str
) -> None:
    found = json.loads((ended := run("why", f"torch==2.9.1{label}", package, "--json")).out)
    rules = [rule["rule"] for rule in found["conflicts"] if rule["kind"] == "breaks"]
    assert ended.code == 1
    assert any(rule.startswith(f"scan:{package.replace('==', '-')}:torch") for rule in rules)


@pytest.mark.parametrize("tag", sorted(shipped_matrix().ngc_images))
def test_every_image_of_nvidia_is_answered_about(run: Run, tag: str) -> None:
    assert run("why", f"nvcr.io/nvidia/pytorch:{tag}-py3").code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("25.12", "transformers==4.57.1"), 0),
        (("26.02", "torchaudio==2.11.0"), 0),  # a pre-release of the torch that its wheel is compiled for
        (("25.03", "torchaudio==2.11.0"), 1),  # it declares no torch, so that NVIDIA's stays, and lacks symbols
        (("26.01", "sgl-kernel==0.3.9"), 1),
        (("25.12", "torch"), 0),  # the base's is one
        (("26.01", "torch>=2.6"), 0),
        (("26.02", "torch==2.11.0a0+eb65b36914"), 0),
        (("24.02", "flash-attn==2.6.3"), 0),
        (("25.08", "xformers==0.0.32.post2"), 0),  # it declares another torch, which pip installs
    ],
)
def test_pip_replaces_the_torch_of_an_image_only_if_another_is_declared(
    run: Run, words: tuple[str, str], code: int
) -> None:
    tag, package = words
    found = json.loads((ended := run("why", f"nvidia/pytorch:{tag}", package, "--json")).out)
    assert ended.code == code
    assert any("pip replaces" in each for each in found["assumed"]) is package.startswith("xformers")


@pytest.mark.parametrize("more", [(), ("torch",)])
def test_pip_replaces_the_torch_of_an_image_where_a_package_requires_another(run: Run, more: tuple[str, ...]) -> None:
    ended = run("why", "nvcr.io/nvidia/pytorch:25.02-py3", "vllm==0.10.1.1", *more, "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["conflicts"]) == (0, [])
    assert len(found["assumed"]) == 2


STACK = """\
images:
  my-rl:
    description: The packages of uv.lock.
    purpose: A test.
    base: debian12-gpu
    gpus: [sm_90]
    stacks: [gpu]
    axes: {cuda: [cu128], python: ["3.11"]}
    stack: {uv: ./uv.lock}
    components: {vllm: {because: The project requires it.}}
"""
UV_LOCK = """\
version = 1
requires-python = ">=3.11"
[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "vllm" }, { name = "no-metadata-here" }]
[[package]]
name = "no-metadata-here"
version = "1.0"
source = { registry = "https://files.example.org/simple" }
[[package]]
name = "torch"
version = "TORCH"
source = { registry = "https://files.example.org/simple" }
[[package]]
name = "vllm"
version = "0.11.0"
source = { registry = "https://files.example.org/simple" }
dependencies = [{ name = "torch" }]
"""


@pytest.mark.parametrize(("torch", "verdict", "state"), [("2.8.0", 0, "no known conflict"), ("2.9.1", 1, "conflict")])
def test_a_stack_is_judged_by_the_versions_of_its_lock_file(
    torch: str, verdict: int, state: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "matrices/stack.yaml").write_text(STACK)
    (tmp_path / "uv.lock").write_text(UV_LOCK.replace("TORCH", torch))
    ended = run("why", "my-rl", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["unknown"]) == (verdict, [])
    known = [each["components"] for each in found["conflicts"]]
    assert {each["vllm"] for each in known if "vllm" in each} == {"0.11.0"}
    assert any(each.get("torch") == torch for each in known) is bool(verdict)
    (row,) = json.loads(run("list", "my-rl", "--json").out)
    assert row["state"] == state


def test_a_stack_whose_lock_file_cannot_be_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "matrices/stack.yaml").write_text(STACK)
    ended = run("why", "my-rl")
    assert ended.code not in {0, 1, 2}
    assert "uv.lock" in ended.err
    (row,) = json.loads(run("list", "my-rl", "--json").out)
    assert row["state"] == "unknown"
