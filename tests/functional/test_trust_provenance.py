"""Provenance names all that went in, by digest, and who built; an origin is a commit without anybody's password."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen import __version__
from imagegen.core.types import Submodule
from imagegen.lock.model import Lock, LockedGit, LockedPatch
from imagegen.oci.documents import digest_of
from imagegen.trust import source_commit
from imagegen.trust.provenance import Builder, find_builder, provenance
from imagegen.trust.source_commit import SourceCommit
from tests.support.shipped_locks import NAMES, shipped_lock
from tests.support.source_builds import BUILD, BUILT_WHEEL, WITH_BUILD

LOCAL = Builder("https://github.com/imagegen/imagegen/attestations/builder/local")
SOURCE = SourceCommit("https://example.org/acme/images", "a" * 40, dirty=True)
ACTIONS = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "acme/images",
    "GITHUB_WORKFLOW_REF": "acme/images/.github/workflows/nightly.yml@refs/heads/main",
    "GITHUB_RUN_ID": "77",
    "GITHUB_RUN_ATTEMPT": "2",
}


def predicate(lock: Lock, source: SourceCommit | None = None, who: Builder = LOCAL) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(provenance(lock, b"the lock", source, who))
    return found


def dependencies(lock: Lock, source: SourceCommit | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = predicate(lock, source)["buildDefinition"]["resolvedDependencies"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_all_that_a_shipped_lock_names_is_a_dependency(name: str) -> None:
    lock = shipped_lock(name)
    found = [each["digest"] for each in dependencies(lock)]
    required = {each.sha256 for each in lock.debs}
    required |= {lock.interpreter.file.sha256} if lock.interpreter.file else set()
    sources = [(wheel.sdist and wheel.sdist.git, (wheel.sdist or wheel).file) for wheel in lock.wheels]
    required |= {git.commit if git else file.sha256 for git, file in sources}
    required |= {each.file.sha256 for wheel in lock.wheels if wheel.sdist for each in wheel.sdist.build_requires}
    required |= {build.git.commit if build.git else build.source.sha256 for build in lock.builds}
    required |= {each.file.sha256 for build in lock.builds for each in build.build_requires}
    required |= {patch.sha256 for build in lock.builds for patch in build.patches}
    assert {digest.get("sha256") or digest["gitCommit"] for digest in found} == required


def test_the_text(golden: Callable[[str, str], None]) -> None:
    text = provenance(WITH_BUILD, b"the lock", SOURCE, find_builder(ACTIONS)).decode()
    golden("tiny-cu130-py311.provenance.json", text.replace(f'"{__version__}"', '"VERSION"'))


def test_the_lock_and_its_commit_are_named() -> None:
    parameters = predicate(WITH_BUILD, SOURCE)["buildDefinition"]["externalParameters"]
    assert parameters["cell"] == "tiny-cu130-py311"
    assert parameters["lock"] == {"digest": {"sha256": digest_of(b"the lock").removeprefix("sha256:")}}
    assert parameters["source"] == {"url": SOURCE.url, "commit": "a" * 40, "dirty": True}
    assert dependencies(WITH_BUILD, SOURCE)[0] == {
        "name": "source",
        "uri": f"git+https://example.org/acme/images@{'a' * 40}",
        "digest": {"gitCommit": "a" * 40},
        "annotations": {"dirty": True},
    }
    assert predicate(WITH_BUILD)["buildDefinition"]["externalParameters"]["source"].startswith("none: ")


def test_what_is_compiled_is_named_by_what_it_is_compiled_of() -> None:
    build = replace(
        BUILD,
        git=LockedGit("main", "https://user:secret@example.org/demo", "1" * 40, "2" * 40),
        submodules=(Submodule("cutlass", "https://example.org/cutlass", "3" * 40, "4" * 40),),
        patches=(LockedPatch("demo.patch", "5" * 64),),
    )
    made = replace(BUILT_WHEEL, file=replace(BUILT_WHEEL.file, sha256="9" * 64))
    lock = replace(WITH_BUILD, builds=(build,), wheels=(*WITH_BUILD.wheels, made))
    found = dependencies(lock)
    digests = [each["digest"] for each in found]
    assert {"gitCommit": "1" * 40, "gitTree": "2" * 40} in digests
    assert {"gitCommit": "3" * 40, "gitTree": "4" * 40} in digests
    assert {"sha256": "5" * 64} in digests
    assert {"sha256": made.file.sha256} not in digests
    assert "secret" not in json.dumps(found)
    assert {"sha256": build.build_requires[0].file.sha256} in digests


def test_the_builder_is_the_workflow_where_there_is_one() -> None:
    who = find_builder(ACTIONS)
    assert who.id == "https://github.com/acme/images/.github/workflows/nightly.yml@refs/heads/main"
    assert who.run == "https://github.com/acme/images/actions/runs/77/attempts/2"
    details = predicate(WITH_BUILD, who=who)["runDetails"]
    assert (details["builder"]["id"], details["metadata"]) == (who.id, {"invocationId": who.run})
    assert find_builder({}) == find_builder({**ACTIONS, "GITHUB_ACTIONS": ""}) == LOCAL


def git(where: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=where, check=True, capture_output=True, text=True).stdout


def test_a_projects_origin_is_its_commit(tmp_path: Path) -> None:
    assert source_commit.find_source(tmp_path, os.environ) is None  # no repository
    project = tmp_path / "project"
    project.mkdir()
    git(tmp_path, "init", "--quiet")
    assert source_commit.find_source(project, os.environ) is None  # no commit
    (project / "publish.yaml").write_text("publish: {}\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=one")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert source_commit.find_source(project, os.environ) == SourceCommit(None, commit, dirty=False)
    git(tmp_path, "remote", "add", "origin", "https://me:secret@example.org/acme/images.git")
    (tmp_path / "elsewhere").write_text("of no project\n")
    assert source_commit.find_source(project, os.environ) == SourceCommit(
        "https://example.org/acme/images.git", commit, dirty=False
    )
    (project / "new.yaml").write_text("")
    assert source_commit.find_source(project, os.environ, "https://example.org/said") == SourceCommit(
        "https://example.org/said", commit, dirty=True
    )


@pytest.mark.parametrize(("kind", "bare"), [("clean", False), ("process", False), ("clean", True)])
def test_a_repository_runs_no_filter(tmp_path: Path, kind: str, *, bare: bool) -> None:
    """Neither one that its configuration names, nor one of a bare repository that lies among a project's files."""
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "--quiet")
    (project / "publish.yaml").write_text("publish: {}\n")
    (project / ".gitattributes").write_text("*.yaml filter=hostile\n")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message=one")
    git(project, "config", f"filter.hostile.{kind}", f"touch {tmp_path}/ran; false")
    git(project, "config", "filter.hostile.required", "true")
    (project / "publish.yaml").write_text("publish: []\n")  # as long as before: git has to read it
    if bare:
        git(project, "config", "core.worktree", str(project))
        for each in (project / ".git").iterdir():
            each.rename(project / each.name)
        (project / ".git").rmdir()
    found = source_commit.find_source(project, os.environ)
    assert (found is None) if bare else (found and found.dirty)
    assert not (tmp_path / "ran").exists()


ADDRESSES = {
    "https://token@example.org/a/b.git": "https://example.org/a/b.git",
    "https://example.org:8443/a/b?token=x#y": "https://example.org:8443/a/b",
    "git@example.org:a/b.git": "ssh://example.org/a/b.git",
    "ssh://git@example.org:2222/a/b": "ssh://example.org:2222/a/b",
    "/srv/git/b.git": None,
    "../b": None,
    "file:///srv/b": None,
    "https://[broken": None,
}


@pytest.mark.parametrize(("address", "expected"), ADDRESSES.items())
def test_addresses_are_public(address: str, expected: str | None) -> None:
    assert source_commit.public_url(address) == expected


@given(st.from_regex(r"[a-z]{1,6}:[A-Za-z0-9]{5,9}", fullmatch=True), st.sampled_from(["https", "ssh", "git", "http"]))
def test_no_address_keeps_its_credentials(credentials: str, scheme: str) -> None:
    assert credentials not in str(
        source_commit.public_url(f"{scheme}://{credentials}@example.org/a?{credentials}#{credentials}")
    )
