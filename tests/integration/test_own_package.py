"""A new project becomes a tested image in one command, and an edit of its source reaches Docker as one layer."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from imagegen.engine import Engine
from tests.support.machines import Place, digest_of

pytestmark = pytest.mark.integration

PYPROJECT = """\
[project]
name = "score-answers"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["packaging>=24"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""
IMAGE = "score-answers"
TAG = f"imagegen/{IMAGE}:cpu-py311"


@pytest.fixture(scope="module")
def project(machine: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A new project in a repository of its own, which ignores what a machine has beside it."""
    root = tmp_path_factory.mktemp("own") / IMAGE
    (root / "src/score_answers").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "src/score_answers/__init__.py").write_text("SCALE = 1\n")
    (root / ".gitignore").write_text("cache\nimage\n")
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    place = Place(root, machine.docker_host)
    machine.cache.mkdir(exist_ok=True)
    place.cache.symlink_to(machine.cache)
    return place


@pytest.fixture(scope="module")
def first(project: Place) -> str:
    """The digest of the image, built with one command."""
    return digest_of(project.run("init", "--build"))


def scale(engine: Engine) -> str:
    """Return what the package in the image says."""
    line = engine.docker_run_line(TAG, "python", "-c", "import score_answers; print(score_answers.SCALE)")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.strip()


def layers(place: Place, digest: str) -> list[str]:
    """Return the digests of an image's layers, from the bottom up."""
    blob = place.cache / "imagegen/store/blobs/sha256" / digest.removeprefix("sha256:")
    return [layer["digest"] for layer in json.loads(blob.read_text())["layers"]]


def test_one_command_makes_a_tested_image(first: str, engine: Engine) -> None:
    assert engine.image_digest(TAG) == first
    assert scale(engine) == "1"


def test_an_edit_changes_the_topmost_layer_alone(first: str, project: Place, engine: Engine) -> None:
    (project.root / "src/score_answers/__init__.py").write_text("SCALE = 2\n")
    refused = project.call("build", IMAGE, code=67)
    assert "src/score_answers/__init__.py" in refused.stderr
    offline = Place(project.root, project.docker_host, env={"UV_OFFLINE": "1", "PIP_INDEX_URL": "http://127.0.0.1:1"})
    offline.call("lock", IMAGE)
    second = digest_of(offline.call("build", IMAGE, "--no-test"))
    assert layers(project, second)[:-1] == layers(project, first)[:-1]
    assert layers(project, second)[-1] != layers(project, first)[-1]
    assert scale(engine) == "2"


@pytest.mark.slow  # it builds the base again
def test_a_second_store_gives_the_same_digest(first: str, project: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "another" / "directory", None, 0o077, "Pacific/Auckland")
    shutil.copytree(project.root, other.root, ignore=shutil.ignore_patterns("cache"))
    (other.root / "src/score_answers/__init__.py").write_text("SCALE = 1\n")
    other.run("lock", IMAGE)
    assert digest_of(other.run("build", IMAGE, "--output", "oci:image", "--scratch-base")) == first
