"""Publishing a cell from the command line: what the road is given of this project and machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import click

from imagegen.app import pipeline
from imagegen.app import publish as road
from imagegen.app.publish import Hands, Job, Made, Published
from imagegen.cli.app import App
from imagegen.cli.compiling import realised, with_engine
from imagegen.cli.gate import gate
from imagegen.core import registry
from imagegen.core.errors import FetchError, UsageError
from imagegen.core.git.worktree import ForeignRepositoryError
from imagegen.core.net import Client
from imagegen.core.registry import Reference, Repository, Target
from imagegen.core.registry.credentials import credentials_for
from imagegen.core.registry.image import Descriptor
from imagegen.core.registry.reference import HUB_NAMES, endpoint, engine_name
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image import base, layers
from imagegen.image.inventory import carried
from imagegen.image.layers import Image, gzipped
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.run import smoke
from imagegen.run.engine import Engine
from imagegen.run.smoke import numerics
from imagegen.supply.publish import papers
from imagegen.supply.publish.elsewhere import Elsewhere
from imagegen.supply.publish.journal import Place
from imagegen.supply.publish.proof import Wanted
from imagegen.supply.publish.push import blobs
from imagegen.supply.publish.tags import Channel, Compression, Subject, Tags, tags
from imagegen.supply.trust import keys, known, licences, origin, provenance
from imagegen.supply.trust.attach import Testimony, attach, gather
from imagegen.supply.trust.documents import FACT, FACTS, LAYERS, Attached, Document
from imagegen.supply.trust.keyless import keyless
from imagegen.supply.trust.project import Project
from imagegen.supply.trust.project import load as load_project
from imagegen.supply.trust.sbom import Known
from imagegen.supply.trust.signers import Signer, Trust

KEY_VARIABLE = "IMAGEGEN_SIGNING_KEY"
_PASSWORD_VARIABLE = "COSIGN_PASSWORD"  # noqa: S105 - the variable's name, which cosign has too

key_option = click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"Sign with this private key, whose password is in COSIGN_PASSWORD; else {KEY_VARIABLE} can name one.",
)


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for."""

    test: bool = True
    require_gpu: bool = False
    audit: bool = True
    channel: Channel = "latest"
    compression: Compression = "zstd"
    builder: str | None = None
    key: Path | None = None


class Publisher:
    """Publishes cells of a project to repositories below one place of a registry."""

    def __init__(self, app: App, to: str | None, wishes: Wishes) -> None:
        self.app, self.wishes = app, wishes
        self.project: Project = load_project(app.project)
        self.to = destination(to or self.project.to)

    @cached_property
    def trust(self) -> Trust:
        return Trust(self.project)

    @cached_property
    def signer(self) -> Signer | None:
        """Who signs: a key that is named, else the run of GitHub Actions that this is.

        Raises TrustError, also for one whom the project would not believe.
        """
        app = self.app
        if self._key:
            signer = keys.signer(self._key, app.env.get(_PASSWORD_VARIABLE), app.progress)
            self.trust.require(signer, self._key)
            return signer
        found = keyless(self.project, app.env, Client(app.settings))
        if found is None and self.trust.anybody:
            app.progress.say("note: nothing is signed, so whoever trusts what publish.yaml names believes none of it")
        return found

    def require_signer(self) -> None:
        """Raise TrustError for a signer of no use: its key cannot be had, or is none that the project names."""
        _ = self.trust, self.signer

    @property
    def _key(self) -> Path | None:
        named = self.app.env.get(KEY_VARIABLE)
        return self.wishes.key or (Path(named) if named else None)

    @cached_property
    def source(self) -> origin.Source | None:
        """The commit that the project is at; None, with a warning, in a repository of another user."""
        try:
            return origin.of(self.app.project, self.app.env, self.project.source)
        except ForeignRepositoryError as error:
            self.app.progress.say(f"warning: published without the commit it is made of: {error}")
            return None

    def reference(self, image: str) -> Reference:
        """The repository of an image. Raises FetchError for a name that no registry takes."""
        return registry.parse(f"{self.to}/{image}")

    def beside(self, image: str) -> list[Reference]:
        """The repositories of the project's other images."""
        return [self.reference(other) for other in sorted(self.app.matrix.defaults) if other != image]

    def tags(self, cell: Cell, lock: Lock) -> Tags:
        (default,) = self.app.matrix.select(cell.image)
        return tags(Subject.of(lock, default.axes, self.wishes.channel, self.wishes.compression))

    def place(self, client: Client, name: Reference, mounts: Sequence[Reference] = ()) -> Place:
        settings = self.app.settings
        return Place(name, Target(name, client, settings, mounts=mounts), Repository(name, client, settings))

    def job(self, cell: Cell, lock: Lock) -> Job:
        wishes = self.wishes
        return Job(
            lock,
            self.tags(cell, lock),
            cell.declarations,
            wishes.compression,
            wishes.test,
            wishes.require_gpu,
            expected(lock, self.app.store, wishes.compression),
        )

    def steps(self, lock: Lock) -> list[str]:
        """What is done besides pushing and tagging, in sentences.

        Raises TrustError as `publish` does, but asks GitHub for no token.
        """
        kinds = ["lock", "layers", "facts", "sbom", "provenance", *(["audit"] if self.wishes.audit else [])]
        _ = self.trust
        signed = "not signed: no key is named"
        if self._key and self.signer:
            signed = f"signed with {self.signer.name}"
        elif self.project.identities and self.app.env.get("GITHUB_ACTIONS"):
            signed = "signed without a key, as this run of GitHub Actions"
        found = licences.restricted(lock, Known())
        named = [f"named: {each.licence} restricts {counted(len(each.covers), 'package')}" for each in found]
        return [*named, f"attached: {', '.join(kinds)}; {signed}"]

    def publish(self, cell: Cell, lock: Lock) -> Published:
        """Raises what `road.publish` raises, and TrustError for a signer of no use, before anything is done."""
        self.require_signer()
        name, near = self.reference(cell.image), self.beside(cell.image)
        with Client(self.app.settings) as client:
            place = self.place(client, name, near)
            others = [self.place(client, other) for other in near]
            hands = _Hands(self, cell, lock, place).hands()
            return road.publish(self.job(cell, lock), hands, place, others, self.app.store, self.app.progress)


class _Hands:
    """What the road needs, for one cell."""

    def __init__(self, publisher: Publisher, cell: Cell, lock: Lock, place: Place) -> None:
        self._publisher, self._app, self._wishes = publisher, publisher.app, publisher.wishes
        self._cell, self._lock, self._place = cell, lock, place
        self._licences: Known | None = None
        self._facts: dict[str, bytes] = {}
        self._said: dict[tuple[str, str], Testimony] = {}

    def hands(self) -> Hands:
        return Hands(self.realise, self.make, self.documents, self.attach, self.said, self.prove)

    def realise(self) -> Lock:
        return realised(self._app, self._cell, self._lock, with_engine(self._app, self._cell, self._wishes.builder))

    def make(self, lock: Lock, elsewhere: Elsewhere) -> Made:
        app = self._app
        held = gate(app, self._cell, no_audit=not self._wishes.audit)
        plain = pipeline.to_store(
            lock,
            app.store,
            app.sources(self._cell),
            app.progress,
            held,
            elsewhere=elsewhere.layers,
            bring=self._bring(elsewhere),
        )
        self._name_restrictions(lock)
        if self._wishes.compression == "zstd":
            return Made(plain, plain)
        return Made(gzipped.gzipped(lock, plain, app.store, app.progress, elsewhere.packed), plain)

    def _name_restrictions(self, lock: Lock) -> None:
        """Who publishes answers for it: so they hear of it before anything leaves this machine."""
        for each in licences.restricted(lock, self._known(lock)):
            self._app.progress.say(f"NOTE: restricted: {each}")

    def _known(self, lock: Lock) -> Known:
        if self._licences is None:
            app = self._app
            self._licences = known.known(lock, app.store, app.sources(self._cell), app.progress)
        return self._licences

    def _bring(self, elsewhere: Elsewhere) -> base.Bring:
        packed = {layer.diff_id: layer for layer in elsewhere.packed.values()}

        def bring(wanted: registry.Layer) -> registry.Layer:
            if there := packed.get(wanted.diff_id):
                wanted = registry.Layer(there.media_type, there.digest, there.size, there.diff_id)
            with self._app.progress.meter("fetch the base's layer", wanted.size) as meter:
                self._place.repository.download(wanted.digest, wanted.size, self._app.store, meter)
            return wanted

        return bring

    def documents(self, lock: Lock, made: Made) -> Sequence[Document]:
        app = self._app
        audit = pipeline.audit_report(lock, self._cell, app.store) if self._wishes.audit else None
        self._facts = carried.known(lock, app.store)
        return papers.documents(
            lock,
            made.image,
            made.plain,
            self._facts,
            known=self._known(lock),
            audit=audit,
            numerics=numerics.document(app.store, made.image.digest),
            source=self._publisher.source,
            builder=provenance.builder(app.env),
        )

    def attach(self, place: Place, subject: Descriptor, documents: Sequence[Document]) -> None:
        publisher, there = self._publisher, self._testimony(place, subject.digest)
        signer = publisher.signer
        new = papers.news(documents, there.documents, signs=signer is not None)
        if any(document.kind is LAYERS for document in new):  # before it names them
            place.target.refer_all(subject, FACTS, self._facts, FACT, {})
        if new or (signer and not there.signers):
            told = papers.origin_of(publisher.source)
            attach(place.target, place.repository, subject, new, signer, told, publisher.trust)

    def said(self, place: Place, digest: str) -> tuple[Attached, ...]:
        return self._testimony(place, digest).documents

    def _testimony(self, place: Place, digest: str) -> Testimony:
        """Asked once: what is attached meanwhile is our own."""
        key = place.name, digest
        if key not in self._said:
            self._said[key] = gather(place.repository, digest, self._publisher.trust)
            for fault in self._said[key].faults:
                self._app.progress.say(f"warning: {fault}")
        return self._said[key]

    def prove(self, lock: Lock, image: Image, wanted: Wanted) -> smoke.Report:
        """The checks in an engine, which gets from the registry what the store lacks."""
        app = self._app
        tag = pipeline.tags(lock)[1] + ("" if self._wishes.compression == "zstd" else "-gzip")
        with Engine.connect(app.settings, app.progress) as engine:
            if all(app.store.has(blob.digest, blob.size) for blob in blobs(image)):
                engine.load(app.store, image.digest, tag, app.progress)
            else:
                found = credentials_for(endpoint(self._place.reference, app.settings).host, app.settings.env)
                login = (found.user, found.secret) if found else None
                name = engine_name(self._place.reference, app.settings)
                engine.pull(name, image.digest, tag, login, app.progress)
            declared = self._cell.declarations
            return smoke.run(engine, image.digest, lock, declared, require_gpu=wanted.gpu, progress=app.progress)


def destination(named: str | None) -> str:
    """Where images go: a place of a registry below which each has a repository. Raises UsageError."""
    fix = "write ghcr.io/acme/rl, say; publish.yaml can name it: `publish: {to: ghcr.io/acme/rl}`"
    if named is None:
        raise UsageError(
            "there is no place to publish to",
            code="usage-no-repository",
            why="neither --to nor publish.yaml names one",
            fix=fix,
        )
    place = named.removesuffix("/")
    path = place.partition("/")[2]
    why = None
    if ":" in path.rpartition("/")[2] or "@sha256:" in path:
        why = "it is one image: each image gets a repository below the place, and tags of its own"
    elif place in HUB_NAMES:
        why = "on Docker Hub, repositories lie below the name of a user or an organization"
    else:
        try:
            registry.parse(f"{place}/image")
        except FetchError as error:
            why = error.why or error.what
    if why:
        raise UsageError("--to names no place of a registry", code="usage-no-repository", why=why, fix=fix)
    return place


def expected(lock: Lock, store: Store, compression: Compression) -> str | None:
    """The digest that the lock's image will have, where that is known: it was made here, or the lock promises it."""
    if compression != "zstd":
        return None
    record = lock.record
    if record and (record.layer_format, record.codec) == (LAYER_FORMAT, CODEC):
        return record.digest
    return layers.made_here(replace(lock, record=None), store)
