"""A lock that a pull request changes: each field of a committed lock edited, with its record and without."""

from __future__ import annotations

import copy
import functools
import re
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagegen import lock
from imagegen import spec as matrix
from imagegen.cli.app import App
from imagegen.core.data import shipped
from imagegen.core.errors import LockError
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.lock.file import loads, render_table
from imagegen.lock.model import URL, Lock, LockedFile, LockedSdist, LockedWheel, Record
from tests.support.project import Project
from tests.support.shipped_locks import shipped_lock

CPU, GPU = "sb3-maskable-cpu-py311", "blackwell-vllm-cu130-py311"
SDISTS = "cpu-grpo-cpu-py311"
REVIEWED = {  # what docs/explanation/trust.md says that reviewers have to look at: nothing but the lock names these
    *("as-of", "base.archives.*", "wheel.via", "uv.sha256", "uv.size", "wheel.sha256", "wheel.size"),
    *(f"base.debs.{name}" for name in ("architecture", "name", "path", "sha256", "size", "version")),
    *("wheel.sdist.sha256", "wheel.sdist.size", "wheel.sdist.build.sha256", "wheel.sdist.build.size"),
}
Path_ = tuple[str | int, ...]


@functools.cache
def the_matrix() -> matrix.Matrix:
    return matrix.load([shipped("matrices"), shipped("wheels")])


def refusal(name: str, text: str, tmp_path: Path) -> LockError | None:
    """Return the error with which every command that reads the lock refuses it."""
    (tmp_path / "locks").mkdir(exist_ok=True)
    (tmp_path / "locks" / f"{name}.toml").write_text(text)
    app = App({"PATH": ""}, tmp_path)
    vars(app.session.matrices)["matrix"] = the_matrix()
    (cell,) = the_matrix().select(name)
    try:
        app.session.lock_files.fresh(cell)
    except LockError as error:
        return error
    return None


def leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Path and value of every field, lists of plain values whole."""
    if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from leaves(each, (*path, key))
    else:
        yield path, value


def kind(path: Path_) -> str:
    """The name of a field without its place in lists; names of inputs and archives as `*`."""
    names = [str(part) for part in path if isinstance(part, str)]
    return ".".join([*names[:-1], "*"] if names[0] == "inputs" or names[1:2] == ["archives"] else names)


def other(value: Any, path: Path_) -> Any:
    """Another value of the same form."""
    if isinstance(value, int | list):
        return value + 1 if isinstance(value, int) else [*value, "zzz"]
    forms = {
        "url": f"https://attacker.example/{value.rpartition('/')[2]}",
        "path": "packages/aa/bb/attacker-1.0-py3-none-any.whl",
        "index": "attacker",
        "version": f"{value}.1",
    }
    if path[-1] in forms:
        return forms[str(path[-1])]
    if re.match(r"\d{4}-\d\d-\d\dT", value):
        return "2020-01-01T00:00:00Z"
    hashed = re.sub(r"[0-9a-f]{40}", "e" * 40, value)
    return hashed if hashed != value else f"{value}x"


def fields(name: str) -> dict[str, tuple[Path_, Any]]:
    """Kind of field -> one field of it; of a lock for GPUs those kinds that the small one lacks."""
    table = tomllib.loads((shipped("locks") / f"{name}.toml").read_text())
    found = {kind(path): (path, value) for path, value in leaves(table)}
    return {each: found[each] for each in found.keys() - (fields(SDISTS).keys() if name != SDISTS else set())}


def edited(name: str, drop: str | None) -> Iterator[tuple[str, str]]:
    """Kind of field and text of the lock, for a field of each kind edited; without its table `drop`."""
    table = tomllib.loads((shipped("locks") / f"{name}.toml").read_text())
    if drop:
        del table[drop]
    for path, value in fields(name).values():
        if path[0] == drop:
            continue
        changed = copy.deepcopy(table)
        node: Any = changed
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = other(value, path)
        yield kind(path), "\n".join(render_table(changed, ())) + "\n"


@pytest.mark.fault(
    "Matrices, rules, locks",
    "any field of a recorded lock edited, and nothing else",
    "refused by whatever reads the lock: the record no longer fits, or the field contradicts the matrix",
)
@pytest.mark.parametrize("name", [SDISTS, GPU])
def test_no_field_of_a_recorded_lock_can_be_edited_alone(name: str, tmp_path: Path) -> None:
    assert refusal(name, (shipped("locks") / f"{name}.toml").read_text(), tmp_path) is None
    # The codec says how blobs were compressed; a build compares the blobs themselves.
    passed = {field for field, text in edited(name, None) if refusal(name, text, tmp_path) is None}
    assert passed <= {"record.codec", "record.layer-format"}


@pytest.mark.fault(
    "Matrices, rules, locks",
    "any field of a lock edited, and its record removed or made to fit",
    "refused, but for what the lock alone says: hashes, Debian packages, times, and who asks for a package",
)
@pytest.mark.parametrize(("name", "expected"), [(SDISTS, REVIEWED), (GPU, set())])
def test_what_only_review_finds_is_what_the_documentation_lists(name: str, expected: set[str], tmp_path: Path) -> None:
    passed = {field for field, text in edited(name, "record") if refusal(name, text, tmp_path) is None}
    assert passed == expected


def transitive(locked: Lock, **changes: Any) -> Lock:
    """The lock with another wheel for a package that no cell asks for by name."""
    (wheel,) = [each for each in locked.wheels if each.name == "sympy"]
    return replace(locked, wheels=tuple(replace(wheel, **changes) if each is wheel else each for each in locked.wheels))


def required(locked: Lock, **changes: Any) -> Lock:
    (wheel,) = [each for each in locked.wheels if each.name == "torch"]
    return replace(locked, wheels=tuple(replace(wheel, **changes) if each is wheel else each for each in locked.wheels))


def direct(name: str, locked: Lock) -> LockedFile:
    """The same file name, from the attacker's host."""
    file = next(each.file for each in locked.wheels if each.name == name)
    where = f"https://attacker.example/{file.filename.replace('+', '%2B')}"
    return replace(file, sha256="e" * 64, index=URL, path=None, url=where)


def from_sdist(locked: Lock) -> LockedSdist:
    version = next(each.version for each in locked.wheels if each.name == "sympy")
    return LockedSdist(LockedFile(f"sympy-{version}.tar.gz", 9, "e" * 64, "pytorch-cpu"), ())


def elsewhere(wheel: LockedWheel, index: str) -> LockedWheel:
    return replace(wheel, file=replace(wheel.file, index=index, path=None))


ATTACKS: dict[str, tuple[Callable[[Lock], Lock], str]] = {
    "a dependency from the attacker's host": (
        lambda it: transitive(it, file=direct("sympy", it), choice="catalogue: it fits"),
        "wheel sympy",
    ),
    "a component that needs no compiler from the attacker's host": (
        lambda it: required(it, file=direct("torch", it), choice="catalogue: it fits"),
        "wheel torch",
    ),
    "a dependency from another index": (
        lambda it: transitive(it, file=elsewhere(next(w for w in it.wheels if w.name == "sympy"), "pytorch-cpu").file),
        "wheel sympy",
    ),
    "a dependency from sources of another index": (lambda it: transitive(it, sdist=from_sdist(it)), "sdist sympy"),
    "uv from another index": (lambda it: replace(it, uv=elsewhere(it.uv, "pytorch-cpu")), "uv"),
    "another tool in uv's place": (
        lambda it: replace(it, uv=replace(next(w for w in it.wheels if w.name == "sympy"), via=())),
        "uv",
    ),
}  # fmt: skip


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a lock without a record takes a wheel from an attacker's host, from another index, or from sources of one",
    "refused: names the package",
)
@pytest.mark.parametrize("attack", ATTACKS)
def test_files_come_from_where_the_matrix_says(attack: str, tmp_path: Path) -> None:
    change, named = ATTACKS[attack]
    text = lock.dumps(change(replace(shipped_lock(CPU), record=None)))  # as a file it is sound
    (cell,) = the_matrix().select(CPU)
    assert named in lock.contradictions(loads(text), cell)
    assert refusal(CPU, text, tmp_path) is not None


def test_build_requirements_are_those_that_the_matrix_pins(tmp_path: Path) -> None:
    sound = replace(shipped_lock(SDISTS), record=None)
    (made,) = [each for each in sound.wheels if each.sdist]
    assert made.sdist
    (backend,) = made.sdist.build_requires
    name = backend.file.filename.replace(backend.version, "1.0")
    changes = [
        (),
        (elsewhere(backend, "pytorch-cpu"),),
        (replace(backend, version="1.0", file=replace(backend.file, filename=name, path=None)),),
    ]
    (cell,) = the_matrix().select(SDISTS)
    assert lock.contradictions(sound, cell) == ()
    for build_requires in changes:
        other = replace(made, sdist=replace(made.sdist, build_requires=build_requires))
        wheels = tuple(other if each is made else each for each in sound.wheels)
        assert lock.contradictions(replace(sound, wheels=wheels), cell) == (f"sdist {made.name}",)


def test_the_oldest_driver_is_the_rules_to_say(tmp_path: Path) -> None:
    sound = replace(shipped_lock(GPU), record=None)
    assert sound.gpu
    for driver in ("470.1", None):
        text = lock.dumps(replace(sound, gpu=replace(sound.gpu, driver=driver)))
        found = refusal(GPU, text, tmp_path)
        assert found
        assert "gpu.driver" in str(found.why)


def test_an_address_names_the_file(tmp_path: Path) -> None:
    """A file host keeps all projects' files: a path to another project's would be fetched as this one's."""
    text = (shipped("locks") / f"{CPU}.toml").read_text()
    assert loads(text)
    start = text.index("\npath = ", text.index("[[wheel]]")) + 1
    with pytest.raises(LockError) as caught:
        loads(text[:start] + 'path = "packages/aa/bb/attacker-1.0-py3-none-any.whl"' + text[text.index("\n", start) :])
    (error,) = caught.value.errors  # type: ignore[attr-defined]
    assert error.where.line


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a pull request points a dependency at an attacker's host: lock --check, build, publish",
    "refused by each, and that host is never asked",
)
def test_every_command_refuses_it(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    env = {"PIP_INDEX_URL": (project.root / "index").as_uri()}
    assert project.call("lock", "demo", env=env).returncode == 0
    sound = lock.read(project.lock)
    file = LockedFile(
        "extra-1.0-py3-none-any.whl", 9, "e" * 64, URL, url="http://127.0.0.1:9/extra-1.0-py3-none-any.whl"
    )
    extra = LockedWheel("extra", "1.0", file, via=("demo",), choice="catalogue: it fits")
    lock.write(replace(sound, wheels=(*sound.wheels, extra)), project.lock)
    for arguments in (
        ["lock", "demo", "--check"],
        ["build", "demo", "--output", "oci:x"],
        ["publish", "demo", "--to", "127.0.0.1:9/x", "--dry-run"],
    ):
        done = project.call(*arguments, env=env)
        assert done.returncode == 67, (arguments, done.stderr)
        assert not (project.root / "x").exists()
    assert project.call("lock", "demo", env=env).returncode == 0  # it resolves anew, and the intruder is gone
    assert lock.read(project.lock) == sound


def test_a_record_that_does_not_fit_goes_when_the_lock_is_made_again(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    env = {"PIP_INDEX_URL": (project.root / "index").as_uri()}
    assert project.call("lock", "demo", env=env).returncode == 0
    sound = lock.read(project.lock)
    digest = f"sha256:{'e' * 64}"
    lock.write(replace(sound, record=Record(LAYER_FORMAT, CODEC, digest, ())), project.lock)
    assert project.call("lock", "demo", "--check", env=env).returncode == 67
    assert project.call("lock", "demo", env=env).returncode == 0
    assert lock.read(project.lock) == sound


def test_an_edited_hash_is_found_by_resolving_again(tmp_path: Path) -> None:
    """The check that docs/explanation/trust.md recommends for CI: `imagegen lock`, then `git diff
    --exit-code locks/`.
    """
    project = Project(tmp_path / "project")
    env = {"PIP_INDEX_URL": (project.root / "index").as_uri()}
    assert project.call("lock", "demo", env=env).returncode == 0
    sound = project.lock.read_text()
    (wheel,) = lock.read(project.lock).wheels
    project.lock.write_text(sound.replace(wheel.file.sha256, "e" * 64))
    assert project.call("lock", "demo", "--check", env=env).returncode == 0
    assert project.call("lock", "demo", env=env).returncode == 0
    assert project.lock.read_text() == sound


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a lock of 5,000 packages",
    "time grows with their number; no command takes more than 127 MB of memory",
)
def test_a_lock_of_5000_packages(tmp_path: Path) -> None:
    seconds = {}
    for count in (500, 5000):
        more = [
            LockedWheel(
                name, "1.0", LockedFile(f"{name}-1.0-py3-none-any.whl", 9, f"{number:064x}", "pypi"), via=("torch",)
            )
            for number, name in enumerate(f"pkg{number:04}" for number in range(count))
        ]
        sound = shipped_lock(CPU)
        wheels = sorted((*sound.wheels, *more), key=lambda wheel: wheel.name)
        text = lock.dumps(replace(sound, record=None, wheels=tuple(wheels)))
        before = time.process_time()
        assert refusal(CPU, text, tmp_path) is None
        seconds[count] = time.process_time() - before
    assert seconds[5000] < 40 * seconds[500]  # ten times the packages; were it quadratic, a hundred times as long
