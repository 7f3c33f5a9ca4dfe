"""The commands of the README in their order, on real parts."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import lock
from imagegen.engine import Engine
from imagegen.image import layers
from imagegen.image.layers.codec import CODEC
from tests.support.machines import PLAIN, Built, Place, digest_of, relocked, write_plain

pytestmark = pytest.mark.integration

CELL = f"{PLAIN}-cpu-py311"


@pytest.fixture(scope="module")
def built(plain: Built) -> Built:
    return plain


@pytest.mark.parametrize("image", ["cpu_grpo", pytest.param("sb3_maskable", marks=pytest.mark.slow)])
def test_cold_builds_give_the_recorded_digests(image: str, request: pytest.FixtureRequest) -> None:
    cold: Built = request.getfixturevalue(image)
    record = cold.lock.record
    assert cold.relocked or (record and cold.digest == record.digest)


def test_two_images_share_base_and_common_layers(built: Built, cpu_grpo: Built, machine: Place) -> None:
    def layers(digest: str) -> list[str]:
        path = machine.cache / "imagegen/store/blobs/sha256" / digest.removeprefix("sha256:")
        return [layer["digest"] for layer in json.loads(path.read_text())["layers"]]

    assert len({*layers(built.digest)} & {*layers(cpu_grpo.digest)}) >= 3  # base, venv, numpy


@pytest.mark.slow  # with all files in the store, test_offline does it
@pytest.mark.parametrize("image", ["sb3_maskable", "cpu_grpo"])
def test_another_machine_gives_the_same_digest(image: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    built: Built = request.getfixturevalue(image)
    other = Place(tmp_path / "a" / "quite" / "different" / "directory", None, 0o077, "Pacific/Auckland")
    other.root.mkdir(parents=True)
    done = other.run("build", built.lock.image, "--output", "oci:image", "--scratch-base")
    assert digest_of(done) == built.digest
    index = json.loads((other.root / "image" / "index.json").read_text())
    assert index["manifests"][0]["digest"] == built.digest


def test_the_tag_runs(built: Built, engine: Engine) -> None:
    tag = f"imagegen/{PLAIN}:cpu-py311"
    assert engine.image_digest(tag) == built.digest
    line = engine.docker_run_line(tag, "python", "-c", "import numpy; print(numpy.__version__)")
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    (numpy,) = (wheel for wheel in built.lock.wheels if wheel.name == "numpy")
    assert done.stdout == f"{numpy.version}\n", done.stderr


def test_an_unchanged_build_does_nothing(built: Built, machine: Place) -> None:
    before = {path: path.stat().st_mtime_ns for path in machine.cache.rglob("blobs/sha256/*")}
    done = machine.call("build", PLAIN, "--no-test")
    assert digest_of(done) == built.digest
    assert {path: path.stat().st_mtime_ns for path in machine.cache.rglob("blobs/sha256/*")} == before
    assert "load" not in done.stderr


def test_a_lock_that_a_later_rule_rejects_is_refused(built: Built, machine: Place, tmp_path: Path) -> None:
    own = replace(machine, root=tmp_path)
    write_plain(tmp_path, built.lock)
    (tmp_path / "matrices" / "mine.yaml").write_text(
        "rules:\n  mine:\n    when: {numpy: '>=2'}\n    then: {python: '>=3.12'}\n    because: I say so.\n"
        "    source: me\n    date: '2026-11-20'\n    severity: error\n    evidence: measured\n"
        "    kind: breaks\n    fix: Do not.\n"
    )
    done = own.call("build", PLAIN, "--no-test", code=66)
    assert "[mine]" in done.stderr
    assert CELL in done.stderr


def test_a_lock_that_another_build_contradicts_is_refused(built: Built, machine: Place, tmp_path: Path) -> None:
    locked = built.lock
    assert locked.record is not None
    parts = list(locked.record.layers)
    parts[-1] = replace(parts[-1], diff_id="sha256:" + "0" * 64)
    edited = replace(locked, record=replace(locked.record, layers=tuple(parts)))
    record = replace(edited.record, digest=layers.recorded_image(edited).digest)
    own = Place(tmp_path, None)
    (tmp_path / "cache").symlink_to(machine.cache)
    write_plain(tmp_path, replace(locked, record=record))
    done = own.call("build", PLAIN, "--output", "oci:image", code=74)
    assert parts[-1].name in done.stderr
    assert not (tmp_path / "image").exists()
    assert lock.read(tmp_path / "locks" / f"{CELL}.toml").record == record  # build never edits a lock


def test_list_and_show_print_what_there_is(built: Built, machine: Place) -> None:
    listed = {row["cell"]: row for row in json.loads(machine.call("list", "--json").stdout)}
    assert listed[CELL]["locked"] == "recorded"
    assert listed[CELL]["built"] == built.digest
    shown = machine.call("show", PLAIN).stdout
    assert "Its extension modules are compiled." in shown
    assert built.digest in shown


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a fork's lock records the digest of another image, which the engine holds under the lock's tag",
    "refused: the record's digest does not follow from its layers; the tag that users type does not move",
)
def test_a_forged_record_is_not_trusted(
    built: Built, cpu_grpo: Built, engine: Engine, machine: Place, tmp_path: Path
) -> None:
    assert built.lock.record is not None
    moving = f"imagegen/{PLAIN}:cpu-py311"
    own = Place(tmp_path, machine.docker_host)
    (tmp_path / "cache").symlink_to(machine.cache)
    record = replace(built.lock.record, codec=CODEC, digest=cpu_grpo.digest)
    write_plain(tmp_path, replace(built.lock, record=record))
    engine.tag(cpu_grpo.ref, built.ref)
    try:
        done = own.call("build", PLAIN, "--no-test", code=67)
    finally:
        engine.tag(moving, built.ref)
    assert "record.digest" in done.stderr
    assert engine.image_digest(moving) == built.digest


def test_a_base_that_left_the_archive_is_refused_by_name_or_relocked_loudly(
    machine: Place, built: Built, tmp_path: Path
) -> None:
    locked = built.lock
    debs = tuple(
        replace(deb, version="1:0.1", sha256="0" * 64, path=deb.path.replace("tzdata_", "tzdata_0"))
        if deb.name == "tzdata"
        else deb
        for deb in locked.base.debs
    )
    own = Place(tmp_path, None)
    (tmp_path / "cache").symlink_to(machine.cache)
    path = tmp_path / "locks" / f"{CELL}.toml"
    write_plain(tmp_path, replace(locked, base=replace(locked.base, debs=debs), record=None))
    before = path.read_bytes()
    refused = own.call("build", PLAIN, "--output", "oci:image", code=72)
    assert "tzdata 1:0.1" in refused.stderr
    assert "--upgrade-base" in refused.stderr
    done = own.call("build", PLAIN, "--output", "oci:image", "--scratch-base")
    assert relocked(done)
    assert path.read_bytes() == before
    assert digest_of(done) == json.loads((tmp_path / "image/index.json").read_text())["manifests"][0]["digest"]


def test_the_store_is_sound_afterwards(built: Built, machine: Place) -> None:
    assert "0 damaged" in machine.call("store", "check").stderr
    before = json.loads(machine.call("store", "size", "--json").stdout)
    machine.call("store", "gc")
    after = json.loads(machine.call("store", "size", "--json").stdout)
    assert 0 < after["total"] <= before["total"]
    assert digest_of(machine.call("build", PLAIN, "--output", "oci:image", "--scratch-base")) == built.digest
