"""Source builds in a lock: what is written can be read, the key covers what decides, and wheels take their place."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import BuildError
from imagegen.core.git.submodule import Submodule
from imagegen.image.inputs import contents
from imagegen.lock import dumps, inputs_hash, with_built_wheels
from imagegen.lock.builds import BUILDER, BuiltWheel, builder, compiler, key_of, keyed
from imagegen.lock.components import closure
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.file import LockErrors, loads
from imagegen.lock.model import (
    GIT,
    LINKS,
    LOCAL,
    URL,
    Lock,
    LockedBuild,
    LockedFile,
    LockedGit,
    LockedPatch,
    LockedWheel,
)
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.interpreters import ARCHIVE, LOCKED
from tests.support.lock_samples import LOCK, A, B, C, deb, hashes, names, sizes, texts, versions, wheel
from tests.support.matrix_samples import shipped_matrix

ADDRESS = "https://github.com/x/y/releases/download/v2/fast-1.0%2Bcu130-py3-none-any.whl"
SOURCE = LockedFile("fast-1.0.tar.gz", 5, C, "pypi")
COMMIT = LockedGit("release/v1", "https://github.com/x/fast", "1" * 40, "2" * 40)
SUBMODULE = Submodule("third/cutlass", "https://github.com/x/cutlass", "3" * 40, "4" * 40)
BUILD = LockedBuild(
    name="fast",
    version="1.0",
    because="it is fast",
    via=("torch",),
    choice="source build: no wheel fits",
    source=SOURCE,
    git=None,
    submodules=(),
    patches=(LockedPatch("arch.patch", B),),
    requires=("torch", "einops>=0.8; python_version >= '3.11'"),
    build_requires=(wheel("ninja"), wheel("setuptools", via=("ninja",))),
    against=("nvidia-cuda-nvcc", "torch"),
    env={"FAST_ARCHS": "90;120", "FORCE": "TRUE"},
    architectures=("9.0", "12.0"),
    modules=("fast_cuda", "fast.ext"),
    key="",
)
BASE = replace(LOCK.base, debs=(replace(deb("g++-12"), version="12.2.0"), replace(deb("libc6"), version="2.36-9")))
PLAIN = replace(
    LOCK,
    base=BASE,
    inputs={**LOCK.inputs, BUILDER: builder()},
    wheels=(wheel("nvidia-cuda-nvcc", "13.0.88"), wheel("torch", "2.13.0")),
    record=None,
)
WITH = replace(PLAIN, builds=(keyed(BUILD, PLAIN),))
BUILT = BuiltWheel(WITH.builds[0].key, "fast", "1.0", "fast-1.0-cp311-cp311-linux_x86_64.whl", B, 77, {})


def with_build(lock: Lock, **more: object) -> Lock:
    return replace(lock, builds=(keyed(replace(BUILD, **more), lock),))  # type: ignore[arg-type]


def test_a_build_is_written_and_read() -> None:
    text = dumps(WITH)
    assert loads(text) == WITH
    assert text == dumps(loads(text))
    assert '[build.env]\nFAST_ARCHS = "90;120"\n' in text
    from_commit = with_build(
        PLAIN, source=LockedFile("fast-1.0.tar", 5, C, GIT), git=COMMIT, submodules=(SUBMODULE,), because=None
    )
    local = [
        with_build(PLAIN, source=replace(SOURCE, index=LOCAL)),
        with_build(PLAIN, source=LockedFile("fast-1.0.tar", 5, C, LOCAL)),
    ]
    bare = with_build(PLAIN, via=(), patches=(), env={}, architectures=(), requires=(), build_requires=(), against=())
    for lock in (from_commit, *local, bare):
        assert loads(dumps(lock)) == lock


def test_a_lock_without_builds_is_as_it_was() -> None:
    assert "build" not in tomllib.loads(dumps(LOCK))
    assert inputs_hash(LOCK) == inputs_hash(replace(LOCK, builds=()))


def test_a_wheel_that_was_chosen_keeps_its_address_and_the_reason() -> None:
    file = LockedFile("fast-1.0+cu130-py3-none-any.whl", 9, A, URL, url=ADDRESS)
    fast = replace(wheel("fast", "1.0+cu130"), file=file, choice="catalogue: its name says CUDA 13")
    links = replace(wheel("fast"), file=replace(wheel("fast").file, index=LINKS, path=None), choice="find-links: fits")
    for chosen in (fast, links):
        lock = replace(LOCK, wheels=(chosen, *LOCK.wheels[1:]))
        assert loads(dumps(lock)) == lock


addresses = [
    "http://github.com/x/y/fast-1.0%2Bcu130-py3-none-any.whl",
    "https://me:pw@github.com/fast-1.0.whl",
    "https://github.com/fast.whl?token=1",
    "https://github.com/a/../fast.whl",
    "file:///fast-1.0.whl",
    "https://github.com",
]


@pytest.mark.parametrize("address", addresses)
def test_addresses_of_another_kind_are_refused(address: str) -> None:
    file = LockedFile("fast-1.0+cu130-py3-none-any.whl", 9, A, URL, url=address)
    lock = replace(LOCK, wheels=(replace(wheel("fast", "1.0+cu130"), file=file, choice="x"), *LOCK.wheels[1:]))
    with pytest.raises(LockErrors, match="url"):
        dumps(lock)


def test_this_machine_may_serve_files_without_https() -> None:
    file = LockedFile("fast-1.0-py3-none-any.whl", 9, A, URL, url="http://127.0.0.1:8000/fast-1.0-py3-none-any.whl")
    lock = replace(LOCK, wheels=(replace(wheel("fast"), file=file, choice="x"), *LOCK.wheels[1:]))
    assert loads(dumps(lock)) == lock


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('index = "url"', 'index = "pypi"', "has a url"),
        ('choice = "x"\n', "", "no choice says why"),
        (f'url = "{ADDRESS}"\n', "", "has a url"),
        ('index = "url"', 'index = "wheelhouse"', "has a url"),
    ],
)
def test_what_an_index_does_not_have_says_where_it_is(old: str, new: str, why: str) -> None:
    file = LockedFile("fast-1.0+cu130-py3-none-any.whl", 9, A, URL, url=ADDRESS)
    lock = replace(LOCK, wheels=(replace(wheel("fast", "1.0+cu130"), file=file, choice="x"), *LOCK.wheels[1:]))
    text = dumps(lock)
    assert old in text
    with pytest.raises(LockErrors, match=why):
        loads(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('FORCE = "TRUE"', 'PATH = "/evil"', "env.PATH"),
        ('FORCE = "TRUE"', 'MAX_JOBS = "64"', "env.MAX_JOBS"),
        ('FORCE = "TRUE"', 'FORCE = "a\\nRUN evil"', "control character"),
        ('modules = ["fast_cuda"', 'modules = ["fast;cuda"', "modules"),
        ('requires = ["torch"', 'requires = ["torch @ https://x/y.whl"', "by URL"),
        ('against = ["nvidia-cuda-nvcc"', 'against = ["cutlass"', "of which the lock has no wheel"),
        ('against = ["nvidia-cuda-nvcc", "torch"]', 'against = ["torch", "nvidia-cuda-nvcc"]', "not sorted"),
        ('file = "fast-1.0.tar.gz"', 'file = "fast-1.1.tar.gz"', "is not a file of fast"),
        ('file = "fast-1.0.tar.gz"', 'file = "fast-1.0-py3-none-any.whl"', "is not a source"),
        ('index = "pypi"\narchitectures', 'index = "git"\narchitectures', "is of a commit"),
        ('index = "pypi"\narchitectures', 'index = "find-links"\narchitectures', "is not a source"),
        ('filename = "arch.patch"', 'filename = "../../x"', "filename"),
        # They lie in one folder when it is compiled, linked to the store: one must not be written through another.
        ('filename = "arch.patch"', 'filename = "spec.json"', "no file name of its own"),
        ('filename = "arch.patch"', 'filename = "fast-1.0.tar.gz"', "no file name of its own"),
        ('filename = "arch.patch"', 'filename = "below/arch.patch"', "no file name of its own"),
        ('name = "fast"', 'name = "torch"', "is not a file of torch"),
        ('choice = "source build: no wheel fits"\n', "", "is missing"),
    ],
)  # fmt: skip
def test_hostile_builds_are_refused(old: str, new: str, why: str) -> None:
    text = dumps(WITH)
    assert old in text
    with pytest.raises(LockErrors, match=why):
        loads(text.replace(old, new, 1))


def test_a_component_is_a_wheel_or_a_build(golden: Golden) -> None:
    both = replace(WITH, wheels=(wheel("fast"), *WITH.wheels))
    with pytest.raises(LockErrors) as caught:
        dumps(both)
    golden.check(caught.value)


def test_what_decides_nothing_can_be_edited() -> None:
    assert loads(dumps(WITH).replace('because = "it is fast"', 'because = "it is faster"')).builds[0].key == BUILT.key


def test_an_edit_that_decides_is_refused_with_its_line(golden: Golden) -> None:
    text = dumps(WITH).replace('FAST_ARCHS = "90;120"', 'FAST_ARCHS = "90"')
    line = next(n for n, each in enumerate(text.splitlines(), 1) if each.startswith("key = "))
    with raises("lock-edited", where=f"locks/x.toml:{line}") as caught:
        loads(text, "locks/x.toml")
    golden.check(str(caught.value.why))
    assert "imagegen lock" in str(caught.value.fix)


DECIDES: dict[str, Callable[[Lock], Lock]] = {
    "name": lambda lock: with_build(lock, name="faster"),
    "version": lambda lock: with_build(lock, version="1.1"),
    "source": lambda lock: with_build(lock, source=replace(SOURCE, sha256=A)),
    "commit": lambda lock: with_build(lock, git=COMMIT),
    "tree": lambda lock: with_build(lock, git=replace(COMMIT, tree="5" * 40)),
    "submodules": lambda lock: with_build(lock, submodules=(SUBMODULE,)),
    "patches": lambda lock: with_build(lock, patches=(LockedPatch("arch.patch", A),)),
    "build requirements": lambda lock: with_build(lock, build_requires=BUILD.build_requires[:1]),
    "torch": lambda lock: with_build(replace(lock, wheels=(lock.wheels[0], altered("torch", B)))),
    "toolkit": lambda lock: with_build(replace(lock, wheels=(altered("nvidia-cuda-nvcc", B), lock.wheels[1]))),
    "against": lambda lock: with_build(lock, against=("torch",)),
    "compiler": lambda lock: with_build(replace(lock, base=replace(BASE, debs=BASE.debs[1:]))),
    "interpreter": lambda lock: with_build(replace(lock, interpreter=replace(LOCKED, path="/usr/bin/python3.12"))),
    "archive": lambda lock: with_build(replace(lock, interpreter=replace(LOCKED, file=ARCHIVE))),
    "another archive": lambda lock: with_build(
        replace(lock, interpreter=replace(LOCKED, file=replace(ARCHIVE, sha256=B)))
    ),
    "platform": lambda lock: with_build(replace(lock, axes={**lock.axes, "platform": "linux/arm64"})),
    "env": lambda lock: with_build(lock, env={**BUILD.env, "FORCE": "FALSE"}),
    "architectures": lambda lock: with_build(lock, architectures=("9.0",)),
    "builder": lambda lock: with_build(replace(lock, inputs={**lock.inputs, BUILDER: A})),
}  # fmt: skip
DECIDES_NOT: dict[str, Callable[[Lock], Lock]] = {
    "because": lambda lock: with_build(lock, because="x"),
    "via": lambda lock: with_build(lock, via=()),
    "choice": lambda lock: with_build(lock, choice="x"),
    "requires": lambda lock: with_build(lock, requires=()),
    "modules": lambda lock: with_build(lock, modules=()),
    "path of the source": lambda lock: with_build(lock, source=replace(SOURCE, path="a/b", index=LOCAL)),
    "a package that does not compile": lambda lock: with_build(
        replace(lock, base=replace(BASE, debs=(BASE.debs[0], deb("libc6-bin"))))
    ),
    "another wheel": lambda lock: with_build(replace(lock, wheels=(*lock.wheels, wheel("zstandard")))),
    "the cell": lambda lock: with_build(replace(lock, cell="other", as_of="2027-01-01T00:00:00Z", env=())),
}  # fmt: skip


def altered(name: str, sha256: str) -> LockedWheel:
    return replace(wheel(name), file=replace(wheel(name).file, sha256=sha256))


def test_the_key_changes_with_each_part_and_with_nothing_else() -> None:
    keys = {what: change(PLAIN).builds[0].key for what, change in DECIDES.items()}
    assert len({WITH.builds[0].key, *keys.values()}) == len(keys) + 1
    for what, change in DECIDES_NOT.items():
        assert change(PLAIN).builds[0].key == WITH.builds[0].key, what


def test_what_compiles_is_reported_by_name_and_version() -> None:
    there = ("g++", "g++-12", "gcc-12-base", "libc6", "libc6-dev", "libgcc-12-dev", "libpython3.11-dev", "python3.11")
    base = replace(BASE, debs=tuple(deb(name) for name in there))
    version = "1:2.3+dfsg-4~deb12u1"
    compiling = ("g++", "g++-12", "libc6-dev", "libgcc-12-dev", "libpython3.11-dev", "python3.11")
    assert compiler(base, base.debs) == [f"{name}={version}" for name in compiling]


def test_the_closure_follows_who_asks_for_whom() -> None:
    wheels = [
        wheel("torch"),
        wheel("triton", via=("torch",)),
        wheel("numpy", via=("pandas",)),
        wheel("libdevice", via=("triton", "vllm")),
        wheel("nvidia-nvvm"),
        wheel("vllm"),
    ]
    assert closure(["torch"], wheels) == ("libdevice", "nvidia-nvvm", "torch", "triton")
    assert closure([], wheels) == ("nvidia-nvvm",)


def test_realised_wheels_take_their_place_and_leave_the_inputs_alone() -> None:
    lock = with_built_wheels(WITH, {"fast": BUILT})
    assert [each.name for each in lock.wheels] == ["fast", "nvidia-cuda-nvcc", "torch"]
    fast = lock.wheels[0]
    assert (fast.file.sha256, fast.file.index, fast.build) == (B, "wheelhouse", BUILT.key)
    assert (fast.because, fast.choice) == (BUILD.because, BUILD.choice)
    assert inputs_hash(lock) == inputs_hash(WITH)
    assert dumps(lock) == dumps(WITH)
    assert with_built_wheels(lock, {"fast": BUILT}) == lock
    assert [each.name for each in lock.packages] == [each.name for each in lock.wheels]
    cell = shipped_matrix().select_one("cpu-grpo")
    assert facts_of_lock(lock, cell).packages == facts_of_lock(WITH, cell).packages
    assert f"sha256:{SOURCE.sha256}" in contents(WITH)


@pytest.mark.parametrize(
    ("built", "why"),
    [
        ({}, "has not been built"),
        ({"fast": replace(BUILT, key=f"sha256:{A}")}, "has not been built"),
        ({"fast": replace(BUILT, filename="fast-1.1-cp311-cp311-linux_x86_64.whl")}, "is not a wheel of fast 1.0"),
    ],
)
def test_a_build_is_realised_by_its_own_wheel_alone(built: dict[str, BuiltWheel], why: str) -> None:
    with pytest.raises(BuildError, match=why):
        with_built_wheels(WITH, built)


words = st.from_regex(r"[a-z][a-z_]{0,6}", fullmatch=True)
builds = st.builds(
    lambda name, version, because, choice, sha256, size, env, modules, patches, capabilities, commit: replace(
        BUILD,
        name=name,
        version=version,
        because=because,
        choice=choice,
        source=LockedFile(f"{name}-{version}.tar", size, sha256, GIT if commit else LOCAL),
        git=COMMIT if commit else None,
        submodules=(SUBMODULE,) if commit else (),
        patches=tuple(LockedPatch(f"{each}.patch", sha256) for each in patches),
        env=env,
        architectures=capabilities,
        modules=tuple(modules),
    ),
    names.filter(lambda name: name not in ("torch", "nvidia-cuda-nvcc")), versions, st.none() | texts, texts, hashes,
    sizes, st.dictionaries(words, texts, max_size=2), st.lists(words, max_size=2),
    st.lists(words, max_size=2, unique=True), st.sampled_from([(), ("9.0",), ("9.0", "12.0")]), st.booleans(),
)  # fmt: skip


@given(st.lists(builds, max_size=2, unique_by=lambda build: build.name))
def test_any_builds_come_back_as_they_were(found: list[LockedBuild]) -> None:
    lock = replace(PLAIN, builds=tuple(keyed(each, PLAIN) for each in sorted(found, key=lambda build: build.name)))
    assert loads(dumps(lock)) == lock
    assert all(each.key == key_of(each, lock) for each in lock.builds)
