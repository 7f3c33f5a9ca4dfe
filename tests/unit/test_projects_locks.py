"""uv.lock, pylock.toml and pyproject.toml: their packages for one Python, and what has no release on an index."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import Location, LockError, ProjectFileError
from imagegen.projects import locks
from imagegen.projects.model import COMMIT as COMMIT_FIX
from imagegen.projects.model import OWN_PACKAGE, DeclaringFile, MarkerTarget, Recovered
from imagegen.projects.names import uv_keys

LINUX = MarkerTarget("3.12.6")
INDEX = 'source = { registry = "https://i.example.org/simple" }'
COMMIT = "0" * 40
UV_LOCK = f"""\
version = 1
revision = 3
requires-python = ">=3.12"

[manifest]
overrides = [
    {{ name = "dep", specifier = "==2.0" }},
    {{ name = "never", marker = "sys_platform == 'never'" }},
]

[[package]]
name = "app"
version = "0.1"
source = {{ editable = "." }}
dependencies = [
    {{ name = "dep" }},
    {{ name = "torch" }},
    {{ name = "wheel-only" }},
    {{ name = "forked" }},
    {{ name = "windows", marker = "sys_platform == 'win32'" }},
]
[package.optional-dependencies]
gpu = [{{ name = "kernel" }}]

[[package]]
name = "dep"
version = "2.0"
{INDEX}

[[package]]
name = "forked"
version = "1.0"
source = {{ git = "https://example.org/f.git#{COMMIT}" }}

[[package]]
name = "kernel"
version = "3.0"
{INDEX}

[[package]]
name = "torch"
version = "2.8.0+cu128"
{INDEX}

[[package]]
name = "wheel-only"
version = "1.5+cu12"
source = {{ url = "https://example.org/wheel_only-1.5%2Bcu12-py3-none-any.whl" }}
wheels = [{{ url = "https://example.org/wheel_only-1.5%2Bcu12-py3-none-any.whl", hash = "sha256:{"a" * 64}" }}]

[[package]]
name = "windows"
version = "1.0"
{INDEX}
"""
PYLOCK = f"""\
lock-version = "1.0"
created-by = "test"
requires-python = ">=3.11"
extras = ["gpu"]

[[packages]]
name = "a"
version = "1.0"
index = "https://i.example.org/simple"
[[packages.wheels]]
name = "a-1.0-py3-none-any.whl"
url = "https://e.org/a-1.0-py3-none-any.whl"
hashes = {{ sha256 = "{"a" * 64}" }}

[[packages]]
name = "b"
version = "2.0"
marker = "sys_platform == 'win32'"
index = "https://i.example.org/simple"
[[packages.wheels]]
name = "b-2.0-py3-none-any.whl"
url = "https://e.org/b-2.0-py3-none-any.whl"
hashes = {{ sha256 = "{"a" * 64}" }}

[[packages]]
name = "c"
vcs = {{ type = "git", url = "https://example.org/c.git", commit-id = "{COMMIT}" }}
"""
PYPROJECT = """\
[project]
name = "app"
requires-python = ">=3.10"
dependencies = [
    "a>=1",
    "b; sys_platform == 'win32'",
    "c @ https://example.org/c.tar.gz",
    "d",
]
[project.optional-dependencies]
gpu = ["kernel==3"]
[dependency-groups]
dev = ["tester", {include-group = "Lint.Er"}]
lint_er = ["ruff", {include-group = "dev"}]
[tool.uv.sources]
d = { git = "https://example.org/d.git" }
"""


def pins(found: Recovered) -> dict[str, tuple[str, int | None]]:
    return {pin.package: (pin.specifier, pin.places[0].line) for pin in found.pins}


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_uv_lock_gives_its_versions_for_the_target(tmp_path: Path) -> None:
    file = locks.read_uv_lock(write(tmp_path, "uv.lock", UV_LOCK))
    found = file.recover(LINUX)
    assert file.python == ">=3.12"
    others = {"dep": ("==2.0", 25), "torch": ("==2.8.0+cu128", 40), "wheel-only": ("==1.5", 45)}
    assert pins(found) == {"app": ("", 11), **others}
    assert {each.package: each.directory for each in found.pins if each.directory} == {"app": tmp_path}
    assert {each.place.line: each.is_package for each in found.omissions} == {30: True, 45: False}
    assert [(each.package, each.specifier) for each in found.overrides] == [("dep", "==2.0")]
    assert found.other_extras == ("gpu",)


def test_an_extra_of_a_uv_lock_is_chosen(tmp_path: Path) -> None:
    found = locks.read_uv_lock(write(tmp_path, "uv.lock", UV_LOCK), ["gpu"]).recover(LINUX)
    assert pins(found)["kernel"] == ("==3.0", 35)
    assert found.other_extras == ()


@pytest.mark.parametrize(
    ("text", "extras", "code"),
    [
        (UV_LOCK.replace("version = 1\n", "version = 2\n", 1), [], "lock-uv-lock-malformed"),
        (UV_LOCK, ["gpus"], "lock-uv-lock-mismatch"),
        (UV_LOCK.replace(f"#{COMMIT}", ""), [], "lock-uv-lock-malformed"),
    ],
)
def test_a_uv_lock_that_gives_no_answer_is_refused(tmp_path: Path, text: str, extras: list[str], code: str) -> None:
    with pytest.raises(LockError) as raised:
        locks.read_uv_lock(write(tmp_path, "uv.lock", text), extras).recover(LINUX)
    assert raised.value.code == code


def test_a_newer_revision_of_the_same_format_is_read(tmp_path: Path) -> None:
    text = UV_LOCK.replace("revision = 3", 'revision = 99\nnew-key = "x"')
    assert len(locks.read_uv_lock(write(tmp_path, "uv.lock", text)).recover(LINUX).pins) == 4


def test_a_uv_lock_without_a_project_is_refused(tmp_path: Path) -> None:
    text = UV_LOCK.replace('editable = "."', 'registry = "https://i.example.org"')
    with pytest.raises(ProjectFileError):
        locks.read_uv_lock(write(tmp_path, "uv.lock", text)).recover(LINUX)


def test_a_pylock_gives_its_versions_for_the_target(tmp_path: Path) -> None:
    file = locks.read_pylock(write(tmp_path, "pylock.toml", PYLOCK))
    found = file.recover(LINUX)
    assert file.python == ">=3.11"
    assert pins(found) == {"a": ("==1.0", 6)}
    assert [(each.place.line, each.is_package) for each in found.omissions] == [(25, True)]
    assert (found.other_platforms, found.other_extras) == (1, ("gpu",))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (PYLOCK.replace('"1.0"', '"2.0"', 1), "project-malformed"),
        (PYLOCK.replace('name = "a"\n', "", 1), "project-malformed"),
        (PYLOCK + "[", "project-malformed"),
        (PYLOCK.replace("a-1.0-py3-none-any", "a-1.0-cp39-cp39-win_amd64"), "project-mismatch"),
        (PYLOCK.replace("3.11", "3.13", 1), "project-mismatch"),
    ],
)
def test_a_pylock_that_gives_no_answer_is_refused(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(ProjectFileError) as raised:
        locks.read_pylock(write(tmp_path, "pylock.toml", text)).recover(LINUX)
    assert raised.value.code == code


def test_a_pyproject_gives_its_requirements_with_lines(tmp_path: Path) -> None:
    file = locks.read_pyproject(write(tmp_path, "pyproject.toml", PYPROJECT), ["gpu"], ["dev"])
    found = file.recover(LINUX)
    assert pins(found) == {"a": (">=1", 5), "kernel": ("==3", 11), "ruff": ("", 14), "tester": ("", 13)}
    assert [(each.place.line, each.is_package) for each in found.omissions] == [(7, True), (8, True)]
    assert (file.python, found.other_platforms) == (">=3.10", 1)


SELF_REFERENCES = """\
[project]
name = "My_Proj"
dependencies = ["base", "my.proj"]
[project.optional-dependencies]
"In_Fer" = ["vllm==0.11.0", "my-proj[all]"]
win = ["pywin"]
all = ["MY-PROJ[in-fer,missing]>=1", "my-proj[win]; sys_platform == 'win32'"]
here = ["my-proj[in.fer] @ file:."]
[dependency-groups]
dev = ["my_proj[all]", "tester"]
"""
_OWN = ("a project named as a package of PyPI requires its own extras", "its extras are selected, no index is asked")


@pytest.mark.fault("Matrices, rules, locks", *_OWN)
@pytest.mark.parametrize(("extras", "groups"), [(["ALL"], []), (["in.fer"], []), (["here"], []), ([], ["Dev"])])
@pytest.mark.parametrize("is_package", [True, False])
def test_a_requirement_of_the_project_itself_selects_its_extras(
    tmp_path: Path, extras: list[str], groups: list[str], *, is_package: bool
) -> None:
    text = SELF_REFERENCES + ("[build-system]\nrequires = []\n" if is_package else "")
    found = locks.read_pyproject(write(tmp_path, "pyproject.toml", text), extras, groups).recover(LINUX)
    own = [(pin.package, pin.directory, pin.extras) for pin in found.pins if pin.package == "my-proj"]
    chosen = tuple(sorted({"all", "in-fer", *({"here"} & set(extras))}))
    assert own == ([("my-proj", tmp_path, chosen)] if is_package else [])
    assert pins(found).keys() - {"my-proj"} == {"base", "vllm", *({"tester"} if groups else ())}
    assert [(each.place.line, each.is_package) for each in found.omissions] == [(7, True)]
    assert "all" not in found.other_extras and "win" in found.other_extras


@given(st.dictionaries(st.sampled_from("abcd"), st.sets(st.sampled_from("abcd")), min_size=1))
def test_extras_that_name_each_other_are_all_selected(
    tmp_path_factory: pytest.TempPathFactory, edges: dict[str, set[str]]
) -> None:
    """Any graph of extras, with cycles: what is reachable is selected, once; an extra that is absent is an omission."""
    lines = [f'{each} = ["p-{each}", "proj[{",".join(sorted(others))}]"]' for each, others in edges.items()]
    text = "\n".join(['[project]\nname = "proj"\n[project.optional-dependencies]', *lines])
    first = min(edges)
    found = locks.read_pyproject(write(tmp_path_factory.getbasetemp(), "pyproject.toml", text), [first]).recover(LINUX)
    reached, left = {first}, [first]
    while left:
        more = (edges[left.pop()] & edges.keys()) - reached
        reached |= more
        left += more
    assert pins(found).keys() == {f"p-{each}" for each in reached}
    assert len(found.omissions) == sum(len(edges[each] - edges.keys()) for each in reached)


def test_a_group_that_is_absent_is_refused_with_its_line(tmp_path: Path) -> None:
    text = '[project]\nname = "a"\n[dependency-groups]\ndev = [{include-group = "x"}]\n'
    with pytest.raises(ProjectFileError) as raised:
        locks.read_pyproject(write(tmp_path, "pyproject.toml", text), [], ["dev"]).recover(LINUX)
    assert raised.value.code == "project-malformed"
    assert isinstance(raised.value.where, Location) and raised.value.where.line == 4


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        ("[{url = 'https://e.org/a.whl', marker = \"sys_platform == 'darwin'\"}, {index = 'i'}]", None),
        ("[{index = 'i', marker = \"sys_platform == 'darwin'\"}, {git = 'https://e.org/a.git'}]", COMMIT_FIX),
        ("{path = 'a-1.0-py3-none-any.whl'}", OWN_PACKAGE),
        ("{workspace = true}", OWN_PACKAGE),
        ("{url = 'file:///a.whl', marker = 'not a marker'}", None),
    ],
)
def test_the_source_of_a_requirement_is_the_one_whose_marker_holds(
    tmp_path: Path, source: str, fix: str | None
) -> None:
    text = f'[project]\nname = "p"\ndependencies = ["a"]\n[tool.uv.sources]\na = {source}\n'
    write(tmp_path, "a-1.0-py3-none-any.whl", "")
    found = locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    assert [each.fix for each in found.omissions] == ([fix] if fix else [])
    assert [pin.package for pin in found.pins] == ([] if fix else ["a"])


@pytest.mark.parametrize("source", ["", "[tool.uv.sources]\nrewards = {workspace = true}\n"])
def test_a_member_of_the_workspace_is_its_directory(tmp_path: Path, source: str) -> None:
    (tmp_path / "libs" / "b").mkdir(parents=True)
    write(tmp_path / "libs" / "b", "pyproject.toml", '[project]\nname = "Rewards"\n')
    workspace = '[tool.uv.workspace]\nmembers = ["libs/*"]\n'
    text = f'[project]\nname = "p"\ndependencies = ["rewards>=1"]\n{source}{workspace}'
    recovered = locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    assert [(pin.package, pin.directory) for pin in recovered.pins] == [("rewards", tmp_path / "libs" / "b")]


def test_the_directory_of_a_source_and_the_index_of_a_source_are_recovered(tmp_path: Path) -> None:
    sources = '[tool.uv.sources]\na = {path = "../a", editable = true}\nb = {index = "our"}\n'
    index = '[[tool.uv.index]]\nname = "our"\nurl = "https://i.example.org/simple"\n'
    text = f'[project]\nname = "p"\ndependencies = ["a", "b"]\n{sources}{index}'
    recovered = locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    contents = [(pin.package, pin.directory, pin.index) for pin in recovered.pins]
    assert contents == [("a", tmp_path / "../a", ""), ("b", None, "https://i.example.org/simple")]


def test_a_requirement_has_its_own_line_despite_an_equal_build_requirement(tmp_path: Path) -> None:
    tables = '[build-system]\nrequires = ["a>=1"]\n[project]\nname = "p"\n'
    text = f'{tables}dependencies = ["a>=1"]\n[tool.uv]\npackage = false\n'
    recovered = locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    assert pins(recovered) == {"a": (">=1", 5)}


@pytest.mark.parametrize(
    ("tables", "is_package"),
    [
        ("[build-system]\nrequires = []\n", True),
        ("", False),
        ("[tool.uv]\npackage = true\n", True),
        ("[build-system]\nrequires = []\n[tool.uv]\npackage = false\n", False),
    ],
)
def test_a_project_with_a_build_system_is_a_package(tmp_path: Path, tables: str, is_package: bool) -> None:
    text = f'[project]\nname = "My_App"\ndependencies = ["a"]\n[project.optional-dependencies]\nx = ["b"]\n{tables}'
    found = locks.read_pyproject(write(tmp_path, "pyproject.toml", text), ["x"]).recover(LINUX)
    own = [(each.package, each.directory, each.extras) for each in found.pins if each.directory]
    assert own == ([("my-app", tmp_path, ("x",))] if is_package else [])
    assert {"a", "b"} <= {each.package for each in found.pins}


UV_KEYS = {
    "constraint-dependencies": '["a<3"]', "dependency-metadata": '[{name = "a"}]', "dev-dependencies": '["d"]',
    "exclude-dependencies": '["b"]', "exclude-newer": '"2026-01-01"', "extra-index-url": '["https://i.example.org"]',
    "find-links": '["https://e.org"]', "index": '[{name = "i", url = "https://i.example.org/simple"}]',
    "no-binary-package": '["a"]', "override-dependencies": '["b==2"]', "package": "true",
    "pip": '{torch-backend = "cu126"}',
    "prerelease": '"allow"', "resolution": '"lowest"', "sources": '{a = {git = "https://e.org/a.git"}}',
}  # fmt: skip


@pytest.mark.parametrize("key", [*UV_KEYS, "a-future-key", *sorted(uv_keys("silent"))])
def test_every_key_of_uv_is_taken_or_listed_or_declared_irrelevant(tmp_path: Path, key: str) -> None:
    def recovered(table: str) -> Recovered:
        text = f'[project]\nname = "p"\ndependencies = ["a>=1", "b"]\n[tool.uv]\n{table}'
        return locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)

    with_key, without = recovered(f"{key} = {UV_KEYS.get(key, '[]')}\n"), recovered("")
    assert (with_key == without) == (key in uv_keys("silent"))
    listed = [omission for omission in with_key.omissions if omission not in without.omissions]
    assert len(listed) == (key not in uv_keys("taken") | uv_keys("silent") or key == "sources")
    assert [omission.place.line for omission in listed] == ([3 if key == "sources" else 5] if listed else [])


def test_constraints_and_overrides_of_uv_are_recovered_with_their_lines(tmp_path: Path) -> None:
    uv = '[tool.uv]\noverride-dependencies = ["b==5"]\nconstraint-dependencies = [\n  "a<2",\n  "other<3",\n]\n'
    text = f'[project]\nname = "p"\ndependencies = ["a>=1", "b"]\n{uv}'
    recovered = locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    assert pins(recovered) == {"a": (">=1,<2", 3), "b": ("", 3)}
    assert [(pin.package, pin.specifier, pin.places[0].line) for pin in recovered.overrides] == [("b", "==5", 5)]
    assert [omission.place.line for omission in recovered.omissions] == [6]


@pytest.mark.parametrize("file", ['["r.txt"]', '"r.txt"'])
@pytest.mark.parametrize("system", ["", "[build-system]\nrequires = []\n"])
def test_dynamic_dependencies_of_a_file_are_read(tmp_path: Path, file: str, system: str) -> None:
    write(tmp_path, "r.txt", "a==1\n-e git+https://e.org/b.git#egg=b\n")
    dynamic = f"[tool.setuptools.dynamic]\ndependencies = {{file = {file}}}\n"
    text = f'{system}[project]\nname = "p"\ndynamic = ["dependencies"]\n{dynamic}'
    recovered = locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    assert pins(recovered)["a"] == ("==1", 1)
    assert [omission.place.line for omission in recovered.omissions] == [2]
    assert recovered.unknown_base is None


def test_dependencies_that_only_the_build_backend_knows_leave_the_cuda_unknown(tmp_path: Path) -> None:
    text = '[build-system]\nrequires = []\n[project]\nname = "p"\ndynamic = ["dependencies"]\n'
    recovered = locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    assert recovered.unknown_base is not None
    assert [omission.is_package for omission in recovered.omissions] == [False]


@pytest.mark.parametrize("text", ['[project]\nname = "a"\ndynamic = ["dependencies"]\n', "[tool.x]\n"])
def test_dependencies_that_need_code_to_run_are_named(tmp_path: Path, text: str) -> None:
    found = locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    assert [each.is_package for each in found.omissions] == [True]
    assert found.pins == ()


@pytest.mark.parametrize(
    "text", ["[project\n", '[project]\ndependencies = ["a =="]\n', "[project]\nrequires-python = 3\n"]
)
def test_malformed_pyprojects_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProjectFileError) as raised:
        locks.read_pyproject(write(tmp_path, "pyproject.toml", text)).recover(LINUX)
    assert raised.value.code == "project-malformed"


READERS: dict[str, Callable[[Path], DeclaringFile]] = {
    "uv.lock": locks.read_uv_lock,
    "pylock.toml": locks.read_pylock,
    "pyproject.toml": locks.read_pyproject,
}
SAMPLES = {"uv.lock": UV_LOCK, "pylock.toml": PYLOCK, "pyproject.toml": PYPROJECT}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One line is removed, or replaced by another one of the file."""
    lines = SAMPLES[name].splitlines()
    position = data.draw(st.integers(0, len(lines) - 1))
    lines[position] = data.draw(st.sampled_from(["", *lines]))
    path = write(tmp_path_factory.getbasetemp(), name, "\n".join(lines))
    with suppress(ProjectFileError, LockError):
        READERS[name](path).recover(LINUX)
