"""Find shipped data files (in the wheel, or next to the package), and read and write a user's."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

OUTSIDE = "it is outside of the project"  # why a file is refused; a symbolic link may lead there
MAX_LOCK = 16 << 20  # bytes; the longest lock has some hundred kB
MAX_SOURCE_FILE = 1 << 20  # bytes of a file that users edit; the longest shipped one has 11 kB


def shipped(name: str) -> Path:
    """The folder of shipped data called `name`: "matrices", "wheels", "dockerfiles", "locks" or "pages"."""
    package = Path(__file__).parents[1]
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name


def is_source_tree(directory: Path) -> bool:
    """Return whether `directory` holds imagegen's own sources: a clone of its repository."""
    return (directory / "imagegen" / "core" / "data.py").is_file()


def project_directory(directory: Path) -> Path | None:
    """Return the project that holds a directory of matrices or recipes.

    None for the shipped ones: installers may link them from a cache.
    """
    return None if directory == shipped(directory.name) else directory.parent


def project_of(file: Path, directory: Path) -> Path:
    """Return the directory whose files `file` may refer to.

    It is the top of the git checkout that has the file, else `directory` if that has it, else the file's own
    directory. Links are not followed: a checkout's link to another directory does not make that one a project. Neither
    is the home directory a project; many users keep its configuration files in git.
    """
    path, home = Path(os.path.abspath(file)), Path(os.path.expanduser("~"))
    for top in path.parents:
        if top == home:
            break
        if os.path.lexists(top / ".git"):
            return top
    return directory if path.is_relative_to(os.path.abspath(directory)) else path.parent


def is_within(path: Path, project: Path) -> bool:
    """Return whether a path stays in the project, also by links. A `.git` does not, because it can hold credentials."""
    target, root = Path(os.path.realpath(path)), os.path.realpath(project)
    return target.is_relative_to(root) and ".git" not in target.relative_to(root).parts


def require_within(path: Path, project: Path) -> None:
    """Raise OSError for a path that leads out of the project: its author may not name files of this machine."""
    if not is_within(path, project):
        raise OSError(errno.EXDEV, OUTSIDE, str(path))


def read(path: Path, project: Path | None = None, longest: int = MAX_LOCK) -> bytes:
    """Return the contents of a file that users write.

    Raises OSError, also if the file is not regular (it might never end), has more than `longest` bytes, or is outside
    of its `project`.
    """
    if project:
        require_within(path, project)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(longest + 1)
    if content is None:  # a file of the kernel's that has nothing to say now
        raise OSError(errno.EAGAIN, "it has no contents to be read now", str(path))
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"it is longer than {longest >> 20} MiB", str(path))
    return content


def write(path: Path, content: bytes | Iterable[bytes], *, sync: bool = True) -> None:
    """Replace a file at once, or leave it as it was. Raises OSError.

    Files that killed processes left in its directory are removed first. Without `sync` a power failure may leave less.
    """
    from imagegen.core import temporary  # late: many commands write nothing

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.clear(path.parent)
    handle, fresh = temporary.new_file(path.parent, temporary.UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            if sync:
                os.fsync(handle)
            os.fchmod(handle, 0o644)  # mkstemp's 0600 would keep others from reading a committed file
            os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return a JSON document, with json's `options`.

    Raises ValueError, also for a document that is nested too deeply, and for an integer of more than 4,300 digits.
    """
    import json

    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, as json's `object_pairs_hook`. Raises ValueError for a name that it has twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f'"{twice}" is given twice')
    return table
