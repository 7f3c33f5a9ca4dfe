"""Findings about names that a package requires of another one, and the wheel scans that they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.app.audit import refused_keywords
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.audit import facts, imports
from imagegen.audit.check import CHECKS, audit
from imagegen.audit.imports import ApiScanner, RefusedKeyword, providers, starts
from imagegen.audit.model import Finding, Package, Severity, Subject
from imagegen.core.progress import Quiet
from tests.support.shipped_locks import NAMES as NAMES_OF_LOCKS
from tests.support.shipped_locks import shipped_lock

ENGINE = {
    "sglang/__init__.py": b"",
    "sglang/srt/__init__.py": b"",
    "sglang/srt/io_struct.py": b"class Release: pass",
    "sglang/kernel.abi3.so": b"",
}
ROLLOUT = "verl/workers/rollout/sglang_rollout/sglang_rollout.py"


def package(name: str, sources: dict[str, bytes]) -> Package:
    scanner = ApiScanner(name, list(sources))
    for path, source in sources.items():
        if scanner.reads(path):
            scanner.add(path, source)
    return Package(name, "1.0", {}, exports=scanner.exports(), required_names=scanner.required_names())


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


def test_keyword_arguments_that_an_installed_release_refuses_are_findings_of_their_files() -> None:
    subject = Subject("x", (Package("trl", "0.17.0", {}), Package("vllm", "0.7.2", {})))
    call = RefusedKeyword("trl", "vllm", "vllm.LLM", "worker_extension_cls", "trl/serve.py", 3, certain=True)
    again = replace(call, line=9)
    rare = replace(call, path=None, certain=False)
    findings = list(imports.keyword_findings(subject, [rare, again, call]))
    assert [(each.severity, each.id, each.package, each.path) for each in findings] == [
        (Severity.INFO, "api-keyword", "trl 0.17.0", None),
        (Severity.ERROR, "api-keyword", "trl 0.17.0", "trl/serve.py"),
    ]
    assert "vllm 0.7.2" in findings[1].evidence
    assert len(findings[1].details) == 1
    assert [each.id for each in audit(subject, refused=[call]).findings if each.id == "api-keyword"]


@pytest.mark.parametrize(
    ("trl", "vllm", "refused"),
    [
        ("0.17.0", "0.7.2", {"worker_extension_cls"}),  # https://github.com/huggingface/trl/issues/3304
        ("0.17.0", "0.7.2+cu121", {"worker_extension_cls"}),
        ("0.17.0", "0.8.5", set()),
        ("0.17.0", "0.7.2.dev5", set()),  # no wheel of it was read
        ("0.17.0", "nightly", set()),
    ],
)
def test_refused_keyword_arguments_are_those_of_releases_that_were_read(
    trl: str, vllm: str, refused: set[str], tmp_path: Path
) -> None:
    subject = Subject("x", (Package("trl", trl, {}), Package("vllm", vllm, {})))
    session = Session(ProjectContext({}, tmp_path, Quiet()))
    assert {each.keyword for each in refused_keywords(session.matrices, subject)} == refused


def test_no_committed_lock_has_a_refused_keyword_argument_in_normal_use(tmp_path: Path) -> None:
    session = Session(ProjectContext({}, tmp_path, Quiet()))
    read = set()
    for name in NAMES_OF_LOCKS:
        packages = tuple(Package(wheel.name, str(wheel.version), {}) for wheel in shipped_lock(name).wheels)
        read |= {each.name for each in packages}
        assert not [each for each in refused_keywords(session.matrices, Subject(name, packages)) if each.certain]
    assert {"trl", "verl", "vllm"} <= read


def test_the_check_is_one_of_the_audit() -> None:
    assert imports.check in CHECKS


def test_scans_of_other_distributions_hold_no_names() -> None:
    scanner = ApiScanner("numpy", ["numpy/core.so"])
    assert not scanner.reads("numpy/__init__.py")
    assert (scanner.exports(), scanner.required_names()) == ({}, ())


def test_the_starts_of_users_are_for_modules_of_providers() -> None:
    assert {top for name in ("verl", "trl", "openrlhf") for top in starts(name)} <= set(providers().values())


def test_names_come_back_from_a_stored_scan() -> None:
    for found in (package("sglang", ENGINE), package("verl", {ROLLOUT: b"from sglang import a"})):
        assert facts.package(facts.packed(found)) == found
