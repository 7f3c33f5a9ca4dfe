"""Libraries that are missing, too old, there twice, or in the driver's place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.audit import symbols
from imagegen.audit.closure import Loader
from imagegen.audit.libraries import AARCH64, check
from imagegen.audit.model import Elf, File, Finding, Package, Severity, SystemLibraries
from tests.support.audit_subjects import elf, module, package, subject, system
from tests.support.golden import Golden

CUDART12, CUDART13 = (elf(soname=f"libcudart.so.{major}") for major in (12, 13))


def findings(*packages: Package, base: SystemLibraries | None = None, known: bool = True) -> list[Finding]:
    return list(check(Loader(subject(*packages, base=base, known=known))))


def reported(*packages: Package, base: SystemLibraries | None = None) -> list[tuple[Severity, str]]:
    return [(one.severity, one.id) for one in findings(*packages, base=base)]


ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
SOUND = {"pkg/sound.so": module("libc.so.6")}


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        ({"pkg/it.so": module("libGL.so.1")}, ERROR),  # nothing of the package can be imported
        ({"pkg/it.so": module("libGL.so.1"), **SOUND}, WARNING),
        ({"pkg/it.so": module("liba.so", rpath="$ORIGIN"), "pkg/liba.so": elf("libGL.so.1")}, ERROR),
        ({"pkg/it.so": module("liba.so", rpath="$ORIGIN"), "pkg/liba.so": elf("libGL.so.1"), **SOUND}, WARNING),
        ({"pkg/plugin.so": elf("libucp.so.0"), **SOUND}, INFO),
        ({"pkg/ops.so": elf("libcudart.so.13"), **SOUND}, ERROR),  # torch.ops loads it, whatever it exports
        ({"pkg/it.so": module("libnvrtc.so.13"), **SOUND}, ERROR),
        ({"pkg/it.so": module("libtorch_cuda.so"), **SOUND}, ERROR),
        ({"pkg/start": elf("libGL.so.1", program=True), **SOUND}, WARNING),
        ({"pkg/start": elf("libown.so", program=True), "pkg/lib/libown.so": elf(), **SOUND}, INFO),
    ],
    ids=[
        "only",
        "one-of-two",
        "below",
        "below-one-of-two",
        "plugin",
        "cuda",
        "nvrtc",
        "torch",
        "program",
        "program-own",
    ],
)
def test_how_bad_a_missing_library_is(files: dict[str, Elf], severity: Severity) -> None:
    assert reported(package("pkg", files)) == [(severity, "missing-library")]


def test_a_library_of_torch_lies_in_no_system_that_is_not_known(golden: Golden) -> None:
    torch = package("torch", {"torch/lib/libc10.so": elf(), "torch/lib/libtorch.so": elf("libc10.so")}, "2.13.0+cpu")
    audio = package("audio", {"audio/_C.so": module("libc10.so", "libtorch_cuda.so", "libcudart.so.12")})
    (found,) = findings(torch, audio, known=False)
    golden.check(found.evidence)
    assert (found.severity, found.id) == (ERROR, "missing-library")
    assert not findings(audio, known=False)  # torch is not among what is audited


def test_a_missing_library_is_reported_with_its_user_and_where_it_was_searched(golden: Golden) -> None:
    wants = module("libGL.so.1", "libEGL.so.1", runpath="$ORIGIN/../pkg.libs")
    (one,) = findings(package("opencv-python", {"cv2/cv2.abi3.so": wants}, "4.13"))
    assert (one.package, one.path) == ("opencv-python 4.13", "cv2/cv2.abi3.so")
    golden.check(one.evidence, one.details)


def test_a_base_that_is_not_known_and_the_hosts_driver_are_not_missed() -> None:
    assert findings(package("pkg", {"pkg/it.so": module("libGL.so.1", "libcudart.so.13")}), known=False) == []
    assert findings(package("pkg", {"pkg/it.so": module("libcuda.so.1", "libnvidia-ml.so.1")})) == []


def test_a_cuda_of_another_major_is_reported_as_such(golden: Golden) -> None:
    made = [
        package("pkg", {"pkg/it.so": module("libcudart.so.12")}),
        package("nvidia", {"nvidia/libcudart.so.13": CUDART13}),
    ]
    (one,) = findings(*made)
    assert (one.severity, one.id) == (ERROR, "cuda-major")
    golden.check(one.evidence)


def test_a_variant_for_what_is_there_makes_the_others_harmless() -> None:
    nvidia = package("nvidia", {"lib/libcudart.so.13": CUDART13})
    both = {"hook_cu12.abi3.so": elf("libcudart.so.12"), "hook_cu13.abi3.so": elf("libcudart.so.13")}
    assert reported(package("saver", both), nvidia)[0] == (INFO, "cuda-major")
    plain = {"hook.abi3.so": elf("libcudart.so.12"), "hook_cu13.abi3.so": elf("libcudart.so.13")}
    assert reported(package("saver", plain), nvidia)[0] == (INFO, "cuda-major")
    torch = package("torch", {"torch/lib/libtorch.so": elf()})
    for_cpu = {"addon_torch28-cpu.so": elf("libtorch.so"), "addon_torch28-cuda.so": elf("libtorch_cuda.so")}
    assert reported(package("addon", for_cpu), torch) == [(INFO, "missing-library")]
    # Two files with numbers in their names, and no variants: both are for one CUDA.
    others = {"fa2.so": module("libcudart.so.12"), "fa3.so": module("libc.so.6")}
    assert reported(package("flash", others), nvidia) == [(ERROR, "cuda-major")]


def test_a_file_is_no_variant_of_itself() -> None:
    """libtorch_cpu.so, which it finds, is as like libtorch_cuda.so as two builds of one library are."""
    torch = package("torch", {"torch/lib/libtorch_cpu.so": elf()})
    operators = {"_C.so": elf("libtorch_cpu.so", "libtorch_cuda.so")}
    assert reported(package("operators", operators), torch) == [(ERROR, "missing-library")]


def test_variants_of_which_none_finds_its_library_are_a_warning() -> None:
    files = {f"torchcodec/core{n}.so": module(f"libavutil.so.{n + 52}") for n in (4, 5)}
    assert reported(package("torchcodec", {**files, **SOUND})) == [(WARNING, "missing-library")]
    assert reported(package("torchcodec", {**files, **SOUND}), base=system({"libavutil.so.57": elf()})) == [
        (INFO, "missing-library")
    ]


def test_code_for_cuda_that_nothing_imports_is_no_error_where_there_is_no_cuda() -> None:
    builds = {f"bitsandbytes/libbitsandbytes_cuda{n}.so": elf(f"libcudart.so.{n // 10}") for n in (118, 129, 130)}
    assert reported(package("bitsandbytes", builds)) == [(WARNING, "missing-library")]
    ops = package("pkg", {"pkg/ops.so": elf("libcudart.so.13"), **SOUND})
    assert [one.severity for one in check(Loader(replace(subject(ops), cuda=False)))] == [INFO]
    wants = package("pkg", {"pkg/_C.so": module("libcudart.so.13"), **SOUND})
    assert [one.severity for one in check(Loader(replace(subject(wants), cuda=False)))] == [ERROR]


def test_an_optional_module_is_excused_by_its_rule_with_the_reason() -> None:
    pool = {"numba/np/ufunc/tbbpool.cpython-311-x86_64-linux-gnu.so": module("libtbb.so.12"), **SOUND}
    (one,) = findings(package("numba", pool))
    assert one.severity is INFO and "workqueue" in one.evidence
    assert reported(package("other", pool)) == [(WARNING, "missing-library")]


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("libc.so.6: GLIBC_2.38 GLIBC_2.17", "up to GLIBC_2.36; Debian 13 or Ubuntu 24.04 would do"),
        ("libc.so.6: GLIBC_9.1", "up to GLIBC_2.36; no Debian or Ubuntu known here would do"),
        ("libc.so.6: GLIBC_PRIVATE2", "up to GLIBC_2.36"),
        ("libstdc++.so.6: GLIBCXX_3.4.32", "up to GLIBCXX_3.4.30; Debian 13 or Ubuntu 24.04 would do"),
        ("libstdc++.so.6: CXXABI_1.3.8", "none such; Debian 10 or Ubuntu 18.04 would do"),
    ],
    ids=["glibc", "none-is-new-enough", "private", "libstdc++", "family"],
)
def test_version_nodes_are_held_against_the_base(nodes: str, says: str) -> None:
    name, first, *others = nodes.replace(":", "").split()
    base = system({"libstdc++.so.6": elf(soname="libstdc++.so.6", provides="GLIBCXX_3.4 GLIBCXX_3.4.30")})
    wants = module(name, requires={name: frozenset({first, *others})})
    (one,) = findings(package("pkg", {"pkg/it.so": wants}), base=base)
    assert (one.severity, one.id, one.path) == (ERROR, "library-too-old", "pkg/it.so")
    assert one.evidence == f"needs {first} of {name}, which has {says}"


def test_the_highest_node_and_its_file_are_named_and_a_plugin_is_a_warning() -> None:
    asks = {f"pkg/{n}.so": elf("libc.so.6", requires={"libc.so.6": frozenset({f"GLIBC_2.{n}"})}) for n in (37, 41, 40)}
    (one,) = findings(package("pkg", asks))
    assert (one.severity, one.path) == (WARNING, "pkg/41.so") and "GLIBC_2.41" in one.evidence
    assert one.details[-1] == "the library: /lib/x86_64-linux-gnu/libc.so.6"


@pytest.mark.parametrize(
    ("torch", "runtime", "expected"),
    [
        ("2.7.1+cu126", "", [(ERROR, "bitsandbytes/libbitsandbytes_cuda126.so")]),
        ("2.7.1", "12.6.77", [(ERROR, "bitsandbytes/libbitsandbytes_cuda126.so")]),
        ("2.6.0", "12.4.127", []),
        ("2.6.0", "", [(WARNING, "bitsandbytes/libbitsandbytes_cuda126.so")]),
    ],
    ids=["label", "runtime", "another-cuda", "not-known"],
)
def test_of_builds_for_each_cuda_the_build_for_torch_is_judged(
    torch: str, runtime: str, expected: list[tuple[Severity, str]]
) -> None:
    old, new = ({"libc.so.6": frozenset({f"GLIBC_{version}"})} for version in ("2.17", "2.38"))
    files = {"bitsandbytes/libbitsandbytes_cuda124.so": old, "bitsandbytes/libbitsandbytes_cuda126.so": new}
    libraries = {path: elf("libc.so.6", requires=requires) for path, requires in files.items()}
    packages = [package("bitsandbytes", libraries, "0.45.5"), package("torch", {}, torch)]
    packages += [package("nvidia-cuda-runtime-cu12", {}, runtime)] if runtime else []
    assert [(one.severity, one.path) for one in findings(*packages) if one.id == "library-too-old"] == expected


def test_a_librarys_own_nodes_count_too_and_one_without_nodes_satisfies_all() -> None:
    asks = {"libnvJitLink.so.12": frozenset({"libnvJitLink.so.12_12.8"})}
    wants = package("pkg", {"pkg/it.so": module("libnvJitLink.so.12", requires=asks, rpath="$ORIGIN/../nvidia")})
    old = elf(soname="libnvJitLink.so.12", provides="libnvJitLink.so.12_12.1 libnvJitLink.so.12_12.4")
    (one,) = findings(wants, package("nvidia", {"nvidia/libnvJitLink.so.12": old}))
    assert one.id == "library-too-old" and "would do" not in one.evidence
    bare = package("nvidia", {"nvidia/libnvJitLink.so.12": replace(old, provides=frozenset())})
    assert findings(wants, bare) == []


def test_a_library_on_no_path_has_to_be_loaded_before(golden: Golden) -> None:
    ffi = package("c-ffi", {"ffi/libffi.so": elf()})
    pkg = package("pkg", {"pkg/it.so": module("libffi.so")})
    (one,) = findings(pkg, ffi)
    assert (one.severity, one.id, one.details) == (WARNING, "needs-preload", ("libffi.so: ffi/libffi.so of c-ffi 1.0",))
    golden.check(one.evidence)
    between = replace(package("between", {}), requires=('C_FFI>=1 ; extra == "all"',))
    assert reported(replace(pkg, requires=("between",)), between, ffi) == [(INFO, "needs-preload")]
    assert findings(package("pkg", {"pkg/it.so": module("libffi.so", rpath="$ORIGIN/../ffi")}), ffi) == []
    assert findings(package("pkg", {"pkg/it.so": module("libffi.so"), "pkg/lib/libffi.so": elf()})) == []
    assert findings(pkg, ffi, known=False) == []


CUDNN = elf(soname="libcudnn.so.9")


def test_two_cudnns_or_nccls_are_reported_with_their_paths_and_users(golden: Golden) -> None:
    wheel = package("nvidia-cudnn-cu13", {"nvidia/cudnn/lib/libcudnn.so.9": CUDNN}, "9.19")
    uses = package("pkg", {"pkg/it.so": module("libcudnn.so.9", runpath="$ORIGIN/../nvidia/cudnn/lib")})
    assert findings(wheel, uses) == []
    base = system({"libcudnn.so.9": CUDNN}, {"libcudnn.so.9": "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.10.2"})
    (one,) = findings(wheel, uses, base=base)
    assert (one.severity, one.id, one.package) == (WARNING, "several-libraries", "")
    golden.check(one.evidence, one.details)
    bundled = package("cupy", {"cupy.libs/libnccl-0a1b2c3d.so.2.16": elf(soname="libnccl-0a1b2c3d.so.2.16")})
    nccl = package("nvidia-nccl-cu13", {"nvidia/nccl/lib/libnccl.so.2": elf(soname="libnccl.so.2")})
    assert reported(bundled, nccl) == [(WARNING, "several-libraries")]


def test_two_cudas_in_one_process_are_a_warning_and_a_variant_that_nothing_imports_is_none(golden: Golden) -> None:
    nvidia = package("nvidia", {"nvidia/libcudart.so.12": CUDART12, "nvidia/libcudart.so.13": CUDART13})
    one_, other = (
        package(name, {f"{name}/it.so": module(f"libcudart.so.{major}", rpath="$ORIGIN/../nvidia")})
        for name, major in (("a", 12), ("b", 13))
    )
    (one,) = findings(nvidia, one_, other)
    assert (one.severity, one.id) == (WARNING, "cuda-majors-mixed")
    golden.check(one.evidence)
    assert one.details == ("libcudart.so.12: a 1.0: a/it.so", "libcudart.so.13: b 1.0: b/it.so")
    assert findings(nvidia, one_) == []
    variant = package("c", {"c/hook.so": elf("libcudart.so.13", rpath="$ORIGIN/../nvidia")})
    assert findings(nvidia, one_, variant) == []


DRIVER = elf(soname="libcuda.so.1")


@pytest.mark.parametrize(
    ("place", "preloaded", "expected"),
    [
        ("/usr/local/cuda/lib64/stubs", True, (ERROR, "driver-stub")),
        ("/usr/local/cuda/lib64/stubs", False, (WARNING, "driver-stub")),
        ("/usr/local/cuda-13.0/compat", True, (WARNING, "cuda-compat")),
        ("/usr/local/cuda-13.0/compat", False, (WARNING, "cuda-compat")),
        ("/usr/lib/x86_64-linux-gnu", False, (INFO, "driver-in-image")),
    ],
)
def test_what_stands_in_the_drivers_place(place: str, preloaded: bool, expected: tuple[Severity, str]) -> None:
    base = system(
        {"libcuda.so.1": DRIVER}, {"libcuda.so.1": f"{place}/libcuda.so.1"}, preloaded=(place,) if preloaded else ()
    )
    (one,) = findings(package("pkg", SOUND), base=base)
    assert (one.severity, one.id) == expected
    assert one.path == f"{place}/libcuda.so.1" and one.evidence.startswith("libcuda.so.1: ")
    assert ("LD_LIBRARY_PATH" in one.evidence) is preloaded


def test_a_hosts_driver_is_one_finding_however_many_libraries_it_has(golden: Golden) -> None:
    names = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4")
    (one,) = findings(package("pkg", SOUND), base=system({name: elf(soname=name) for name in names}))
    golden.check(one.evidence)
    assert len(one.details) == 3


def test_a_stub_in_a_wheel_counts_only_where_a_file_finds_it() -> None:
    stub = package("toolkit", {"nvidia/lib/stubs/libcuda.so.1": DRIVER})
    assert findings(stub, package("pkg", {"pkg/it.so": module("libcuda.so.1")})) == []
    led = package("pkg", {"pkg/it.so": module("libcuda.so.1", rpath="$ORIGIN/../nvidia/lib/stubs")})
    assert reported(stub, led) == [(ERROR, "driver-stub")]
    whole = package("driver", {"driver/libcuda.so.1": DRIVER})
    led = package("pkg", {"pkg/it.so": module("libcuda.so.1", rpath="$ORIGIN/../driver")})
    assert reported(whole, led) == [(ERROR, "driver-in-image")]


def test_a_library_that_cannot_be_read_is_there() -> None:
    """Its fault is reported once, and not again for each file that needs it."""
    unread = File(1, unreadable="it is cut off")
    files = package("pkg", {"pkg/it.so": module("libown.so", "libc.so.6", undefined="own_function", rpath="$ORIGIN")})
    made = replace(files, files={**files.files, "pkg/libown.so": unread})
    assert findings(made) == []
    base = system()
    base = replace(base, libraries={**base.libraries, "libGL.so.1": unread})
    assert findings(package("pkg", {"pkg/it.so": module("libGL.so.1")}), base=base) == []
    assert list(symbols.check(Loader(subject(made)))) == []


@pytest.mark.timeout(20)
def test_thousands_of_files_that_lack_a_library_are_judged_in_no_time() -> None:
    """Each was held against each other one, and against all that is there: minutes."""
    files = {f"p/m{n}.so": module(f"libcudart.so.{n}") for n in range(4000)}
    (one,) = findings(package("p", files))
    assert (one.severity, one.id) == (ERROR, "missing-library")


def test_files_for_smaller_pages_than_64_kib_are_named_on_arm64_alone() -> None:
    def packaged(machine: int, *alignments: int) -> Package:
        files = {f"pkg/{n}.so": module(machine=machine, alignment=each) for n, each in enumerate(alignments)}
        return package("pkg", files)

    (found,) = findings(packaged(AARCH64, 1 << 16, 1 << 12, 1 << 21, 1 << 14), known=False)
    assert (found.severity, found.id, found.path) == (WARNING, "page-size", "pkg/1.so")
    assert found.details == ("pkg/1.so: 4096 bytes", "pkg/3.so: 16384 bytes")
    assert not findings(packaged(AARCH64, 1 << 16, 0), known=False)
    assert not findings(packaged(62, 1 << 12), known=False)
