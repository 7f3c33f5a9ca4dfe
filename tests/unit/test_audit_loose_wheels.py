"""Wheel files as the subject of an audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagegen.audit.model import CodeTarget
from imagegen.audit.readers import loose_wheels
from imagegen.core.errors import WheelError
from imagegen.core.gpu import Gpu
from tests.support.elf_files import make_elf, make_fatbin
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.wheels import make_wheel

SM_90 = CodeTarget("sass", 90)
GPU = Gpu("sm_90", "9.0", "hopper", ())
WHEEL = "Wheel-Version: 1.0\nTag: {0}-{1}-linux_x86_64\nTag: {0}-{1}-manylinux_2_28_x86_64\n"


def wheel(directory: Path, name: str, python: str, abi: str, files: dict[str, bytes]) -> Path:
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: torch==2.8.0\n",
        "WHEEL": WHEEL.format(python, abi),
    }
    filename = f"{name}-1.0-{python}-{abi}-linux_x86_64.whl"
    return make_wheel(directory, files, filename=filename, info=f"{name}-1.0.dist-info", metadata=metadata)


def test_wheels_are_packages_on_no_system(tmp_path: Path) -> None:
    module = make_elf(undefined=["_ZN3c104cuda9SetDeviceEab"], fatbin=make_fatbin([[SM_90]]))
    files = {"demo/_c.so": module, "demo/__init__.py": b"", "demo-1.0.data/scripts/tool": module}
    paths = [wheel(tmp_path, "demo", "cp311", "cp311", files), wheel(tmp_path, "any", "cp39", "abi3", {"any.py": b""})]
    found = loose_wheels.wheels_subject(paths, (GPU,), "2.8.0")
    assert (found.name, found.torch, found.gpus, found.system) == (
        ", ".join(p.name for p in paths),
        "2.8.0",
        (GPU,),
        None,
    )
    assert [str(package) for package in found.packages] == ["any 1.0", "demo 1.0"]
    demo = found.packages[1]
    assert (demo.requires, demo.tags) == (
        ("torch==2.8.0",), ("cp311-cp311-linux_x86_64", "cp311-cp311-manylinux_2_28_x86_64")
    )  # fmt: skip
    assert demo.files["demo/_c.so"].elf is not None
    assert demo.files["demo/_c.so"].elf.undefined == {"_ZN3c104cuda9SetDeviceEab"}
    assert [group.targets for group in demo.files["demo/_c.so"].code] == [(SM_90,)]
    assert demo.files["../../../bin/tool"].executable
    assert len(str(demo.files["demo/__init__.py"].sha256)) == 64
    assert found.python == "3.11"


def test_wheels_for_several_pythons_name_none(tmp_path: Path) -> None:
    paths = [wheel(tmp_path, name, python, python, {}) for name, python in (("a", "cp311"), ("b", "cp312"))]
    assert loose_wheels.wheels_subject(paths, (), None).python is None


def test_two_wheels_of_one_package_are_no_subject(tmp_path: Path) -> None:
    """No environment has both: they would clash in every file, and each would have what the other lacks."""
    paths = [wheel(tmp_path, "demo", python, python, {"demo.py": python.encode()}) for python in ("cp311", "cp312")]
    with raises("usage-duplicate-wheel") as raised:
        loose_wheels.wheels_subject(paths, (), None)
    assert all(path.name in str(raised.value) for path in paths)


def test_what_is_no_wheel_is_named(tmp_path: Path, golden: Golden) -> None:
    cut = wheel(tmp_path, "demo", "cp311", "cp311", {"demo.so": bytes(1000)})
    cut.write_bytes(cut.read_bytes()[:-30])
    odd = tmp_path / "odd.whl"
    odd.write_bytes(b"")
    for path in (cut, odd, tmp_path / "gone-1.0-py3-none-any.whl"):
        with pytest.raises(WheelError) as raised:
            loose_wheels.wheels_subject([path], (), None)
        assert path.name in str(raised.value.where)
        if path.exists():  # no lock has chosen it
            golden.check(str(raised.value.fix))
