"""Move the tags of a repository together.

A registry moves one tag at a time and has no transaction. So the digest of each tag is read first, and stored with its
manifest's bytes. Then the tags move, and a failure moves them back. A killed run leaves the journal, and the next run
with this store begins by rolling back. A tag that did not exist before stays, because its image is smoke-tested, and
many registries cannot delete a tag.

At every moment each tag names a complete manifest, either the previous or the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from imagegen.core.errors import ImagegenError, PublishError, StoreError
from imagegen.core.net import NotFoundError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import counted
from imagegen.image.layers.plan import digest_of_json
from imagegen.oci.documents import INDEX_TYPE, MANIFEST_TYPE
from imagegen.publish.repository import RemoteRepository, TaggedManifest


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
    """Move the tags to the manifest `to`; return the previous digest of each tag that moved.

    After an error, tags that have moved are moved back, and the error is raised.
    """
    moved = {tag: old for tag in tags if (old := repository.resolve_tag(tag)) != to.digest}
    if not moved:
        return {}
    previous = {digest: repository.fetch_manifest(digest, store) for digest in dict.fromkeys(moved.values()) if digest}
    before = {tag: previous[digest] if digest else None for tag, digest in moved.items()}
    journal = TagMove(repository.name, to.digest, before)
    _MOVES.put(store, move_key(repository.name), journal)
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
    wider = [
        tag for tag, old in before.items() if old and (old.media_type, to.media_type) == (INDEX_TYPE, MANIFEST_TYPE)
    ]
    if wider:
        progress.say(
            f"NOTE: {', '.join(wider)} named an index of several platforms; `--platform all` publishes an index"
        )
    return moved


def recover(repository: RemoteRepository, store: Store, progress: Progress) -> None:
    """Roll back the tags that an interrupted run has moved. Raises PublishError if that fails."""
    journal = _MOVES.get(store, move_key(repository.name))
    if journal is None:
        return
    if all(repository.resolve_tag(tag) == journal.to for tag in journal.before):
        _clear(store, repository.name)  # all had moved
        return
    progress.say(f"{repository.name}: an earlier run was interrupted while it moved tags")
    if failed := _roll_back(repository, store, journal, progress):
        summary = f"{repository.name}: {counted(len(failed), 'tag')} that an earlier run had moved cannot be moved back"
        raise PublishError(
            summary, code="publish-rollback-failed", why=", ".join(failed), fix="run the same command again"
        )


def _roll_back(repository: RemoteRepository, store: Store, journal: TagMove, progress: Progress) -> list[str]:
    """Move tags that name the new image back, remove the journal, and return the tags that could not be moved.

    A tag that another run has moved in the meantime is not changed.
    """
    failed = []
    for tag, old in journal.before.items():
        try:
            if old is not None and repository.resolve_tag(tag) == journal.to:
                if (data := _manifest_bytes(repository, store, old.digest)) is None:
                    progress.say(f"{repository.name}:{tag} is not moved back because {old.digest} was deleted")
                    continue
                repository.writer.put(data, old.media_type, tag)
                progress.say(f"{repository.name}:{tag} was moved back to {old.digest}")
        except ImagegenError:
            failed.append(tag)
    if failed:
        summary = f"{', '.join(failed)} may name the new image"
        progress.say(f"{repository.name}: {summary}; run the same command again to roll back")
    else:
        _clear(store, repository.name)
    return failed


def _manifest_bytes(repository: RemoteRepository, store: Store, digest: str) -> bytes | None:
    """Return a manifest from the store, else from the registry; None if neither has it."""
    with suppress(StoreError):
        return store.read(digest)
    try:
        return repository.reader.manifest(digest)[1]
    except NotFoundError:
        return None


def move_key(repository: str) -> str:
    """Return the key of the journal of a repository."""
    return digest_of_json(["repository", repository])


def _clear(store: Store, repository: str) -> None:
    with suppress(ImagegenError):  # a store that cannot be written has no journal
        _MOVES.forget(store, move_key(repository))
