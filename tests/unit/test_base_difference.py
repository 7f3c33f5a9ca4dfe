"""Changes of an installation as a layer: applied to the tree before, it gives the tree after."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import BaseError
from imagegen.core.image_format import EPOCH
from imagegen.core.layer_tar import Allowance
from imagegen.core.store import Store
from imagegen.image.base import difference
from imagegen.image.base.difference import snapshot, write_difference
from imagegen.image.base.unpack import unpack
from imagegen.oci.documents import LayerDescriptor, digest_of

TAR = "application/vnd.oci.image.layer.v1.tar"
NAMES = st.sampled_from(["a", "b", "c", "usr", "opt"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
NODES = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=4), st.sampled_from([0o644, 0o755, 0o600])),
    st.tuples(st.just("link"), st.sampled_from(["a", "/usr/b", "../c", "nowhere"]), st.just(0)),
    st.tuples(st.just("directory"), st.just(b""), st.sampled_from([0o755, 0o700])),
)
TREES = st.dictionaries(PATHS, NODES, max_size=8)


def make(root: Path, nodes: dict[str, tuple[str, bytes | str, int]]) -> None:
    """Make `root` hold these nodes and their parents alone; what is equal stays as it is."""
    parents = {parent for path in nodes for parent in list(map(str, Path(path).parents))[:-1]}
    for parent in sorted(parents - nodes.keys()):
        nodes = {**nodes, parent: ("directory", b"", 0o755)}
    nodes = {path: ("directory", b"", 0o755) if path in parents else node for path, node in nodes.items()}
    for path in sorted(root.rglob("*"), reverse=True):
        required = nodes.get(str(path.relative_to(root)))
        kind = "link" if path.is_symlink() else "directory" if path.is_dir() else "file"
        if required is None or required[0] != kind:
            shutil.rmtree(path) if kind == "directory" else path.unlink()
    for name, (kind, content, mode) in sorted(nodes.items()):
        path = root / name
        if kind == "directory":
            path.mkdir(exist_ok=True)
        elif kind == "link":
            path.unlink(missing_ok=True)
            path.symlink_to(str(content))
        elif not path.exists() or path.read_bytes() != content:
            path.unlink(missing_ok=True)
            path.write_bytes(bytes(content))  # type: ignore[arg-type]
        if kind != "link":
            path.chmod(mode)


def contents(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in root.rglob("*"):
        name, mode = str(path.relative_to(root)), path.lstat().st_mode
        if path.is_symlink():
            found[name] = (mode, os.readlink(path))
        else:
            found[name] = (mode, path.read_bytes() if path.is_file() else None)
    return found


def layer_of(root: Path, before: object, original: Path) -> bytes:
    stream = io.BytesIO()
    write_difference(root, before, original, stream)  # type: ignore[arg-type]
    return stream.getvalue()


def members(layer: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return {member.name: member for member in tar}


@given(TREES, TREES)
def test_the_layer_turns_the_tree_before_into_the_tree_after(
    old: dict[str, tuple[str, bytes | str, int]], new: dict[str, tuple[str, bytes | str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root, original, target = Path(name, "root"), Path(name, "original"), Path(name, "target")
        root.mkdir()
        make(root, old)
        shutil.copytree(root, original, symlinks=True)
        before = snapshot(root)
        make(root, new)
        layer = layer_of(root, before, original)
        store = Store(Path(name, "store"))
        whole = layer_of(original, {}, original)
        layers = [LayerDescriptor(TAR, store.write(each), len(each), digest_of(each)) for each in (whole, layer)]
        target.mkdir()
        unpack(layers, store, target, first_id=0 if os.geteuid() == 0 else None)
        expected = contents(root)
        if os.geteuid():  # without root's capabilities a tree is unpacked with the caller's modes
            expected = {path: row[1:] for path, row in expected.items()}
            assert {path: row[1:] for path, row in contents(target).items()} == expected
        else:
            assert contents(target) == expected
        # Only the difference, with the directories that lead to it.
        changed = {
            path for path in expected.keys() | contents(original) if expected.get(path) != contents(original).get(path)
        }
        if os.geteuid() == 0:
            above = {str(parent) for path in changed for parent in list(Path(path).parents)[:-1]}
            named = {path.replace(".wh.", "") for path in members(layer)}
            assert named <= changed | above


def test_headers_hold_nothing_of_this_machine(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc/ssh").mkdir(parents=True)
    for name in ("etc/hostname", "etc/ssh/ssh_host_rsa_key", "etc/passwd-", "etc/machine-id", "etc/kept"):
        (root / name).write_text("x")
    (root / "var/log").mkdir(parents=True)
    (root / "var/log/dpkg.log").write_text("x")
    (root / "tmp").mkdir()
    (root / "tmp/x").write_text("x")
    os.link(root / "etc/kept", root / "etc/second")
    found = members(layer_of(root, {}, root))
    assert sorted(found) == ["etc", "etc/kept", "etc/machine-id", "etc/second", "etc/ssh", "var", "var/log"]
    assert {member.mtime for member in found.values()} == {EPOCH}
    assert {member.uname for member in found.values()} == {""}
    assert found["etc/machine-id"].size == 0
    assert (found["etc/second"].type, found["etc/second"].linkname) == (tarfile.LNKTYPE, "etc/kept")


def test_a_file_written_again_with_the_same_content_is_no_difference(tmp_path: Path) -> None:
    root, original = tmp_path / "root", tmp_path / "original"
    root.mkdir()
    (root / "same").write_text("x")
    (root / "moved").write_text("y")
    shutil.copytree(root, original)
    before = snapshot(root)
    (root / "same").unlink()
    (root / "same").write_text("x")
    (root / "moved").rename(root / "there")
    assert sorted(members(layer_of(root, before, original))) == [".wh.moved", "there"]


def test_owners_and_special_modes_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "program").write_text("x")
    group = 101 if os.geteuid() == 0 else os.getegid()
    os.chown(root / "program", os.geteuid(), group)
    (root / "program").chmod(0o2755)
    member = members(layer_of(root, {}, root))["program"]
    assert (member.uid, member.gid, member.mode) == (os.geteuid(), group, 0o2755)


def test_a_pipe_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    os.mkfifo(tmp_path / "opt/pipe")
    with pytest.raises(BaseError) as caught:
        layer_of(tmp_path, {}, tmp_path)
    assert caught.value.where == "/opt/pipe"


@pytest.mark.fault("Matrices, rules, locks", "a package leaves a sparse file, or deep directories", "refused")
def test_more_than_a_layer_holds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    stream = io.BytesIO()
    with pytest.raises(BaseError) as caught:
        write_difference(tmp_path, {}, tmp_path, stream, most=1 << 30)
    assert (caught.value.code, stream.tell()) == ("base-layer-too-large", 0)
    deep = tmp_path.joinpath(*"d" * 250)
    deep.mkdir(parents=True)
    with pytest.raises(BaseError) as caught:
        snapshot(tmp_path)
    assert caught.value.code == "base-layer-too-large"


@pytest.mark.fault(
    "Matrices, rules, locks", "a package leaves very many files, or few of long names or targets", "refused"
)
@pytest.mark.parametrize(("bound", "value"), [("members", 3), ("text", 3000)])
def test_more_files_or_names_than_an_image_has_are_refused(
    bound: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(difference, "Allowance", partial(Allowance, **{bound: value}))
    folder = tmp_path / ("d" * 200)
    folder.mkdir()
    (folder / "a").touch()
    (folder / "link").symlink_to("t" * 1000)
    assert len(snapshot(tmp_path)) == 3
    (folder / "b").symlink_to("t" * 1000)
    (folder / "c").symlink_to("t" * 1000)
    with pytest.raises(BaseError) as caught:
        snapshot(tmp_path)
    assert caught.value.code == "base-layer-too-large"


def test_owners_are_counted_from_the_first_id(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = snapshot(tmp_path, os.geteuid() - 5)["file"]
    assert state.uid == 5


@pytest.mark.parametrize("number", [-1, 1 << 32, (1 << 32) - 1 - 1000])
def test_owners_that_no_user_has_are_refused(number: int, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("file")
        info.uid = number
        tar.addfile(info)
    data, store = stream.getvalue(), Store(tmp_path / "store")
    layer = LayerDescriptor(TAR, store.write(data), len(data), digest_of(data))
    (tmp_path / "root").mkdir()
    with pytest.raises(BaseError) as caught:
        unpack([layer], store, tmp_path / "root", first_id=1000)
    assert caught.value.code == "base-layer-invalid"


def test_capabilities_of_a_namespace_are_written_as_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ping").touch()
    masks = bytes.fromhex("00200000 00000000 00000000 00000000")
    stored = bytes.fromhex("01000003") + masks + (0x7FFF0000).to_bytes(4, "little")
    monkeypatch.setattr(os, "getxattr", lambda *_, **__: stored)
    headers = members(layer_of(tmp_path, {}, tmp_path))["ping"].pax_headers
    value = headers["SCHILY.xattr.security.capability"].encode("utf-8", "surrogateescape")
    assert value == bytes.fromhex("01000002") + masks
