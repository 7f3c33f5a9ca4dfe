"""The bytes that Podman fetches of an image, then of the same image with one wheel of an earlier release.

    python bench/partial_pull.py [CELL] [PACKAGE...]

Side by side: layers as locks record them, and as zstd:chunked. For each package the storage starts empty. Podman is
Debian 13's, the registry Debian's docker-registry on loopback; a proxy before it counts the bytes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from compare import repinned
from publish import registry

from imagegen.cli.app import App
from imagegen.core.net import Client
from imagegen.core.oci import MANIFEST_TYPE
from imagegen.core.registry import PushTarget, parse
from imagegen.core.store import Store
from imagegen.core.types import Compression
from imagegen.image import layers
from imagegen.image.layers import Image
from imagegen.image.layers.recompress import recompressed

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support import podman

COMPRESSIONS: tuple[Compression, ...] = ("zstd", "zstd:chunked")
ROW = "| {package} | {form} | {first:.1f} | {first_s:.1f} | {second:.2f} | {second_s:.1f} | {layer:.1f} |"


def push(image: Image, store: Store, app: App, name: str, tag: str) -> None:
    with Client(app.settings) as client, app.progress.meter("push", sum(blob.size for blob in image.blobs)) as meter:
        target = PushTarget(parse(name), client, app.settings)
        target.upload_all(image.blobs, store, meter)
        target.put(image.manifest, MANIFEST_TYPE, tag)


def main() -> None:
    cell_id, *packages = sys.argv[1:] or ("cpu-grpo", "transformers")
    app = App(dict(os.environ), Path.cwd())
    (cell,) = app.matrix.select(cell_id)
    lock = app.fresh_lock(cell)
    context = app.context_for(cell)
    store = context.store
    with tempfile.TemporaryDirectory(prefix="imagegen-bench-") as name:
        work_dir = Path(name)
        tree = podman.tree(store, app.settings)
        built = layers.assemble(lock, context)
        print("| package | layers | first pull, MB | s | second pull, MB | s | changed layers, MB |")
        print("|---|---|---|---|---|---|---|")
        with registry(app, work_dir) as proxy:
            for package in packages:
                changed = repinned(lock, package)
                other = layers.assemble(changed, context)
                for form in COMPRESSIONS:
                    client = podman.Podman(tree, work_dir / "podman")
                    pulls: list[tuple[float, float]] = []
                    shown = []
                    for tag, locked, plain in (("1", lock, built), ("2", changed, other)):
                        image = plain if form == "zstd" else recompressed(locked, plain, form, store, app.progress)
                        shown.append(image)
                        ref = f"127.0.0.1:{proxy.port}/bench/image"
                        push(image, store, app, ref, tag)
                        before, start = proxy.received, time.monotonic()
                        client.pull(f"{ref}:{tag}", "none:none")
                        pulls.append(((proxy.received - before) / 1e6, time.monotonic() - start))
                    own = {layer.digest for layer in shown[0].layers}
                    differing = sum(layer.size for layer in shown[1].layers if layer.digest not in own) / 1e6
                    (first, first_s), (second, second_s) = pulls
                    print(
                        ROW.format(
                            package=package, form=form, first=first, first_s=first_s, second=second, second_s=second_s,
                            layer=differing,
                        ),
                        flush=True,
                    )  # fmt: skip
                    shutil.rmtree(work_dir / "podman")


if __name__ == "__main__":
    main()
