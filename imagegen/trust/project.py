"""Read publish.yaml, with a project's registry, the repository of its locks, and its trusted signers.

Its fields decide how images are published and verified; they do not change an image's bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from imagegen.core import data
from imagegen.core.errors import MatrixError, MatrixErrors
from imagegen.core.strict import Strict
from imagegen.spec import document as documents
from imagegen.spec.validation_faults import explain

FILE = "publish.yaml"
_MISSPELT = "publish.yml"
_Text = Annotated[str, Field(min_length=1, max_length=500)]


@dataclass(frozen=True)
class Key:
    """A public key (PEM) whose signatures are trusted, by the name that reports use."""

    name: str
    file: Path


@dataclass(frozen=True)
class Identity:
    """An identity that may sign without a key, with the certificate's issuer and subject as Fulcio writes them.

    `trust_root` is a Sigstore ClientTrustConfig (JSON) with the services and their keys; None for the public services.
    """

    name: str
    issuer: str  # "https://token.actions.githubusercontent.com"
    subject: str  # "https://github.com/acme/images/.github/workflows/nightly.yml@refs/heads/main"
    trust_root: Path | None = None


@dataclass(frozen=True)
class Project:
    """The content of publish.yaml. Without the file, it has no repository and no trusted signer."""

    to: str | None = None  # "ghcr.io/acme/rl": images go to repositories below it
    source: str | None = None  # address of the repository that holds the locks
    keys: tuple[Key, ...] = ()
    identities: tuple[Identity, ...] = ()


def load(directory: Path) -> Project:
    """Read publish.yaml of a project; without the file, all fields are empty. Raises MatrixErrors with all faults.

    Raises MatrixError for a publish.yml and a dangling link, because ignoring them would disable verification, and
    for a file outside of the project.
    """
    path, misspelt = directory / FILE, directory / _MISSPELT
    if os.path.lexists(misspelt):
        fix = f"rename it to {FILE}"
        raise MatrixError(
            "the file name is wrong, so the file would not be read",
            code="matrix-wrong-file-name",
            where=str(misspelt),
            fix=fix,
        )
    try:
        document = documents.parse(path, data.read(path, directory, data.MAX_SOURCE_FILE))
    except FileNotFoundError as error:
        if not path.is_symlink():
            return Project()
        fix = "correct the link, or remove it"
        raise MatrixError(
            "the target of the link does not exist",
            code="matrix-unreadable",
            where=str(path),
            why=f"to {path.readlink()}",
            fix=fix,
        ) from error
    except OSError as error:
        raise MatrixError(
            "the file cannot be read", code="matrix-unreadable", where=str(path), why=error.strerror
        ) from error
    if document.errors:
        raise MatrixErrors(document.errors)
    try:
        read = ProjectFile.model_validate(document.data)
    except ValidationError as invalid:
        raise MatrixErrors(explain(document, invalid.errors(include_url=False), ProjectFile)) from invalid

    def file(path: str, *keys: str) -> Path:
        if not data.is_within(directory / path, directory):
            summary, fix = f"{path} cannot be read", "copy the file into the project"
            where = document.where(("publish", *keys))
            raise MatrixError(summary, code="matrix-unreadable", where=where, why=data.OUTSIDE, fix=fix)
        return directory / path

    return Project(
        read.publish.to,
        read.publish.source,
        tuple(Key(name, file(path, "keys", name)) for name, path in read.publish.keys.items()),
        tuple(
            Identity(
                name, identity.issuer, identity.subject, file(root, "identities", name, "trust_root") if root else None
            )
            for name, identity in read.publish.identities.items()
            for root in [identity.trust_root]
        ),
    )


class IdentityEntry(Strict):
    """An identity that may sign without a key, as Fulcio writes it into certificates."""

    issuer: _Text = Field(description="OIDC issuer.")
    subject: _Text = Field(description="Workflow file and branch or tag, compared exactly.")
    trust_root: _Text | None = Field(
        default=None, description="File with a Sigstore ClientTrustConfig (JSON); without it, the public instance."
    )


class PublishEntry(Strict):
    """The registry of the images, and the trusted signers."""

    to: _Text | None = Field(default=None, description="Repository below which each image has its own; else `--to`.")
    source: Annotated[str, Field(pattern=r"^https://[^\s@]+$")] | None = Field(
        default=None, description="Address of the repository of the locks; else git's remote."
    )
    keys: dict[_Text, _Text] = Field(default_factory=dict, description="Name -> file of a trusted public key (PEM).")
    identities: dict[_Text, IdentityEntry] = Field(default_factory=dict, description="Trusted identities.")


class ProjectFile(Strict):
    """The whole file."""

    publish: PublishEntry = Field(default_factory=PublishEntry)
