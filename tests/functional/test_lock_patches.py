"""Patches of the project in a lock: made, written, compared, and applied again on another machine."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import mirror
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import Location
from imagegen.core.net import MissingFiles
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import dockerfile, inputs
from imagegen.lock import contradictions
from imagegen.lock.file import dumps, loads
from imagegen.lock.make import patches
from imagegen.lock.model import Lock
from imagegen.mirror import listing as mirror_listing
from imagegen.spec.model import PatchSource
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.lock_workspace import Workspace

NEW_FILE = "--- /dev/null\n+++ b/peft_fix.py\n@@ -0,0 +1 @@\n+x = {}\n"
WHERE = Location("matrices/x.yaml", 9)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A cell whose peft has a patch; the place of its wheel can be reached without an index."""
    workspace = Workspace(tmp_path)
    shutil.copy(tmp_path / "default/peft/peft-1.0-py3-none-any.whl", workspace.links)
    workspace.project.mkdir()
    write(workspace, NEW_FILE.format(1))
    return asking(workspace, "peft")


def asking(workspace: Workspace, package: str) -> Workspace:
    file = workspace.project / "fix.patch"
    source = PatchSource(package, "fix.patch", "why", None, file, workspace.project, WHERE)
    workspace.cell = replace(workspace.cell, patches=(source,))
    return workspace


def write(workspace: Workspace, text: str) -> None:
    (workspace.project / "fix.patch").write_text(text)


def peft(lock: Lock) -> tuple[str, str]:
    (wheel,) = (each for each in lock.wheels if each.name == "peft")
    return wheel.file.sha256, wheel.fetched.sha256


def test_a_lock_names_the_patch_and_the_patched_wheel(workspace: Workspace) -> None:
    lock = workspace.make()
    (wheel,) = (each for each in lock.wheels if each.patches)
    assert (wheel.file.index, wheel.fetched.index, wheel.patches[0].path) == ("patched", "pypi", "fix.patch")
    assert loads(dumps(lock), "x") == lock
    assert contradictions(lock, workspace.cell) == ()
    assert contradictions(lock, replace(workspace.cell, patches=())) == ("patch",)
    assert workspace.make(lock) == lock


def test_an_edit_of_the_patch_makes_the_lock_stale(workspace: Workspace) -> None:
    lock = workspace.make()
    patches.require_unchanged(lock, workspace.cell, workspace.store, "x")
    write(workspace, NEW_FILE.format(2))
    with raises("lock-stale"):
        patches.require_unchanged(lock, workspace.cell, workspace.store, "x")
    edited = workspace.make(lock)
    assert [a == b for a, b in zip(peft(edited), peft(lock), strict=True)] == [False, True]


def test_a_patch_that_is_removed_leaves_the_wheel_as_it_was(workspace: Workspace) -> None:
    lock = workspace.make()
    workspace.cell = replace(workspace.cell, patches=())
    plain = workspace.make(lock)
    assert peft(plain) == (peft(lock)[1],) * 2
    assert not any(each.patches for each in plain.wheels)


def test_another_store_gets_the_same_wheel(workspace: Workspace, tmp_path: Path) -> None:
    lock = workspace.make()
    wheels = tuple(each for each in lock.wheels if each.patches)
    context = Context(Store(tmp_path / "second"), Settings.from_environment(workspace.env), Quiet())
    with pytest.raises(MissingFiles) as raised:
        inputs.fetch(replace(lock, wheels=wheels), context)
    assert [each.filename for each in raised.value.files] == ["fix.patch"]
    patches.require_unchanged(lock, workspace.cell, context.store, "x")  # brings the patch, as a build does
    inputs.fetch(replace(lock, wheels=wheels), context)
    assert context.store.has(wheels[0].file.digest, wheels[0].file.size)


def test_a_mirror_has_the_patch(workspace: Workspace, tmp_path: Path) -> None:
    lock = workspace.make()
    wheels = tuple(each for each in lock.wheels if each.patches)
    at = tmp_path / "mirror"
    files, *_ = mirror_listing.listings(replace(lock, uv=wheels[0], wheels=wheels), workspace.store)
    mirror.fill(at, [files], Context(workspace.store, Settings.from_environment(workspace.env), Quiet()))
    alone = Settings.from_environment({"HOME": "/nonexistent", "IMAGEGEN_MIRROR": str(at), "PATH": os.environ["PATH"]})
    context = Context(Store(tmp_path / "second"), alone, Quiet())
    inputs.fetch(replace(lock, wheels=wheels), context)
    assert context.store.has(wheels[0].file.digest, wheels[0].file.size)


def test_a_rendered_dockerfile_names_the_patch(workspace: Workspace, golden: Golden) -> None:
    lock = workspace.make()
    (patch,) = (patch for wheel in lock.wheels for patch in wheel.patches)
    above = dockerfile.render(lock, "x").dockerfile.partition("\npeft==")[0].splitlines()[-1]
    golden.check(above, digest=patch.sha256)


def test_faults_have_their_places(workspace: Workspace, golden: Golden) -> None:
    write(workspace, "--- a/peft.py\n+++ b/peft.py\n@@ -1 +1 @@\n-no such line\n+x\n")
    with raises("lock-patch-invalid") as raised:
        workspace.make()
    assert raised.value.where == f"{workspace.project}/fix.patch"
    (workspace.project / "fix.patch").unlink()
    with raises("lock-patch-invalid") as raised:
        workspace.make()
    assert raised.value.where == WHERE
    write(workspace, NEW_FILE)
    asking(workspace, "pefft")
    with raises("lock-patch-invalid") as raised:
        workspace.make()
    golden.check(raised.value)
    assert raised.value.where == WHERE
