"""Fetching a lock's files: any source with the hash serves, and all missing files are reported at once."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.net import Client, Page, UnreachableError, package_index
from imagegen.core.net.package_index import with_indexes
from imagegen.core.progress import Meter, Quiet
from imagegen.core.store import Store
from imagegen.image.inputs import complete, fetch, fetch_each
from imagegen.lock.model import Lock, LockedBase, LockedDeb, LockedFile, LockedSdist, LockedWheel
from imagegen.spec.model import Index
from tests.support.errors import raises
from tests.support.http_server import Loopback
from tests.support.interpreters import LOCKED
from tests.support.timing import within


class Host(Loopback):
    """Serves a directory on loopback and keeps the paths that were asked for."""

    def __init__(self, root: Path) -> None:
        self.root, self.paths = root, list[str]()
        host = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                host.paths.append(self.path)

        super().__init__(partial(Handler, directory=str(root)))
        self.url = f"http://{self.host}"

    def offer(self, wheel: LockedWheel, data: bytes, *, below: str, hashed: bool = True) -> None:
        """Put a file below `below`, and a line about it on its project's page."""
        file = self.root / below / wheel.file.filename
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        page = self.root / "simple" / wheel.name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        fragment = f"#sha256={hashlib.sha256(data).hexdigest()}" if hashed else ""
        with page.open("a") as text:
            text.write(f'<a href="/{below}/{quote(wheel.file.filename)}{fragment}">{wheel.file.filename}</a>\n')


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "host").mkdir()
    host = Host(tmp_path / "host")
    yield host
    host.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache" / "store")


def content(name: str) -> bytes:
    return name.encode() * 1000


def wheel(name: str, **more: str) -> LockedWheel:
    data = content(name)
    filename = f"{name}-1.0+cpu-py3-none-any.whl"
    return LockedWheel(
        name, "1.0+cpu", LockedFile(filename, len(data), hashlib.sha256(data).hexdigest(), "pypi", **more), via=()
    )


def lock_of(*wheels: LockedWheel) -> Lock:
    base = LockedBase("debian12", "debian", "bookworm", {}, ())
    axes = {"platform": "linux/amd64", "python": "3.11"}
    return Lock(
        cell="x",
        image="x",
        axes=axes,
        inputs={},
        uv=wheels[0],
        as_of="2026-11-20T00:00:00Z",
        base=base,
        interpreter=LOCKED,
        wheels=wheels,
        env=(),
    )


def settings_of(tmp_path: Path, index: str, *find_links: str, extra: str = "") -> Settings:
    env = {"HOME": str(tmp_path), "PIP_INDEX_URL": index, "PIP_FIND_LINKS": " ".join(find_links)}
    return Settings.from_environment({**env, "PIP_EXTRA_INDEX_URL": extra})


def test_all_wheels_arrive_and_those_in_the_store_first(host: Host, store: Store, tmp_path: Path) -> None:
    small, big, there = wheel("a"), wheel("bigger"), wheel("there")
    host.offer(small, content("a"), below="files")
    host.offer(big, content("bigger"), below="files")
    store.write(content("there"))
    arrived = list(
        fetch_each(lock_of(small, big, there), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    )
    assert arrived[0] == there
    assert {each.name for each in arrived} == {"a", "bigger", "there"}
    assert store.read(f"sha256:{big.file.sha256}") == content("bigger")


def test_nothing_is_asked_when_the_store_has_all(host: Host, store: Store, tmp_path: Path) -> None:
    store.write(content("a"))
    fetch(lock_of(wheel("a")), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    assert host.paths == []


@pytest.mark.fault(
    "Killed and damaged",
    "a bit flips in a wheel that the store keeps",
    "the wheel is not taken for a bad one: its copy goes, it is fetched again, and the build goes on",
)
def test_a_wheel_damaged_in_the_store_is_fetched_again(host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    host.offer(each, content("a"), below="files")
    path = store.path(store.write(content("a")))
    path.chmod(0o644)
    path.write_bytes(content("b"))
    fetch(lock_of(each), Context(Store(store.root), settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    assert path.read_bytes() == content("a")


def test_hints_spare_the_pages(host: Host, store: Store, tmp_path: Path) -> None:
    wheels = [wheel(name, path=f"files/{name}/{name}-1.0%2Bcpu-py3-none-any.whl") for name in ("a", "b", "c", "d")]
    for each in wheels:
        host.offer(each, content(each.name), below=f"files/{each.name}")
    fetch(lock_of(*wheels), Context(store, settings_of(tmp_path, f"{host.url}/simple/"), Quiet()))
    assert sum(path.startswith("/simple") for path in host.paths) == 1


def hinted(host: Host, name: str) -> LockedWheel:
    """A wheel that the host offers, and its path there."""
    each = wheel(name, path=f"files/{name}-1.0%2Bcpu-py3-none-any.whl")
    host.offer(each, content(name), below="files")
    return each


def test_a_later_run_reads_no_page_for_hints(host: Host, store: Store, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f"{host.url}/simple")
    for name in ("a", "b"):
        fetch(lock_of(hinted(host, name)), Context(store, settings, Quiet()))
    assert [path for path in host.paths if path.startswith("/simple")] == ["/simple/a/"]


def test_files_that_moved_to_another_host_are_found_on_the_page(host: Host, store: Store, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    moved = Host(tmp_path / "moved")
    settings = settings_of(tmp_path, f"{host.url}/simple")
    fetch(lock_of(hinted(host, "a")), Context(store, settings, Quiet()))
    try:
        each = hinted(moved, "b")
        (host.root / "simple" / "b").mkdir()
        (host.root / "simple" / "b" / "index.html").write_text(f'<a href="{moved.url}/{each.file.path}">b</a>')
        fetch(lock_of(each), Context(store, settings, Quiet()))
        fetch(lock_of(hinted(moved, "c")), Context(store, settings, Quiet()))
    finally:
        moved.close()
    assert host.paths[-2:] == [f"/{each.file.path}", "/simple/b/"], "c has no page there, and needs none"


def test_credentials_of_a_file_host_are_not_kept(host: Host, store: Store, tmp_path: Path) -> None:
    each = hinted(host, "a")
    signed = host.url.replace("//", "//me:secret@")
    (host.root / "simple" / "a" / "index.html").write_text(f'<a href="{signed}/{each.file.path}">a</a>')
    fetch(lock_of(each), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    assert not list(store.root.glob("records/file-host/**/*"))


def test_a_wrong_hint_costs_only_the_page(host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a", path="moved/away/a-1.0.whl")
    host.offer(each, content("a"), below="files")
    fetch(lock_of(each), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    assert store.has(f"sha256:{each.file.sha256}")


@pytest.mark.parametrize("kind", ["directory", "file url", "page"])
def test_find_links_serve_without_the_index(kind: str, host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    links = tmp_path / "host" / "links"
    links.mkdir()
    (links / each.file.filename).write_bytes(content("a"))
    place = {"directory": str(links), "file url": links.as_uri(), "page": f"{host.url}/links/"}[kind]
    fetch(lock_of(each), Context(store, settings_of(tmp_path, "http://127.0.0.1:1/simple", place), Quiet()))
    assert store.read(f"sha256:{each.file.sha256}") == content("a")


def test_another_file_of_that_name_is_passed_over(host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / each.file.filename).write_bytes(b"evil" * 500)
    host.offer(each, content("a"), below="files", hashed=False)
    fetch(lock_of(each), Context(store, settings_of(tmp_path, f"{host.url}/simple", str(tmp_path / "links")), Quiet()))
    assert store.read(f"sha256:{each.file.sha256}") == content("a")


def test_extra_indexes_serve_by_hash(host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    host.offer(each, content("a"), below="files")
    settings = settings_of(tmp_path, "http://127.0.0.1:1/simple", extra=f"{host.url}/simple/")
    fetch(lock_of(each), Context(store, settings, Quiet()))
    assert store.has(f"sha256:{each.file.sha256}")


def test_an_alias_is_served_from_where_matrix_or_user_say(host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    each = replace(each, file=replace(each.file, index="pytorch-cpu"))
    host.offer(each, content("a"), below="files")
    settings = settings_of(tmp_path, "http://127.0.0.1:1/simple")
    with raises("fetch-files-missing"):
        fetch(lock_of(each), Context(store, settings, Quiet()))
    matrix = {"pytorch-cpu": Index("pytorch-cpu", f"{host.url}/simple", "")}
    fetch(lock_of(each), Context(store, with_indexes(settings, matrix), Quiet()))
    overridden = replace(settings, index_urls={"pytorch-cpu": "http://127.0.0.1:2"})
    assert with_indexes(overridden, matrix).index_urls["pytorch-cpu"] == "http://127.0.0.1:2"


def test_everything_missing_is_reported_at_once_with_every_source(host: Host, store: Store, tmp_path: Path) -> None:
    here, gone, other = wheel("a"), wheel("gone"), wheel("other")
    host.offer(here, content("a"), below="files")
    host.offer(other, b"not it", below="files")
    (tmp_path / "links").mkdir()
    settings = settings_of(tmp_path, f"{host.url}/simple", str(tmp_path / "links"))
    arrived = []
    with raises("fetch-files-missing") as caught:
        arrived.extend(fetch_each(lock_of(here, gone, other), Context(store, settings, Quiet())))
    assert arrived == [here]
    assert store.has(f"sha256:{here.file.sha256}")
    message = str(caught.value)
    for text in (gone.file.filename, other.file.filename, str(tmp_path / "links"), "/simple: does not have it",
                 "has another file of this name", "PIP_FIND_LINKS", "IMAGEGEN_INDEX_PYPI"):  # fmt: skip
        assert text in message


@pytest.mark.fault(
    "Offline", "wheels, an sdist, its build requirements and Debian packages are missing", "one error has all"
)
def test_one_error_names_all_that_a_store_lacks(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[fetch.__module__], "Client", partial(Client, attempts=2, backoff=0.01))
    built, backend, plain = wheel("built"), wheel("backend"), wheel("plain")
    source = LockedFile("built-1.0.tar.gz", 10, "a" * 64, "pypi")
    built = replace(built, sdist=LockedSdist(source, (backend,)))
    lock = lock_of(built, plain)
    deb = LockedDeb("libc6", "2.36", "amd64", 10, "b" * 64, "debian", "pool/main/g/glibc/libc6_2.36_amd64.deb")
    lock = replace(lock, base=replace(lock.base, debs=(deb,)))
    with raises("fetch-files-missing") as caught:
        fetch(lock, Context(store, settings_of(tmp_path, "http://127.0.0.1:1/simple"), Quiet()))
    said = str(complete(caught.value, lock, store))
    assert said.startswith("4 files of the lock cannot be had")
    for name in (source.filename, backend.file.filename, plain.file.filename, "libc6_2.36_amd64.deb"):
        assert f"    {name} (" in said
    assert built.file.filename not in said  # a file that only a build makes cannot be fetched
    for text in ("refused", "not asked for: the build ended before", "PIP_FIND_LINKS", "IMAGEGEN_DEBIAN_MIRROR"):
        assert text in said


def test_an_index_out_of_reach_is_asked_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []

    def page(client: Client, url: str, *, accept: str | None = None) -> Page:
        requested.append(url)
        raise UnreachableError(f"{url} cannot be fetched")

    monkeypatch.setattr(Client, "page", page)
    wheels = [wheel(name, path=f"files/{name}.whl") for name in ("a", "b", "c", "d", "e", "f", "g", "h")]
    with raises("fetch-files-missing"):
        fetch(lock_of(*wheels), Context(store, settings_of(tmp_path, "http://127.0.0.1:1/simple"), Quiet()))
    assert len(requested) == 1


@pytest.mark.parametrize(("stored", "label"), [(True, "building 1 wheel"), (False, "fetching 1 wheel")])
def test_the_label_tells_sdists_that_are_there_from_files_to_fetch(
    host: Host, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool, label: str
) -> None:
    class Labels(Quiet):
        def meter(self, label: str, total: int) -> Meter:
            labels.append(label)
            return super().meter(label, total)

    labels = list[str]()
    source = wheel("source")
    host.offer(source, content("source"), below="files")
    if stored:
        store.write(content("source"))
    monkeypatch.setattr("imagegen.lock.sdist.build", lambda *_: made.file)
    made = replace(wheel("a"), name="source", sdist=LockedSdist(source.file, ()))
    list(fetch_each(lock_of(made), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Labels())))
    assert labels == [label]


def test_sources_of_wheels_are_fetched_without_making_wheels_if_a_mirror_needs_them(
    host: Host, store: Store, tmp_path: Path
) -> None:
    source, requirement = wheel("source"), wheel("backend")
    for offered in (source, requirement):
        host.offer(offered, content(offered.name), below="files")
    made = replace(wheel("a"), name="source", sdist=LockedSdist(source.file, (requirement,)))
    fetch(lock_of(made), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()), make=False)
    present = [store.has(file.digest) for file in (source.file, requirement.file, made.file)]
    assert present == [True, True, False]


def test_a_consumer_that_stops_ends_the_downloads(host: Host, store: Store, tmp_path: Path) -> None:
    wheels = [wheel(f"w{number:03}") for number in range(100)]
    for each in wheels:
        host.offer(each, content(each.name), below="files")
    arrivals = fetch_each(lock_of(*wheels), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    next(arrivals)
    arrivals.close()  # type: ignore[attr-defined]
    assert sum(store.has(f"sha256:{each.file.sha256}") for each in wheels) < len(wheels)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fetch")]


@pytest.mark.fault(
    "Network", "an index's page has wrong types, is binary, nested without end or no page", "named with why"
)
@pytest.mark.parametrize(
    "body",
    [
        b'{"files": 3}', b"{", b'{"meta": {"api-version": "9.0"}}', b'{"a":' * 100_000,
        b'{"meta": {"api-version": "1.0"}, "name": "a", "files": [{"filename": 3, "url": [], "hashes": 1}]}',
        b"\x89PNG\r\n\x1a\n" + bytes(range(60)) * 40, b"It works!", b"<a href='http://[::1'>x</a>",
    ],
    ids=range(8),
)  # fmt: skip
def test_a_broken_page_is_named(body: bytes, host: Host, store: Store, tmp_path: Path) -> None:
    page = tmp_path / "host" / "simple" / "a" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_bytes(body)
    with raises("fetch-files-missing") as caught:
        fetch(lock_of(wheel("a")), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    assert f"{host.url}/simple/a/" in str(caught.value)
    assert "\x1a" not in str(caught.value)


@pytest.mark.fault(
    "Network",
    "an index's page is made to keep parsers busy: a million comments or tags never closed",
    "read in seconds",
)
@pytest.mark.parametrize("rubbish", [b"<!--", b"<?", b"<a ", b"<![CDATA[", b'<a "', b"</", b"&", b"<div>", b"<script>"])
def test_a_page_that_would_take_days_to_parse(rubbish: bytes, host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    host.offer(each, content("a"), below="files")
    with (tmp_path / "host" / "simple" / "a" / "index.html").open("ab") as page:
        page.write(rubbish * 1_000_000)
    fetch(lock_of(each), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    assert store.has(each.file.digest)


@pytest.mark.parametrize("page", [b"<a href=x>" * 200_001, b'{"files": [' + b"1," * 200_000 + b"1]}"])
def test_a_page_with_too_many_links(page: bytes, host: Host, store: Store, tmp_path: Path) -> None:
    (tmp_path / "host" / "simple" / "a").mkdir(parents=True)
    (tmp_path / "host" / "simple" / "a" / "index.html").write_bytes(page)
    with raises("fetch-files-missing"):
        fetch(lock_of(wheel("a")), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))


@pytest.mark.fault("Network", "an index names files so long that their names or tags keep parsers busy", "left out")
@pytest.mark.parametrize("name", ["x-1." * 50_000, "x-1.0-{0}-{0}-{0}.whl".format(".".join(map(str, range(1000))))])
@pytest.mark.parametrize("form", ["html", "json"])
def test_long_file_names_are_left_out(form: str, name: str, host: Host, tmp_path: Path) -> None:
    file = {"filename": name, "url": f"/files/{name[:200]}", "hashes": {}}
    pages = {
        "html": f'<a href="/files/{name[:16_000]}">x</a>',
        "json": json.dumps({"meta": {"api-version": "1.0"}, "name": "x", "files": [file]}),
    }
    page = tmp_path / "host" / "simple" / "x" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(pages[form])
    with within(5), closing(Client(settings_of(tmp_path, ""))) as client:
        assert package_index.project(client, f"{host.url}/simple", "x") == []


def test_a_page_in_odd_but_legal_html_is_read(host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    host.offer(each, content("a"), below="files")
    link = f"<A data-requires-python='>=3.7,<4'\n HREF='{quote(each.file.filename)}#sha256={each.file.sha256}'>x"
    page = f"<!DOCTYPE html><base href='/files/'>{link}"
    (tmp_path / "host" / "simple" / "a" / "index.html").write_text(page)
    fetch(lock_of(each), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))


@pytest.mark.fault(
    "Network", "an index links to file://, javascript:, ../.., other hosts' credentials", "only bytes decide"
)
def test_hostile_links(host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    secret = tmp_path / each.file.filename
    secret.write_bytes(content("a"))  # the right bytes, and still no file of this machine is for an index to name
    page = tmp_path / "host" / "simple" / "a" / "index.html"
    page.parent.mkdir(parents=True)
    name, fragment = quote(each.file.filename), f"#sha256={each.file.sha256}"
    hrefs = [
        f"{secret.as_uri()}{fragment}", f"FILE://localhost{secret}{fragment}", f"javascript:alert(1)/{name}{fragment}",
        f"ftp://127.0.0.1/{name}{fragment}", f"//u:hidden@{host.host}/../../../{name}{fragment}",
        f"../../../../{name}{fragment}", f"data:application/zip;base64,AAAA/{name}{fragment}",
    ]  # fmt: skip
    page.write_text("".join(f'<a href="{href}">{each.file.filename}</a>' for href in hrefs))
    settings = settings_of(tmp_path, f"{host.url}/simple")
    with raises("fetch-files-missing") as caught:
        fetch(lock_of(each), Context(store, settings, Quiet()))
    assert "hidden" not in str(caught.value)
    assert not store.has(each.file.digest)
    host.offer(each, content("a"), below="files")
    fetch(lock_of(each), Context(store, settings, Quiet()))
    assert store.read(each.file.digest) == content("a")


def test_a_json_index_is_read(host: Host, store: Store, tmp_path: Path) -> None:
    each = wheel("a")
    host.offer(each, content("a"), below="files")
    page = tmp_path / "host" / "simple" / "a" / "index.html"
    file: dict[str, object] = {"filename": each.file.filename, "url": f"/files/{quote(each.file.filename)}"}
    file["hashes"] = {"sha256": each.file.sha256}
    page.write_text(json.dumps({"meta": {"api-version": "1.0"}, "name": "a", "files": [file]}))
    fetch(lock_of(each), Context(store, settings_of(tmp_path, f"{host.url}/simple"), Quiet()))
    assert store.has(f"sha256:{each.file.sha256}")
