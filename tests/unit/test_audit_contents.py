"""Findings about packages' contents: each failure in made-up packages, and none in sound ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit import catalogue, contents
from imagegen.audit.model import Elf, File, Finding, Package, Subject, SystemLibraries
from imagegen.audit.tags import for_another_python
from tests.support.golden import Golden
from tests.support.matrix_samples import shipped_matrix
from tests.support.timing import within

GPUS = shipped_matrix().gpus
LIBRARY = File(1_000_000, elf=Elf(62))
SOURCE = File(100)


def package(name: str, version: str = "1.0", paths: Iterable[str] = (), **more: Any) -> Package:
    """A package whose paths with .so in them are ELF files."""
    files = {path: LIBRARY if ".so" in path else SOURCE for path in paths}
    return Package(name, version, files, **more)


def audit(*packages: Package, **more: Any) -> list[Finding]:
    return list(contents.check(Subject("test", packages, **more)))


def ids(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(str(finding.severity), finding.id, finding.package) for finding in findings]


# package, version, what a whole build has beside its Python part
WHOLE = {
    "apex": ("0.1", ["amp_C.cpython-311-x86_64-linux-gnu.so", "fused_weight_gradient_mlp_cuda.cpython-311-x.so"]),
    "flash-attn": ("2.8.3", ["flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so"]),
    "causal-conv1d": ("1.5.0", ["causal_conv1d_cuda.cpython-311-x86_64-linux-gnu.so"]),
    "transformer-engine-torch": ("2.9.0", ["transformer_engine/transformer_engine_torch.cpython-311-x.so"]),
    "transformer-engine-cu13": ("2.12.0", ["transformer_engine/libtransformer_engine.so"]),
    "grouped-gemm": ("0.3.0", ["grouped_gemm_backend.cpython-311-x86_64-linux-gnu.so"]),
    "mamba-ssm": ("2.2.4", ["selective_scan_cuda.cpython-311-x86_64-linux-gnu.so"]),
    "deep-ep": ("1.1.0", ["deep_ep_cpp.cpython-311-x86_64-linux-gnu.so"]),
    "deep-gemm": ("2.1.0", ["deep_gemm_cpp.cpython-311-x86_64-linux-gnu.so"]),
    "sgl-kernel": ("0.3.21", ["sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/sm100/common_ops.abi3.so"]),
    "sglang-kernel": ("0.4.2", ["sgl_kernel/common_ops.abi3.so"]),
    "vllm": ("0.24.0", ["vllm/_C_stable_libtorch.abi3.so"]),
    "xformers": ("0.0.33", ["xformers/_C.so"]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_python_only_build_is_an_error(name: str) -> None:
    version, modules = WHOLE[name]
    assert not audit(package(name, version, [*modules, "x/__init__.py"]), cuda=True)
    (found,) = audit(package(name, version, ["x/__init__.py"]), cuda=True)
    assert ids([found]) == [("error", "extension-missing", f"{name} {version}")]
    assert len(found.details) == 2
    assert not audit(package(name, version, ["x/__init__.py"]), cuda=False)
    assert not audit(package(name, version), cuda=True)  # nothing is known of its files


def test_what_is_missing_is_named(golden: Golden) -> None:
    half = package("apex", "0.1", ["amp_C.cpython-311-x86_64-linux-gnu.so", "fused_weight_gradient_mlp_cuda.py"])
    (found,) = audit(half, cuda=True)
    golden.check(found.evidence)
    (found,) = audit(package("vllm", "0.24.0", ["vllm/__init__.py"]), cuda=True)
    golden.check(found.evidence)


def test_releases_without_modules_by_design_are_not_asked_for_them() -> None:
    assert not audit(package("deep-gemm", "1.0.0", ["deep_gemm/__init__.py"]), cuda=True)
    assert ids(audit(package("apex", "0.9.10.dev0", ["apex/__init__.py"]), cuda=True)) == [
        ("error", "name-confusion", "apex 0.9.10.dev0")
    ]


@pytest.mark.parametrize(
    ("tags", "path", "expected"),
    [
        ("cp311-cp311-linux_x86_64", "x.py", "native-code-missing"),
        ("cp39-abi3-manylinux_2_28_x86_64", "x.py", "native-code-missing"),
        ("cp39-abi3-manylinux_2_28_x86_64", "x.abi3.so", None),
        ("py3-none-manylinux_2_28_x86_64", "include/x.h", None),  # headers of CUDA
        ("py3-none-any", "x.so", "native-code-untagged"),
        ("py2.py3-none-any", "x.py", None),
    ],
)
def test_tags_that_promise_other_code_than_there_is(tags: str, path: str, expected: str | None) -> None:
    found = audit(package("x", paths=[path], tags=(tags,)), python="3.11")
    assert [finding.id for finding in found] == ([expected] if expected else [])


def test_a_package_whose_libraries_are_left_out_for_another_is_no_python_only_build() -> None:
    base = package("cutlass-base", paths=["cutlass/x.py"], tags=("cp311-cp311-manylinux_2_28_x86_64",))
    assert not audit(base, excused=frozenset({"cutlass/_mlir/x.so"}))
    assert audit(base, excused=frozenset({"other/x.so"}))


def test_cubins_are_not_the_processors_code() -> None:
    cubins = Package("cubins", "1", {"x.cubin": File(1, elf=Elf(190))}, tags=("py3-none-any",))
    assert not audit(cubins)


CPU = package("torch", "2.13.0+cpu", ["torch/__init__.py", "torch/lib/libtorch_cpu.so"])
CUDA = package("torch", "2.13.0", ["torch/__init__.py", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_cuda.so"])
ROCM = package("torch", "2.13.0+rocm7", ["torch/lib/libtorch_cpu.so", "torch/lib/libtorch_hip.so"])


def test_a_torch_of_another_kind_than_is_promised() -> None:
    for torch, why in ((CPU, "CPUs only"), (ROCM, "ROCm")):
        for promise in ({"cuda": True}, {"gpus": (GPUS["sm_90"],)}):
            (found,) = audit(torch, **promise)
            assert ids([found]) == [("error", "torch-without-cuda", str(torch))]
            assert why in found.evidence
    elsewhere = package("torch", "2.13.0", [f"../../dist-packages/{path}" for path in CPU.files])
    assert ids(audit(elsewhere, cuda=True)) == [("error", "torch-without-cuda", "torch 2.13.0")]
    assert ids(audit(CUDA, cuda=False)) == [("warning", "torch-with-cuda", "torch 2.13.0")]
    assert not audit(CUDA, cuda=True) + audit(CPU, cuda=False) + audit(CPU) + audit(CUDA)


def test_packages_that_are_not_what_their_names_say() -> None:
    assert ids(audit(package("flash-attn-3", "0.0.0"), package("pytorch", "1.0.2"))) == [
        ("error", "name-confusion", "flash-attn-3 0.0.0"),
        ("error", "name-confusion", "pytorch 1.0.2"),
    ]
    assert not audit(package("flash-attn-3", "3.0.0"), package("opencv-python-headless", "4.13.0.90"))
    assert not audit(package("pynvml", "12.0.0"), package("nvidia-ml-py", "13.580.82"))
    (found,) = audit(package("opencv-python", "4.13"), package("opencv-python-headless", "4.12"))
    assert ids([found]) == [("warning", "name-confusion", "opencv-python 4.13")]
    assert "opencv-python-headless 4.12" in found.evidence
    assert ids(audit(package("pynvml", "11.5.3"), package("nvidia-ml-py", "13.580.82"))) == [
        ("warning", "name-confusion", "nvidia-ml-py 13.580.82")
    ]


def owner(name: str, files: Mapping[str, str | None]) -> Package:
    """Return a package with these files: path -> sha256, None where it is not known."""
    return Package(name, "1.0", {path: File(1, sha256=text) for path, text in files.items()})


@pytest.mark.parametrize(
    ("path", "severity"),
    [
        ("nvidia/cudnn/lib/libcudnn.so.9", "error"),
        ("cv2/__init__.py", "error"),
        ("tests/__init__.py", "warning"),
        ("build_backend.py", "warning"),
        ("LICENSE", "warning"),
    ],
)
def test_one_path_with_two_contents(path: str, severity: str) -> None:
    one, two, same = owner("one", {path: "aa"}), owner("two", {path: "bb"}), owner("same", {path: "aa"})
    (found,) = audit(one, two)
    assert ids([found]) == [(severity, "file-clash", "one 1.0")]
    assert found.path == path
    assert "two 1.0" in found.evidence
    assert not audit(one, same)
    assert audit(one, two, excused=frozenset({path}))  # a third's, which left it out
    assert not audit(one, owner("unknown", {path: None}))
    executable = Package("two", "1.0", {path: File(1, sha256="aa", executable=True)})
    assert [finding.id for finding in audit(one, executable)] == ["file-clash"]


def test_many_clashes_of_two_packages_are_one_finding(golden: Golden) -> None:
    one, two = (owner(name, {f"x/{n:03}.py": name for n in range(100)}) for name in ("one", "two"))
    (found,) = audit(one, two)
    golden.check(found.evidence)
    assert found.details[-1] == "and 88 more"
    (found,) = audit(owner("one", {"x.py": "aa"}), owner("two", {"x.py/y": "bb"}))
    assert "directory" in found.evidence


def test_declared_imports_are_looked_for_in_all_packages(golden: Golden) -> None:
    vllm = package("vllm", "1", ["vllm/__init__.py", "vllm/entrypoints/llm.py", "vllm/_C.abi3.so"])
    te = package("tensorboard", "1", ["tensorboard/__init__.py"])
    torch = package("torch", "1", ["torch/utils/tensorboard/__init__.py"])
    spiel = package("open-spiel", "1", ["pyspiel.so"])
    space = package("megatron-core", "1", ["megatron/core/__init__.py"])
    sound = (
        replace(vllm, imports=("vllm", "vllm.entrypoints.llm", "vllm._C")),
        replace(te, imports=("tensorboard", "torch.utils.tensorboard")),
        torch,
        replace(spiel, imports=("pyspiel",)),
        replace(space, imports=("megatron.core", "megatron")),
    )
    assert not audit(*sound)
    (found,) = audit(*sound[1:], replace(vllm, imports=("vllm", "vllm.entrypoints.server", "wllm")))
    assert ids([found]) == [("error", "import-missing", "vllm 1")]
    golden.check(found.evidence)


@pytest.mark.parametrize(
    ("name", "python", "expected"),
    [
        ("_C.cpython-312-x86_64-linux-gnu.so", "3.11", True),
        ("_C.cpython-311-x86_64-linux-gnu.so", "3.11", False),
        ("_C.cpython-313t-x86_64-linux-gnu.so", "3.11", True),
        ("_C.pypy310-pp73-x86_64-linux-gnu.so", "3.11", True),
        ("_C.cpython-312-x86_64-linux-gnu.so", None, False),
        ("_C.abi3.so", "3.11", False),
        ("_C.so", "3.11", False),
        ("libx.cpython-312.txt", "3.11", False),
    ],
)
def test_whose_extension_module_a_file_is(name: str, python: str | None, expected: bool) -> None:
    assert for_another_python(name, python) is expected


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp312-cp312-manylinux_2_28_x86_64", False),
        ("cp39-abi3-manylinux_2_28_x86_64", True),
        ("cp312-abi3-manylinux_2_28_x86_64", False),
        ("py3-none-any", True),
        ("py311-none-any", True),
        ("py312-none-any", False),
        ("py2-none-any", False),
        ("cp313-cp313t-manylinux_2_28_x86_64", False),
        ("nonsense", True),  # nothing is known
    ],
)
def test_a_wheel_for_another_python(tag: str, fits: bool) -> None:
    found = [finding.id for finding in audit(package("x", paths=["x.abi3.so", "x.py"], tags=(tag,)), python="3.11")]
    assert ("wrong-python" in found) is not fits
    assert not [finding for finding in audit(package("x", tags=(tag,))) if finding.id == "wrong-python"]


def test_a_wrong_tag_of_a_package_without_modules_is_a_warning() -> None:
    files = {"lib/libte.so": File(1, elf=Elf(62, exported=frozenset({"nvte_gemm"}))), "x.py": File(1)}
    tagged = Package("te-core", "2.11.0", files, tags=("cp310-cp310-manylinux_2_28_x86_64",))
    assert ids(audit(tagged, python="3.11")) == [("warning", "wrong-python", "te-core 2.11.0")]
    module = {**files, "te.so": File(1, elf=Elf(62, exported=frozenset({"PyInit_te"})))}
    assert ids(audit(replace(tagged, files=module), python="3.11")) == [("error", "wrong-python", "te-core 2.11.0")]


def test_one_fitting_tag_is_enough() -> None:
    both = package("x", paths=["x.so"], tags=("cp310-cp310-linux_x86_64", "cp311-cp311-linux_x86_64"))
    assert not audit(both, python="3.11")


def test_modules_for_another_python(golden: Golden) -> None:
    modules = ["x/_C.cpython-312-x86_64-linux-gnu.so", "x/_C.cpython-310-x86_64-linux-gnu.so"]
    (found,) = audit(package("x", paths=modules), python="3.11")
    assert ids([found]) == [("warning", "wrong-python", "x 1.0")]
    golden.check(found.evidence)
    assert not audit(package("x", paths=[*modules, "x/_C.cpython-311-x86_64-linux-gnu.so"]), python="3.11")
    (found,) = audit(package("x", paths=[*modules, "x/_ops.abi3.so"]), python="3.11")  # its main part loads
    assert ids([found]) == [("info", "wrong-python", "x 1.0")]


def test_a_module_for_another_python_without_a_hyphen() -> None:
    (found,) = audit(package("x", paths=["x/_C.cpython312-x86_64-linux-gnu.so"]), python="3.11")
    assert (*ids([found]), found.path) == (("warning", "wrong-python", "x 1.0"), "x/_C.cpython312-x86_64-linux-gnu.so")


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp311-cp311-linux_aarch64", False),
        ("cp311-cp311-win_amd64", False),
        ("cp311-cp311-macosx_11_0_x86_64", False),
        ("py3-none-any", True),
    ],
)
def test_a_wheel_for_another_platform(tag: str, fits: bool) -> None:
    system = SystemLibraries({}, interpreter=File(1, elf=Elf(62)))
    found = audit(package("x", paths=["x.abi3.so"], tags=(tag,)), python="3.11", system=system)
    assert ("wrong-platform" in [finding.id for finding in found]) is not fits


def test_a_wrong_tag_on_files_of_this_platform_is_a_warning() -> None:
    tag = ("py3-none-manylinux2014_sbsa",)  # nvidia-cusparselt-cu13 0.8.0 for aarch64
    musl = ("py3-none-musllinux_1_2_aarch64",)
    for tags, machines, severity in (
        (tag, (183, 183), "warning"),
        (tag, (183, 62), "error"),
        (tag, (), "error"),
        (musl, (183,), "error"),
    ):
        files = {f"x/lib/{number}.so": File(1, elf=Elf(machine)) for number, machine in enumerate(machines)}
        system = SystemLibraries({"libc.so.6": File(1, elf=Elf(183))}, interpreter=File(1, elf=Elf(183)))
        found = audit(replace(package("x", tags=tags), files=files), python="3.11", system=system)
        assert [finding.severity.value for finding in found if finding.id == "wrong-platform"] == [severity]


@pytest.mark.parametrize(("libc", "fits"), [("libc.so.6", False), ("libc.musl-x86_64.so.1", True)])
def test_a_wheel_for_musl_is_for_another_platform_where_there_is_glibc(libc: str, fits: bool) -> None:
    system = SystemLibraries({libc: File(1, elf=Elf(62))}, interpreter=File(1, elf=Elf(62)))
    wheel = package("x", paths=["x.abi3.so"], tags=("cp39-abi3-musllinux_1_2_x86_64",))
    found = audit(wheel, python="3.11", system=system)
    assert ("wrong-platform" in [finding.id for finding in found]) is not fits


PATHS = st.lists(st.sampled_from(["x/__init__.py", "x/_C.so", "y.py", "bin/z", "LICENSE", "tests/t.py"]), unique=True)


@given(PATHS, PATHS, st.sampled_from(["aa", "bb"]))
def test_packages_clash_where_they_share_paths_of_other_contents(one: list[str], two: list[str], text: str) -> None:
    found = audit(owner("one", dict.fromkeys(one, "aa")), owner("two", dict.fromkeys(two, text)))
    assert bool(found) == (text != "aa" and bool(set(one) & set(two)))


@pytest.mark.fault("Audits", "a tag of WHEEL that stands for a thousand million tags", "judged within seconds")
def test_a_tag_of_many_tags_is_not_expanded() -> None:
    many = ".".join(f"cp311{number}" for number in range(1000))
    with within(5):
        assert not audit(package("x", paths=["x.py"], tags=(f"{many}-{many}-{many}",)), python="3.11")
        audit(package("x", paths=["x.py"], tags=(f"{many}-none-any",) * 1000), python="3.11")


@given(st.lists(st.text(max_size=20)), st.text(max_size=10))
def test_no_tag_and_no_version_is_a_crash(tags: list[str], version: str) -> None:
    audit(package("apex", version, ["apex/__init__.py"], tags=tuple(tags)), python="3.11", cuda=True)


def test_every_rule_of_the_data_says_why_and_whence() -> None:
    names = catalogue.data("names")
    for entry in [*catalogue.data("extensions").values(), *names["mistaken"], *names["alone"]]:
        assert all(entry[key] for key in ("because", "fix", "source", "date")), entry
