"""A compiled wheel is checked against its build before it enters the wheelhouse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.audit.model import CodeTarget
from imagegen.core.errors import BuildError
from imagegen.core.gpu import Gpu
from imagegen.lock.model import LockedBuild
from imagegen.wheels.builds.wheel_check import built_wheel, check_wheel
from tests.support.elf_files import make_elf, make_fatbin
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.source_builds import BUILD, WITH_BUILD
from tests.support.wheels import make_wheel

SM_80, SM_90, SM_120 = (CodeTarget("sass", arch) for arch in (80, 90, 120))
GPUS = (Gpu("sm_90", "9.0", "hopper", ()), Gpu("sm_120", "12.0", "blackwell", ()))
MODULE = "demo_cuda.cpython-311-x86_64-linux-gnu.so"


def extension(*targets: CodeTarget, undefined: tuple[str, ...] = ()) -> bytes:
    return make_elf(undefined=list(undefined), fatbin=make_fatbin([[target] for target in targets]) if targets else b"")


def wheel(
    folder: Path,
    files: dict[str, bytes],
    *,
    name: str = "demo_ext",
    version: str = "1.0",
    python: str = "cp311",
    requires: str = "torch",
) -> Path:
    folder.mkdir(exist_ok=True)
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {requires}\n",
        "WHEEL": f"Wheel-Version: 1.0\nTag: {python}-{python}-linux_x86_64\n",
    }
    filename = f"{name}-{version}-{python}-{python}-linux_x86_64.whl"
    return make_wheel(folder, files, filename=filename, info=f"{name}-{version}.dist-info", metadata=info)


def judge(path: Path, build: LockedBuild = BUILD) -> list[str]:
    return check_wheel(path, build, WITH_BUILD, GPUS, ())


def test_what_was_asked_for_passes(tmp_path: Path) -> None:
    path = wheel(tmp_path / "out", {MODULE: extension(SM_90, SM_120), "demo/__init__.py": b""})
    assert built_wheel(tmp_path / "out", BUILD) == path
    assert judge(path) == []


def test_unrequested_gpu_code_is_reported(tmp_path: Path, golden: Golden) -> None:
    path = wheel(tmp_path, {MODULE: extension(SM_80, SM_90, SM_120)})
    golden.check(judge(path))


def test_a_build_that_left_no_wheel_or_several_is_refused(tmp_path: Path) -> None:
    with raises("source-build-wheel-count"):
        built_wheel(tmp_path, BUILD)
    wheel(tmp_path, {}, python="cp311")
    wheel(tmp_path, {}, python="cp312")
    with raises("source-build-wheel-count"):
        built_wheel(tmp_path, BUILD)


@pytest.mark.fault(
    "Source builds",
    "a build succeeds, and its wheel is of another version than asked",
    "refused: names both; nothing gets into the wheelhouse",
)
@pytest.mark.parametrize(("name", "version"), [("demo_ext", "1.0.post1"), ("demo_ext", "1.0+cu13"), ("other", "1.0")])
def test_another_release_is_refused(tmp_path: Path, name: str, version: str) -> None:
    wheel(tmp_path, {}, name=name, version=version)
    with raises("source-build-wrong-release") as caught:
        built_wheel(tmp_path, BUILD)
    assert f"this is {name.replace('_', '-')} {version}" in str(caught.value)


@pytest.mark.fault(
    "Source builds",
    "a build succeeds and compiled nothing: a Python-only wheel, as apex's without its variables",
    "refused: says which extension was asked for; nothing gets into the wheelhouse",
)
def test_a_python_only_wheel_is_refused(tmp_path: Path, golden: Golden) -> None:
    path = wheel(tmp_path, {"demo/__init__.py": b"", "demo/not_elf.so": b"text"})
    with raises("source-build-no-extension") as caught:
        judge(path)
    golden.check(caught.value)
    with raises("source-build-no-extension"):
        judge(path, replace(BUILD, modules=()))


def test_an_extension_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = wheel(tmp_path, {MODULE: extension(SM_90, SM_120)})
    with raises("source-build-incomplete") as caught:
        judge(path, replace(BUILD, modules=("demo_cuda", "demo.more_cuda")))
    assert "it holds demo_cuda" in str(caught.value)
    nested = wheel(tmp_path / "nested", {"demo/more_cuda.abi3.so": extension(SM_90, SM_120)})
    assert judge(nested, replace(BUILD, modules=("demo.more_cuda",))) == []


def test_an_architecture_that_is_not_there_is_named(tmp_path: Path, golden: Golden) -> None:
    path = wheel(tmp_path, {MODULE: extension(SM_90)})
    with raises("source-build-no-gpu-code") as caught:
        judge(path)
    golden.check(caught.value)
    with raises("source-build-no-gpu-code"):
        judge(wheel(tmp_path / "none", {MODULE: extension()}))


@pytest.mark.parametrize(
    "requires",
    [
        "einops",
        "torch>=99",
        'einops; python_version >= "3.11"',
        'einops; python_version ~= "x"',  # which is not decidable
    ],
)
def test_an_unexpected_requirement_is_refused(tmp_path: Path, requires: str, golden: Golden) -> None:
    path = wheel(tmp_path, {MODULE: extension(SM_90, SM_120)}, requires=requires)
    with pytest.raises(BuildError) as caught:
        judge(path)
    golden.check(caught.value)


@pytest.mark.parametrize(
    "requires",
    [
        "Torch>=2",
        'einops; python_version < "3"',
        'einops; extra == "test"',
        'einops; platform_machine == "aarch64"',
    ],
)
def test_other_requirements_are_counted_on(tmp_path: Path, requires: str) -> None:
    assert judge(wheel(tmp_path, {MODULE: extension(SM_90, SM_120)}, requires=requires)) == []


def test_the_image_decides_what_a_requirement_is_for_and_not_this_machine(tmp_path: Path) -> None:
    path = wheel(tmp_path, {MODULE: extension(SM_90, SM_120)}, requires='einops; platform_machine == "aarch64"')
    arm = replace(WITH_BUILD, axes={**WITH_BUILD.axes, "platform": "linux/arm64"})
    with raises("source-build-requirement-missing"):
        check_wheel(path, BUILD, arm, GPUS, ())


def test_what_the_audit_refuses_is_refused(tmp_path: Path) -> None:
    another = wheel(tmp_path, {MODULE: extension(SM_90, SM_120)}, python="cp312")
    with raises("source-build-audit") as caught:
        judge(another)
    assert "wrong-python" in str(caught.value)
    symbol = "_ZN3c1021no_such_function_hereEv"
    missing = wheel(tmp_path / "x", {MODULE: extension(SM_90, SM_120, undefined=(symbol,))})
    with raises("source-build-audit"):
        check_wheel(missing, BUILD, replace(WITH_BUILD, wheels=_with_torch("2.8.0")), GPUS, ())


def _with_torch(version: str) -> tuple:  # type: ignore[type-arg]
    return tuple(replace(each, version=version) if each.name == "torch" else each for each in WITH_BUILD.wheels)


def test_a_broken_wheel_is_an_error_of_the_build(tmp_path: Path) -> None:
    path = tmp_path / "demo_ext-1.0-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(b"no zip")
    with raises("source-build-wheel-invalid"):
        judge(path)
