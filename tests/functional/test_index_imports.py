"""Imports between pinned releases that `imagegen why` reads from the wheels of an index."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagegen.compat.facts import Fact, Facts
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.index_metadata.import_rules import read_imports
from imagegen.index_metadata.wheel_modules import sdist_sources
from tests.support.command_line import Run
from tests.support.file_trees import as_tar
from tests.support.package_index import Index, Offer, metadata
from tests.support.wheels import make_wheel

FACTS = Facts({}, {}, {}, closed=False)
PINS = {"app": "1.0", "hub": "2.0"}


@pytest.fixture
def offered(index: Index, tmp_path: Path) -> Index:
    """An app 1.0 that needs hub's Old, which 1.0 has and 2.0 lacks; a tool whose command needs it."""
    offer(
        index,
        tmp_path,
        "app",
        "1.0",
        {"app/__init__.py": "from app import login\n", "app/login.py": "from hub import Old\n"},
    )
    offer(index, tmp_path, "hub", "1.0", {"hub/__init__.py": "class Old: ...\n"})
    offer(index, tmp_path, "hub", "2.0", {"hub/__init__.py": "class New: ...\n"})
    return index


def offer(index: Index, directory: Path, name: str, version: str, files: dict[str, str]) -> None:
    filename = f"{name}-{version}-py3-none-any.whl"
    contents = {path: text.encode() for path, text in files.items()}
    info = f"{name}-{version}.dist-info"
    wheel = make_wheel(
        directory, contents, filename=filename, info=info, metadata={"METADATA": metadata(name, version).decode()}
    )
    index.wheel(filename, wheel.read_bytes())
    index.beside(filename, metadata(name, version))
    filenames = [
        path.rpartition("/")[2] for path in index.files if path.startswith(f"/files/{name}-") and path.endswith(".whl")
    ]
    index.page(name, *(Offer(listed, sha256=f"{number:064}") for number, listed in enumerate(filenames, 1)))


def context(index: Index, tmp_path: Path, **env: str) -> Context:
    settings = Settings.from_environment({"HOME": str(tmp_path), "PIP_INDEX_URL": index.url, **env})
    return Context(Store(tmp_path / "store"), settings, Quiet())


def test_an_import_of_a_name_that_the_pinned_release_lacks_is_a_conflict(
    run: Run, offered: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", offered.url)
    document = json.loads(run("why", "app==1.0", "hub==2.0", "--json").out)
    (conflict,) = document["conflicts"]
    assert (document["verdict"], conflict["rule"]) == ("incompatible", "imports-app-1.0-hub")
    assert conflict["components"] == {"app": "1.0", "hub": "2.0"}
    assert document["examined"] == {"app": ["metadata", "imports"], "hub": ["metadata", "imports"]}
    assert run("why", "app==1.0", "hub==1.0").code == 0


def test_what_was_read_answers_without_an_index(offered: Index, tmp_path: Path) -> None:
    imports = read_imports(PINS, (), FACTS, context(offered, tmp_path))
    requests = len(offered.requested)
    assert read_imports(PINS, (), FACTS, context(offered, tmp_path)) == imports
    assert read_imports(PINS, (), FACTS, context(offered, tmp_path, UV_OFFLINE="1")) == imports
    assert len(offered.requested) == requests
    assert ([rule.conflict for rule in imports.rules], imports.read) == ([{"hub": "==2.0"}], {"app", "hub"})


def test_harvested_imports_are_only_those_of_top_level_modules(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    examined = json.loads(run("why", "liger-kernel==0.5.9", "transformers==4.52.4", "--json").out)["examined"]
    assert {name: [data for data in read if "imports" in data] for name, read in examined.items()} == {
        "liger-kernel": ["top-level imports"],
        "transformers": ["top-level imports"],
    }


def test_modules_that_are_known_are_not_read_again(offered: Index, tmp_path: Path) -> None:
    read_imports(PINS, (), FACTS, context(offered, tmp_path))
    requests = len(offered.requested)
    read_imports({"app": "1.0", "hub": "1.0"}, (), FACTS, context(offered, tmp_path))
    assert not [path for _, path, _ in offered.requested[requests:] if path.startswith("/files/app")]


@pytest.mark.parametrize("env", [{"UV_OFFLINE": "1"}, {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}])
def test_a_package_that_cannot_be_read_is_not_examined(offered: Index, tmp_path: Path, env: dict[str, str]) -> None:
    imports = read_imports(PINS, (), FACTS, context(offered, tmp_path, **env))
    assert (imports.rules, imports.read) == ([], frozenset())
    assert not offered.requested


def test_a_pinned_release_without_files_makes_the_answer_unknown(
    run: Run, offered: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", offered.url)
    offered.files = {
        path: content for path, content in offered.files.items() if not path.endswith("hub-1.0-py3-none-any.whl")
    }
    ended = run("why", "app==1.0", "hub==1.0", "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["verdict"]) == (2, "unknown")
    assert [sentence.partition(":")[0] for sentence in document["unknown"]] == ["hub 1.0"]
    assert document["examined"] == {"app": ["metadata", "imports"], "hub": ["metadata"]}


def test_a_failure_that_another_package_reaches_names_it(offered: Index, tmp_path: Path) -> None:
    offer(offered, tmp_path, "hub", "3.0", {"hub/__init__.py": "", "hub/extra.py": "from low import gone\n"})
    offer(offered, tmp_path, "low", "1.0", {"low.py": ""})
    offer(offered, tmp_path, "big", "1.0", {"big.py": "import hub.extra\n"})
    (rule,) = read_imports({"big": "1.0", "hub": "3.0", "low": "1.0"}, (), FACTS, context(offered, tmp_path)).rules
    assert (rule.when, rule.conflict) == ({"hub": "==3.0", "big": "==1.0"}, {"low": "==1.0"})


@pytest.mark.parametrize(
    ("failing", "working", "required", "severity"),
    [
        (1, 12, (), "warning"),
        (1, 12, [("app", "hub")], "warning"),
        (6, 5, (), "error"),  # much of the package
        (2, 6, [("app", "hub")], "error"),
        (2, 7, [("app", "hub")], "warning"),
        (1, 0, (), "warning"),
        (1, 0, [("app", "hub")], "error"),
    ],
)
def test_a_part_is_an_error_if_it_is_much_of_a_package_or_of_what_requires_the_other(
    offered: Index, tmp_path: Path, failing: int, working: int, required: list[tuple[str, str]], severity: str
) -> None:
    parts = {f"big/f{number}.py": "from hub import Old\n" for number in range(failing)}
    parts |= {f"big/w{number}.py": "import hub\n" for number in range(working)}
    parts |= {f"big/own{number}.py": "" for number in range(40)}
    offer(offered, tmp_path, "big", "1.0", {"big/__init__.py": "", **parts})
    pairs = {("big", provider) for _, provider in required}
    (rule,) = read_imports({"big": "1.0", "hub": "2.0"}, pairs, FACTS, context(offered, tmp_path)).rules
    assert (rule.severity, rule.when, rule.conflict) == (severity, {"big": "==1.0"}, {"hub": "==2.0"})


@pytest.mark.parametrize(("above", "is_intact"), [("old-1.0/", True), ("old-1.0/src/", True), ("old-1.0/", False)])
def test_a_release_without_wheels_is_read_from_its_sdist(
    offered: Index, tmp_path: Path, above: str, is_intact: bool
) -> None:
    sources = {"old-1.0/setup.py": b"import never\n", f"{above}old/__init__.py": b"from hub import Old\n"}
    offered.files["/files/old-1.0.tar.gz"] = archive = gzip.compress(as_tar(sources))
    offered.page("old", Offer("old-1.0.tar.gz", sha256=hashlib.sha256(archive if is_intact else b"").hexdigest()))
    imports = read_imports({"old": "1.0", "hub": "2.0"}, (), FACTS, context(offered, tmp_path))
    assert [rule.when for rule in imports.rules] == ([{"old": "==1.0"}] if is_intact else [])
    assert imports.read == ({"old", "hub"} if is_intact else {"hub"})


@settings(max_examples=50)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_a_damaged_sdist_raises_nothing(damage: bytes, start: int) -> None:
    archive = gzip.compress(as_tar({"old-1.0/old.py": b"import hub"}))
    sources = sdist_sources(archive[:start] + damage + archive[start + len(damage) :])
    assert sources.keys() <= {"old.py"}


def test_a_module_that_setuptools_brings_back_is_a_warning(offered: Index, tmp_path: Path) -> None:
    offer(offered, tmp_path, "old", "1.0", {"old.py": "import distutils\n"})
    offer(offered, tmp_path, "older", "1.0", {"older.py": "import imp\n"})
    python = Facts({}, {"python": Fact.exactly("3.12")}, {}, closed=False)
    rules = read_imports({"old": "1.0", "older": "1.0"}, (), python, context(offered, tmp_path)).rules
    severities = {rule.leaders: (rule.severity, dict(rule.unless)) for rule in rules}
    assert sorted(severities.values(), key=str) == [("error", {}), ("warning", {"setuptools": ""})]


def test_a_damaged_wheel_is_not_examined(offered: Index, tmp_path: Path) -> None:
    path = "/files/hub-2.0-py3-none-any.whl"
    start = offered.files[path].index(b"hub/__init__.py") + len("hub/__init__.py")
    offered.files[path] = offered.files[path][:start] + b"\xff" * 8 + offered.files[path][start + 8 :]
    imports = read_imports(PINS, (), FACTS, context(offered, tmp_path))
    assert (imports.rules, imports.read) == ([], {"app"})
