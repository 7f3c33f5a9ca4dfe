"""Push the missing blobs of an image to a repository, then its manifest by digest, without a tag."""

from __future__ import annotations

from imagegen.core.errors import StoreError
from imagegen.core.progress import Progress, human
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.layers import Image
from imagegen.oci.documents import MANIFEST_TYPE
from imagegen.oci.registry.push import BlobTotals, PushTotals
from imagegen.publish.repository import RemoteRepository


def push(image: Image, repository: RemoteRepository, store: Store, progress: Progress) -> PushTotals:
    """Push the image to the repository. Raises PublishError, and StoreError for a blob that cannot be found.

    The first error cancels the other uploads and closes the client.
    """
    blobs = image.blobs
    present = repository.writer.present(blobs)
    missing = [blob for blob in blobs if blob.digest not in present]
    if lost := [blob for blob in missing if not store.has(blob.digest, blob.size) and not repository.writer.link(blob)]:
        summary = f"{counted(len(lost), 'layer')} are neither in {repository.name} nor in the store"
        fix = "run the same command again to build them"
        raise StoreError(summary, code="store-blobs-missing", why=", ".join(blob.digest for blob in lost), fix=fix)
    remote = BlobTotals(len(present), sum(blob.size for blob in blobs if blob.digest in present))
    moved = PushTotals(remote, BlobTotals(), BlobTotals())
    if missing:
        with progress.meter(f"push to {repository.name}", sum(blob.size for blob in missing)) as meter:
            uploaded = repository.writer.upload_all(missing, store, meter)
        remote = BlobTotals(remote.blobs + uploaded.there.blobs, remote.size + uploaded.there.size)
        moved = PushTotals(remote, uploaded.mounted, uploaded.sent)
    repository.writer.put(image.manifest, MANIFEST_TYPE)
    return moved


def format_summary(moved: PushTotals) -> str:
    """Return a summary for human readers: "12.0 MB sent, 3.10 GB already there"."""
    mounted = f", {human(moved.mounted.size)} mounted from a sibling repository" if moved.mounted.blobs else ""
    return f"{human(moved.sent.size)} sent{mounted}, {human(moved.there.size)} already there"
