"""Several workers that publish the cells of one project to one registry, each with an empty store, beside one worker.

    python bench/workers.py [--ways NAME,...] [--save NAME]

The project has four images of wheels of PyPI on Debian 12: four heavy wheels in each, and one that is its own. Each way
starts with an empty registry, Debian's docker-registry on loopback, and a proxy before it counts bytes. A file of the
locks counts as fetched in each store that has it, a layer as made in each store that has made it; heavy are layers of
one wheel. CPU seconds are those of all processes of the way. Layers are signed, and the project trusts the signer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import machine
import results
from compare import names_of
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from publish import registry

from imagegen import lock
from imagegen.cli.app import App
from imagegen.core.store import Store
from imagegen.image.layers.plan import HEAVY
from imagegen.image.layers.sources import plan_layers, previously_built_layers
from imagegen.lock.model import Lock

COMMON = ("numpy", "pandas", "pyarrow", "scipy")
OWN = {"worker-a": "polars", "worker-b": "duckdb", "worker-c": "scikit-learn", "worker-d": "llvmlite"}
COLUMNS = {
    "way": 0,
    "layers": 0,
    "made": 0,
    "heavy": 0,
    "made ": 0,
    "MB fetched": 1,
    "MB from the registry": 1,
    "MB to the registry": 1,
    "CPU s": 1,
    "seconds": 1,
}
WAYS = {
    "one": "one worker, all cells",
    "at-once": "four workers at once",
    "known-one": "one worker, all cells; the registry has the base",
    "known-at-once": "four workers at once; the registry has the base",
}
FIRST = "worker-first"  # publishes the base


@dataclass
class Worker:
    """A machine as far as imagegen can tell: a store of its own."""

    cache: Path
    cells: Sequence[str]
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store(self.cache / "imagegen" / "store")

    def start(self, project: Path, to: str) -> None:
        """Start publishing the next of its cells."""
        cell = self.cells[len(self.processes)]
        program = [sys.executable, "-c", "from imagegen.cli import main; main()", "--project", str(project)]
        self.processes.append(
            subprocess.Popen(
                [*program, "publish", cell, "--to", to, "--no-test", "--key", str(project / "release.key")],
                env={**os.environ, "XDG_CACHE_HOME": str(self.cache)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def wait(self) -> None:
        """Wait for the last process; end the benchmark with its output if it fails."""
        said = self.processes[-1].communicate()[1]
        if self.processes[-1].returncode:
            sys.exit(f"{self.cells[len(self.processes) - 1]}: exit code {self.processes[-1].returncode}\n{said}")


def images() -> dict[str, tuple[str, ...]]:
    """Return the components of each image."""
    return {FIRST: ("requests",), **{image: (*COMMON, own) for image, own in OWN.items()}}


def write_project(project: Path) -> None:
    """Write the images and a key, and lock each cell as of now."""
    (project / "matrices").mkdir(parents=True)
    lines = ["images:"]
    for image, components in images().items():
        lines += [f"  {image}:", "    description: Wheels of PyPI.", "    purpose: A benchmark.", "    base: debian12"]
        lines += ["    components:", *(f"      {name}: {{because: It is heavy.}}" for name in components)]
    (project / "matrices" / "workers.yaml").write_text("\n".join(lines) + "\n")
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (project / "release.key").write_bytes(private)
    (project / "release.key").chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (project / "release.pub").write_bytes(public)
    (project / "publish.yaml").write_text("publish: {keys: {release: release.pub}}\n")
    env = {**os.environ, "XDG_CACHE_HOME": str(project / "cache")}
    for image in images():
        machine.run(
            [sys.executable, "-c", "from imagegen.cli import main; main()", "--project", project, "lock", image], env
        )


def fetched(locks: Sequence[Lock], store: Store) -> int:
    """Return the bytes of the locks' files that the store has."""
    sizes = {wheel.fetched.digest: wheel.fetched.estimate for each in locks for wheel in (each.uv, *each.wheels)}
    sizes |= {deb.digest: deb.size for each in locks for deb in each.base.debs}
    return sum(size for digest, size in sizes.items() if store.has(digest))


def measure(way: str, app: App, project: Path, root: Path) -> list[results.Value]:
    """Publish all cells in this way; return the row."""
    found = [lock.read(path) for path in sorted((project / "locks").glob("*.toml"))]
    locks = [each for each in found if each.image in OWN]
    cells = list(OWN)
    dealt = [cells] if way.endswith("one") else [[cell] for cell in cells]
    workers = [Worker(root / f"store-{number}", mine) for number, mine in enumerate(dealt)]
    with registry(app, root) as proxy:
        to = f"127.0.0.1:{proxy.port}/workers"
        if way.startswith("known"):
            first = Worker(root / "first", [FIRST])
            first.start(project, to)
            first.wait()
        received, sent = proxy.received, proxy.sent
        with machine.metered() as cost:
            if way.endswith("at-once"):
                for worker in workers:
                    worker.start(project, to)
                for worker in workers:
                    worker.wait()
            else:
                for worker in workers:
                    for _ in worker.cells:
                        worker.start(project, to)
                        worker.wait()
        received, sent = proxy.received - received, proxy.sent - sent
    plans = {part.key: part for each in locks for part in plan_layers(each)}
    heavy = {key for key, part in plans.items() if sum(wheel.file.estimate for wheel in part.wheels) >= HEAVY}
    made = [
        key
        for worker in workers
        for key in {key for each in locks for key in previously_built_layers(each, worker.store)}
    ]
    return [
        WAYS[way],
        len(plans),
        len(made),
        len(heavy),
        sum(key in heavy for key in made),
        sum(fetched(locks, worker.store) for worker in workers) / 1e6,
        received / 1e6,
        sent / 1e6,
        cost.cpu,
        cost.seconds,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", type=names_of(WAYS), default=list(WAYS), metavar="NAME,...")
    results.add_option(parser)
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="imagegen-bench-") as name:
        project = Path(name) / "project"
        write_project(project)
        app = App(dict(os.environ), project)
        for way in chosen.ways:
            with tempfile.TemporaryDirectory(dir=name) as root:
                rows.append(measure(way, app, project, Path(root)))
                print(rows[-1], file=sys.stderr, flush=True)
    results.publish(chosen.save, {"workers": results.Table(COLUMNS, rows)})


if __name__ == "__main__":
    main()
