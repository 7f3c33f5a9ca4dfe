"""Moving the tags of an image all together, as far as a registry allows: a journal first, and back on failure.

A registry moves one tag at a time and has no transaction. So what each tag stood for is read first, and kept in the
store with its manifest's bytes; then the tags move; a failure puts them back. Who is killed in between leaves the
journal, and the next run of this store begins by putting back what was left half moved. A tag that did not exist before
stays where it is: its image is proven, and many registries cannot take a tag away.

At every moment each tag names a manifest that the registry has whole: either the one before or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from imagegen.core.errors import ImagegenError, PublishError, StoreError
from imagegen.core.net import NotFoundError
from imagegen.core.registry import Reference, Repository, Target
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.layers.plan import digest_of_json

_KIND = "publishing"  # records of the store

Say = Callable[[str], None]


@dataclass(frozen=True)
class Manifest:
    """A manifest as a tag names it; its bytes are in the store."""

    digest: str
    media_type: str


@dataclass(frozen=True)
class Place:
    """A repository, to write to and to read from."""

    reference: Reference
    target: Target
    repository: Repository

    @property
    def name(self) -> str:
        return self.reference.name

    def standing(self, tag: str) -> str | None:
        """The digest that the tag stands for; None for nothing.

        Asked as who may write: many registries refuse everybody else to read what does not exist yet. Raises
        PublishError, FetchError.
        """
        found = self.target.manifest(tag)
        return self.repository.manifest(tag)[0] if found == "" else found

    def kept(self, digest: str, store: Store) -> Manifest:
        """The manifest with this digest, its bytes in the store."""
        _, data, media_type = self.repository.manifest(digest)
        store.write(data)
        return Manifest(digest, media_type)


@dataclass(frozen=True)
class Move:
    """All tags that go to `to`, and what they stood for."""

    repository: str
    to: str
    before: Mapping[str, Manifest | None]


def move(place: Place, store: Store, to: Manifest, tags: Sequence[str], say: Say) -> dict[str, str | None]:
    """Let the tags name the manifest `to`; what each of those that moved stood for.

    Raises what went wrong, after putting back what had moved already.
    """
    standing = {tag: found for tag in tags if (found := place.standing(tag)) != to.digest}
    if not standing:
        return {}
    olds = {digest: place.kept(digest, store) for digest in dict.fromkeys(standing.values()) if digest}
    moving = {tag: olds[digest] if digest else None for tag, digest in standing.items()}
    journal = Move(place.name, to.digest, moving)
    _write(store, journal)
    try:
        data = store.read(to.digest)
        for tag in moving:
            place.target.put(data, to.media_type, tag)
    except BaseException as error:
        left = _put_back(place, store, journal, say)
        if isinstance(error, PublishError) and not left:
            error.fix = error.fix or "the tags are where they were; the same command again goes on"
        raise
    _clear(store, place.name)
    return standing


def settle(place: Place, store: Store, say: Say) -> None:
    """Bring what a killed run left half moved back to where it was. Raises PublishError where that fails."""
    journal = _read(store, place.name)
    if journal is None:
        return
    if all(place.standing(tag) == journal.to for tag in journal.before):
        _clear(store, place.name)  # all had moved
        return
    say(f"{place.name}: an earlier run was ended while it moved tags")
    if left := _put_back(place, store, journal, say):
        what = f"{place.name}: {counted(len(left), 'tag')} that an earlier run had moved cannot be put back"
        raise PublishError(
            what, code="publish-rollback-failed", why=", ".join(left), fix="the same command again tries it again"
        )


def _put_back(place: Place, store: Store, journal: Move, say: Say) -> list[str]:
    """Tags that name the new image go back to what they named; the journal goes when all have. Those that have not.

    One that somebody else has moved meanwhile is theirs.
    """
    left = []
    for tag, old in journal.before.items():
        try:
            if old is not None and place.standing(tag) == journal.to:
                if (data := _bytes(place, store, old.digest)) is None:
                    say(f"{place.name}:{tag} stays: nobody has the manifest any more that it named, {old.digest}")
                    continue
                place.target.put(data, old.media_type, tag)
                say(f"{place.name}:{tag} is back at {old.digest}")
        except ImagegenError:
            left.append(tag)
    if left:
        say(f"{place.name}: {', '.join(left)} may name the new image already; the same command again settles it")
    else:
        _clear(store, place.name)
    return left


def _bytes(place: Place, store: Store, digest: str) -> bytes | None:
    """A manifest, of the store or else of the registry."""
    with suppress(StoreError):
        return store.read(digest)
    try:
        return place.repository.manifest(digest)[1]
    except NotFoundError:
        return None


def _key(repository: str) -> str:
    return digest_of_json(["repository", repository])


def _write(store: Store, journal: Move) -> None:
    store.remember(_KIND, _key(journal.repository), asdict(journal))


def _read(store: Store, repository: str) -> Move | None:
    found = store.recall(_KIND, _key(repository))
    if found is None:
        return None
    before: dict[str, Any] = found["before"]
    return Move(
        found["repository"], found["to"], {tag: Manifest(**old) if old else None for tag, old in before.items()}
    )


def _clear(store: Store, repository: str) -> None:
    with suppress(ImagegenError):  # of a store that cannot be written: then there was no journal either
        store.forget(_KIND, _key(repository))
