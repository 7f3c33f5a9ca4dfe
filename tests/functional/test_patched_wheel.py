"""Wheels with patches: the bytes, the RECORD, and what cannot be patched."""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from imagegen.audit.readers.wheel import Wheel
from imagegen.core import zip_archive
from imagegen.core.config import Settings
from imagegen.core.errors import LockError, WheelError
from imagegen.core.store import Store
from imagegen.lock import patched
from imagegen.lock.model import LockedFile, WheelPatch
from tests.support.golden import Golden

SETTINGS = Settings.from_environment({"HOME": "/nowhere", "PATH": os.environ["PATH"]})
INFO = "pkg-1.0.dist-info"
FILES = {
    "pkg/__init__.py": "one\ntwo\n",
    "pkg/old.py": "x\n",
    "pkg-1.0.data/purelib/pkg/more.py": "a\n",
    "pkg-1.0.data/scripts/run": "#!python\n",
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
ADDED = """\
--- /dev/null
+++ b/pkg/new.py
@@ -0,0 +1 @@
+n
"""
PATCH = """\
--- a/pkg/__init__.py
+++ b/pkg/__init__.py
@@ -1,2 +1,2 @@
 one
-two
+2
--- a/pkg/more.py
+++ b/pkg/more.py
@@ -1 +1 @@
-a
+b
--- /dev/null
+++ b/pkg/new.py
@@ -0,0 +1 @@
+n
--- a/pkg/old.py
+++ /dev/null
@@ -1 +0,0 @@
-x
"""


def original(store: Store, files: dict[str, str] = FILES, compression: int = zipfile.ZIP_DEFLATED) -> LockedFile:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", compression) as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if name.endswith("run") else 0o100644) << 16
            archive.writestr(entry, text, compression)
        digests = {
            name: urlsafe_b64encode(sha256(text.encode()).digest()).decode().rstrip("=") for name, text in files.items()
        }
        rows = [f"{name},sha256={digests[name]},{len(text)}\n" for name, text in files.items()]
        archive.writestr(f"{INFO}/RECORD", "".join([*rows, f"{INFO}/RECORD,,\n"]))
    digest = store.write(body.getvalue()).removeprefix("sha256:")
    return LockedFile("pkg-1.0-py3-none-any.whl", len(body.getvalue()), digest, "pypi")


def patch(store: Store, text: str, path: str = "patches/a.patch") -> WheelPatch:
    content = text.encode()
    return WheelPatch(path, store.write(content).removeprefix("sha256:"), len(content), "why")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_the_patched_wheel_is_whole_and_the_same_everywhere(store: Store, tmp_path: Path) -> None:
    made = patched.build(original(store), [patch(store, PATCH)], store, SETTINGS)
    assert made.index == "patched"
    assert hashlib.sha256(store.path(made.digest).read_bytes()).hexdigest() == made.sha256
    with Wheel(store.path(made.digest), made.filename) as wheel:  # its RECORD is right
        assert wheel.read("pkg/__init__.py") == b"one\n2\n"
        assert wheel.read("pkg-1.0.data/purelib/pkg/more.py") == b"b\n"
        assert wheel.read("pkg/new.py") == b"n\n"
        assert wheel.optional("pkg/old.py") is None
    with zipfile.ZipFile(store.path(made.digest)) as archive:
        modes = {each.filename: each.external_attr >> 16 & 0o777 for each in archive.infolist()}
        assert modes["pkg-1.0.data/scripts/run"] == 0o755
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}
    other = Store(tmp_path / "other")
    again = patched.build(original(other, compression=zipfile.ZIP_STORED), [patch(other, PATCH)], other, SETTINGS)
    assert (again.sha256, again.size) == (made.sha256, made.size)


def test_patches_are_applied_one_after_the_other(store: Store) -> None:
    second = "--- a/pkg/__init__.py\n+++ b/pkg/__init__.py\n@@ -2 +2 @@\n-2\n+3\n"
    made = patched.build(
        original(store), [patch(store, PATCH), patch(store, second, "patches/b.patch")], store, SETTINGS
    )
    with Wheel(store.path(made.digest), made.filename) as wheel:
        assert wheel.read("pkg/__init__.py") == b"one\n3\n"


def test_the_patch_of_the_page_applies(store: Store) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/replace-a-dockerfile.md"
    (diff,) = re.findall(r"```diff\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    files = {**FILES, "trl/padding.py": "def pad(batch):\n    return batch\n"}
    made = patched.build(original(store, files), [patch(store, diff)], store, SETTINGS)
    with Wheel(store.path(made.digest), made.filename) as wheel:
        assert wheel.read("trl/padding.py") == b"def pad(batch):\n    return batch or []\n"


LINK = "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n"
REFUSED = {
    "another line": PATCH.replace("-two", "-tw0"),
    "no such file": PATCH.replace("pkg/old.py", "pkg/gone.py"),
    "metadata": f"--- a/{INFO}/METADATA\n+++ b/{INFO}/METADATA\n@@ -3 +3 @@\n-Version: 1.0\n+Version: 2.0\n",
    "outside": "--- /dev/null\n+++ b/../../x.py\n@@ -0,0 +1 @@\n+x\n",
    "a link": LINK,
    "no patch": "nothing\n",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_patch_that_cannot_be_applied_is_named(store: Store, text: str) -> None:
    with pytest.raises(LockError) as raised:
        patched.build(original(store), [patch(store, text)], store, SETTINGS)
    assert (raised.value.code, raised.value.where) == ("lock-patch-invalid", "patches/a.patch")


def test_what_is_no_wheel_is_refused(store: Store) -> None:
    digest = store.write(b"no zip").removeprefix("sha256:")
    with pytest.raises(WheelError):
        patched.build(LockedFile("pkg-1.0-py3-none-any.whl", 6, digest, "pypi"), [patch(store, PATCH)], store, SETTINGS)


@pytest.mark.fault("Wheels", "a wheel that is patched unpacks to more than fifty times its size", "refused unread")
def test_a_bomb_is_refused_before_it_is_unpacked(store: Store, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(zip_archive, "SMALL", 1 << 16)
    bomb = original(store, FILES | {"pkg/zeros": "0" * (1 << 20)})
    patches = [patch(store, ADDED)]
    monkeypatch.setattr(store, "temporary_directory", None)
    with pytest.raises(WheelError) as caught:
        patched.build(bomb, patches, store, SETTINGS)
    golden.check(caught.value)


def test_a_file_that_one_patch_deletes_can_be_new_in_the_next(store: Store) -> None:
    again = "--- /dev/null\n+++ b/pkg/old.py\n@@ -0,0 +1 @@\n+y\n"
    both = [patch(store, PATCH), patch(store, again, "patches/b.patch")]
    made = patched.build(original(store), both, store, SETTINGS)
    with Wheel(store.path(made.digest), made.filename) as wheel:
        assert wheel.read("pkg/old.py") == b"y\n"
