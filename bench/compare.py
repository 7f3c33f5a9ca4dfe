"""One lock, five ways to an environment, side by side: pip and uv in a Dockerfile, uv alone, imagegen.

    python bench/compare.py [--project DIR] [--repeat N] [--ways NAME,...] [--no-byte-code] [--save NAME] [CELL]

Each way starts cold (nothing of Python's is fetched yet; the base, which none of them makes, is stored), then has one
small pin changed, then nothing. Byte-code is compiled on all sides, or with --no-byte-code on none. Medians; ratios to
the uv Dockerfile. `store` and `docker` are imagegen; `sibling` is a second image that shares all but three small
packages. "CPU s" is the processor time of the command's processes, "engine CPU s" that of the engine's daemons and of
what they started: for a Dockerfile nearly all of the work. Needs an engine (`make engine-up`) and
removes what it put there. For the Dockerfiles of the CUDA stack, 34 GB of free disk are too little.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import results
import uv
from machine import Cost, run
from packaging.version import Version
from pypi_simple import PyPISimple

from imagegen import lock
from imagegen.cli.app import App
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.net import package_index
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.image import base, inputs, layers
from imagegen.image.base.debian import BASES
from imagegen.image.layers.layer import stored
from imagegen.lock.model import Lock, LockedFile, LockedWheel

PIN = "filelock"  # small, pure Python, in a layer that it shares
TAG = "imagegen-bench"
CA = os.environ.get("SSL_CERT_FILE", "/dev/null")
PIP = """\
FROM base
RUN --mount=type=bind,from=wheels,target=/mnt/wheels --mount=type=bind,target=/mnt/context --mount=type=secret,id=ca \\
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \\
    {interpreter} -m venv --without-pip /opt/venv && /opt/venv/bin/python /mnt/context/{pip}/pip install {options} \\
    --no-cache-dir --no-deps --require-hashes --find-links /mnt/wheels -r /mnt/context/requirements.txt
"""
# What imagegen does when byte-code is off on all sides: nothing but this differs.
PLAIN = "from imagegen.image.layers import layer; layer.compiles = lambda *_: False; "


class Bench:
    """The directories of one benchmark, prepared for all ways."""

    def __init__(self, work_dir: Path, app: App, cell: str, *, byte_code: bool) -> None:
        self.room, self.byte_code = work_dir, byte_code
        (self.cell,) = app.session.matrix.select(cell)
        self.lock = app.session.lock_files.fresh(self.cell)
        settings = replace(app.project.settings_for(self.cell), store=work_dir / "warm" / "imagegen" / "store")
        self.warm = Store(settings.store)
        context = Context(self.warm, settings, app.progress)
        self.matrices = app.project.directory / "matrices"
        self.engine = Engine.connect(app.project.settings, app.progress)
        host = os.environ.get("DOCKER_HOST")
        self.shell = self.engine.buildx_line("")
        # One index for all: imagegen would also take files by hash from the extra ones that pip's configuration names.
        index = settings.index_urls.get("pypi")
        extra = ("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL")
        self.env = {name: value for name, value in os.environ.items() if name not in extra}
        self.env |= {"PIP_CONFIG_FILE": os.devnull} | ({"UV_DEFAULT_INDEX": index} if index else {})
        self.env |= {"DOCKER_HOST": host} if host else {}
        sdists = tuple(wheel for wheel in self.lock.wheels if wheel.sdist)
        pip = tuple(wheel for wheel in self.lock.wheels if wheel.name == "pip")
        inputs.fetch(replace(self.lock, wheels=(*sdists, *pip)), context)
        layers.assemble_base(self.lock, context)
        base.rootfs(self.lock.base, context)
        self.sdists = sdists
        self.projects = {
            "cold": self._project("cold", self.lock),
            "pin": self._project("pin", repinned(self.lock, PIN)),
            "sibling": self._project("sibling", _sibling(self.lock)),
        }
        self._contexts(pip)

    def seeded(self, cache: Path) -> Path:
        """A cache whose store has the base and the wheels that no index serves, and nothing else."""
        fresh = Store(cache / "imagegen" / "store")
        key = base.key(self.lock.base)
        bottom = stored(self.warm, "base", key)
        made = BASES.get(self.warm, key)
        assert bottom and made
        BASES.put(fresh, key, made)
        for digest in (made.digest, bottom.digest, *(wheel.file.digest for wheel in self.sdists)):
            os.link(self.warm.path(digest), fresh.path(digest))
        for folder in ("records/layer", "rootfs"):
            shutil.copytree(self.warm.root / folder, fresh.root / folder, symlinks=True, dirs_exist_ok=True)
        return cache

    def imagegen(self, cache: Path, kind: str, *arguments: str) -> Cost:
        program = ("" if self.byte_code else PLAIN) + "from imagegen.cli import main; main()"
        command = [sys.executable, "-c", program, "--project", str(self.projects[kind]), *arguments]
        return run(command, {**self.env, "XDG_CACHE_HOME": str(cache)}, watch=True)[0]

    def buildx(self, arguments: str, directory: Path) -> Cost:
        return run(["sh", "-c", self.shell + arguments], self.env, cwd=directory)[0]

    def _project(self, kind: str, required: Lock) -> Path:
        project = self.room / kind
        if self.matrices.is_dir() and self.matrices.resolve() != shipped("matrices").resolve():
            shutil.copytree(self.matrices, project / "matrices")
        lock.write(required, project / "locks" / f"{self.cell.id}.toml")
        return project

    def _contexts(self, pip: Sequence[LockedWheel]) -> None:
        """A folder per Dockerfile and lock, as `imagegen render -o` writes it; pip's with its own Dockerfile."""
        for kind in ("cold", "pin"):
            self.imagegen(self.room / "warm", kind, "render", self.cell.id, "-o", str(self.room / f"uv-{kind}"))
            folder = self.room / f"uv-{kind}" / self.cell.id
            text = (folder / "Dockerfile").read_text()
            requirements = text.split('<<"REQUIREMENTS" /requirements.txt\n')[1].split("\nREQUIREMENTS")[0]
            (folder / "requirements.txt").write_text(requirements + "\n")
            if not self.byte_code:
                (folder / "Dockerfile").write_text(text.replace("    --compile-bytecode", "   "))
            context = self.room / f"pip-{kind}" / self.cell.id
            shutil.copytree(folder, context, copy_function=os.link)
            (context / "Dockerfile").unlink()
            for wheel in pip:
                os.link(self.warm.path(wheel.file.digest), context / wheel.file.filename)
                options = "" if self.byte_code else "--no-compile"
                values = {"interpreter": self.lock.interpreter.path, "pip": wheel.file.filename, "options": options}
                (context / "Dockerfile").write_text(PIP.format(**values))


def build_arguments(way: str, tag: str) -> str:
    """Return buildx's arguments for the folders that Bench writes."""
    output = "--load" if way == "pip" else "--output type=docker,oci-mediatypes=true,compression=zstd"
    return (
        f"build -t {tag} --build-context base=oci-layout://./base --build-context wheels=./wheels"
        f" --secret id=ca,src={CA} --provenance=false {output} ."
    )


def dockerfile(bench: Bench, way: str) -> Iterator[tuple[str, Cost]]:
    """`pip` exports as Docker does by default; `uv` with zstd, as the rendered command has it."""
    arguments = build_arguments(way, f"{TAG}-{way}")
    clean(bench)
    for what, kind in (("cold", "cold"), ("one pin", "pin"), ("unchanged", "pin")):
        yield what, bench.buildx(arguments, bench.room / f"{way}-{kind}" / bench.cell.id)
    clean(bench)


def uv_alone(bench: Bench) -> Iterator[tuple[str, Cost]]:
    with tempfile.TemporaryDirectory(dir=bench.room) as name:
        env = {**bench.env, "UV_CACHE_DIR": f"{name}/cache", "PYC_INVALIDATION_MODE": "UNCHECKED_HASH"}
        for what, kind in (("cold", "cold"), ("one pin", "pin"), ("unchanged", "pin")):
            folder, venv = bench.room / f"uv-{kind}" / bench.cell.id, f"{name}/venv"
            if what != "unchanged":
                shutil.rmtree(venv, ignore_errors=True)
                run([uv.find_uv_bin(), "venv", "--python", bench.lock.python, venv], env)
            options = ["--python", venv, "--no-deps", "--require-hashes", "--find-links", f"{folder}/wheels"]
            options += ["--compile-bytecode"] if bench.byte_code else []
            command = [uv.find_uv_bin(), "pip", "install", *options, "--requirements", f"{folder}/requirements.txt"]
            yield what, run(command, env, watch=True)[0]


def imagegen(bench: Bench, way: str) -> Iterator[tuple[str, Cost]]:
    with tempfile.TemporaryDirectory(dir=bench.room) as name:
        cache = bench.seeded(Path(name) / "cache")
        runs = (("cold", "cold"), ("one pin", "pin"), ("unchanged", "pin"), ("sibling", "sibling"))
        for what, kind in runs:
            to_store = ("--output", f"oci:{name}/{what}") if way == "store" else ("--no-test",)
            yield what, bench.imagegen(cache, kind, "build", bench.cell.id, *to_store)
    if way == "docker":
        clean(bench)


WAYS: dict[str, Callable[[Bench], Iterator[tuple[str, Cost]]]] = {
    "pip": partial(dockerfile, way="pip"),
    "uv": partial(dockerfile, way="uv"),
    "uv-install": uv_alone,
    "store": partial(imagegen, way="store"),
    "docker": partial(imagegen, way="docker"),
}
TITLES = {
    "pip": "(a) Dockerfile, pip",
    "uv": "(b) Dockerfile, uv, zstd",
    "uv-install": "(c) uv pip install",
    "store": "(d) imagegen to a store",
    "docker": "(e) imagegen into Docker",
}


def clean(bench: Bench) -> None:
    """Take from the engine what this benchmark put there."""
    client = bench.engine.client
    for image in client.images.list():
        if image.id and any(tag.startswith((TAG, f"imagegen/{bench.lock.image}:")) for tag in image.tags):
            client.images.remove(image.id, force=True)
    bench.engine.client.api.prune_builds(all=True)


def repinned(locked: Lock, name: str) -> Lock:
    """The lock with the release of the package `name` that comes before the locked one, as a wheel of the same kind."""
    (old,) = (wheel for wheel in locked.wheels if wheel.name == name)
    tags = old.file.filename.removesuffix(".whl").split("-")[2:]
    with PyPISimple() as client:
        packages = client.get_project_page(name).packages
    earlier = [
        (Version(package.version), package)
        for package in packages
        if package.package_type == "wheel" and package.version and Version(package.version) < Version(old.version)
        if package.filename.removesuffix(".whl").split("-")[2:] == tags
    ]
    version, package = max((pair for pair in earlier if not pair[0].is_prerelease), key=lambda pair: pair[0])
    size = _size(package.url)
    path = package_index.hint(package.url, package.filename)
    file = LockedFile(package.filename, size, package.digests["sha256"], old.file.index, path=path)
    fresh = replace(old, version=str(version), file=file)
    return replace(locked, wheels=tuple(fresh if wheel is old else wheel for wheel in locked.wheels), record=None)


def _size(url: str) -> int:
    with PyPISimple() as client:
        return int(client.s.head(url, allow_redirects=True).headers["Content-Length"])


def _sibling(locked: Lock) -> Lock:
    """Return the lock of another image of the same stack, without three small packages that the matrix
    does not name.
    """
    light = [wheel for wheel in locked.wheels if wheel.file.estimate < 1_000_000 and wheel.name != PIN]
    small = [wheel for wheel in light if wheel.because is None][:3]
    return replace(locked, wheels=tuple(wheel for wheel in locked.wheels if wheel not in small), record=None)


def table(costs: Mapping[tuple[str, str], Sequence[Cost]]) -> results.Table:
    """Medians and ratios; bytes in MB and GB."""
    middle = {each: _median(found, "seconds") for each, found in costs.items()}
    columns = {"way": 0, "run": 0, "seconds": 2, "all": 0, "to (b) cold": 3, "to (c) cold": 3}
    columns |= {"CPU s": 2, "engine CPU s": 2, "peak MB": 0, "received GB": 2, "written GB": 2}
    rows: list[list[results.Value]] = []
    for (way, what), found in costs.items():
        seconds = middle[way, what]
        ratios = [seconds / middle[name, "cold"] if (name, "cold") in middle else None for name in ("uv", "uv-install")]
        row = [TITLES[way], what, seconds, " ".join(f"{cost.seconds:.1f}" for cost in found), *ratios]
        row += [_median(found, "cpu"), _median(found, "engine"), _median(found, "peak") / 1e6 or None]
        rows.append([*row, _median(found, "received") / 1e9, _median(found, "written") / 1e9])
    return results.Table(columns, rows)


def _median(costs: Sequence[Cost], name: str) -> float:
    return float(statistics.median(getattr(cost, name) for cost in costs))


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated names, which raises ArgumentTypeError for one that is not `known`."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        return names

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", nargs="?", default="cpu-grpo")
    parser.add_argument("--project", type=Path, default=Path())
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ways", type=names_of(WAYS), default=list(WAYS), metavar="NAME,...")
    parser.add_argument("--no-byte-code", action="store_true")
    results.add_option(parser)
    chosen = parser.parse_args()
    app = App(dict(os.environ), chosen.project)
    costs: dict[tuple[str, str], list[Cost]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="imagegen-bench-") as name:
            bench = Bench(Path(name), app, chosen.cell, byte_code=not chosen.no_byte_code)
            for _ in range(chosen.repeat):
                for way in chosen.ways:
                    for what, cost in WAYS[way](bench):
                        costs.setdefault((way, what), []).append(cost)
                        print(json.dumps({"way": way, "run": what, **vars(cost)}), file=sys.stderr, flush=True)
    finally:  # what was measured before a failure is kept
        if costs:
            results.publish(chosen.save, {chosen.cell: table(costs)})


if __name__ == "__main__":
    main()
