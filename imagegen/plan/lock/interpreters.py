"""Fetch a standalone interpreter's archive by hash: from mirrors, find-links places, or its original address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, Missing, MissingFiles
from imagegen.core.progress import Meter, Progress
from imagegen.core.registry.mirror import Mirror
from imagegen.core.store import Store
from imagegen.core.text import redact
from imagegen.plan.lock import indexes
from imagegen.plan.lock.interpreter import InterpreterArchive, LockedInterpreter

MIRROR = "UV_PYTHON_INSTALL_MIRROR"
_MAX_SIZE = 1 << 30  # bytes; the largest of python-build-standalone's stripped archives has 0.05 GB


def missing(locked: LockedInterpreter, store: Store) -> Missing | None:
    """Return the archive as one that the store lacks; None where the store has it, or the base brings the interpreter.

    No network is used.
    """
    return _missing(locked.file, ()) if locked.file and not store.has(locked.file.digest) else None


def fetch(locked: LockedInterpreter, store: Store, settings: Settings, progress: Progress) -> None:
    """Bring a standalone interpreter's archive into the store. Raises MissingFiles with all that was tried.

    The sources, in this order: IMAGEGEN_MIRROR, find-links places, UV_PYTHON_INSTALL_MIRROR, the archive's own address.
    None of them need be trusted, since the lock has the archive's hash; its size is not in the lock.
    """
    archive = locked.file
    if archive is None:
        return
    size = store.use(store.path(archive.digest))
    if size is not None and store.intact(archive.digest, size):
        return
    tried: list[str] = []
    with Client(settings) as client, progress.meter(f"fetching {archive.filename}", 0) as meter:
        if _take(archive, client, store, settings, meter, tried):
            return
        for url in _addresses(archive, client, settings, tried):
            try:
                size = _size(client.size(url), url)
                client.download(url, store, sha256=archive.sha256, size=size, meter=meter)
            except FetchError as error:
                tried.append(_reason(error))
            else:
                return
    raise MissingFiles([_missing(archive, tried)], store.root)


def _take(
    archive: InterpreterArchive, client: Client, store: Store, settings: Settings, meter: Meter, tried: list[str]
) -> bool:
    """Bring the archive from the user's own mirror; False, with the reason in `tried`, where that has none of it."""
    mirror = Mirror.of(settings, client)
    if mirror is None:
        return False
    try:
        size = mirror.size(archive.digest)
        if size is not None and mirror.take(archive.digest, _size(size, str(mirror)), store, meter):
            return True
        tried.append(f"{mirror}: it has no such file")
    except FetchError as error:
        tried.append(_reason(error))
    return False


def _addresses(archive: InterpreterArchive, client: Client, settings: Settings, tried: list[str]) -> Iterator[str]:
    for place in settings.find_links:
        try:
            links = indexes.find_links(client, place)
        except (FetchError, OSError) as error:
            tried.append(_reason(error) if isinstance(error, FetchError) else f"{redact(place)}: {error.strerror}")
            continue
        found = [link.url for link in links if archive.filename == link.filename or link.sha256 == archive.sha256]
        if not found:
            tried.append(f"{redact(place)}: does not have it")
        yield from found
    if mirror := settings.env.get(MIRROR):
        # As uv does: what follows .../releases/download in the address lies below the mirror's, still percent-encoded.
        release, name = archive.url.split("/")[-2:]
        yield f"{mirror.rstrip('/')}/{release}/{name}"
    yield archive.url


def _size(size: int, where: str) -> int:
    if size > _MAX_SIZE:
        raise FetchError(
            f"{redact(where)} is not the expected file",
            code="fetch-digest-mismatch",
            why=f"no interpreter's archive has {size} bytes",
        )
    return size


def _missing(archive: InterpreterArchive, tried: Sequence[str]) -> Missing:
    fix = (
        f"put {archive.filename} into a directory that PIP_FIND_LINKS names, set {MIRROR} to a mirror of "
        f"python-build-standalone, or reach {archive.url}"
    )
    return Missing(archive.filename, archive.sha256, tuple(dict.fromkeys(tried)), fix)


def _reason(error: FetchError) -> str:
    return f"{error.what}: {error.why}" if error.why else error.what
