"""The team's wheelhouse: wheels in a repository of a registry, each an artifact whose tag is derived from its key.

Sources: OCI image-spec v1.1, manifest.md (artifacts, the empty descriptor); distribution-spec v1.1 (syntax of
tags). Every account with write access decides what others install. A pulled wheel must therefore have the requested
key, the listed digests and a matching file name, and is audited like any other.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.core.config import WHEELHOUSE_VARIABLE, Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, UsageError
from imagegen.core.net import Client, NotFoundError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.lock.builds import BuiltWheel
from imagegen.oci.documents import (
    EMPTY,
    EMPTY_CONTENT,
    MANIFEST_TYPE,
    Artifact,
    Descriptor,
    is_digest,
    read_artifact,
    write_artifact,
)
from imagegen.oci.registry import PushTarget, Reference, Repository, parse
from imagegen.wheels import naming
from imagegen.wheels.wheelhouse import keep, log_of

ARTIFACT = "application/vnd.imagegen.wheel.v1"
_FILE = "application/vnd.imagegen.wheel.v1.file+zip"
_RECORD = "application/vnd.imagegen.wheel.v1.record+json"
_LOG = "text/plain"
_OWN = "dev.imagegen.wheel."


def place(settings: Settings, name: str | None = None, option: str = "") -> Reference | None:
    """Return the remote wheelhouse that the command's `option` or else the environment names; None without one.

    Raises UsageError for an invalid name of a repository.
    """
    text, origin = (name, option) if name is not None else (settings.wheelhouse, WHEELHOUSE_VARIABLE)
    if text is None:
        return None
    fix = "write registry.example.com/team/wheels, say"
    try:
        reference = parse(text)
    except FetchError as error:
        raise UsageError(
            f"{origin} names no repository of a registry", code="usage-no-repository", why=error.summary, fix=fix
        ) from error
    if reference.tag or reference.digest:
        why = f"{text} is one image: each wheel gets a tag of its own"
        raise UsageError(f"{origin} names no repository of a registry", code="usage-no-repository", why=why, fix=fix)
    return reference


def tag(key: str) -> str:
    """The tag of the wheel with this key ("sha256:...")."""
    if not is_digest(key):
        raise UsageError(
            f'"{key}" is not a key of a wheel',
            code="usage-invalid-value",
            fix="a key is sha256: and 64 lower-case hex digits",
        )
    return key.replace(":", "-")


@dataclass(frozen=True)
class _Entry:
    """A wheel as its manifest describes it; `wheel.record` is empty, and `record` is the blob with the record."""

    wheel: BuiltWheel
    record: Descriptor
    log: Descriptor | None


class RemoteWheelhouse:
    """The wheelhouse at `repository`. Thread-safe."""

    def __init__(self, repository: Reference, client: Client, settings: Settings) -> None:
        self._reference = repository
        self._repository = Repository(repository, client, settings, what="wheelhouse")
        self._target = PushTarget(repository, client, settings)
        self._lock, self._reached = threading.Lock(), False

    def __str__(self) -> str:
        return self._reference.name

    def reach(self) -> None:
        """Raise PublishError within seconds if the registry does not respond."""
        self._target.reach()

    def lookup(self, key: str) -> BuiltWheel | None:
        """Return the wheel with this key without its record, from one small document; None if there is none.

        A repository that does not exist has none. Raises FetchError, also for a manifest of another wheel.
        """
        entry = self._entry(key)
        return entry.wheel if entry else None

    def fetch(
        self, key: str, store: Store, progress: Progress, *, required: tuple[str, str] | None = None
    ) -> BuiltWheel | None:
        """Fetch the wheel with this key into the store's wheelhouse; None if there is none.

        `required` is the name (normalised) and the version that it must have. Raises FetchError for a file, a record or
        a name of another wheel, StoreError.
        """
        entry = self._entry(key)
        if entry is None:
            return None
        if required and not is_plain_name(entry.wheel.filename, *required):
            why = f"it is {entry.wheel.filename}, and {' '.join(required)} was requested"
            raise self._wrong(key, why)
        wheel = self._complete(entry)
        blobs = [Descriptor(_FILE, wheel.digest, wheel.size), *([entry.log] if entry.log else [])]
        with progress.meter(wheel.filename, sum(part.size for part in blobs)) as meter:
            for part in blobs:
                self._repository.download(part.digest, part.size, store, meter)
        keep(store, wheel)
        return wheel

    def has(self, key: str) -> bool:
        """Return whether something is under this key, with write access. Raises PublishError."""
        return self._target.manifest(tag(key)) is not None

    def push(self, wheel: BuiltWheel, store: Store, progress: Progress) -> None:
        """Write a wheel of the store there, its record and log with it. Raises PublishError, StoreError."""
        record = json.dumps(asdict(wheel), sort_keys=True).encode()
        store.write(EMPTY_CONTENT)
        files = {
            wheel.filename: Descriptor(_FILE, wheel.digest, wheel.size),
            "record.json": Descriptor(_RECORD, store.write(record), len(record)),
        }
        log = log_of(wheel)
        if log and store.has(log):
            files["build.log"] = Descriptor(_LOG, log, store.path(log).stat().st_size)
        blobs = [EMPTY, *files.values()]
        with progress.meter(wheel.filename, sum(blob.size for blob in blobs)) as meter:
            self._target.upload_all(blobs, store, meter)
        annotations = {f"{_OWN}{name}": str(getattr(wheel, name)) for name in ("key", "name", "version")}
        self._target.put(write_artifact(ARTIFACT, files.items(), annotations), MANIFEST_TYPE, tag(wheel.key))

    def _entry(self, key: str) -> _Entry | None:
        with self._lock:
            if not self._reached:
                self._repository.reach()  # else every try to reach it would be waited for
                self._reached = True
        try:
            _, data, kind = self._repository.manifest(tag(key))
        except NotFoundError:
            return None
        return self._read(read_artifact(data, kind, f"{self._reference.name}:{tag(key)}"), key)

    def _read(self, artifact: Artifact, key: str) -> _Entry:
        if artifact.kind != ARTIFACT:
            raise self._wrong(key, f"it is an artifact of the type {artifact.kind!r}")
        stated = artifact.annotations.get(f"{_OWN}key")
        if stated != key:
            raise self._wrong(key, f"it is the wheel of another key: {stated}")
        blobs = {blob.media_type: (title, blob) for title, blob in artifact.parts}
        if not {_FILE, _RECORD} <= blobs.keys() or len(blobs) != len(artifact.parts):
            raise self._wrong(key, "it has not one file and one record")
        filename, file = blobs[_FILE]
        name, version = (artifact.annotations.get(f"{_OWN}{attribute}", "") for attribute in ("name", "version"))
        if not is_plain_name(filename, name, version):
            raise self._wrong(key, f"its file is called {filename!r}, and it says that it is {name} {version}")
        wheel = BuiltWheel(key, name, version, filename, file.digest.removeprefix("sha256:"), file.size, {})
        return _Entry(wheel, blobs[_RECORD][1], blobs[_LOG][1] if _LOG in blobs else None)

    def _complete(self, entry: _Entry) -> BuiltWheel:
        """Return the wheel with its record, which must describe the same wheel."""
        data = self._repository.document(entry.record)
        try:
            content = parse_json(data)
            record: Mapping[str, Any] = content["record"]
            same = {**content, "record": {}} == asdict(entry.wheel) and isinstance(record, dict)
        except (ValueError, TypeError, KeyError):
            raise self._wrong(entry.wheel.key, "its record cannot be read") from None
        if not same:
            raise self._wrong(entry.wheel.key, "its record describes another wheel")
        attributes = {field.name: getattr(entry.wheel, field.name) for field in fields(entry.wheel)}
        return BuiltWheel(**{**attributes, "record": record})

    def _wrong(self, key: str, why: str) -> FetchError:
        return FetchError(
            f"{self._reference.name} has another wheel under {tag(key)} than the requested one",
            code="fetch-digest-mismatch",
            why=why,
            fix="do not trust it; an account with write access can push the wheel again",
        )


def is_plain_name(filename: str, name: str, version: str) -> bool:
    """Return whether a file name is a plain one of this name (normalised) and version, as a lock asks for it."""
    parsed = naming.read(filename)
    try:
        return parsed is not None and (parsed.package, parse_wheel_filename(filename)[1]) == (name, Version(version))
    except ValueError:
        return False
