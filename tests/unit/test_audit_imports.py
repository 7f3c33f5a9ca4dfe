"""Findings about names that a package requires of another one, and the wheel scans that they come from."""

from __future__ import annotations

from imagegen.audit import facts, imports
from imagegen.audit.check import CHECKS
from imagegen.audit.imports import ApiScanner, providers, starts
from imagegen.audit.model import Finding, Package, Severity, Subject

ENGINE = {
    "sglang/__init__.py": b"",
    "sglang/srt/__init__.py": b"",
    "sglang/srt/io_struct.py": b"class Release: pass",
    "sglang/kernel.abi3.so": b"",
}
ROLLOUT = "verl/workers/rollout/sglang_rollout/sglang_rollout.py"


def package(name: str, sources: dict[str, bytes]) -> Package:
    scanner = ApiScanner(name)
    for path, source in sources.items():
        if scanner.reads(path):
            scanner.add(path, source)
    return Package(name, "1.0", {}, exports=scanner.exports(list(sources)), required_names=scanner.required_names())


def check(source: str) -> list[Finding]:
    packages = (package("sglang", ENGINE), package("verl", {ROLLOUT: source.encode()}))
    return list(imports.check(Subject("x", packages)))


def test_an_import_of_a_missing_name_at_module_level_is_an_error() -> None:
    (found,) = check("from sglang.srt.io_struct import Release, Continue\nfrom sglang.srt.other import X")
    assert (found.severity, found.id, found.package, found.path) == (
        Severity.ERROR,
        "api-missing",
        "verl 1.0",
        ROLLOUT,
    )
    assert "sglang.srt.io_struct.Continue" in found.evidence
    assert found.details == ("line 2 imports sglang.srt.other",)


def test_missing_names_in_functions_are_one_warning() -> None:
    (found,) = check("def f():\n    from sglang.srt.io_struct import A, B\ndef g():\n    from sglang.new import A")
    assert (found.severity, found.path) == (Severity.WARNING, None)
    assert len(found.details) == 3


def test_names_that_exist_or_may_exist_are_no_finding() -> None:
    assert check("from sglang.srt.io_struct import Release\nfrom sglang.kernel import anything") == []
    assert check("try:\n    from sglang.new import A\nexcept ImportError:\n    A = None") == []
    assert check("from vllm.new import A") == []  # not installed


def test_the_check_is_one_of_the_audit() -> None:
    assert imports.check in CHECKS


def test_scans_of_other_distributions_hold_no_names() -> None:
    scanner = ApiScanner("numpy")
    assert not scanner.reads("numpy/__init__.py")
    assert (scanner.exports(["numpy/core.so"]), scanner.required_names()) == ({}, ())


def test_the_starts_of_users_are_for_modules_of_providers() -> None:
    assert {top for name in ("verl", "trl", "openrlhf") for top in starts(name)} <= set(providers().values())


def test_names_come_back_from_a_stored_scan() -> None:
    for found in (package("sglang", ENGINE), package("verl", {ROLLOUT: b"from sglang import a"})):
        assert facts.package(facts.packed(found)) == found
