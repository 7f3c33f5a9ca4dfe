"""tools.harvest on the command line: what it writes, what it leaves alone, and how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click
import pytest

from imagegen.cli import main
from imagegen.compat import harvested, metadata
from imagegen.compat.metadata import PackageReleases, load, names, path_of
from imagegen.compat.metadata_file import dumps
from tests.support import command_line
from tests.support.golden import Golden
from tests.support.package_index import Index, Offer
from tests.support.package_index import metadata as metadata_of
from tools.harvest.__main__ import command

pytestmark = pytest.mark.usefixtures("shared_results")


@dataclass
class Ended:
    code: object
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, index: Index) -> Run:
    command_line.keep_signals(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)

    def run(*arguments: str, command: click.Command | None = command) -> Ended:
        monkeypatch.setattr(sys, "argv", ["imagegen", "--project", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as ended:
            main(command)
        return Ended(ended.value.code, *capsys.readouterr())

    return run


def offer(index: Index, package: str, *versions: str) -> None:
    for version in versions:
        index.beside(f"{package}-{version}-py3-none-any.whl", metadata_of(package, version, "numpy>=2"))
    index.page(package, *(Offer(f"{package}-{version}-py3-none-any.whl") for version in versions))


def test_a_harvest_writes_a_file_that_the_matrix_lives_with(
    run: Run, index: Index, tmp_path: Path, golden: Golden
) -> None:
    offer(index, "pack", "1.0", "1.1")
    ended = run("pack", "--json")
    assert ended.code == 0
    golden.check(ended.err)
    path = path_of(tmp_path / "matrices", "pack")
    assert json.loads(ended.out) == [
        {
            "package": "pack", "path": str(path), "written": True, "releases": 2,
            "added": ["1.1", "1.0"], "changed": [], "gone": [],
        }
    ]  # fmt: skip
    found = load([tmp_path / "matrices"], "pack")
    assert found
    assert found.releases["1.1"].requires == ("numpy>=2",)
    assert run("list", "cpu-grpo", command=None).code == 0  # a project that holds nothing but metadata is one


def test_verdicts_are_told_as_markdown(run: Run, index: Index, golden: Golden) -> None:
    offer(index, "pack", "1.0", "1.1")
    ended = run("pack", "--verdicts")
    golden.check(ended.out)
    assert ended.code == 0
    assert run("pack", "--verdicts").out == "Nothing new.\n"
    assert {run(*words).code for words in (["--verdicts", "--json"], ["--verdicts", "--models"])} == {64}


def test_a_file_moves_only_when_the_index_says_something_new(
    run: Run, index: Index, tmp_path: Path, golden: Golden
) -> None:
    offer(index, "pack", "0.9", "1.0")
    path = path_of(tmp_path / "matrices", "pack")
    harvested.write(path, dumps(PackageReleases("pack", "pypi", None, "1.0", (), {})))
    run("pack")
    first = load([tmp_path / "matrices"], "pack")
    assert first
    assert (list(first.releases), first.since) == (["1.0"], "1.0")
    long_ago = replace(first, read="2026-01-01")
    harvested.write(path, dumps(long_ago))
    ended = run("pack", "--json")
    golden.check(ended.err)
    assert json.loads(ended.out)[0]["written"] is False
    assert load([tmp_path / "matrices"], "pack") == long_ago
    offer(index, "pack", "1.1")
    gone = run("pack")
    index.page("pack", Offer("pack-1.1-py3-none-any.whl", yanked="broken"))
    golden.check(gone.err, run("pack").err)
    last = load([tmp_path / "matrices"], "pack")
    assert last
    assert (last.releases["1.1"].yanked, last.read) == (True, first.read)


def test_one_package_that_cannot_be_had_keeps_none_of_the_others(
    run: Run, index: Index, tmp_path: Path, golden: Golden
) -> None:
    offer(index, "good", "1.0")
    index.page("bad", Offer("bad-1.0-py3-none-any.whl"))
    index.beside("bad-1.0-py3-none-any.whl", b"<html>")
    before = PackageReleases("bad", "pypi", "2026-01-01", None, (), {})
    harvested.write(path_of(tmp_path / "matrices", "bad"), dumps(before))
    ended = run("good", "bad", "absent", "--json")
    assert ended.code == 68
    assert [each["package"] for each in json.loads(ended.out)] == ["good"]
    golden.check(ended.err)
    assert "2 errors found" in ended.err
    assert load([tmp_path / "matrices"], "good")
    assert load([tmp_path / "matrices"], "bad") == before
    assert names([tmp_path / "matrices"]) == ["bad", "good"]


def test_without_names_only_packages_with_a_file_are_asked_for(
    run: Run, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyPI's apex is not NVIDIA's: a component's name alone is no reason to take what an index has under it.
    monkeypatch.setattr(metadata, "names", lambda directories: names(directories[1:]))  # but for the shipped ones
    offer(index, "pack", "1.0")
    harvested.write(path_of(tmp_path / "matrices", "pack"), dumps(PackageReleases("pack", "pypi", None, None, (), {})))
    ended = run()
    assert ended.code == 0
    assert "without a file, and so not asked for:" in ended.err
    assert "apex" in ended.err
    assert {path for _, path, _ in index.requested} == {"/simple/pack/", "/files/pack-1.0-py3-none-any.whl.metadata"}
    assert names([tmp_path / "matrices"]) == ["pack"]


@pytest.mark.parametrize("typed", ["mcore", "MCore", "Megatron_Core", "megatron-core"])
def test_components_go_by_what_people_type(run: Run, index: Index, typed: str) -> None:
    assert run(typed).code == 68
    assert [path for _, path, _ in index.requested] == ["/simple/megatron-core/"]


def test_what_is_no_name_or_no_file_is_an_error(run: Run, tmp_path: Path, golden: Golden) -> None:
    ended = run("a b!")
    assert ended.code == 64
    golden.check(ended.err)
    path = path_of(tmp_path / "matrices", "pack")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    ended = run("pack")
    assert ended.code == 65
    golden.check(ended.err)
    assert path.read_text() == "{"
