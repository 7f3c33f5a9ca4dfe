"""An image on its way to a repository: the blobs that it lacks, then the manifest under its digest and no tag."""

from __future__ import annotations

from imagegen.core.errors import StoreError
from imagegen.core.progress import Progress, human
from imagegen.core.registry.image import Descriptor
from imagegen.core.registry.push import BlobTotals, Moved
from imagegen.core.store import Store, digest_of
from imagegen.core.store.layout import MANIFEST_TYPE
from imagegen.core.text import counted
from imagegen.image.layers import Image
from imagegen.image.layers.image import CONFIG_TYPE
from imagegen.supply.publish.journal import RemoteRepository


def blobs(image: Image) -> tuple[Descriptor, ...]:
    """Config and layers, each blob once."""
    config = Descriptor(CONFIG_TYPE, digest_of(image.config), len(image.config))
    layers = {each.digest: Descriptor(each.media_type, each.digest, each.size) for each in image.layers}
    return (config, *layers.values())


def push(image: Image, repository: RemoteRepository, store: Store, progress: Progress) -> Moved:
    """Push the image to the repository. Raises PublishError, and StoreError for a blob that is in no known place.

    The first error cancels the other uploads and closes the client.
    """
    every = blobs(image)
    present = repository.target.present(every)
    lacking = [blob for blob in every if blob.digest not in present]
    if gone := [blob for blob in lacking if not store.has(blob.digest, blob.size) and not repository.target.link(blob)]:
        what = f"{counted(len(gone), 'layer')} can be taken neither from {repository.name} nor from the store"
        fix = "run the same command again: it makes them anew"
        raise StoreError(what, code="store-blobs-missing", why=", ".join(blob.digest for blob in gone), fix=fix)
    there = BlobTotals(len(present), sum(blob.size for blob in every if blob.digest in present))
    moved = Moved(there, BlobTotals(), BlobTotals())
    if lacking:
        with progress.meter(f"push to {repository.name}", sum(blob.size for blob in lacking)) as meter:
            went = repository.target.upload_all(lacking, store, meter)
        there = BlobTotals(there.blobs + went.there.blobs, there.size + went.there.size)
        moved = Moved(there, went.mounted, went.sent)
    repository.target.put(image.manifest, MANIFEST_TYPE)
    return moved


def format_summary(moved: Moved) -> str:
    """Return a summary for people: "12.0 MB sent, 3.10 GB there already"."""
    linked = f", {human(moved.mounted.size)} linked from a repository beside it" if moved.mounted.blobs else ""
    return f"{human(moved.sent.size)} sent{linked}, {human(moved.there.size)} there already"
