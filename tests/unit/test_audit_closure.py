"""Libraries are found as ld.so finds them."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit import symbols
from imagegen.audit.closure import How, Loader, ResolvedLibrary
from imagegen.audit.model import Elf, Subject
from tests.support.audit_subjects import PYTHON, at, elf, module, package, subject, system

FOO = elf(exported="foo")


def found(made: Subject, path: str, name: str) -> tuple[How, str | None]:
    loader = Loader(made)
    one = loader.find(at(loader, path), name)
    return one.how, one.library.path if one.library else None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"rpath": "$ORIGIN/lib"}, (How.PATH, "pkg/lib/libfoo.so")),
        ({"runpath": "${ORIGIN}/lib"}, (How.PATH, "pkg/lib/libfoo.so")),
        ({"rpath": "$ORIGIN/nothing:$ORIGIN/../pkg/lib"}, (How.PATH, "pkg/lib/libfoo.so")),
        ({"rpath": "$ORIGIN/lib", "runpath": "$ORIGIN/nothing"}, (How.SYSTEM, "/lib/x86_64-linux-gnu/libfoo.so")),
        ({"rpath": "lib"}, (How.SYSTEM, "/lib/x86_64-linux-gnu/libfoo.so")),  # hangs on the working directory
        ({"rpath": "$ORIGINAL/lib"}, (How.SYSTEM, "/lib/x86_64-linux-gnu/libfoo.so")),
        ({}, (How.SYSTEM, "/lib/x86_64-linux-gnu/libfoo.so")),
    ],
)
def test_a_files_own_path_comes_before_the_system(facts: dict[str, str], expected: tuple[How, str]) -> None:
    made = subject(
        package("pkg", {"pkg/it.so": module("libfoo.so", **facts), "pkg/lib/libfoo.so": FOO}),
        base=system({"libfoo.so": FOO}),
    )
    assert found(made, "pkg/it.so", "libfoo.so") == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [({"rpath": "$ORIGIN"}, (How.PATH, "pkg/libfoo.so")), ({"runpath": "$ORIGIN"}, (How.PRELOADED, "/opt/libfoo.so"))],
)
def test_ld_library_path_lies_between_the_two_paths(facts: dict[str, str], expected: tuple[How, str]) -> None:
    base = system({"libfoo.so": FOO}, {"libfoo.so": "/opt/libfoo.so"}, preloaded=("/opt/",))
    made = subject(package("pkg", {"pkg/it.so": module("libfoo.so", **facts), "pkg/libfoo.so": FOO}), base=base)
    assert found(made, "pkg/it.so", "libfoo.so") == expected


def test_a_programs_path_leads_back_into_site_packages() -> None:
    made = subject(
        package(
            "nccl-tests", {"../../../bin/perf": elf("libfoo.so", runpath="$ORIGIN/../lib/python3.11/site-packages/pkg")}
        ),
        package("pkg", {"pkg/libfoo.so": FOO}),
        base=system({}),
    )
    assert found(made, "../../../bin/perf", "libfoo.so") == (How.PATH, "pkg/libfoo.so")


def test_an_rpath_is_inherited_and_a_runpath_is_not() -> None:
    for name, expected in (("rpath", How.PATH), ("runpath", How.MISSING)):
        top = module("libmiddle.so", **{name: "$ORIGIN/lib"})
        files = {"pkg/it.so": top, "pkg/lib/libmiddle.so": elf("libfoo.so.1"), "pkg/lib/libfoo.so.1": FOO}
        if name == "runpath":  # otherwise it is found because it lies in site-packages at all
            del files["pkg/lib/libfoo.so.1"]
        loader = Loader(subject(package("pkg", files)))
        closure = loader.closure(at(loader, "pkg/it.so"))
        assert [(library.name, library.how) for library in closure.resolutions] == [
            ("libmiddle.so", How.PATH),
            ("libfoo.so.1", expected),
        ]


def test_a_runpath_in_the_middle_cuts_off_what_is_inherited() -> None:
    files = {
        "pkg/it.so": module("libmiddle.so", rpath="$ORIGIN/lib"),
        "pkg/lib/libmiddle.so": elf("libfoo.so", runpath="$ORIGIN/nothing"),
        "pkg/lib/libfoo.so": FOO,
    }
    loader = Loader(subject(package("pkg", files), base=system({"libfoo.so": FOO})))
    last = loader.closure(at(loader, "pkg/it.so")).resolutions[-1]
    assert (last.name, last.how) == ("libfoo.so", How.SYSTEM)


def test_what_torch_has_loaded_needs_no_path() -> None:
    torch = package("torch", {"torch/lib/libtorch.so": elf("libcudart.so.13", rpath="$ORIGIN/../../nvidia/lib")})
    nvidia = package("nvidia", {"nvidia/lib/libcudart.so.13": elf(soname="libcudart.so.13")})
    made = subject(torch, nvidia, package("pkg", {"pkg/it.so": module("libtorch.so", "libcudart.so.13")}))
    assert found(made, "pkg/it.so", "libtorch.so") == (How.LOADED, "torch/lib/libtorch.so")
    assert found(made, "pkg/it.so", "libcudart.so.13") == (How.LOADED, "nvidia/lib/libcudart.so.13")


def test_what_lies_elsewhere_is_found_by_its_soname_but_not_by_a_program() -> None:
    other = package("other", {"other/lib/libfoo-1.so": elf(soname="libfoo.so")})
    start = elf("libfoo.so", program=True)
    made = subject(other, package("pkg", {"pkg/it.so": module("libfoo.so"), "pkg/start": start}))
    assert found(made, "pkg/it.so", "libfoo.so") == (How.ELSEWHERE, "other/lib/libfoo-1.so")
    assert found(made, "pkg/start", "libfoo.so") == (How.MISSING, None)


@pytest.mark.parametrize(("known", "expected"), [(True, How.MISSING), (False, How.UNKNOWN)])
def test_what_is_nowhere_is_missing_only_where_the_base_is_known(known: bool, expected: How) -> None:
    made = subject(package("pkg", {"pkg/it.so": module("libfoo.so")}), known=known)
    assert found(made, "pkg/it.so", "libfoo.so") == (expected, None)


@pytest.mark.parametrize(
    "name", ["libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-nvvm.so.580.65.06"]
)
def test_the_drivers_libraries_come_from_the_host(name: str) -> None:
    stub = package("toolkit", {"nvidia/lib/stubs/libcuda.so": elf(soname="libcuda.so.1")})
    made = subject(package("pkg", {"pkg/it.so": module(name)}), stub)
    assert found(made, "pkg/it.so", name) == (How.DRIVER, None)


def test_files_for_another_machine_or_another_python_are_not_there() -> None:
    files = {
        "pkg/it.so": module("libfoo.so"),
        "pkg/libfoo.so": Elf(183),
        "pkg/a.cpython-312-x86_64-linux-gnu.so": module(),
    }
    loader = Loader(subject(package("pkg", files)))
    assert [library.path for library in loader.libraries] == ["pkg/it.so"]


def test_an_absolute_path_and_a_library_by_path_lead_into_the_system() -> None:
    base = system({"libfoo.so": FOO}, {"libfoo.so": "/usr/lib/x86_64-linux-gnu/foo/libfoo.so"})
    files = {
        "pkg/a.so": module("libfoo.so", runpath="/lib/x86_64-linux-gnu/foo"),
        "pkg/b.so": module("libfoo.so", runpath="/usr/$LIB/foo"),
        "pkg/c.so": module("/usr/lib/x86_64-linux-gnu/foo/libfoo.so"),
        "pkg/d.so": module("$ORIGIN/a.so"),
        "pkg/e.so": module("/nowhere/libfoo.so"),
    }
    made = subject(package("pkg", files), base=base)
    place = "/usr/lib/x86_64-linux-gnu/foo/libfoo.so"
    assert found(made, "pkg/a.so", "libfoo.so") == (How.PATH, place)
    assert found(made, "pkg/b.so", "libfoo.so") == (How.PATH, place)
    assert found(made, "pkg/c.so", place) == (How.PATH, place)
    assert found(made, "pkg/d.so", "$ORIGIN/a.so") == (How.PATH, "pkg/a.so")
    assert found(made, "pkg/e.so", "/nowhere/libfoo.so") == (How.MISSING, None)


def test_files_that_ask_for_each_other_end() -> None:
    files = {
        "pkg/a.so": module("b.so", rpath="$ORIGIN", soname="a.so"),
        "pkg/b.so": elf("a.so", "b.so", rpath="$ORIGIN"),
    }
    loader = Loader(subject(package("pkg", files)))
    assert [library.path for library in loader.closure(at(loader, "pkg/a.so")).libraries] == ["pkg/a.so", "pkg/b.so"]


def test_files_that_all_ask_for_all_others_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagegen.audit.closure.MAX_STEPS", 10_000)
    names = [f"lib{n}.so" for n in range(30)]
    made = subject(package("pkg", {f"pkg/{name}": elf(*names, rpath="$ORIGIN", soname=name) for name in names}))
    loader = Loader(made)
    for library in loader.libraries:
        loader.closure(library)
    assert loader.exhausted
    assert "not-followed" in {finding.id for finding in symbols.check(Loader(made))}
    small = Loader(subject(package("pkg", {"a.so": module()})))
    assert "not-followed" not in {finding.id for finding in symbols.check(small)}


def test_paths_that_are_inherited_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand files in a row, each with a thousand directories, would be a million for each of the last ones."""
    monkeypatch.setattr("imagegen.audit.closure.MAX_DIRECTORIES", 3)
    files = {
        "p/a.so": elf("b.so", rpath="$ORIGIN:$ORIGIN/last"),
        "p/b.so": elf("c.so", rpath="$ORIGIN:$ORIGIN/x"),
        "p/c.so": elf("p.so", rpath="$ORIGIN:$ORIGIN/y"),
        "p/last/p.so": elf(),
    }
    loader = Loader(subject(package("p", files)))
    assert [one.how for one in loader.closure(at(loader, "p/a.so")).resolutions] == [How.PATH, How.PATH, How.ELSEWHERE]


def test_every_process_has_the_interpreters_libraries() -> None:
    base = system({"libz.so.1": FOO}, interpreter=elf("libz.so.1", exported="PyObject_Call", program=True))
    loader = Loader(subject(base=base))
    assert {library.name for library in loader.everywhere} == {"the interpreter", "libz.so.1", "libc.so.6", "libm.so.6"}
    assert loader.interpreter and loader.interpreter.elf is not PYTHON


# ld.so in its plainest form, to hold the resolver against: a list of what is loaded, each with who had it loaded.


class Loaded:
    def __init__(self, path: str, made: Elf, by: Loaded | None) -> None:
        self.path, self.elf, self.by = path, made, by
        self.names = {made.soname} if made.soname else set()


def ld_so(  # noqa: C901 - it is one loop, as the manual page tells it
    root: str, files: dict[str, Elf], libraries: dict[str, Elf]
) -> list[tuple[str, str, str | None]]:
    """(who asked, for what, the path found) in order."""

    def directories(entries: tuple[str, ...], of: Loaded) -> list[str]:
        return [entry.replace("$ORIGIN", posixpath.dirname(of.path)) for entry in entries]

    def search(requester: Loaded, name: str) -> tuple[str, Elf] | None:
        places: list[str] = []
        if requester.elf.runpath:
            places = directories(requester.elf.runpath, requester)
        else:
            who: Loaded | None = requester
            while who is not None:
                if not who.elf.runpath:
                    places += directories(who.elf.rpath, who)
                who = who.by
        for place in places:
            path = posixpath.normpath(f"{place}/{name}")
            if path in files:
                return path, files[path]
        if name in libraries:
            return f"/lib/{name}", libraries[name]
        # Not ld.so's: what lies anywhere in site-packages is taken to be loaded beforehand.
        for path in sorted(files):
            if name in {posixpath.basename(path), files[path].soname} and not path.startswith("/"):
                return path, files[path]
        return None

    loaded, answers = [Loaded(root, files[root], None)], []
    for requester in loaded:
        for name in requester.elf.needed:
            there = next((one for one in loaded if name in one.names), None)
            if there is None and not requester.path.startswith("/"):
                answer = search(requester, name)
                there = next((one for one in loaded if answer and one.path == answer[0]), None)
                if answer and there is None:
                    there = Loaded(*answer, requester)
                    loaded.append(there)
                if there is not None:
                    there.names.add(name)
            answers.append((requester.path, name, there.path if there else None))
    return answers


NAMES = st.sampled_from(["libw.so", "libx.so", "liby.so", "libz.so"])
PLACES = st.lists(st.sampled_from(["$ORIGIN", "$ORIGIN/../a", "$ORIGIN/../b", "$ORIGIN/c"]), max_size=2, unique=True)
ELFS = st.builds(
    lambda soname, needed, rpath, runpath: Elf(62, soname, tuple(needed), tuple(rpath), tuple(runpath)),
    st.none() | NAMES,
    st.lists(NAMES, max_size=3, unique=True),
    PLACES,
    PLACES,
)
FILES = st.dictionaries(
    st.builds("{}/{}".format, st.sampled_from(["a", "b", "a/c"]), NAMES), ELFS, min_size=1, max_size=7
)
LIBRARIES = st.dictionaries(NAMES, st.builds(lambda soname: Elf(62, soname), st.none() | NAMES), max_size=2)


@given(files=FILES, libraries=LIBRARIES)
def test_a_closure_is_what_ld_so_would_load(files: dict[str, Elf], libraries: dict[str, Elf]) -> None:
    base = system(libraries, {name: f"/lib/{name}" for name in libraries})
    loader = Loader(subject(package("pkg", files), base=base))
    for root in files:

        def row(one: ResolvedLibrary) -> tuple[str, str, str | None]:
            return one.requester.path, one.name, one.library.path if one.library else None

        assert [row(one) for one in loader.closure(at(loader, root)).resolutions] == ld_so(root, files, libraries)
