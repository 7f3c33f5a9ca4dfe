"""A rendered Dockerfile under a real BuildKit: the printed command as it is pasted, and values as they arrive."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import secrets
import ssl
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import zstandard
from certifi import where

from imagegen.audit.readers.installation import pyc_path
from imagegen.core.layer_tree import parents
from imagegen.core.progress import Quiet
from imagegen.core.store import Store, images
from imagegen.engine import Engine
from imagegen.image import dockerfile
from imagegen.image.folder import write_bake
from imagegen.image.layers import environment, support
from imagegen.image.layers.image_config import labels
from imagegen.lock.model import Lock
from imagegen.run.smoke import runner as smoke_checks
from imagegen.spec.model import EnvVar
from tests.support.docker_daemons import paste
from tests.support.machines import Built, Place, private_engine, relocked, write_plain
from tests.support.tiny_image import tiny_image
from tests.support.tiny_lock import LOCK, VISIBLE
from tests.support.tls_proxy import Authority

pytestmark = pytest.mark.integration


@pytest.fixture
def cleaned(engine: Engine) -> Iterator[list[str]]:
    """Tags put into the list are removed, and with them what their builds left in the private engine's cache."""
    tags: list[str] = []
    yield tags
    for tag in tags:
        if engine.image_digest(tag):
            engine.client.api.remove_image(tag, force=True)
    if private_engine():  # a user's own cache is the user's
        engine.client.api.prune_builds(all=True)


@pytest.mark.fault(
    "Secrets", "a plain build gets a private CA as a secret", "no layer, config or manifest has a byte of it"
)
@pytest.mark.parametrize("image", ["plain", pytest.param("cpu_grpo", marks=pytest.mark.slow)])
def test_the_printed_command_makes_an_image_that_passes(
    image: str,
    request: pytest.FixtureRequest,
    engine: Engine,
    machine: Place,
    shell: dict[str, str],
    cleaned: list[str],
    tmp_path: Path,
) -> None:
    built: Built = request.getfixturevalue(image)
    own = Place(tmp_path / "place", machine.docker_host)
    own.root.mkdir()
    own.cache.symlink_to(machine.cache)
    # As on the day when the lock's packages have left the archive.
    base = built.lock.base
    gone = (replace(base.debs[0], version="1:0.1", sha256="0" * 64, path="pool/main/g/gone.deb"), *base.debs[1:])
    write_plain(own.root, replace(built.lock, base=replace(base, debs=gone), record=None))
    own.call("render", built.lock.image, "-o", "a directory", code=72)
    assert not (own.root / "a directory").exists()
    done = own.call("render", built.lock.image, "-o", "a directory", "--scratch-base")
    assert relocked(done)
    directory = own.root / "a directory" / built.lock.cell
    assert sorted(path.name for path in directory.iterdir()) == ["Dockerfile", "base", "support", "wheels"]

    (line,) = done.stdout.splitlines()
    tag = re.findall(r" -t (\S+)", line)[0]
    cleaned.append(tag)
    authority = Authority(tmp_path / "authority", "The CA that a build was given as a secret")
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(Path(ssl.get_default_verify_paths().cafile or where()).read_bytes() + authority.pem.read_bytes())
    paste(line, {**shell, "SSL_CERT_FILE": str(bundle)}, own.root)
    there = b'PRETTY_NAME="Debian'  # so that a search which finds nothing has searched
    assert traces_in(engine, tag, [*authority.traces, there]) == {there}
    report = smoke_checks.run(engine, tag, built.lock, built.declared, require_gpu=False, progress=Quiet())
    assert report.passed, [(result.check, result.reason, result.log) for result in report.results if result.failed]

    mounted = [word for path in ("/dev", "/proc", "/sys") for word in ("-path", path, "-prune", "-o")]
    with engine.container(tag) as container:
        outcome = container.exec(["find", "/", "-xdev", *mounted, "-print"])
    assert outcome.exit_code == 0
    found = set(outcome.stdout.decode().splitlines())
    extra = {path for path in found - paths_of(directory / "base") if not path.startswith("/opt/venv")}
    ours, engines = (
        support_of(built.lock),
        {"/.dockerenv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab"},
    )
    assert ours <= extra <= ours | engines, "the installation left something behind"


def support_of(locked: Lock) -> set[str]:
    """The paths of the support layer, and the directories above them that no base has."""
    files = {file.path for file in support.support_files(locked)}
    files |= {pyc_path(path, locked.python) for path in files if path.endswith(".py")}
    directories = {above for path in files for above in parents(path)}
    return (files | directories | {*support.OPEN, *support.LINKS}) - {"/opt"}


def traces_in(engine: Engine, tag: str, traces: list[bytes]) -> set[bytes]:
    """Return which of the byte strings are in the image: manifests, config, layers unpacked."""
    found = set()
    with tempfile.TemporaryFile() as archive:
        for chunk in engine.client.images.get(tag).save():
            archive.write(chunk)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            for member in filter(tarfile.TarInfo.isreg, tar):
                for data in unpacked(tar.extractfile(member)):
                    found |= {trace for trace in traces if trace in data}
    return found


def unpacked(file: IO[bytes] | None) -> Iterator[bytes]:
    """In pieces that overlap, so that nothing is missed between two."""
    assert file
    magic = file.read(4)
    file.seek(0)
    stream: Any = file
    if magic == b"\x28\xb5\x2f\xfd":
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    elif magic[:2] == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=file)
    tail = b""
    while data := stream.read(4 << 20):
        yield tail + data
        tail = data[-200:]


def paths_of(layout: Path) -> set[str]:
    """Every path of the one layer in an OCI layout."""

    def blob(descriptor: dict[str, str]) -> bytes:
        return (layout / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()

    (image,) = json.loads((layout / "index.json").read_text())["manifests"]
    (layer,) = json.loads(blob(image))["layers"]
    with (
        zstandard.ZstdDecompressor().stream_reader(io.BytesIO(blob(layer)), read_across_frames=True) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        return {"/", *(f"/{member.name.strip('./')}" if member.name == "." else f"/{member.name}" for member in tar)}


def test_values_arrive_as_they_are(engine: Engine, busybox: bytes, cleaned: list[str], tmp_path: Path) -> None:
    env = tuple(EnvVar(f"X{n:02}", f" a{piece} b\\", piece) for n, piece in enumerate(VISIBLE))
    env += (EnvVar("Y", "$HOME is \"$(pwd)\" or '`id`' in C:\\new\\", "It ends as a line goes on. \\"),)
    wheels = tuple(replace(LOCK.wheels[0], name=f"x{n}", because=f"{piece}\\") for n, piece in enumerate(VISIBLE))
    locked = replace(LOCK, env=env, wheels=wheels)
    rendered = dockerfile.render(locked, f"imagegen-test-{secrets.token_hex(4)}:1")
    tag = re.findall(r" -t (\S+)", rendered.arguments)[0]
    cleaned.append(tag)
    head, run, tail = rendered.dockerfile.partition("RUN --mount=type=bind")
    tail = tail.rpartition("\nIMAGEGEN\n")[2]  # and without the support layer, which needs a Python
    starts, entry, tail = tail.rpartition('ENTRYPOINT ["/opt/imagegen/entrypoint"]\n')
    assert entry
    tail = starts + tail
    assert run
    assert tail
    text = f"{head}COPY --from=requirements /requirements.txt /requirements.txt\n{tail}"
    folder = tmp_path / "cell"
    (folder / "wheels").mkdir(parents=True)
    (folder / "Dockerfile").write_text(text, encoding="utf-8")
    store = Store(tmp_path / "store")
    images.export(store, tiny_image(store, busybox, {"empty": b""}), folder / "base", "latest")

    # As pasted into a shell without the variables of the engine.
    shell = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    paste(engine.buildx_line(rendered.arguments), shell, folder)
    config = engine.client.images.get(tag).attrs["Config"]
    assert dict(each.split("=", 1) for each in config["Env"]) == environment(locked)
    assert config["Labels"] == labels(locked)

    engine.client.images.remove(tag)
    write_bake(tmp_path, {"cell": rendered})
    paste(engine.buildx_line("bake"), shell, tmp_path)
    assert engine.client.images.get(tag).attrs["Config"] == config
    assert (config["Cmd"], config["WorkingDir"]) == (["/bin/bash"], "/workspace")
    with engine.container(tag) as container:
        *variables, pins = (
            container.exec(["cat", "/proc/self/environ", "/requirements.txt"]).stdout.decode().split("\0")
        )
    assert environment(locked).items() <= dict(each.split("=", 1) for each in variables).items()
    comments, requirements = pins.splitlines()[::2], pins.splitlines()[1::2]
    assert comments == [f"# {wheel.because}" for wheel in wheels]
    assert requirements == [f"{each.name}=={each.version} --hash=sha256:{each.file.sha256}" for each in wheels]
