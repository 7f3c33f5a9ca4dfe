"""Directories of the dynamic loader that an image declares: in the lock, in the cache and in all that names them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from imagegen.app.assemble import assemble_image
from imagegen.audit.closure import How, Loader
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import Location
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import dockerfile
from imagegen.image.inventory.cell_subject import cell_subject
from imagegen.image.layers import ResolvedLayers, loader, loader_cache
from imagegen.image.layers.layer import loader_layer
from imagegen.image.layers.loader_cache import CacheEntry, LoaderCache
from imagegen.image.layers.plan import LOADER, plan
from imagegen.image.layers.support import loader_configuration
from imagegen.lock import contradictions, dumps
from imagegen.lock.file import loads
from imagegen.lock.model import CopiedFile, Lock, LockedCopy
from imagegen.spec.model import LibraryDirectory
from imagegen.trust.licences import KnownLicences
from imagegen.trust.sbom import sbom
from tests.support.elf_files import make_elf
from tests.support.errors import raises
from tests.support.layer_inputs import cell_of, lock_of, locked
from tests.support.matrix_samples import SMALL, complaint, load
from tests.support.tiny_lock import LOCK

if TYPE_CHECKING:
    from imagegen.app.lock_files import LockFiles

SITE = "/opt/venv/lib/python3.11/site-packages"
TEXT = SMALL.replace("    gpus: [sm_90]", "    gpus: [sm_90]\n    ldconfig: {/opt/b/lib: Why b., /opt/a: Why a.}")
DIRECTORIES = (LibraryDirectory("/opt/a", "Why a."), LibraryDirectory("/opt/b/lib", "Why b."))
DECLARED = replace(LOCK, ldconfig=DIRECTORIES)
ENTRIES = st.builds(
    CacheEntry,
    st.sampled_from(["libz.so.1", "liba.so.2", "liba.so.10", "liba.so"]),
    st.sampled_from(["/lib/x", "/opt/é/y"]),
    st.sampled_from([0x303, 0x803]),
    st.sampled_from([0, 1 << 62]),
)


def entry(name: str, path: str, hwcap: int = 0) -> CacheEntry:
    return CacheEntry(name, path, 0x303, hwcap)


@given(st.lists(ENTRIES), st.lists(st.sampled_from(["x86-64-v3", "x86-64-v4"])))
def test_a_cache_is_read_as_it_was_written(entries: list[CacheEntry], hwcaps: list[str]) -> None:
    cache = LoaderCache(tuple(entries), tuple(hwcaps))
    data = loader_cache.write(cache)
    assert loader_cache.read(data) == cache
    old = b"ld.so-1.7.0\0" + (1).to_bytes(4, "little") + bytes(12) + bytes(4)  # as ldconfig wrote before 2.32
    assert loader_cache.read(old + data) == cache


@pytest.mark.parametrize(
    "data", [b"", b"ld.so-1.7.0\0\xff", b"glibc-ld.so.cache1.1\1", b"glibc-ld.so.cache1.2" + bytes(99)]
)
def test_what_is_no_cache(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        loader_cache.read(data)


def test_added_libraries_come_before_those_of_the_same_name() -> None:
    cache = LoaderCache(
        (entry("libb.so", "/lib/b"), entry("liba.so.9", "/lib/v3/a", 1 << 62), entry("liba.so.9", "/lib/a"))
    )
    made = loader_cache.add(cache, [entry("liba.so.9", "/opt/a"), entry("liba.so.10", "/opt/10")])
    assert [each.path for each in made.entries] == ["/lib/b", "/opt/10", "/lib/v3/a", "/opt/a", "/lib/a"]


def test_a_lock_has_the_directories_with_their_reasons(tmp_path: Path) -> None:
    cell = load(tmp_path, TEXT).select("small")[0]
    assert cell.ldconfig == DIRECTORIES
    assert cell.ldconfig_places["/opt/a"].line == 1 + TEXT.splitlines().index(
        next(line for line in TEXT.splitlines() if "ldconfig" in line)
    )
    assert "ldconfig" in cell.inputs
    assert loads(dumps(DECLARED)) == DECLARED
    assert ("ldconfig" in contradictions(LOCK, cell), "ldconfig" in contradictions(DECLARED, cell)) == (True, False)


@pytest.mark.parametrize("path", ["opt/a", "/opt/../a", '"/opt/a:b"', '"/opt/a b"', "/opt/a/"])
def test_a_malformed_directory_is_an_error_with_its_line(path: str, tmp_path: Path) -> None:
    assert complaint(tmp_path, TEXT.replace("/opt/a", path))


def test_the_dockerfile_writes_the_same_configuration() -> None:
    text = dockerfile.render(DECLARED, "tiny:test").dockerfile
    begin = 'COPY <<"LDCONFIG" /etc/ld.so.conf.d/00-imagegen.conf\n'
    assert text.partition(begin)[2].partition("LDCONFIG\nRUN ldconfig\n")[0] == loader_configuration(DECLARED)
    assert "ldconfig" not in dockerfile.render(LOCK, "tiny:test").dockerfile


def test_the_sbom_names_the_directories() -> None:
    document = json.loads(sbom(DECLARED, f"sha256:{'a' * 64}", KnownLicences()))
    found = {each["name"]: each["value"] for each in document["metadata"]["component"]["properties"]}
    assert found["imagegen:ldconfig:/opt/a"] == "Why a."


def test_the_topmost_layer_changes_with_what_lies_below() -> None:
    part = plan(DECLARED)[-1]
    assert (part.name, LOADER in {each.name for each in plan(LOCK)}) == (LOADER, False)
    fewer = replace(DECLARED, wheels=DECLARED.wheels[:-1])
    assert plan(fewer)[-1].key != part.key


class Image:
    """An image-to-be with libraries in its base, a wheel and a copied file."""

    def __init__(self, root: Path, store: Store, work: Path) -> None:
        self.root, self.store = root, store
        files = {
            "usr/lib/priv/libbase.so.1.2": make_elf(soname="libbase.so.1"),
            "usr/lib/priv/libother.so": make_elf(soname="libother.so", machine=183),
            "usr/lib/priv/plugin.so": make_elf(),
            "usr/lib/priv/libtext.so": b"INPUT(libc.so.6)",
        }
        for path, data in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        (root / "usr/lib/priv/libbase.so.1").symlink_to("libbase.so.1.2")
        (root / "usr/local").mkdir()
        (root / "usr/local/link").symlink_to("/usr/lib/priv")
        (root / "etc").mkdir(exist_ok=True)
        before = LoaderCache(
            (entry("libc.so.6", "/lib/libc.so.6"), entry("libbase.so.1", "/usr/lib/priv/libbase.so.1"))
        )
        (root / "etc/ld.so.cache").write_bytes(loader_cache.write(before))
        wheel = locked(
            store,
            work,
            "one",
            {
                "one/lib/libone.so.3": make_elf(soname="libone.so.3", exported=["one"]),
                "one/lib/libtwo-abc.so": make_elf(soname="libtwo.so.1"),
                "one/it.so": make_elf(["libone.so.3"], exported=["PyInit_it"]),
            },
        )
        own = make_elf(exported=["own"])
        store.write(own)
        digest = store.write(own).removeprefix("sha256:")
        copy = LockedCopy("/srv/lib", "lib", "b", (CopiedFile("/srv/lib/libown.so", "0644", len(own), digest),))
        self.lock = replace(lock_of(wheel), copies=(copy,))

    def declare(self, *paths: str) -> Lock:
        return replace(self.lock, ldconfig=tuple(LibraryDirectory(path, "b") for path in paths))


@pytest.fixture
def image(rootfs: Path, store: Store, tmp_path: Path) -> Image:
    return Image(rootfs, store, tmp_path)


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/usr/lib/priv", [("libbase.so.1", False)]),
        ("/usr/local/link", [("libbase.so.1", False)]),
        (f"{SITE}/one/lib", [("libone.so.3", False), ("libtwo.so.1", True)]),
        ("/opt/venv/lib64/python3.11/site-packages/one/lib", [("libone.so.3", False), ("libtwo.so.1", True)]),
        ("/srv/lib", [("libown.so", False)]),
    ],
)
def test_libraries_are_found_wherever_the_directory_is_from(
    directory: str, expected: list[tuple[str, bool]], image: Image
) -> None:
    found = loader.libraries(image.declare(directory), image.store, image.root)
    assert [(each.name, each.linked) for each in found] == expected
    assert [each.path for each in found] == [f"{directory}/{name}" for name, _ in expected]


@pytest.mark.parametrize("directory", ["/opt/none", "/srv", f"{SITE}/one", "/usr/lib/priv/plugin.so"])
def test_a_directory_without_libraries_is_refused(directory: str, image: Image) -> None:
    with raises("lock-ldconfig-invalid") as raised:
        loader.libraries(image.declare(directory), image.store, image.root)
    assert raised.value.where == directory


def test_the_layer_has_configuration_cache_and_links(image: Image) -> None:
    lock = image.declare(f"{SITE}/one/lib", "/usr/local/link")
    layer = loader_layer(image.store, plan(lock)[-1], lock, image.root)
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(image.store.read(layer.digest))
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        found = {each.name: each.linkname for each in tar}
        content = tar.extractfile("etc/ld.so.cache")
        assert content
        cache = loader_cache.read(content.read())
    assert found == {
        "etc/ld.so.cache": "",
        "etc/ld.so.conf.d/00-imagegen.conf": "",
        f"{SITE[1:]}/one/lib/libtwo.so.1": "libtwo-abc.so",
    }
    assert [each.path for each in cache.entries] == [
        f"{SITE}/one/lib/libtwo.so.1",
        f"{SITE}/one/lib/libone.so.3",
        "/lib/libc.so.6",
        "/usr/local/link/libbase.so.1",  # and not a second time, under the directory's other name
    ]


def test_a_damaged_cache_of_the_base_is_an_error(image: Image) -> None:
    (image.root / "etc/ld.so.cache").write_bytes(b"x")
    with raises("base-loader-cache-unreadable"):
        loader.layer_files(image.declare("/srv/lib"), image.store, image.root)
    os.unlink(image.root / "etc/ld.so.cache")
    files, _ = loader.layer_files(image.declare("/srv/lib"), image.store, image.root)
    assert [each.path for each in loader_cache.read(files["/etc/ld.so.cache"]).entries] == ["/srv/lib/libown.so"]


def test_the_error_names_the_line_of_the_matrix(
    image: Image, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Location("matrices/x.yaml", 7)
    cell = replace(load(image.root / "matrices", TEXT).select("small")[0], ldconfig_places={"/opt/none": place})
    lock, context = image.declare("/opt/none"), Context(image.store, settings, Quiet())
    with raises("lock-ldconfig-invalid") as audited:
        cell_subject(lock, cell, context)

    def ensure_layers(*_: object) -> None:
        loader.libraries(lock, image.store, image.root)

    monkeypatch.setattr("imagegen.image.layers.resolve_layers", lambda *_: ResolvedLayers(lock, ()))
    monkeypatch.setattr("imagegen.image.layers.ensure_layers", ensure_layers)
    project = SimpleNamespace(store=image.store, progress=Quiet(), context_for=lambda _: context)
    with raises("lock-ldconfig-invalid") as built:
        assemble_image(cast("LockFiles", SimpleNamespace(project=project)), cell, lock, audit=False)
    assert audited.value.where == built.value.where == place


@pytest.mark.parametrize("declared", [True, False])
def test_the_audit_finds_libraries_as_the_loader_does(declared: bool, image: Image, settings: Settings) -> None:
    lock = image.declare(f"{SITE}/one/lib", "/srv/lib") if declared else image.lock
    made = Loader(cell_subject(lock, cell_of(None), Context(image.store, settings, Quiet())))
    by_path = {each.path: each for each in made.libraries}
    found = made.find(by_path["one/it.so"], "libone.so.3")
    assert found.how is (How.SYSTEM if declared else How.ELSEWHERE)
    assert found.library is by_path["one/lib/libone.so.3"]
    assert ("libown.so" in made.system) is declared
