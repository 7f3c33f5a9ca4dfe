"""verify --rebuild of a real build: in an empty store the same manifest; of an altered image the file, and why."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from imagegen import lock as locks
from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.core.store import Store
from imagegen.lock.make import copies
from imagegen.oci.documents import EMPTY_CONTENT, MANIFEST_TYPE, Descriptor, write_artifact
from imagegen.trust.documents import LOCK
from tests.support.registry_server import digest_of
from tests.support.small_cell import CELL, Machine, Site

pytestmark = [pytest.mark.integration, pytest.mark.slow]  # each time a base is made of its packages


class Layout:
    """An exported layout of a build; artifacts that are added to it are named in its index."""

    def __init__(self, root: Path) -> None:
        self.root, self.index = root, json.loads((root / "index.json").read_text())
        self.image = self.index["manifests"][0]["digest"]

    def read(self, digest: str) -> bytes:
        return (self.root / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()

    def put(self, data: bytes) -> Descriptor:
        path = self.root / "blobs/sha256" / digest_of(data).removeprefix("sha256:")
        if not path.exists():
            path.write_bytes(data)
        return Descriptor(MANIFEST_TYPE, digest_of(data), len(data))

    def names(self, image: Descriptor, lock: bytes) -> None:
        """This image alone, with this lock attached."""
        self.put(EMPTY_CONTENT)
        blob = Descriptor(LOCK.media_type, self.put(lock).digest, len(lock))
        attached = self.put(write_artifact(LOCK.media_type, [(None, blob)], {}, image))
        (self.root / "index.json").unlink()
        entries = [image.as_dict(), attached.as_dict()]
        (self.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))

    def altered(self, layer: str) -> Descriptor:
        """The image with another time on one file of a layer, and everything else made to fit."""
        manifest = json.loads(self.read(self.image))
        config = json.loads(self.read(manifest["config"]["digest"]))
        at = [each["created_by"] for each in config["history"]].index(f"imagegen: {layer}")
        packed = self.read(manifest["layers"][at]["digest"])
        raw = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
        tar = _touched(raw)
        blob = self.put(zstandard.ZstdCompressor().compress(tar))
        manifest["layers"][at] |= {"digest": blob.digest, "size": blob.size}
        config["rootfs"]["diff_ids"][at] = digest_of(tar)
        changed = self.put(json.dumps(config).encode())
        manifest["config"] |= {"digest": changed.digest, "size": changed.size}
        return self.put(json.dumps(manifest).encode())


def _touched(raw: bytes) -> bytes:
    """A tar with another time on heavy/data.bin."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(raw)) as before,
        tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in before:
            member.mtime += member.name.endswith("heavy/data.bin")
            after.addfile(member, before.extractfile(member) if member.isreg() else None)
    return made.getvalue()


def verified(machine: Machine, layout: Layout) -> tuple[int, str]:
    process = machine.start_command("verify", f"oci:{layout.root}", "--rebuild")
    out, err = process.communicate()
    return process.returncode, out + err


def with_copied_file(site: Site, project: Path) -> Site:
    """The site with a project whose image copies a file of it."""
    shutil.copytree(site.project, project, ignore=shutil.ignore_patterns("store"))
    (project / "reward.py").write_text("X = 1\n")
    file = project / "matrices" / "small.yaml"
    entry = "    files: {/srv/reward.py: {source: reward.py, because: It scores.}}\n"
    file.write_text(file.read_text().replace("    components:\n", f"{entry}    components:\n", 1))
    (cell,) = matrix.load([shipped("matrices"), project / "matrices"]).select(CELL)
    path = project / "locks" / f"{CELL}.toml"
    with tempfile.TemporaryDirectory(dir=project.parent) as store:
        copied = copies.read(cell, Store(Path(store)))
    assert copied
    locks.write(replace(locks.read(path), inputs=cell.inputs, copies=copied), path)
    return replace(site, project=project)


def test_a_real_build_is_made_again(site: Site, tmp_path: Path) -> None:
    site = with_copied_file(site, tmp_path / "project")
    machine = site.machine(tmp_path)
    digest = machine.build_here("out")
    layout = Layout(tmp_path / "out")
    lock = locks.dumps(locks.read(site.project / "locks" / f"{CELL}.toml")).encode()
    layout.names(Descriptor(MANIFEST_TYPE, digest, len(layout.read(digest))), lock)
    code, said = verified(machine, layout)
    assert f"pass        rebuild: the same manifest ({digest})" in said
    assert code == 0, said
    layout.names(layout.altered("heavy"), lock)
    code, said = verified(machine, layout)
    assert code == 1, said
    assert "rebuild: the same files at other times, first in layer heavy, /opt/venv/" in said
    assert "heavy/data.bin (mtime): times are not fixed" in said
    assert not list((machine.store / "tmp").iterdir())
