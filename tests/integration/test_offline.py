"""In a network namespace without a route: what was fetched builds, and all missing files are reported at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import lock
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.lock.model import Lock
from tests.support.machines import PLAIN, Built, Place, committed, digest_of
from tests.support.small_cell import CELL, Site

pytestmark = pytest.mark.integration

ALONE = ("unshare", "--net")
FAR = "Pacific/Auckland"
WITH_LOOPBACK = (*ALONE, "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine without network and with an empty store."""
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces need root")
    return Place(tmp_path, None, through=ALONE)


def fetched(locked: Lock) -> list[str]:
    """Digests of all that the network gives for a lock."""
    parts = [wheel.sdist for wheel in locked.wheels if wheel.sdist]
    files = [wheel.file for wheel in locked.wheels if not wheel.sdist]
    files += [each.file for each in parts] + [need.file for each in parts for need in each.build_requires]
    return [*(file.digest for file in files), *(deb.digest for deb in locked.base.debs)]


def bring(locked: Lock, source: Store, place: Place) -> None:
    """Copy what `source` has of the files that this lock names, without anything that was made of them."""
    lock.write(replace(locked, record=None), place.root / "locks" / f"{locked.cell}.toml")
    ours = Store(place.cache / "imagegen" / "store")
    for digest in set(fetched(locked)):  # the sdist's build requirements may be wheels of the lock too
        os.link(source.path(digest), ours.path(digest))
    shutil.copytree(source.root / "records" / "deb", ours.root / "records" / "deb")  # that a Debian mirror gave them


def assert_builds(image: str, digest: str, place: Place) -> subprocess.CompletedProcess[str]:
    done = place.run("build", image, "--output", "oci:image")
    assert digest_of(done) == digest
    index = json.loads((place.root / "image" / "index.json").read_text())
    assert index["manifests"][0]["digest"] == digest
    return done


@pytest.fixture
def other(place: Place) -> Place:
    """A machine without network whose directories, umask and time zone are others."""
    return replace(place, root=place.root / "a" / "quite" / "different" / "directory", umask=0o077, zone=FAR)


@pytest.mark.fault(
    "Offline", "a build without network, all files in the store", "base, wheels, byte-code, sdists: same digest"
)
def test_what_was_fetched_builds(site: Site, other: Place, tmp_path: Path) -> None:
    """From the same files another machine makes the same image, whatever its directories, umask and time zone."""
    locked = lock.read(site.project / "locks" / f"{CELL}.toml")
    source = Store(site.machine(tmp_path / "source").store)
    for file in site.links.iterdir():
        source.write(file.read_bytes())
    shutil.copytree(site.project / "matrices", other.root / "matrices")
    bring(locked, source, other)
    assert_builds(locked.image, site.reference, other)


@pytest.mark.slow
@pytest.mark.parametrize("image", ["sb3_maskable", "cpu_grpo"])
def test_what_was_fetched_of_a_real_image_builds(
    image: str, request: pytest.FixtureRequest, machine: Place, other: Place
) -> None:
    built: Built = request.getfixturevalue(image)
    bring(built.lock, Store(machine.cache / "imagegen" / "store"), other)
    assert_builds(built.lock.image, built.digest, other)


@pytest.mark.fault(
    "Offline", "a build into an engine whose loopback is elsewhere", "an archive through its socket: same digest"
)
def test_an_engine_in_another_network(plain: Built, machine: Place, place: Place, engine: Engine) -> None:
    for tag in {name for image in engine.client.images.list() for name in image.tags if f"/{PLAIN}:" in name}:
        engine.client.api.remove_image(tag, force=True)
    alone = replace(machine, through=ALONE)
    done = alone.run("build", PLAIN, "--no-test")
    assert "cannot reach this machine's loopback: loading an archive" in done.stderr
    assert digest_of(done) == engine.image_digest(plain.ref) == plain.digest


@pytest.mark.fault(
    "Offline", "a build without network and with an empty store", "one error with every missing file, in seconds"
)
@pytest.mark.parametrize("through", [pytest.param(ALONE, marks=pytest.mark.slow), WITH_LOOPBACK])
def test_all_missing_files_are_reported_at_once(through: tuple[str, ...], place: Place) -> None:
    locked = committed("cpu-grpo-cpu-py311")  # it has an sdist
    env = {"PIP_FIND_LINKS": "", "UV_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    start = time.monotonic()
    done = replace(place, through=through, env=env).run("build", locked.image, "--output", "oci:image", code=68)
    assert time.monotonic() - start < 60
    required = [wheel.file.filename for wheel in locked.wheels if not wheel.sdist]
    sdists = [wheel.sdist for wheel in locked.wheels if wheel.sdist]
    required += [each.file.filename for each in sdists]
    required += [need.file.filename for each in sdists for need in each.build_requires]
    required += [deb.path.rpartition("/")[2] for deb in locked.base.debs]
    assert [name for name in required if f" {name} (" not in done.stderr] == []
    assert f"{len(set(required))} files of the lock cannot be had" in done.stderr
    for help_ in ("PIP_FIND_LINKS", "IMAGEGEN_DEBIAN_MIRROR", str(place.cache / "imagegen" / "store")):
        assert help_ in done.stderr


@pytest.mark.fault(
    "Offline", "a lock is made without network", "says which index and which Debian mirror it needs, in seconds"
)
def test_lock_says_what_it_needs(place: Place) -> None:
    start = time.monotonic()
    (place.root / "matrices").mkdir()
    (place.root / "matrices" / "mine.yaml").write_text(
        "images:\n  mine:\n    description: D.\n    purpose: P.\n    base: debian12\n"
        "    components:\n      numpy: {because: B.}\n      pip: {because: B.}\n"
    )
    index = {"UV_DEFAULT_INDEX": "http://index.invalid/simple"}
    mirror = {f"IMAGEGEN_{name}_MIRROR": "http://mirror.invalid/d" for name in ("DEBIAN", "DEBIAN_SECURITY")}
    done = replace(place, env={**index, **mirror}).run("lock", "mine", code=72)
    assert "http://mirror.invalid/d/dists/bookworm/InRelease" in done.stderr
    locked = committed("sb3-maskable-cpu-py311")
    lock.write(locked, place.root / "locks" / f"{locked.cell}.toml")
    done = replace(place, env=index).run("lock", locked.image, "--upgrade-package", "numpy", code=68)
    assert "http://index.invalid/simple/" in done.stderr
    assert "UV_DEFAULT_INDEX" in done.stderr
    assert time.monotonic() - start < 60
