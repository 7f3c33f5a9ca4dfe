"""A project with a key, and machines that publish its images to a stand-in of a registry."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imagegen.app.project import ProjectContext
from imagegen.app.publish import PublishedImage, publish_images
from imagegen.app.publisher import Publisher, PublishOptions
from imagegen.app.session import Session
from imagegen.core.compiled import ResultCache
from imagegen.core.context import Context
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base as image_base
from imagegen.image.layers import byte_code
from imagegen.image.layers.sources import previously_built_layers
from imagegen.lock.model import Lock, LockedBase, LockedFile, LockedWheel
from imagegen.oci.documents import LayerDescriptor
from imagegen.run.smoke import runner as smoke_checks
from imagegen.spec.model import Cell, Declarations
from imagegen.trust.attach import gather
from imagegen.trust.project import FILE
from imagegen.trust.signers import Trust
from tests.support.environment import environment
from tests.support.interpreters import LOCKED
from tests.support.layer_inputs import HostSandbox
from tests.support.publish_engines import AXES, CELL, Engines
from tests.support.registry_server_writes import Writable
from tests.support.wheels import make_wheel

OTHER = "other"


def writable_registry() -> Iterator[Writable]:
    """Yield a registry that lists referrers; a fixture, as the two below."""
    registry = Writable()
    registry.referrers = True
    yield registry
    registry.close()


def stand_in_engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Let stand-ins take the place of engines, and of smoke checks."""
    engines = Engines()
    monkeypatch.setattr("imagegen.app.publish.Engine", engines)
    monkeypatch.setattr(smoke_checks, "run", engines.run)
    return engines


def team_at(registry: Writable, engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Return a team without members, whose bases and sandboxes are stand-ins."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(byte_code, "Sandbox", HostSandbox)
    made: list[Store] = []

    def build(_: object, context: Context) -> LayerDescriptor:
        made.append(context.store)
        return LayerDescriptor.of_tar(context.store.write(bytes(1024)), 1024)

    monkeypatch.setattr(image_base, "build", build)
    (tmp_path / "rootfs").mkdir()
    monkeypatch.setattr(image_base, "rootfs", lambda *_: tmp_path / "rootfs")
    return Team(tmp_path, registry, made)


def cell_of(lock: Lock) -> Cell:
    """The cell of a lock: as CELL but for its name and platform."""
    more: dict[str, object] = {"id": lock.cell, "axes": lock.axes, "image": lock.image}
    if lock.has_several:
        found = [(each.name, cell_of(each.lock)) for each in lock.environments]
        more["environments"] = [SimpleNamespace(name=name, cell=cell) for name, cell in found]
        more["declarations"] = Declarations(environments={name: cell.declarations for name, cell in found})
    return cast("Cell", SimpleNamespace(**{**vars(CELL), **more}))


class Team:
    """A project with a key, and the machines of those who work on it."""

    def __init__(self, root: Path, registry: Writable, bases: list[Store]) -> None:
        self.root, self.registry, self.bases = root, registry, bases
        self.committed: dict[str, Lock] = {}  # the project's locks, by cell
        self.key = root / "release.key"
        self.use_key(ec.generate_private_key(ec.SECP256R1()))
        (root / FILE).write_text("publish: {keys: {release: release.pub}}\n")

    def use_key(self, private: ec.EllipticCurvePrivateKey) -> None:
        """Sign with this key, and trust it alone."""
        plain = serialization.NoEncryption()
        self.key.write_bytes(
            private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        )
        self.key.chmod(0o600)
        public = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.root / "release.pub").write_bytes(public)

    def lock(self, *contents: bytes) -> Lock:
        """A lock of a wheel for each of the contents; its files are in no store."""
        wheels = []
        for number, content in enumerate(contents):
            name = f"demo{number:02}"
            path = make_wheel(
                self.root,
                {f"{name}.py": content},
                filename=f"{name}-1.0-py3-none-any.whl",
                info=f"{name}-1.0.dist-info",
            )
            data = path.read_bytes()
            sha256 = Store(self.root / "files").write(data).removeprefix("sha256:")
            wheels.append(LockedWheel(name, "1.0", LockedFile(path.name, len(data), sha256, "pypi"), via=()))
        uv = LockedWheel("uv", "1.0", LockedFile("uv-1.0-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
        base = LockedBase("debian12", "debian", "bookworm", {}, ())
        return Lock(
            cell=CELL.id,
            image="demo",
            axes=AXES,
            inputs={},
            uv=uv,
            as_of="2026-11-20T00:00:00Z",
            base=base,
            interpreter=LOCKED,
            wheels=tuple(wheels),
            env=(),
        )

    def sent(self) -> set[str]:
        """Digests of the blobs that the registry was given."""
        ends = [urlsplit(path) for method, path in self.registry.requested if method == "PUT" and "/uploads/" in path]
        return {parse_qs(end.query)["digest"][0] for end in ends}

    def got(self) -> set[str]:
        """Digests of what the registry was asked for."""
        return {path.rpartition("/")[2] for method, path in self.registry.requested if method == "GET"}

    def machine(self, name: str, *locks: Lock) -> Machine:
        """With an empty store, but for the wheels of these locks."""
        machine = Machine(self, self.root / name)
        files = Store(self.root / "files")
        for each in locks:
            for wheel in each.wheels:
                machine.store.write(files.read(wheel.file.digest))
        return machine


class Machine:
    def __init__(self, team: Team, root: Path) -> None:
        root.mkdir()
        self.team, self.said = team, list[str]()
        env = environment(root)
        progress = Quiet()
        progress.say = self.said.append  # type: ignore[method-assign]
        project = ProjectContext(env, team.root, progress)
        project.results = ResultCache(None)  # nothing is kept of finished builds
        project.settings_for = lambda _: project.settings  # type: ignore[method-assign]
        self.store = project.store
        images = {"demo": CELL, OTHER: CELL}
        self.session = Session(project)
        self.session.matrices.matrix = SimpleNamespace(  # type: ignore[assignment]
            defaults=images,
            gpus={},
            select=lambda name, **_: (images[name],),
            cells=lambda: [cell_of(lock) for lock in team.committed.values()],
        )
        vars(self.session)["lock_files"] = SimpleNamespace(
            project=project,
            digest_of_inputs=lambda *_: None,
            is_in_project=lambda cell: True,
            has=lambda cell: cell.id in team.committed,
            find=lambda cell: team.committed.get(cell.id),
            path=lambda cell: team.root / "locks" / f"{cell.id}.toml",
        )

    def publish(self, lock: Lock, *, key: bool = True, to: str = "acme/rl", **wishes: Any) -> PublishedImage:
        (published,) = self.publish_all([lock], key=key, to=to, **wishes)
        return published

    def publish_all(
        self, locks: Sequence[Lock], *, key: bool = True, to: str = "acme/rl", **wishes: Any
    ) -> tuple[PublishedImage, ...]:
        """Publish the images of the locks as one index."""
        requested = PublishOptions(key=self.team.key if key else None, **wishes)
        publisher = Publisher(self.session, f"{self.team.registry.host}/{to}", requested)
        return publish_images(publisher, [(cell_of(lock), lock) for lock in locks])

    def made(self, lock: Lock) -> set[str]:
        """Names of the lock's layers that this machine has made."""
        return {layer.name for layer in previously_built_layers(lock, self.store).values()}

    def kinds(self, digest: str) -> dict[str, str | None]:
        """Name of each attached document's kind -> who attests it."""
        publisher = Publisher(self.session, f"{self.team.registry.host}/acme/rl", PublishOptions())
        with Client(self.session.project.settings) as client:
            place = publisher.repository(client, publisher.reference("demo"))
            found = gather(place.reader, digest, Trust(publisher.project)).documents
        assert len({each.document.kind for each in found}) == len(found), "each once"
        return {each.document.kind.name: each.signer for each in found}

    def signers(self, digest: str) -> tuple[str, ...]:
        """Names of the trusted signers of an image or an index."""
        publisher = Publisher(self.session, f"{self.team.registry.host}/acme/rl", PublishOptions())
        with Client(self.session.project.settings) as client:
            place = publisher.repository(client, publisher.reference("demo"))
            return gather(place.reader, digest, Trust(publisher.project)).signers
