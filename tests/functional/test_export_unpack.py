"""run_image.py as a process of its own, with an altered description of an image."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imagegen.supply.export import run_image

EMPTY = hashlib.sha256().hexdigest()
UNPACK = "import gzip, json, run_image as r; r.unpack(json.loads(gzip.decompress(r.IMAGE.read_bytes())))"


def entry(path: str, kind: str = "file", **more: Any) -> dict[str, Any]:
    return {
        "path": path,
        "kind": kind,
        "mode": 0o755,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "mtime": 0,
        "sha256": EMPTY,
        "size": 0,
        **more,
    }


def unpacked(directory: Path, *entries: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Unpack in a process as any user: the program's own command asks for root."""
    directory.mkdir(parents=True)
    shutil.copy(str(run_image.__file__), directory / "run_image.py")
    image = {"image": "sha256:image", "entries": entries, "present": {}, "contents": [(EMPTY, 0)], "parts": []}
    (directory / "image.json.gz").write_bytes(gzip.compress(json.dumps(image).encode()))
    return subprocess.run(
        [sys.executable, "-B", "-c", UNPACK], cwd=directory, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "odd",
    [
        [entry("..", "directory"), entry("../pwned", mode=0o4755)],
        [entry("/{outside}/pwned")],
        [entry("d", "symlink", target="{outside}"), entry("d/pwned")],
        [entry("d", "directory"), entry("d", "symlink", target="{outside}"), entry("d/pwned", "directory")],
        [entry("a"), entry("b", link="../secret")],
        [entry("s", "symlink", target="{outside}/secret"), entry("b", link="s")],
    ],
    ids=["dot-dot", "absolute", "behind a link", "a link over a directory", "hard link out", "hard link to a link"],
)
def test_nothing_is_written_outside_of_the_root(odd: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    entries = json.loads(json.dumps([entry("before"), *odd]).replace("{outside}", str(tmp_path)))
    ended = unpacked(tmp_path / "a" / "out", *entries)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith("error: image.json.gz has the entry")
    assert "Traceback" not in ended.stderr
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert files == {"secret", "a/out/run_image.py", "a/out/image.json.gz"}


def test_links_of_an_image_may_lead_anywhere(tmp_path: Path) -> None:
    links = {"abs": "/etc/passwd", "up": "../../..", "loop": "loop", "nowhere": "no/such"}
    entries = [entry("d", "directory"), entry("d/f", mode=0o600), entry("d/g", link="d/f")]
    ended = unpacked(tmp_path / "out", *entries, *(entry(path, "symlink", target=to) for path, to in links.items()))
    assert ended.returncode == 0, ended.stderr
    root = tmp_path / "out/root"
    assert {path: os.readlink(root / path) for path in links} == links
    assert (root / "d/f").samefile(root / "d/g")
    assert (root / "d/f").stat().st_mode & 0o7777 == 0o600
    assert root.stat().st_mode & 0o7777 == 0o700, "other users of the host run no program in it"
