"""All checks over one subject, what cannot be read, and what each package runs with and on."""

from __future__ import annotations

from imagegen.audit.check import audit, unreadable
from imagegen.audit.model import CodeGroup, CodeTarget, Elf, File, Package, Severity, Subject, SystemLibraries
from tests.support.golden import Golden
from tests.support.matrix_samples import shipped_matrix

GPUS = shipped_matrix().gpus
BAD = File(size=100, unreadable="the section table lies outside of the file")


def code(*targets: CodeTarget) -> File:
    return File(size=1000, elf=Elf(machine=62), code=(CodeGroup(targets, 3, (300,) * len(targets)),))


def package(name: str, **files: File) -> Package:
    return Package(name, "1.0", {f"{name}/{file}.abi3.so": content for file, content in files.items()})


def test_files_that_cannot_be_read_are_one_finding_for_each_package(golden: Golden) -> None:
    many = Package("many", "1", {f"many/{n:03}.so": BAD for n in range(50)})
    system = SystemLibraries(
        {"libodd.so.1": BAD, "libodd.so": BAD}, {"libodd.so.1": "/lib/libodd.so.1", "libodd.so": "/lib/libodd.so.1"}
    )
    subject = Subject("s", (package("good", a=File(1)), package("one", b=BAD), many), system)
    one, fifty, base = unreadable(subject)
    assert (one.package, one.path, one.evidence, one.details) == ("one 1.0", "one/b.abi3.so", BAD.unreadable, ())
    golden.check(fifty.evidence)
    assert (len(fifty.details), fifty.details[0]) == (20, f"many/001.so: {BAD.unreadable}")
    assert fifty.details[-1] == "and 30 more"
    assert (base.package, base.path, base.details) == ("", "/lib/libodd.so.1", ())
    report = audit(subject)
    assert {one, fifty, base} <= set(report.findings)
    assert (report.passed, report.packages, report.elf_files) == (True, 3, 51)


def test_a_verdict_says_what_each_package_runs_on() -> None:
    fat = package("fat", a=code(CodeTarget("sass", 90), CodeTarget("sass", 120)))
    jit = package("jit", a=code(CodeTarget("ptx", 80, "", (8, 7))))
    late = package("late", a=code(CodeTarget("ptx", 80, "", (9, 2))))
    hopper = package("hopper", a=code(CodeTarget("sass", 90, "a")))
    cubins = Package(
        "cubins", "1.0", {"cubins/x.cubin": code(CodeTarget("sass", 100, "f"))._replace(elf=Elf(machine=190))}
    )
    plain = package("plain", a=File(1, elf=Elf(machine=62)))
    everything = (fat, jit, late, hopper, cubins, plain)
    known = [GPUS[name] for name in ("sm_121", "sm_120", "sm_90", "sm_100")]
    subject = Subject("s", everything, gpus=(GPUS["sm_90"],), driver="580.65.06")
    report = audit(subject, known)
    on = {verdict.package.removesuffix(" 1.0"): verdict.gpus for verdict in report.verdicts}
    assert on == {
        "fat": {"sm_90": "sass", "sm_100": "no", "sm_120": "sass", "sm_121": "sass"},
        "jit": dict.fromkeys(("sm_90", "sm_100", "sm_120", "sm_121"), "ptx"),
        "late": dict.fromkeys(("sm_90", "sm_100", "sm_120", "sm_121"), "no"),
        "hopper": {"sm_90": "sass", "sm_100": "no", "sm_120": "no", "sm_121": "no"},
        "cubins": {"sm_90": "no", "sm_100": "sass", "sm_120": "no", "sm_121": "no"},
    }
    assert list(report.gpus) == ["sm_90", "sm_100", "sm_120", "sm_121"]
    assert not any(report.gpus.values())
    assert not report.passed


def test_a_gpu_is_one_that_the_whole_runs_on_where_nothing_is_an_error() -> None:
    fat = package("fat", a=code(CodeTarget("sass", 80), CodeTarget("sass", 120)))
    cubins = Package(
        "cubins", "1.0", {"cubins/x.cubin": code(CodeTarget("sass", 100, "f"))._replace(elf=Elf(machine=190))}
    )
    report = audit(Subject("s", (fat, cubins)), list(GPUS.values()))
    assert report.passed
    runs = dict.fromkeys(("sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_120", "sm_121"), True)
    assert report.gpus == dict.fromkeys(GPUS, False) | runs
    requested = audit(Subject("s", (fat,), gpus=(GPUS["sm_90"],)))
    assert requested.gpus == {"sm_90": False}
    assert next(finding.severity for finding in requested.findings) is Severity.ERROR
    assert audit(Subject("s", (package("plain", a=File(1)),)), list(GPUS.values())).gpus == {}


def test_a_library_counts_for_the_packages_that_link_to_it() -> None:
    shared = Package("shared", "1.0", {"shared/libfoo.so": code(CodeTarget("sass", 80))})
    user = package("user", a=File(1, elf=Elf(machine=62, needed=("libfoo.so",))))
    report = audit(Subject("s", (shared, user), gpus=(GPUS["sm_90"],)))
    assert not report.passed
    assert report.gpus == {"sm_90": False}
