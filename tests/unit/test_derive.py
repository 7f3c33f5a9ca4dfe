"""`imagegen lock --name`: the entry of a changed image appears together with its lock, or not at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from imagegen.app import entries, make_locks
from imagegen.app.check_locks import LockedImage
from imagegen.app.entries import Changes, lock_changed
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.errors import ImagegenError, LockError, UsageError
from imagegen.core.progress import Quiet
from imagegen.lock.make.options import LockOptions
from imagegen.lock.make.previous import Previous
from imagegen.lock.make.stages import LockRequest
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

pytestmark = pytest.mark.usefixtures("shared_results")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which a lock is a file with the pins of its cell; one of `broken` fails."""

    def lock_image(session: Session, cell: Cell, _: LockOptions, *, record: bool) -> LockedImage:
        pins = [each.pep508 for each in cell.requirements]
        if "broken" in pins:
            raise LockError("it cannot be locked", code="lock-unresolvable")
        path = session.lock_files.path(cell)
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([*pins, *cell.packages]))
        return LockedImage(cell, path, cast("Any", None), changed=not record)

    monkeypatch.setattr(entries, "lock_image", lock_image)
    return tmp_path


def lock(project: Path, parent: str, name: str = "my-rl", **changes: tuple[str, ...]) -> LockedImage:
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(project / "cache")}, project, Quiet()))
    cell = session.matrix.select_one(parent)
    return lock_changed(session, cell, name, Changes(**changes), LockOptions(), record=False)


def files(project: Path) -> list[str]:
    return sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.suffix in {".yaml", ".toml"})


def test_the_entry_holds_the_changes_and_nothing_else(project: Path) -> None:
    locked = lock(
        project,
        "cpu-grpo",
        pins=("transformers==5.9.0",),
        additions=("Math_Verify", "ray[default]"),
        packages=("ffmpeg",),
        removals=("tensorboard",),
    )
    assert files(project) == ["locks/my-rl-cpu-py311.toml", "matrices/my-rl.yaml"]
    again = Session(
        ProjectContext({"XDG_CACHE_HOME": str(project / "cache")}, project, Quiet())
    ).matrices.matrix.select_one("my-rl")
    assert again.inputs == locked.cell.inputs
    required = {each.component.name: each.pep508 for each in again.requirements}
    assert {"transformers==5.9.0", "math-verify", "ray[default]"} <= set(required.values())
    assert "tensorboard" not in required
    assert (list(again.packages), again.extends) == (["ffmpeg"], "cpu-grpo")


def test_a_new_version_keeps_the_extras_and_a_cell_gives_its_axes(project: Path) -> None:
    cell = lock(project, "hopper-vllm-cu130-py312-no-megatron", pins=("verl==0.9.1",)).cell
    assert cell.id == "my-rl-cu130-py312-no-megatron"
    assert next(each.extras for each in cell.requirements if each.component.name == "verl")


def test_another_python_is_a_value_of_the_axis(project: Path) -> None:
    cell = lock(project, "hopper-vllm-cu130-py311-no-megatron", pins=("python==3.12",)).cell
    assert cell.id == "my-rl-cu130-py312-no-megatron"
    assert lock(project, "hopper-vllm", "mine", pins=("python==3.12.*", "verl==0.9.1")).cell.python == "3.12"


def test_an_override_replaces_all_requirements_of_a_distribution(project: Path) -> None:
    cell = lock(project, "hopper-vllm", overrides=("nvidia-cudnn-cu13==9.20.0.48",)).cell
    assert [(each.package, each.specifier) for each in cell.overrides if "cudnn" in each.package] == [
        ("nvidia-cudnn-cu13", "==9.20.0.48")
    ]
    assert all(each.component.package != "nvidia-cudnn-cu13" for each in cell.requirements)


def test_other_changes_replace_the_entry(project: Path) -> None:
    lock(project, "cpu-grpo", additions=("math-verify",))
    lock(project, "cpu-grpo", additions=("pylatexenc",))
    assert "pylatexenc" in (text := (project / "matrices/my-rl.yaml").read_text())
    assert "math-verify" not in text


def test_a_lock_that_fails_leaves_everything_as_it_was(project: Path) -> None:
    with pytest.raises(LockError):
        lock(project, "cpu-grpo", additions=("broken",))
    assert files(project) == []
    lock(project, "cpu-grpo", additions=("math-verify",))
    before = {name: (project / name).read_text() for name in files(project)}
    with pytest.raises(LockError):
        lock(project, "cpu-grpo", additions=("broken",))
    assert {name: (project / name).read_text() for name in files(project)} == before


def test_an_entry_that_cannot_be_written_takes_its_lock_away(project: Path) -> None:
    (project / "matrices").write_text("no directory")
    with pytest.raises(ImagegenError):
        lock(project, "cpu-grpo", additions=("math-verify",))
    assert files(project) == []


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("cpu-grpo", {"additions": ("math-verify",)}, "usage-name-taken"),
        ("own", {"additions": ("math-verify",)}, "usage-name-taken"),
        ("../x", {}, "usage-name-invalid"),
        ("my-rl", {"removals": ("torhc",)}, "usage-changes-invalid"),
        ("my-rl", {"pins": ("torch",)}, "usage-changes-invalid"),
        ("my-rl", {"additions": ("a @ https://example.org/a.whl",)}, "usage-changes-invalid"),
        ("my-rl", {"additions": ("a b",)}, "usage-changes-invalid"),
        ("my-rl", {"pins": ("python==2.7",)}, "usage-changes-invalid"),
        ("my-rl", {"pins": ("python>=3.12",)}, "usage-changes-invalid"),
        ("my-rl", {"overrides": ("filelock",)}, "usage-changes-invalid"),
        ("my-rl", {"packages": ("x;y",)}, "usage-changes-invalid"),
    ],
)
def test_changes_that_do_not_fit_are_refused(
    project: Path, name: str, changes: dict[str, tuple[str, ...]], code: str
) -> None:
    (project / "matrices").mkdir()
    (project / "matrices/own.yaml").write_text("images: {own: {extends: cpu-grpo}}\n")
    with pytest.raises(UsageError) as raised:
        lock(project, "cpu-grpo", name, **changes)
    assert raised.value.code == code
    assert files(project) == ["matrices/own.yaml"]


@pytest.mark.parametrize(
    ("entry", "options", "versions_from", "expected"),
    [
        ("extends: cpu-grpo", LockOptions(), "cpu-grpo-cpu-py311", True),
        ("extends: middle", LockOptions(as_of="2026-11-20"), "cpu-grpo-cpu-py311", True),
        ("extends: cpu-grpo", LockOptions(upgrade=True), "cpu-grpo-cpu-py311", False),
        ('{extends: cpu-grpo, axes: {python: ["3.13"]}}', LockOptions(), None, False),  # the parent has no such lock
    ],
)
def test_the_first_lock_of_an_extended_image_starts_from_its_lock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: str,
    options: LockOptions,
    versions_from: str | None,
    expected: bool,
) -> None:
    """The versions stay and the cutoff is the present, so that a change can take what is newer than the parent."""
    (tmp_path / "matrices").mkdir()
    images = f"middle: {{extends: cpu-grpo}}, mine: {entry if entry[0] == '{' else f'{{{entry}}}'}"
    (tmp_path / "matrices/mine.yaml").write_text(f"images: {{{images}}}\n")
    starts: list[Previous] = []

    def lock_cell(request: LockRequest, previous: Lock | None) -> Lock:
        starts.append(Previous.of(previous, request.options))
        raise LockError("stop here", code="lock-no-hash")

    monkeypatch.setattr(make_locks, "lock_cell", lock_cell)
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path, Quiet()))
    with pytest.raises(LockError):
        make_locks.lock_image(session, session.matrix.select_one("mine"), options, record=False)
    (start,) = starts
    assert (start.lock and start.lock.cell, bool(start.versions)) == (versions_from, expected)
    assert start.cutoff.startswith(options.as_of or f"{datetime.now(UTC):%Y-%m-%d}")


def test_a_lock_names_what_changed_against_the_lock_that_it_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matrices").mkdir()
    (tmp_path / "matrices/mine.yaml").write_text("images: {mine: {extends: cpu-grpo}}\n")
    said: list[str] = []

    class Recorder(Quiet):
        def say(self, text: str) -> None:
            said.append(text)

    def lock_cell(request: LockRequest, previous: Lock | None) -> Lock:
        assert previous
        (old,) = (wheel for wheel in previous.wheels if wheel.name == "filelock")
        file = replace(old.file, filename="filelock-9.9-py3-none-any.whl", sha256="0" * 64, path=None)
        others = [wheel for wheel in previous.wheels if wheel.name not in ("filelock", "werkzeug")]
        wheels = sorted([*others, replace(old, version="9.9", file=file)], key=lambda wheel: wheel.name)
        return replace(previous, cell=request.cell.id, image="mine", wheels=tuple(wheels), record=None)

    monkeypatch.setattr(make_locks, "lock_cell", lock_cell)
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path, Recorder()))
    locked = make_locks.lock_image(session, session.matrix.select_one("mine"), LockOptions(), record=False)
    assert [(change.name, change.after) for change in locked.changes] == [("filelock", "9.9"), ("werkzeug", None)]
    assert any("filelock" in text and "9.9" in text for text in said)
