"""Commands on an image with several environments: shipped cells, whose locks are taken as they are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import Mock

import pytest
from packaging.version import Version

from imagegen import mirror
from imagegen.app.lock_files import LockCheck
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.data import shipped
from imagegen.core.progress import Quiet
from imagegen.core.store.cache import Cache
from imagegen.image.layers import assembly as assembling
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.lock import dumps, read
from imagegen.lock.model import Lock, Record
from imagegen.mirror import listing as mirror_listing
from imagegen.run.doctor.host import facts_of
from imagegen.run.smoke.passed import SmokeRequirement, passed_report, programs_digest, save_passed_report
from imagegen.run.smoke.report import CheckResult, SmokeReport
from tests.support.project import Project
from tools.run_image.__main__ import command
from tools.run_image.export import described_environments

MATRIX = """\
images:
  engines:
    description: vLLM and SGLang side by side.
    purpose: Compare the two engines in one container.
    environments:
      vllm: {cell: hopper-vllm-cu130-py311, because: Rollouts with vLLM.}
      sglang: {cell: hopper-sglang-cu130-py311, because: Rollouts with SGLang.}
    default: vllm
  unlocked:
    description: The same.
    purpose: Tests.
    environments:
      one: {cell: hopper-vllm-cu130-py311, because: Tests.}
      two: {cell: hopper-sglang-cu130-py311, because: Tests.}
    default: two
"""
CELL = "engines-cu130-py311"
IMAGES = Cache("image", Record)  # built images that the store remembers
PARTS = ("hopper-vllm-cu130-py311", "hopper-sglang-cu130-py311")
Call = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    found = Project(tmp_path_factory.mktemp("environments") / "project")
    (found.root / "matrices/engines.yaml").write_text(MATRIX)
    assert found.call("lock", "engines").returncode == 0
    return found


def rows(project: Project, *words: str) -> list[dict[str, object]]:
    result: list[dict[str, object]] = json.loads(project.call(*words, "--json").stdout)
    return result


def test_the_lock_names_the_sound_locks_of_its_cells_and_is_made_once(project: Project) -> None:
    assert not [name for name in PARTS if (project.root / "locks" / f"{name}.toml").exists()]
    (again,) = rows(project, "lock", "engines")
    assert again["changed"] is False
    checked = project.call("lock", "engines", "--check")
    assert (checked.returncode, f"{CELL}: fresh" in checked.stderr) == (0, True)


def test_list_and_matrix_have_its_state(project: Project) -> None:
    (listed,) = rows(project, "list", "engines")
    assert (listed["cell"], listed["state"], listed["environments"]) == (CELL, "locked", ["vllm", "sglang"])
    (row,) = rows(project, "matrix", "engines")
    assert (row["rules"], row["lock"]) == ("compatible", "yes")


def session_of(project: Project) -> Session:
    return Session(ProjectContext(project.env, project.root, Quiet()))


def remember(session: Session, lock: Lock, image: str) -> None:
    """Let the store know the digest of the lock's image, as after a build."""
    IMAGES.put(session.project.store, assembling.image_key(lock), Record(LAYER_FORMAT, CODEC, image, ()))


def forget(session: Session, lock: Lock) -> None:
    IMAGES.forget(session.project.store, assembling.image_key(lock))


def test_a_smoke_report_of_its_image_makes_it_tested(project: Project) -> None:
    session = session_of(project)
    cell = session.matrix.select_one("engines")
    lock = session.lock_files.fresh(cell)
    image = "sha256:" + "1" * 64
    remember(session, lock, image)
    required = SmokeRequirement.of(image, lock, cell.declarations, require_gpu=False)
    report = SmokeReport(image, cell.id, (CheckResult("vllm: imports", "pass", 0.1),))
    save_passed_report(session.project.store, passed_report(report, required, lock))
    (listed,) = rows(project, "list", "engines")
    assert listed["state"] == "tested"
    forget(session, lock)
    (listed,) = rows(project, "list", "engines")
    assert listed["state"] == "locked"


def test_results_of_another_host_are_its_smoke_report(project: Project) -> None:
    session = session_of(project)
    cell = session.matrix.select_one("engines")
    lock = session.lock_files.fresh(cell)
    image = "sha256:" + "2" * 64
    remember(session, lock, image)
    try:
        passed = {"status": "pass", "seconds": 1.0, "reason": "", "details": {}}
        results = [
            {"check": f"{each['name']}: {check}", **passed}
            for each in described_environments(lock, cell.declarations)
            for check in each["checks"]
        ]
        suite = programs_digest(lock, cell.declarations)
        file = project.root / "results.json"
        file.write_text(json.dumps({"format": 1, "image": image, "suite": suite, "results": results}))
        read = project.call("results", "engines", str(file), "--require-gpu", "--json", command=command)
        report = json.loads(read.stdout)
        assert (read.returncode, report["passed"], report["image"]) == (0, True, image)
        names = [each["check"] for each in report["checks"]]
        assert {"vllm: rollout-vllm", "sglang: rollout-sglang", "vllm: cuda", "sglang: cuda"} <= set(names)
        assert {"vllm: rollout-sglang", "sglang: rollout-vllm"}.isdisjoint(names)
        (listed,) = rows(project, "list", "engines")
        assert listed["state"] == "tested"
    finally:
        forget(session, lock)


def test_the_check_of_its_lock_is_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked() -> LockCheck:
        session = session_of(project)
        cell = session.matrix.select_one("engines")
        return session.lock_files.check(session.lock_files.fresh(cell), cell)

    before = checked()
    monkeypatch.setattr(LockCheck, "__init__", Mock(side_effect=NotImplementedError))
    assert checked() == before


def test_the_locks_of_its_cells_decide_what_a_build_gives(project: Project) -> None:
    def inputs() -> str | None:
        session = session_of(project)
        cell = session.matrix.select_one("engines")
        return session.lock_files.digest_of_inputs(session.lock_files.fresh(cell), cell)

    before = inputs()
    assert before
    part = project.root / "locks" / f"{PARTS[1]}.toml"
    part.write_text((shipped("locks") / f"{PARTS[1]}.toml").read_text() + "# another file\n")
    try:
        assert inputs() not in (None, before)
    finally:
        part.unlink()
    assert inputs() == before


def test_a_dry_run_of_a_publish_has_its_tags_and_layers(project: Project) -> None:
    (planned,) = rows(project, "publish", "engines", "--to", "127.0.0.1:1/x", "--dry-run")
    assert planned["repository"] == "127.0.0.1:1/x/engines"
    tags = planned["tags"]
    assert isinstance(tags, dict)
    assert tags["moving"] == ["latest", "cu130", "cu130-py311"]
    assert "NVIDIA" in str(planned["steps"])


def test_diff_compares_the_default_environments_and_those_of_one_name(project: Project) -> None:
    found = difference(project, "hopper-vllm", "engines")
    assert (found["components"], found["packages"], found["same"]) == ([], [], False)
    assert [(each["name"], each["before"]) for each in found["environments"]] == [("sglang", None), ("vllm", None)]
    assert difference(project, "engines", "engines")["same"]
    assert difference(project, "unlocked", "engines", code=67) == {}


def test_diff_reads_the_lock_of_a_file_and_of_a_commit(project: Project) -> None:
    part, other = project.root / "locks" / f"{PARTS[1]}.toml", read(shipped("locks") / f"{PARTS[1]}.toml")
    part.write_text(dumps(replace(other, record=None)))
    file = project.root / "locks" / f"{CELL}.toml"
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "locks"], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=project.root, check=True)
    try:
        assert difference(project, f"HEAD:{CELL}", "engines")["same"]
        assert difference(project, str(file), "engines")["same"]
        part.write_text(dumps(replace(other, as_of="2026-11-25T11:11:11Z", record=None)))
        assert difference(project, f"HEAD:{CELL}", str(file), code=67) == {}
    finally:
        part.unlink()


def difference(project: Project, before: str, after: str, code: int = 0) -> dict[str, Any]:
    done = project.call("diff", before, after, "--json")
    assert done.returncode == code, done.stderr
    result: dict[str, Any] = json.loads(done.stdout or "{}")
    return result


def test_launch_names_the_image_and_what_all_environments_work_with(project: Project) -> None:
    session = session_of(project)
    cell = session.matrix.select_one("engines")
    lock = session.lock_files.fresh(cell)
    assert lock.gpu
    assert {gpu.capability for gpu in cell.gpus} == set(lock.gpu.capabilities)
    image = "sha256:" + "1" * 64
    remember(session, lock, image)
    done = project.call("launch", "engines", "--for", "docker", "-o", "launch.sh")
    forget(session, lock)
    assert done.returncode == 0, done.stderr
    assert f"imagegen/engines@{image}" in (project.root / "launch.sh").read_text()


def test_doctor_demands_a_driver_that_all_environments_work_with(project: Project) -> None:
    session = session_of(project)
    cell = session.matrix.select_one("engines")
    lock = session.lock_files.fresh(cell)
    required = [facts_of(part, each, session.matrix.rules).driver for part, each in lock.by_cell(cell)]
    for found in (
        facts_of(cell, lock, session.matrix.rules),
        facts_of(cell, None, session.matrix.rules),
    ):
        assert (found.cell, found.driver) == (CELL, max(filter(None, required), key=Version))
    (diagnosis,) = json.loads(project.call("doctor", "engines", "--json").stdout)
    assert diagnosis["cell"] == CELL


def test_the_report_has_a_page_of_it(project: Project) -> None:
    site = project.root / "site"
    several = "[ehu][non][gpl]*-cu130-py311"  # both images, and the cells of their environments
    done = project.call("report", several, "-o", str(site))
    assert done.returncode == 0, done.stderr
    page = (site / "cells" / f"{CELL}.html").read_text()
    locks = [read(shipped("locks") / f"{name}.toml") for name in PARTS]
    own, other = ({each.name: each.release for each in lock.packages} for lock in locks)
    changed = min(name for name in own.keys() & other.keys() if own[name] != other[name])
    for name, prefix in zip(PARTS, ("/opt/venv", "/opt/venvs/sglang"), strict=True):
        assert f'<td class="version">{prefix}</td><td class="why"><a href="{name}.html">{name}</a>: ' in page
    shown = {"torch": own["torch"], changed: own[changed], f"sglang: {changed}": other[changed]}
    for name, version in (shown | {"sglang: sglang": other["sglang"]}).items():
        assert f'<th scope="row">{name}</th><td class="version">{version}</td>' in page, name
    assert own["torch"] == other["torch"]
    assert "sglang: torch<" not in page
    assert "environment one: hopper-vllm-cu130-py311" in (site / "cells/unlocked-cu130-py311.html").read_text()


def test_show_has_the_environments_and_the_bytes_that_they_share(project: Project) -> None:
    (shown,) = rows(project, "show", "engines")
    environments = shown["environments"]
    assert isinstance(environments, list)
    assert [(each["name"], each["prefix"], each["lock"]["cell"]) for each in environments] == [
        ("vllm", "/opt/venv", PARTS[0]),
        ("sglang", "/opt/venvs/sglang", PARTS[1]),
    ]
    text = project.call("show", "engines").stdout
    assert "1.11 times" in text  # docs/adr/0010-several-environments.md
    (weight,) = rows(project, "show", "engines", "--size")
    layers = weight["layers"]
    assert isinstance(layers, list)
    names = [each["name"] for each in layers]
    assert {"torch", "vllm.vllm", "sglang-kernel.sglang", "group.sglang", "group.vllm"} <= set(names)
    assert len(names) < 127 - 20  # of an overlay mount, less what users add


def test_without_a_lock_its_cells_are_shown(project: Project) -> None:
    shown = project.call("show", "unlocked")
    assert (shown.returncode, [name in shown.stdout for name in PARTS]) == (67, [True, True])


def test_a_moved_lock_of_an_environment_makes_it_stale(project: Project) -> None:
    part = project.root / "locks" / f"{PARTS[1]}.toml"
    other = read(shipped("locks") / f"{PARTS[1]}.toml")
    moved = dumps(other).replace(f'as-of = "{other.as_of}"', 'as-of = "2026-11-25T11:11:11Z"')
    part.write_text(moved.partition("\n[record]")[0] + "\n")
    try:
        stale = project.call("lock", "engines", "--check")
        assert (stale.returncode, "environment sglang" in stale.stderr) == (67, True)
        (row,) = rows(project, "matrix", "engines")
        assert row["lock"] == "stale"
    finally:
        part.unlink()


@pytest.mark.parametrize(
    "change", [("with SGLang", "with SG"), ("default: vllm", "default: sglang"), ("      sglang:", "      other:")]
)
def test_a_changed_entry_makes_it_stale(change: tuple[str, str], project: Project) -> None:
    file = project.root / "matrices/engines.yaml"
    file.write_text(MATRIX.replace(*change))
    try:
        assert project.call("build", "engines").returncode == 67
    finally:
        file.write_text(MATRIX)


def test_locks_that_pin_other_debian_packages_are_refused(project: Project) -> None:
    part = project.root / "locks" / f"{PARTS[1]}.toml"
    other = read(shipped("locks") / f"{PARTS[1]}.toml")
    deb = other.base.debs[0]
    moved = dumps(other).partition("\n[record]")[0] + "\n"
    part.write_text(moved.replace(deb.sha256, "0" * 64))
    try:
        refused = project.call("lock", "engines")
        assert refused.returncode == 67
        assert "error[lock-environments-differ]: matrices/engines.yaml:7:" in refused.stderr.replace(
            f"{project.root}/", ""
        )
    finally:
        part.unlink()


def test_why_answers_for_each_environment(project: Project) -> None:
    done = project.call("why", "engines", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "compatible"
    assert [(each["name"], each["cell"], each["state"]["state"]) for each in found["environments"]] == [
        ("vllm", PARTS[0], "locked"),
        ("sglang", PARTS[1], "locked"),
    ]
    alone = json.loads(project.call("why", PARTS[1], "--json").stdout)
    assert found["environments"][1] == {"name": "sglang", "cell": PARTS[1], **alone}
    text = project.call("why", CELL).stdout
    for name, cell in zip(("vllm", "sglang"), PARTS, strict=True):
        assert f"{name}: {project.call('why', cell).stdout}" in f"{text}\n"


def test_why_takes_changes_of_each_environment_and_the_worst_answer_decides(project: Project) -> None:
    changed = ("--set", "vllm=0.11.0", "--json")
    done = project.call("why", "engines", *changed)
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (1, "incompatible")
    for each, cell in zip(found["environments"], PARTS, strict=True):
        assert each["conflicts"] == json.loads(project.call("why", cell, *changed).stdout)["conflicts"]
    assert project.call("why", "engines", "unlocked").returncode == 64


def test_a_mirror_lists_the_files_of_all_environments_each_once(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[str] = []
    filled: list[mirror_listing.MirrorArtifact] = []

    def fill(_: object, listings: list[mirror_listing.MirrorArtifact], __: object) -> mirror.MirrorResult:
        filled.extend(listings)
        return mirror.MirrorResult(0, 0, 0, tuple(each.name for each in listings))

    monkeypatch.setattr(mirror_listing, "collect", lambda locked, *_: collected.append(locked.cell))
    monkeypatch.setattr(mirror, "fill", fill)
    done = project.call("mirror", "engines", "--to", "./mirror")
    assert done.returncode == 0, done.stderr
    assert collected == [*PARTS]
    names = [each.name for each in filled]
    assert [name.rpartition("-")[0] for name in names if name.startswith("hopper-")] == [*PARTS]
    assert len(names) == len(set(names)) < 2 * len(PARTS), "both have one list of Debian packages"
    session = session_of(project)
    lock = session.lock_files.fresh(session.matrix.select_one("engines"))
    held = {blob.digest for each in filled for _, blob in each.files}
    fetched = {wheel.file.digest for wheel in lock.distinct_wheels if not wheel.sdist}
    assert fetched | {deb.digest for deb in lock.debs} <= held


@pytest.mark.parametrize(
    "words",
    [
        ("render", "engines", "-o", "out"),
        ("test", "engines", "--numerics"),
        ("wheels", "build", "--cell", "engines"),
        ("lock", "engines", "--name", "mine", "--add", "rich"),
    ],
    ids=lambda words: words[0],
)
def test_other_commands_refuse_it(words: tuple[str, ...], project: Project) -> None:
    refused = project.call(*words)
    assert refused.returncode == 64, refused.stderr
    assert "usage-several-environments" in refused.stderr
    assert not (project.root / "out").exists()
