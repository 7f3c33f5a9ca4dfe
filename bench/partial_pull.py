"""The form zstd:chunked beside layers as locks record them: cost of making, and what Podman fetches.

    python bench/partial_pull.py [--project DIR] [--repeat N] [--save NAME] [CELL] [PACKAGE...]

Cost: the layers of the cell that the store has are compressed again, in pairs, both ways; medians of CPU seconds, which
hold decompressing and hashing on both sides. Pulls: Debian 13's Podman pulls the image, then the same image with the
earlier release of one package; its storage starts empty for each pair. The registry is Debian's docker-registry on
loopback, a proxy before it counts the bytes of its answers; CPU seconds are Podman's, of single runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import results
from compare import repinned
from publish import registry

from imagegen.cli.app import App
from imagegen.core.net import Client
from imagegen.core.oci import MANIFEST_TYPE, ZSTD_TYPE
from imagegen.core.progress import Quiet
from imagegen.core.registry import PushTarget, parse
from imagegen.core.store import Store
from imagegen.core.types import Compression
from imagegen.image import layers
from imagegen.image.layers import Image, Layer, chunked
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.recompress import recompressed, uncompressed

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support import podman

# Compression, and whether Podman links what its images have in common.
FORMS: tuple[tuple[Compression, bool], ...] = (("zstd", False), ("zstd:chunked", False), ("zstd:chunked", True))
COSTS = {"layer": 0, "MB unpacked": 1, "zstd, MB": 1, "CPU s": 2, "zstd:chunked, MB": 1, "CPU s ": 2, "table, MB": 2}
PULLS = {
    "package": 0,
    "layers": 0,
    "first pull, MB": 1,
    "CPU s": 1,
    "second pull, MB": 2,
    "CPU s ": 1,
    "new layers, MB": 1,
}


def plain(layer: Layer, store: Store) -> tuple[int, int]:
    """Bytes of the layer as locks record it, and of its table, which it has not."""
    with uncompressed(layer, store, Quiet().meter("", 0)) as tar, store.writer() as blob:
        sink = LayerSink(blob)
        while data := tar.read(1 << 20):
            sink.write(data)
        sink.close()
        return blob.size, 0


def with_table(layer: Layer, store: Store) -> tuple[int, int]:
    """Bytes of the layer as zstd:chunked, and those of table and tar-split."""
    with uncompressed(layer, store, Quiet().meter("", 0)) as tar, store.writer() as blob:
        contents = chunked.write(tar, blob)[1]
        return blob.size, contents.table.size + contents.tar_split.size


def cost(built: Image, store: Store, repeat: int) -> results.Table:
    rows: list[list[results.Value]] = []
    ways: Sequence[Callable[[Layer, Store], tuple[int, int]]] = (plain, with_table)
    for layer in built.layers:
        if layer.media_type != ZSTD_TYPE or layer.unpacked is None:
            continue
        seconds: list[list[float]] = [[], []]
        sizes = [(0, 0), (0, 0)]
        for _ in range(repeat):
            for way, convert in enumerate(ways):
                start = time.process_time()
                sizes[way] = convert(layer, store)
                seconds[way].append(time.process_time() - start)
        one, two = map(statistics.median, seconds)
        (plain_size, _), (size, table) = sizes
        rows.append([layer.name, layer.unpacked / 1e6, plain_size / 1e6, one, size / 1e6, two, table / 1e6])
    numbers = [[float(value or 0) for value in row[1:]] for row in rows]
    rows.append(["all", *map(sum, zip(*numbers, strict=True))])
    return results.Table(COSTS, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cell", nargs="?", default="cpu-grpo")
    parser.add_argument("packages", nargs="*", default=["transformers", "pyarrow"])
    parser.add_argument("--project", type=Path, default=Path.cwd())
    parser.add_argument("--repeat", type=int, default=3)
    results.add_option(parser)
    chosen = parser.parse_args()
    app = App(dict(os.environ), chosen.project)
    (cell,) = app.matrix.select(chosen.cell)
    lock, context = app.fresh_lock(cell), app.context_for(cell)
    store = context.store
    built = layers.assemble(lock, context)
    tree = podman.tree(store, app.settings)
    rows: list[list[results.Value]] = []
    with tempfile.TemporaryDirectory(prefix="imagegen-bench-") as name, registry(app, Path(name)) as proxy:
        ref = f"127.0.0.1:{proxy.port}/bench/image"
        for package in chosen.packages:
            earlier = repinned(lock, package)
            other = layers.assemble(earlier, context)
            for form, hard_links in FORMS:
                pair = [built, other]
                if form != "zstd":
                    both = zip((lock, earlier), pair, strict=True)
                    pair = [recompressed(locked, each, form, store, app.progress) for locked, each in both]
                client = podman.Podman(tree, Path(name) / "podman", hard_links)
                row: list[results.Value] = [package, f"{form}, hard links" if hard_links else form]
                for tag, image in enumerate(pair):
                    push(image, store, app, ref, str(tag))
                    before, start = proxy.received, _seconds()
                    client.pull(f"{ref}:{tag}", "none:none")
                    row += [(proxy.received - before) / 1e6, _seconds() - start]
                known = {layer.digest for layer in pair[0].layers}
                row.append(sum(layer.size for layer in pair[1].layers if layer.digest not in known) / 1e6)
                rows.append(row)
                shutil.rmtree(Path(name) / "podman")
    tables = {"cost": cost(built, store, chosen.repeat), "pulls": results.Table(PULLS, rows)}
    results.publish(chosen.save, tables)


def _seconds() -> float:
    """Return the CPU seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def push(image: Image, store: Store, app: App, name: str, tag: str) -> None:
    with Client(app.settings) as client, app.progress.meter("push", sum(blob.size for blob in image.blobs)) as meter:
        target = PushTarget(parse(name), client, app.settings)
        target.upload_all(image.blobs, store, meter)
        target.put(image.manifest, MANIFEST_TYPE, tag)


if __name__ == "__main__":
    main()
