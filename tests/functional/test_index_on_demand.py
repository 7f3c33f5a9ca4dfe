"""Metadata that `imagegen why` reads from an index while a question waits."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.index_metadata import on_demand
from tests.support.command_line import Run
from tests.support.package_index import Index, Offer, archive, metadata

TODAY = "2026-11-24"


def context(index: Index, tmp_path: Path, **env: str) -> Context:
    settings = Settings.from_environment({"HOME": str(tmp_path), "PIP_INDEX_URL": index.url, **env})
    return Context(Store(tmp_path / "store"), settings, Quiet())


def offer(index: Index, package: str, *versions: str, requires: str = "torch==2.8.0") -> None:
    filenames = {version: f"{package.replace('-', '_')}-{version}-py3-none-any.whl" for version in versions}
    for version, filename in filenames.items():
        content = metadata(package, version, requires)
        index.beside(filename, content)
        index.wheel(filename, archive(package, version, content))
    index.page(package, *map(Offer, filenames.values()))


def test_the_newest_releases_that_the_question_admits_are_read_once_a_day(index: Index, tmp_path: Path) -> None:
    offer(index, "pack", *(f"1.{minor}" for minor in range(20)), "2.0rc1", "2.0")
    here = context(index, tmp_path)
    found = on_demand.look_up({"pack": "<2.0", "none": ""}, here, TODAY)
    assert list(found) == ["pack"]
    assert list(found["pack"].releases) == [f"1.{minor}" for minor in range(19, 9, -1)]
    assert found["pack"].releases["1.19"].requires == ("torch==2.8.0",)
    before = len(index.requested)
    assert on_demand.look_up({"pack": "<2.0", "none": ""}, here, TODAY) == found
    assert len(index.requested) == before
    on_demand.look_up({"pack": "<2.0"}, here, "2026-11-25")
    assert len(index.requested) > before


def test_a_pre_release_that_is_pinned_is_read(index: Index, tmp_path: Path) -> None:
    offer(index, "pack", "1.0", "2.0rc1")
    found = on_demand.look_up({"pack": "==2.0rc1"}, context(index, tmp_path), TODAY)
    assert list(found["pack"].releases) == ["2.0rc1"]


def test_no_index_is_asked_offline(index: Index, tmp_path: Path) -> None:
    offer(index, "pack", "1.0")
    assert on_demand.look_up({"pack": ""}, context(index, tmp_path, UV_OFFLINE="1"), TODAY) == {}
    assert not index.requested


def test_an_index_that_cannot_be_reached_or_lies_leaves_the_package_unknown(index: Index, tmp_path: Path) -> None:
    index.page("pack", Offer("pack-1.0-py3-none-any.whl"))
    index.beside("pack-1.0-py3-none-any.whl", b"Name: other\nVersion: 1.0\n")
    here = context(index, tmp_path)
    assert on_demand.look_up({"pack": ""}, here, TODAY) == {}
    index.close()
    start = time.monotonic()
    assert on_demand.look_up({"pack": "", "more": ""}, here, TODAY) == {}
    assert time.monotonic() - start < 8


def test_why_answers_about_a_package_that_is_not_shipped(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    offer(index, "unheard", "1.0")
    ended = run("why", "unheard==1.0", "torch==2.9.1", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["verdict"], found["unknown_names"]) == (1, "incompatible", [])
    assert run("why", "unheard==1.0", "torch==2.8.0").code == 0
    assert run("why", "unheard==2.0", "torch==2.8.0").code == 2


def test_proposals_have_releases_around_a_pinned_one_that_is_not_shipped(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    filenames = []
    for minor in range(1, 40):
        filenames.append(f"unheard-1.{minor}-py3-none-any.whl")
        torch = "2.8.0" if minor < 25 else "2.9.1"
        content = metadata("unheard", f"1.{minor}", f"torch=={torch}")
        index.beside(filenames[-1], content)
        index.wheel(filenames[-1], archive("unheard", f"1.{minor}", content))
    index.page("unheard", *map(Offer, filenames))
    document = json.loads(run("why", "unheard==1.20", "torch==2.9.1", "--json").out)
    changes = [proposal["changes"] for proposal in document["nearest"]]
    assert {"torch": "==2.8.0"} in changes
    assert [found["unheard"] for found in changes if found.keys() == {"unheard"}] == ["==1.29"]  # 1, 2, 4, 9, 19 on
    assert not json.loads(run("why", "unheard==1.20", "torch==2.9.1", "nowhere", "--json").out)["nearest"]
    again = run("why", "unheard<1.21", "torch==2.9.1", "--json")  # the releases between those that were read count
    assert again.code == 1


def test_a_release_that_another_package_requires_is_proposed(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    offer(index, "unheard", "1.0", requires="unseen<2")
    offer(index, "unseen", "1.0", "1.1", "3.0", requires="torch")
    document = json.loads(run("why", "unheard==1.0", "unseen==3.0", "--json").out)
    assert [proposal["changes"] for proposal in document["nearest"]] == [{"unseen": "==1.1"}]


def test_what_a_proposed_release_requires_is_asked_of_the_index(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    for version, required in (("1.0", "peft==0.1.0"), ("1.1", "peft==0.1.1"), ("2.0", "torch==2.8.0")):
        index.beside(f"unheard-{version}-py3-none-any.whl", metadata("unheard", version, required))
    index.page("unheard", *(Offer(f"unheard-{version}-py3-none-any.whl") for version in ("1.0", "1.1", "2.0")))
    offer(index, "peft", "0.1.0", requires="torch==2.9.1")  # 0.1.1 does not exist
    document = json.loads(run("why", "unheard==2.0", "torch==2.9.1", "--json").out)
    changes = [proposal["changes"] for proposal in document["nearest"]]
    assert changes[0] == {"torch": "==2.8.0"}
    assert {"unheard": "==1.1"} not in changes


def test_a_name_that_resembles_a_known_one_is_asked_of_the_index(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    offer(index, "ring-flash-attn", "0.1.6")
    document = json.loads(run("why", "ring-flash-attn==0.1.6", "torch==2.9.1", "--json").out)
    assert (document["verdict"], document["unknown_names"]) == ("incompatible", [])
    assert [sentence for sentence in document["assumed"] if "flash-attn?" in sentence]
    assert run("why", "ring-flash-attn==0.1.6", "torch==2.8.0").code == 0
    document = json.loads(run("why", "troch==2.0", "--json").out)
    assert (document["verdict"], document["unknown_names"]) == ("unknown", [{"name": "troch", "suggestion": "torch"}])


def test_a_component_without_shipped_metadata_is_asked_of_the_index(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    offer(index, "click", "8.1.0")
    offer(index, "slime", "8.1.0")
    assert run("why", "click==8.1.0", "torch==2.8.0").code == 0
    assert run("why", "click==8.1.0", "torch==2.9.1").code == 1
    assert run("why", "click==8.2.0", "torch==2.9.1").code == 2
    assert run("why", "slime==8.1.0", "torch==2.9.1").code == 2  # it comes from git, and the index has another project
    assert not [path for _, path, _ in index.requested if "slime" in path]


def test_a_release_that_a_pinned_one_requires_is_asked_of_the_index(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    offer(index, "unheard", "1.0", requires="peft==99.0")
    offer(index, "peft", "99.0")
    assert run("why", "unheard==1.0", "torch==2.8.0").code == 0
    assert run("why", "unheard==1.0", "torch==2.9.1").code == 1
    extra = metadata("peft", "97.0", 'torch==2.8.0; extra == "more"', more="Provides-Extra: more")
    index.beside("peft-97.0-py3-none-any.whl", extra)
    index.page("peft", Offer("peft-97.0-py3-none-any.whl"))
    offer(index, "extended", "1.0", requires="peft[more]==97.0")
    assert run("why", "extended==1.0", "torch==2.9.1").code == 1
    offer(index, "silent", "1.0", requires="peft==98.0")
    assert run("why", "silent==1.0", "torch==2.9.1").code == 2


def test_extras_that_a_requested_extra_includes_are_read(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    included = """Requires-Dist: pack[Run_Time]; extra == "all"
Requires-Dist: torch==2.8.0; extra == "run.time"
Provides-Extra: all
Provides-Extra: run.time"""
    content = metadata("pack", "1.0", more=included)
    index.beside("pack-1.0-py3-none-any.whl", content)
    index.wheel("pack-1.0-py3-none-any.whl", archive("pack", "1.0", content))
    index.page("pack", Offer("pack-1.0-py3-none-any.whl"))
    assert run("why", "pack[all]==1.0", "torch==2.8.0").code == 0
    assert run("why", "pack[all]==1.0", "torch==2.9.1").code == 1
    assert run("why", "pack==1.0", "torch==2.9.1").code == 0


def test_extras_are_read_with_those_that_add_nothing(run: Run, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    more = "Provides-Extra: Some_More\nProvides-Extra: empty"
    content = metadata("peft", "0.17.1", 'torch==2.8.0; extra == "some.more"', more=more)
    index.beside("peft-0.17.1-py3-none-any.whl", content)
    index.wheel("peft-0.17.1-py3-none-any.whl", archive("peft", "0.17.1", content))
    index.page("peft", Offer("peft-0.17.1-py3-none-any.whl"))
    assert run("why", "peft[empty,some_more]==0.17.1", "torch==2.8.0").code == 0
    assert run("why", "peft[some_more]==0.17.1", "torch==2.9.1").code == 1
    unknown = json.loads(run("why", "peft[some-more,nonsense]==0.17.1", "--json").out)["unknown"]
    assert [sentence.partition(":")[0] for sentence in unknown] == ["peft[nonsense]"]


def test_a_release_that_came_after_the_shipped_metadata_is_read(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    offer(index, "peft", "99.0")
    assert run("why", "peft==99.0", "torch==2.9.1").code == 1
    assert run("why", "peft==99.0", "torch==2.8.0").code == 0


def test_releases_before_the_shipped_metadata_are_asked_of_the_index(
    run: Run, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    offer(index, "tokenizers", "0.13.3", requires="urllib3")
    offer(index, "transformers", *(f"4.{minor}.{patch}" for minor in range(50) for patch in (0, 1)), requires="pip")
    for minor in range(30, 36):
        content = metadata("transformers", f"4.{minor}.1", "tokenizers<0.14")
        index.beside(f"transformers-4.{minor}.1-py3-none-any.whl", content)
    ended = run("why", "transformers", "tokenizers==0.13.3", "--json")
    assert (ended.code, json.loads(ended.out)["conflicts"]) == (0, [])
    asked = {path.rpartition("/")[2].split("-")[1] for _, path, _ in index.requested if path.endswith(".metadata")}
    assert "4.44.1" in asked
    assert len(asked) <= 11
    assert not {version for version in asked if version.startswith(("4.45", "4.46"))}


def test_older_releases_stay_unknown_offline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    ended = run("why", "vllm", "torch==2.4.0", "numpy>=2", "--json")
    assert (ended.code, json.loads(ended.out)["verdict"]) == (2, "unknown")


def test_a_package_of_which_only_the_newest_releases_are_read_is_not_refused(index: Index, tmp_path: Path) -> None:
    offer(index, "pack", *(f"1.{minor}" for minor in range(20)))
    here = context(index, tmp_path)
    assert on_demand.look_up({"pack": ""}, here, TODAY)["pack"].since == "1.10"
    assert on_demand.look_up({"pack": ">=1.15"}, here, TODAY)["pack"].since is None
    ages = on_demand.look_up({"pack": ""}, here, TODAY, spread=True)["pack"]
    assert list(ages.releases) == [f"1.{minor}" for minor in range(19, -1, -2)]
    assert ages.since == "1.1"
