"""The catalogue of prebuilt wheels: what is shipped, what it offers a cell, and what is wrong with a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.data import shipped
from imagegen.core.errors import MatrixErrors
from imagegen.core.wheel_target import WheelTarget
from imagegen.wheels.catalogue import load
from imagegen.wheels.naming import ParsedWheelName, mismatch, read
from imagegen.wheels.offers import Candidate, Offer
from tests.support.golden import Golden
from tests.support.required_wheels import NEED

HEAD = """\
catalogue:
  demo:
    package: demo
    description: Demo.
    source: Tests.
    date: "2026-11-21"
"""
FILE = "    files: [{{url: '{}', sha256: {}, size: '1'}}]"
OLD = WheelTarget("3.10", "x86_64", 35)
ON_OLD = replace(
    NEED,
    version="2.7.4.post1",
    python="3.10",
    platform=OLD.uv_platform,
    ranks=OLD.ranks,
    torch="2.6.0+cu124",
    cuda="12.4",
)


def test_every_shipped_file_is_known_by_its_hash_and_no_hash_twice() -> None:
    files = load([shipped("wheels")]).files
    assert files
    hashes = [each.offer.sha256 for each in files]
    assert len(set(hashes)) == len(hashes)
    assert len({each.offer.url for each in files}) == len(files)
    for each in files:
        parsed = read(each.offer.filename)
        assert parsed and parsed.torch and parsed.cuda and each.offer.size, each.offer.filename


def test_the_flagships_torch_has_a_catalogued_wheel_and_no_official_one(golden: Golden) -> None:
    found = load([shipped("wheels")]).offers(NEED)
    fitting = [each for each in found if isinstance(each, Offer) and mismatch(parse(each), NEED) is None]
    assert [each.filename for each in fitting] == [
        "flash_attn-2.8.3+cu130torch2.11-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl"
    ]
    (official,) = [each for each in found if isinstance(each, Candidate)]
    assert not official.fits
    golden.check(official.reason)


def test_an_official_wheels_address_follows_from_the_cell() -> None:
    (found,) = load([shipped("wheels")]).offers(ON_OLD)
    assert isinstance(found, Offer)
    assert found.sha256 is None
    assert found.filename == "flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"
    assert found.url.startswith("https://github.com/Dao-AILab/flash-attention/releases/download/v2.7.4.post1/")
    assert mismatch(parse(found), ON_OLD) is None


@pytest.mark.parametrize("torch", ["2.11.0", "2.11.0+cu130"])
def test_transformer_engine_asks_for_torch_as_it_calls_itself(torch: str) -> None:
    need = replace(NEED, package="transformer-engine-torch", version="2.20.2", torch=torch)
    (found,) = load([shipped("wheels")]).offers(need)
    assert isinstance(found, Offer)
    name = "transformer_engine_torch-2.20.2+cu13torch2.11.0+cu130cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
    assert found.filename == name
    assert found.url.endswith(name.replace("+", "%2B"))
    assert mismatch(parse(found), need) is None


@pytest.mark.parametrize(
    ("need", "why"),
    [
        (replace(ON_OLD, python="3.14"), "the wheels of this release are for Python 3.9 to 3.13, the cell has 3.14"),
        (replace(ON_OLD, cuda="13.0"), "the wheels of this release are for CUDA 12, the cell has 13"),
        (replace(ON_OLD, torch=None), "its wheels are for torch and CUDA, the cell has none"),
        (replace(ON_OLD, cuda=None), "its wheels are for torch and CUDA, the cell has none"),
    ],
)
def test_what_a_release_has_nothing_for_is_said(need: object, why: str) -> None:
    (found,) = load([shipped("wheels")]).offers(need)  # type: ignore[arg-type]
    assert isinstance(found, Candidate)
    assert found.reason == why


def test_its_versions_are_reported_oldest_first() -> None:
    known = load([shipped("wheels")])
    assert known.versions("flash-attn") == ("2.7.4.post1", "2.8.1", "2.8.3", "2.8.3.post1")
    assert known.versions("numpy") == ()


def test_a_project_adds_files_of_its_own(tmp_path: Path) -> None:
    own = tmp_path / "wheels"
    write(
        own,
        f"""\
    files:
      - url: "https://example.org/demo-1.0%2Bcu130torch2.11-cp311-cp311-linux_x86_64.whl"
        sha256: {"a" * 64}
        size: "10"
""",
    )
    known = load([shipped("wheels"), own, tmp_path / "absent"])
    (found,) = known.offers(replace(NEED, package="demo", version="1.0"))
    assert found == Offer(
        "demo-1.0+cu130torch2.11-cp311-cp311-linux_x86_64.whl",
        "https://example.org/demo-1.0%2Bcu130torch2.11-cp311-cp311-linux_x86_64.whl",
        "a" * 64,
        10,
    )


def test_what_a_project_repeats_is_not_known_twice() -> None:
    assert load([shipped("wheels"), shipped("wheels")]) == load([shipped("wheels")])


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("    files: [{url: 'https://example.org/demo-1-py3-none-any.whl', size: '1'}]", '"sha256" is missing'),
        (FILE.format("https://example.org/other-1-py3-none-any.whl", "a" * 64), "not the address of a wheel of demo"),
        (FILE.format("https://example.org/demo.tar.gz", "a" * 64), "not the address of a wheel of demo"),
        (FILE.format("https://example.org/demo-1-py3-none-any.whl", "A" * 64), "sha256: must be"),
        (FILE.format("file:///demo-1-py3-none-any.whl", "a" * 64), "url: must be an https address"),
        # A lock takes none of these, and would say so after the wheel was fetched and audited.
        (FILE.format("http://example.org/demo-1-py3-none-any.whl", "a" * 64), "url: must be an https address"),
        ("    releases: {'1.0': {url: 'http://example.org/{torch}.whl'}}", "url: must be an https address"),
        ("    releases: {'1.0': {url: 'https://example.org/demo-1.0+{gpu}.whl'}}", "unknown placeholder {gpu}"),
        ("    releases: {'1.0': {url: 'https://example.org/demo-1.0+{torch}.zip'}}", "must end in .whl"),
        ("    releases: {'1.0': {url: 'https://example.org/{torch.whl'}}", "expected '}'"),
        ("    releases: {'one': {url: 'https://example.org/{torch}.whl'}}", "not a PEP 440 version"),
        ("    releases: {'1.0': {url: 'https://example.org/{torch}.whl', tourch: ['2.8']}}", 'unknown key "tourch"'),
        ("    releases: {1.0: {url: 'https://example.org/{torch}.whl'}}", "needs quotes"),
        ("    releases: [}", "not valid YAML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_with_its_line(tmp_path: Path, body: str, what: str) -> None:
    path = write(tmp_path, body)
    with pytest.raises(MatrixErrors) as raised:
        load([tmp_path])
    (error,) = raised.value.errors
    assert what in error.what
    assert str(error.where).startswith(f"{path}:7")


def test_a_file_that_cannot_be_read_or_is_no_mapping_is_reported(tmp_path: Path) -> None:
    (tmp_path / "catalogue").mkdir()
    (tmp_path / "catalogue" / "a.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "catalogue" / "b.yaml").write_text("- one\n")
    with pytest.raises(MatrixErrors) as raised:
        load([tmp_path])
    assert len(raised.value.errors) == 2


def parse(offer: Offer) -> ParsedWheelName:
    parsed = read(offer.filename)
    assert parsed
    return parsed


def write(directory: Path, body: str) -> Path:
    """A catalogue of one entry; `body` begins at line 7."""
    (directory / "catalogue").mkdir(parents=True)
    path = directory / "catalogue" / "demo.yaml"
    head = (
        "catalogue:\n  demo:\n    package: demo\n    description: Demo.\n    source: Tests.\n    date: '2026-11-21'\n"
    )
    path.write_text(head + body)
    return path
