"""uv.lock: what is read of it, and which packages it gives for one interpreter and machine."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import Marker

from imagegen.core.errors import LockError
from imagegen.projects.uv_lock import DistributionFile, GitCommit, Root, UvPackage, UvSource, parse, select, sha256_of
from tests.support.errors import raises

HEAD = 'version = 1\nrevision = 3\nrequires-python = ">=3.10"\n'
X86 = "platform_machine == 'x86_64'"
ARM = "platform_machine == 'aarch64'"


def package(name: str, source: str = 'registry = "https://i.example.org"', more: str = "", version: str = "1") -> str:
    return f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ {source} }}\n{more}\n'


def names(text: str, *roots: Root, python: str = "3.12.6", machine: str = "x86_64") -> dict[str, tuple[str, ...]]:
    """Name and version -> who brought it."""
    selected = select(parse(text, "uv.lock"), roots, python, machine, "uv.lock")
    return {str(each.package): each.via for each in selected}


SAMPLE = HEAD + "".join(
    [
        package(
            "app",
            'editable = "."',
            f"""dependencies = [
    {{ name = "always" }},
    {{ name = "old", marker = "python_full_version < '3.12'" }},
    {{ name = "forked", version = "1", source = {{ url = "https://e.org/f1.whl" }}, marker = "{X86}" }},
    {{ name = "forked", version = "2", source = {{ registry = "https://i.example.org" }}, marker = "{ARM}" }},
    {{ name = "rich", extra = ["plus"] }},
]
[package.optional-dependencies]
gpu = [{{ name = "kernel" }}]
[package.dev-dependencies]
dev = [{{ name = "tester" }}, {{ name = "old", marker = "{ARM}" }}]
""",
        ),
        package("always", more=f'dependencies = [{{ name = "same", marker = "{X86}" }}, {{ name = "same" }}]'),
        package("forked", 'url = "https://e.org/f1.whl"', f'resolution-markers = ["{X86}"]'),
        package("forked", more=f'resolution-markers = ["{ARM}"]', version="2"),
        package("kernel", 'git = "https://e.org/k.git?subdirectory=a%2Fb&rev=main#' + "0" * 40 + '"'),
        package("old"),
        package("plus"),
        package("rich", more='[package.optional-dependencies]\nplus = [{ name = "plus" }]\nother = [{ name = "old" }]'),
        package("same", more=f'resolution-markers = ["{X86}"]'),
        package("same", more=f'resolution-markers = ["{ARM}"]', version="2"),
        package("tester"),
        package("whole", 'virtual = "."', 'dependencies = [{ name = "plus" }]'),
    ]
)


def test_what_one_machine_gets() -> None:
    assert names(SAMPLE, Root("app")) == {
        "always 1": ("app",), "app 1": (), "forked 1": ("app",), "plus 1": ("rich",), "rich 1": ("app",),
        "same 1": ("always",),
    }  # fmt: skip
    elsewhere = names(SAMPLE, Root("app"), python="3.11.2", machine="aarch64")
    assert elsewhere.keys() == {"always 1", "app 1", "forked 2", "old 1", "plus 1", "rich 1", "same 2"}


def test_extras_and_groups_are_added() -> None:
    plain = names(SAMPLE, Root("app")).keys()
    assert names(SAMPLE, Root("app", ("gpu",))).keys() - plain == {"kernel 1"}
    assert names(SAMPLE, Root("app", groups=("dev",))).keys() - plain == {"tester 1"}
    assert names(SAMPLE, Root("app"), Root("tester")).keys() - plain == {"tester 1"}


def test_a_virtual_project_is_not_installed() -> None:
    assert names(SAMPLE, Root("whole")) == {"plus 1": ("whole",)}


@pytest.mark.parametrize(
    ("roots", "python", "machine"),
    [
        ((Root("absent"),), "3.12.6", "x86_64"),
        ((Root("app", ("absent",)),), "3.12.6", "x86_64"),
        ((Root("app", groups=("absent",)),), "3.12.6", "x86_64"),
        ((Root("app"),), "3.9.1", "x86_64"),
        ((Root("forked"),), "3.12.6", "riscv64"),
    ],
)
def test_what_a_file_does_not_answer(roots: tuple[Root, ...], python: str, machine: str) -> None:
    with pytest.raises(LockError) as caught:
        names(SAMPLE, *roots, python=python, machine=machine)
    assert caught.value.where == "uv.lock" and caught.value.fix


def test_two_packages_of_one_name_are_refused() -> None:
    edges = ", ".join(f'{{ name = "forked", version = "{each}" }}' for each in "12")
    text = HEAD + package("app", 'editable = "."', f"dependencies = [{edges}]")
    text += package("forked") + package("forked", version="2")
    with pytest.raises(LockError):
        names(text, Root("app"))


def test_a_file_that_is_for_other_machines() -> None:
    text = HEAD + f'supported-markers = ["{ARM}"]\n' + package("app", 'editable = "."')
    assert names(text, Root("app"), machine="aarch64")
    with pytest.raises(LockError):
        names(text, Root("app"))


def test_conflicting_extras_are_chosen_by_markers() -> None:
    """For conflicting extras, uv writes the choice among them into markers."""
    edges = [f"{{ name = \"{name}\", marker = \"extra {op} 'extra-3-app-gpu'\" }}" for name, op in
             (("kernel", "=="), ("plain", "!="))]  # fmt: skip
    text = HEAD + package(
        "app", 'editable = "."', f"dependencies = [{', '.join(edges)}]\n[package.optional-dependencies]\ngpu = []"
    )
    text += package("kernel") + package("plain")
    assert names(text, Root("app", ("gpu",))).keys() == {"app 1", "kernel 1"}
    assert names(text, Root("app")).keys() == {"app 1", "plain 1"}


def test_the_sources_of_a_package() -> None:
    git = UvSource(git="https://e.org/k.git?subdirectory=a%2Fb&rev=main#" + "0" * 40)
    assert git.commit == GitCommit("https://e.org/k.git", "0" * 40, "a/b")
    assert UvSource(git="https://e.org/k#" + "1" * 40).commit == GitCommit("https://e.org/k", "1" * 40)
    assert (git.member, UvSource(editable=".").member, UvSource(directory="a").member) == (None, ".", "a")
    assert DistributionFile(url="https://e.org/a-1%2Bcu128-py3-none-any.whl").name == "a-1+cu128-py3-none-any.whl"


@pytest.mark.parametrize("written", [None, "md5:0", "sha256:0", "sha256:" + "G" * 64])
def test_a_file_without_sha256(written: str | None) -> None:
    with pytest.raises(LockError):
        sha256_of(
            DistributionFile(url="https://e.org/a.whl", hash=written), UvPackage(name="a", source=UvSource()), "uv.lock"
        )


@pytest.mark.parametrize(
    "text",
    [
        "version = 2\nrequires-python = ''",
        "version = true\nrequires-python = ''",
        "version = 1",
        "version = 1\nrequires-python = 'x'",
        HEAD + package("Not_Normalised"),
        HEAD + package("a\\n"),
        HEAD + package("a", version="1.0\\n"),
        HEAD + package("a", version="9" * 5000),
        HEAD + package("a", version="one"),
        HEAD + package("a", ""),
        HEAD + package("a", 'url = "https://e.org", git = "https://e.org#' + "0" * 40 + '"'),
        HEAD + package("a", 'git = "https://e.org/a?rev=main"'),
        HEAD + package("a", more='wheels = [{ url = "https://e.org/a.whl", size = -1 }]'),
    ],
)
def test_what_is_no_uv_lock(text: str) -> None:
    with pytest.raises(LockError) as caught:
        parse(text, "uv.lock")
    assert caught.value.where == "uv.lock"


def test_text_that_is_not_toml_is_refused_with_its_line() -> None:
    with raises("lock-uv-lock-malformed", where="uv.lock:2"):
        parse("version = 1\n= 1", "uv.lock")


@given(st.text() | st.sampled_from([SAMPLE[:cut] for cut in range(0, len(SAMPLE), 7)]))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text, "uv.lock")
    except LockError:
        return
    assert tomllib.loads(text)["version"] == 1


@dataclass(frozen=True)
class Edge:
    to: int
    extras: tuple[str, ...]
    marker: str | None


@dataclass
class Node:
    plain: list[Edge] = field(default_factory=list)
    extra: list[Edge] = field(default_factory=list)  # of the one extra "more"


MARKERS = [None, X86, ARM, "python_version < '3.12'", f"{X86} and python_version >= '3.12'", "sys_platform == 'win32'"]
EDGES = st.builds(Edge, st.integers(0, 7), st.sampled_from([(), ("more",)]), st.sampled_from(MARKERS))
GRAPHS = st.lists(st.builds(Node, st.lists(EDGES, max_size=4), st.lists(EDGES, max_size=2)), min_size=8, max_size=8)


def written(edges: list[Edge]) -> str:
    """The edges as uv writes them."""
    rows = []
    for edge in edges:
        marker = f', marker = "{edge.marker}"' if edge.marker else ""
        extras = ", ".join(f'"{each}"' for each in edge.extras)
        rows.append(f'{{ name = "n{edge.to}", extra = [{extras}]{marker} }}')
    return f"[{', '.join(rows)}]"


@given(GRAPHS, st.sampled_from(["3.11.2", "3.12.6"]), st.sampled_from(["x86_64", "aarch64"]), st.booleans())
def test_the_selection_is_the_closure_over_markers_that_hold(
    graph: list[Node], python: str, machine: str, more: bool
) -> None:
    text = HEAD
    for number, node in enumerate(graph):
        lines = f"dependencies = {written(node.plain)}\n[package.optional-dependencies]\nmore = {written(node.extra)}"
        text += package(f"n{number}", more=lines)
    environment = {
        "platform_machine": machine, "python_version": python.rpartition(".")[0], "sys_platform": "linux", "extra": ""
    }  # fmt: skip
    reached: set[tuple[int, str]] = {(0, "")} | ({(0, "more")} if more else set())
    while True:  # to the fixed point, the slow way
        edges = [each for node, extra in reached for each in (graph[node].extra if extra else graph[node].plain)]
        found = {
            (each.to, extra)
            for each in edges
            if each.marker is None or Marker(each.marker).evaluate(environment)
            for extra in ("", *each.extras)
        }
        if found <= reached:
            break
        reached |= found
    expected = {f"n{node} 1" for node, _ in reached}
    assert names(text, Root("n0", ("more",) if more else ()), python=python, machine=machine).keys() == expected
