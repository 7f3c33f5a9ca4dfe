"""Imports alone and in company: deaths have names, and where there is no driver a stand-in is said to be one."""

from __future__ import annotations

import ctypes
import importlib.machinery
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import imagegen.checks

HOME = Path(imagegen.checks.__file__).parent
sys.path.insert(0, str(HOME))  # as in a container, where the folder `suite` is copied to

from smoke import elf, stub  # noqa: E402
from smoke.checks import imports  # noqa: E402
from smoke.program import Failed, Spec  # noqa: E402

FUNCTIONS = ["cuMemMap", "cuTensorMapEncodeTiled"]
ONLY_ONCE = """
void abort(void); char *getenv(const char *); int setenv(const char *, const char *, int);
__attribute__((constructor)) static void once(void) { if (getenv("TAKEN")) abort(); setenv("TAKEN", "", 1); }
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, which is the image's prefix."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(stub, "driver_here", lambda: False)
    yield tmp_path
    importlib.invalidate_caches()


def package(site: Path, name: str, code: str) -> None:
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(code)


def extension(folder: Path, name: str, *, calls: str = "cuMemMap", aborts_twice: bool = False) -> Path:
    """A real extension module that is linked with the driver's library, which the machine need not have."""
    stub.write(folder, FUNCTIONS)
    source = folder / f"{name}.c"
    source.write_text(
        f"int {calls}(void); void *PyModule_Create2(void *, int);"
        "static struct { long a[2]; void *b[2]; long c; const char *name; const char *doc; long d; void *e[5]; } m ="
        f' {{ .a = {{1}}, .name = "{name}", .d = -1 }};'
        f"void *PyInit_{name}(void) {{ return {calls}() == 100 ? PyModule_Create2(&m, 1013) : 0; }}"
        + (ONLY_ONCE if aborts_twice else "")
    )
    target = folder / f"{name}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    argv = ["cc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", str(target), str(source), f"-L{folder}", "-lcuda"]
    subprocess.run(argv, check=True)
    for path in (folder / stub.LIBRARY, folder / "libcuda.so"):
        path.unlink()
    return target


def check(site: Path, **components: list[str]) -> dict[str, Any]:
    return imports.check(Spec("cpu", "", str(site), {}, {}, components))


def wrong(site: Path, **components: list[str]) -> dict[str, str]:
    with pytest.raises(Failed) as failed:
        check(site, **components)
    return failed.value.details["wrong"]


def test_what_imports_needs_no_stand_in(site: Path) -> None:
    package(site, "good", "x = 1")
    package(site, "better", "import good")
    details = check(site, one=["good"], two=["better", "good"])
    assert details == {"modules": ["good", "better", "good"], "compiled": []}


def test_a_death_at_import_has_a_name_and_a_place(site: Path) -> None:
    package(site, "good", "x = 1")
    package(site, "deadly", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    found = wrong(site, one=["good"], two=["good", "deadly"])
    assert set(found) == {"two", "together"}
    assert found["two"].startswith("two: killed by SIGSEGV at: import deadly")


def test_a_death_after_the_import_counts_too(site: Path) -> None:
    package(site, "deadly", "import atexit, os; atexit.register(os.abort)")
    assert wrong(site, one=["deadly"])["one"].startswith("one: killed by SIGABRT")


def test_an_error_at_import_does_not_hide_the_next(site: Path) -> None:
    package(site, "bad", "raise RuntimeError('no luck')")
    found = wrong(site, one=["bad", "missing"])
    assert "RuntimeError: no luck" in found["one"]
    assert "ModuleNotFoundError: No module named 'missing'" in found["one"]


def test_modules_that_die_only_in_company_are_found(site: Path) -> None:
    package(site, "left", "import sys; assert 'right' not in sys.modules")
    package(site, "right", "import sys; assert 'left' not in sys.modules")
    assert list(wrong(site, one=["left"], two=["right"])) == ["together"]


def test_what_comes_from_elsewhere_is_not_the_images(site: Path) -> None:
    assert f"outside {site}" in wrong(site, one=["json"])["one"]


def test_no_declared_modules_prove_nothing(site: Path) -> None:
    assert "nothing was proven" in wrong(site)["any"]


def test_an_extension_that_its_package_does_not_miss_is_loaded_all_the_same(site: Path) -> None:
    package(site, "engine", "try:\n    from engine import kernels\nexcept ImportError:\n    kernels = None\n")
    built = extension(site / "engine", "kernels")
    details = check(site, vllm=["engine"])
    assert details["compiled"] == details["stub"]["for"] == [f"engine/{built.name}"]
    assert {"cuMemMap", "cuInit"} <= set(details["stub"]["functions"])
    count = len(details["stub"]["functions"])
    assert details["note"] == f"against a stub libcuda.so.1 of {count} functions (cuInit ...): 1 compiled modules"


def test_a_module_that_does_not_import_without_the_driver_gets_the_stand_in(site: Path) -> None:
    package(site, "engine", "from engine import kernels")
    built = extension(site / "engine", "kernels")
    details = check(site, vllm=["engine"])
    assert details["stub"]["for"] == ["vllm", f"engine/{built.name}"]
    assert details["note"].endswith(": vllm, 1 compiled modules")


def test_extensions_that_abort_in_company_are_loaded_alone(site: Path) -> None:
    package(site, "engine", "")
    (site / "engine" / "sm90").mkdir()
    (site / "engine" / "sm100").mkdir()
    for folder in ("sm90", "sm100"):
        extension(site / "engine" / folder, "operators", aborts_twice=True)
    assert len(check(site, vllm=["engine"])["compiled"]) == 2


def test_an_extension_that_does_not_load_even_so_is_a_failure(site: Path) -> None:
    package(site, "engine", "")
    built = extension(site / "engine", "kernels", calls="notOfTheDriver")
    found = wrong(site, vllm=["engine"])
    assert "undefined symbol: notOfTheDriver" in found[f"engine/{built.name}"]


def test_with_a_driver_there_is_no_stand_in(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub, "driver_here", lambda: True)
    package(site, "engine", "")
    built = extension(site / "engine", "kernels")
    assert "libcuda.so.1: cannot open shared" in wrong(site, vllm=["engine"])[f"engine/{built.name}"]


def test_extensions_of_other_interpreters_are_left_alone(site: Path) -> None:
    package(site, "engine", "")
    built = extension(site / "engine", "kernels")
    built.rename(built.with_name("kernels.cpython-27-x86_64-linux-gnu.so"))
    assert list(imports.linked_with_driver("engine", str(site))) == []


# ---- the stand-in itself


def test_every_function_of_the_stand_in_answers_that_there_is_no_device(tmp_path: Path) -> None:
    names = stub.write(tmp_path, FUNCTIONS)
    assert names == sorted({*FUNCTIONS, *stub.ALWAYS})
    code = "import ctypes, json, sys; lib = ctypes.CDLL('libcuda.so.1');"
    code += f"print(json.dumps([getattr(lib, name)() for name in {names}] + [hasattr(lib, 'cuOther')]))"
    env = {"LD_LIBRARY_PATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout
    assert json.loads(said) == [stub.NO_DEVICE] * len(names) + [False]


@pytest.mark.parametrize("machine", sorted(stub.MACHINES))
@given(names=st.sets(st.from_regex(r"cu[A-Z]\w{0,20}", fullmatch=True), max_size=200))
def test_the_stand_in_is_the_same_each_time_and_reads_as_written(machine: str, names: set[str]) -> None:
    content = stub.library(sorted(names), machine)
    assert content == stub.library(sorted(names), machine)
    assert elf.machine(content) == (stub.MACHINES[machine][0], 0)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(stub.library(FUNCTIONS, platform.machine()))
    assert elf.dynamic(path) == elf.Dynamic(frozenset(), frozenset(), frozenset(FUNCTIONS))
    assert ctypes.CDLL(str(path)).cuMemMap() == stub.NO_DEVICE


def test_a_real_extension_is_read(tmp_path: Path) -> None:
    read = elf.dynamic(extension(tmp_path, "kernels"))
    assert stub.LIBRARY in read.needed
    assert {"cuMemMap", "PyModule_Create2"} <= read.undefined
    assert "PyInit_kernels" in read.defined


@given(st.binary() | st.binary().map(lambda tail: elf.MAGIC + tail))
def test_no_file_is_too_broken_to_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("elf") / "x.so"
    path.write_bytes(content)
    assert elf.dynamic(path) == elf.NOTHING


@example(44, b"\0\0\0\x80")  # sections at an offset of 64 bits
@given(st.integers(0, 5000), st.binary(min_size=1, max_size=8))
def test_a_damaged_file_is_read_or_is_nothing(
    tmp_path_factory: pytest.TempPathFactory, where: int, damage: bytes
) -> None:
    content = bytearray(stub.library(FUNCTIONS, platform.machine()))
    at = where % len(content)
    content[at : at + len(damage)] = damage
    path = tmp_path_factory.mktemp("elf") / "x.so"
    path.write_bytes(content)
    assert isinstance(elf.dynamic(path), elf.Dynamic)


def test_modules_of_an_undeclared_distribution_are_read_off_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        "pkg/__init__.py",
        "pkg/sub/__init__.py",
        "ns/part/__init__.py",
        "single.py",
        "_private.py",
        "tests/__init__.py",
    ]
    info = tmp_path / "odd_name-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-name\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*files, "odd_name-1.0.dist-info/RECORD"]))
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert imports.modules_of("odd-name") == ["ns.part", "pkg", "single"]


def test_the_distributions_that_no_other_one_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requires = {
        "app-x": ["Lib_Y>=1; python_version>'3'"],
        "lib-y": ["app-z ; extra == 'more'", "lib-q"],
        "app-z": [],
        "lib-q": [],
    }
    for name, lines in requires.items():
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        more = "".join(f"Requires-Dist: {line}\n" for line in lines)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{more}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert imports.unrequired(list(requires)) == ["app-x", "app-z"]
    assert imports.unrequired(["lib-q"]) == ["lib-q"]
