"""The nightly pipelines for GitLab and Buildkite: valid by their schemas, and their jobs do what they say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagegen.app.nightly import changes
from imagegen.app.nightly.changes import ChangelogSection
from imagegen.core.data import shipped
from tests.support.ci_checkout import Checkout
from tests.support.matrix_samples import shipped_matrix

ROOT = Path(__file__).parents[2]
FILES = {"gitlab": ROOT / ".gitlab/nightly.yml", "buildkite": ROOT / ".buildkite/nightly.yml"}
SCHEMAS = {"gitlab": "vendor.gitlab-ci", "buildkite": "vendor.buildkite"}
BUILD, BUILD_GPU, TEST_GPU, STORE = range(4)
LOGIN = {
    "gitlab": {
        "CI_REGISTRY": "registry.example.com", "CI_REGISTRY_USER": "me", "CI_REGISTRY_PASSWORD": "secret",
        "TO": "registry.example.com/acme/rl",
    },
    "buildkite": {"REGISTRY_USER": "me", "REGISTRY_PASSWORD": "secret", "TO": "registry.example.com/acme/rl"},
}  # fmt: skip
DOCKER = ["docker", "login", "registry.example.com", "--username", "me", "--password-stdin"]


@dataclass(frozen=True)
class Job:
    """A job for one cell; `cells` are all of its matrix."""

    script: str
    cells: tuple[str, ...]
    text: str  # of the whole job

    def env(self, system: str) -> dict[str, str]:
        return {**LOGIN[system], **({"CELL": self.cells[0]} if self.cells else {})}


def gitlab_jobs(document: dict[str, Any]) -> Iterator[Job]:
    for name in ("build", "build-gpu", "test-gpu", "store-locks"):
        job = {**document[".cell"], **document[name]} if "extends" in document[name] else document[name]
        (axis,) = job["parallel"]["matrix"] if "parallel" in job else ({"CELL": ()},)
        yield Job("\n".join([*job.get("before_script", ()), *job["script"]]), tuple(axis["CELL"]), str(job))


def buildkite_jobs(document: dict[str, Any]) -> Iterator[Job]:
    """Variables as the upload of the pipeline replaces them."""
    for step in document["steps"]:
        if "commands" in step:
            cells = tuple(step.get("matrix", ()))
            script = "\n".join(step["commands"]).replace("$$", "$")
            yield Job(script.replace("{{matrix}}", cells[0] if cells else ""), cells, str(step))


def jobs(system: str) -> list[Job]:
    document = yaml.safe_load(FILES[system].read_text())
    return list({"gitlab": gitlab_jobs, "buildkite": buildkite_jobs}[system](document))


@pytest.fixture(params=FILES)
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path).create()


def test_the_schema_accepts_it(system: str, tmp_path: Path) -> None:
    document = yaml.safe_load(FILES[system].read_text())
    (document["build"] if system == "gitlab" else document["steps"][0])["retry"] = "often"
    broken = tmp_path / "broken.yml"
    broken.write_text(yaml.safe_dump(document))
    argv = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema", SCHEMAS[system]]
    done = subprocess.run(
        [*argv, "--output-format", "json", str(FILES[system]), str(broken)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert {error["filename"] for error in json.loads(done.stdout)["errors"]} == {str(broken)}


def test_cells_are_locked_and_in_the_jobs_of_their_kind(system: str) -> None:
    build, build_gpu, test_gpu, store = jobs(system)
    chosen = {cell.id: cell for cell in shipped_matrix().cells()}
    for cell in (*build.cells, *build_gpu.cells):
        assert (shipped("locks") / f"{cell}.toml").exists()
    assert not any(chosen[cell].gpus for cell in build.cells)
    assert all(chosen[cell].gpus for cell in build_gpu.cells)
    assert (test_gpu.cells, store.cells) == (build_gpu.cells, ())


@pytest.mark.parametrize(("number", "folder"), [(BUILD, "published"), (BUILD_GPU, "candidates")])
def test_a_cell_is_built_from_the_last_locks(system: str, checkout: Checkout, number: int, folder: str) -> None:
    job = jobs(system)[number]
    (cell,) = job.cells
    checkout.write(f"locks/{cell}.toml", "last night\n")
    checkout.git("add", ".")
    checkout.git("commit", "-qm", "x")
    checkout.git("push", "-q", "origin", "HEAD:nightly-locks")
    checkout.git("reset", "-q", "--hard", "origin/main")
    work = f"grep -q 'last night' locks/{cell}.toml && echo tonight > locks/{cell}.toml && echo c > locks/CHANGES.md"
    checkout.play(job.script, **job.env(system), DO_DOCKER="cat > ../token", DO_IMAGEGEN=work)
    more = ["--no-test"] if number == BUILD_GPU else []
    nightly = ["imagegen", "nightly", cell, "--to", "registry.example.com/acme/rl", *more]
    assert checkout.calls == [DOCKER, nightly]
    assert (checkout.root / "token").read_text() == "secret\n"
    written = {path.name: path.read_text() for path in (checkout.here / folder / cell).iterdir()}
    assert written == {f"{cell}.toml": "tonight\n", "CHANGES.md": "c\n"}
    shutil.rmtree(checkout.here / folder)
    checkout.play(job.script, fails=True, **job.env(system), DO_IMAGEGEN="exit 1")
    assert not (checkout.here / folder).exists()
    assert f"{folder}/" in job.text.partition("artifact")[2]


def test_an_image_is_published_once_its_gpu_tests_pass(system: str, checkout: Checkout) -> None:
    job = jobs(system)[TEST_GPU]
    (cell,) = job.cells
    checkout.write(f"candidates/{cell}/{cell}.toml", "tonight\n")
    checkout.play(job.script, fails=True, **job.env(system), DO_IMAGEGEN="exit 1")
    assert not (checkout.here / "published").exists()
    assert checkout.calls
    checkout.play(job.script, **job.env(system), DO_IMAGEGEN=f"grep -q tonight locks/{cell}.toml")
    options = ["--to", "registry.example.com/acme/rl", "--channel", "nightly", "--require-gpu"]
    assert [call for call in checkout.calls if call[0] == "imagegen"] == [["imagegen", "publish", cell, *options]]
    assert (checkout.here / f"published/{cell}/{cell}.toml").read_text() == "tonight\n"


def test_locks_of_published_images_are_stored(system: str, checkout: Checkout) -> None:
    job = jobs(system)[STORE]
    for cell in "ab":
        section = ChangelogSection("2026-06-02", cell, "1", "2", (f"{cell} moved",))
        checkout.write(f"published/{cell}/{cell}.toml", f"{cell} 2\n")
        checkout.write(f"published/{cell}/CHANGES.md", changes.dumps([section]))
    checkout.play(job.script, **job.env(system))
    checkout.git("fetch", "-q", "origin", "nightly-locks")
    assert checkout.git("show", "FETCH_HEAD:locks/b.toml") == "b 2\n"
    found = changes.read(checkout.git("show", "FETCH_HEAD:locks/CHANGES.md"))
    assert sorted(each.cell for each in found) == ["a", "b"]
    before = checkout.git("rev-parse", "HEAD")
    checkout.play(job.script, **job.env(system))
    assert checkout.git("rev-parse", "HEAD") == before, "nothing is new"


def test_no_secret_is_an_argument(system: str) -> None:
    for job in jobs(system):
        for line in job.script.splitlines():
            assert "PASSWORD" not in line or line.startswith("echo "), line
