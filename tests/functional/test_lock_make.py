"""Making a lock offline: indexes are directories, and the base is the previous lock's."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.compat.rule import Override, Rule
from imagegen.core.errors import FetchError, Location, LockError
from imagegen.core.gpu import Gpu
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.lock import contradictions, dumps
from imagegen.lock.file import LockErrors, loads
from imagegen.lock.model import URL, Lock, LockedFile, LockedGpus, LockedSdist
from imagegen.lock.sdist import SdistBuilder, build
from imagegen.spec.model import Component, Sdist, WheelAddress
from imagegen.wheels.catalogue import Catalogue
from imagegen.wheels.search import uncatalogued
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.http_server import Behaviour, Server, raw, status
from tests.support.lock_workspace import DEB, TORCH, Workspace
from tests.support.upload_index import NEW, PackageIndex


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def versions(lock: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.wheels}


def test_a_lock_is_complete_and_can_be_written(workspace: Workspace) -> None:
    lock = workspace.make()
    peft, torch = lock.wheels
    assert versions(lock) == {"peft": "1.0", "torch": "2.13.0+cpu"}
    assert (torch.file.index, torch.via, torch.because) == ("pytorch-cpu", ("peft",), "tensors")
    assert (peft.file.index, peft.via, peft.because) == ("pypi", (), "tuning")
    assert peft.file.size == (workspace.index.root / "peft" / peft.file.filename).stat().st_size
    assert lock.base == workspace.first.base
    assert str(workspace.index.root) not in dumps(lock)


def test_a_lock_for_gpus_says_which_and_from_which_driver_on(workspace: Workspace) -> None:
    plain = Rule("r", {"cuda": ">=13"}, {"driver": ">=580"}, {}, "b", "s", "2026-11-20", "error", "documented", "f")
    rules = (plain, replace(plain, id="maybe", then={"driver": ">=999"}, evidence="remembered"))
    assert workspace.make(rules=rules).gpu is None
    gpus = (Gpu("sm_90", "9.0", "hopper", ()), Gpu("sm_120", "12.0", "blackwell", ()))
    required = tuple(replace(each, index="pypi") for each in workspace.cell.requirements)
    workspace.index.wheel("torch", "2.13.0")
    workspace.cell = replace(
        workspace.cell, axes={**workspace.cell.axes, "cuda": "cu130"}, gpus=gpus, requirements=required
    )
    lock = workspace.make(rules=rules)
    assert lock.gpu == LockedGpus(("9.0", "12.0"), "580")
    assert workspace.make(rules=()).gpu == LockedGpus(("9.0", "12.0"), None)
    assert contradictions(replace(lock, cell=workspace.cell.id), workspace.cell) == ()
    other = replace(lock, gpu=LockedGpus(("9.0",), "580"))
    assert contradictions(other, workspace.cell) == ("gpu.capabilities",)


def test_locking_again_changes_nothing(workspace: Workspace) -> None:
    lock = workspace.make()
    workspace.index.wheel("peft", "1.1", "torch")
    assert workspace.make(lock) is lock


def test_upgrades_are_asked_for(workspace: Workspace) -> None:
    workspace.index.wheel("extra", "1.0")
    workspace.index.wheel("peft", "1.1", "torch", "extra")
    lock = workspace.make()
    workspace.index.wheel("peft", "1.2", "torch", "extra", uploaded=NEW)
    workspace.index.wheel("extra", "2.0", uploaded=NEW)
    one = workspace.make(lock, packages=("Peft",))
    assert versions(one) == {"peft": "1.2", "extra": "1.0", "torch": "2.13.0+cpu"}
    assert one.as_of > lock.as_of
    past = workspace.make(lock, as_of="2026-03-01")
    assert past.as_of == "2026-03-01T00:00:00Z"
    assert versions(past)["peft"] == "1.1"
    with raises("lock-unknown-package"):
        workspace.make(lock, packages=("nothing",))


def test_a_time_to_come_holds_nothing_back(workspace: Workspace) -> None:
    with raises("lock-cutoff-in-future"):
        workspace.make(as_of="2130-01-01")


@pytest.mark.parametrize("as_of", ["yesterday", "2026-13-01"])
def test_odd_times_are_refused(as_of: str, workspace: Workspace) -> None:
    with raises("lock-cutoff-invalid"):
        workspace.make(as_of=as_of)


def test_find_links_take_no_part_while_the_index_answers(workspace: Workspace) -> None:
    workspace.special.wheel("torch", "2.14.0+cpu")
    (workspace.special.root / "torch" / "torch-2.14.0+cpu-py3-none-any.whl").rename(
        workspace.links / "peft-9.0-py3-none-any.whl"
    )
    assert versions(workspace.make())["peft"] == "1.0"
    assert not any(str(workspace.links) in text for text in workspace.said)


def move_torch(workspace: Workspace) -> Path:
    """Move the wheel of torch from its index to the find-links directory."""
    name = "torch-2.13.0+cpu-py3-none-any.whl"
    return (workspace.special.root / "torch" / name).rename(workspace.links / name)


@pytest.mark.parametrize("answer", [None, status(503)], ids=["no connection", "server errors"])
def test_one_exact_file_replaces_an_index_out_of_reach(answer: Behaviour | None, workspace: Workspace) -> None:
    file = move_torch(workspace)
    server = Server()
    server.behaviours = [answer] if answer else []
    workspace.env["IMAGEGEN_INDEX_PYTORCH_CPU"] = f"http://{server.host if answer else '127.0.0.1:1'}/whl"
    try:
        lock = workspace.make()
        assert versions(lock)["torch"] == "2.13.0+cpu"
        assert lock.wheels[1].file.index == "pytorch-cpu"
        cause, what = (text for text in workspace.said if text.startswith("warning: "))
        assert "index pytorch-cpu" in cause
        assert all(each in what for each in ("torch==2.13.0+cpu", str(workspace.links), file.name, "pytorch-cpu"))
        file.unlink()
        with raises("lock-index-unreachable") as caught:
            workspace.make()
        assert "torch==2.13.0+cpu" in str(caught.value)
        assert str(workspace.links) in str(caught.value)
    finally:
        server.close()


ANSWERS = {
    "wrong credentials": status(401, WWW_Authenticate="Basic"),
    "refused": status(403),
    "another status": status(410),
    "no such package": status(404),
    "a login page": raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\nPlease log in."),
    "an empty page": raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<!DOCTYPE html>"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_no_file_replaces_an_index_that_answers(answer: Behaviour, workspace: Workspace) -> None:
    move_torch(workspace)
    server = Server()
    server.behaviours = [answer]
    workspace.env["IMAGEGEN_INDEX_PYTORCH_CPU"] = f"http://{server.host}/whl"
    try:
        with pytest.raises((FetchError, LockError)):
            workspace.make()
    finally:
        server.close()
    assert not any(text.startswith("warning: ") for text in workspace.said)


def test_a_version_without_a_label_has_no_replacement_from_find_links(workspace: Workspace) -> None:
    """Another build may have the same version: only the index can tell which one it means."""
    (peft, torch) = workspace.cell.requirements
    workspace.cell = replace(workspace.cell, requirements=(peft, replace(torch, component=replace(TORCH, local={}))))
    workspace.env["IMAGEGEN_INDEX_PYTORCH_CPU"] = "http://127.0.0.1:1/whl"
    workspace.special.wheel("torch", "2.13.0")
    name = "torch-2.13.0-py3-none-any.whl"
    (workspace.special.root / "torch" / name).rename(workspace.links / name)
    with raises("lock-index-unreachable") as caught:
        workspace.make()
    assert "torch==2.13.0" in str(caught.value.why)


def test_every_release_without_a_wheel_is_reported_at_once(workspace: Workspace, golden: Golden) -> None:
    for name in ("one", "two"):
        workspace.index.wheel(name, "1.0", tag="cp311-cp311-manylinux_2_39_x86_64")
        workspace.index.sdist(name, "1.0", {"PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: 1.0\n"})
    workspace.index.wheel("peft", "1.1", "one", "two")
    with pytest.raises(LockError, match="2 errors found") as caught:
        workspace.make()
    golden.check(caught.value)


def test_an_sdist_is_locked_with_its_wheel_and_what_builds_it(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs and outputs of the sandbox, which is a stand-in here (the integration test has the real one)."""
    builder = Component("runtime", "runtime", "", (), Sdist("4.9.3", (), ("backend==1.0",)))
    workspace.cell = replace(workspace.cell, sdists=(builder,))
    workspace.index.wheel("backend", "1.0")
    workspace.index.sdist("runtime", "4.9.3", {"runtime.py": ""})
    workspace.index.wheel("peft", "1.1", "runtime==4.9.*")
    built: list[list[str]] = []

    class StandInSandbox:
        def __init__(self, rootfs: Path, *, read_only: dict[str, Path], memory: int) -> None:
            built.append(sorted(read_only))
            assert all(path.is_file() for name, path in read_only.items() if name != "/tomllib")

        def run(self, argv: list[str], *, env: dict[str, str], timeout: float) -> bytes:
            wheel = PackageIndex(tmp_path / "built")
            wheel.wheel("runtime", "4.9.3")
            name = "runtime-4.9.3-py3-none-any.whl"
            return f"{name}\n".encode() + (wheel.root / "runtime" / name).read_bytes()

    monkeypatch.setattr("imagegen.lock.sdist.Sandbox", StandInSandbox)
    monkeypatch.setattr("imagegen.image.base.rootfs", lambda *args: tmp_path)
    lock = workspace.make()
    runtime = next(wheel for wheel in lock.wheels if wheel.name == "runtime")
    assert runtime.sdist
    assert runtime.sdist.file.filename == "runtime-4.9.3.tar.gz"
    assert [each.name for each in runtime.sdist.build_requires] == ["backend"]
    assert workspace.store.has(f"sha256:{runtime.file.sha256}", runtime.file.size)
    assert built == [["/backend-1.0-py3-none-any.whl", "/runtime-4.9.3.tar.gz", "/tomllib"]] * 2
    workspace.make()
    assert len(built) == 2
    workspace.store = Store(tmp_path / "empty")
    assert workspace.make(lock, as_of=lock.as_of, packages=["peft"], trust_previous_wheels=True) is lock
    assert len(built) == 2, "whoever builds the lock makes it and compares"
    other = replace(lock.base, debs=(replace(DEB, sha256="c" * 64),))
    monkeypatch.setattr("imagegen.image.base.apt", lambda *args: other)
    workspace.make(lock, upgrade_base=True, trust_previous_wheels=True)
    assert len(built) == 4, "another base may give another wheel"


@pytest.mark.parametrize("static", [True, False])
def test_an_sdist_that_no_component_declares_is_built_for_its_metadata(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, static: bool
) -> None:
    files = {"PKG-INFO": "Metadata-Version: 2.2\nName: runtime\nVersion: 4.9.3\nRequires-Dist: helper\n"}
    workspace.index.sdist("runtime", "4.9.3", files if static else {"setup.py": "raise SystemExit"})
    for name in ("setuptools", "helper"):
        workspace.index.wheel(name, "90.0")
    workspace.index.wheel("peft", "1.1", "runtime==4.9.*")

    class StandInSandbox:
        def __init__(self, rootfs: Path, **options: object) -> None: ...

        def run(self, argv: list[str], **options: object) -> bytes:
            wheel = PackageIndex(tmp_path / "built")
            wheel.wheel("runtime", "4.9.3", "helper")
            name = "runtime-4.9.3-py3-none-any.whl"
            return f"{name}\n".encode() + (wheel.root / "runtime" / name).read_bytes()

    monkeypatch.setattr("imagegen.lock.sdist.Sandbox", StandInSandbox)
    monkeypatch.setattr("imagegen.image.base.rootfs", lambda *_: tmp_path)
    new_lock = workspace.make()
    (runtime,) = (wheel for wheel in new_lock.wheels if wheel.name == "runtime")
    assert runtime.sdist and [wheel.name for wheel in runtime.sdist.build_requires] == ["setuptools"]
    assert "helper" in {wheel.name for wheel in new_lock.wheels}
    assert contradictions(new_lock, workspace.cell) == ()


@pytest.mark.parametrize("how", ["checksum", "encrypted", "lzma"])
def test_a_built_wheel_whose_files_cannot_be_read_is_no_wheel(
    how: str, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA if how == "lzma" else zipfile.ZIP_STORED) as archive:
        archive.writestr("demo.py", "x = 1")
    wheel = bytearray(packed.getvalue())
    if how == "checksum":
        wheel[wheel.index(b"x = 1")] = ord("y")
    elif how == "encrypted":
        wheel[wheel.index(b"PK\1\2") + 8] |= 1

    class StandInSandbox:
        def __init__(self, rootfs: Path, **more: object) -> None: ...

        def run(self, argv: list[str], **more: object) -> bytes:
            return b"demo-1.0-py3-none-any.whl\n" + wheel

    monkeypatch.setattr("imagegen.lock.sdist.Sandbox", StandInSandbox)
    source = LockedSdist(LockedFile("demo-1.0.tar.gz", 1, "0" * 64, "pypi"), ())
    workshop = SdistBuilder("sha256:1", "/usr/bin/python3", lambda: tmp_path, workspace.store, Quiet())
    with raises("wheel-invalid"):
        build("demo", "1.0", source, workshop)


def overridden(workspace: Workspace, *overrides: Override) -> None:
    places = {each.package: Location("matrices/own.yaml", line) for line, each in enumerate(overrides, 1)}
    workspace.cell = replace(workspace.cell, overrides=overrides, override_places=places)


def test_a_lock_names_its_overrides(workspace: Workspace) -> None:
    for version in ("1.0", "2.0"):
        workspace.index.wheel("extra", version)
    workspace.index.wheel("peft", "1.0", "torch", "extra<2", "gone")
    extra = Override("extra", "==2.*", because="The fix of 2.0.", source="https://example.org/changes")
    gone = Override("gone", because="It has no wheel.")
    overridden(workspace, extra, gone)
    lock = workspace.make()
    assert versions(lock) == {"extra": "2.0", "peft": "1.0", "torch": "2.13.0+cpu"}
    assert loads(dumps(lock)).overrides == (extra, gone)
    edited = replace(lock, cell=workspace.cell.id, overrides=(extra,))
    assert contradictions(edited, workspace.cell) == ("override",)


def requiring(workspace: Workspace, package: str, *extras: str) -> None:
    """Let the cell require extras of one of its packages, in line 7 of a file."""
    requirements = (
        replace(each, extras=extras) if each.component.package == package else each
        for each in workspace.cell.requirements
    )
    places = {package: Location("matrices/own.yaml", 7)}
    workspace.cell = replace(workspace.cell, requirements=tuple(requirements), extra_places=places)


def test_an_extra_that_the_release_lacks_is_an_error(workspace: Workspace) -> None:
    requiring(workspace, "peft", "gone")
    with pytest.raises(LockError) as raised:
        workspace.make()
    assert raised.value.code == "lock-unknown-extra"
    assert raised.value.where == Location("matrices/own.yaml", 7)


def test_warnings_about_other_packages_are_reported(workspace: Workspace) -> None:
    workspace.index.wheel("extra", "1.0")
    workspace.index.wheel("peft", "1.0", "torch", "extra[gone]")
    workspace.make()
    assert [line for line in workspace.said if line.startswith("warning: uv: ")]
    workspace.said.clear()
    workspace.index.wheel("peft", "1.0", "torch", "extra")
    workspace.make()
    assert not [line for line in workspace.said if line.startswith("warning: uv: ")]


def test_an_override_that_no_package_uses_is_an_error(workspace: Workspace) -> None:
    overridden(workspace, Override("gone", because="b"), Override("peft", "==1.0", because="b"))
    with pytest.raises(LockErrors) as raised:
        workspace.make()
    places = {str(each.where): each.code for each in raised.value.errors}
    assert places == {"matrices/own.yaml:1": "lock-unused-override", "matrices/own.yaml:2": "lock-unused-override"}


def addressed(workspace: Workspace, filename: str, sha256: str, specifier: str = "") -> None:
    """Let the cell take peft from an address that only the find-links directory can stand in for."""
    address = WheelAddress(f"https://unused.invalid/files/{filename.replace('+', '%2B')}", sha256)
    peft, torch = workspace.cell.requirements
    workspace.cell = replace(workspace.cell, requirements=(replace(peft, specifier=specifier, address=address), torch))


def own_peft(workspace: Workspace, version: str = "1.0+own", tag: str = "py3-none-any") -> tuple[str, str]:
    """Return name and sha256 of a wheel of peft that requires `extra`, in the find-links directory."""
    made = PackageIndex(workspace.links.parent / "made")
    made.wheel("peft", version, "torch", "extra", tag=tag)
    (file,) = (made.root / "peft").glob("*.whl")
    file.rename(workspace.links / file.name)
    return file.name, hashlib.sha256((workspace.links / file.name).read_bytes()).hexdigest()


def test_a_wheel_by_its_address_is_locked_by_its_hash(workspace: Workspace) -> None:
    workspace.index.wheel("extra", "1.0")
    addressed(workspace, *own_peft(workspace))
    lock = workspace.make()
    assert versions(lock) == {"extra": "1.0", "peft": "1.0+own", "torch": "2.13.0+cpu"}
    (address,) = (each.address for each in workspace.cell.requirements if each.address)
    peft = next(wheel for wheel in lock.wheels if wheel.name == "peft")
    assert (peft.file.url, peft.file.sha256, peft.because) == (address.url, address.sha256, "tuning")
    assert (peft.file.index, peft.choice is None) == (URL, False)
    assert contradictions(lock, workspace.cell) == ()
    assert uncatalogued(lock, workspace.cell, Catalogue()) == ()
    other = replace(lock, wheels=tuple(replace(each, file=replace(each.file, sha256="0" * 64)) for each in lock.wheels))
    assert "wheel peft" in contradictions(other, workspace.cell)
    assert workspace.make(lock) is lock


@pytest.mark.parametrize(
    ("version", "tag", "specifier"),
    [("1.0", "cp312-cp312-linux_x86_64", ""), ("1.0", "py3-none-win_amd64", ""), ("1.0", "py3-none-any", ">=2")],
)
def test_a_wheel_that_does_not_fit_the_cell_is_an_error(
    version: str, tag: str, specifier: str, workspace: Workspace
) -> None:
    addressed(workspace, *own_peft(workspace, version, tag), specifier)
    with raises("lock-no-wheel"):
        workspace.make()


def test_a_file_that_is_no_wheel_of_the_component_is_an_error(workspace: Workspace) -> None:
    body = b"no archive"
    (workspace.links / "peft-1.0-py3-none-any.whl").write_bytes(body)
    addressed(workspace, "peft-1.0-py3-none-any.whl", hashlib.sha256(body).hexdigest())
    with raises("lock-no-wheel"):
        workspace.make()
