"""tools.harvest --scan over an index on loopback: what is read, what is skipped, and what an interruption leaves."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from imagegen.compat import wheel_scans as scans
from imagegen.compat.wheel_scans import PackageScans
from imagegen.core.errors import MatrixError
from imagegen.core.store import Store
from tests.support.command_line import Run, runner
from tests.support.elf_files import make_elf
from tests.support.golden import Golden
from tests.support.package_index import Index, Offer
from tests.support.wheels import make_wheel
from tools.harvest import scans_file
from tools.harvest.__main__ import command

MODULE = make_elf(["libtorch.so", "libcudart.so.13"], verneed={"libc.so.6": ["GLIBC_2.28"]}, filling=300_000)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, index: Index) -> Run:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    project = tmp_path / "project"
    project.mkdir()
    return runner(monkeypatch, capsys, project, command)


def offer(index: Index, directory: Path, *versions: str, sha256: str | None = None, module: bytes = MODULE) -> None:
    """Serve a wheel of pack for each version; `sha256` is what the index promises where that is not the truth."""
    offers = []
    for version in versions:
        filename = f"pack-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
        if module is not MODULE or f"/files/{filename}" not in index.files:
            info = f"pack-{version}.dist-info"
            wheel = make_wheel(directory, {"pack/_C.abi3.so": module}, filename=filename, info=info)
            index.wheel(filename, wheel.read_bytes())
        served = index.files[f"/files/{filename}"]
        offers.append(Offer(filename, sha256=sha256 or hashlib.sha256(served).hexdigest()))
    index.page("pack", *offers)


def scanned(tmp_path: Path) -> PackageScans | None:
    return scans.load([tmp_path / "project" / "matrices"], "pack")


def downloads(index: Index) -> list[str]:
    found = [path.rpartition("/")[2] for method, path, _ in index.requested if method == "GET" and "/files/" in path]
    index.requested.clear()
    return [name.split("-")[1] for name in found]


def test_a_scan_reads_each_release_once(run: Run, index: Index, tmp_path: Path) -> None:
    offer(index, tmp_path, "1.0", "1.1")
    assert run("--scan", "pack").code == 0
    found = scanned(tmp_path)
    assert found
    assert [(each.verdict.cuda, each.verdict.glibc) for each in found.releases.values()] == [((13,), "2.28")] * 2
    assert sorted(downloads(index)) == ["1.0", "1.1"]
    assert run("--scan", "pack").code == 0
    assert downloads(index) == []
    offer(index, tmp_path, "1.0", "1.1", "1.2")
    assert run("--scan", "pack").code == 0
    assert downloads(index) == ["1.2"]
    assert not list((Store(tmp_path / "cache" / "imagegen" / "store").root / "tmp").iterdir())


def test_a_release_whose_wheel_is_another_one_is_read_again(run: Run, index: Index, tmp_path: Path) -> None:
    offer(index, tmp_path, "1.0")
    run("--scan", "pack")
    downloads(index)
    offer(index, tmp_path, "1.0", module=make_elf(["libcudart.so.12"]))
    assert run("--scan", "pack").code == 0
    assert downloads(index) == ["1.0"]
    found = scanned(tmp_path)
    assert found
    assert found.releases["1.0"].verdict.cuda == (12,)


def test_a_dry_run_tells_the_bytes_and_reads_none(run: Run, index: Index, tmp_path: Path) -> None:
    offer(index, tmp_path, "1.0", "1.1")
    ended = run("--scan", "--dry-run", "pack", "--json")
    (found,) = json.loads(ended.out)
    sizes = [len(data) for path, data in index.files.items() if path.endswith(".whl")]
    assert (found["releases"], found["bytes"]) == (2, sum(sizes))
    assert [each["size"] for each in found["wheels"]] == sizes
    assert downloads(index) == []
    assert scanned(tmp_path) is None


def test_a_wheel_that_the_index_does_not_promise_is_refused(
    run: Run, index: Index, tmp_path: Path, golden: Golden
) -> None:
    offer(index, tmp_path, "1.0", sha256="0" * 64)
    ended = run("--scan", "pack")
    assert ended.code == 68
    golden.check(ended.err)
    assert scanned(tmp_path) is None


def test_a_damaged_wheel_costs_none_of_the_others(run: Run, index: Index, tmp_path: Path) -> None:
    offer(index, tmp_path, "1.0", "1.1")
    bad = "pack-1.1-cp38-abi3-manylinux_2_28_x86_64.whl"
    damaged = index.files[f"/files/{bad}"][:-40]
    index.wheel(bad, damaged)
    good = hashlib.sha256(index.files["/files/pack-1.0-cp38-abi3-manylinux_2_28_x86_64.whl"]).hexdigest()
    index.page(
        "pack",
        Offer("pack-1.0-cp38-abi3-manylinux_2_28_x86_64.whl", sha256=good),
        Offer(bad, sha256=hashlib.sha256(damaged).hexdigest()),
    )
    ended = run("--scan", "pack")
    assert ended.code == 68
    assert bad in ended.err
    found = scanned(tmp_path)
    assert found
    assert list(found.releases) == ["1.0"]


def test_a_library_that_cannot_be_read_is_an_error_and_no_verdict(run: Run, index: Index, tmp_path: Path) -> None:
    offer(index, tmp_path, "1.0", module=MODULE[:4000])
    assert run("--scan", "pack").code != 0
    assert scanned(tmp_path) is None


def test_what_was_read_before_a_failure_is_not_read_again(
    run: Run, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(index, tmp_path, "1.0", "1.1", "1.2")
    write, written = scans_file.write, list[Path]()

    def interrupted(found: PackageScans, path: Path) -> None:
        if written:
            raise MatrixError("the disk is full", code="matrix-unwritable")
        write(found, path)
        written.append(path)

    monkeypatch.setattr(scans_file, "write", interrupted)
    assert run("--scan", "pack").code != 0
    monkeypatch.setattr(scans_file, "write", write)
    found = scanned(tmp_path)
    assert found
    before = set(found.releases)
    assert len(before) == 1
    downloads(index)
    assert run("--scan", "pack").code == 0
    assert set(downloads(index)) == {"1.0", "1.1", "1.2"} - before


def test_a_package_without_compiled_wheels_has_nothing_to_scan(
    run: Run, index: Index, tmp_path: Path, golden: Golden
) -> None:
    index.page("pack", Offer("pack-1.0-py3-none-any.whl"))
    ended = run("--scan", "pack")
    assert ended.code == 68
    golden.check(ended.err)


@pytest.mark.parametrize("options", [["--dry-run"], ["--scan", "--models"], ["--scan", "--torch-exports", "2.16.0"]])
def test_options_that_do_not_go_together_are_refused(run: Run, options: list[str]) -> None:
    assert run(*options).code == 64
