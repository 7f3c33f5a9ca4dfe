"""Images as subjects of an audit: their layers as streams, in archives, layouts and registries, sound and hostile."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import tarfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zstandard

from imagegen.app import image_subject
from imagegen.audit import check, collect, sparse_copy
from imagegen.audit.model import Severity, Subject
from imagegen.core import layer_tar
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.gpu import Gpu
from imagegen.core.layer_tar import Allowance
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.engine import client
from imagegen.engine.client import Export
from imagegen.image.inventory import archive, layers
from imagegen.image.inventory import streams as stream
from imagegen.image.inventory.layers import LayeredTree, read_layer
from imagegen.image.inventory.streams import ChunkReader, layer, piped
from imagegen.image.inventory.tree import Regular, walk
from imagegen.oci.documents import LayerDescriptor, Platform
from tests.support.elf_files import make_elf
from tests.support.errors import raises
from tests.support.file_trees import Things, To, as_tar, below, layered, site_of
from tests.support.golden import Golden
from tests.support.registry_server import CONFIG, MANIFEST, StandIn, digest_of, send

AMD64 = Platform("linux", "amd64")
MODULE = make_elf(undefined=["PyList_New"])
PROGRAM = make_elf(needed=["libc.so.6"], exported=["Py_Initialize"], interpreter="/lib64/ld.so")
SITE = "opt/venv/lib/python3.11/site-packages"
BASE: Things = {
    "usr/bin/python3.11": PROGRAM, "usr/bin/python3": To("python3.11"),
    "usr/lib/libc.so.6": make_elf(soname="libc.so.6"),
    **below("usr/lib/python3/dist-packages", site_of(apt={"apt.py": b""})),
    "gone.txt": b"", "usr/lib/libgone.so": MODULE,
}  # fmt: skip
STACK: Things = {
    "opt/venv/bin/python": To("/usr/bin/python3.11"), "opt/venv/pyvenv.cfg": b"home = /usr/bin\nversion = 3.11.2\n",
    "opt/venv/lib64": To("lib"), **below(SITE, site_of(demo={"demo/_c.so": MODULE}, old={"old.py": b""})),
    "usr/lib/.wh.libgone.so": b"",
}  # fmt: skip
PATCH: Things = {f"{SITE}/old-1.0.dist-info/.wh..wh..opq": b"", f"{SITE}/.wh.old.py": b"",
                 f"{SITE}/demo/more.so": To(f"{SITE}/demo/_c.so", hard=True)}  # fmt: skip
ENV = ["PATH=/opt/venv/bin:/usr/bin", "LD_LIBRARY_PATH=/opt/lib"]
LABELS = {"dev.imagegen.cell": "demo-cu130-py311", "dev.imagegen.gpu.capabilities": "9.0,12.0",
          "dev.imagegen.gpu.driver": "580.65.06"}  # fmt: skip
GPUS = tuple(Gpu(f"sm_{each}", f"{each // 10}.{each % 10}", "family", ()) for each in (80, 90, 120))


class Said(Quiet):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def files_of(scratch: Path, *trees: Things) -> dict[str, object]:
    tree = layered(scratch, *trees)
    return {path: tree.read(path, 100) or type(node).__name__ for path, node in walk(tree, "/")}


def test_layers_lie_one_over_the_other(tmp_path: Path) -> None:
    below_ = {"a/one": b"", "a/two": b"", "b/three": b"", "c": To("a"), "d": b"", "f/g": b"", "link": To("a"), "h": b""}
    above = {"a/.wh.two": b"", "b/four": b"", "b/.wh..wh..opq": b"", "c": b"", "d/x": b"", ".wh.f": b"", "link/in": b"",
             "a/.wh.never": b"", "./h": None, "/abs": b"", "./y": b""}  # fmt: skip
    assert set(files_of(tmp_path, below_, above)) == {
        "/a/one", "/a/in", "/b/four", "/c", "/d/x", "/link", "/abs", "/y"
    }  # fmt: skip


def test_links_lead_nowhere_outside(tmp_path: Path) -> None:
    odd: Things = {"up": To("../../.."), "up/etc/x": b"", "gone": To("/missing/dir"),
           "gone/z": b"", "hard": To("/etc/passwd", hard=True),
           "deep": To("/"), "deep/deep/deep/w": b""}  # fmt: skip
    found = files_of(tmp_path, odd)
    assert {"/etc/x", "/missing/dir/z", "/w", "/hard"} <= found.keys()
    tree = layered(tmp_path, odd)
    assert tree.examine({"/hard": Regular(0)})["/hard"].unreadable


def test_a_layer_that_writes_through_links_in_circles_is_refused(tmp_path: Path) -> None:
    with raises("fetch-layer-invalid"):
        layered(tmp_path, {"loop": To("loop"), "loop/y": b""})


def packed(kind: str, data: bytes) -> bytes:
    if kind == "gzip":
        return gzip.compress(data[:700]) + gzip.compress(data[700:])
    if kind == "zstd":
        table = struct.pack("<2L", 0x184D2A50, 3) + b"toc"  # in a skippable frame, as zstd:chunked has one
        return zstandard.ZstdCompressor().compress(data[:700]) + zstandard.ZstdCompressor().compress(data[700:]) + table
    return data


@pytest.mark.parametrize("kind", ["gzip", "zstd", "plain"])
def test_a_layer_is_read_however_it_is_compressed(kind: str, tmp_path: Path) -> None:
    tar = as_tar(STACK)
    blob = packed(kind, tar) if kind == "plain" else packed(kind, tar) + b""
    pieces = ChunkReader(blob[at : at + 1000] for at in range(0, len(blob), 1000))
    assert layer(pieces, digest_of(blob), "here", tmp_path, Allowance()) == read_layer(
        io.BytesIO(tar), tmp_path, Allowance()
    )


@pytest.mark.parametrize("kind", ["gzip", "zstd", "plain"])
@pytest.mark.fault("Audits", "a layer that is audited is cut, changed, or another", "named; no traceback")
def test_a_damaged_layer_is_named(kind: str, tmp_path: Path) -> None:
    blob = packed(kind, as_tar({"file": random.Random(1).randbytes(20_000)}))
    for bad in (blob[: len(blob) // 2], blob[:-1] + b"?", blob + b"more", b"\x00" * 3 + blob[3:], b""):
        with pytest.raises(FetchError, match="layer") as raised:
            layer(io.BytesIO(bad), digest_of(blob), "the image: sha256:abc", tmp_path, Allowance())
        assert "the image" in str(raised.value.where)


def sparse_of(**headers: str) -> bytes:
    """A file that is sparse, as GNU tar writes it with pax headers."""
    info = tarfile.TarInfo("x")
    info.pax_headers = {"GNU.sparse." + name: text for name, text in headers.items()}
    return info.tobuf(tarfile.PAX_FORMAT)


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.fault("Audits", "a layer of headers without end, of bombs", "refused within bounded memory")
@pytest.mark.parametrize(
    ("tar", "why"),
    [
        (header(tarfile.XHDTYPE, 1 << 40), "headers of"),
        (header(tarfile.GNUTYPE_LONGNAME, 1 << 33), "headers of"),
        (header(tarfile.GNUTYPE_SPARSE, 1 << 40) + bytes(1024), "sparse"),
        (sparse_of(major="1", minor="0") + b"9" * 1024, "sparse"),
        (header(tarfile.XHDTYPE, 0) * 3000, "recursion"),
        (header(tarfile.GNUTYPE_LONGNAME, 0) * 3000, "recursion"),
        (as_tar({f"{n}": None for n in range(30)}), "more than any layer"),
        (as_tar({f"{n}.pth": b"x" * 60 for n in range(15)}), "more than any layer"),
    ],
)
def test_bombs_are_refused(tar: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError) as raised:
        read_layer(io.BytesIO(tar), tmp_path, Allowance(members=20, text=1500))
    assert why in str(raised.value)
    with suppress(FetchError):  # two of them are archives that hold too little
        archive.read(ChunkReader([tar]), AMD64, "demo:1", tmp_path)


@pytest.mark.fault(
    "Audits",
    "a layer of less than a megabyte that unpacks to gigabytes without end, in gzip and in zstd",
    "refused once it is more than 8 GiB and more than 50 times the blob; memory does not grow",
)
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_layer_that_unpacks_without_end_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_tar, "SMALL", 1 << 20)
    blob = packed(kind, bytes(64 << 20))
    plain = stream.Plain(io.BytesIO(blob))
    with pytest.raises(FetchError):
        plain.finish()
    fine = packed(kind, bytes(1 << 20))
    stream.Plain(io.BytesIO(fine)).finish()
    noise = packed(kind, random.Random(0).randbytes(3 << 20) + bytes(3 << 20))
    stream.Plain(io.BytesIO(noise)).finish()


def test_no_bytes_make_a_layer_that_ends_in_a_traceback(tmp_path: Path) -> None:
    """Single bytes of a good one changed, at random places of a fixed sequence."""
    good, chance = as_tar(STACK), random.Random(5)
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        with suppress(FetchError):
            read_layer(io.BytesIO(bytes(bad)), tmp_path, Allowance())


def config_of(trees: list[bytes], **settings: Any) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [digest_of(each) for each in trees]}
    return json.dumps({"os": "linux", "architecture": "amd64", "rootfs": rootfs, "config": settings}).encode()


def blobs_of(trees: list[Things], **settings: Any) -> tuple[dict[str, bytes], str]:
    """The blobs of an image with gzipped layers, and the digest of its manifest."""
    tars = [as_tar(each) for each in trees]
    packed_ = [gzip.compress(each, mtime=0) for each in tars]
    config = config_of(tars, **settings)

    def described(data: bytes, kind: str) -> dict[str, Any]:
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described(config, CONFIG),
                "layers": [described(each, kind) for each in packed_]}  # fmt: skip
    manifest = json.dumps(document).encode()
    return {digest_of(each): each for each in (*packed_, config, manifest)}, digest_of(manifest)


def layout_of(blobs: dict[str, bytes], *manifests: str) -> dict[str, bytes]:
    entries = [{"mediaType": MANIFEST, "digest": each, "size": len(blobs[each])} for each in manifests]
    index = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
    named = {f"blobs/sha256/{digest.removeprefix('sha256:')}": data for digest, data in blobs.items()}
    return {**named, "index.json": index, "oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}


def classic_of(trees: list[Things], **settings: Any) -> Things:
    """Write an image as Docker before 25 saves it; a repeated layer is a link."""
    tars = [as_tar(each) for each in trees]
    found: dict[str, bytes | To | None] = {f"{n}/layer.tar": data for n, data in enumerate(tars)}
    found["again/layer.tar"] = To("../0/layer.tar")
    names = ["0/layer.tar", *(f"{n}/layer.tar" for n in range(1, len(tars))), "again/layer.tar"]
    manifest = [{"Config": "c.json", "RepoTags": ["demo:1"], "Layers": names}]
    return {**found, "0/VERSION": b"1.0", "0/json": b"{}", "c.json": config_of(tars, **settings),
            "manifest.json": json.dumps(manifest).encode()}  # fmt: skip


@pytest.mark.parametrize("kind", ["layout", "classic"])
def test_an_archive_is_read_in_one_pass(kind: str, tmp_path: Path) -> None:
    settings = {"Env": ENV, "Labels": LABELS}
    blobs, manifest = blobs_of([BASE, STACK], **settings)
    tree = layout_of(blobs, manifest) if kind == "layout" else classic_of([BASE, STACK], **settings)
    stream = ChunkReader([as_tar(tree)])
    found = archive.read(stream, AMD64, "demo:1", tmp_path)
    assert (found.config.env, found.config.labels) == (tuple(ENV), LABELS)
    expected = [read_layer(io.BytesIO(as_tar(each)), tmp_path, Allowance()) for each in (BASE, STACK)]
    assert list(found.layers) == expected + ([expected[0]] if kind == "classic" else [])


def test_a_variable_without_a_value_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines write them so: `docker run -e NAME`, committed."""
    saved = as_tar(classic_of([BASE, STACK], Env=["NAME", *ENV]))
    export = Export([saved], "amd64")
    monkeypatch.setattr(client, "exported", lambda *_: nullcontext(export))
    subject = audited("demo:1", tmp_path)
    assert subject.system
    assert subject.system.preloaded == ("/opt/lib",)


def test_a_large_library_of_another_layout_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """An image is read once, so that what was left out of the copy cannot be had; those who need it are not blamed."""
    large = make_elf(exported=["own"], soname="liblarge.so")
    user = make_elf(["liblarge.so"], ["own"], ["PyInit__c"], runpath="$ORIGIN")
    stack = {**STACK, **below(SITE, site_of(demo={"demo/_c.so": user, "demo/liblarge.so": large}))}
    parts = [sparse_copy.FileRange(64, len(large) - 600, searched=False)]
    monkeypatch.setattr(layers, "READ_WHOLE", 0)
    monkeypatch.setattr(collect, "IN_MEMORY", 0)
    monkeypatch.setattr(collect, "left_out", lambda _, size: parts if size == len(large) else [])
    saved = as_tar(classic_of([BASE, stack], Env=ENV))
    monkeypatch.setattr(client, "exported", lambda *_: nullcontext(Export([saved], "amd64")))
    (finding,) = (each for each in check.audit(audited("demo:1", tmp_path)).findings if each.package == "demo 1.0")
    assert (finding.severity, finding.id, finding.path) == (Severity.WARNING, "unreadable", "demo/liblarge.so")
    golden.check(finding.evidence)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda tree: tree.pop("index.json"), "not an archive of one image"),
        (lambda tree: tree.pop(max(tree, key=lambda name: len(tree[name]))), "lacks a layer"),
        (lambda tree: tree.update({"index.json": b"[]"}), "not an OCI layout"),
        (lambda tree: tree.update({"index.json": b'{"schemaVersion": 2, "manifests": []}'}), "0 images"),
        (lambda tree: [tree.update({n: b"{}"}) for n in tree if b"rootfs" in tree[n]], "it is damaged"),
        (lambda tree: tree.update({"blobs/sha256/" + "0" * 64: gzip.compress(bytes(1024))}), "differs from its image"),
        (lambda tree: tree.update({"blobs/sha256/" + "0" * 64: b"no tar"}), "cannot be read"),
    ],
)
def test_an_archive_of_something_else_is_refused(
    spoil: Callable[[dict[str, bytes]], object], why: str, tmp_path: Path
) -> None:
    blobs, manifest = blobs_of([BASE])
    tree = layout_of(blobs, manifest)
    spoil(tree)
    with pytest.raises(FetchError) as raised:
        archive.read(ChunkReader([as_tar(tree)]), AMD64, "demo:1", tmp_path)
    assert why in str(raised.value)


def settings_of(tmp_path: Path) -> Settings:
    """Return the settings of a machine without an engine."""
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path)}
    return Settings.from_environment(env)


def audited(reference: str, tmp_path: Path, said: Said | None = None, gpus: tuple[Gpu, ...] = ()) -> Subject:
    return image_subject.image_subject(reference, gpus, settings_of(tmp_path), said or Said(), known_gpus=GPUS)


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagegen.engine.connection.DEFAULT_HOST", "unix:///nonexistent/docker.sock")


@pytest.fixture
def registry() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.close()


def test_an_image_of_a_registry_is_what_its_layers_say_together(registry: StandIn, tmp_path: Path) -> None:
    tars = [as_tar(each) for each in (BASE, STACK, PATCH)]
    registry.push("a/b:1", tars, Env=ENV, Labels=LABELS)
    said = Said()
    found = audited(f"{registry.host}/a/b:1", tmp_path, said)
    assert [str(package) for package in found.packages] == ["(unowned) demo", "demo 1.0"]
    assert found.packages[1].files["demo/_c.so"].elf == found.packages[0].files["demo/more.so"].elf is not None
    assert (found.python, found.driver, found.cuda) == ("3.11", "580.65.06", True)
    assert [gpu.capability for gpu in found.gpus] == ["9.0", "12.0"]
    assert found.system is not None and found.system.interpreter is not None
    assert (set(found.system.libraries), found.system.preloaded) == ({"libc.so.6"}, ("/opt/lib",))
    assert any("not read" in line and "/usr/lib/python3/dist-packages" in line for line in said.lines)
    requested = audited(f"{registry.host}/a/b:1", tmp_path, gpus=GPUS[:1])
    assert requested.gpus == GPUS[:1]


def test_a_layout_is_a_directory(tmp_path: Path) -> None:
    blobs, first = blobs_of([BASE, STACK], Env=ENV)
    others, second = blobs_of([BASE], Env=[])
    root = tmp_path / "layout"
    for name, data in layout_of(blobs | others, first, second).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    with raises("fetch-not-an-image"):
        audited(f"oci:{root}", tmp_path)
    assert [package.name for package in audited(f"oci:{root}@{first}", tmp_path).packages] == ["demo", "old"]
    of_the_base = audited(f"oci:{root}@{second}", tmp_path)
    assert [package.name for package in of_the_base.packages] == ["apt"]
    assert (of_the_base.gpus, of_the_base.cuda) == ((), None)
    for bad in (f"oci:{root}@sha256:{'0' * 64}", f"oci:{tmp_path}", "oci:", f"oci:{root}/index.json"):
        with pytest.raises(FetchError):
            audited(bad, tmp_path)


def test_an_environment_that_is_not_on_path_is_found(registry: StandIn, tmp_path: Path) -> None:
    registry.push("a/b:1", [as_tar(below("srv", STACK))], Env=["PATH=/bin"])  # type: ignore[arg-type]
    said = Said()
    found = audited(f"{registry.host}/a/b:1", tmp_path, said)
    assert [package.name for package in found.packages] == ["demo", "old"]
    assert "reading" in said.lines[1]


def test_an_image_without_packages_is_an_error(registry: StandIn, tmp_path: Path) -> None:
    registry.push("a/b:1", [as_tar({"bin/sh": PROGRAM})])
    with raises("usage-no-packages"):
        audited(f"{registry.host}/a/b:1", tmp_path)


@pytest.mark.fault("Audits", "a registry breaks off in a layer, or gives another", "gone on with, or named")
def test_a_layer_that_breaks_off_is_gone_on_with(registry: StandIn, tmp_path: Path) -> None:
    stack = {**STACK, "srv/weights": random.Random(3).randbytes(3 << 20)}
    tar = as_tar(stack)
    registry.push("a/b:1", [tar], Env=ENV)
    blob = gzip.compress(tar, 1, mtime=0)
    path = f"/v2/a/b/blobs/{digest_of(blob)}"
    starts: list[int] = []

    def cut(handler: Any) -> None:
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        starts.append(start)
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(blob) - 1}/{len(blob)}")
        handler.send_header("Content-Length", str(len(blob) - start))
        handler.end_headers()
        handler.wfile.write(blob[start : start + (2 << 20)])

    registry.instead[path] = cut
    assert [package.name for package in audited(f"{registry.host}/a/b:1", tmp_path).packages] == ["demo", "old"]
    assert starts == [0, 2 << 20]
    registry.instead[path] = lambda handler: send(handler, 200, bytes(len(blob)))
    with raises("fetch-digest-mismatch"):
        audited(f"{registry.host}/a/b:1", tmp_path)


def test_a_reader_that_stops_ends_the_writer() -> None:
    stopped: list[bool] = []

    class Endless:
        def stream(self, digest: str, size: int, into: Any) -> None:
            while True:
                into.write(bytes(1 << 20))

    sender = cast("Client", SimpleNamespace(close=lambda: stopped.append(True)))

    def read() -> None:
        with piped(Endless(), LayerDescriptor.of_tar("", 0), sender) as pipe:
            raise KeyError(len(pipe.read(10)))

    with pytest.raises(KeyError, match="10"):
        read()
    assert stopped == [True]


@pytest.mark.fault(
    "Audits",
    "a layer of 47 kB with names of 900,000 bytes, and layers of a hundred bytes with names as long as Linux allows",
    "refused: names count, for all layers of an image together",
)
def test_names_of_members_are_counted(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="too long"):
        read_layer(io.BytesIO(as_tar({"a" * 900_000: b""})), tmp_path, Allowance())
    allowance = Allowance(text=100_000)
    for number in range(2):
        read_layer(io.BytesIO(as_tar({f"{number}{n}/" + "a/" * 90: b"" for n in range(100)})), tmp_path, allowance)
    with raises("fetch-layer-too-large"):
        read_layer(io.BytesIO(as_tar({f"{n}/" + "b/" * 90: b"" for n in range(400)})), tmp_path, allowance)


def test_directories_and_links_that_paths_lead_through_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MAX_CREATED", 1000)
    monkeypatch.setattr(layers, "MAX_FOLLOWED", 10_000)
    deep = read_layer(io.BytesIO(as_tar({f"{n}/" + "a/" * 90 + "b": b"" for n in range(30)})), tmp_path, Allowance())
    with raises("fetch-layer-too-large"):
        LayeredTree().add(deep)
    links: Things = {"l": To("a/" * 190), **{f"l/{n}/x": b"" for n in range(60)}}
    with raises("fetch-layer-too-large"):
        LayeredTree().add(read_layer(io.BytesIO(as_tar(links)), tmp_path, Allowance()))
