"""A source build on a real builder with a real compiler: C++ alone, so that it is over soon."""

from __future__ import annotations

import io
import os
import re
import secrets
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from imagegen import lock
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Counter, Progress, Quiet
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.image import base, dockerfile, folder, layers
from imagegen.lock.builds import keyed
from imagegen.lock.foundation import LockedBase
from imagegen.lock.model import Lock, LockedBuild, LockedFile, LockedWheel
from imagegen.oci.documents import ImageConfig, LayerDescriptor, RemoteImage
from imagegen.spec.foundation import Base
from imagegen.spec.model import Cell
from imagegen.spec.recipe import Cost, Recipe, SdistFile
from imagegen.wheels.builds.ensure import ensure_wheels, require_wheels
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.builds.schedule import probe
from imagegen.wheels.wheelhouse import known
from tests.support.docker_daemons import Daemon, paste
from tests.support.errors import raises
from tests.support.interpreters import LOCKED
from tests.support.machines import Debian, committed, private_engine
from tests.support.remote_builder import BuildKitPort, create_line
from tests.support.tls_proxy import Authority
from tools.engine.packages import unpack

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


def sdist(changed: Mapping[str, str]) -> bytes:
    """Another one in each run, so that no builder has it in its cache; `changed` files in place of those above."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in {**FILES, "salt": secrets.token_hex(8), **changed}.items():
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


@pytest.fixture(scope="module")
def compilers(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compilers as a layer."""
    folder = tmp_path_factory.mktemp("compilers")
    unpack("bookworm", COMPILERS, folder / "root", settings, Quiet())
    with tarfile.open(folder / "layer.tar", "w") as archive:
        archive.add(folder / "root" / "usr", "usr", filter=lambda info: None if LEFT_OUT.match(info.name) else info)
    return folder / "layer.tar"


@pytest.fixture
def with_compilers(debian: Debian, compilers: Path, store: Store) -> LockedBase:
    """The base that other tests have anyway, with a compiler on top, as a registry's image would bring both."""
    with compilers.open("rb") as file, store.writer() as writer:
        for chunk in iter(partial(file.read, 1 << 20), b""):
            writer.write(chunk)
        top, size = writer.commit(), writer.size
    store.path(debian.layer.diff_id).hardlink_to(debian.store.path(debian.layer.diff_id))
    blobs = ((debian.layer.diff_id, debian.layer.size), (top, size))
    layers = tuple(LayerDescriptor(_LAYER, digest, size, digest) for digest, size in blobs)
    content = RemoteImage(top, top, ImageConfig(("PATH=/usr/bin:/bin",), (), (), "", ""), layers)
    return LockedBase("compilers", "registry", None, {}, (), "a.invalid/base:1", content)


def locked_on(below: LockedBase, store: Store, changed: Mapping[str, str] | None = None) -> Lock:
    """A cell of nothing but the extension, with `changed` sources."""
    source = sdist(changed or {})
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
    if private_engine():
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
    kept = known(store, build.key)
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


def compiled(
    locked: Lock,
    engine: Engine,
    settings: Settings,
    store: Store,
    *,
    builder: str | None = None,
    cost: Cost | None = None,
    progress: Progress | None = None,
) -> Lock:
    """The lock with its wheels, made on `builder`, else on the engine's own."""
    recipes = {name: replace(recipe, cost=cost) for name, recipe in recipes_of(locked.builds[0]).items()}
    cell = cast("Cell", SimpleNamespace(recipes=recipes, gpus=()))
    context = Context(store, settings, progress or Quiet())
    return ensure_wheels(locked, cell, (), context, engine=engine, builder=builder)


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
    rendered = dockerfile.render(locked, tag)
    folder.write(rendered, locked, recipes_of(locked.builds[0]), tmp_path / "plain", Context(store, settings, Quiet()))
    plain = re.findall(r" -t (\S+)", rendered.arguments)[0]
    cleaned.append(plain)
    paste(engine.buildx_line(rendered.arguments), shell, tmp_path / "plain")
    assert answer(engine, plain) == b"42\n"


def answer(engine: Engine, tag: str) -> bytes:
    with engine.container(tag) as container:
        outcome = container.exec(["python", "-c", "import tiny_ext; print(tiny_ext.answer())"])
    assert outcome.exit_code == 0, outcome
    return outcome.stdout


# The same on the BuildKit of another Docker engine, which buildx reaches over TLS.

MEMORY = 1_000_000_000  # bytes that the remote builds have together
COST = Cost(units=2, seconds=1.0, memory=MEMORY, largest=MEMORY, source="a test")  # too much for that engine alone
CGROUPS = Path("/sys/fs/cgroup")
_OBJECTS = "build/temp.linux-x86_64-cpython-311"
# An object that is there is not compiled again, as ninja and make do it. The second one takes some seconds.
SLOW = {
    "setup.py": """\
import os
from setuptools import Extension, setup
from distutils.unixccompiler import UnixCCompiler
def compile(self, obj, *rest, compile=UnixCCompiler._compile):
    print("kept:" if os.path.exists(obj) else "compiled:", obj)
    os.path.exists(obj) or compile(self, obj, *rest)
UnixCCompiler._compile = compile
limits = ["-fconstexpr-loop-limit=2000000000", "-fconstexpr-ops-limit=20000000000"]
sources = ["tiny.cpp", "two.cpp", "zero.cpp"]
setup(name="tiny-ext", version="1.0", ext_modules=[Extension("tiny_ext", sources, extra_compile_args=limits)])
""",
    "zero.cpp": "int zero() { return 0; }\n",
    "two.cpp": """\
constexpr long sum(long n) {
    long found = 0;
    for (long i = 0; i < n; i++) found = (found * 31 + i) % 1000003;
    return found;
}
constexpr long found = sum(2000000);
int two() { return found ? 2 : 3; }
""",
}


@dataclass(frozen=True)
class RemoteBuilder:
    """An engine whose BuildKit listens at `address`; `authority` signs its certificate and those of clients."""

    daemon: Daemon
    authority: Authority
    address: str


@pytest.fixture(scope="module")
def remote(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteBuilder]:
    authority = Authority(tmp_path_factory.mktemp("tls") / "ours", "The CA of the builder")
    with (
        Daemon(tmp_path_factory.mktemp("d") / "d", programs, megabytes=4000) as daemon,
        BuildKitPort(daemon.host.removeprefix("unix://"), authority) as port,
    ):
        yield RemoteBuilder(daemon, authority, port.address)


@dataclass(frozen=True)
class User:
    """A user with buildx, and the local engine."""

    engine: Engine
    shell: Mapping[str, str]
    folder: Path

    def create(self, name: str, remote: RemoteBuilder, signer: Authority) -> str:
        """Make a builder with a client certificate of `signer`; return its name."""
        line = create_line(name, remote.address, remote.authority.pem, signer.issue("client"))
        paste(line, self.shell, self.folder)
        return name


@pytest.fixture
def user(engine: Engine, settings: Settings, shell: dict[str, str], tmp_path: Path) -> Iterator[User]:
    own = {"BUILDX_CONFIG": str(tmp_path / "buildx")}
    with Engine.connect(replace(settings, env=shell | own)) as found:
        yield User(found, shell | own, tmp_path)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="an engine in namespaces of its own needs root")


@needs_root
@pytest.mark.slow
@pytest.mark.usefixtures("cleaned")
@pytest.mark.skipif(
    not all((CGROUPS / each).is_dir() for each in ("memory", "cpuset")),
    reason="in control groups version 2 a container does not see the limits of the group that holds its own",
)
def test_a_remote_builder_gives_the_same_wheel_by_a_plan_for_its_own_machine(
    engine: Engine,
    user: User,
    settings: Settings,
    store: Store,
    with_compilers: LockedBase,
    remote: RemoteBuilder,
    tmp_path: Path,
) -> None:
    settings = replace(settings, mirror=str(store.root))
    locked = locked_on(with_compilers, store)
    compiled(locked, engine, settings, store, cost=COST)
    here = known(store, locked.builds[0].key)
    assert here

    remote.daemon.limit(MEMORY)
    builder, other = user.create("far", remote, remote.authority), Store(tmp_path / "other")
    compiled(locked, user.engine, settings, other, builder=builder, cost=COST)
    there = known(other, locked.builds[0].key)
    assert there
    assert other.read(f"sha256:{there.sha256}") == store.read(f"sha256:{here.sha256}")
    assert here.record["planned"]["warning"] is None, "this machine has the memory"
    assert there.record["planned"]["warning"]
    context = Context(other, settings, Quiet())
    found = probe(locked, layers.assemble_base(locked, context), BuildEnvironment(user.engine, builder, context))
    assert (found.cores, found.limited) == (1, True)
    assert found.memory == pytest.approx(MEMORY, abs=4096)


@needs_root
@pytest.mark.slow
@pytest.mark.fault(
    "Engine", "the client certificate of a remote builder is one that the builder refuses", "named; nothing is kept"
)
def test_a_remote_builder_that_refuses_the_certificate_is_named(
    user: User, settings: Settings, store: Store, with_compilers: LockedBase, remote: RemoteBuilder, tmp_path: Path
) -> None:
    settings = replace(settings, mirror=str(store.root))
    locked = locked_on(with_compilers, store)
    builder = user.create("far", remote, Authority(tmp_path / "stranger", "Another CA"))
    with raises("engine-builder-unreachable", where=remote.address) as caught:
        compiled(locked, user.engine, settings, store, builder=builder)
    assert str(tmp_path / "stranger" / "client.pem") in str(caught.value.why)
    assert "cert=" in str(caught.value.fix)
    assert known(store, locked.builds[0].key) is None
    assert list(store.scratch.iterdir()) == []


class Killing(Quiet):
    """Kills the daemon when the second unit is being compiled."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def counter(self, label: str, noun: str) -> Counter:
        killing = super().counter(label, noun)
        killing.reach = self._reach  # type: ignore[method-assign]
        return killing

    def _reach(self, done: int, total: int, note: str) -> None:
        if done == 2:
            self._daemon.signal("KILL")


@needs_root
@pytest.mark.slow
@pytest.mark.fault(
    "Engine", "a remote builder is killed while it compiles", "named; the next build goes on from what is compiled"
)
def test_a_remote_builder_that_is_killed_is_named_and_the_next_build_goes_on(
    user: User, settings: Settings, store: Store, with_compilers: LockedBase, remote: RemoteBuilder
) -> None:
    settings = replace(settings, mirror=str(store.root))
    locked = locked_on(with_compilers, store, SLOW)
    builder = user.create("far", remote, remote.authority)
    with raises("source-build-connection-lost"):
        compiled(locked, user.engine, settings, store, builder=builder, progress=Killing(remote.daemon))
    assert known(store, locked.builds[0].key) is None
    assert list(store.scratch.iterdir()) == []

    remote.daemon.start()
    compiled(locked, user.engine, settings, store, builder=builder)
    wheel = known(store, locked.builds[0].key)
    assert wheel
    log = store.read(wheel.record["log"]).decode().splitlines()
    # The compilers outlive the daemon until their worker reports the next unit; the second build waits for them.
    assert [line for line in log if line.startswith(("compiled: ", "kept: "))] == [
        *(f"compiled: {_OBJECTS}/{name}.o" for name in ("tiny", "two", "zero")),
        *(f"kept: {_OBJECTS}/{name}.o" for name in ("tiny", "two")),
        f"compiled: {_OBJECTS}/zero.o",
    ]
    assert not [line for line in log if "Error" in line]
