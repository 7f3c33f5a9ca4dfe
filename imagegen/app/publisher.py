"""The project's publishing configuration: destination, signer, trusted signers, tags."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from imagegen.app.lock_files import LockFiles
from imagegen.app.session import Session
from imagegen.core.errors import FetchError, LockError, StoreError, UsageError
from imagegen.core.git.worktree import ForeignRepositoryError
from imagegen.core.net import Client
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.core.types import Compression
from imagegen.image import layers
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.lock.model import Lock
from imagegen.oci import registry
from imagegen.oci.documents import MANIFEST_TYPE, Descriptor, digest_of, write_image_index
from imagegen.oci.registry import PushTarget, Reference, Repository
from imagegen.oci.registry.reference import HUB_NAMES
from imagegen.publish.repository import RemoteRepository
from imagegen.publish.tags import Channel, TagInput, Tags, tags
from imagegen.spec.model import Cell
from imagegen.trust import keys
from imagegen.trust.keyless import keyless
from imagegen.trust.licences import KnownLicences
from imagegen.trust.project import Project
from imagegen.trust.project import load as load_project
from imagegen.trust.restrictions import find_restrictions
from imagegen.trust.signers import Signer, Trust
from imagegen.trust.source_commit import SourceCommit, find_source

KEY_VARIABLE = "IMAGEGEN_SIGNING_KEY"
_PASSWORD_VARIABLE = "COSIGN_PASSWORD"  # noqa: S105 - the variable's name, which cosign has too


@dataclass(frozen=True)
class PublishOptions:
    """Options of publishing. `builder` is a buildx builder, for source builds."""

    test: bool = True
    require_gpu: bool = False
    audit: bool = True
    channel: Channel = "latest"
    compression: Compression = "zstd"
    builder: str | None = None
    key: Path | None = None


@dataclass(frozen=True)
class PublishJob:
    """One image to publish; `expected` is its digest if it is known before anything is built.

    `tags` are the tags of the image, or of the index that it is in.
    """

    cell: Cell
    lock: Lock
    tags: Tags
    options: PublishOptions = PublishOptions()
    expected: str | None = None


class Publisher:
    """The project's publishing configuration, for images in repositories below one path of a registry.

    `signer` is None before `load_signer`, and without a signer. Raises TrustError for an unusable trusted key.
    """

    def __init__(self, session: Session, to: str | None, options: PublishOptions) -> None:
        self.session, self.options = session, options
        self.project: Project = load_project(session.project.directory)
        self.to = parse_destination(to or self.project.to)
        self.trust = Trust(self.project)
        self.signer: Signer | None = None
        self._is_signer_loaded = False

    def load_signer(self) -> None:
        """Read the signing key, or else request an identity token for this run of GitHub Actions; once.

        Raises TrustError, also for a signer that the project does not trust.
        """
        if self._is_signer_loaded:
            return
        session = self.session
        if self._key:
            signer = keys.read_signer(self._key, session.project.env.get(_PASSWORD_VARIABLE), session.project.progress)
            self.trust.require(signer, self._key)
            self.signer = signer
        else:
            self.signer = keyless(self.project, session.project.env, Client(session.project.settings))
            if self.signer is None and self.trust.has_signers:
                session.project.progress.say(
                    "note: nothing is signed; machines that trust signers of publish.yaml reject it"
                )
        self._is_signer_loaded = True

    @property
    def _key(self) -> Path | None:
        variable = self.session.project.env.get(KEY_VARIABLE)
        return self.options.key or (Path(variable) if variable else None)

    @cached_property
    def source(self) -> SourceCommit | None:
        """The commit that the project is at; None, with a warning, in a repository of another user."""
        try:
            return find_source(self.session.project.directory, self.session.project.env, self.project.source)
        except ForeignRepositoryError as error:
            self.session.project.progress.say(f"warning: published without the commit it is made of: {error}")
            return None

    def reference(self, image: str) -> Reference:
        """Return the repository of an image. Raises FetchError for a name that no registry accepts."""
        return registry.parse(f"{self.to}/{image}")

    def repositories(self, client: Client, image: str) -> tuple[RemoteRepository, list[RemoteRepository]]:
        """Return the image's repository, which mounts blobs from the others, and the project's other ones.

        Images that the project itself has locked come first: blobs are mounted from a limited number of repositories.
        """
        session = self.session
        locked = [cell for cell in session.matrix.cells() if session.lock_files.has(cell)]
        own_images = {cell.image for cell in locked if session.lock_files.is_in_project(cell)}
        other_images = sorted(
            session.matrix.defaults.keys() - {image}, key=lambda other: (other not in own_images, other)
        )
        siblings = [self.reference(other) for other in other_images]
        return (
            self.repository(client, self.reference(image), siblings),
            [self.repository(client, sibling) for sibling in siblings],
        )

    def repository(self, client: Client, name: Reference, mounts: Sequence[Reference] = ()) -> RemoteRepository:
        settings = self.session.project.settings
        target = PushTarget(name, client, settings, mounts=mounts)
        return RemoteRepository(name, target, Repository(name, client, settings))

    def tags(self, cells: Sequence[tuple[Cell, Lock]]) -> Tags:
        """Return the tags of an image, or of the index of images that differ only in the platform."""
        (default,) = self.session.matrix.select(cells[0][0].image)
        locks, options = [lock for _, lock in cells], self.options
        if len(locks) == 1:
            return tags(TagInput.of(locks[0], default.axes, options.channel, options.compression))
        return tags(TagInput.of_index(locks, default.axes, options.channel, options.compression))

    def jobs(self, cells: Sequence[tuple[Cell, Lock]]) -> tuple[PublishJob, ...]:
        """Return a job for each image; all of them have the same tags."""
        shared, store, options = self.tags(cells), self.session.project.store, self.options
        return tuple(
            PublishJob(cell, lock, shared, options, expected_digest(lock, store, options.compression))
            for cell, lock in cells
        )

    def attachment_steps(self, lock: Lock) -> list[str]:
        """Return sentences about the steps of publishing besides pushing and tagging.

        Raises TrustError as `publish_images` does, but requests no token from GitHub.
        """
        kinds = ["lock", "layers", "facts", "sbom", "provenance", *(["audit"] if self.options.audit else [])]
        if self._key:
            self.load_signer()
        signed = "not signed: no key is named"
        if self.signer:
            signed = f"signed with {self.signer.name}"
        elif self.project.identities and self.session.project.env.get("GITHUB_ACTIONS"):
            signed = "signed without a key, as this run of GitHub Actions"
        restriction_texts = [
            f"named: {restriction.licence} restricts {counted(len(restriction.covers), 'package')}"
            for restriction in find_restrictions(lock, KnownLicences())
        ]
        return [*restriction_texts, f"attached: {', '.join(kinds)}; {signed}"]


def parse_destination(destination: str | None) -> str:
    """Return the registry path below which each image has a repository. Raises UsageError."""
    fix = "write ghcr.io/acme/rl, say; publish.yaml can name it: `publish: {to: ghcr.io/acme/rl}`"
    if destination is None:
        raise UsageError(
            "there is no repository to publish to",
            code="usage-no-repository",
            why="neither --to nor publish.yaml names one",
            fix=fix,
        )
    path_prefix = destination.removesuffix("/")
    path = path_prefix.partition("/")[2]
    why = None
    if ":" in path.rpartition("/")[2] or "@sha256:" in path:
        why = "it names one image, but each image gets a repository below the path, and tags of its own"
    elif path_prefix in HUB_NAMES:
        why = "on Docker Hub, repositories lie below the name of a user or an organization"
    else:
        try:
            registry.parse(f"{path_prefix}/image")
        except FetchError as error:
            why = error.why or error.what
    if why:
        raise UsageError("--to names no repository of a registry", code="usage-no-repository", why=why, fix=fix)
    return path_prefix


def expected_digest(lock: Lock, store: Store, compression: Compression) -> str | None:
    """Return the digest that the lock's image will have, if the store built it or the lock records it."""
    if compression != "zstd":
        return None
    record = lock.record
    if record and (record.layer_format, record.codec) == (LAYER_FORMAT, CODEC):
        return record.digest
    return layers.built_digest(replace(lock, record=None), store)


def expected_tagged(jobs: Sequence[PublishJob], store: Store) -> str | None:
    """Return the digest that the tags will name, if it is known before anything is built."""
    if len(jobs) == 1:
        return jobs[0].expected
    images: dict[str, Descriptor] = {}
    for job in jobs:
        recorded = layers.recorded_image(job.lock) if job.lock.record else None
        if job.expected and recorded and recorded.digest == job.expected:
            images[job.lock.platform] = Descriptor(MANIFEST_TYPE, job.expected, len(recorded.manifest))
        elif job.expected:
            with suppress(StoreError):  # if the store has lost the manifest, the build makes it again
                images[job.lock.platform] = Descriptor(MANIFEST_TYPE, job.expected, len(store.read(job.expected)))
    return digest_of(write_image_index(images)) if len(images) == len(jobs) else None


def known_digest(lock_files: LockFiles, cell: Cell, lock: Lock) -> str:
    """Return the digest of the cell's image. Raises LockError where the lock has no record and nothing was built."""
    digest = expected_digest(lock, lock_files.project.store, "zstd")
    if digest is None:
        raise LockError(
            f"the digest of {cell.id} is not known",
            code="lock-no-record",
            where=str(lock_files.path(cell)),
            why="the lock has no record, and the image was not built here",
            fix=f"`imagegen lock {cell.id} --record` or `imagegen build {cell.id}`",
        )
    return digest
