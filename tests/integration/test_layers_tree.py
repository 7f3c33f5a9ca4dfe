"""A layer holds what `uv pip install` would have put there, and the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from concurrent.futures import Future
from pathlib import Path

import pytest
import uv
import zstandard

from imagegen.core.store import Store
from imagegen.image.layers.byte_code import Compiler
from imagegen.image.layers.layer import wheels_layer
from imagegen.image.layers.plan import LayerPlan
from imagegen.lock.model import Lock, LockedBase, LockedFile, LockedInterpreter, LockedWheel
from imagegen.oci.documents import digest_of

pytestmark = pytest.mark.integration

# Chosen for what they hold: an extension module, console scripts, a .data/scripts program, headers, namespace parts.
PACKAGES = [
    "numpy==2.3.5",
    "rich==14.2.0",
    "greenlet==3.2.4",
    "ruff==0.14.0",
    "zope.interface==8.0.1",
    "hydra-core==1.3.2",
    "pip==26.3",
]
SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("wheels")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(directory),
    ]
    subprocess.run([*command, *PACKAGES], check=True, stdin=subprocess.DEVNULL)
    return sorted(directory.iterdir())


@pytest.fixture(scope="module")
def host() -> Future[Path]:
    """The host's own file tree stands in for a base: it holds an interpreter, which is all the compiler needs."""
    future: Future[Path] = Future()
    future.set_result(Path("/"))
    return future


def lock_of(wheels: list[Path], store: Store) -> Lock:
    locked = []
    for path in wheels:
        data = path.read_bytes()
        store.write(data)
        name, version = path.name.split("-")[:2]
        file = LockedFile(path.name, len(data), digest_of(data).removeprefix("sha256:"), "pypi")
        locked.append(LockedWheel(name.lower().replace("_", "-"), version, file, via=()))
    base = LockedBase("test", "debian", "test", {}, ())
    axes = {"python": "3.11", "platform": "linux/amd64"}
    return Lock(
        cell="test",
        image="test",
        axes=axes,
        inputs={},
        uv=locked[0],
        as_of="2026-01-01T00:00:00Z",
        base=base,
        interpreter=LockedInterpreter("test", "3.11", interpreter()),
        wheels=tuple(locked),
        env=(),
    )


def interpreter() -> str:
    """A Python 3.11 outside /root, which the sandbox hides."""
    return os.path.realpath("/usr/bin/python3.11")


def build(wheels: list[Path], root: Path, host: Future[Path], workers: int = 2) -> tuple[bytes, str]:
    store = Store(root)
    lock = lock_of(wheels, store)
    with Compiler(host, interpreter(), workers) as compiler:
        layer = wheels_layer(store, LayerPlan("all", lock.wheels, digest_of(b"key")), lock, compiler)
    return zstandard.ZstdDecompressor().stream_reader(
        store.read(layer.digest), read_across_frames=True
    ).read(), layer.digest


def tree_of_tar(data: bytes) -> dict[str, tuple[bool, str]]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            if member.isfile():
                content = tar.extractfile(member)
                assert content is not None
                found["/" + member.name] = (bool(member.mode & 0o111), hashlib.sha256(content.read()).hexdigest())
    return found


def tree_of_venv(root: Path) -> dict[str, tuple[bool, str]]:
    found = {}
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            name = "/opt/venv/" + str(path.relative_to(root))
            found[name] = (os.access(path, os.X_OK), hashlib.sha256(path.read_bytes()).hexdigest())
    return found


@pytest.fixture(scope="module")
def venv(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A venv in which uv installed the wheels, and what it held before."""
    root = tmp_path_factory.mktemp("uv") / "venv"
    own = {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_CACHE_DIR": str(root.parent / "cache")}

    def run(*arguments: str) -> None:
        subprocess.run([uv.find_uv_bin(), "-q", *arguments], check=True, env={**os.environ, **own})

    run("venv", "--python", interpreter(), str(root))
    before = set(tree_of_venv(root))
    run("pip", "install", "--python", str(root), "--no-deps", "--no-index", *map(str, wheels))
    return root, before


def test_the_tree_is_what_uv_installs(
    wheels: list[Path], venv: tuple[Path, set[str]], host: Future[Path], tmp_path: Path
) -> None:
    def comparable(tree: dict[str, tuple[bool, str]]) -> dict[str, tuple[bool, str]]:
        """Without byte-code, without install records, and console scripts by their names and modes alone."""
        records = ("/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json", "/uv_cache.json", "/.lock")
        return {
            path: (executable, "" if path.startswith("/opt/venv/bin/") and not path.endswith("/ruff") else digest)
            for path, (executable, digest) in tree.items()
            if "/__pycache__/" not in path and not path.endswith(records)
        }

    root, before = venv
    ours = tree_of_tar(build(wheels, tmp_path, host)[0])
    theirs = {path: what for path, what in tree_of_venv(root).items() if path not in before}
    assert comparable(ours) == comparable(theirs)
    assert sum("/__pycache__/" in path for path in ours) > 500


def test_scripts_behave_as_uvs_do(
    wheels: list[Path], venv: tuple[Path, set[str]], host: Future[Path], tmp_path: Path
) -> None:
    root, _ = venv
    data = build(wheels, tmp_path / "store", host)[0]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        content = tar.extractfile("opt/venv/bin/numpy-config")
        assert content is not None
        script = content.read()
    assert script.startswith(b"#!/opt/venv/bin/python\n")
    ours = tmp_path / "numpy-config"
    ours.write_bytes(script)
    for arguments in (["--version"], ["--nonsense"]):
        runs = [
            subprocess.run([root / "bin/python", file, *arguments], capture_output=True, text=True, check=False)
            for file in (ours, root / "bin/numpy-config")
        ]
        assert (runs[0].returncode, runs[0].stdout, runs[0].stderr) == (
            runs[1].returncode,
            runs[1].stdout,
            runs[1].stderr,
        )


def test_the_bytes_do_not_depend_on_workers_or_surroundings(
    wheels: list[Path], host: Future[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = build(wheels, tmp_path / "a", host, workers=1)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    before = os.umask(0o077)
    try:
        _, second = build(wheels, tmp_path / "b", host, workers=3)
    finally:
        os.umask(before)
    assert first == second


def test_python_imports_from_our_byte_code(wheels: list[Path], host: Future[Path], tmp_path: Path) -> None:
    data = build(wheels, tmp_path / "store", host)[0]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(tmp_path / "tree", filter="fully_trusted")
    site = tmp_path / "tree" / SITE.lstrip("/")
    program = "import rich, sys; print(rich.__spec__.cached); import importlib.util as u; open(rich.__spec__.cached)"
    source = site / "rich" / "__init__.py"
    source.write_text("raise SystemExit('the source was read')")  # unchecked byte-code never looks at the source
    done = subprocess.run(
        [interpreter(), "-B", "-c", program], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "__pycache__/__init__.cpython-311.pyc" in done.stdout
