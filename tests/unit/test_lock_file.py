"""The lock file: what is written can be read, what is hostile cannot."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.data import shipped
from imagegen.core.errors import LockError
from imagegen.lock import dumps, inputs_hash, read, stale, write
from imagegen.lock.file import LockErrors, loads
from imagegen.lock.model import (
    Lock,
    LockedFile,
    LockedGit,
    LockedGpus,
    LockedSdist,
    LockedWheel,
)
from imagegen.oci.documents import ImageConfig, LayerDescriptor, RemoteImage
from imagegen.spec.foundation import Base
from imagegen.spec.model import Cell, EnvVar
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.interpreters import DEBIAN
from tests.support.lock_samples import LOCK, A, C, locks, wheel
from tests.support.shipped_locks import NAMES, shipped_lock
from tests.support.tiny_lock import LOCK as TINY


def test_round_trip(tmp_path: Path) -> None:
    write(LOCK, tmp_path / "locks" / "x.toml")
    assert read(tmp_path / "locks" / "x.toml") == LOCK
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["x.toml"]


def test_the_text_reads_well_in_a_diff() -> None:
    text = dumps(LOCK)
    assert text == dumps(loads(text))
    lines = text.splitlines()
    assert 'version = "2.13.0+cpu"' in lines
    assert 'via = ["peft", "trl"]' in lines
    assert sum(line.startswith('  { name = "adduser", version = ') for line in lines) == 1
    bumped = replace(LOCK, wheels=(LOCK.wheels[0], wheel("torch", "2.13.1+cpu", via=("peft", "trl"))))
    assert len(set(dumps(bumped).splitlines()) - set(lines)) == 3  # version, file name and path


def test_what_is_asked_of_gpus_is_a_table_of_its_own() -> None:
    text = dumps(LOCK)
    assert '[gpu]\ncapabilities = ["9.0", "12.0"]\ndriver = "580.65.06"\n' in text
    assert loads(dumps(replace(LOCK, gpu=LockedGpus((), None)))).gpu == LockedGpus((), None)
    assert "gpu" not in dumps(replace(LOCK, gpu=None))


@given(locks)
def test_every_lock_survives_the_round_trip(lock: Lock) -> None:
    assert loads(dumps(lock)) == lock


@given(st.text())
def test_any_text_is_a_lock_or_an_error_with_the_file(text: str) -> None:
    with pytest.raises(LockError, match=r"x\.toml"):
        loads(text, "x.toml")


TORCH_PATH = 'path = "packages/a/torch-2.13.0+cpu-py3-none-any.whl"'


@pytest.mark.parametrize(
    ("old", "new", "line_of", "part"),
    [
        (f'sha256 = "{A}"', 'sha256 = "abc"', 'sha256 = "abc"', "wheel[2].sha256"),
        (f'sha256 = "{A}"', f'sha256 = "{"A" * 64}"', f'sha256 = "{"A" * 64}"', "wheel[2].sha256"),
        ('"torch-2.13.0+cpu-py3-none-any.whl"', '"../../etc/passwd"', "../../etc", "wheel[2].file"),
        ('"torch-2.13.0+cpu-py3-none-any.whl"', '"peft-2.1-py3-none-any.whl"', "[[wheel]]", "is not the address of"),
        ('"torch-2.13.0+cpu-py3-none-any.whl"', '"torch-2.13.0+cpu.tar.gz"', "[[wheel]]", "is not the address of"),
        ('version = "2.13.0+cpu"', 'version = "latest"', "latest", "wheel[2].version"),
        ('name = "torch"', 'name = "Torch"', "Torch", "wheel[2].name"),
        (TORCH_PATH, 'path = "https://host/x"', "https", "wheel[2].path"),
        (TORCH_PATH, 'path = "/packages/x"', "/packages/x", "wheel[2].path"),
        (TORCH_PATH, 'path = "a/../../x"', "../../x", "wheel[2].path"),
        (TORCH_PATH, 'path = "packages/a/peft-2.1-py3-none-any.whl"', "[[wheel]]", "is not the address of"),
        ('value = "2"', 'value = "2\\nRUN evil"', "RUN evil", "control character"),
        ('because = "the runners have two cores"', 'because = "x\\u2028y"', "u2028", "control character"),
        ('name = "OMP_NUM_THREADS"', 'name = "A B"', '"A B"', "env[1].name"),
        ('path = "/usr/bin/python3.11"', 'path = "/usr/bin/x y"', "x y", "interpreter.path"),
        ('cell = "tiny-cpu-py311"', 'cell = "tiny"\ncolour = "red"', "colour", "no such key"),
        ('version = "0.13.8"', "version = 1", "version = 1", "valid string"),
        ('as-of = "2026-11-20T00:00:00Z"', 'as-of = "2026-11-20"', "as-of", "as-of"),
        ("size = 1000", "size = -1", "size = -1", "greater than or equal"),
        ("size = 1000", '".file" = {}\nsize = 1000', "[[wheel]]", "unknown key '.file'"),
        ("size = 1000", "size = true", "size = true", "valid integer"),
        ('name = "libc6", version = "1:2.3', 'name = "libc6", version = "$(x)', "$(x)", "base.debs[2].version"),
        ('name = "libc6"', 'name = "aaa"', None, "debs are not sorted"),
        ('driver = "580.65.06"', 'driver = "580;x"', "580;x", "gpu.driver"),
        ('["9.0", "12.0"]', '["sm_90"]', "sm_90", "gpu.capabilities[1]"),
        ('platform = "linux/amd64"\n', "", None, "platform"),
        (f'digest = "sha256:{A}"', 'digest = "sha512:0"', "sha512", "record.digest"),
    ],
)  # fmt: skip
def test_hostile_values_are_refused_with_file_and_line(old: str, new: str, line_of: str | None, part: str) -> None:
    text = dumps(LOCK)
    assert old in text
    before, _, after = text.rpartition(old)
    broken = before + new + after
    with pytest.raises(LockErrors) as caught:
        loads(broken, "locks/x.toml")
    message = str(caught.value)
    assert part in message
    assert "fix: " in message
    if line_of:
        numbers = [n for n, line in enumerate(broken.splitlines(), 1) if line_of in line]
        assert int(re.search(r"locks/x\.toml:(\d+): ", message)[1]) in numbers  # type: ignore[index]


def test_all_faults_are_reported_at_once() -> None:
    text = dumps(LOCK).replace('codec = "', 'codex = "').replace('kind = "debian"', "kind = 7")
    with pytest.raises(LockErrors, match="3 errors found"):
        loads(text)


def test_missing_keys_name_their_table(golden: Golden) -> None:
    head, table, rest = dumps(LOCK).partition("[[wheel]]")
    text = head + table + re.sub(r'index = "[a-z]+"\n', "", rest, count=1)
    with pytest.raises(LockErrors) as caught:
        loads(text)
    golden.check(caught.value)


@pytest.mark.parametrize("version", ["2", "0", '"1"', "true"])
def test_other_formats_are_named(version: str) -> None:
    text = re.sub(r"^version = 1$", f"version = {version}", dumps(LOCK), count=1, flags=re.MULTILINE)
    with raises("lock-format-unsupported") as caught:
        loads(text)
    assert not isinstance(caught.value, LockErrors)


def test_broken_toml_has_a_line() -> None:
    with raises("lock-malformed", where="x.toml:2"):
        loads("version = 1\n= 3\n", "x.toml")


def test_no_lock_says_what_to_run(tmp_path: Path) -> None:
    with raises("lock-missing"):
        read(tmp_path / "none.toml")


def test_a_bad_lock_is_never_written(tmp_path: Path) -> None:
    write(LOCK, tmp_path / "x.toml")
    with pytest.raises(LockError, match="control character"):
        write(replace(LOCK, env=(EnvVar("A", "1\n2", "x"),)), tmp_path / "x.toml")
    assert read(tmp_path / "x.toml") == LOCK


def test_inputs_hash_covers_all_but_the_record() -> None:
    assert inputs_hash(LOCK) == inputs_hash(replace(LOCK, record=None))
    assert inputs_hash(LOCK) == inputs_hash(loads(dumps(LOCK)))
    others = [
        replace(LOCK, as_of="2026-11-21T00:00:00Z"),
        replace(LOCK, wheels=LOCK.wheels[1:]),
        replace(LOCK, env=()),
        replace(LOCK, gpu=None),
        replace(LOCK, base=replace(LOCK.base, debs=LOCK.base.debs[:1])),
    ]
    assert len({inputs_hash(lock) for lock in [LOCK, *others]}) == len(others) + 1


@pytest.mark.fault(
    "Trust", "a lock has a key that its digest and its written form would leave out",
    "lock-malformed, with the table's line",
)  # fmt: skip
@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("[[wheel]]", f'build = "sha256:{A}"'),
        ("[uv]", f'build = "sha256:{A}"'),
        ("[[wheel.git.build]]", f'build = "sha256:{A}"'),
        ("[wheel.git]", 'file = "demo-1.0.tar.gz"'),
        ("[wheel.git]", 'index = "git"'),
        ("[base.content]", 'labels = { a = "b" }'),
    ],
)
def test_no_key_is_read_that_is_not_written(header: str, key: str) -> None:
    archive = LockedFile("demo-1.0.tar", 1, A, "git")
    sdist = LockedSdist(archive, (wheel("flit", "1.0"),), git=LockedGit("v1", "https://x.org/a", "1" * 40, "2" * 40))
    layers = (LayerDescriptor.of_tar(f"sha256:{A}", 1),)
    content = RemoteImage(f"sha256:{A}", f"sha256:{A}", ImageConfig(), layers)
    base = replace(
        TINY.base, kind="registry", suite=None, debs=(), archives={}, image="docker.io/a/b:1", content=content
    )
    file = LockedFile("demo-1.0-py3-none-any.whl", 1, A, "git")
    text = dumps(
        replace(TINY, base=base, added=None, record=None, wheels=(LockedWheel("demo", "1.0", file, sdist=sdist),))
    )
    assert f"{header}\n" in text
    assert loads(text)
    with pytest.raises(LockErrors) as caught:
        loads(text.replace(f"{header}\n", f"{header}\n{key}\n", 1))
    assert [error.code for error in caught.value.errors] == ["lock-malformed"]


def test_stale_names_what_moved() -> None:
    base = Base("debian12", "debian", "bookworm", None, "debian12", "2.36", {}, "")
    cell = Cell("c", "i", "", "", LOCK.axes, base, DEBIAN, (), (), {}, (), inputs=dict(LOCK.inputs))
    assert stale(LOCK, cell) == ()
    assert stale(replace(LOCK, inputs={**LOCK.inputs, "rules": A}), cell) == ()  # they judge it, whenever they came
    moved = replace(cell, inputs={"component torch": C, "component peft": A})
    assert stale(LOCK, moved) == ("component peft", "component torch", "image")


def test_the_file_is_host_free() -> None:
    assert "://" not in dumps(LOCK)
    assert tomllib.loads(dumps(LOCK))["wheel"][0]["index"] == "pypi"


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_lock_is_written_as_it_was_read(name: str) -> None:
    assert dumps(shipped_lock(name)) == (shipped("locks") / f"{name}.toml").read_text()
