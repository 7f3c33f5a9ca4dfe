"""A source build on a real builder with a real compiler: C++ alone, so that it is over soon."""

from __future__ import annotations

import io
import re
import secrets
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.oci import ImageConfig, LayerDescriptor, RemoteImage
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base, layers
from imagegen.image import dockerfile as recipe
from imagegen.plan import lock
from imagegen.plan.lock.builds import keyed
from imagegen.plan.lock.foundation import LockedBase
from imagegen.plan.lock.model import Lock, LockedBuild, LockedFile, LockedWheel
from imagegen.plan.matrix.model import Base, Cell
from imagegen.plan.matrix.recipe import Recipe, SdistFile
from imagegen.run import embedded_engine
from imagegen.run.engine import Engine
from imagegen.wheels import wheelhouse
from imagegen.wheels.builds.compile import ensure_wheels, require_wheels
from tests.support.docker_daemons import paste
from tests.support.interpreters import LOCKED
from tests.support.machines import Debian, committed

pytestmark = pytest.mark.integration

# What compiles C++ for a Python of bookworm, without what links sanitizers, documents or starts them by other names.
COMPILERS = [
    *("binutils", "binutils-x86-64-linux-gnu", "libbinutils", "libctf-nobfd0", "libctf0", "libjansson4"),
    *("cpp-12", "gcc-12", "g++-12", "gcc", "g++", "libisl23", "libmpc3", "libmpfr6"),
    *("libc6-dev", "libcrypt-dev", "libgcc-12-dev", "libstdc++-12-dev", "linux-libc-dev", "libpython3.11-dev"),
]
_LAYER = "application/vnd.oci.image.layer.v1.tar"
LEFT_OUT = re.compile(r"usr/share|.*(/lto1|san\.a|/libpython3\.11[^/]*\.a)$")
PACKAGES = {"python3": "the interpreter", "python3-dev": "its headers", "g++": "the compiler"}
FILES = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "setup.py": """\
from setuptools import Extension, setup
sources = ["tiny.cpp", "two.cpp"]
setup(name="tiny-ext", version="1.0", ext_modules=[Extension("tiny_ext", sources)])
""",
    "tiny.cpp": """\
#include <Python.h>
int two();
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(40 + two()); }
static PyMethodDef METHODS[] = {{"answer", answer, METH_NOARGS, ""}, {0, 0, 0, 0}};
static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "tiny_ext", 0, -1, METHODS};
PyMODINIT_FUNC PyInit_tiny_ext() { return PyModule_Create(&MODULE); }
""",
    "two.cpp": "int two() { return 2; }\n",
}


def sdist() -> bytes:
    """Another one in each run, so that no builder has it in its cache."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in {**FILES, "salt": secrets.token_hex(8)}.items():
            info = tarfile.TarInfo(f"tiny_ext-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def with_packages(settings: Settings) -> LockedBase:
    """A base as a matrix would have it; dpkg takes a minute for its packages."""
    requested = Base("debian12", "debian", "bookworm", None, "debian12", "2.36", PACKAGES, "for tests")
    return base.resolve(requested, "linux/amd64", settings, Quiet())


@pytest.fixture
def with_compilers(debian: Debian, settings: Settings, store: Store, tmp_path: Path) -> LockedBase:
    """The base that other tests have anyway, with a compiler on top, as a registry's image would bring both."""
    embedded_engine.unpack("bookworm", COMPILERS, tmp_path / "compilers", settings, Quiet())
    packed = tmp_path / "compilers.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(
            tmp_path / "compilers" / "usr", "usr", filter=lambda info: None if LEFT_OUT.match(info.name) else info
        )
    with packed.open("rb") as file, store.writer() as writer:
        for chunk in iter(partial(file.read, 1 << 20), b""):
            writer.write(chunk)
        top, size = writer.commit(), writer.size
    store.path(debian.layer.diff_id).hardlink_to(debian.store.path(debian.layer.diff_id))
    blobs = ((debian.layer.diff_id, debian.layer.size), (top, size))
    layers = tuple(LayerDescriptor(_LAYER, digest, size, digest) for digest, size in blobs)
    content = RemoteImage(top, top, ImageConfig(("PATH=/usr/bin:/bin",), (), (), "", ""), layers)
    return LockedBase("compilers", "registry", None, {}, (), "a.invalid/base:1", content)


def locked_on(below: LockedBase, store: Store) -> Lock:
    """A cell of nothing but the extension."""
    source = sdist()
    sha256 = store.write(source).removeprefix("sha256:")
    build = LockedBuild(
        name="tiny-ext",
        version="1.0",
        because="Tests.",
        via=(),
        choice="no index has it",
        source=LockedFile("tiny_ext-1.0.tar.gz", len(source), sha256, "pypi"),
        git=None,
        submodules=(),
        patches=(),
        requires=(),
        build_requires=(setuptools(),),
        against=(),
        env={},
        architectures=(),
        modules=("tiny_ext",),
        key="",
    )
    axes = {"cuda": "cpu", "python": "3.11", "platform": "linux/amd64"}
    uv = committed("sb3-maskable-cpu-py311").uv
    made = Lock(
        cell="tiny-cpu-py311",
        image="tiny",
        axes=axes,
        inputs={},
        uv=uv,
        as_of="2026-11-20T00:00:00Z",
        base=below,
        interpreter=LOCKED,
        wheels=(),
        env=(),
    )
    return replace(made, builds=(keyed(build, made),))


def setuptools() -> LockedWheel:
    (found,) = (wheel for wheel in committed("blackwell-vllm-cu130-py311").wheels if wheel.name == "setuptools")
    return found


@pytest.fixture
def cleaned(engine: Engine) -> Iterator[list[str]]:
    tags: list[str] = []
    yield tags
    for tag in tags:
        engine.client.images.remove(tag, force=True)
    # BuildKit keeps the toolchain's layers unpacked: a pull then leaves out their blobs, and an export would miss them.
    if engine.private:
        engine.client.api.prune_builds(all=True)


def recipes_of(build: LockedBuild) -> dict[str, Recipe]:
    return {
        build.name: Recipe(
            component=build.name,
            releases={"1.0": SdistFile(build.source.filename, build.source.sha256, build.source.size)},
            requires=(),
            build_requires=(f"setuptools=={setuptools().version}",),
            against=(),
            patches=(),
            env=(),
            architectures=None,
            modules=build.modules,
            jobs=None,
            threads=None,
            toolkit="",
            cost=None,
            source="a test",
        )
    }


def test_a_wheel_is_compiled_kept_and_imported(
    engine: Engine, settings: Settings, store: Store, with_compilers: LockedBase, cleaned: list[str]
) -> None:
    settings = replace(settings, mirror=str(store.root))  # no registry has this base: its layers lie in the store
    locked = locked_on(with_compilers, store)
    (build,) = locked.builds
    whole = compiled(locked, engine, settings, store)
    assert lock.inputs_hash(whole) == lock.inputs_hash(locked)
    kept = wheelhouse.known(store, build.key)
    assert kept is not None
    assert kept.filename == "tiny_ext-1.0-cp311-cp311-linux_x86_64.whl"
    assert kept.record["units"] == 2
    assert "two.cpp" in store.read(kept.record["log"]).decode()
    assert kept.record["memory"] > 10_000_000
    assert require_wheels(locked, Context(store, settings, Quiet())) == whole, "no engine is needed any more"

    tag = f"imagegen-test-{secrets.token_hex(4)}:1"
    engine.load(store, layers.assemble(whole, Context(store, settings, Quiet())).digest, tag)
    cleaned.append(tag)
    assert answer(engine, tag) == b"42\n"


def compiled(locked: Lock, engine: Engine, settings: Settings, store: Store) -> Lock:
    """The lock with its wheels, made on the engine's builder."""
    cell = cast("Cell", SimpleNamespace(recipes=recipes_of(locked.builds[0]), gpus=()))
    return ensure_wheels(locked, cell, (), Context(store, settings, Quiet()), engine=engine)


@pytest.mark.slow
def test_on_a_base_with_a_compiler_and_by_the_dockerfile_alone(
    engine: Engine,
    settings: Settings,
    store: Store,
    with_packages: LockedBase,
    cleaned: list[str],
    shell: dict[str, str],
    tmp_path: Path,
) -> None:
    locked = locked_on(with_packages, store)
    whole = compiled(locked, engine, settings, store)
    tag = f"imagegen-test-{secrets.token_hex(4)}:1"
    engine.load(store, layers.assemble(whole, Context(store, settings, Quiet())).digest, tag)
    cleaned.append(tag)
    assert answer(engine, tag) == b"42\n"

    # The Dockerfile compiles it too, without imagegen: one file at a time, in stages of its own.
    rendered = recipe.render(locked, tag)
    recipe.write(rendered, locked, recipes_of(locked.builds[0]), tmp_path / "plain", Context(store, settings, Quiet()))
    plain = re.findall(r" -t (\S+)", rendered.arguments)[0]
    cleaned.append(plain)
    paste(engine.buildx_line(rendered.arguments), shell, tmp_path / "plain")
    assert answer(engine, plain) == b"42\n"


def answer(engine: Engine, tag: str) -> bytes:
    with engine.container(tag) as container:
        outcome = container.exec(["python", "-c", "import tiny_ext; print(tiny_ext.answer())"])
    assert outcome.exit_code == 0, outcome
    return outcome.stdout
