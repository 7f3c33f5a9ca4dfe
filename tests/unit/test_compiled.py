"""Results that the cache keeps: found again for the same inputs alone, and never trusted beyond that."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagegen.core import compiled
from imagegen.core.compiled import ResultCache, digest_of, digest_of_trees
from imagegen.core.errors import Location


@dataclass
class Counter:
    """A computation that counts how often it is asked."""

    result: object = Location("a.yaml", 1, 2)
    calls: int = 0

    def __call__(self) -> object:
        self.calls += 1
        return self.result


def kept(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def test_the_same_inputs_give_the_kept_result(tmp_path: Path) -> None:
    compute = Counter()
    for _ in range(2):
        assert ResultCache(tmp_path / "new").of("kind", "subject", ["a", "b"], compute) == compute.result
    assert compute.calls == 1


@pytest.mark.parametrize(
    ("kind", "subject", "inputs"),
    [("other", "s", ["a"]), ("k", "other", ["a"]), ("k", "s", ["b"]), ("k", "s", ["a", ""])],
)
def test_other_inputs_give_another_result(tmp_path: Path, kind: str, subject: str, inputs: list[str]) -> None:
    results = ResultCache(tmp_path)
    assert results.of("k", "s", ["a"], lambda: 1) == 1
    assert results.of(kind, subject, inputs, lambda: 2) == 2


def test_other_code_gives_another_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ResultCache(tmp_path).of("k", "s", [], lambda: 1) == 1
    monkeypatch.setattr(compiled, "digest_of_code", lambda: "another imagegen")
    assert ResultCache(tmp_path).of("k", "s", [], lambda: 2) == 2


def test_a_subject_has_one_file(tmp_path: Path) -> None:
    for text in ("a", "b"):
        ResultCache(tmp_path).of("k", "s", [text], lambda: 1)
    assert kept(tmp_path)


def test_a_result_of_unknown_inputs_is_not_kept(tmp_path: Path) -> None:
    compute = Counter()
    for _ in range(2):
        ResultCache(tmp_path).of("k", "s", ["a", None], compute)
    assert compute.calls == 2
    assert not list(tmp_path.iterdir())


def test_none_and_false_are_results(tmp_path: Path) -> None:
    compute = Counter(None)
    for _ in range(2):
        assert ResultCache(tmp_path).of("k", "s", [], compute) is None
    assert compute.calls == 1


def test_an_error_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        ResultCache(tmp_path).of("k", "s", [], lambda: 1 // 0)
    assert ResultCache(tmp_path).of("k", "s", [], lambda: 1) == 1


@pytest.mark.parametrize("length", [0, 1, 32, 40, -1])
def test_a_truncated_file_is_made_again(tmp_path: Path, length: int) -> None:
    compute = Counter()
    ResultCache(tmp_path).of("k", "s", [], compute)
    whole = kept(tmp_path).read_bytes()
    kept(tmp_path).write_bytes(whole[:length])
    assert ResultCache(tmp_path).of("k", "s", [], compute) == compute.result
    assert compute.calls == 2
    assert kept(tmp_path).read_bytes() == whole


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_made_again(tmp_path: Path, mode: int) -> None:
    compute = Counter()
    ResultCache(tmp_path).of("k", "s", [], compute)
    kept(tmp_path).chmod(mode)
    ResultCache(tmp_path).of("k", "s", [], compute)
    assert compute.calls == 2


def test_a_file_of_another_user_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Counter()
    ResultCache(tmp_path).of("k", "s", [], compute)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    ResultCache(tmp_path).of("k", "s", [], compute)
    assert compute.calls == 2


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    compute = Counter()
    ResultCache(tmp_path / "here").of("k", "s", [], compute)
    moved = kept(tmp_path / "here").rename(tmp_path / "elsewhere")
    (tmp_path / "here" / f"k-{digest_of('s')[:16]}").symlink_to(moved)
    ResultCache(tmp_path / "here").of("k", "s", [], compute)
    assert compute.calls == 2


class Attack:
    def __reduce__(self) -> object:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("value", [Attack(), Attack, os.system, compiled.digest_of])
def test_nothing_but_data_is_made_of_a_file(tmp_path: Path, value: object) -> None:
    results = ResultCache(tmp_path)
    results.keep("k", "s", [], value)
    assert kept(tmp_path).stat().st_size
    assert results.find("k", "s", []) is None


def test_classes_of_results_are_read(tmp_path: Path) -> None:
    value = {"at": Location(Path("a"), 1), "many": frozenset({("b", 1.5, None)})}
    results = ResultCache(tmp_path)
    results.keep("k", "s", ["a"], value)
    assert results.find("k", "s", ["a"]) == value
    assert results.find("k", "s", ["b"]) is None


def test_a_directory_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (None, tmp_path / "file", tmp_path / "file" / "below"):
        compute = Counter()
        assert ResultCache(directory).of("k", "s", [], compute) == compute.result
        assert ResultCache(directory).of("k", "s", [], compute) == compute.result
        assert compute.calls == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def tree(root: Path) -> Path:
    (root / "below").mkdir(parents=True)
    (root / "a.yaml").write_bytes(b"one")
    (root / "below" / "b.json").write_bytes(b"two")
    return root


def test_any_byte_and_any_name_counts(tmp_path: Path) -> None:
    root = tree(tmp_path / "tree")
    found = {digest_of_trees([root])}
    (root / "a.yaml").write_bytes(b"One")
    found.add(digest_of_trees([root]))
    (root / "below" / "b.json").rename(root / "below" / "c.json")
    found.add(digest_of_trees([root]))
    (root / "below" / "empty").touch()
    found.add(digest_of_trees([root]))
    assert len(found) == 4
    assert None not in found
    assert digest_of_trees([root]) == digest_of_trees([root])


def test_a_tree_with_links_or_unreadable_parts_has_no_digest(tmp_path: Path) -> None:
    root = tree(tmp_path / "tree")
    assert digest_of_trees([root, tmp_path / "absent"]) is None
    (root / "link").symlink_to(root / "a.yaml")
    assert digest_of_trees([root]) is None
    (root / "link").unlink()
    (root / "link").symlink_to(root / "below")
    assert digest_of_trees([root]) is None


def test_parts_of_a_digest_are_apart() -> None:
    assert digest_of("ab", "c") != digest_of("a", "bc")
    assert digest_of("a") == digest_of(b"a")


def test_a_result_of_another_class_is_an_error_of_the_program(tmp_path: Path) -> None:
    """What cannot be read again must not be written: it would be computed each time without notice."""
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        ResultCache(tmp_path).of("k", "s", [], lambda: lambda: None)


def test_a_result_is_found_by_its_inputs_alone(tmp_path: Path) -> None:
    results = ResultCache(tmp_path)
    results.keep("k", "s", ["a"], (1, 2))
    assert results.find("k", "s", ["a"]) == (1, 2)
    assert [results.find("k", "s", inputs) for inputs in (["b"], [None])] == [None, None]
    results.keep("k", "other", [None], 3)
    assert results.find("k", "other", [None]) is None
    assert ResultCache(None).find("k", "s", ["a"]) is None
