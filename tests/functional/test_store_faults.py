"""Each system call of the store fails as disks and network file systems let it: an error that names the path."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from imagegen.core.errors import StoreError
from imagegen.core.net.client import partial
from imagegen.core.store import Store, disk, images
from imagegen.core.store.cache import BlobCache
from imagegen.core.store.upkeep import collect
from imagegen.oci.documents import digest_of
from tests.support.store_images import put_image

ERRORS = ("EIO", "ESTALE", "ENOSYS", "ENOLCK", "EXDEV", "EBUSY", "EMFILE", "EOPNOTSUPP", "EREMOTEIO", "ETXTBSY")
CALLS = {
    "flock": (fcntl, "flock"),
    "fsync": (os, "fsync"),
    "replace": (os, "replace"),
    "rename": (os, "rename"),
    "fchmod": (os, "fchmod"),
    "utime": (os, "utime"),
    "unlink": (os, "unlink"),
    "open": (os, "open"),
    "mkdir": (os, "mkdir"),
    "stat": (os, "stat"),
}
POINTS = 5  # calls of each function that fail, one a run; all of them pass too, in 20 s
KNOWN = BlobCache("tests")
KEY = "sha256:" + "5" * 64


def use(root: Path, output: Path) -> None:
    """Use a store in every way that a build does."""
    store = Store(root)
    digest = put_image(store)
    images.keep(store, "cell", digest, 1)
    KNOWN.write(store, KEY, b"result")
    assert KNOWN.read(store, KEY) == b"result"
    with store.temporary_directory("work") as folder:
        (folder / "file").write_bytes(b"x")
    with store.lock("name"):
        assert store.intact(digest, None)
    part = b"part of a download"
    with partial(store, digest_of(part).removeprefix("sha256:"), len(part)) as download:
        download.append(part)
        download.commit(store)
    images.export(store, digest, output, "imagegen/x:y")
    collect(store, ())


@contextmanager
def failing(call: str, number: int, only: int) -> Iterator[list[str]]:
    """Let one call of a function fail, the `only`-th with files of the test; yield the arguments."""
    module, name = CALLS[call]
    real = getattr(module, name)
    calls: list[str] = []

    def fake(*arguments: Any, **options: Any) -> Any:
        calls.append(str(arguments[0]))
        if len(calls) == only:
            path = arguments[0] if isinstance(arguments[0], str | os.PathLike) else None
            raise OSError(number, os.strerror(number), path and os.fspath(path))
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, fake)
        yield calls


def outcome(call: str, number: int, only: int, root: Path) -> StoreError | None:
    """Return the error that a failing call leads to; None if the store does without it."""
    try:
        with failing(call, number, only):
            use(root, root.with_name(f"{root.name}-failed"))
    except StoreError as error:
        return error
    except OSError as error:
        failure = disk.system_failure(error)
        if failure is None:
            raise
        return failure
    return None


@pytest.mark.fault(
    "Disk", "a file operation of the store fails: EIO, ESTALE, EXDEV, EBUSY, no locks, no more open files",
    "an error that names the path and what to do, exit 69; the store stays sound",
)  # fmt: skip
@pytest.mark.parametrize("call", CALLS)
def test_each_failing_call_is_an_error_of_the_store(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with failing(call, 0, 0) as calls:
        use(tmp_path / "counted", tmp_path / "out")
    assert calls
    for number, only in enumerate(range(1, len(calls) + 1, len(calls) // POINTS + 1)):
        name = ERRORS[(number + len(call)) % len(ERRORS)]
        root = tmp_path / str(only)
        if error := outcome(call, getattr(errno, name), only, root):
            assert str(tmp_path) in str(error.where), (only, name)
            assert error.why == os.strerror(getattr(errno, name)), (only, name)
            assert error.fix, (only, name)
        use(root, tmp_path / f"{only}-out")
