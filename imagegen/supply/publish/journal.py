"""Move the tags of an image together, as far as a registry allows: write a journal first, roll back on failure.

A registry moves one tag at a time and has no transaction. So the digest of each tag is read first, and kept in the
store with its manifest's bytes; then the tags move; a failure moves them back. A killed run leaves the journal, and the
next run of this store begins by rolling back. A tag that did not exist before stays: its image is smoke-tested, and
many registries cannot delete a tag.

At every moment each tag names a manifest that the registry has whole: either the previous or the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from imagegen.core.errors import ImagegenError, PublishError, StoreError
from imagegen.core.net import NotFoundError
from imagegen.core.oci.types import MANIFEST_TYPE
from imagegen.core.progress import Progress, human
from imagegen.core.registry import PushTarget, Reference, Repository
from imagegen.core.registry.push import BlobTotals, Moved
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import counted
from imagegen.image.layers import Image
from imagegen.image.layers.plan import digest_of_json


@dataclass(frozen=True)
class TaggedManifest:
    """A manifest as a tag names it; its bytes are in the store."""

    digest: str
    media_type: str


@dataclass(frozen=True)
class RemoteRepository:
    """A repository, to write to and to read from."""

    reference: Reference
    writer: PushTarget
    reader: Repository

    @property
    def name(self) -> str:
        return self.reference.name

    def resolve_tag(self, tag: str) -> str | None:
        """Return the digest that the tag names; None if it does not exist.

        The request uses write access: many registries deny others to read what does not exist yet. Raises PublishError,
        FetchError.
        """
        found = self.writer.manifest(tag)
        return self.reader.manifest(tag)[0] if found == "" else found

    def fetch_manifest(self, digest: str, store: Store) -> TaggedManifest:
        """Fetch the manifest with this digest into the store."""
        _, data, media_type = self.reader.manifest(digest)
        store.write(data)
        return TaggedManifest(digest, media_type)


@dataclass(frozen=True)
class TagMove:
    """A move of tags to the manifest `to`; `before` maps each tag to the manifest that it named."""

    repository: str
    to: str
    before: Mapping[str, TaggedManifest | None]


_MOVES = Cache("publishing", TagMove)


def move_tags(
    repository: RemoteRepository, store: Store, to: TaggedManifest, tags: Sequence[str], progress: Progress
) -> dict[str, str | None]:
    """Move the tags to the manifest `to`; return what each tag that moved named before.

    Raises what went wrong, after putting back what had moved already.
    """
    named = {tag: found for tag in tags if (found := repository.resolve_tag(tag)) != to.digest}
    if not named:
        return {}
    previous = {digest: repository.fetch_manifest(digest, store) for digest in dict.fromkeys(named.values()) if digest}
    before = {tag: previous[digest] if digest else None for tag, digest in named.items()}
    journal = TagMove(repository.name, to.digest, before)
    _MOVES.put(store, _key(repository.name), journal)
    try:
        data = store.read(to.digest)
        for tag in before:
            repository.writer.put(data, to.media_type, tag)
    except BaseException as error:
        failed = _roll_back(repository, store, journal, progress)
        if isinstance(error, PublishError) and not failed:
            error.fix = error.fix or "no tag has moved; run the same command again"
        raise
    _clear(store, repository.name)
    return named


def recover(repository: RemoteRepository, store: Store, progress: Progress) -> None:
    """Roll back the tags that an interrupted run moved in part. Raises PublishError where that fails."""
    journal = _MOVES.get(store, _key(repository.name))
    if journal is None:
        return
    if all(repository.resolve_tag(tag) == journal.to for tag in journal.before):
        _clear(store, repository.name)  # all had moved
        return
    progress.say(f"{repository.name}: an earlier run was ended while it moved tags")
    if failed := _roll_back(repository, store, journal, progress):
        what = f"{repository.name}: {counted(len(failed), 'tag')} that an earlier run had moved cannot be put back"
        raise PublishError(
            what, code="publish-rollback-failed", why=", ".join(failed), fix="the same command again tries it again"
        )


def _roll_back(repository: RemoteRepository, store: Store, journal: TagMove, progress: Progress) -> list[str]:
    """Move tags that name the new image back, remove the journal, and return the tags that could not be moved.

    A tag that another run has moved meanwhile stays.
    """
    failed = []
    for tag, old in journal.before.items():
        try:
            if old is not None and repository.resolve_tag(tag) == journal.to:
                if (data := _manifest_bytes(repository, store, old.digest)) is None:
                    progress.say(f"{repository.name}:{tag} stays: the manifest that it named, {old.digest}, is gone")
                    continue
                repository.writer.put(data, old.media_type, tag)
                progress.say(f"{repository.name}:{tag} is back at {old.digest}")
        except ImagegenError:
            failed.append(tag)
    if failed:
        what = f"{', '.join(failed)} may name the new image already"
        progress.say(f"{repository.name}: {what}; the same command again rolls back")
    else:
        _clear(store, repository.name)
    return failed


def _manifest_bytes(repository: RemoteRepository, store: Store, digest: str) -> bytes | None:
    """Return a manifest from the store, else from the registry; None where neither has it."""
    with suppress(StoreError):
        return store.read(digest)
    try:
        return repository.reader.manifest(digest)[1]
    except NotFoundError:
        return None


def _key(repository: str) -> str:
    return digest_of_json(["repository", repository])


def _clear(store: Store, repository: str) -> None:
    with suppress(ImagegenError):  # of a store that cannot be written: then there was no journal either
        _MOVES.forget(store, _key(repository))


# An image on its way to a repository: the blobs that it lacks, then the manifest under its digest and no tag.


def push(image: Image, repository: RemoteRepository, store: Store, progress: Progress) -> Moved:
    """Push the image to the repository. Raises PublishError, and StoreError for a blob that is in no known place.

    The first error cancels the other uploads and closes the client.
    """
    every = image.blobs
    present = repository.writer.present(every)
    lacking = [blob for blob in every if blob.digest not in present]
    if gone := [blob for blob in lacking if not store.has(blob.digest, blob.size) and not repository.writer.link(blob)]:
        what = f"{counted(len(gone), 'layer')} can be taken neither from {repository.name} nor from the store"
        fix = "run the same command again: it makes them anew"
        raise StoreError(what, code="store-blobs-missing", why=", ".join(blob.digest for blob in gone), fix=fix)
    there = BlobTotals(len(present), sum(blob.size for blob in every if blob.digest in present))
    moved = Moved(there, BlobTotals(), BlobTotals())
    if lacking:
        with progress.meter(f"push to {repository.name}", sum(blob.size for blob in lacking)) as meter:
            went = repository.writer.upload_all(lacking, store, meter)
        there = BlobTotals(there.blobs + went.there.blobs, there.size + went.there.size)
        moved = Moved(there, went.mounted, went.sent)
    repository.writer.put(image.manifest, MANIFEST_TYPE)
    return moved


def format_summary(moved: Moved) -> str:
    """Return a summary for human readers: "12.0 MB sent, 3.10 GB already there"."""
    mounted = f", {human(moved.mounted.size)} mounted from a sibling repository" if moved.mounted.blobs else ""
    return f"{human(moved.sent.size)} sent{mounted}, {human(moved.there.size)} already there"
