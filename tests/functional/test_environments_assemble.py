"""The layers of images with several environments: one copy of each file, and whole environments when unpacked."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.export import read_tree
from imagegen.export.squashfs import write_tar
from imagegen.image.layers import Image
from imagegen.image.layers import assembly as assembling
from imagegen.image.layers.assembly import compare_with_record, record_contradictions, record_of
from imagegen.image.layers.ownership import OwnershipErrors
from imagegen.lock.model import Lock
from tests.support.environment_samples import combined
from tests.support.layer_inputs import lock_of, locked

pytestmark = pytest.mark.usefixtures("compiled_on_host", "empty_base")

FILES = {
    "shared/__init__.py": b"",
    "shared/module.py": b"def where():\n    return __file__\n",
    "shared/no_code.py": b"not Python\n",
    "shared/data.bin": bytes(5000),
    "shared-1.0.dist-info/entry_points.txt": b"[console_scripts]\nshared = shared.module:where\n",
    "shared-1.0.data/scripts/tool": b"#!python\nprint()\n",
}


def environments_of(store: Store, tmp_path: Path) -> Lock:
    shared = locked(store, tmp_path, "shared", FILES)
    old = locked(store, tmp_path, "other", {"other.py": b"VERSION = 1\n"})
    new = locked(store, tmp_path, "other", {"other.py": b"VERSION = 2\n"})
    return combined({"main": lock_of(shared, old), "beside": lock_of(shared, new)})


def assembled(lock: Lock, store: Store, settings: Settings) -> Image:
    built: Image = assembling.assemble(lock, Context(store, settings, Quiet()))
    return built


def members(store: Store, image: Image) -> dict[str, tarfile.TarInfo]:
    found = {}
    for data in unpacked(store, image):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found |= {f"/{each.name}": each for each in tar if not each.isdir()}
    return found


def unpacked(store: Store, image: Image) -> list[bytes]:
    return [tar_of(store, each.digest) for each in image.layers if each.name != "base"]


def tar_of(store: Store, digest: str) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(store.read(digest), read_across_frames=True).read()


def tree(store: Store, image: Image, root: Path) -> Path:
    for data in unpacked(store, image):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            tar.extractall(root, filter=lambda member, _: member)
    return root


def contents(root: Path, prefix: str) -> dict[str, bytes]:
    """Return the files of an environment by their path in it, with its prefix as "PREFIX".

    Byte-code has the path that it was compiled for, which Python corrects when it imports the module.
    """
    top = root / prefix.lstrip("/")
    return {
        str(path.relative_to(top)): b""
        if path.suffix == ".pyc"
        else path.read_bytes().replace(prefix.encode(), b"PREFIX")
        for path in top.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name not in ("activate", "RECORD")
    }


def test_each_environment_holds_what_the_image_of_its_cell_holds(
    store: Store, tmp_path: Path, settings: Settings
) -> None:
    lock = environments_of(store, tmp_path)
    root = tree(store, assembled(lock, store, settings), tmp_path / "several")
    for each in lock.environments:
        alone = tree(store, assembled(each.lock, store, settings), tmp_path / each.name)
        assert contents(root, each.prefix) == contents(alone, "/opt/venv")
    assert contents(root, "/opt/venvs/beside")["bin/shared"].startswith(b"#!PREFIX/bin/python\n")


def test_a_shared_file_is_there_once(store: Store, tmp_path: Path, settings: Settings) -> None:
    found = members(store, assembled(environments_of(store, tmp_path), store, settings))
    site = "lib/python3.11/site-packages"
    links = {path: f"/{each.linkname}" for path, each in found.items() if each.islnk()}
    for name in ("__init__.py", "module.py", "no_code.py", "data.bin", "__pycache__/module.cpython-311.pyc"):
        assert links.pop(f"/opt/venvs/beside/{site}/shared/{name}") == f"/opt/venv/{site}/shared/{name}"
    for path, target in links.items():  # metadata; scripts and RECORD name the prefix
        assert path.startswith(f"/opt/venvs/beside/{site}/shared"), path
        assert found[target].isfile()
        assert found[path].mode == found[target].mode
    own = {path for path in found if path.startswith("/opt/venvs/beside/") and found[path].isreg()}
    assert {f"/opt/venvs/beside/bin/{name}" for name in ("shared", "tool")} <= own
    assert f"/opt/venvs/beside/{site}/shared-1.0.dist-info/RECORD" in own


def test_an_exported_tree_has_a_shared_file_once(store: Store, tmp_path: Path, settings: Settings) -> None:
    built, stream = assembled(environments_of(store, tmp_path), store, settings), io.BytesIO()
    image = replace(built, layers=tuple(each for each in built.layers if each.name != "support"))  # it needs a base
    write_tar(image, read_tree(image, store), {}, store, stream)
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as tar:
        found = [each for each in tar if each.name.endswith("site-packages/shared/data.bin")]
    assert [(each.name.split("/lib/")[0], each.size, each.islnk()) for each in found] == [
        ("opt/venv", 5000, False),
        ("opt/venvs/beside", 0, True),
    ]


def test_a_record_names_the_files_of_its_environment(store: Store, tmp_path: Path, settings: Settings) -> None:
    root = tree(store, assembled(environments_of(store, tmp_path), store, settings), tmp_path / "several")
    records = [
        (root / prefix / "lib/python3.11/site-packages/shared-1.0.dist-info/RECORD").read_text().splitlines()
        for prefix in ("opt/venv", "opt/venvs/beside")
    ]
    differing = {line.partition(",")[0] for line in set(records[0]) ^ set(records[1])}
    assert differing == {"../../../bin/shared", "../../../bin/tool"}


def test_a_second_store_gives_the_same_image(store: Store, tmp_path: Path, settings: Settings) -> None:
    lock = environments_of(store, tmp_path)
    first = assembled(lock, store, settings)
    other = Store(tmp_path / "elsewhere")
    other.write(tar_of(store, first.layers[0].digest))  # the base's
    for each in lock.environments:
        for wheel in each.lock.wheels:
            other.write(store.read(wheel.file.digest))
    assert assembled(environments_of(other, tmp_path), other, settings).digest == first.digest


def test_a_record_follows_from_the_environments(store: Store, tmp_path: Path, settings: Settings) -> None:
    lock = environments_of(store, tmp_path)
    built = assembled(lock, store, settings)
    recorded = replace(lock, record=record_of(built))
    assert record_contradictions(recorded) == ()
    assert compare_with_record(recorded, built) is None
    changed = replace(environments_of(store, tmp_path), record=recorded.record)
    swapped = combined({"main": changed.environments[1].lock, "beside": changed.environments[0].lock})
    assert record_contradictions(replace(swapped, record=recorded.record))


def test_files_that_two_packages_own_are_refused_in_every_environment(
    store: Store, tmp_path: Path, settings: Settings
) -> None:
    shared = locked(store, tmp_path, "shared", FILES)
    thief = locked(store, tmp_path, "thief", {"shared/module.py": b"x = 1\n"})
    with pytest.raises(OwnershipErrors, match=r"shared/module\.py"):
        assembled(combined({"main": lock_of(shared), "beside": lock_of(shared, thief)}), store, settings)
