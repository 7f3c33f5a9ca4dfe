"""The finder over real files and a real server on loopback: order, reasons, hashes, and what cannot be had."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from imagegen.audit import torch_exports
from imagegen.audit.model import Finding, Severity
from imagegen.audit.readers import loose_wheels
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, WheelError
from imagegen.core.net import Client, UnreachableError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.lock.builds import BuiltWheel
from imagegen.oci.registry import parse
from imagegen.wheels.catalogue import Catalogue
from imagegen.wheels.find import Candidate, Offer, WheelListing, WheelSources, find
from imagegen.wheels.offers import WheelSource
from imagegen.wheels.remote_wheelhouse import RemoteWheelhouse
from imagegen.wheels.search import candidate_places, index_listing
from tests.support.built_wheels import built
from tests.support.elf_files import make_elf
from tests.support.golden import Golden
from tests.support.http_server import Loopback
from tests.support.registry_server_writes import Writable
from tests.support.required_wheels import NEED, TAGS, choice
from tests.support.wheels import make_wheel

KEY = "sha256:" + "1" * 64
SOURCE = replace(NEED, package="demo", version="1.0", source="demo-1.0.tar.gz", key=KEY)
NAME = f"demo-1.0+cu130torch2.11-{TAGS}"
BUILT = BuiltWheel(KEY, "demo", "1.0", f"demo-1.0-{TAGS}", "2" * 64, 7, {})


@dataclass
class Host:
    """Serves `files` by path, and remembers what was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.requested.append(f"{self.command} {self.path}")
            content = made.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = Loopback(Handler)
    made.url = f"http://{server.host}"
    yield made
    server.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def places(tmp_path: Path, store: Store) -> Iterator[WheelSources]:
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    with Client(settings, attempts=1) as client:
        yield WheelSources(store=store, client=client, progress=Quiet(), wheelhouse=lambda _: None)


def offering(places: WheelSources, *offers: Offer | Candidate) -> WheelSources:
    return replace(places, catalogue=lambda _: offers)


def wheel(directory: Path, name: str = NAME, files: dict[str, bytes] | None = None, requires: str = "") -> Path:
    directory.mkdir(exist_ok=True)
    metadata = {"METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n" + requires}
    return make_wheel(directory, files or {"demo.py": b""}, filename=name, info="demo-1.0.dist-info", metadata=metadata)


def verdicts(found: Sequence[Candidate]) -> list[tuple[str, bool]]:
    return [(each.place.value, each.fits) for each in found]


def clean(_: Path) -> Sequence[Finding]:
    return (Finding(Severity.WARNING, "torch-unpinned", "demo 1.0", None, "one says so"),)


def test_places_are_asked_in_order_and_the_first_that_fits_serves(
    places: WheelSources, tmp_path: Path, golden: Golden
) -> None:
    links, index, catalogued = (wheel(tmp_path / name) for name in ("links", "index", "catalogue"))
    everywhere = replace(
        offering(places, Offer(NAME, catalogued.as_uri())),
        wheelhouse=lambda key: BUILT if key == KEY else None,
        team=lambda key: BUILT if key == KEY else None,
        team_name="registry.example/wheels",
        links=(WheelListing("links", lambda: [Offer(NAME, links.as_uri())]),),
        index=WheelListing("pypi", lambda: [Offer(NAME, index.as_uri())]),
    )
    order = [each.value for each in WheelSource]
    for gone, change in enumerate(
        (
            {},
            {"wheelhouse": lambda _: None},
            {"team": lambda _: None},
            {"links": ()},
            {"index": None},
            {"catalogue": lambda _: ()},
        )
    ):
        everywhere = replace(everywhere, **change)
        found = find(SOURCE, everywhere, clean)
        assert choice(found).place.value == order[gone]
        assert [each.place for each in found] == sorted((each.place for each in found), key=list(WheelSource).index)
        for each in found[found.index(choice(found)) + 1 :]:
            if each.place in (WheelSource.LINKS, WheelSource.INDEX, WheelSource.CATALOGUE):
                golden.check(each.reason)
    golden.check(choice(find(SOURCE, everywhere, clean)).reason)


def test_without_a_key_no_wheelhouse_is_asked(places: WheelSources, golden: Golden) -> None:
    def ask(_: str) -> BuiltWheel | None:
        raise AssertionError("it was asked")

    found = find(replace(SOURCE, key=None), replace(places, wheelhouse=ask, team=ask), None)
    assert verdicts(found) == [("wheelhouse", False), ("team wheelhouse", False), ("source build", True)]
    golden.check({each.reason for each in found[:2]})


def test_where_nothing_fits_and_nothing_compiles_it_every_reason_is_listed(
    places: WheelSources, tmp_path: Path, golden: Golden
) -> None:
    other = wheel(tmp_path / "links", f"demo-1.0+cu130torch2.8-{TAGS}")
    nothing = replace(places, links=(WheelListing("links", lambda: [Offer(other.name, other.as_uri())]),))
    found = find(replace(SOURCE, source=None), nothing, clean)
    assert not any(each.fits for each in found)
    stated = "; ".join(each.reason for each in found)
    golden.check(stated)


def test_what_a_recipe_cannot_compile_here_is_reported_with_the_reason(places: WheelSources, golden: Golden) -> None:
    need = replace(SOURCE, source=None, key=None, obstacle="demo 1.0 cannot be compiled for 7.5")
    kept, _, source = find(need, replace(places, team=lambda _: None), clean)
    golden.check(kept.reason, source.reason)
    assert source.fits is False


def test_a_file_without_a_published_hash_is_fetched_and_hashed(
    host: Host, places: WheelSources, tmp_path: Path, golden: Golden
) -> None:
    content = wheel(tmp_path / "made").read_bytes()
    host.files["/v1.0/x.whl"] = content
    offer = Offer(NAME, f"{host.url}/v1.0/x.whl")
    seen: list[Path] = []
    found = choice(find(SOURCE, offering(places, offer), lambda path: seen.append(path) or ()))  # type: ignore[func-returns-value]
    assert (found.sha256, found.size) == (hashlib.sha256(content).hexdigest(), len(content))
    assert (found.place, found.where) == (WheelSource.CATALOGUE, offer.url)
    golden.check(found.reason)
    assert [path.name for path in seen] == [NAME]
    assert places.store.read(f"sha256:{found.sha256}") == content
    assert not list(places.store.scratch.iterdir())
    assert host.requested == ["HEAD /v1.0/x.whl", "GET /v1.0/x.whl"]
    # Asked again, one look at the address is enough, as long as it has as many bytes.
    assert choice(find(SOURCE, offering(places, offer), clean)) == found
    assert host.requested[2:] == ["HEAD /v1.0/x.whl"]
    host.files["/v1.0/x.whl"] = wheel(tmp_path / "other", files={"demo.py": b"x = 1\n"}).read_bytes()
    assert choice(find(SOURCE, offering(places, offer), clean)).sha256 != found.sha256


def test_a_name_that_stands_for_other_bytes_is_refused(
    host: Host, places: WheelSources, tmp_path: Path, golden: Golden
) -> None:
    content = wheel(tmp_path / "made").read_bytes()
    host.files["/x.whl"] = content[:-1] + b"!"
    offer = Offer(NAME, f"{host.url}/x.whl", hashlib.sha256(content).hexdigest(), len(content))
    found = find(SOURCE, offering(places, offer), clean)
    assert choice(found).place is WheelSource.SOURCE
    golden.check(found[1].reason)
    assert not places.store.has(f"sha256:{offer.sha256}")
    host.files["/x.whl"] = content
    assert choice(find(SOURCE, offering(places, offer), clean)).place is WheelSource.CATALOGUE
    host.requested.clear()
    assert choice(find(SOURCE, offering(places, offer), clean)).place is WheelSource.CATALOGUE
    assert host.requested == []  # the store has it under its hash


def test_of_a_local_file_the_hash_is_compared_too(places: WheelSources, tmp_path: Path) -> None:
    path = wheel(tmp_path / "links")
    good = hashlib.sha256(path.read_bytes()).hexdigest()
    for stated, fits in ((None, True), (good, True), ("0" * 64, False)):
        listing = WheelListing("links", lambda stated=stated: [Offer(path.name, path.as_uri(), stated)])  # type: ignore[misc]
        found = find(SOURCE, replace(places, links=(listing,)), clean)[1]
        assert (found.fits, found.sha256) == (fits, good if fits else stated)


def refuse(error: Exception) -> Callable[[], Sequence[Offer]]:
    def read() -> Sequence[Offer]:
        raise error

    return read


def test_what_cannot_be_reached_is_a_candidate_and_no_crash(host: Host, places: WheelSources, golden: Golden) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
        later = Offer("demo-1.0-cp39-abi3-linux_x86_64.whl", f"{host.url}/c.whl")
        asking = offering(places, Offer(NAME, f"{dead}/a.whl"), Offer(NAME, f"{dead}/b.whl"), later)

        def team(_: str) -> BuiltWheel | None:
            raise FetchError("registry.example asks for credentials", why="HTTP status 401")

        asking = replace(
            asking,
            team=team,
            links=(WheelListing("gone", refuse(FileNotFoundError(2, "No such file or directory"))),),
            index=WheelListing("pypi", refuse(UnreachableError("x cannot be fetched", why="it is away"))),
        )
        found = find(SOURCE, asking, clean)
    golden.check([each.reason.removesuffix("Connection refused") for each in found])


def test_the_audit_disqualifies_a_file_with_its_words(places: WheelSources, tmp_path: Path, golden: Golden) -> None:
    """The real audit, over an extension that needs symbols which torch 2.11 no longer has and 2.8 had."""
    index = torch_exports.shipped()
    only = 1 << index.releases.index("2.8.0")
    old = sorted(name for name, bits in index.names.items() if bits == only and name.startswith("_ZN"))
    path = wheel(tmp_path / "links", f"demo-1.0-{TAGS}", {"demo/_c.so": make_elf(undefined=old[:3])})
    there = replace(places, links=(WheelListing("links", lambda: [Offer(path.name, path.as_uri())]),))
    refused = find(SOURCE, there, partial(loose_wheels.audit_wheel, gpus=(), torch="2.11.0"))
    assert choice(refused).place is WheelSource.SOURCE
    golden.check(refused[1].reason)
    on_old = replace(SOURCE, torch="2.8.0", cuda="12.8")
    found = choice(find(on_old, there, partial(loose_wheels.audit_wheel, gpus=(), torch="2.8.0")))
    assert (found.place, found.filename) == (WheelSource.LINKS, path.name)
    golden.check(found.reason)


def test_a_wheel_whose_metadata_names_another_torch_does_not_fit(
    places: WheelSources, tmp_path: Path, golden: Golden
) -> None:
    """Nothing is missing, so the loader would not say it: such a module can abort while it is loaded."""
    index = torch_exports.shipped()
    every = (1 << len(index.releases)) - 1
    name = next(name for name, bits in sorted(index.names.items()) if bits == every and name.startswith("_ZN2at"))
    path = wheel(
        tmp_path / "links",
        f"demo-1.0-{TAGS}",
        {"demo/_c.so": make_elf(undefined=[name])},
        "Requires-Dist: torch==2.8.0\n",
    )
    there = replace(places, links=(WheelListing("links", lambda: [Offer(path.name, path.as_uri())]),))
    found = find(SOURCE, there, partial(loose_wheels.audit_wheel, gpus=(), torch="2.11.0"))
    golden.check(found[1].reason)
    assert choice(found).place is WheelSource.SOURCE


def test_several_errors_are_counted(places: WheelSources, tmp_path: Path, golden: Golden) -> None:
    path = wheel(tmp_path / "links")
    there = replace(places, links=(WheelListing("links", lambda: [Offer(path.name, path.as_uri())]),))
    wrong = [
        Finding(Severity.ERROR, "no-gpu-code", "demo 1.0", None, text) for text in ("no code for sm_120", "b", "c")
    ]
    golden.check(find(SOURCE, there, lambda _: wrong)[1].reason)


def test_a_file_that_is_no_wheel_does_not_fit(places: WheelSources, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"<html>sign in</html>")
    there = replace(places, links=(WheelListing("links", lambda: [Offer(path.name, path.as_uri())]),))
    found = find(SOURCE, there, partial(loose_wheels.audit_wheel, gpus=(), torch="2.11.0"))
    assert choice(found).place is WheelSource.SOURCE
    with pytest.raises(WheelError) as raised:
        loose_wheels.audit_wheel(path, (), "2.11.0")
    assert found[1].reason.startswith(raised.value.what)


def test_of_several_files_the_best_tags_and_the_highest_build_come_first(places: WheelSources, tmp_path: Path) -> None:
    names = ["demo-1.0-2-cp311-cp311-manylinux_2_28_x86_64.whl", "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"]
    names += [f"demo-1.0-{TAGS}", "demo-1.0-cp39-abi3-linux_x86_64.whl", "demo-1.0-cp312-cp312-linux_x86_64.whl"]
    made = {name: wheel(tmp_path / "links", name) for name in names}
    offers = [Offer(name, path.as_uri()) for name, path in reversed(made.items())]
    there = replace(places, links=(WheelListing("links", lambda: offers),))
    found = [each for each in find(SOURCE, there, clean) if each.place is WheelSource.LINKS]
    assert [each.filename for each in found] == names
    assert [each.fits for each in found] == [True, False, False, False, False]


def test_what_must_be_compiled_takes_no_wheel_but_one_with_its_key(
    places: WheelSources, tmp_path: Path, golden: Golden
) -> None:
    path = wheel(tmp_path / "links")
    there = replace(places, links=(WheelListing("links", lambda: [Offer(path.name, path.as_uri())]),))
    required = replace(SOURCE, from_source=True)
    found = find(required, there, clean)
    golden.check(found[1].reason, choice(found).reason)
    assert choice(find(required, replace(there, wheelhouse=lambda _: BUILT), clean)).place is WheelSource.WHEELHOUSE


def test_find_links_show_other_versions_and_an_index_does_not(
    places: WheelSources, tmp_path: Path, golden: Golden
) -> None:
    names = ("demo-0.9-py3-none-any.whl", "other-1.0-py3-none-any.whl", "demo-1.0.tar.gz")
    offers = [Offer(name, f"file:///{name}") for name in names]
    both = replace(places, links=(WheelListing("links", lambda: offers),), index=WheelListing("pypi", lambda: offers))
    _, links, index, _ = find(SOURCE, both, clean)
    assert links.filename == "demo-0.9-py3-none-any.whl"
    golden.check(links.reason, index.reason)
    assert index.where == "pypi"


def test_a_machines_find_links_directories_are_places(store: Store, tmp_path: Path, golden: Golden) -> None:
    path = wheel(tmp_path / "links")
    env = {
        "HOME": str(tmp_path),
        "PIP_FIND_LINKS": f"{path.parent} {tmp_path / 'gone'}",
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
    }
    settings = Settings.from_environment(env)
    with Client(settings) as client:
        index = index_listing("pypi", "demo", settings, client)
        requested = candidate_places(Catalogue(), index, settings, store, client, Quiet())
        found = find(SOURCE, requested, clean)
    assert [(each.place, each.fits) for each in found] == [
        (WheelSource.WHEELHOUSE, False), (WheelSource.LINKS, True), (WheelSource.LINKS, False),
        (WheelSource.INDEX, False), (WheelSource.SOURCE, True),
    ]  # fmt: skip
    golden.check(found[3].reason)


def test_the_teams_wheelhouse_is_asked_under_the_builds_key(store: Store, tmp_path: Path, golden: Golden) -> None:
    registry = Writable()
    env = {"HOME": str(tmp_path), "IMAGEGEN_WHEELHOUSE": f"{registry.host}/team/wheels", "PIP_CONFIG_FILE": os.devnull}
    settings = Settings.from_environment(env)
    try:
        with Client(settings) as client:
            requested = candidate_places(Catalogue(), None, settings, store, client, Quiet())
            assert verdicts(find(SOURCE, requested, clean)) == [
                ("wheelhouse", False), ("team wheelhouse", False), ("source build", True)
            ]  # fmt: skip
            elsewhere = Store(tmp_path / "elsewhere")
            wheel = built(elsewhere)
            RemoteWheelhouse(parse(env["IMAGEGEN_WHEELHOUSE"]), client, settings).push(wheel, elsewhere, Quiet())
            found = choice(find(replace(SOURCE, key=wheel.key), requested, clean))
    finally:
        registry.close()
    assert (found.place, found.filename, found.sha256) == (WheelSource.TEAM, wheel.filename, wheel.sha256)
    assert found.where == f"{registry.host}/team/wheels"
    with Client(settings, attempts=1) as client:
        requested = candidate_places(Catalogue(), None, settings, store, client, Quiet())
        gone = find(replace(SOURCE, key=wheel.key), requested, clean)[1]
    assert (gone.place, gone.fits) == (WheelSource.TEAM, False)
    golden.check(gone.reason)
