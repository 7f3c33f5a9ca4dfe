"""Publishing, side by side: a Dockerfile built and pushed by Docker, and `imagegen publish`, to one real registry.

    python bench/publish.py [--project DIR] [--repeat N] [--ways NAME,...] [CELL]

Each way starts cold (as bench/compare.py's), then has one small pin changed, then nothing. Seconds are of the way from
the lock to the registry, smoke checks left out on all sides; bytes are those that went to the registry, counted by a
proxy before it. Medians; ratios to (a). The registry is Debian's docker-registry on loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import results
from compare import TAG, Bench, build_arguments, clean, names_of

from imagegen.cli.app import App
from tools.engine.packages import unpack

RUNS = (("cold", "cold"), ("one pin", "pin"), ("unchanged", "pin"))


class Counting:
    """A TCP proxy on loopback that counts the bytes on their way to `target`, and back."""

    def __init__(self, target: int) -> None:
        self.target, self.sent, self.received = target, 0, 0
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(("127.0.0.1", self.target)) as server,
            selectors.DefaultSelector() as waiting,
        ):
            waiting.register(client, selectors.EVENT_READ, server)
            waiting.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in waiting.select():
                    try:
                        data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                        key.data.sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
                    if key.fileobj is client:
                        self.sent += len(data)
                    else:
                        self.received += len(data)


@contextmanager
def registry(app: App, work_dir: Path) -> Iterator[Counting]:
    """Debian's docker-registry, empty, and the proxy before it."""
    programs = work_dir / "docker-registry"
    unpack("trixie", ["docker-registry"], programs, app.project.settings, app.progress)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(work_dir / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (work_dir / "registry.yml").write_text(json.dumps(config))
    process = subprocess.Popen(
        [programs / "usr/bin/docker-registry", "serve", work_dir / "registry.yml"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    proxy = Counting(port)
    try:
        for _ in range(100):
            with socket.socket() as trying:
                if trying.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield proxy
    finally:
        proxy.close()
        process.terminate()
        process.wait()
        shutil.rmtree(work_dir / "registry", ignore_errors=True)


@contextmanager
def counted(proxy: Counting) -> Iterator[list[float]]:
    """[seconds, bytes] of the block, once it is over."""
    found: list[float] = []
    start, before = time.monotonic(), proxy.sent
    yield found
    found += [time.monotonic() - start, proxy.sent - before]


def dockerfile(bench: Bench, proxy: Counting, way: str) -> Iterator[tuple[str, list[float]]]:
    """`docker buildx build`, then `docker push`."""
    name = f"127.0.0.1:{proxy.port}/{TAG}-{way}"
    arguments = build_arguments(way, f"{name}:1")
    clean(bench)
    client = bench.engine.client
    for what, kind in RUNS:
        with counted(proxy) as cost:
            bench.buildx(arguments, bench.room / f"{way}-{kind}" / bench.cell.id)
            for line in client.images.push(name, tag="1", stream=True, decode=True):
                if "error" in line:
                    sys.exit(f"docker push {name}: {line['error']}")
        yield what, cost
    client.images.remove(f"{name}:1", force=True)
    clean(bench)


def imagegen(bench: Bench, proxy: Counting) -> Iterator[tuple[str, list[float]]]:
    with tempfile.TemporaryDirectory(dir=bench.room) as name:
        cache = bench.seeded(Path(name) / "cache")
        for what, kind in RUNS:
            with counted(proxy) as cost:
                to = f"127.0.0.1:{proxy.port}/{TAG}-imagegen"
                bench.imagegen(cache, kind, "publish", bench.cell.id, "--to", to, "--no-test", "--no-audit")
            yield what, cost


WAYS: dict[str, Callable[[Bench, Counting], Iterator[tuple[str, list[float]]]]] = {
    "pip": partial(dockerfile, way="pip"),
    "uv": partial(dockerfile, way="uv"),
    "imagegen": imagegen,
}
TITLES = {
    "pip": "(a) Dockerfile with pip, docker push",
    "uv": "(b) Dockerfile with uv and zstd, docker push",
    "imagegen": "(c) imagegen publish",
}


def table(costs: Mapping[tuple[str, str], Sequence[Sequence[float]]]) -> results.Table:
    """Medians, and ratios to (a) of the same run."""
    middle = {
        each: [statistics.median(cost[part] for cost in found) for part in (0, 1)] for each, found in costs.items()
    }
    columns = {"way": 0, "run": 0, "seconds": 1, "all": 0, "to (a)": 3, "MB to the registry": 2, "bytes to (a)": 4}
    rows: list[list[results.Value]] = []
    for (way, what), found in costs.items():
        (seconds, sent), first = middle[way, what], middle.get(("pip", what))
        ratios = [seconds / first[0], sent / first[1]] if first else [None, None]
        every = " ".join(f"{cost[0]:.1f}" for cost in found)
        rows.append([TITLES[way], what, seconds, every, ratios[0], sent / 1e6, ratios[1]])
    return results.Table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", nargs="?", default="cpu-grpo")
    parser.add_argument("--project", type=Path, default=Path())
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ways", type=names_of(WAYS), default=list(WAYS), metavar="NAME,...")
    results.add_option(parser)
    chosen = parser.parse_args()
    app = App(dict(os.environ), chosen.project)
    costs: dict[tuple[str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="imagegen-bench-") as name:
        bench = Bench(Path(name), app, chosen.cell, byte_code=True)
        for _ in range(chosen.repeat):
            for way in chosen.ways:
                with registry(app, Path(name)) as proxy:
                    for what, cost in WAYS[way](bench, proxy):
                        costs.setdefault((way, what), []).append(cost)
                        print(json.dumps({"way": way, "run": what, "cost": cost}), file=sys.stderr, flush=True)
    results.publish(chosen.save, {chosen.cell: table(costs)})


if __name__ == "__main__":
    main()
