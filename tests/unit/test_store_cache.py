"""Results in the store: read as they were written; a record of another form is a miss, and the table has every kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import imagegen
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, Cache
from imagegen.oci.documents import digest_of

KEY = digest_of(b"inputs")


@dataclass(frozen=True)
class Inner:
    names: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    count: int
    inner: Mapping[str, Inner | None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


RESULTS: Cache[Result] = Cache("result", Result)


@given(st.builds(Result, st.integers(), st.dictionaries(st.text(), st.none() | st.builds(Inner))))
def test_a_result_is_read_as_it_was_written(store: Store, result: Result) -> None:
    RESULTS.put(store, KEY, result)
    assert (RESULTS.get(store, KEY), RESULTS.keys(store)) == (result, [KEY])
    assert RESULTS.get(store, digest_of(b"other inputs")) is None
    RESULTS.forget(store, KEY)
    assert RESULTS.get(store, KEY) is None


@pytest.mark.parametrize("record", [{}, {"count": 1}, {"count": "x", "inner": {}}, {"count": 1, "inner": {"a": 1}}, []])
def test_a_record_of_another_form_is_a_miss(store: Store, record: Any) -> None:
    Cache("result", object).put(store, KEY, record)
    assert RESULTS.get(store, KEY) is None


def test_a_blob_that_is_gone_or_damaged_is_a_miss(store: Store) -> None:
    blobs = BlobCache("blob")
    blobs.write(store, KEY, b"data")
    assert blobs.read(store, KEY) == b"data"
    path = store.path(digest_of(b"data"))
    path.chmod(0o644)
    path.write_bytes(b"atad")
    assert blobs.read(Store(store.root), KEY) is None
    assert blobs.get(store, KEY) is None


def test_the_table_has_every_kind_once() -> None:
    kinds = []
    for path in Path(imagegen.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Cache", "BlobCache")
            ):
                (kind, *_) = node.args
                assert isinstance(kind, ast.Constant), path
                kinds.append(kind.value)
    table = (Path(imagegen.__path__[0]).parent / "docs/internals/cache.md").read_text()
    assert sorted(kinds) == re.findall(r"^\| ([\w-]+) \|", table, re.MULTILINE)[1:]
