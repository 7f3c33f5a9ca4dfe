"""Rules that follow from wheel scans: what they reject, what they leave alone, and what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.compat import Fact, Facts, MetadataCache, Question, ScanCache, demands_of, explain, table_of
from imagegen.compat.evaluate import evaluate
from imagegen.compat.knowledge import Knowledge, RuleSubject
from imagegen.compat.rule import Rule
from imagegen.compat.scans import locked_rules
from imagegen.compat.wheel_scans import PackageScans, ScannedLibrary, WheelVerdict
from tests.support.package_metadata import package, question
from tests.support.wheel_scans import scan, scans

NAMES = {"platform": "linux/amd64"}
CODE = ScannedLibrary("pack/_C.so", code=((("compute_80@8.7", "sm_80"), 2), (("sm_90a",), 1)))
CUDART = ScannedLibrary("pack/_C.so", loaded=True, needed=("libcudart.so.12",))


def cache(*found: PackageScans) -> ScanCache:
    return ScanCache({each.name: demands_of(each) for each in found}.get)


def rules(verdict: WheelVerdict, *libraries: ScannedLibrary) -> tuple[Rule, ...]:
    return cache(scans(scan("1.0", verdict, *libraries))).rules("pack")


def facts(version: str = "1.0", **surroundings: str) -> Facts:
    """Facts about pack, torch, and surroundings."""
    packages = {"pack": Fact.exactly(version)}
    if torch := surroundings.pop("torch", None):
        packages["torch"] = Fact.exactly(torch)
    names = NAMES | ({"cuda": "cpu"} if surroundings.get("cuda") == "cpu" else {})
    versions = {name: Fact.exactly(text) for name, text in surroundings.items() if text != "cpu"}
    return Facts(packages, versions, names, closed=False, env={})


def answer(found: tuple[Rule, ...], about: Facts) -> str:
    return evaluate(found, about).answer


def test_a_wheel_for_cuda_12_does_not_run_with_cuda_13() -> None:
    found = rules(WheelVerdict(cuda=(12,)), CUDART)
    assert answer(found, facts(cuda="13.0")) == "incompatible"
    assert answer(found, facts(cuda="11.8")) == "incompatible"
    assert answer(found, facts(cuda="12.8")) == "compatible"
    assert answer(found, facts(cuda="cpu")) == "compatible"  # whether it needs them there, the wheel does not tell
    assert "libcudart.so.12" in found[0].because
    assert (found[0].kind, found[0].severity, found[0].evidence) == ("breaks", "error", "measured")


def test_builds_for_two_majors_run_with_both() -> None:
    found = rules(WheelVerdict(cuda=(12, 13)), CUDART)
    assert [answer(found, facts(cuda=each)) for each in ("11.8", "12.4", "13.2")] == [
        "incompatible",
        *["compatible"] * 2,
    ]


def test_a_glibc_older_than_the_wheel_needs_is_rejected() -> None:
    found = rules(WheelVerdict(glibc="2.34"))
    assert answer(found, facts(glibc="2.31")) == "incompatible"
    assert answer(found, facts(glibc="2.34")) == "compatible"


def test_a_libstdcxx_older_than_the_wheel_needs_is_rejected() -> None:
    found = rules(WheelVerdict(), ScannedLibrary("pack/_C.so", loaded=True, libstdcxx="3.4.29"))
    assert [rule.id for rule in found] == ["scan:pack-1.0:libstdcxx"]
    assert answer(found, facts(libstdcxx="3.4.28")) == "incompatible"
    assert answer(found, facts(libstdcxx="3.4.29")) == "compatible"
    assert rules(WheelVerdict(), ScannedLibrary("pack/_C.so", loaded=True, libstdcxx="3.4.19")) == ()  # all have it
    assert rules(WheelVerdict(), ScannedLibrary("pack/plugin.so", libstdcxx="3.4.29")) == ()  # not loaded


def test_of_builds_for_each_cuda_the_build_for_the_stacks_cuda_counts() -> None:
    libraries = [
        ScannedLibrary("bitsandbytes/libbitsandbytes_cuda124.so", glibc="2.4", libstdcxx="3.4.22"),
        ScannedLibrary("bitsandbytes/libbitsandbytes_cuda126.so", glibc="2.34", libstdcxx="3.4.30"),
    ]
    found = rules(WheelVerdict(glibc="2.4"), *libraries)
    old = {"glibc": "2.31", "libstdcxx": "3.4.28"}
    assert answer(found, facts(cuda="12.4", **old)) == "compatible"
    assert answer(found, facts(cuda="12.6", **old)) == "incompatible"
    assert answer(found, facts(cuda="12.6", glibc="2.35", libstdcxx="3.4.30")) == "compatible"


def test_only_minors_of_torch_with_all_symbols_fit() -> None:
    found = rules(WheelVerdict(torch=("2.8", "2.10")))
    answers = {torch: answer(found, facts(torch=torch)) for torch in ("2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0")}
    assert answers == {
        "2.7.1": "incompatible", "2.8.0": "compatible", "2.9.1": "incompatible", "2.10.0": "compatible",
        "2.11.0": "incompatible",
    }  # fmt: skip


def test_later_minors_fit_where_the_newest_known_one_does() -> None:
    found = rules(WheelVerdict(torch=("2.10", "2.11"), later=True))
    assert [answer(found, facts(torch=torch)) for torch in ("2.9.1", "2.12.0", "2.99.0")] == [
        "incompatible", "compatible", "compatible",
    ]  # fmt: skip


def test_a_torch_that_the_audit_does_not_know_gives_no_rule() -> None:
    assert rules(WheelVerdict(torch=())) == ()


def test_the_old_cpp_abi_does_not_go_with_torch_26_for_cuda_126() -> None:
    found = rules(WheelVerdict(torch=("2.6",), strings="old"))
    assert answer(found, facts(torch="2.6.0", cuda="12.6")) == "incompatible"
    assert answer(found, facts(torch="2.6.0", cuda="12.4")) == "compatible"
    assert answer(rules(WheelVerdict(torch=("2.6",), strings="new")), facts(torch="2.6.0", cuda="12.6")) == "compatible"


def test_gpus_without_code_are_rejected_in_runs() -> None:
    found = rules(WheelVerdict(lacks=dict.fromkeys(["7.0", "7.5", "12.0"], "pack/_C.so")), CODE)
    assert [rule.conflict["gpu"] for rule in found] == [">=7.0,<=7.5", "==12.0"]
    answers = {gpu: answer(found, facts(gpu=gpu)) for gpu in ("7.0", "7.5", "8.0", "10.3", "12.0", "12.1")}
    assert {gpu for gpu, said in answers.items() if said == "incompatible"} == {"7.0", "7.5", "12.0"}
    assert "sm_80, sm_90a, compute_80" in found[0].because


def test_ptx_needs_the_driver_of_its_cuda() -> None:
    found = rules(WheelVerdict(compiles={"10.0": "8.8", "10.3": "8.8"}), CODE)
    assert answer(found, facts(gpu="10.0", driver="570.26")) == "incompatible"
    assert answer(found, facts(gpu="10.0", driver="575.51.03")) == "compatible"
    assert answer(found, facts(gpu="9.0", driver="570.26")) == "compatible"
    assert rules(WheelVerdict(compiles={"10.0": "99.0"}), CODE) == ()  # of no release that is known


def test_another_build_of_the_release_is_another_file() -> None:
    found = rules(WheelVerdict(cuda=(12,)), CUDART)
    assert answer(found, facts("1.0+cu130", cuda="13.0")) == "compatible"
    unknown = Facts(
        {"pack": replace(Fact.exactly("1.0"), local=None)}, facts(cuda="13.0").versions, NAMES, closed=False
    )
    assert answer(found, unknown) == "unknown"


def test_releases_that_follow_each_other_and_say_the_same_share_a_rule() -> None:
    twelve, thirteen = WheelVerdict(cuda=(12,)), WheelVerdict(cuda=(13,))
    found = cache(
        scans(
            *(scan(f"1.{each}", twelve, CUDART) for each in range(3)),
            scan("1.3", thirteen),
            scan("1.4", twelve, CUDART),
        )
    )
    assert [rule.when["pack"] for rule in found.rules("pack")] == [">=1.0,<=1.2 +", "==1.3 +", "==1.4 +"]
    assert [rule.when["pack"] for rule in found.rules("pack", ["1.1"])] == ["==1.1 +"]
    assert [rule.when["pack"] for rule in found.rules("pack", ["1.0", "1.0.5", "1.1"])] == ["==1.0 +", "==1.1 +"]
    assert found.rules("other") == ()


def test_a_rule_names_the_wheel_its_hash_and_the_day() -> None:
    (rule,) = rules(WheelVerdict(glibc="2.34"))
    assert "pack-1.0-cp38-abi3-manylinux_2_28_x86_64.whl" in rule.source
    assert "ab" * 32 in rule.source
    assert (rule.id, rule.date) == ("scan:pack-1.0:glibc", "2026-11-24")


def test_a_package_that_goes_on_without_its_kernels_only_warns() -> None:
    found = cache(scans(scan("1.0", WheelVerdict(cuda=(12,)), CUDART, name="torchao"), name="torchao")).rules("torchao")
    assert {(rule.severity, rule.kind) for rule in found} == {("warning", "degrades")}


def test_a_package_that_few_load_only_warns_of_another_cuda() -> None:
    verdict = WheelVerdict(cuda=(12,), torch=("2.8",))
    found = cache(scans(scan("1.0", verdict, CUDART, name="torchcodec"), name="torchcodec")).rules("torchcodec")
    assert {rule.id.rpartition(":")[2]: rule.severity for rule in found} == {"cuda": "warning", "torch": "error"}


def test_modules_for_several_torches_bind_a_package_to_none() -> None:
    name = "mooncake-transfer-engine"
    verdict = WheelVerdict(cuda=(12,), torch=("2.8",), strings="new")
    found = cache(scans(scan("1.0", verdict, CUDART, name=name), name=name)).rules(name)
    assert [rule.id.rpartition(":")[2] for rule in found] == ["cuda"]


def bitsandbytes(version: str, *releases: str) -> tuple[Rule, ...]:
    """Rules about bitsandbytes with a library for each release of CUDA: "128" is 12.8."""
    libraries = [ScannedLibrary(f"bitsandbytes/libbitsandbytes_cuda{each}.so") for each in releases]
    found = scan(version, WheelVerdict(cuda=(12, 13)), *libraries, name="bitsandbytes")
    return cache(scans(found, name="bitsandbytes")).rules("bitsandbytes", [version])


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        ("12.5", "incompatible"), ("12.6", "compatible"), ("12.7", "incompatible"), ("12.8", "compatible"),
        ("12.9", "incompatible"), ("13.0", "compatible"), ("13.1", "incompatible"), ("cpu", "compatible"),
    ],
)  # fmt: skip
def test_a_library_for_each_release_of_cuda_serves_no_other(cuda: str, expected: str) -> None:
    about = facts(cuda=cuda)
    about = replace(about, packages={"bitsandbytes": Fact.exactly("0.46.0")})
    assert answer(bitsandbytes("0.46.0", "126", "128", "130"), about) == expected


def test_a_release_that_takes_the_nearest_library_is_bound_to_the_major_versions() -> None:
    (rule,) = bitsandbytes("0.50.0", "126", "128", "130")
    assert rule.then == {"cuda": ">=12,<14"}


def test_what_was_compiled_from_sources_is_not_the_wheel() -> None:
    found = cache(scans(scan("1.0", WheelVerdict(glibc="2.34"))))
    built = replace(Fact.exactly("1.0"), built=True)
    knowledge = Knowledge(metadata=MetadataCache(lambda _: None, found))

    def locked(about: Facts) -> list[Rule]:
        return list(locked_rules(RuleSubject("lock", about, knowledge)))

    assert len(locked(facts())) == 1
    assert not locked(replace(facts(), packages={"pack": built}))
    assert not locked(replace(facts(), packages={"pack": Fact.within(">=1")}))
    assert not locked(replace(facts(), names={"platform": "linux/arm64"}))


def test_a_library_that_no_dependency_brings_is_missing_unless_its_distribution_is_installed() -> None:
    npp = ScannedLibrary("pack/_C.so", loaded=True, needed=("libc.so.6", "libcudart.so.13", "libnppicc.so.13"))
    found = [each for each in rules(WheelVerdict(), npp) if each.id.endswith(":library")]
    assert [each.unless for each in found] == [{"nvidia-npp": ""}]
    about = facts(cuda="13.0")
    assert answer(tuple(found), about) == "incompatible"
    beside = replace(about, packages={**about.packages, "nvidia-npp": Fact.exactly("13.0.0")})
    assert answer(tuple(found), beside) == "compatible"
    assert answer(tuple(found), facts(cuda="cpu")) == "compatible"
    library = MetadataCache({"pack": table_of(PACK)}.get, cache(scans(scan("1.0", WheelVerdict(), npp))))
    assert (
        explain(released(pack="==1.0", cuda="==13.0"), Knowledge([], library)).answer == "incompatible"
    )  # nothing names it


def test_a_library_that_the_wheel_holds_or_that_is_not_loaded_is_not_missing() -> None:
    npp = ScannedLibrary("pack/_C.so", loaded=True, needed=("libnppicc.so.13",))
    held = ScannedLibrary("pack.libs/libnppicc.so.13")
    assert not [each for each in rules(WheelVerdict(), npp, held) if each.id.endswith(":library")]
    assert not [each for each in rules(WheelVerdict(), replace(npp, loaded=False)) if each.id.endswith(":library")]


# Questions.

KNOWN = scans(*(scan(each, WheelVerdict(cuda=(major,)), CUDART) for each, major in (("1.0", 12), ("2.0", 13))))
PACK = package("pack", {"1.0": [], "2.0": []})


def released(**requested: str) -> Question:
    """Return a question about packages from PyPI, whose builds have no label unless they say so."""
    found = question(**requested)
    packages = {name: replace(fact, local=fact.local or "") for name, fact in found.facts.packages.items()}
    return replace(found, facts=replace(found.facts, packages=packages))


def asked(about: Question) -> str:
    return explain(about, Knowledge([], MetadataCache({"pack": table_of(PACK)}.get, cache(KNOWN)))).answer


def test_a_question_is_answered_from_the_wheel() -> None:
    assert asked(released(pack="==1.0", cuda="==13.0")) == "incompatible"
    assert asked(released(pack="==2.0", cuda="==13.0")) == "compatible"
    assert asked(released(pack=">=1.0", cuda="==13.0")) == "compatible"  # 2.0 does


def test_other_machines_other_builds_and_commits_are_not_judged_by_it() -> None:
    about = released(pack="==1.0", cuda="==13.0")
    arm = replace(about, facts=replace(about.facts, names={"platform": "linux/arm64"}))
    assert asked(arm) == "compatible"
    built = {"pack": replace(about.facts.packages["pack"], built=True)}
    assert asked(replace(about, facts=replace(about.facts, packages=built))) == "compatible"
    assert asked(released(pack="==1.0+cu130", cuda="==13.0")) == "compatible"
    assert asked(question(pack="==1.0", cuda="==13.0")) == "compatible"  # of a label that is not known


def test_releases_without_metadata_are_judged_all_the_same() -> None:
    library = MetadataCache({}.get, cache(KNOWN))
    found = explain(released(pack="==1.0", cuda="==13.0"), Knowledge([], library))
    assert [[rule.id for rule in each.rules] for each in found.conflicts] == [["scan:pack-1.0:cuda"]]
