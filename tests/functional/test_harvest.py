"""Harvesting from an index on loopback: what is read, what is left out, and what a hostile index gets for an answer."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.compat.metadata import PackageReleases, ReleaseMetadata
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, NotFoundError, wheel_metadata
from imagegen.core.net.package_index import IndexLink
from imagegen.index_metadata.releases import cuda_of
from tests.support.golden import Golden
from tests.support.package_index import Index, Offer, archive, metadata
from tools.harvest.metadata import HarvestErrors, harvest

TODAY = "2026-11-21"
LINUX = "cp312-cp312-manylinux_2_28_x86_64"


@pytest.fixture
def settings(index: Index, tmp_path: Path) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path), "PIP_INDEX_URL": index.url})


def requested(name: str = "pack", since: str | None = None, *extras: str) -> PackageReleases:
    return PackageReleases(name, "pypi", None, since, extras, {})


def one(settings: Settings, package: PackageReleases) -> PackageReleases:
    (found,) = harvest([package], settings, TODAY)
    return found


def why(settings: Settings, package: PackageReleases) -> str:
    with pytest.raises(HarvestErrors) as caught:
        list(harvest([package], settings, TODAY))
    assert f"{package.name} is not harvested" in str(caught.value)
    return str(caught.value)


def offer(index: Index, version: str, *requires: str, tags: str = LINUX, more: str = "", **said: str) -> Offer:
    """A wheel of `pack` with its METADATA beside it."""
    filename = f"pack-{version}-{tags}.whl"
    index.beside(filename, metadata("pack", version.partition("-")[0], *requires, more=more))
    return Offer(filename, **said)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_release_is_what_page_and_metadata_say(index: Index, settings: Settings, *, as_json: bool) -> None:
    requires = (
        "Torch == 2.11.0", 'numpy>=2; python_version >= "3.10"', 'pywin32; sys_platform == "win32"',
        "transformer_engine[core_cu13, PyTorch]", 'ray[cgraph]>=2.48; extra == "serve_all"', 'pytest; extra == "test"',
    )  # fmt: skip
    wheel = offer(index, "1.2", *requires)
    aarch64 = Offer(wheel.filename.replace("x86_64", "aarch64"), uploaded="2026-11-19T00:00:00Z")
    old = offer(index, "1.1", yanked="broken")
    index.page("pack", wheel, aarch64, old, Offer("pack-1.2.tar.gz"), Offer("pack-1.0.zip"), as_json=as_json)
    found = one(settings, requested("pack", "1.1", "serve-all"))
    assert found == PackageReleases(
        "pack",
        "pypi",
        TODAY,
        "1.1",
        ("serve-all",),
        {
            "1.2": ReleaseMetadata(
                "1.2",
                "2026-11-19",
                ">=3.10",
                ('numpy>=2; python_version >= "3.10"', "torch==2.11.0", "transformer-engine[core-cu13,pytorch]"),
                ("cp312-cp312-manylinux_2_28_aarch64", LINUX),
                {"serve-all": ('ray[cgraph]>=2.48; extra == "serve-all"',)},
            ),
            "1.1": ReleaseMetadata("1.1", "2026-11-20", ">=3.10", (), (LINUX,), yanked=True),
        },
    )
    assert list(found.releases) == ["1.2", "1.1"]


def test_a_release_with_a_file_that_is_not_yanked_is_not(index: Index, settings: Settings) -> None:
    index.page("pack", offer(index, "1.0", yanked=""), Offer("pack-1.0.tar.gz"))
    assert not one(settings, requested()).releases["1.0"].yanked


def test_what_an_sdist_needs_is_not_known(index: Index, settings: Settings) -> None:
    index.page("pack", Offer("pack-1.0.tar.gz", python=">=3.9"), Offer("pack-1.0-cp312-cp312-win_amd64.whl"))
    found = one(settings, requested()).releases["1.0"]
    assert (found.requires, found.python, found.wheels) == (None, ">=3.9", ())
    assert not [path for _, path, _ in index.requested if path.startswith("/files/")]


def test_what_linux_cannot_install_is_left_out(index: Index, settings: Settings) -> None:
    elsewhere = ("cp312-cp312-win_amd64", "cp312-cp312-macosx_11_0_arm64", "cp312-cp312-manylinux_2_28_s390x")
    none = ("cp312-cp312-musllinux_1_2_x86_64", "pp311-pypy311_pp73-manylinux_2_28_x86_64")
    names = [f"pack-2.0-{tags}.whl" for tags in (*elsewhere, *none)]
    foreign = [Offer("other-3.0-py3-none-any.whl"), Offer("pack-3.0.exe"), Offer("pack-3.0-py3.12.egg")]
    index.page("pack", offer(index, "1.0"), *map(Offer, names), *foreign)
    assert list(one(settings, requested()).releases) == ["1.0"]


def test_pre_releases_count_only_where_there_is_nothing_else(index: Index, settings: Settings) -> None:
    all_of_it = [offer(index, version) for version in ("0.0.1", "4.0.0b1", "4.0.0b2.dev1", "4.0.0.post1", "4.0.0")]
    index.page("pack", *all_of_it)
    assert list(one(settings, requested()).releases) == ["4.0.0.post1", "4.0.0", "0.0.1"]
    index.page("pack", *all_of_it[:3])
    assert list(one(settings, requested()).releases) == ["0.0.1"]
    assert list(one(settings, requested("pack", "4.0.0b1")).releases) == ["4.0.0b2.dev1", "4.0.0b1"]


def test_a_pre_release_that_another_package_requires_is_kept(index: Index, settings: Settings) -> None:
    index.page("pack", *(offer(index, version) for version in ("1.0", "1.1rc1", "1.1rc2", "1.1", "1.2")))
    (found,) = harvest([requested()], settings, TODAY, {"pack": {Version("1.1rc2")}, "other": {Version("1.1rc1")}})
    assert list(found.releases) == ["1.2", "1.1", "1.1rc2", "1.0"]


def test_an_index_without_the_release_empties_no_file(index: Index, settings: Settings, golden: Golden) -> None:
    index.page("pack", Offer("pack-1.0-cp312-cp312-win_amd64.whl"))
    golden.check(why(settings, requested()))
    index.page("pack", offer(index, "1.0"))
    golden.check(why(settings, requested("pack", "2")))


@pytest.mark.parametrize(
    ("best", "others"),
    [
        (LINUX, ["cp313-cp313-manylinux_2_28_aarch64", "cp311-cp311-manylinux_2_28_x86_64", "py3-none-any"]),
        (f"2-{LINUX}", [LINUX, f"1-{LINUX}"]),  # rebuilt
        (LINUX, ["cp313-cp313t-manylinux_2_28_x86_64"]),
        ("py3-none-any", ["cp313-cp313-manylinux_2_28_aarch64"]),
    ],
)
def test_one_wheel_of_a_release_is_asked(index: Index, settings: Settings, best: str, others: list[str]) -> None:
    offers = [offer(index, "1.0", "wrong", tags=tags) for tags in others] + [offer(index, "1.0", "right", tags=best)]
    index.page("pack", *offers)
    assert one(settings, requested()).releases["1.0"].requires == ("right",)
    assert [path for _, path, _ in index.requested if path.endswith(".metadata")] == [
        f"/files/pack-1.0-{best}.whl.metadata"
    ]


@pytest.mark.parametrize(
    ("requires", "cuda"),
    [
        (["nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'"], "12.8"),
        (["cuda-toolkit[cublas,cudart]==13.0.2; platform_system == 'Linux'"], "13.0"),
        (["nvidia_cuda_runtime==13.2.*"], "13.2"),
        (["nvidia-cuda-runtime-cu12>=12.1", "nvidia-cudnn-cu13==9.1.0", "torch==2.11.0"], None),
        (["nvidia-cuda-runtime-cu12==12"], None),
    ],
)
def test_the_cuda_of_a_build_is_that_of_the_runtime_it_pins(requires: list[str], cuda: str | None) -> None:
    assert cuda_of(requires) == cuda


# Without METADATA beside the wheel.


def test_metadata_is_read_off_a_wheel_in_pieces(index: Index, settings: Settings) -> None:
    filename = f"pack-1.0-{LINUX}.whl"
    index.wheel(filename, archive("pack", "1.0", metadata("pack", "1.0", "torch==2.11.0"), before=2_000_000))
    index.page("pack", Offer(filename))
    assert one(settings, requested()).releases["1.0"].requires == ("torch==2.11.0",)
    gets = [required for method, path, required in index.requested if method == "GET" and path.endswith(".whl")]
    assert gets
    assert all(required.startswith("bytes=") for required in gets)
    assert sum(int(end) - int(start) for start, end in (required[6:].split("-") for required in gets)) < 200_000


def test_a_server_without_ranges_does_not_send_gigabytes(index: Index, settings: Settings, golden: Golden) -> None:
    filename = f"pack-1.0-{LINUX}.whl"
    index.wheel(filename, archive("pack", "1.0", metadata("pack", "1.0"), before=100_000))
    index.page("pack", Offer(filename))
    index.ranges = False
    golden.check(why(settings, requested()))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it points before its beginning"),
        (b"<html>not found</html>" * 9, "File is not a zip file"),
        (archive("pack", "1.0", b"x")[:-9], "File is not a zip file"),
        (archive("pack", "1.0", b"x").replace(b"METADATA", b"METADATO"), "it holds no METADATA"),
        (archive("pack", "1.0", b"Name: pack\n" * 400_000), "longer than 4 MiB"),
        # A directory said to have 9 MiB: its size stands 10 bytes before the end.
        (archive("pack", "1.0", b"x", before=9 << 20)[:-10] + b"\x00\x00\x90\x00" + b"\x00" * 6, "more than 8 MiB"),
    ],
    ids=["empty", "html", "cut", "without", "bomb", "directory"],
)
def test_an_archive_that_is_none_is_an_error(index: Index, settings: Settings, data: bytes, said: str) -> None:
    filename = f"pack-1.0-{LINUX}.whl"
    index.wheel(filename, data)
    index.page("pack", Offer(filename))
    text = why(settings, requested())
    assert filename in text
    assert said in text


class Bytes(Client):
    """A client that knows one file, without a network."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def get(self, url: str, *, accept: str | None = None) -> bytes:
        raise NotFoundError(url)

    def size(self, url: str) -> int:
        return len(self.data)

    def piece(self, url: str, start: int, length: int) -> bytes:
        assert start >= 0
        assert start + length <= len(self.data)
        return self.data[start : start + length]


WHEEL = archive("pack", "1.0", metadata("pack", "1.0", "torch==2.11.0"), before=640)


@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_a_damaged_archive_is_read_right_or_refused(chance: random.Random, changes: int) -> None:
    data = bytearray(WHEEL)
    for _ in range(changes):  # most of all near the end, where its directory is
        data[len(data) - 1 - int(chance.random() ** 3 * (len(data) - 1))] = chance.randrange(256)
    link = IndexLink(f"pack-1.0-{LINUX}.whl", "https://files.example/pack.whl", None)
    try:
        found = wheel_metadata.fetch(Bytes(bytes(data)), link, "pack", "1.0")
    except FetchError:
        return
    assert found == wheel_metadata.Metadata(("torch==2.11.0",), ">=3.10")


# Hostile metadata.


@given(st.binary(max_size=300))
def test_any_metadata_is_read_or_refused(raw: bytes) -> None:
    for each in (raw, b"Name: pack\nVersion: 1.0\n" + raw):
        try:
            found = wheel_metadata.parse(each, "pack", "1.0")
        except ValueError:
            continue
        assert isinstance(found, wheel_metadata.Metadata)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (metadata("pack", "1.0", "numpy >== 2"), '"numpy >== 2" is not a PEP 508 requirement'),
        (metadata("pack", "1.0", "numpy; " + "(" * 900 + "extra == 'x'" + ")" * 900), "is not a PEP 508 requirement"),
        (metadata("pack", "1.0", "n" * 3000), "longer than 2000 characters"),
        (metadata("pack", "1.0", *(f"n{i}" for i in range(2001))), "it has 2001 requirements"),
        (metadata("other", "1.0"), "it belongs to other 1.0"),
        (metadata("pack", "2.0"), "it belongs to pack 2.0"),
        (metadata("pack", "one"), "one"),
        (metadata("p!", "1.0"), "name is invalid"),
        (metadata("pack", "1.0", more="Name: pack"), "more than one Name"),
        (metadata("pack", "1.0", more="Requires-Python: >=3.11"), "more than one Requires-Python"),
        (metadata("pack", "1.0", python="three"), 'its Requires-Python is "three"'),
        (b"<html><body>Sign in</body></html>", "it has no Name"),
        (b"", "it has no Name"),
        (metadata("pack", "1.0").replace(b"Metadata", b"\n\nMetadata"), "it has no Name"),
        (metadata("pack", "1.0", "num\u00fcpy").decode().encode("latin-1"), "is not a PEP 508 requirement"),
        (metadata("pack", "1.0") + b"x" * (5 << 20), "longer than 4 MiB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metadata_that_is_none_is_an_error_and_others_go_on(
    index: Index, settings: Settings, raw: bytes, said: str, golden: Golden
) -> None:
    filename = f"pack-1.0-{LINUX}.whl"
    index.beside(filename, raw)
    index.page("pack", Offer(filename))
    index.beside("good-1.0-py3-none-any.whl", metadata("good", "1.0"))
    index.page("good", Offer("good-1.0-py3-none-any.whl"))
    found: list[str] = []
    with pytest.raises(HarvestErrors) as caught:
        found.extend(
            each.name for each in harvest([requested("pack"), requested("good"), requested("absent")], settings, TODAY)
        )
    assert found == ["good"]
    golden.check(caught.value)
    assert filename in str(caught.value)
    assert said in str(caught.value)


def test_latin_1_in_an_unread_field_is_no_fault(index: Index, settings: Settings) -> None:
    filename = f"pack-1.0-{LINUX}.whl"
    index.beside(filename, metadata("pack", "1.0", "numpy", more="Author: J\u00fcrgen").decode().encode("latin-1"))
    index.page("pack", Offer(filename))
    assert one(settings, requested()).releases["1.0"].requires == ("numpy",)


def test_a_file_beside_the_wheel_is_the_one_that_the_index_names(
    index: Index, settings: Settings, golden: Golden
) -> None:
    filename = f"pack-1.0-{LINUX}.whl"
    sha256 = index.beside(filename, metadata("pack", "1.0"))
    index.page("pack", Offer(filename, metadata_sha256=sha256))
    assert one(settings, requested()).releases["1.0"].requires == ()
    index.page("pack", Offer(filename, metadata_sha256="0" * 64))
    golden.check(why(settings, requested()))


@pytest.mark.parametrize(
    "page",
    [b"", b"{", b'{"files": 3}', b"not html", b'{"meta": {"api-version": "9.0"}, "name": "pack", "files": []}'],
)
def test_a_page_that_is_none_is_an_error(index: Index, settings: Settings, page: bytes) -> None:
    index.pages["/simple/pack/"] = page
    assert "pack" in why(settings, requested())


def test_upload_times_that_are_none_are_not_known(index: Index, settings: Settings) -> None:
    times = ("", "yesterday", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")
    index.page("pack", *(offer(index, f"1.{n}", uploaded=time) for n, time in enumerate(times)))
    assert {each.uploaded for each in one(settings, requested()).releases.values()} == {None}


def test_names_whose_tags_would_fill_the_memory_are_no_files(index: Index, settings: Settings) -> None:
    many = ".".join(f"p{n}" for n in range(400))
    index.page("pack", offer(index, "1.0"), Offer(f"pack-2.0-{many}-{many}-{many}.whl"))
    assert list(one(settings, requested()).releases) == ["1.0"]


def test_an_index_without_an_address_is_an_error(settings: Settings, golden: Golden) -> None:
    text = why(settings, replace(requested(), index="nowhere"))
    golden.check(text)
    assert "IMAGEGEN_INDEX_NOWHERE" in text
