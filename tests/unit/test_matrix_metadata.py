"""The files of harvested metadata: the same facts give the same bytes, and whatever else a file holds is an error."""

from __future__ import annotations

import contextlib
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.compat import harvested, metadata
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata, load
from imagegen.compat.metadata_file import dumps, parse
from imagegen.core.data import shipped
from imagegen.core.errors import MatrixError
from tests.support.errors import raises
from tools.harvest.metadata import pinned_prereleases

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,4})?", fullmatch=True)
VERSIONS = st.builds(
    lambda parts, post: ".".join(map(str, parts)) + (f".post{post}" if post else ""),
    st.lists(st.integers(0, 300), min_size=1, max_size=4),
    st.integers(0, 3),
)
SPECIFIERS = st.builds("{}{}".format, st.sampled_from(["==", ">=", "<", "!=", ""]), VERSIONS).filter(
    lambda text: not text[:1].isdigit()
)
REQUIREMENTS = st.lists(st.builds("{}{}".format, NAMES, SPECIFIERS), max_size=5, unique=True).map(tuple)
DAYS = st.dates().map(str)
TAGS = st.sampled_from(
    ["py3-none-any", "cp38-abi3-manylinux_2_28_x86_64", "cp310-cp310-manylinux1_x86_64.linux_x86_64"]
)
RELEASES = st.builds(
    ReleaseMetadata,
    version=VERSIONS,
    uploaded=st.none() | DAYS,
    python=st.just("") | SPECIFIERS,
    requires=st.none() | REQUIREMENTS,
    wheels=st.lists(TAGS, unique=True).map(tuple),
    extras=st.dictionaries(NAMES, REQUIREMENTS, max_size=2),
    cuda=st.sampled_from([None, "12.8", "13.0"]),
    yanked=st.booleans(),
)
PACKAGES = st.builds(
    PackageReleases,
    name=NAMES,
    index=st.sampled_from(["pypi", "pytorch-cu128"]),
    read=st.none() | DAYS,
    since=st.none() | VERSIONS,
    extras=st.lists(NAMES, unique=True).map(tuple),
    releases=st.lists(RELEASES, max_size=4, unique_by=lambda each: Version(each.version)).map(
        lambda found: {each.version: each for each in found}
    ),
)
SMALL = {"package": "torch", "index": "pypi", "versions": {"2.11.0": {"requires": ["sympy>=1"], "wheels": []}}}


def mixed(package: PackageReleases, chance: random.Random) -> PackageReleases:
    """The same facts in another order."""

    def mix(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(chance.sample(texts, len(texts)))

    releases = {
        name: replace(
            each,
            requires=each.requires if each.requires is None else mix(each.requires),
            wheels=mix(each.wheels),
            extras={extra: mix(each.extras[extra]) for extra in mix(tuple(each.extras))},
        )
        for name, each in chance.sample(list(package.releases.items()), len(package.releases))
    }
    return replace(package, releases=releases, extras=mix(package.extras))


@given(PACKAGES, st.randoms(use_true_random=False))
def test_the_same_facts_give_the_same_bytes_and_the_bytes_the_facts(
    package: PackageReleases, chance: random.Random
) -> None:
    raw = dumps(package)
    read = parse(raw)
    assert dumps(read) == raw
    assert read == parse(dumps(mixed(package, chance)))
    for name, each in package.releases.items():
        found = read.releases[name]
        assert (found.requires is None) is (each.requires is None)
        assert set(found.requires or ()) == set(each.requires or ())
        assert {extra: set(texts) for extra, texts in found.extras.items()} == {
            extra: set(texts) for extra, texts in each.extras.items()
        }
        assert replace(found, requires=(), wheels=(), extras={}) == replace(each, requires=(), wheels=(), extras={})


@given(PACKAGES)
def test_a_release_is_a_line_and_the_newest_comes_first(package: PackageReleases) -> None:
    lines = dumps(package).decode().splitlines()
    keys = [line.split('"')[1] for line in lines if line.startswith("    ")]
    assert keys == [str(each) for each in sorted(map(Version, package.releases), reverse=True)]
    assert list(parse(dumps(package)).releases) == keys


def test_a_new_release_is_one_new_line() -> None:
    release = ReleaseMetadata("2.11.0", "2026-03-23", ">=3.10", ("sympy>=1.13.3",), ("py3-none-any",), cuda="13.0")
    old = PackageReleases("torch", "pypi", "2026-11-21", "2.4", (), {"2.11.0": release})
    new = replace(old, releases={**old.releases, "2.12.0": replace(release, version="2.12.0")})
    before, after = dumps(old).splitlines(), dumps(new).splitlines()
    assert [line for line in before if line not in after] == []
    assert len(after) == len(before) + 1


@given(st.binary(max_size=200))
def test_any_bytes_are_a_package_or_an_error(raw: bytes) -> None:
    with pytest.raises(MatrixError):
        parse(raw, "torch.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("requires", "wheels", "extras", "uploaded", "python", "cuda", "yanked", "more")
PLACES = st.sampled_from(
    [(key,) for key in ("package", "index", "read", "since", "extras", "versions", "more")]
    + [("versions", "2.11.0"), *(("versions", "2.11.0", key) for key in KEYS)]
)


@given(PLACES, JSON)
def test_any_value_anywhere_is_taken_or_an_error(place: tuple[str, ...], value: object) -> None:
    table = json.loads(json.dumps(SMALL))
    inner = table
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with contextlib.suppress(MatrixError):
        read = parse(json.dumps(table).encode())
        assert parse(dumps(read)) == read


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{\n  "package": "torch",\n', "torch.json:3:1: this is not valid JSON"),
        (b"\xff", "it is not UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"package": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"package": "torch", "package": "torch"}', '"package" is given twice'),
        (b'{\n"package": "torch",\n"index": "pypi",\n"versions": {}}', "it is about torch"),
        (b'{\n"package": "numpy",\n"indes": "pypi",\n"versions": {}}', "torch.json:3"),
        (b'{"package": "numpy", "index": "pypi",\n"versions": {\n"1.0": {"requires": ["!!"]}}}', "torch.json:3"),
        (b'{"package": "numpy", "index": "pypi", "versions": {"1.0": {"requires": ["!!"]}}}', '"!!" is not a PEP 508'),
        (b'{"package": "numpy", "index": "pypi", "versions": {"1.0.POST1": {"requires": []}}}', '"1.0.post1"'),
        (b'{"package": "numpy", "index": "pypi", "versions": {"one": {"requires": []}}}', '"one" is not a PEP 440'),
        (b'{"package": "Num.Py", "index": "pypi", "versions": {}}', "package: String should match"),
        (b'{"package": "numpy", "index": "pypi", "read": "2026-13-01", "versions": {}}', "read: "),
        (b'{"package": "numpy", "index": "pypi", "read": "20261101", "versions": {}}', "read: "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_is_said_with_its_place(raw: bytes, said: str) -> None:
    with pytest.raises(MatrixError) as caught:
        parse(raw, "torch.json", "numpy")
    assert said in str(caught.value)
    assert "`python -m tools.harvest torch`" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("requires", ["x; " + "(" * 900 + "python_version > '3'" + ")" * 900], "is not a PEP 508 requirement"),
        ("requires", ["x" * 3000], "longer than 2000 characters"),
        ("wheels", ["-".join([".".join("p" * 300)] * 3)], "is not the tag of a wheel"),  # 27 million tags
        ("wheels", ["any"], "is not the tag of a wheel"),
        ("python", "three", "is not a PEP 440 version specifier"),
        ("cuda", "13", "cuda"),
        ("uploaded", "yesterday", "uploaded"),
    ],
)
def test_a_value_that_is_none_is_named(key: str, value: object, said: str) -> None:
    table = {**SMALL, "versions": {"2.11.0": {"requires": [], key: value}}}
    with pytest.raises(MatrixError) as caught:
        parse(json.dumps(table).encode())
    assert said in str(caught.value)
    assert f"versions > 2.11.0 > {key}" in str(caught.value)


def test_the_projects_file_counts_before_the_shipped_one(tmp_path: Path) -> None:
    ours = PackageReleases("torch", "pypi", "2026-11-21", None, (), {})
    theirs = replace(ours, read="2026-01-01")
    harvested.write(metadata.path_of(tmp_path / "shipped", "torch"), dumps(theirs))
    directories = [tmp_path / "shipped", tmp_path / "own"]
    assert load(directories, "torch") == theirs
    harvested.write(metadata.path_of(tmp_path / "own", "torch"), dumps(ours))
    assert load(directories, "torch") == ours
    assert load(directories, "numpy") is None
    assert metadata.names(directories) == ["torch"]
    assert [path.name for path in (tmp_path / "own" / "metadata").iterdir()] == ["torch.json"]


def test_what_cannot_be_read_or_written_is_an_error(tmp_path: Path) -> None:
    path = metadata.path_of(tmp_path, "torch")
    path.parent.mkdir()
    os.mkfifo(path)
    with raises("matrix-unreadable"):
        load([tmp_path], "torch")
    with raises("matrix-unwritable"):
        harvested.write(path / "torch.json", dumps(PackageReleases("torch", "pypi", None, None, (), {})))


SHIPPED = metadata.names([shipped("matrices")])


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_is_as_it_was_written(name: str) -> None:
    path = metadata.path_of(shipped("matrices"), name)
    package = parse(path.read_bytes(), path, name)
    assert dumps(package) == path.read_bytes()
    assert package.read
    assert package.releases


def test_the_shipped_files_stay_small() -> None:
    sizes = {name: metadata.path_of(shipped("matrices"), name).stat().st_size for name in SHIPPED}
    assert sum(sizes.values()) < 2_500_000
    assert max(sizes.values()) < 250_000


def test_pre_releases_that_are_required_exactly_are_found() -> None:
    requires = ("Torch_X==2.0rc1; python_version > '3.9'", "numpy==2.*", "vllm>=0.1rc1", "ray==2.0")
    release = ReleaseMetadata("1.0", None, "", requires, (), {"all": ("transformers==5.0.0rc0",)})
    package = PackageReleases("pack", "pypi", None, None, (), {"1.0": release})
    assert pinned_prereleases([package]) == {
        "torch-x": {Version("2.0rc1")},
        "transformers": {Version("5.0.0rc0")},
    }


# Read off the wheels themselves: what each of PyPI's torch wheels was compiled with.
CUDA = {
    "2.6": "12.4", "2.7": "12.6", "2.8": "12.8", "2.9": "12.8", "2.10": "12.8", "2.11": "13.0", "2.12": "13.0",
    "2.13": "13.0", "2.14": "13.0", "2.15": "13.2",
}  # fmt: skip


@pytest.mark.parametrize(("minor", "cuda"), CUDA.items())
def test_torchs_cuda_is_the_one_that_its_wheels_were_built_with(minor: str, cuda: str) -> None:
    torch = load([shipped("matrices")], "torch")
    assert torch
    found = {each.cuda for version, each in torch.releases.items() if version.startswith(f"{minor}.")}
    assert found == {cuda}


@pytest.mark.parametrize(
    ("package", "version", "requires"),
    [
        ("vllm", "0.8.5", {"torch==2.6.0", "transformers>=4.51.1", "opencv-python-headless>=4.11.0"}),
        ("vllm", "0.24.0", {"torch==2.11.0", "flashinfer-python==0.6.12", "flashinfer-cubin==0.6.12"}),
        ("sglang", "0.5.14", {"torch==2.11.0", "transformers==5.8.1", "sglang-kernel==0.4.4"}),
        ("megatron-core", "0.15.3", {"numpy<2.0.0", "torch>=2.6.0"}),
        ("xformers", "0.0.33.post1", {"torch==2.9.0"}),
        ("verl", "0.9.1", {"numpy>=2.0.0", "transformers!=5.6.0,<5.11,>=5.5.3"}),
    ],
)
def test_pins_that_were_read_off_the_packages_are_there(package: str, version: str, requires: set[str]) -> None:
    found = load([shipped("matrices")], package)
    assert found
    assert requires <= set(found.releases[version].requires or ())


def test_what_only_an_sdist_could_say_is_not_known() -> None:
    found = load([shipped("matrices")], "transformer-engine-torch")
    assert found
    assert found.releases["2.16.1"].requires is None
    assert found.releases["2.16.1"].wheels == ()
