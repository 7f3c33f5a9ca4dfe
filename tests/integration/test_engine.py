"""The engine with real parts: loading, containers, buildx, and a private engine that comes and goes."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import secrets
import subprocess
import tarfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import ContainerError, EngineError, OutputLimitError, StoreError, WheelError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.engine import load as pulling
from imagegen.engine.containers import LONGEST
from imagegen.engine.loopback import Registry
from tests.support.errors import raises
from tests.support.image_parts import part_of
from tests.support.machines import private_engine
from tests.support.tiny_image import tiny_image
from tools.engine import private, processes
from tools.engine.private import SUITE

pytestmark = pytest.mark.integration


class Recorder(Quiet):
    """Keeps what was said, and the bytes that each load announced."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.totals: list[int] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def meter(self, label: str, total: int):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self.totals.append(total)
        return super().meter(label, total)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def tag(engine: Engine) -> Iterator[str]:
    name = f"imagegen-test-{secrets.token_hex(4)}:1"
    before = {str(image.id) for image in engine.client.images.list(all=True)}
    yield name
    with_tag = engine.image_digest(name)
    if with_tag:
        engine.client.api.remove_image(name, force=True)
    for image in engine.client.images.list(all=True):
        if image.id not in before and not image.tags:
            engine.client.api.remove_image(image.id, force=True)


@pytest.mark.skipif(
    platform.machine() != "x86_64" or Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists(),
    reason="programs for arm64 run here",
)
def test_an_image_for_another_processor_is_named_as_such(
    engine: Engine, store: Store, busybox: bytes, tag: str
) -> None:
    aarch64 = busybox[:18] + (183).to_bytes(2, "little") + busybox[20:]  # e_machine
    digest = tiny_image(store, aarch64, {"hello": b"hello\n"}, "arm64")
    engine.load(store, digest, tag)
    with raises("engine-foreign-platform"), engine.container(digest, files={"x": b"x"}):
        pass


def test_load_twice_and_run_the_printed_line(engine: Engine, store: Store, busybox: bytes, tag: str) -> None:
    digest = tiny_image(store, busybox, {"hello": b"hello from a layer\n"})
    said = Recorder()
    engine.load(store, digest, tag, said)
    assert engine.image_digest(tag) == digest
    engine.load(store, digest, tag, said)
    assert said.lines[-1] == f"{tag} is in the engine"
    assert len(said.totals) == 1

    line = engine.docker_run_line(tag, "cat", "/hello")
    # As pasted into a shell that knows nothing of the engine.
    env = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "hello from a layer\n"


def test_load_leaves_no_name_but_the_tag_and_says_when_it_moves(
    engine: Engine, store: Store, busybox: bytes, tag: str
) -> None:
    first, second = (tiny_image(store, busybox, {"n": content}) for content in (b"1", b"2"))
    engine.load(store, first, tag)
    said = Recorder()
    engine.load(store, second, tag, said)
    assert engine.client.images.get(second).tags == [tag]
    assert said.lines[-1] == f"{tag}: {second} (it was {first})"


def test_an_engine_that_cannot_reach_loopback_gets_an_archive(
    engine: Engine, store: Store, busybox: bytes, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def out_of_reach(*_: object) -> Iterator[Registry]:
        yield Registry("127.0.0.1:1/imagegen/nobody")

    monkeypatch.setattr(pulling, "serving", out_of_reach)
    first, second = (tiny_image(store, busybox, {"n": content}) for content in (secrets.token_bytes(8), b"2"))
    engine.load(store, first, tag)
    said = Recorder()
    engine.load(store, second, tag, said)
    assert engine.image_digest(tag) == second
    assert engine.client.images.get(second).tags == [tag]
    assert "loopback" in said.lines[0]
    assert said.totals[-1] < 1000, "only the config and the changed layer are sent"
    with engine.container(tag) as container:
        assert container.exec(["cat", "/n"]).stdout == b"2"


def test_the_bottom_is_loaded_while_the_top_is_made(
    engine: Engine, store: Store, busybox: bytes, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = tiny_image(store, busybox + secrets.token_bytes(8), {"n": secrets.token_bytes(8)})
    bottom, top = json.loads(store.read(digest))["layers"]
    pulls: list[list[str]] = []
    plain = pulling.pulled

    @contextmanager
    def counted(*arguments: Any) -> Iterator[str | None]:
        sent: list[str] = []
        pulls.append(sent)
        real = Store.path
        with ExitStack() as stack:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Store, "path", lambda self, digest: sent.append(digest) or real(self, digest))
                name = stack.enter_context(plain(*arguments))
            yield name

    monkeypatch.setattr(pulling, "pulled", counted)
    with engine.loading(store) as early:
        early.offer(part_of(store, digest, 1))
        while engine.image_digest(part_of(store, digest, 1).digest) is None:
            time.sleep(0.05)
        early.finish(digest, tag, Quiet())
    first, last = pulls
    assert bottom["digest"] in first and top["digest"] not in first
    assert top["digest"] in last and bottom["digest"] not in last, "what the engine has is not sent again"
    assert engine.image_digest(tag) == digest
    assert engine.client.images.get(digest).tags == [tag]
    assert engine.image_digest(part_of(store, digest, 1).digest) is None, "the part's name is gone"


def test_a_build_that_fails_leaves_nothing_of_its_parts(engine: Engine, store: Store, busybox: bytes) -> None:
    digest = tiny_image(store, busybox, {"n": secrets.token_bytes(8)})
    part = part_of(store, digest, 1)

    def fail() -> None:
        with engine.loading(store) as early:
            early.offer(part)
            raise WheelError("the top cannot be made")

    with pytest.raises(WheelError):
        fail()
    assert engine.image_digest(part.digest) is None


def test_a_damaged_store_is_named_and_nothing_is_loaded(engine: Engine, store: Store, busybox: bytes, tag: str) -> None:
    digest = tiny_image(store, busybox, {"n": secrets.token_bytes(8)})
    layer = json.loads(store.read(digest))["layers"][1]
    path = store.path(layer["digest"])
    path.chmod(0o644)
    path.write_bytes(b"x" * layer["size"])
    with pytest.raises(StoreError, match=f"blob {layer['digest']} is damaged"):
        engine.load(store, digest, tag)
    assert engine.image_digest(tag) is None
    assert not path.exists(), "what is damaged goes, so that it is made again"
    with pytest.raises(StoreError, match=r"1 blobs of the image .* are missing"):
        engine.load(store, digest, tag)


def test_containers_report_ends_of_every_kind_and_vanish(
    engine: Engine, store: Store, busybox: bytes, tag: str
) -> None:
    engine.load(store, tiny_image(store, busybox, {"hello": b"hi"}), tag)
    with engine.container(tag, files={"suite/a b": b"copied"}, env={"WORD": "given"}) as container:
        assert container.exec(["cat", "/suite/a b"]).stdout == b"copied"
        outcome = container.exec(["sh", "-c", "echo $WORD; echo no >&2; exit 3"], env={"WORD": "changed"})
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, b"changed\n", b"no\n")
        assert container.exec(["sh", "-c", "kill -11 $$"]).signal == "SIGSEGV"
        assert container.exec(["ls", "/sys/class/net"]).stdout.split() == [b"lo"]
        with pytest.raises(TimeoutError):
            container.exec(["sleep", "60"], timeout=0.5)
        with pytest.raises(ContainerError, match="the container has ended"):
            container.exec(["sleep", "60"])
    with engine.container(tag) as container:
        missing = container.exec(["no-such-program"])
        assert (missing.exit_code, b"no-such-program" in missing.stdout) == (126, True)
    with pytest.raises(EngineError, match="no such image"), engine.container("no-such-image:1"):
        pytest.fail("it started")
    with pytest.raises(KeyboardInterrupt), engine.container(tag):
        raise KeyboardInterrupt
    assert not [each for each in engine.client.containers.list(all=True) if each.image.tags == [tag]]


@pytest.mark.fault(
    "Engine",
    "a program in a container prints without end",
    "its container is killed; the error shows the end of the output",
)
@pytest.mark.parametrize("redirect", ["", " >&2"])
def test_a_program_that_prints_without_end_is_killed(
    redirect: str, engine: Engine, store: Store, busybox: bytes, tag: str
) -> None:
    engine.load(store, tiny_image(store, busybox, {"hello": b"hi"}), tag)
    with engine.container(tag) as container:
        tracemalloc.start()
        try:
            with pytest.raises(OutputLimitError) as caught:
                container.exec(["sh", "-c", f"while :; do echo {'A' * 4000}; done{redirect}"], timeout=120)
            assert tracemalloc.get_traced_memory()[1] < 4 * LONGEST
        finally:
            tracemalloc.stop()
        assert str(caught.value.why).endswith("AAAA")
        assert len(str(caught.value.why)) < 10_000
        with pytest.raises(ContainerError, match="the container has ended"):
            container.exec(["sleep", "60"])
    with engine.container(tag) as container:
        outcome = container.exec(["sh", "-c", f"head -c {LONGEST} /dev/zero{redirect}"])
        assert (len(outcome.stdout + outcome.stderr), outcome.exit_code) == (LONGEST, 0)


def test_of_a_long_log_the_end_is_read(engine: Engine, store: Store, busybox: bytes, tag: str) -> None:
    engine.load(store, tiny_image(store, busybox, {"hello": b"hi"}), tag)
    script = f"head -c {20 << 20} /dev/zero | tr '\\0' x; echo end"
    name = engine.client.api.create_container(tag, ["sh", "-c", script])["Id"]
    try:
        engine.client.api.start(name)
        engine.client.api.wait(name)
        log = engine.inspect_container(name).log
    finally:
        engine.client.api.remove_container(name, force=True)
    assert log.endswith("xend\n")
    assert len(log) == 4 << 20


def test_buildx_builds_on_a_layout_and_explains_its_failures(
    engine: Engine, store: Store, busybox: bytes, tmp_path: Path
) -> None:
    digest = tiny_image(store, busybox, {"hello": b"hi"})
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch AS base\nFROM base\nRUN echo made > /made\n")
    args = ["build", "--build-context", f"base=oci-layout://{store.root}@{digest}", "--output"]
    engine.buildx([*args, f"type=oci,dest={tmp_path / 'out.tar'},rewrite-timestamp=true", "."], cwd=context)
    with tarfile.open(tmp_path / "out.tar") as tar:
        index = json.load(tar.extractfile("index.json") or pytest.fail("no index"))
        (built,) = index["manifests"]
        manifest = json.load(tar.extractfile(f"blobs/{built['digest'].replace(':', '/')}") or pytest.fail("none"))
    base = json.loads(store.read(digest))["layers"]
    assert manifest["layers"][:2] == base, "layers of the base are reused as they are"
    (context / "Dockerfile").write_text("FROM scratch AS base\nFROM base\nRUN echo broken-here >&2; exit 9\n")
    with pytest.raises(EngineError, match="broken-here"):
        engine.buildx([*args, f"type=oci,dest={tmp_path / 'out.tar'}", "."], cwd=context)


EMULATORS = "/proc/sys/fs/binfmt_misc"


def machine(temporary: Path) -> dict[str, Any]:
    """Return the state of the machine that a private engine could leave behind.

    `temporary` is the test's directory; other tests mount and unmount in theirs beside it.
    """
    points = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    tests = f"{temporary.parents[1]}/"

    def lines(*command: str) -> set[str]:
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())

    return {
        "rules": lines("iptables", "-S") | lines("iptables", "-t", "nat", "-S"),
        "links": {line.split()[1] for line in lines("ip", "-o", "link", "show", "type", "bridge")},
        "routes": {line.split()[0] for line in lines("ip", "route")},
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "mounts": {point for point in points if not point.startswith(tests)},
        "places": set(os.listdir("/run")) | set(os.listdir("/opt")),
        # Without those of engines: the table is the same in all namespaces, so other tests' engines are in it.
        "emulators": {each for each in os.listdir(EMULATORS) if not each.startswith("imagegen-")},
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="a private engine needs root")
def test_a_private_engine_comes_works_and_leaves_nothing(
    engine: Engine, settings: Settings, busybox: bytes, tmp_path: Path
) -> None:
    """Beside another engine: bridges, subnets and sockets of two must not meet."""
    store = Store(tmp_path / "imagegen" / "store")
    env = {name: value for name, value in settings.env.items() if not name.startswith("DOCKER_")}
    own = dataclasses.replace(settings, store=store.root, env=env)
    # The packages of the first private engine, where there is one, spare a second download.
    first = private_engine()
    if first:
        packages = tmp_path / "imagegen" / "engine" / SUITE
        packages.parent.mkdir()
        subprocess.run(["cp", "-a", str(first.packages), str(packages)], check=True)
    before, shared = machine(tmp_path), set()
    if first:  # two engines of imagegen share these directories; the last one's `down` removes them
        shared = {"containerd", "docker", "runc"}
    started = private.up(own, Quiet())
    try:
        assert private.up(own, Quiet()) == started, "up is idempotent"
        assert private.running(own) == started
        again = dataclasses.replace(own, env={**env, **started.environment(env)})
        with Engine.connect(again) as second:
            second.load(store, tiny_image(store, busybox, {"hello": b"hi"}), "tiny:1")
            with second.container("tiny:1", network=True) as container:
                assert b"eth0" in container.exec(["ls", "/sys/class/net"]).stdout
            second.client.networks.create("mine")
            second.client.containers.run("tiny:1", ["sleep", "600"], detach=True, network="mine")
    finally:
        private.down(own, Quiet())
    after = machine(tmp_path)
    assert after["places"] - shared == before["places"] - shared
    assert after["places"] >= before["places"]
    assert after | {"places": None} == before | {"places": None}
    assert not processes.mounts_under(tmp_path)
    name = started.run.name
    assert not [each for each in os.listdir(EMULATORS) if each.startswith(name)]
    assert not (tmp_path / "imagegen" / "engine").exists()
    assert private.running(own) is None
    private.down(own, Quiet())


@pytest.mark.skipif(os.geteuid() != 0, reason="a private engine needs root")
def test_an_engine_that_cannot_start_shows_its_log_and_leaves_nothing(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    """The packages are there, but the engine's program is one that only complains."""
    own = dataclasses.replace(settings, store=tmp_path / "store")
    program = tmp_path / "engine" / SUITE / "usr" / "sbin" / "dockerd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'failed to start daemon: no such luck'\n")
    program.chmod(0o755)
    before = machine(tmp_path)
    with pytest.raises(EngineError, match="no such luck"):
        private.up(own, Quiet())
    assert machine(tmp_path) == before
