"""Shared by all tests: one profile for property tests, and golden files."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadScopeScheduling

from imagegen.core.compiled import TreeResults
from imagegen.core.config import Settings
from imagegen.core.store import Store
from imagegen.image import base as image_base
from imagegen.image.layers import byte_code
from imagegen.oci.documents import LayerDescriptor
from tests.support import command_line, fault_table
from tests.support.command_line import Run
from tests.support.elf_files import make_elf
from tests.support.git_server import Bare, GitServer
from tests.support.git_workspace import Workspace
from tests.support.golden import Golden
from tests.support.layer_inputs import HostSandbox
from tests.support.package_index import Index

# Machines are shared and noisy, so nothing is judged by its time. `--hypothesis-profile=thorough` is for `make fuzz`.
hypothesis_settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis_settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis_settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ with what is rendered now")
    parser.addoption("--fault-table", metavar="FILE", help="write the outcomes of tests marked `fault` as a table")


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # files are dealt out in the order of `_turn`
    # Started in the background, or by nohup, a run ignores these, and its tests' child processes would inherit that.
    for number, usual in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    # readline, which pytest imports, sets these; with COLUMNS, imagegen lays text out as for a terminal.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    if config.getoption("--fault-table") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(fault_table.FaultTable(Path(config.getoption("--fault-table"))))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    fault_table.note(items)
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=_turn)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave modules and collected tests, which stay to the end, out of every later search for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _turn(item: pytest.Item) -> int:
    """Return when a test runs: slow layers first, since a long file at the end would leave all but one process idle.

    tests/integration/test_engine.py comes first of all: it removes images without a tag that came while a test ran.
    Then tests that do without the base of the fixture `debian`: one process builds it meanwhile, and none waits for it.
    """
    file = item.path
    if file.parent.name != "integration":
        return 6 if file.parent.name == "unit" else 5
    if file.name == "test_engine.py":
        return 0
    return {"images": 1, "verifiers": 2, "engine": 4}.get(_group(file) or "", 3)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):
    """Tests of one scope run in one process, one after the other: those of a file, and those of a group of files."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _group(Path(__file__).parent.parent / file) or file


@functools.cache
def _group(file: Path) -> str | None:
    """Return the name of the group of files that share an expensive fixture, or what only one may change at a time."""
    text = file.read_text(encoding="utf-8")
    if file.name == "test_engine.py" or re.search(r"\b(machine: Place|(cpu_grpo|plain|sb3_maskable): )", text):
        return "images"  # a large image is built once
    if re.search(r"\b(engine: Engine|(programs|shell): )", text):
        return "engine"  # names in the engine, the cache of its builds, networks
    return "verifiers" if "verifiers: " in text else None  # 20 MB, fetched once


@pytest.fixture
def index() -> Iterator[Index]:
    """An empty package index on loopback."""
    index = Index()
    yield index
    index.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """The golden files of this test."""
    base = tmp_path_factory.getbasetemp()
    names = {"base": base, "shared": _shared(base)}
    if "tmp_path" in request.fixturenames:
        names["tmp"] = request.getfixturevalue("tmp_path")
    return Golden(request.node, is_update=request.config.getoption("--update-golden"), names=names)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this session's, the same in each of pytest-xdist's processes."""
    directory = _shared(tmp_path_factory.getbasetemp())
    directory.mkdir(exist_ok=True)
    return directory


def _shared(base: Path) -> Path:
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a user who has set nothing."""
    return Settings.from_environment({"HOME": str(tmp_path)})


@pytest.fixture
def compiled_on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile byte-code with the interpreter of the tests, outside any sandbox."""
    monkeypatch.setattr(byte_code, "Sandbox", HostSandbox)


@pytest.fixture
def empty_base(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every lock a base without files."""
    layer = LayerDescriptor.of_tar(store.write(bytes(1024)), 1024)
    monkeypatch.setattr(image_base, "build", lambda *_: layer)
    monkeypatch.setattr(image_base, "rootfs", lambda *_: tmp_path)


@pytest.fixture
def rootfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root directory of every base: it has a Python and a libc."""
    root = tmp_path / "rootfs"
    for path, data in {"usr/bin/python3.11": make_elf(interpreter="/ld.so"), "lib/libc.so.6": make_elf()}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        (root / path).chmod(0o755)
    monkeypatch.setattr("imagegen.image.base.rootfs", lambda *_: root)
    return root


@pytest.fixture
def git_workspace(tmp_path: Path) -> Iterator[Workspace]:
    """A repository on a Git server, which runs until the test ends."""
    bare = Bare(tmp_path / "x.git")
    server = GitServer(tmp_path)
    env = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    yield Workspace(tmp_path, bare, server, Store(tmp_path / "store"), env)
    server.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run imagegen with these arguments in this process, in a project of one image."""
    return command_line.runner(monkeypatch, capsys, tmp_path)


@pytest.fixture
def shared_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions of projects without matrices of their own share what they compute of shipped files."""
    monkeypatch.setattr(TreeResults, "of", command_line.compiled_once)
