"""The loader decides what loads; each exception of the check follows a rule."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imagegen.checks

sys.path.insert(0, str(Path(imagegen.checks.__file__).parent))  # as in a container, where the folder is copied to

from smoke import elf, forks, stub
from smoke.checks import loading
from smoke.program import Failed, Skipped, Spec

from tests.support.golden import Golden

NOTHING = "int nothing;"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An image's prefix, which is on Python's path too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(stub, "driver_here", lambda: False)
    monkeypatch.setattr(loading, "PATIENCE", 20)
    return tmp_path


def library(path: Path, code: str = NOTHING, *wants: Path | str) -> Path:
    """A real one; of the libraries that it wants, those given by name alone do not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    links = []
    for want in wants:
        stand_in = path.parent / want if isinstance(want, str) else want
        if isinstance(want, str):
            compiled(stand_in, NOTHING)
        links.append(str(stand_in))
    compiled(path, code, *links)
    for want in wants:
        if isinstance(want, str):
            (path.parent / want).unlink()
    return path


def compiled(path: Path, code: str, *links: str) -> None:
    argv = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", f"-Wl,-soname,{path.name}", "-Wl,--no-as-needed"]
    subprocess.run([*argv, *links, "-o", str(path)], input=code.encode(), check=True)


def check(site: Path, **components: list[str]) -> dict[str, Any]:
    return loading.check(Spec("cpu", "", str(site), {}, {}, components))


def wrong(site: Path, **components: list[str]) -> dict[str, str]:
    with pytest.raises(Failed) as failed:
        check(site, **components)
    return failed.value.details["wrong"]


def test_what_loads_is_counted_and_nothing_else_is_said(site: Path) -> None:
    library(site / "a.so")
    library(site / "deep" / "libb.so.1.2")
    (site / "libscript.so").write_text("INPUT(-lb)")
    (site / "link.so").symlink_to("a.so")
    assert check(site) == {"loaded": 2, "after": {}, "plugins": {}, "variants": [], "others": 0}


def test_no_library_proves_nothing(site: Path) -> None:
    wheel = site / "pkg-1.5.dist-info" / "WHEEL"
    wheel.parent.mkdir()
    wheel.write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
    with pytest.raises(Skipped):
        check(site)
    wheel.write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
    assert "any" in wrong(site)


def test_a_missing_symbol_is_reported_in_the_loaders_words(site: Path) -> None:
    library(site / "pkg" / "_C.abi3.so", "int nobody_has(void); int use(void) { return nobody_has(); }")
    info = site / "pkg-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg\nVersion: 1.5\n")
    (info / "RECORD").write_text("pkg/_C.abi3.so,,\n")
    reason = wrong(site)["pkg/_C.abi3.so"]
    assert reason.startswith("pkg 1.5: pkg/_C.abi3.so: OSError: ")
    assert reason.endswith("undefined symbol: nobody_has")


@pytest.mark.parametrize("found", [True, False])
def test_what_programs_start_with_finds_its_libraries_by_itself(
    site: Path, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    """SGLang's scheduler has torch-memory-saver's file in LD_PRELOAD, which torch has not loaded libcudart for."""
    runtime = library(site / "nvidia" / "libcudart.so.99")
    library(site / "hook_mode_preload_cu99.abi3.so", NOTHING, runtime)
    library(site / "hook_mode_preload_cu98.abi3.so", NOTHING, "libcudart.so.98")
    if found:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(runtime.parent))
        check(site)
    else:
        assert set(wrong(site)) == {"hook_mode_preload_cu99.abi3.so"}


def test_what_programs_start_with_finds_a_driver_too(site: Path) -> None:
    """In a process of its own: the stand-in for the driver's library that one test loads answers in all later ones."""
    (site / "driver").mkdir()
    stub.write(site / "driver", ["cuMemMap"])
    runtime = library(site / "nvidia" / "libcudart.so.99")
    code = "int cuMemMap(void); int use(void) { return cuMemMap(); }"
    library(site / "hook_mode_preload_cu99.abi3.so", code, runtime, site / "driver" / stub.LIBRARY)
    shutil.rmtree(site / "driver")
    program = "import sys; from smoke.checks import loading; from smoke.program import Spec; "
    program += "loading.check(Spec('cpu', '', sys.argv[1], {}, {}, {}))"
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(imagegen.checks.__file__).parent),
        "LD_LIBRARY_PATH": str(runtime.parent),
    }
    done = subprocess.run(
        [sys.executable, "-c", program, str(site)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_death_while_loading_has_a_name_and_last_words_and_does_not_hide_the_rest(site: Path, golden: Golden) -> None:
    dies = "#include <stdio.h>\n#include <stdlib.h>\n__attribute__((constructor)) static void f(void) {"
    library(site / "abort.so", dies + 'fputs("what(): std::bad_alloc\\n", stderr); abort(); }')
    library(site / "fault.so", dies + "*(volatile int *)0 = 1; }")
    library(site / "leave.so", dies + "exit(3); }")
    library(site / "sound.so")
    found = wrong(site)
    golden.check(found["abort.so"], found["fault.so"], found["leave.so"])
    assert len(found) == 3


def test_what_never_finishes_loading_is_ended(site: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(loading, "PATIENCE", 1)
    library(site / "loop.so", "__attribute__((constructor)) static void f(void) { for (;;) ; }")
    start = time.monotonic()
    golden.check(wrong(site)["loop.so"])
    assert time.monotonic() - start < 15


def test_the_drivers_library_is_played_by_a_stand_in(site: Path, golden: Golden) -> None:
    folder = site / "driver"
    folder.mkdir()
    stub.write(folder, ["cuMemMap"])
    code = "int cuMemMap(void); int use(void) { return cuMemMap(); }"
    library(site / "kernels.so", code, folder / stub.LIBRARY)
    for path in folder.iterdir():
        path.unlink()
    details = check(site)
    assert details["loaded"] == 1
    assert "cuMemMap" in details["stub"]["functions"]
    golden.check(details["note"])


def test_a_plugin_of_what_no_image_has_is_reported_and_no_failure(site: Path) -> None:
    library(site / "net" / "transport.so", NOTHING, "libfabric.so.1")
    library(site / "net" / "above.so", NOTHING, site / "net" / "transport.so")
    assert check(site)["plugins"] == {"net/above.so": "libfabric.so.1", "net/transport.so": "libfabric.so.1"}


@pytest.mark.parametrize("absent", ["libcudart.so.92", "libtorch_cuda.so"])
def test_of_cuda_and_torch_an_image_for_gpus_has_all(absent: str, site: Path) -> None:
    library(site / "pkg" / "_C.so", NOTHING, absent)
    assert check(site)["plugins"] == {"pkg/_C.so": absent}
    library(site / "nvidia" / "libcudart.so.91")
    assert absent in wrong(site)["pkg/_C.so"]


def test_what_the_image_has_in_another_release_is_a_failure(site: Path) -> None:
    library(site / "pkg" / "_C.so", NOTHING, "libbundled.so.2")
    library(site / "another" / "libbundled.so.1")
    assert check(site)["plugins"] == {"pkg/_C.so": "libbundled.so.2"}
    library(site / "pkg" / "libbundled.so.1")
    assert "libbundled.so.2" in wrong(site)["pkg/_C.so"]


def test_what_says_that_it_is_for_another_torch_is_not_for_this_image(site: Path) -> None:
    for release in ("24", "211"):
        library(site / f"libaddon_torch{release}-cuda.so", "int gone(void); int use(void) { return gone(); }")
    image = Spec("cpu", "", str(site), {}, {"torch": "2.13.0"}, {})
    assert len(loading.check(image)["variants"]) == 2
    with pytest.raises(Failed, match=r"torch211-cuda.so: undefined symbol: gone$"):
        loading.check(Spec("cpu", "", str(site), {}, {"torch": "2.11.0"}, {}))


def test_a_part_of_a_declared_component_is_no_plugin(site: Path) -> None:
    library(site / "vllm" / "_C.so", NOTHING, "libonlyhere.so.1")
    assert check(site)["plugins"] == {"vllm/_C.so": "libonlyhere.so.1"}
    assert "libonlyhere.so.1" in wrong(site, vllm=["vllm.engine"])["vllm/_C.so"]


def test_of_variants_one_has_to_load(site: Path) -> None:
    library(site / "libcudart.so.91")
    for name, release in (("hook_cu12", 92), ("hook_cu13", 93), ("hook", 92), ("lib_torch24-cpu", 92)):
        library(site / f"{name}.abi3.so", NOTHING, f"libcudart.so.{release}")
    assert set(wrong(site)) == {"hook_cu12.abi3.so", "hook_cu13.abi3.so", "hook.abi3.so", "lib_torch24-cpu.abi3.so"}
    library(site / "hook_cu13.abi3.so")
    library(site / "lib_torch211-cpu.abi3.so")
    details = check(site)
    assert sorted(details["variants"]) == ["hook.abi3.so", "hook_cu12.abi3.so", "lib_torch24-cpu.abi3.so"]


@settings(max_examples=20)
@given(st.from_regex(r"[d-s]{1,8}", fullmatch=True), st.integers(10, 999), st.integers(10, 999))
def test_variants_differ_in_a_release_and_in_nothing_else(stem: str, one: int, other: int) -> None:
    for form in ("{}_cu{}.so", "{}-cuda{}.so", "{}_torch{}-cpu.so", "{}_2_{}_0.cpython-311-x86_64-linux-gnu.so"):
        assert loading.unmarked("a/" + form.format(stem, one)) == loading.unmarked("a/" + form.format(stem, other))
    for form in ("a/{}{}_C.so", "a/sm{1}/{0}.so", "a/lib{}.so.{}"):
        alike = loading.unmarked(form.format(stem, one)) == loading.unmarked(form.format(stem, other))
        assert alike == (one == other)


def test_files_of_another_interpreter_or_machine_are_left_out(site: Path) -> None:
    broken = "int nobody_has(void); int use(void) { return nobody_has(); }"
    library(site / "a.cpython-399-x86_64-linux-gnu.so", broken)
    foreign = bytearray(library(site / "foreign.so", broken).read_bytes())
    foreign[18:20] = (243).to_bytes(2, "little")  # RISC-V
    (site / "foreign.so").write_bytes(foreign)
    library(site / "sound.so")
    assert (check(site)["loaded"], check(site)["others"]) == (1, 2)


def test_a_library_on_no_path_is_loaded_first_and_named(site: Path) -> None:
    hidden = library(site / "hidden" / "libhidden.so.1", "int hidden(void) { return 1; }")
    library(site / "pkg" / "_C.so", "int hidden(void); int use(void) { return hidden(); }", hidden)
    library(site / "pkg" / "underlinked.so", "int hidden(void); int use(void) { return hidden(); }")
    after = {name: ["hidden/libhidden.so.1"] for name in ("pkg/_C.so", "pkg/underlinked.so")}
    assert check(site)["after"] == after


def test_a_package_that_loads_its_libraries_itself_is_imported(site: Path) -> None:
    library(site / "byhand" / "libone.so.1", "int one(void) { return 1; }")
    library(site / "byhand" / "two.so", "int one(void); int use(void) { return one(); }")
    start = (
        "import ctypes, pathlib\nctypes.CDLL(str(pathlib.Path(__file__).parent / 'libone.so.1'), ctypes.RTLD_GLOBAL)"
    )
    (site / "byhand" / "__init__.py").write_text(start)
    assert check(site)["after"] == {"byhand/two.so": ["import byhand"]}
    assert "byhand" not in sys.modules


def test_libraries_that_want_each_other_end(site: Path) -> None:
    library(site / "one" / "liba.so.1")
    library(site / "two" / "libb.so.1", NOTHING, site / "one" / "liba.so.1")
    library(
        site / "one" / "liba.so.1", "int missing(void); int use(void) { return missing(); }", site / "two" / "libb.so.1"
    )
    assert set(wrong(site)) == {"one/liba.so.1", "two/libb.so.1"}


def test_libraries_that_need_torch_are_distinguished_at_any_depth(site: Path) -> None:
    torch = library(site / "python" / "torch" / "lib" / "libtorch.so")
    near = library(site / "pkg" / "libnear.so", NOTHING, torch)
    library(site / "pkg" / "far.so", NOTHING, near)
    library(site / "pkg" / "free.so")
    alone, linked = loading.Image(site, set()).split()
    assert alone == ["pkg/free.so"]
    assert linked == ["pkg/far.so", "pkg/libnear.so", "python/torch/lib/libtorch.so"]


def test_a_symbols_name_is_not_enough_to_have_it(tmp_path: Path) -> None:
    has = library(tmp_path / "has.so", "int wanted(void) { return 1; }")
    wants = library(tmp_path / "wants.so", "int wanted(void); int use(void) { return wanted(); }")
    assert [elf.defines(path, "wanted") for path in (has, wants)] == [True, False]
    assert not elf.defines(Path(__file__), "wanted")


# ---- processes


def test_every_deed_has_an_answer_and_the_parents_state(golden: Golden) -> None:
    state = {"n": 40}

    def deed(name: str) -> int:
        if name == "raises":
            raise ValueError("no luck")
        if name == "dies":
            os.kill(os.getpid(), signal.SIGBUS)
        if name == "real time":
            os.kill(os.getpid(), signal.SIGRTMIN + 3)
        state["n"] += 1
        return state["n"]

    names = ["raises", "dies", "real time", *map(str, range(9))]
    deeds = {deed.name: deed for deed in forks.each(names, deed, abreast=3, patience=20)}
    assert set(deeds) == set(names)
    golden.check(deeds["raises"].error)
    assert deeds["dies"].signal == "SIGBUS"
    assert deeds["real time"].signal == f"signal {signal.SIGRTMIN + 3}"
    assert {deeds[str(number)].answer for number in range(9)} == {41}
