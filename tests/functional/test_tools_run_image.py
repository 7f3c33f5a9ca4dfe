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

from tests.support.golden import Golden
from tools.run_image import run_image

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


def unpacked(directory: Path, *entries: dict[str, Any], **more: Any) -> subprocess.CompletedProcess[str]:
    """Unpack in a process as any user: the program's own command asks for root."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(str(run_image.__file__), directory / "run_image.py")
    image = {"image": "sha256:image", "entries": entries, "present": {}, "contents": [(EMPTY, 0)], "parts": [], **more}
    (directory / "image.json.gz").write_bytes(gzip.compress(json.dumps(image).encode()))
    command = [sys.executable, "-B", "-c", UNPACK]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=10)


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
def test_nothing_is_written_outside_of_the_root(odd: list[dict[str, Any]], tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "secret").write_text("s")
    entries = json.loads(json.dumps([entry("before"), *odd]).replace("{outside}", str(tmp_path)))
    ended = unpacked(tmp_path / "a" / "out", *entries)
    assert ended.returncode == 1, ended.stderr
    golden.check(ended.stderr)
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


def test_nothing_is_written_through_links_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, secret = tmp_path / "out", tmp_path / "secret"
    out.mkdir()
    secret.write_text("s")
    for name in ("contents", "unpacked", "results.new"):
        (out / name).symlink_to(secret)
    assert unpacked(out, entry("a")).returncode == 0
    monkeypatch.setattr(run_image, "RESULTS", out / "results.json")
    run_image.write_results({"results": []})
    assert secret.read_text() == "s"
    assert json.loads((out / "results.json").read_text()) == {"results": []}
    assert not (out / "unpacked").is_symlink()


@pytest.mark.parametrize("odd", ["/dev/zero", "pipe"])
def test_only_regular_files_are_read(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = str(tmp_path / odd)
    as_part = unpacked(tmp_path / "one", parts=[{"file": path, "offset": 0, "bytes": 1}])
    as_present = unpacked(tmp_path / "two", entry("a", sha256="00", size=1), present={"00": path})
    golden.check(as_part.stderr.splitlines()[-1], as_present.stderr)
    monkeypatch.setattr(run_image, "IMAGE", Path(path))
    with pytest.raises(OSError, match="not a regular file"):
        run_image.read_image()


def test_a_description_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "image").write_bytes(gzip.compress(b"[" + b" " * 1000 + b"]"))
    monkeypatch.setattr(run_image, "IMAGE", tmp_path / "image")
    monkeypatch.setattr(run_image, "MAX_IMAGE", 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        run_image.read_image()


def test_a_root_that_is_a_link_is_not_the_unpacked_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unpacked").write_text("i\n")
    (tmp_path / "root").symlink_to("/")
    monkeypatch.setattr(run_image, "ROOT", tmp_path / "root")
    monkeypatch.setattr(run_image, "UNPACKED", tmp_path / "unpacked")
    assert not run_image.is_unpacked({"image": "i"})
    (tmp_path / "root").unlink()
    (tmp_path / "root").mkdir()
    assert run_image.is_unpacked({"image": "i"})
