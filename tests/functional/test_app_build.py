"""A lock's record: a build trusts what its own store has made, never what a lock claims."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from imagegen.app.audit import audit_before_image
from imagegen.app.build import BuildOptions, BuiltImage, build_image, build_layout
from imagegen.audit.model import Finding, Severity, Subject
from imagegen.audit.report import AuditReport
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import AuditError
from imagegen.core.progress import Progress, Quiet
from imagegen.core.store import Store, images
from imagegen.engine import Engine
from imagegen.image import base as image_base
from imagegen.image import layers
from imagegen.image.layers import byte_code
from imagegen.lock import local_tags
from imagegen.lock.model import Lock, LockedBase, LockedFile, LockedWheel, Record
from imagegen.oci.documents import INDEX_TYPE, LayerDescriptor, Platform, read_manifest
from imagegen.oci.layout import Layout, name_of
from imagegen.oci.registry.layout_repository import LayoutRepository
from imagegen.oci.registry.repository import manifest_for
from imagegen.spec.model import Cell, Declarations
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.interpreters import LOCKED
from tests.support.layer_inputs import HostSandbox
from tests.support.session import session_of
from tests.support.source_builds import BUILD
from tests.support.wheels import make_wheel


class Names:
    """A stand-in for the engine, as far as names go: tag -> digest. tests/integration has the real one."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.loaded: list[str] = []

    def image_digest(self, ref: str) -> str | None:
        return self.tags.get(ref)

    @contextmanager
    def loading(self, store: Store) -> Iterator[Names]:
        yield self

    def offer(self, image: object) -> None:
        pass

    def finish(self, digest: str, tag: str, progress: object) -> None:
        self.loaded.append(digest)
        self.tags[tag] = digest

    def tag(self, ref: str, tag: str) -> None:
        self.tags[tag] = self.tags.get(ref, ref)  # a digest, or a tag


CELL = cast("Cell", SimpleNamespace(id="demo", declarations=Declarations({"demo": ()}), gpus=(), cuda_version=None))


class Machine:
    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.store, self.engine = root, Store(root / "store"), Names()
        self.settings = Settings.from_environment({"HOME": str(root)})

    def lock(self, content: bytes) -> Lock:
        data = make_wheel(self.root, {"demo.py": content}).read_bytes()
        digest = self.store.write(data).removeprefix("sha256:")
        wheel = LockedWheel("demo", "1.0", LockedFile("demo-1.0-py3-none-any.whl", len(data), digest, "pypi"), via=())
        uv = LockedWheel("uv", "1.0", LockedFile("uv-1.0-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
        base = LockedBase("debian12", "debian", "bookworm", {}, ())
        axes = {"platform": "linux/amd64", "python": "3.11", "cuda": "cpu"}
        return Lock(
            cell="demo-cpu-py311",
            image="demo",
            axes=axes,
            inputs={},
            uv=uv,
            as_of="2026-01-01T00:00:00Z",
            base=base,
            interpreter=LOCKED,
            wheels=(wheel,),
            env=(),
        )

    def record(self, lock: Lock) -> Record:
        return layers.record_of(layers.assemble(lock, Context(self.store, self.settings, Quiet())))

    def build(self, lock: Lock, progress: Progress | None = None, *, audit: bool = False) -> BuiltImage:
        session = session_of(self.store, self.settings, progress)
        whole = replace(lock, builds=())  # its wheels are there
        return build_image(session, CELL, whole, cast("Engine", self.engine), BuildOptions(test=False, audit=audit))

    def audit(self, lock: Lock, imports: tuple[str, ...]) -> None:
        cell = cast("Cell", SimpleNamespace(declarations=Declarations({"demo": imports}), gpus=(), cuda_version=None))
        audit_before_image(session_of(self.store, self.settings).project, cell, lock)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setattr(byte_code, "Sandbox", HostSandbox)
    base_layer = LayerDescriptor.of_tar(machine.store.write(bytes(1024)), 1024)
    monkeypatch.setattr(image_base, "build", lambda *_: base_layer)
    (tmp_path / "rootfs").mkdir()
    monkeypatch.setattr(image_base, "rootfs", lambda *_: tmp_path / "rootfs")
    return machine


def test_an_unchanged_image_is_not_made_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = machine.lock(b"x = 1\n")
    for each in (lock, replace(lock, record=machine.record(lock))):
        digest = machine.build(each).digest
        with monkeypatch.context() as patch:
            patch.setattr(layers, "write_image", None)
            assert machine.build(each).digest == digest
    assert machine.engine.loaded == [digest]


def refuse_to_build(patch: pytest.MonkeyPatch) -> None:
    for name in ("ensure_wheels", "audit_lock", "assemble_image"):
        patch.setattr(f"imagegen.app.assemble.{name}", Mock(side_effect=NotImplementedError))


def finished(machine: Machine, lock: Lock, inputs: str | None, *, audit: bool = True) -> BuiltImage:
    """Build into the engine in a session in which `inputs` is the digest of lock, matrices and code."""
    session = session_of(machine.store, machine.settings)
    session.lock_files.digest_of_inputs = lambda *_: inputs  # type: ignore[method-assign]
    options = BuildOptions(test=False, audit=audit)
    return build_image(session, CELL, replace(lock, builds=()), cast("Engine", machine.engine), options)


def test_an_unchanged_build_loads_nothing_of_what_builds(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = machine.lock(b"x = 1\n")
    built = finished(machine, lock, "a")
    assert finished(machine, lock, "b") == built  # the engine has it; audited again
    with monkeypatch.context() as patch:
        refuse_to_build(patch)
        for inputs in ("a", "b"):
            assert finished(machine, lock, inputs) == built
        for inputs, audit in (("c", True), (None, True), ("a", False)):
            with pytest.raises(NotImplementedError):
                finished(machine, lock, inputs, audit=audit)
        machine.engine.tags.clear()  # as after `docker image rm`
        with pytest.raises(NotImplementedError):
            finished(machine, lock, "a")
    assert finished(machine, lock, "a") == built


def test_an_unchanged_layout_is_written_from_a_whole_image(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = replace(machine.lock(b"x = 1\n"), builds=())
    session = session_of(machine.store, machine.settings)
    session.lock_files.digest_of_inputs = lambda *_: "a"  # type: ignore[method-assign]

    def build(name: str) -> str:
        options = BuildOptions()
        (built,) = build_layout(session, [(CELL, lock)], tmp_path / name, options)
        return built.digest

    digest = build("first")
    with monkeypatch.context() as patch:
        refuse_to_build(patch)
        assert build("second") == digest
        with raises("store-output-not-empty"):
            build("second")
    layer = read_manifest(machine.store.read(digest), digest).layers[0]
    machine.store.path(layer.digest).unlink()
    assert build("third") == digest  # what is missing is made again
    assert Layout(tmp_path / "third").path(layer.digest).exists()


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a fork's lock records the digest of another image, which the engine holds under the lock's tag",
    "what the lock's wheels give is made and compared: not reproducible; the tag that users type does not move",
)
def test_a_digest_that_a_lock_claims_is_not_trusted(machine: Machine) -> None:
    lock, evil = machine.lock(b"x = 1\n"), machine.lock(b"evil = 1\n")
    forged = replace(lock, record=machine.record(evil))
    moving, fixed = local_tags(forged)
    assert forged.record is not None
    machine.engine.tags[fixed] = forged.record.digest
    with raises("not-reproducible-image"):
        machine.build(forged)
    assert moving not in machine.engine.tags


def swapped(record: Record, *fields: str) -> Record:
    """The record with these fields exchanged between its last two layers."""
    *rest, one, two = record.layers
    new_one = replace(one, **{name: getattr(two, name) for name in fields})
    new_two = replace(two, **{name: getattr(one, name) for name in fields})
    return replace(record, layers=(*rest, new_one, new_two))


FORGERIES: dict[str, Callable[[Record], Record]] = {
    "descriptors swapped": lambda record: swapped(record, "digest", "size", "diff_id"),
    "blobs swapped": lambda record: swapped(record, "digest", "size"),
    "contents swapped": lambda record: swapped(record, "diff_id"),
    "keys swapped": lambda record: swapped(record, "key"),
    "a layer less": lambda record: replace(record, layers=record.layers[:-1]),
    "a layer twice": lambda record: replace(record, layers=(*record.layers, record.layers[-1])),
    "another size": lambda record: replace(record, layers=(*record.layers[:-1], replace(record.layers[-1], size=1))),
}


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a record whose layers are swapped, left out, doubled or resized, under the right digest",
    "refused: the record contradicts itself",
)
@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("warm", [False, True])
def test_a_record_must_agree_in_every_layer(name: str, warm: bool, machine: Machine) -> None:
    lock = machine.lock(b"x = 1\n")
    record = machine.record(lock)
    if warm:  # the image is in the engine already
        machine.build(replace(lock, record=record))
    with raises("not-reproducible-record"):
        machine.build(replace(lock, record=FORGERIES[name](record)))


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a lock recorded by an imagegen of another layer format, or with another codec",
    "the format is named in the refusal; another codec with the same contents is a remark",
)
def test_a_record_of_another_imagegen(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = machine.lock(b"x = 1\n")
    record = machine.record(lock)
    other = tuple(replace(layer, diff_id="sha256:" + "0" * 64) for layer in record.layers)
    later = replace(record, layer_format=record.layer_format + 1, layers=other, digest="sha256:" + "0" * 64)
    with raises("not-reproducible-image"):
        machine.build(replace(lock, record=later))
    blobs = tuple(replace(layer, digest="sha256:" + "1" * 64, size=7) for layer in record.layers)
    codec = replace(record, codec="zstd 9 level 1", layers=blobs, digest="sha256:" + "2" * 64)
    assert machine.build(replace(lock, record=codec)).digest == record.digest
    monkeypatch.setattr(layers, "write_image", None)  # the second time it is as unchanged as any
    assert machine.build(replace(lock, record=codec)).digest == record.digest


def test_what_another_store_has_made_is_made_here_again(machine: Machine, tmp_path: Path) -> None:
    lock = machine.lock(b"x = 1\n")
    lock = replace(lock, record=machine.record(lock))
    machine.build(lock)
    fresh = Machine(tmp_path / "fresh")
    fresh.engine = machine.engine
    fresh.store.write(machine.store.read(lock.wheels[0].file.digest))
    fresh.store.write(bytes(1024))
    digest = fresh.build(lock).digest
    assert fresh.store.has(digest)
    assert digest == machine.engine.loaded[-1]


def test_a_layout_of_two_platforms_has_one_index(machine: Machine, tmp_path: Path) -> None:
    lock = machine.lock(b"x = 1\n")
    arm64 = replace(lock, cell=f"{lock.cell}-linux-arm64", axes={**lock.axes, "platform": "linux/arm64"})
    session, cells = session_of(machine.store, machine.settings), [(CELL, lock), (CELL, arm64)]
    options = BuildOptions(audit=False)
    built = build_layout(session, cells, tmp_path / "layout", options)
    again = build_layout(session, cells[::-1], tmp_path / "again", options)
    assert built[0].index == built[1].index == again[0].index
    (entry,) = Layout(tmp_path / "layout").entries()
    assert (entry["mediaType"], entry["digest"], name_of(entry)) == (INDEX_TYPE, built[0].index, local_tags(lock)[0])
    layout = LayoutRepository(tmp_path / "layout", "it")
    for image, platform in zip(built, ("amd64", "arm64"), strict=True):
        digest, manifest = manifest_for(layout.manifest, "", Platform("linux", platform), "it")
        assert digest == image.digest
        for blob in manifest.blobs:
            layout.stream(blob.digest, blob.size, io.BytesIO())
    alone = build_layout(session, cells[1:], tmp_path / "alone", options)
    assert (alone[0].digest, alone[0].index) == (built[1].digest, None), "as in the index"


def auditing(monkeypatch: pytest.MonkeyPatch, *severities: Severity) -> list[str]:
    """An audit that finds a thing wrong for each severity; gives the subjects that it is asked about."""
    requested: list[str] = []
    fields = ("undefined-symbol", "demo 1.0", "demo/_C.so", "nothing defines _Zmissing")
    found = tuple(Finding(each, *fields) for each in severities)

    def audit(subject: Subject) -> AuditReport:
        requested.append(subject.name)
        return AuditReport(subject.name, found, (), {}, len(subject.packages), 1)

    monkeypatch.setattr("imagegen.app.audit.audit", audit)
    return requested


def test_an_audit_that_finds_an_error_ends_a_build_before_there_is_an_image(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = machine.lock(b"x = 1\n")
    requested = auditing(monkeypatch, Severity.ERROR)
    for _ in range(2):
        with raises("audit-failed") as refused:
            machine.build(lock, audit=True)
    assert refused.value.exit_code == 77
    assert "imagegen audit demo-cpu-py311" in str(refused.value)
    assert requested == [lock.cell], "the second time it is remembered"
    session = session_of(machine.store, machine.settings)
    with pytest.raises(AuditError):
        build_layout(session, [(CELL, lock)], tmp_path / "layout", BuildOptions())
    assert not (tmp_path / "layout").exists()
    assert not machine.engine.tags
    assert not images.images(machine.store)
    assert layers.built_digest(lock, machine.store) is None


def test_an_image_that_was_made_without_an_audit_is_audited(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = machine.lock(b"x = 1\n")
    machine.build(lock)  # as with --no-audit
    moving, _ = local_tags(lock)
    del machine.engine.tags[moving]
    auditing(monkeypatch, Severity.ERROR)
    with pytest.raises(AuditError):
        machine.build(lock, audit=True)
    assert moving not in machine.engine.tags


def test_warnings_are_printed_and_end_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    lock = machine.lock(b"x = 1\n")
    requested = auditing(monkeypatch, Severity.WARNING)
    said: list[str] = []
    progress = Quiet()
    monkeypatch.setattr(progress, "say", said.append)
    for _ in range(2):
        machine.build(lock, progress, audit=True)
    golden.check([line for line in said if "1 warning:" in line])
    assert requested == [lock.cell]


def test_another_edition_of_the_audit_asks_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = machine.lock(b"x = 1\n")
    auditing(monkeypatch)
    machine.build(lock, audit=True)
    requested = auditing(monkeypatch, Severity.ERROR)
    machine.build(lock, audit=True)
    assert not requested
    monkeypatch.setattr("imagegen.app.audit.audit_digest", lambda: "another")
    with pytest.raises(AuditError):
        machine.build(lock, audit=True)


def test_a_module_that_the_matrix_promises_since_is_asked_for_again(machine: Machine) -> None:
    """No lock holds it, and none is stale by it."""
    lock = machine.lock(b"x = 1\n")
    machine.audit(lock, imports=("demo",))
    with raises("audit-failed"):
        machine.audit(lock, imports=("demo", "demo.more"))


def test_what_was_compiled_anew_is_another_image_and_is_audited(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key, one tag and one lock, but other bytes: of another compiler's machine, or pulled from the team."""
    one, other = (
        replace(
            lock,
            builds=(replace(BUILD, name="demo"),),
            wheels=tuple(replace(wheel, build=BUILD.key) for wheel in lock.wheels),
        )
        for lock in (machine.lock(b"x = 1\n"), machine.lock(b"x = 2\n"))
    )
    assert local_tags(one) == local_tags(other)
    requested = auditing(monkeypatch)
    first, second = (machine.build(lock, audit=True).digest for lock in (one, other))
    assert first != second
    assert machine.engine.loaded == [first, second]
    assert len(requested) == 2
    assert machine.build(one, audit=True).digest == first
    assert len(requested) == 2, "what is known of either is remembered"
