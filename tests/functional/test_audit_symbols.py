"""Symbols that nothing defines, and those that only seem so."""

from __future__ import annotations

import pytest

from imagegen.audit.closure import Loader
from imagegen.audit.model import Elf, Finding, Severity
from imagegen.audit.symbols import check
from tests.support.audit_subjects import PYTHON, elf, module, package, subject, system
from tests.support.golden import Golden

GONE = "_ZN5arrow6schemaEv"


def findings(files: dict[str, Elf], *others: tuple[str, dict[str, Elf]], known: bool = True) -> list[Finding]:
    packages = [package(name, there) for name, there in (("pkg", files), *others)]
    return list(check(Loader(subject(*packages, known=known))))


def test_a_symbol_that_nothing_defines_is_an_error_with_the_files_that_ask_for_it(golden: Golden) -> None:
    files = {"pkg/a.so": module("libc.so.6", undefined=f"{GONE} gone_too malloc"), "pkg/b.so": module(undefined=GONE)}
    (one,) = findings(files)
    assert (one.severity, one.id, one.package, one.path) == (Severity.ERROR, "undefined-symbol", "pkg 1.0", "pkg/a.so")
    golden.check(one.evidence)
    assert [line.partition(":")[0] for line in one.details] == ["pkg/a.so", "pkg/b.so"]


@pytest.mark.parametrize(
    "files",
    [
        {"pkg/a.so": module("libfoo.so", undefined="foo", rpath="$ORIGIN"), "pkg/libfoo.so": elf(exported="foo")},
        {"pkg/a.so": module(undefined="pow malloc")},  # libm and libc belong to the interpreter's process
        {"pkg/a.so": module(undefined="PyLong_FromLong")},
        {"pkg/a.so": module("libcuda.so.1", undefined="cuInit nvmlInit_v2 cuvidCreateDecoder")},
        {"pkg/a.so": module("libcuda.so.1", undefined="cuInit"), "pkg/b.so": module(undefined="cuMemAlloc_v2")},
        {"pkg/a.so": module("libgone.so", undefined="gone")},  # the library is what is missing
        {"pkg/a.so": module("libb.so", rpath="$ORIGIN", undefined="gone"), "pkg/libb.so": elf("libgone.so")},
        {"pkg/a.cpython-312-x86_64-linux-gnu.so": module(undefined=f"{GONE} PyLong_FromInt32")},
        {"pkg/program": elf(undefined="main_of_mine", program=True)},
        {"pkg/object.o": elf()},
        {"pkg/a.so": module(undefined="_ZN2at6Tensor3addEv _ZN3c106SymInt6sym_neERKS0_ aoti_torch_empty")},
        {"pkg/a.so": module(undefined="_ZN2at6Tensor3addEv _Z4wrapN2at6TensorE")},
    ],
    ids=["linked", "libm", "python", "driver", "driver-loaded", "absent", "absent-below", "other-python", "program",
         "object", "torch", "torch-in-a-signature"],
)  # fmt: skip
def test_no_finding(files: dict[str, Elf]) -> None:
    assert findings(files) == []


def test_what_another_library_defines_is_only_underlinked(golden: Golden) -> None:
    (one,) = findings({"pkg/a.so": module(undefined="foo")}, ("other", {"other/libfoo.so": elf(exported="foo")}))
    assert (one.severity, one.id) == (Severity.INFO, "underlinked")
    golden.check(one.evidence)


def test_the_exporters_of_a_closure_are_seen_however_deep() -> None:
    files = {
        "pkg/a.so": module("libb.so", rpath="$ORIGIN", undefined="deep"),
        "pkg/libb.so": elf("libc.so", rpath="$ORIGIN"),
        "pkg/libc.so": elf(exported="deep"),
    }
    assert findings(files) == []


def test_a_library_that_names_an_interpreter_is_no_program() -> None:
    assert [one.id for one in findings({"pkg/_rust.abi3.so": module(undefined=GONE, program=True)})] == [
        "undefined-symbol"
    ]
    assert [one.id for one in findings({"pkg/lib": elf(undefined=GONE, program=True, soname="lib")})] == [
        "undefined-symbol"
    ]


def test_a_file_that_no_module_loads_is_a_warning_and_one_that_a_module_loads_an_error() -> None:
    plugin = {"pkg/plugin.so": elf(undefined="of_its_host")}
    assert [one.severity for one in findings(plugin)] == [Severity.WARNING]
    loaded = {"pkg/a.so": module("plugin.so", rpath="$ORIGIN"), **plugin}
    assert [one.severity for one in findings(loaded)] == [Severity.ERROR]


def test_a_function_of_another_python_is_reported_as_such(golden: Golden) -> None:
    (one,) = findings({"pkg/a.abi3.so": module(undefined="PyLong_FromInt32 PyLong_FromLong")})
    assert (one.severity, one.id) == (Severity.ERROR, "python-symbol")
    golden.check(one.evidence)


def test_pythons_functions_are_taken_from_libpython_and_not_judged_where_neither_is_known() -> None:
    wants = package("pkg", {"pkg/a.so": module(undefined="PyLong_FromInt32")})
    shared = elf("libpython3.11.so.1.0", program=True)
    linked = system({"libpython3.11.so.1.0": PYTHON}, interpreter=shared)
    assert [one.id for one in check(Loader(subject(wants, base=linked)))] == ["python-symbol"]
    assert list(check(Loader(subject(wants, base=system(interpreter=shared))))) == []
    assert list(check(Loader(subject(wants, base=system(interpreter=None))))) == []
    assert list(check(Loader(subject(wants, known=False)))) == []


def test_without_a_base_only_what_no_c_library_can_have_is_missing() -> None:
    wants = f"malloc _ZNSt6threadC1Ev _ZN9__gnu_cxx1xEv _ZNK10__cxxabiv11xEv {GONE}"
    (one,) = findings({"pkg/a.so": module("libc.so.6", "libstdc++.so.6", undefined=wants)}, known=False)
    assert (one.id, len(one.details)) == ("undefined-symbol", 1) and "schema" in one.evidence
    assert "symbols in" not in one.evidence
    assert findings({"pkg/a.so": module("libc.so.6", "libarrow.so", undefined=wants)}, known=False) == []


def test_many_files_and_symbols_make_one_short_finding(golden: Golden) -> None:
    wants = " ".join(f"gone{n}" for n in range(40))
    (one,) = findings({f"pkg/{n:02}.so": module(undefined=wants) for n in range(30)})
    golden.check(one.evidence, one.details[-1])
    assert len(one.details) == 21
    assert one.details[0] == "pkg/00.so: gone0; gone1; gone10; 37 more"


def test_a_torch_whose_parts_are_of_two_releases_is_an_error() -> None:
    """The rule for torch judges the packages beside it, and not torch itself."""
    parts = {
        "torch/_C.so": module("libtorch_python.so", rpath="$ORIGIN/lib"),
        "torch/lib/libtorch_python.so": elf(undefined="_ZN3c106SymInt6sym_neERKS0_"),
    }
    (found,) = check(Loader(subject(package("torch", parts))))
    assert (found.severity, found.id, found.path) == (
        Severity.ERROR,
        "undefined-symbol",
        "torch/lib/libtorch_python.so",
    )
    assert findings({"pkg/it.so": module(undefined="_ZN3c106SymInt6sym_neERKS0_")}) == []
