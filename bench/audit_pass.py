"""Measure what the audit adds to the making of layers: wheels converted with and without it, in turn, in one process.

    python bench/audit_pass.py [--repeat N] [--save NAME] WHEEL...

Processor time, since that is what a build has least of, and seconds; medians. Byte-code is left out: it would be the
same on both sides, and most of the work of pure Python wheels. One wheel at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import results
from packaging.utils import parse_wheel_filename

from imagegen.audit import facts
from imagegen.audit.readers.installation import installation
from imagegen.core.store import Store
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.scan import WheelScanner, open_locked, scan_wheel
from imagegen.image.layers.tar import TarWriter
from imagegen.lock.model import LockedFile, LockedWheel

PYTHON = "3.11"


def convert(store: Store, locked: LockedWheel, *, audit: bool) -> None:
    """Convert a wheel as `layers.layer.wheels_layer` does, without byte-code, and remove the result."""
    with open_locked(store, locked) as wheel, store.writer() as blob:
        files = installation(wheel, PYTHON)
        watch = WheelScanner(store, locked, wheel, files, PYTHON) if audit else None
        sink = LayerSink(blob)
        tar = TarWriter(sink)
        for file in watch.watched() if watch else files:
            tar.file(file.path, file.size, file.chunks(), executable=file.executable)
        tar.close()
        if watch:
            watch.finish()
        sink.close()


@contextmanager
def timed(costs: list[tuple[float, float]]) -> Iterator[None]:
    os.sync()
    start = time.process_time(), time.monotonic()
    yield
    costs.append((time.process_time() - start[0], time.monotonic() - start[1]))


def in_store(store: Store, path: Path) -> LockedWheel:
    """A link to the wheel, as if it had been fetched."""
    digest = hashlib.file_digest(path.open("rb"), "sha256").hexdigest()
    os.link(path, store.path(f"sha256:{digest}"))
    name, version, _, _ = parse_wheel_filename(path.name)
    return LockedWheel(name, str(version), LockedFile(path.name, path.stat().st_size, digest, "pypi"), via=())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    results.add_option(parser)
    chosen = parser.parse_args()
    rows: list[list[results.Value]] = []
    total = {audit: [0.0, 0.0] for audit in (False, True)}
    for path in chosen.wheels:
        with tempfile.TemporaryDirectory(dir=path.parent) as work_dir:
            store = Store(Path(work_dir))
            locked = in_store(store, path)
            costs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for _ in range(chosen.repeat):
                for audit in (False, True):
                    with timed(costs[audit]):
                        convert(store, locked, audit=audit)
            middle = {
                audit: [statistics.median(column) for column in zip(*each, strict=True)]
                for audit, each in costs.items()
            }
            for audit, found in middle.items():
                total[audit] = [before + now for before, now in zip(total[audit], found, strict=True)]
            package = scan_wheel(store, locked, PYTHON)
            packed = facts.packed(package)
            start = time.process_time()
            facts.package(packed)
            read = time.process_time() - start
        size = sum(file.size for file in package.files.values())
        rows.append([str(package), size / 1e6, *_ratios(middle), len(packed) / 1e3, read * 1e3])
        print(*rows[-1], flush=True)
    rows.append(["all", None, *_ratios(total), None, None])
    columns = {"wheel": 0, "MB": 0, "CPU s": 2, "CPU s with audit": 2, "ratio of CPU s": 2, "s": 2, "s with audit": 2}
    columns |= {"ratio of s": 2, "kB of facts": 0, "ms to read them": 0}
    results.publish(chosen.save, {"conversion of wheels": results.Table(columns, rows)})


def _ratios(seconds: dict[bool, list[float]]) -> list[float]:
    """Return the columns without and with the audit, and their ratio, for CPU seconds and for seconds."""
    pairs = zip(seconds[False], seconds[True], strict=True)
    return [value for plain, audited in pairs for value in (plain, audited, audited / plain)]


if __name__ == "__main__":
    main()
