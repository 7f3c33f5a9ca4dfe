"""A build whose files cannot work ends before there is an image, and says where to read more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagegen.core.store import Store, images
from tests.support.elf_files import make_elf
from tests.support.machines import Debian, Place
from tests.support.small_cell import CELL, write_project

pytestmark = pytest.mark.integration

MODULE = {"needed": ["libc.so.6"], "exported": ["PyInit__C"]}


@pytest.fixture
def project(debian: Debian, tmp_path: Path) -> Callable[[str, bytes], Place]:
    """A machine whose project has a small cell with this extension module in it."""

    def made(name: str, module: bytes) -> Place:
        root = tmp_path / name
        extension = {"extension/__init__.py": b"", "extension/_C.abi3.so": module}
        write_project(root, root / "links", debian, {"extension": extension})
        store = root / "cache" / "imagegen" / "store"
        store.parent.mkdir(parents=True)
        shutil.copytree(debian.store.root, store, symlinks=True)
        return Place(root, None, env={"PIP_FIND_LINKS": str(root / "links")})

    return made


def test_a_library_that_cannot_load_ends_a_build(project: Callable[[str, bytes], Place]) -> None:
    place = project("broken", make_elf(**MODULE, undefined=["_ZN6nobody7definesEv"]))
    layout, store = place.root / "image", Store(place.cache / "imagegen" / "store")
    for _ in range(2):
        refused = place.call("build", "small", "--output", f"oci:{layout}", code=77)
        assert (
            "undefined-symbol: extension 1.0: extension/_C.abi3.so: nothing defines nobody::defines()" in refused.stderr
        )
        assert f"`imagegen audit {CELL}`" in refused.stderr
        assert not layout.exists()
        assert not images.images(store)
    recorded = place.call("lock", "small", "--record")
    assert "the lock has its record all the same" in recorded.stderr
    built = place.call("build", "small", "--output", f"oci:{layout}", "--no-audit")
    assert "NOTE: small-cpu-py311 is not audited (--no-audit)" in built.stderr
    assert set(images.images(store).values()) == {built.stdout.split()[-1]}
    assert (layout / "index.json").exists()


def test_a_sound_one_is_built_and_the_audit_is_not_asked_twice(project: Callable[[str, bytes], Place]) -> None:
    place = project("sound", make_elf(**MODULE, undefined=["malloc"]))
    first = place.call("build", "small", "--output", f"oci:{place.root / 'one'}")
    assert f"auditing {CELL}" in first.stderr
    again = place.call("build", "small", "--output", f"oci:{place.root / 'two'}")
    assert "audit" not in again.stderr
    assert first.stdout == again.stdout
