"""Segments are the parts of a layer by wheel, copied from a stored layer when a neighbour of the wheel changes.

Most of the work on a wheel, compiling and inflating, is then not done again. The bytes are the same either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath

import zstandard

from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.store.layout import DamagedError
from imagegen.core.types import Digest, Size
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.tar import TarWriter
from imagegen.oci.documents import LayerDescriptor

_READ = 1 << 20


@dataclass(frozen=True)
class Segment:
    """A part of the tar in a stored layer: `length` bytes from the byte `skip` of the zstd frame at `offset` of a blob.

    The part has the entries of the directories `added`; its other entries lie in these directories and in `above`.
    """

    digest: Digest
    size: Size
    offset: Size
    skip: Size
    length: Size
    added: tuple[str, ...]
    above: tuple[str, ...]


_SEGMENTS = Cache("segment", Segment)


@dataclass(frozen=True)
class _Span:
    start: int
    end: int
    added: tuple[str, ...]
    above: tuple[str, ...]


class SegmentedTar(TarWriter):
    """Writes the tar of a layer, with segments that later layers can copy. A segment's key decides its bytes.

    Directories are the exception: which of them have entries already is compared. Where one differs, there is no copy.
    """

    def __init__(self, store: Store, sink: LayerSink, below: Iterable[str] = ()) -> None:
        super().__init__(sink, below)
        self._store, self._sink = store, sink
        self._spans: dict[str, _Span] = {}
        self._verified: set[str] = set()  # digests of blobs

    def copy(self, key: str) -> bool:
        """Write the segment of this key from a stored layer, and return whether one has it."""
        segment = _SEGMENTS.get(self._store, key)
        present = self._directories.keys()  # the same as where the segment was made
        if segment is None or not present >= {*segment.above} or not present.isdisjoint(segment.added):
            return False
        if not self._is_whole(segment):
            return False
        start = self._sink.unpacked
        with self._store.path(segment.digest).open("rb") as blob:
            blob.seek(segment.offset)
            reader = zstandard.ZstdDecompressor().stream_reader(blob, read_size=_READ, read_across_frames=True)
            reader.read(segment.skip)
            remaining = segment.length
            while remaining:
                data = reader.read(min(remaining, _READ))
                if not data:
                    raise DamagedError(
                        f"blob {segment.digest} ends before the segment {key}", where=str(self._store.root)
                    )
                self._write(data)
                remaining -= len(data)
        self._directories |= dict.fromkeys(segment.added)
        self._spans[key] = _Span(start, self._sink.unpacked, segment.added, segment.above)
        return True

    @contextmanager
    def segment(self, key: str) -> Iterator[None]:
        """Make the entries written until the end of the context a segment."""
        start, before = self._sink.unpacked, len(self._directories)
        self._complete.clear()  # at the end it has the directories of this segment's entries
        yield
        added = tuple(islice(self._directories, before, None))
        needed = {
            str(path)
            for complete in self._complete
            for path in (PurePosixPath(complete), *PurePosixPath(complete).parents)
        }
        above = tuple(sorted(needed - {".", *added}))
        self._spans[key] = _Span(start, self._sink.unpacked, added, above)

    def keep(self, layer: LayerDescriptor) -> None:
        """Record the segments, once the layer is stored."""
        for key, span in self._spans.items():
            offset, skip = self._sink.place(span.start)
            length = span.end - span.start
            segment = Segment(layer.digest, layer.size, offset, skip, length, span.added, span.above)
            _SEGMENTS.put(self._store, key, segment)

    def _is_whole(self, segment: Segment) -> bool:
        """Return whether the store has the blob, and has verified it for this layer; a damaged one is removed.

        An earlier verification does not count, since the bytes become part of a blob with another digest.
        """
        if segment.digest not in self._verified:
            if not self._store.has(segment.digest, segment.size):
                return False
            try:
                self._store.verify(segment.digest)
            except DamagedError:
                return False
            self._verified.add(segment.digest)
        return True
