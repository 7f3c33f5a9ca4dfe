"""Packages above the base in a lock: read back as written, refused when edited, and seen by all that reads locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.compare.difference import difference
from imagegen.compare.operands import of_lock
from imagegen.core.errors import BaseError, LockError
from imagegen.core.store import Store
from imagegen.image import base, dockerfile
from imagegen.image.base.packages_layer import verify_status
from imagegen.image.inputs import contents
from imagegen.image.layers import base_layers
from imagegen.lock import contradictions, dumps, stale
from imagegen.lock.file import loads
from imagegen.lock.foundation import LockedArchive
from imagegen.lock.model import LockedDeb, LockedPackages
from imagegen.mirror.listing import listings
from imagegen.trust.package_url import deb as purl
from tests.support.golden import Golden
from tests.support.lock_samples import LOCK, deb
from tests.support.matrix_samples import SMALL, load

CUDA = "developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
DATE = "2026-11-20T08:13:05Z"
FLAT = LockedDeb("libnccl2", "2.27.3-1+cuda12.9", "amd64", 9, "e" * 64, CUDA, "libnccl2_2.27.3-1+cuda12.9_amd64.deb")
NEWER = replace(deb("libc6"), version="1:2.3-5", sha256="d" * 64)
ADDED = LockedPackages(
    {"libnccl2": "Collectives.", "libc6": 'A "reason".'},
    (
        LockedArchive("debian", "bookworm-updates", ("main", "contrib"), DATE),
        LockedArchive(CUDA, "/", (), DATE, f"https://{CUDA}"),
    ),
    (NEWER, FLAT),
)
WITH = replace(LOCK, added=ADDED)
WORD = st.from_regex(r"[a-z][a-z0-9]{1,8}", fullmatch=True)


@given(st.dictionaries(WORD, st.text("az \"'#=[]é", min_size=1, max_size=20), max_size=4), st.sets(WORD, max_size=4))
def test_what_is_written_is_read_back(requested: dict[str, str], names: set[str]) -> None:
    debs = tuple(deb(name) for name in sorted(names))
    added = LockedPackages(requested, ADDED.archives[:1] if debs else (), debs)
    assert loads(dumps(replace(LOCK, added=added))).added == added
    assert loads(dumps(WITH)) == WITH


EDITS: dict[str, Callable[[str], str]] = {
    "an archive's other address": lambda text: text.replace(f"https://{CUDA}", f"https://attacker.example/{CUDA}"),
    "a file": lambda text: text.replace(f"https://{CUDA}", "file:///etc"),
    "credentials": lambda text: text.replace(f"https://{CUDA}", f"https://me:pw@{CUDA}"),
    "a suite that leaves the archive": lambda text: text.replace('"bookworm-updates"', '"../../x/"'),
    "an archive that no deb is from": lambda text: text.replace(
        f'archive = "{CUDA}", path', 'archive = "debian", path'
    ),
    "an option as a package": lambda text: text.replace("libnccl2 = ", '"--purge" = '),
    "a removal": lambda text: text.replace("libnccl2 = ", '"libnccl2-" = '),
    "a path that leaves the archive": lambda text: text.replace('path = "libnccl2', 'path = "../libnccl2'),
    "debs out of order": lambda text: text.replace('name = "libnccl2"', 'name = "a0"'),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_that_no_lock_can_have_is_refused(edit: Callable[[str], str]) -> None:
    text = dumps(WITH)
    assert edit(text) != text
    with pytest.raises(LockError):
        loads(edit(text))


def test_packages_are_an_input_of_cells_that_request_some(tmp_path: Path, golden: Golden) -> None:
    more = """\
images:
  plain: {description: d, purpose: p, base: deb, components: {torch: {because: b}}}
  more:
    description: d
    purpose: p
    base: deb
    stacks: [shared]
    components: {torch: {because: b}}
    packages: {ffmpeg: Of the image.}
    axes: {python: ["3.11", "3.12"]}
    variants:
      - when: {python: ["3.12"]}
        packages: {ffmpeg: Of the variant., rdma-core: Of the variant.}
  foreign: {description: d, purpose: p, base: other, components: {torch: {because: b}}, packages: {git: Of the image.}}
stacks:
  shared: {description: d, packages: {numactl: Of the stack., ffmpeg: Of the stack.}}
bases:
  other:
    description: d
    kind: registry
    image: "registry.example.org:5000/a/b:1.0"
    system: sys
    packages: {git: Of the base., g++: Of the base.}
"""
    matrix = load(tmp_path, SMALL, more)
    (plain,) = matrix.select("plain")
    first, second = (cell for cell in matrix.all_cells if cell.image == "more")
    (foreign,) = matrix.select("foreign")
    assert (dict(plain.packages), "packages" in plain.inputs) == ({}, False)
    golden.check(first.packages, second.packages, foreign.packages)
    assert first.inputs["packages"] != second.inputs["packages"]
    locked = replace(LOCK, inputs=dict(first.inputs), added=ADDED)
    assert "packages" in stale(locked, second)
    assert "packages" in stale(locked, plain)
    assert "packages" in contradictions(locked, first)
    sound = replace(locked, added=replace(ADDED, requested=dict(first.packages)))
    assert "packages" not in contradictions(sound, first)


def test_the_layer_lies_between_base_and_venv_and_its_key_covers_both() -> None:
    names = [part.name for part in base_layers.plan_base(WITH)]
    assert names == ["base", "packages"]
    assert [part.name for part in base_layers.plan_base(replace(WITH, added=replace(ADDED, debs=())))] == ["base"]
    key = base.packages_key(ADDED, base.key(LOCK.base))
    assert base.packages_key(replace(ADDED, requested={}, archives=()), base.key(LOCK.base)) == key
    assert base.packages_key(ADDED, "sha256:" + "0" * 64) != key
    for changed in (replace(FLAT, sha256="0" * 64), replace(FLAT, version="2"), replace(FLAT, name="x")):
        assert base.packages_key(replace(ADDED, debs=(NEWER, changed)), base.key(LOCK.base)) != key


def test_an_added_package_replaces_the_bases_wherever_a_lock_is_read(tmp_path: Path) -> None:
    assert [(each.name, each.version) for each in WITH.debs] == [
        ("adduser", deb("adduser").version), ("libc6", "1:2.3-5"), ("libnccl2", FLAT.version),
    ]  # fmt: skip
    assert contents(WITH)[FLAT.digest] == f"Debian package libnccl2 {FLAT.version}"
    changes = difference(of_lock("a", "lock", LOCK), of_lock("b", "lock", WITH)).debs
    assert {(each.name, each.before, each.after) for each in changes} == {
        ("libc6", deb("libc6").version, "1:2.3-5"), ("libnccl2", None, FLAT.version),
    }  # fmt: skip
    assert {
        digest
        for each in listings(WITH, Store(tmp_path / "mirror"))
        for _, digest in ((n, d.digest) for n, d in each.files)
    } >= {FLAT.digest}
    store = Store(tmp_path / "store")
    missing = base.missing_packages(ADDED, base.key(LOCK.base), store)
    assert [each.filename for each in missing] == ["libc6_2.3_amd64.deb", "libnccl2_2.27.3-1+cuda12.9_amd64.deb"]
    assert "IMAGEGEN_APT_MIRROR_DEVELOPER_DOWNLOAD_NVIDIA_COM" in str(missing[1].fix)
    assert purl(replace(FLAT, archive="ubuntu"), None).startswith("pkg:deb/ubuntu/libnccl2@")


def status(*packages: tuple[str, str, str]) -> str:
    return "\n\n".join(
        f"Package: {name}\nStatus: install ok {state}\nVersion: {version}\nArchitecture: amd64\nDepends: x\n"
        for name, version, state in packages
    )


def test_dpkg_must_have_exactly_the_locked_packages_afterwards() -> None:
    before = [("adduser", "1", "installed"), ("libc6", "1", "installed")]
    after = [("adduser", "1", "installed"), ("libc6", "1:2.3-5", "installed"), ("libnccl2", FLAT.version, "installed")]
    verify_status(ADDED, status(*before), status(*after))
    half = [*after[:2], ("libnccl2", FLAT.version, "half-configured")]
    for wrong in (after[:2], half, after[1:], [*after, ("more", "1", "installed")], before):
        with pytest.raises(BaseError) as caught:
            verify_status(ADDED, status(*before), status(*wrong))
        assert caught.value.why


def test_the_dockerfile_installs_the_same_files_by_hash() -> None:
    rendered = dockerfile.render(WITH, "tiny:1")
    assert rendered.contexts["packages"] == "./packages"
    assert f"{FLAT.sha256}  /mnt/packages/libnccl2.deb" in rendered.dockerfile
    assert "FROM base AS packaged\n" in rendered.dockerfile
    assert "FROM packaged\n" in rendered.dockerfile
    plain = dockerfile.render(LOCK, "tiny:1")
    assert "packages" not in plain.contexts
    assert "packaged" not in plain.dockerfile
