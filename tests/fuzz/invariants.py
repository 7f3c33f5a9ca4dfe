"""Invariants for any bytes that are given as a wheel."""

from __future__ import annotations

import hashlib
from pathlib import Path

from imagegen.audit.readers.installation import InstalledFile, installation, site_packages, skeleton
from imagegen.audit.readers.wheel import Wheel
from imagegen.core.errors import WheelError
from imagegen.core.image_format import PREFIX
from tests.fuzz.crooked import Crooked
from tests.support.wheels import FILENAME

PYTHON = "3.11"


def hold(path: Path) -> dict[str, bytes] | None:
    """The files that the wheel at `path` becomes, by absolute path, each as promised; None where it is refused."""
    try:
        with Wheel(path, FILENAME) as wheel:
            files = installation(wheel, PYTHON)
            content = {file.path: b"".join(file.chunks()) for file in files}
    except WheelError as error:
        refusal = str(error)
    else:
        return _checked(files, content)
    assert FILENAME in refusal, "a refusal names the wheel"
    return None


def hold_crooked(path: Path, crooked: Crooked) -> None:
    """Check that a wheel of known parts, written to `path`, yields nothing but its parts."""
    path.write_bytes(crooked.bytes())
    content = hold(path) or {}
    declared = {part.data for part in crooked.parts}
    for name, data in content.items():
        if name.startswith(f"{site_packages(PYTHON)}/") and not name.endswith(("/RECORD", "/INSTALLER")):
            assert data in declared


def _checked(files: list[InstalledFile], content: dict[str, bytes]) -> dict[str, bytes]:
    assert len(content) == len(files)
    for file in files:
        assert file.path.startswith(f"{PREFIX}/")
        assert not {"", ".", ".."} & set(file.path.removeprefix("/").split("/"))
        assert file.path not in skeleton(PYTHON)
        assert len(content[file.path]) == file.size
        assert file.sha256 in (None, hashlib.sha256(content[file.path]).hexdigest())
    return content
