"""Write SLSA provenance, the predicate of an in-toto statement about an image's manifest.

A pure function of the lock, its origin, and the builder. Sources: SLSA provenance v1
(https://slsa.dev/spec/v1.0/provenance), in-toto attestation framework v1, ResourceDescriptor; GitHub Actions, "Default
environment variables".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from imagegen import REPOSITORY, __version__
from imagegen.core.git.submodule import Submodule
from imagegen.core.text import redact
from imagegen.lock import contents_hash, inputs_hash
from imagegen.lock.artifacts import LockArtifact, packages
from imagegen.lock.model import BUILT, Lock, LockedBuild, LockedFile, LockedGit, LockedPatch, WheelPatch
from imagegen.oci import registry
from imagegen.oci.documents import digest_of
from imagegen.trust import package_url
from imagegen.trust.source_commit import SourceCommit

BUILD_TYPE = f"{REPOSITORY}/attestations/build/v1"  # builds an image from a lock; it defines `externalParameters`
_LOCAL = f"{REPOSITORY}/attestations/builder/local"
_GITHUB = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_WORKFLOW_REF", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT")


@dataclass(frozen=True)
class Builder:
    """The builder. `id` names the trusted platform, `run` is the address of this run if it has one."""

    id: str
    run: str | None = None


def find_builder(env: Mapping[str, str]) -> Builder:
    """Return the GitHub Actions workflow of this run, else imagegen on a local machine."""
    server, repository, workflow, run, attempt = (env.get(name, "") for name in _GITHUB)
    if env.get("GITHUB_ACTIONS") != "true" or not (server and repository and workflow):
        return Builder(_LOCAL)
    return Builder(
        f"{server}/{workflow}", f"{server}/{repository}/actions/runs/{run}/attempts/{attempt or 1}" if run else None
    )


def provenance(lock: Lock, document: bytes, source: SourceCommit | None, builder: Builder) -> bytes:
    """Return the predicate. `document` is the attached lock file, whose digest it names."""
    metadata = {"invocationId": builder.run} if builder.run else {}
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "cell": lock.cell,
                "inputs": inputs_hash(lock),
                "lock": {"digest": _sha256(digest_of(document))},
                "source": asdict(source) if source else "none: the lock is in no git repository",
            },
            "internalParameters": {"contents": contents_hash(lock), "as-of": lock.as_of},
            "resolvedDependencies": list(_dependencies(lock, source)),
        },
        "runDetails": {"builder": {"id": builder.id, "version": {"imagegen": __version__}}, "metadata": metadata},
    }
    return (json.dumps(predicate, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _dependencies(lock: Lock, source: SourceCommit | None) -> Iterator[dict[str, Any]]:
    """Yield each input of the image and of its builds once, beginning with the repository of the lock."""
    if source:
        yield {
            "name": "source",
            "uri": f"git+{source.url}@{source.commit}" if source.url else f"git+commit:{source.commit}",
            "digest": {"gitCommit": source.commit},
            "annotations": {"dirty": source.dirty},
        }
    base = lock.base
    if base.content and base.image:
        uri = package_url.oci(registry.parse(base.image).name, base.content.digest, lock.platform)
        yield {"name": "base", "uri": uri, "digest": _sha256(base.content.digest)}
    if archive := lock.interpreter.file:
        yield {"name": "interpreter", "uri": archive.url, "digest": {"sha256": archive.sha256}}
    for deb in lock.debs:
        yield {"uri": package_url.deb(deb, base.suite), "digest": {"sha256": deb.sha256}}
    seen = set()
    artifacts = (artifact for package in packages(lock) for artifact in package.walk())
    for dependency in (dependency for artifact in artifacts for dependency in _package_file(artifact)):
        if (key := json.dumps(dependency, sort_keys=True)) not in seen:
            seen.add(key)
            yield dependency


def _package_file(artifact: LockArtifact) -> Iterator[dict[str, Any]]:
    """Yield the file of a package, and the submodules of its commit. A compiled wheel's build has its own files."""
    file, package = artifact.about, artifact.package
    if package and isinstance(file, WheelPatch | LockedPatch):
        name = file.path if isinstance(file, WheelPatch) else file.filename
        yield {"name": f"{package.name}: {name}", "digest": {"sha256": file.sha256}}
    if package is None or not isinstance(file, LockedFile) or file.index == BUILT:
        return
    name, version = package.name, package.version
    yield _git(f"{name} {version}", package.git) if package.git else _file(name, version, file)
    for module in package.submodules if isinstance(package, LockedBuild) else ():
        yield _git(f"{package.name}: {module.path}", module)


def _file(name: str, version: str, file: LockedFile) -> dict[str, Any]:
    entry: dict[str, Any] = {"uri": package_url.pypi(name, version, file), "digest": {"sha256": file.sha256}}
    if file.url:
        entry["downloadLocation"] = redact(file.url)
    return entry


def _git(name: str, git: LockedGit | Submodule) -> dict[str, Any]:
    folder = f"#subdirectory={git.subdirectory}" if isinstance(git, LockedGit) and git.subdirectory else ""
    return {
        "name": name,
        "uri": f"git+{redact(git.url)}@{git.commit}{folder}",
        "digest": {"gitCommit": git.commit, "gitTree": git.tree},
    }


def _sha256(digest: str) -> dict[str, str]:
    return {"sha256": digest.removeprefix("sha256:")}
