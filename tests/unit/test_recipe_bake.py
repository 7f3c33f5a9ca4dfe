"""docker-bake.json: what it says, and what becomes of one that is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.image import dockerfile
from imagegen.image.folder import bake, write_bake
from tests.support.errors import raises
from tests.support.tiny_lock import LOCK, TAG

RENDERED = dockerfile.render(LOCK, TAG)
OTHER = replace(RENDERED, tag="imagegen/other:1-plain")


def read(directory: Path) -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = json.loads((directory / "docker-bake.json").read_text())
    return found


def test_the_file(golden: Callable[[str, str], None]) -> None:
    golden("docker-bake.json", json.dumps(bake({"tiny-3.11": RENDERED, "other": OTHER}), indent=2) + "\n")


def test_what_was_rendered_before_stays_while_its_folder_is_there(tmp_path: Path) -> None:
    for name in ("a", "b", "gone"):
        (tmp_path / name).mkdir()
        write_bake(tmp_path, {name: RENDERED})
    (tmp_path / "gone").rmdir()
    write_bake(tmp_path, {"a": OTHER})
    found = read(tmp_path)
    assert found["group"]["default"]["targets"] == list(found["target"]) == ["a", "b"]
    assert (found["target"]["a"]["tags"], found["target"]["b"]["tags"]) == ([OTHER.tag], [RENDERED.tag])


@pytest.mark.parametrize("text", ["", "[]", '{"target": []}', '{"target": {"a": 1}}', '{"group": {}}'])
def test_a_file_of_another_program_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "docker-bake.json").write_text(text)
    with raises("store-foreign-file"):
        write_bake(tmp_path, {"a": RENDERED})
    assert (tmp_path / "docker-bake.json").read_text() == text
