"""An image for linux/arm64 on a machine of another processor: packages' scripts run under qemu, compiling does not."""

from __future__ import annotations

import json
import os
import re
import tarfile
from concurrent.futures import Future
from pathlib import Path

import pytest
import zstandard

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image.file_tree import tree
from imagegen.image.layers.byte_code import Compiler
from imagegen.image.layers.layer import wheels_layer
from imagegen.image.layers.plan import plan
from tests.support.machines import Place, committed, digest_of, relocked

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ARM64 = "cpu-grpo-cpu-py311-linux-arm64"
AMD64 = "cpu-grpo-cpu-py311"
_BYTE_CODE = re.compile(r"(.*/)__pycache__/([^/]+)\.cpython-311\.pyc")


def test_the_image_is_the_recorded_one_with_the_byte_code_of_amd64(machine: Place) -> None:
    built = {
        cell: machine.run("build", cell, "--no-test", "--scratch-base", "--output", f"oci:{cell}")
        for cell in (ARM64, AMD64)
    }
    record = committed(ARM64).record
    assert record
    assert relocked(built[ARM64]) or digest_of(built[ARM64]) == record.digest
    assert config(machine.root / ARM64)["architecture"] == "arm64"
    foreign, own = (python_files(machine.root / cell) for cell in (ARM64, AMD64))
    compared = [
        path
        for path, source in ((path, source_of(path)) for path in foreign)
        if source and path in own and foreign.get(source) == own.get(source)
    ]
    assert len(compared) > 10_000
    assert [path for path in compared if foreign[path] != own[path]] == []

    lock, store = committed(ARM64), Store(machine.cache / "imagegen/store")
    part = next(each for each in plan(lock) if each.name == "transformers")
    recorded = next(each for each in record.layers if each.name == part.name)
    rootfs: Future[Path] = Future()
    rootfs.set_result(tree(lock.foundation, Context(store, Settings.from_environment(os.environ), Quiet())))
    with Compiler(rootfs, lock.interpreter.path, len(os.sched_getaffinity(0))) as emulated:
        assert wheels_layer(store, part, lock, emulated).diff_id == recorded.diff_id


def source_of(path: str) -> str | None:
    """Return the source that a file of byte-code is of, None for another file."""
    match = _BYTE_CODE.fullmatch(path)
    return f"{match[1]}{match[2]}.py" if match else None


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def manifest(layout: Path) -> dict[str, list[dict[str, str]]]:
    """Return the manifest of a layout's only image."""
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    found: dict[str, list[dict[str, str]]] = json.loads(blob(layout, entry["digest"]).read_text())
    return found


def config(layout: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(blob(layout, dict(manifest(layout)["config"])["digest"]).read_text())
    return found


def python_files(layout: Path) -> dict[str, bytes]:
    """Return path -> content of all Python sources and byte-code in an image's layers."""
    found = {}
    for layer in manifest(layout)["layers"]:
        with (
            blob(layout, layer["digest"]).open("rb") as packed,
            tarfile.open(fileobj=zstandard.ZstdDecompressor().stream_reader(packed), mode="r|") as tar,
        ):
            for member in tar:
                if member.isreg() and member.name.endswith((".py", ".pyc")):
                    content = tar.extractfile(member)
                    assert content
                    found[member.name] = content.read()
    return found
