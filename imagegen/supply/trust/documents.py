"""The documents about an image that a registry keeps as referrers of the image's manifest.

Sources: OCI image-spec v1.1, manifest.md (subject, artifactType); in-toto attestation framework, Statement v1 and the
predicate types named below; CycloneDX 1.6. A document is attached plainly, so that any tool finds it; with a signer, a
signed in-toto statement about the image, with the document as its predicate, is attached too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from imagegen import REPOSITORY
from imagegen.core.errors import FetchError
from imagegen.core.git import command, local
from imagegen.core.git.local import Worktree


@dataclass(frozen=True)
class Kind:
    """A kind of attached document: its name in messages, its media type, which is the artifact's type too.

    `predicate` is the in-toto predicate type under which the document (a JSON object) is signed; None: it is covered
    by another document, which names its digest.
    """

    name: str
    media_type: str
    predicate: str | None


_TYPES = f"{REPOSITORY}/attestations"

LOCK = Kind("lock", "application/vnd.imagegen.lock.v1+toml", None)
# What a lock gave, in the form of image/layers/image.py: the layers from the bottom up with their keys and descriptors,
# in another compression too where they were published so, digests of the LOCK document and the image, and of all facts
# by their keys. A client that trusts its signer need not make these layers.
LAYERS = Kind("layers", "application/vnd.imagegen.layers.v1+json", f"{_TYPES}/layers/v1")
# Layers of an image that is not finished, in the form of supply/publish/prebuilt.py: attached to the keys of the
# layers, digests of their inputs and of no manifest, and as a signed statement alone.
PREBUILT = Kind("prebuilt", "application/vnd.imagegen.prebuilt.v1+json", f"{_TYPES}/prebuilt/v1")
SBOM = Kind("sbom", "application/vnd.cyclonedx+json", "https://cyclonedx.org/bom")
PROVENANCE = Kind("provenance", "application/vnd.imagegen.provenance.v1+json", "https://slsa.dev/provenance/v1")
SMOKE = Kind("smoke", "application/vnd.imagegen.smoke.v1+json", "https://in-toto.io/attestation/test-result/v0.1")
AUDIT = Kind("audit", "application/vnd.imagegen.audit.v1+json", f"{_TYPES}/audit/v1")
# The results of `imagegen test --numerics`, one for each device (run/numerics.py).
NUMERICS = Kind("numerics", "application/vnd.imagegen.numerics.v1+json", f"{_TYPES}/numerics/v1")

KINDS = {kind.name: kind for kind in (LOCK, LAYERS, PREBUILT, SBOM, PROVENANCE, SMOKE, AUDIT, NUMERICS)}

# What an audit knows of each wheel and of the base, so that an empty store need not fetch the wheel to learn it: no
# document, but an artifact that keeps a blob for each, titled with its key. LAYERS names each, and who wants one asks
# for it by that digest.
FACTS = "application/vnd.imagegen.facts.v1"
FACT = "application/vnd.imagegen.fact.v1+zstd"  # media type of one: JSON, compressed

SIGNATURE = "https://sigstore.dev/cosign/sign/v1"  # predicate type of what `cosign sign` says: "this is mine"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"  # media type of a signed statement, Sigstore's bundle


@dataclass(frozen=True)
class Document:
    """A document about an image. `content` is a JSON object where the kind has a predicate type."""

    kind: Kind
    content: bytes


@dataclass(frozen=True)
class Attached:
    """A document as a registry has it. `signer` is the project's name of its trusted signer; None without one."""

    document: Document
    digest: str  # of the artifact's manifest
    signer: str | None


# The origin of a project's files: the repository, the commit, and whether something was changed since.
#
# Nothing that the repository names is run. Source: git-config(1), git-status(1), git-remote(1), git 2.39; URLs
# of pip's and SPDX's form "git+https://...".

_STATUS = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")
_SHORT = re.compile(r"(?:[^@/\s]+@)?([^:/\s]+):(?!//)(.+)")  # git@github.com:acme/images.git


@dataclass(frozen=True)
class SourceCommit:
    """The commit of a project. `url` has no credentials, None without a remote; `dirty`: files differ from it."""

    url: str | None
    commit: str  # 40 or 64 hex digits
    dirty: bool


def of(project: Path, env: Mapping[str, str], url: str | None = None) -> SourceCommit | None:
    """Return the commit that a project's directory is at. None without git, or where no repository and no commit is.

    `url` is the repository's address where publish.yaml's `source` names it. Raises ForeignRepositoryError.
    """
    tree = local.find(project, env)
    if tree is None:
        return None
    try:
        commit = tree.run(project, ["rev-parse", "--verify", "HEAD"]).strip()
        changed = tree.run(project, _STATUS, _no_filters(project, tree))
    except (command.FailedError, FetchError):
        return None
    return SourceCommit(url or _remote(project, tree), commit, bool(changed.strip()))


def _no_filters(project: Path, tree: Worktree) -> dict[str, str]:
    """Return settings that disable the programs that filter a repository's files (gitattributes(5)).

    If such a filter is needed to compare a file with the commit's, the file counts as changed.
    """
    try:
        named = tree.run(project, ["config", "--null", "--name-only", "--get-regexp", r"^filter\."])
    except command.FailedError:
        return {}  # there is none
    drivers = {name.rpartition(".")[0] for name in named.split("\0") if name}
    # An empty `process` takes the place of `clean`, too.
    return {
        f"{driver}.{key}": value
        for driver in sorted(drivers)
        for key, value in (("process", ""), ("required", "false"))
    }


def _remote(project: Path, tree: Worktree) -> str | None:
    try:
        found = tree.run(project, ["config", "--get", "remote.origin.url"]).strip()
    except (command.FailedError, FetchError):
        return None
    return public(found)


def public(address: str) -> str | None:
    """Return a remote's address without user, password and query; None for a directory, which other machines cannot
    reach.
    """
    if "://" not in address:
        short = _SHORT.fullmatch(address)
        return f"ssh://{short[1]}/{short[2].lstrip('/')}" if short else None
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return None
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
        return None
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
