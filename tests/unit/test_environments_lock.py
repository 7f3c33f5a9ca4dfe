"""Images with several environments: their lock, the plan of their layers, and the files that each environment gets."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import Location
from imagegen.image.layers import keep_record, record_of, recorded_image
from imagegen.image.layers.image_config import image, labels
from imagegen.image.layers.plan import HEAVY, plan
from imagegen.image.layers.sources import plan_layers
from imagegen.image.layers.support import support_files, support_links
from imagegen.lock import dumps, dumps_attached, inputs_hash, loads_attached, loads_combined
from imagegen.lock.environments import shared_wheels, with_locks
from imagegen.lock.file import LockErrors
from imagegen.lock.model import LOCAL, FileConflict, Lock, LockedGpus, LockedWheel
from imagegen.spec.model import EnvVar
from tests.support.environment_samples import combined
from tests.support.errors import raises
from tests.support.lock_samples import LOCK, wheel
from tests.support.shipped_locks import NAMES, shipped_lock


def sized(name: str, version: str, size: int, index: str = "pypi") -> LockedWheel:
    """Return a wheel with a digest of its own."""
    found = wheel(name, version)
    digest = hashlib.sha256(f"{name} {version} {size} {index}".encode()).hexdigest()
    return replace(found, file=replace(found.file, size=size, sha256=digest, index=index, path=None))


def lock_of(*wheels: LockedWheel) -> Lock:
    return replace(LOCK, wheels=tuple(sorted(wheels, key=lambda each: each.name)), gpu=None, file_conflicts=())


TORCH, OLD, NEW = sized("torch", "2.0", HEAVY), sized("big", "1.0", HEAVY), sized("big", "2.0", HEAVY)
LIGHT, ONE, TWO = sized("light", "1.0", 10), sized("small", "1.0", 20), sized("small", "2.0", 30)
SEVERAL = combined({"main": lock_of(TORCH, OLD, LIGHT, ONE), "other": lock_of(TORCH, NEW, LIGHT, TWO)})
BOTH = ("/opt/venv", "/opt/venvs/other")


def test_the_attached_lock_is_whole() -> None:
    found = loads_attached(dumps_attached(SEVERAL))
    assert found == with_locks(SEVERAL, [replace(each.lock, record=None) for each in SEVERAL.environments])
    assert inputs_hash(found) == inputs_hash(SEVERAL)
    alone = SEVERAL.environments[0].lock
    assert dumps_attached(alone) == dumps(alone)
    assert loads_attached(dumps(alone)) == alone


def test_an_attached_lock_that_contradicts_itself_is_refused() -> None:
    text = dumps_attached(SEVERAL)
    own, other = (inputs_hash(each.lock) for each in SEVERAL.environments)
    without, _, _ = text.partition("\n[[locked]]")
    for code, changed in (
        ("lock-edited", text.replace(TWO.file.sha256, "0" * 64)),
        ("lock-edited", text.replace(other, own)),
        ("lock-malformed", f"locked = []\n{without}"),
        ("lock-malformed", text.replace('name = "other"', 'name = "main"', 1)),
    ):
        with raises(code):
            loads_attached(changed)
    with pytest.raises(LockErrors):
        loads_attached(dumps(SEVERAL))


def test_a_wheel_of_all_environments_is_one_layer_and_another_version_a_layer_of_its_own() -> None:
    found = {part.name: (part.prefixes, [each.version for each in part.wheels]) for part in plan(SEVERAL)}
    light = next(name for name in found if re.fullmatch(r"group-\d", name))
    assert found.pop(light) == (BOTH, ["1.0"])
    assert found == {
        "venv": (BOTH, []),
        "torch": (BOTH, ["2.0"]),
        "big.main": (("/opt/venv",), ["1.0"]),
        "big.other": (("/opt/venvs/other",), ["2.0"]),
        "group.main": (("/opt/venv",), ["1.0"]),
        "group.other": (("/opt/venvs/other",), ["2.0"]),
        "support": (("/opt/venv",), []),
    }


def test_what_the_default_environment_alone_has_is_the_layer_of_its_own_image() -> None:
    alone = {part.key for part in plan(SEVERAL.environments[0].lock)}
    keys = {part.name: part.key for part in plan(SEVERAL)}
    assert keys["big.main"] in alone
    assert not {keys["torch"], keys["big.other"], keys["venv"]} & alone


def test_the_projects_own_packages_stay_the_topmost_wheels() -> None:
    own, changed = sized("mine", "1.0", 5, LOCAL), sized("mine", "2.0", 5, LOCAL)
    names = [part.name for part in plan(combined({"a": lock_of(TORCH, own), "b": lock_of(TORCH, changed)}))]
    assert names == ["venv", "torch", "support", "project.a", "project.b"]


wheels = st.lists(
    st.builds(
        sized,
        st.sampled_from(["torch", "numpy", "one", "two", "three"]),
        st.sampled_from(["1.0", "2.0"]),
        st.sampled_from([5, HEAVY]),
        st.sampled_from(["pypi", LOCAL]),
    ),
    max_size=5,
    unique_by=lambda each: each.name,
)


@given(st.lists(wheels, min_size=2, max_size=4))
def test_every_environment_has_each_of_its_wheels_in_one_layer(found: list[list[LockedWheel]]) -> None:
    lock = combined({f"e{number}": lock_of(*each) for number, each in enumerate(found)})
    parts = plan(lock)
    assert len({part.name for part in parts}) == len({part.key for part in parts}) == len(parts)
    for each in lock.environments:
        held = [wheel for part in parts if each.prefix in part.prefixes for wheel in part.wheels]
        assert sorted(held, key=lambda wheel: wheel.name) == list(each.lock.wheels)
    digests = [each.file.sha256 for part in parts for each in part.wheels]
    assert len(digests) == len(set(digests))


@pytest.mark.parametrize("name", NAMES)
def test_the_layers_of_one_environment_stay_as_they_were_recorded(name: str) -> None:
    lock = shipped_lock(name)
    uncompiled = {build.name for build in lock.builds}
    recorded = {layer.key for layer in lock.record.layers} if lock.record else set()
    heavy = [part for part in plan(lock) if len(part.wheels) == 1 and part.wheels[0].name not in uncompiled]
    assert all(part.prefixes == ("/opt/venv",) for part in plan_layers(lock))
    assert not recorded or all(part.key in recorded for part in heavy if part.name == part.wheels[0].name)


def test_a_wheel_that_leaves_files_out_in_one_environment_is_not_shared() -> None:
    conflict = FileConflict("rule", "big", ("torch",), "*/shared.py", "Tests.")
    other = replace(lock_of(TORCH, OLD), file_conflicts=(conflict,))
    parts = {part.name: part.prefixes for part in plan(combined({"main": lock_of(TORCH, OLD), "other": other}))}
    assert (parts["torch.main"], parts["torch.other"], parts["big"]) == (BOTH[:1], BOTH[1:], BOTH)


def test_the_file_names_the_environments_and_is_read_again() -> None:
    text = dumps(SEVERAL)
    file = loads_combined(text)
    assert (file.cell, file.image, file.record) == ("several-cpu-py311", "several", None)
    assert [(row.name, row.cell, row.because, row.lock) for row in file.environments] == [
        (each.name, each.lock.cell, each.because, inputs_hash(each.lock)) for each in SEVERAL.environments
    ]


def test_a_record_of_an_environment_does_not_count_and_its_packages_do() -> None:
    main, other = (each.lock for each in SEVERAL.environments)
    assert LOCK.record
    assert inputs_hash(combined({"main": replace(main, record=LOCK.record), "other": other})) == inputs_hash(SEVERAL)
    assert inputs_hash(combined({"main": main, "other": lock_of(TORCH, NEW, LIGHT, ONE)})) != inputs_hash(SEVERAL)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('name = "other"', 'name = "Other"', 'name = "Other"'),
        ('because = "Why other."', "", "[[environment]]"),
        ('image = "several"', 'image = "several"\nextra = 1', "extra = 1"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(old: str, new: str, line: str) -> None:
    text = dumps(SEVERAL).replace(old, new)
    with pytest.raises(LockErrors) as error:
        loads_combined(text, "several.toml")
    (fault,) = error.value.errors
    assert fault.code == "lock-malformed"
    assert isinstance(fault.where, Location)
    assert line in text.splitlines()[(fault.where.line or 0) - 1]


def test_gpus_are_those_of_all_environments_and_the_driver_is_the_newest() -> None:
    one = replace(lock_of(TORCH), gpu=LockedGpus(("8.0", "9.0"), "550.54.14"))
    two = replace(lock_of(TORCH), gpu=LockedGpus(("9.0", "10.0"), "580.65.06"))
    assert combined({"a": one, "b": two}).gpu == LockedGpus(("9.0",), "580.65.06")
    assert combined({"a": lock_of(TORCH), "b": lock_of(TORCH)}).gpu is None


def test_an_environment_has_its_own_constraints_variables_and_activate() -> None:
    env = (
        EnvVar("LD_LIBRARY_PATH", "/driver", "Tests."),
        EnvVar("MODE", "it's two", "Tests."),
        EnvVar("PATH", "/b", "Tests."),
    )
    other = replace(lock_of(TORCH, TWO), env=env)
    lock = combined({"main": lock_of(TORCH, ONE), "other": other})
    files = {each.path: each.content.decode() for each in support_files(lock)}
    assert "small==1.0" in files["/opt/imagegen/constraints.txt"]
    assert "small==2.0" in files["/opt/imagegen/environments/other/constraints.txt"]
    activate = files["/opt/venvs/other/bin/activate"].splitlines()
    assert 'export PATH="/opt/venv/bin:$PATH"' in files["/opt/venv/bin/activate"].splitlines()
    assert activate[1:] == [
        'export PATH="/opt/venvs/other/bin:/b:$PATH"',
        "export VIRTUAL_ENV=/opt/venvs/other",
        "export PIP_CONSTRAINT=/opt/imagegen/environments/other/constraints.txt",
        "export UV_CONSTRAINT=/opt/imagegen/environments/other/constraints.txt",
        "export MODE='it'\"'\"'s two'",
        'export LD_LIBRARY_PATH="/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"',
        "hash -r",
    ]
    assert not [path for path in (each.path for each in support_files(LOCK)) if path.endswith("/activate")]


def test_each_environment_has_a_toolkit_and_the_first_one_is_cuda_home() -> None:
    nvcc = sized("nvidia-cuda-nvcc", "13.0", HEAVY)
    cuda = replace(lock_of(TORCH, nvcc), axes={**LOCK.axes, "cuda": "cu130"})
    links = support_links(combined({"main": cuda, "other": cuda}))
    site = "lib/python3.11/site-packages/nvidia/cu13"
    assert links["/usr/local/cuda"] == f"/opt/venv/{site}"
    assert links[f"/opt/venvs/other/{site}/lib64"] == links[f"/opt/venv/{site}/lib64"] == "lib"
    without = replace(lock_of(TORCH), axes=cuda.axes)
    assert support_links(combined({"main": without, "other": cuda}))["/usr/local/cuda"] == f"/opt/venvs/other/{site}"


def test_labels_name_the_prefixes() -> None:
    found = {name: value for name, value in labels(SEVERAL).items() if ".environment." in name}
    assert found == {
        "dev.imagegen.environment.main": "/opt/venv",
        "dev.imagegen.environment.other": "/opt/venvs/other",
    }
    assert not [name for name in labels(LOCK) if ".environment." in name]
    assert image(SEVERAL, []).digest != image(SEVERAL.environments[0].lock, []).digest


def test_bytes_are_compared_with_the_largest_environment() -> None:
    found = shared_wheels(SEVERAL)
    assert (found.total, found.largest) == (3 * HEAVY + 60, 2 * HEAVY + 40)
    assert found.cell == "other-cpu-py311"
    assert [(each.name, each.version) for each in found.differing] == [
        ("big", "1.0"),
        ("big", "2.0"),
        ("small", "2.0"),
        ("small", "1.0"),
    ]


def test_no_record_of_other_layers_is_kept_where_wheels_are_not_compiled() -> None:
    """The keys of their layers are not known, so that nothing compares the recorded layers with the lock."""
    locks = {"main": shipped_lock("hopper-vllm-cu130-py311-flash-attn"), "other": lock_of(TORCH, ONE)}
    lock = combined(locks)
    assert lock.builds
    recorded = replace(lock, record=record_of(recorded_image(lock)))
    assert keep_record(lock, recorded).record == recorded.record
    moved = combined(locks | {"other": lock_of(TORCH, TWO)})
    assert keep_record(moved, replace(moved, record=recorded.record, moved=("other",))).record is None
