"""The workflows: pinned, modest, and their `run:` steps do what they say in a scratch checkout.

`gh`, `docker`, `sudo` and `pip` are stand-ins that write down what they are asked. `imagegen` is one that has its
arguments parsed by the real command line, then does what the test says instead of the work.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from imagegen.app.nightly import changes
from imagegen.app.nightly.changes import ChangelogSection
from tests.support.ci_checkout import Checkout
from tests.support.command_line import Run

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / ".github/workflows").glob("*.yml")), ROOT / ".github/actions/setup/action.yml"]
NOT_HERE = {
    ("ci.yml", "Set up"): "it makes this very environment; `make lint` and `make test` start with it",
    ("ci.yml", "Lint"): "the tests do not run the linters: CI does",
    ("ci.yml", "Test"): "it is the run that this test is part of",
    ("ci.yml", "Build the documentation"): "it installs the site's generator; tests check links and generated pages",
    (
        "package.yml",
        "Build sdist and wheel",
    ): "it installs build and twine; tests/integration/test_package.py builds it",
}


def steps() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(file, job, step)."""
    for path in FILES:
        document = yaml.safe_load(path.read_text())
        for job in document.get("jobs", {"": document.get("runs")}).values():
            yield from ((path.name, job, step) for step in job["steps"])


RUNS = {(file, step.get("name", "")): step["run"] for file, _, step in steps() if "run" in step}
WITH_TOKEN = {(file, step.get("name", "")) for file, _, step in steps() if "GH_TOKEN" in step.get("env", {})}


class WorkflowCheckout(Checkout):
    """A checkout in which steps of the workflows run."""

    def run(self, file: str, name: str, *, fails: bool = False, **env: str) -> str:
        """Run a step as GitHub does; what it says."""
        token = {"GH_TOKEN": "secret"} if (file, name) in WITH_TOKEN else {}
        said = self.play(RUNS[file, name], fails=fails, **token, **env)
        DONE.add((file, name))
        return said


DONE: set[tuple[str, str]] = set()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one lock, and a clone of it that reaches it from beside."""
    return Checkout(tmp_path_factory.mktemp("first")).create().root


@pytest.fixture
def checkout(tmp_path: Path, origin: Path) -> WorkflowCheckout:
    for name in ("origin.git", "here"):
        shutil.copytree(origin / name, tmp_path / name)
    return WorkflowCheckout(tmp_path)


def test_actions_are_pinned_and_tokens_stay_out_of_checkouts() -> None:
    for file, _, step in steps():
        if uses := step.get("uses"):
            assert re.fullmatch(
                r"((actions/[a-z-]+|pypa/gh-action-pypi-publish)@[0-9a-f]{40}|[.$]/\.github/actions/setup)", uses
            ), (file, uses)
            if "/checkout@" in uses:
                assert step["with"] == {"persist-credentials": False}
    for path in FILES:
        for line in re.findall(r"uses: (?:actions|pypa)/.*", path.read_text()):
            assert re.search(r" # v\d+\.\d+\.\d+$", line), line


def test_permissions_are_given_job_by_job() -> None:
    for path in FILES[:-1]:
        document = yaml.safe_load(path.read_text())
        assert document["permissions"] == {}
        assert all("permissions" in job for job in document["jobs"].values())


def test_the_token_is_in_the_environment_of_the_steps_that_use_it() -> None:
    """Not of a whole job: imagegen and what it starts need none."""
    assert WITH_TOKEN
    for path in FILES:
        document = yaml.safe_load(path.read_text())
        for scope in (document, *document.get("jobs", {}).values()):
            assert "token" not in str(scope.get("env", {})), path.name
    for file, _, step in steps():
        uses = re.search(r"GH_TOKEN|\bgh |\bgit (fetch|push)\b", step.get("run", ""))
        assert ((file, step.get("name", "")) in WITH_TOKEN) is bool(uses), (file, step.get("name"))


def test_no_expression_stands_in_a_script() -> None:
    assert RUNS
    for key, script in RUNS.items():
        assert key[1], f"a step of {key[0]} has no name"
        assert "${{" not in script, key


@pytest.mark.parametrize(("runner", "changes_kernel"), [("github-hosted", True), ("self-hosted", False)])
def test_setup_installs_imagegen(runner: str, changes_kernel: bool, checkout: WorkflowCheckout) -> None:
    checkout.run("action.yml", "Install imagegen", RUNNER_ENVIRONMENT=runner)
    calls = checkout.calls
    assert [call[0] for call in calls] == ["sudo"] * (2 + changes_kernel) + ["python"] * 2
    assert any("sysctl" in call for call in calls) is changes_kernel


def test_what_ci_installs_is_locked_by_hash() -> None:
    """A release of any package would otherwise run in jobs that push images and sign."""
    for key, script in RUNS.items():
        for command in re.findall(r"pip install.*", script):
            locked = "--require-hashes --only-binary :all: -r .github/requirements/" in command
            assert locked or "--no-deps --no-build-isolation ." in command, key
        assert "python -m build" not in script or "python -m build --no-isolation" in script, key
        assert not re.search(r"pipx|uvx|uv (pip|tool|sync|run)", script), key


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKED = {
    "imagegen.txt": (
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["keyless"],
        *PROJECT["build-system"]["requires"],
    ),
    "package.txt": (*PROJECT["build-system"]["requires"], "build", "twine"),
}


@pytest.mark.parametrize("name", LOCKED)
def test_the_locked_requirements_are_those_of_the_project(name: str) -> None:
    text = (ROOT / ".github/requirements" / name).read_text()
    entries = re.findall(r"^(\S+)==(\S+)[^\n]*\\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    pinned = {package: version for package, version, _ in entries}
    for requirement in map(Requirement, LOCKED[name]):
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), requirement
    plain = [line for line in text.splitlines() if not line.startswith((" ", "#"))]
    assert len(plain) == len(entries)  # nothing without a hash, no option, no address
    assert "://" not in text


def test_jobs_that_sign_for_a_release_have_an_environment() -> None:
    for name in ("release.yml", "package.yml"):
        for job in yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"].values():
            signs = {"id-token", "packages"} & job["permissions"].keys()
            assert bool(signs) is ("environment" in job), name


@pytest.mark.parametrize("file", ["nightly.yml", "release.yml"])
def test_images_of_several_platforms_have_emulators(file: str, checkout: WorkflowCheckout) -> None:
    checkout.run(file, "Install the emulators of other processors")
    assert [call[0] for call in checkout.calls] == ["sudo"]


@pytest.mark.parametrize("file", ["nightly.yml", "release.yml"])
def test_the_plan_is_two_matrices(file: str, checkout: WorkflowCheckout, run: Run) -> None:
    checkout.write("said", run("--project", str(ROOT), "matrix", "--github").out)
    checkout.run(file, "List the cells", DO_IMAGEGEN="cat said")
    said = dict(line.split("=", 1) for line in checkout.output.read_text().splitlines())
    cells, gpu = (json.loads(said[name])["include"] for name in ("cells", "gpu"))
    (row,) = (row for row in cells if row["image"] == "cpu-grpo" and "py311" in row["cell"])
    assert row == {
        "cell": "cpu-grpo-cpu-py311",
        "image": "cpu-grpo",
        "gpu": False,
        "labels": ["ubuntu-24.04"],
        "locks": "locks/cpu-grpo-cpu-py311.toml\nlocks/cpu-grpo-cpu-py311-linux-arm64.toml",
        "platforms": "linux/amd64,linux/arm64",
    }
    (row,) = (row for row in gpu if row["cell"] == "blackwell-vllm-cu130-py311")
    assert (row["labels"], row["platforms"]) == (["self-hosted", "gpu", "blackwell"], "")
    assert row["locks"] == "locks/blackwell-vllm-cu130-py311.toml"
    assert [row for row in cells if row["gpu"]] == gpu
    assert file == "release.yml" or re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", said["as_of"])
    assert len(cells) == len({row["cell"] for row in cells}) > len(gpu) > 20
    assert run("matrix", "prime-rl", "--github").out == "cells=\ngpu=\n"


@pytest.mark.parametrize("file", ["nightly.yml", "release.yml"])
def test_the_registry_is_logged_into_and_the_token_is_no_argument(file: str, checkout: WorkflowCheckout) -> None:
    checkout.run(file, "Log in", TO="ghcr.io/Acme/rl", DO_DOCKER="cat > token")
    assert checkout.calls == [["docker", "login", "ghcr.io", "--username", "me", "--password-stdin"]]
    assert (checkout.here / "token").read_text() == "secret\n"


def test_a_nightly_run_starts_from_the_last_ones_locks(checkout: WorkflowCheckout) -> None:
    checkout.run("nightly.yml", "Fetch the published locks")
    assert (checkout.here / "locks/a.toml").read_text() == "a 1\n"
    checkout.write("locks/a.toml", "a 2\n")
    checkout.git("commit", "-qam", "x")
    checkout.git("push", "-q", "origin", "HEAD:nightly-locks")
    checkout.git("reset", "-q", "--hard", "origin/main")
    checkout.run("nightly.yml", "Fetch the published locks")
    assert (checkout.here / "locks/a.toml").read_text() == "a 2\n"


@pytest.mark.parametrize(
    ("option", "platforms", "more"),
    [
        ("", "", []),
        ("--no-test", "", ["--no-test"]),
        ("", "linux/amd64,linux/arm64", ["--platform=linux/amd64,linux/arm64"]),
    ],
)
def test_a_cell_is_moved_built_and_published(
    checkout: WorkflowCheckout, option: str, platforms: str, more: list[str]
) -> None:
    env = {"CELL": "cpu-grpo", "TO": "ghcr.io/Acme/rl", "AS_OF": "2026-11-20T00:00:00Z"}
    env |= {"OPTION": option, "PLATFORMS": platforms}
    checkout.run("nightly.yml", "Update, build and publish", DO_IMAGEGEN="echo moved", **env)
    line = ["nightly", "cpu-grpo", "--to", "ghcr.io/acme/rl", "--as-of", "2026-11-20T00:00:00Z", *more]
    assert checkout.calls == [["imagegen", *line]]
    assert checkout.summary.read_text() == "moved\n"
    checkout.run("nightly.yml", "Update, build and publish", DO_IMAGEGEN="exit 1", fails=True, **env)


def section(cell: str, line: str) -> ChangelogSection:
    return ChangelogSection("2026-06-02", cell, "1", "2", (line,))


def test_the_locks_of_published_images_are_stored(checkout: WorkflowCheckout) -> None:
    kept = [ChangelogSection("2026-06-01", "a", "0", "1", ("a is older",))]
    checkout.write("locks/CHANGES.md", changes.dumps(kept))
    for cell in "ab":
        checkout.write(f"published/published-{cell}/{cell}.toml", f"{cell} 2\n")
        checkout.write(f"published/published-{cell}/CHANGES.md", changes.dumps([section(cell, f"{cell} moved"), *kept]))
    checkout.run("nightly.yml", "Store the locks of published images")
    shutil.rmtree(checkout.here / "published")
    checkout.git("fetch", "-q", "origin", "nightly-locks")
    checkout.git("checkout", "-q", "--force", "FETCH_HEAD")
    assert (checkout.here / "locks/b.toml").read_text() == "b 2\n"
    found = changes.read((checkout.here / "locks/CHANGES.md").read_text())
    assert sorted(found, key=lambda each: (each.date, each.cell)) == [
        *kept, section("a", "a moved"), section("b", "b moved"),
    ]  # fmt: skip
    (checkout.here / "published").mkdir()
    before = checkout.git("rev-parse", "HEAD")
    checkout.write("published/published-a/a.toml", "a 2\n")
    checkout.run("nightly.yml", "Store the locks of published images")
    assert checkout.git("rev-parse", "HEAD") == before, "nothing is new"


def test_a_proposal_becomes_a_pull_request(checkout: WorkflowCheckout) -> None:
    checkout.run("bump.yml", "Propose", DO_IMAGEGEN="echo 'a 1 -> 2'; echo 'a 2' > locks/a.toml; exit 1")
    assert checkout.calls == [["imagegen", "nightly", "--propose-only"]]
    assert (checkout.output.read_text(), checkout.summary.read_text()) == ("failed=1\n", "a 1 -> 2\n")
    name = "Open a pull request, or bring the open one up to date"
    no_pull = '[ "$(tail -n1 ../log | grep -c edit)" = 0 ]'
    checkout.run("bump.yml", name, BASE="main", DO_GH=no_pull)
    assert [call[1:3] for call in checkout.calls] == [["auth", "setup-git"], ["pr", "edit"], ["pr", "create"]]
    assert (checkout.here / "body.md").read_text() == "a 1 -> 2\n"
    assert checkout.git("show", "--stat", "--format=%s", "origin/bump").startswith("Locks as of 20")
    checkout.run("bump.yml", name, BASE="main")
    assert checkout.calls == [], "nothing is new"
    assert "a 1 -> 2" in checkout.run("bump.yml", "Say what failed", fails=True)


def test_a_harvest_becomes_a_pull_request(checkout: WorkflowCheckout) -> None:
    checkout.write("matrices/metadata/a.json", "{}")
    checkout.run("harvest.yml", "Harvest", DO_PYTHON="echo '- a: 2 new; 3 cells change'; exit 1")
    assert checkout.calls == [["python", "-m", "tools.harvest", each] for each in ("--scan", "--api", "--verdicts")]
    summary = "- a: 2 new; 3 cells change\n"
    assert (checkout.output.read_text(), checkout.summary.read_text()) == ("failed=1\n" * 3, summary)
    name = "Open a pull request, or bring the open one up to date"
    no_pull = '[ "$(tail -n1 ../log | grep -c edit)" = 0 ]'
    checkout.run("harvest.yml", name, BASE="main", DO_GH=no_pull)
    assert [call[1:3] for call in checkout.calls] == [["auth", "setup-git"], ["pr", "edit"], ["pr", "create"]]
    assert (checkout.here / "body.md").read_text() == summary
    assert checkout.git("show", "--stat", "--format=%s", "origin/harvest").startswith("Package metadata as of 20")
    checkout.run("harvest.yml", name, BASE="main")
    assert checkout.calls == [], "nothing is new"
    assert "3 cells change" in checkout.run("harvest.yml", "Say what failed", fails=True)


@pytest.mark.parametrize(
    ("file", "name", "line"),
    [
        ("nightly.yml", "Test and publish", ["--channel", "nightly", "--require-gpu"]),
        ("release.yml", "Test and publish", ["--require-gpu"]),
        ("release.yml", "Publish", ["--no-test"]),
    ],
)
def test_images_are_published_and_verified(checkout: WorkflowCheckout, file: str, name: str, line: list[str]) -> None:
    cell = "hopper-vllm-cu130-py311"
    env = {"CELL": cell, "IMAGE": "hopper-vllm", "TO": "ghcr.io/Acme/rl", "OPTION": "--no-test"}
    checkout.run(file, name, **env, DO_IMAGEGEN="echo sha256:1; echo sha256:2")
    demands = ["--cell", cell, "--require-signature", "--no-layers"]
    publish, verify = checkout.calls
    assert publish == ["imagegen", "publish", cell, "--to", "ghcr.io/acme/rl", *line]
    assert verify == ["imagegen", "verify", "ghcr.io/acme/rl/hopper-vllm@sha256:2", *demands]
    checkout.run(file, name, **env, DO_IMAGEGEN="exit 1", fails=True)
    assert [call[1] for call in checkout.calls] == ["publish"]
    not_signed = "grep -q '\"verify\"' ../log && exit 1; echo sha256:2"
    checkout.run(file, name, **env, DO_IMAGEGEN=not_signed, fails=True)
    assert [call[1] for call in checkout.calls] == ["publish", "verify"]


def test_a_package_has_the_version_of_the_tag(checkout: WorkflowCheckout) -> None:
    checkout.write("dist/imagegen-1.2.0.tar.gz", "")
    checkout.run("package.yml", "Compare the version with the tag", GITHUB_REF_NAME="v1.2.0")
    checkout.run("package.yml", "Compare the version with the tag", GITHUB_REF_NAME="v1.2.1", fails=True)


def test_every_step_was_played_or_has_a_reason(request: pytest.FixtureRequest) -> None:
    """The last of this file: it knows what the others have run, where all of them have."""
    ran = {getattr(item, "originalname", "") for item in request.session.items if item.path == Path(__file__)}
    if ran == {name for name in globals() if name.startswith("test_")}:
        assert RUNS.keys() - NOT_HERE.keys() == DONE
    assert NOT_HERE.keys() <= RUNS.keys()
