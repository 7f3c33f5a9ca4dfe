"""Images that start before they are pulled, beside images that are pulled whole; and Podman's pulls.

    python bench/lazy_pull.py [--project DIR] [--repeat N] [--save NAME] [CELL]

Debian's containerd pulls the image and starts a program that imports torch and then takes one step of the smoke check's
GRPO; or its stargz-snapshotter mounts the layers, and fetches what the program reads. Podman pulls alone. All start
with empty storages; seconds and bytes count from the start of the pull. The registry is Debian's docker-registry on
loopback, behind a proxy that has the network's rate (of all connections together, towards the client) and round-trip
time. The proxy takes processor time of the same cores, and knows no slow start of TCP. Medians.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import results
from partial_pull import push
from publish import Counting, registry

from imagegen.cli.app import App
from imagegen.image import layers
from imagegen.image.layers.recompress import recompressed

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support import podman, stargz

INCONTAINER = Path(__file__).parents[1] / "imagegen" / "incontainer"
PROGRAM = """\
import sys
import torch
print("torch", flush=True)
sys.path.insert(0, "/mnt")
from smoke import grpo, tinylm
torch.set_num_threads(1)
grpo.train(tinylm.make, grpo.Setup(0, steps=1))
print("step", flush=True)
"""
LINES = ("torch", "step")


@dataclass(frozen=True)
class Network:
    """A network between client and registry: bits per second, and seconds of a round trip."""

    name: str
    rate: float
    round_trip: float


NETWORKS = (Network("1 Gbit/s, 1 ms", 1e9, 0.001), Network("200 Mbit/s, 20 ms", 2e8, 0.020))
# Title, compression, the snapshotter of containerd or Podman, and a piece's bytes where only what is read is fetched.
WAYS = (
    ("containerd pulls", "zstd", "overlayfs", None),
    ("stargz-snapshotter mounts", "zstd:stargz", "stargz", None),
    ("the same, no prefetch, pieces of 1 MB", "zstd:stargz", "stargz", 1_000_000),
    ("Podman pulls", "zstd", "podman", None),
    ("Podman pulls single files", "zstd:chunked", "podman", None),
)
COLUMNS = {"network": 0, "way": 0, "layers": 0, "pull, s": 1, "MB": 1}
COLUMNS |= {"torch imported, s": 1, "MB ": 1, "first step, s": 1, "MB  ": 1}


class Shaped(Counting):
    """A proxy to `target` whose answers come at the network's rate, and all after its delay."""

    def __init__(self, target: int, network: Network) -> None:
        self._network, self._lock, self._free = network, threading.Lock(), 0.0
        super().__init__(target)

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            asking = threading.Thread(target=self._copy, args=(client, server), daemon=True)
            asking.start()
            self._copy(server, client)
            asking.join()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass on what `source` sends, half a round trip later; the first bytes of a client after its handshake too."""
        answers = source.getpeername()[1] == self.target
        waiting: queue.Queue[tuple[float, bytes]] = queue.Queue()
        sending = threading.Thread(target=self._send, args=(waiting, sink), daemon=True)
        sending.start()
        handshake = 0.0 if answers else self._network.round_trip
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 17)
            except OSError:
                data = b""
            due = self._sent(len(data)) if answers else time.monotonic() + handshake
            handshake = 0.0
            waiting.put((due + self._network.round_trip / 2, data))
            time.sleep(max(0.0, due - time.monotonic() - 0.02))  # the network's buffer, 20 ms
        sending.join()

    def _sent(self, size: int) -> float:
        """Return when the network has sent `size` more bytes."""
        with self._lock:
            self.received += size
            self._free = max(self._free, time.monotonic()) + 8 * size / self._network.rate
            return self._free

    @staticmethod
    def _send(waiting: queue.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
        data = b"-"
        while data:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                sink.sendall(data)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
            except OSError:
                return


@contextmanager
def folder(parent: Path) -> Iterator[Path]:
    """An empty directory, removed at the end with what is mounted there."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        yield Path(name)


def start(client: stargz.Containerd, ref: str, snapshotter: str, network: Shaped) -> list[float]:
    """[seconds, bytes] of the pull, of the import of torch and of the first step, each from the start of the pull."""
    found: list[float] = []
    begin = time.monotonic()

    def note() -> None:
        found.extend((time.monotonic() - begin, network.received))

    client.pull(ref, snapshotter)
    note()
    if snapshotter == "stargz" and not client.mounted():
        sys.exit("stargz-snapshotter mounted no layer")
    command = client.run(ref, snapshotter, ["python", "-c", PROGRAM], INCONTAINER)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        for line in running.stdout:
            if line.strip() in LINES:
                note()
    if running.returncode:
        sys.exit(f"the container ended with {running.returncode}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", nargs="?", default="cpu-grpo")
    parser.add_argument("--project", type=Path, default=Path.cwd())
    parser.add_argument("--repeat", type=int, default=3)
    results.add_option(parser)
    chosen = parser.parse_args()
    app = App(dict(os.environ), chosen.project)
    (cell,) = app.matrix.select(chosen.cell)
    lock, context = app.fresh_lock(cell), app.context_for(cell)
    built = layers.assemble(lock, context)
    images = {"zstd": built} | {
        form: recompressed(lock, built, form, context.store, app.progress) for form in ("zstd:chunked", "zstd:stargz")
    }
    tree = podman.tree(context.store, app.settings)
    costs: dict[tuple[str, str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="imagegen-bench-") as name, registry(app, Path(name)) as direct:
        work = Path(name)
        programs = stargz.programs(work / "stargz", app.settings)
        for form, image in images.items():
            push(image, context.store, app, f"127.0.0.1:{direct.port}/bench/image", form.replace(":", "-"))
        for _ in range(chosen.repeat):
            for network in NETWORKS:
                for title, form, snapshotter, chunk in WAYS:
                    proxy = Shaped(direct.target, network)
                    ref = f"127.0.0.1:{proxy.port}/bench/image:{form.replace(':', '-')}"
                    with folder(work) as empty:
                        if snapshotter == "podman":
                            begin = time.monotonic()
                            podman.Podman(tree, empty / "podman").pull(ref, "none:none")
                            cost = [time.monotonic() - begin, proxy.received]
                        else:
                            with stargz.containerd(programs, empty, chunk) as client:
                                cost = start(client, ref, snapshotter, proxy)
                        shutil.rmtree(empty / "podman", ignore_errors=True)
                    proxy.close()
                    print(network.name, title, [round(each, 1) for each in cost], file=sys.stderr, flush=True)
                    costs.setdefault((network.name, title, form), []).append(cost)
    rows: list[list[results.Value]] = []
    for key, found in costs.items():
        middle = [statistics.median(column) for column in zip(*found, strict=True)]
        values: list[results.Value] = [each / 1e6 if place % 2 else each for place, each in enumerate(middle)]
        rows.append([*key, *values, *([None] * (6 - len(values)))])
    results.publish(chosen.save, {"starts": results.Table(COLUMNS, rows)})


if __name__ == "__main__":
    main()
