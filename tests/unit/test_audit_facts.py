"""Scans of packages and bases as bytes: nothing is lost, and equal scans are equal bytes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit import facts
from imagegen.audit.api import Module, RequiredName, exports
from imagegen.audit.examine import examine
from imagegen.audit.model import (
    CodeGroup,
    CodeTarget,
    Elf,
    File,
    InstalledDeb,
    Licence,
    OptionalImport,
    OsRelease,
    Package,
    SystemLibraries,
)
from imagegen.image.inventory.libraries import from_directories
from tests.support.elf_files import AARCH64, make_cubin, make_elf, make_fatbin
from tests.support.file_trees import To, on_disk

NAMES = st.text(st.characters(exclude_characters="\0"), max_size=8)
SETS = st.frozensets(NAMES, max_size=4)
TUPLES = st.lists(NAMES, max_size=3).map(tuple)
ISA = st.none() | st.tuples(st.integers(1, 9), st.integers(0, 9))
TARGETS = st.builds(
    CodeTarget, st.sampled_from(["sass", "ptx"]), st.integers(0, 999), st.sampled_from(["", "a", "f"]), ISA
)
SIZES = st.integers(0, 1 << 40)
GROUPS = st.builds(CodeGroup, st.lists(TARGETS, max_size=3).map(tuple), SIZES, st.lists(SIZES, max_size=3).map(tuple))
ELFS = st.builds(
    Elf,
    machine=st.integers(0, 65535),
    soname=st.none() | NAMES,
    needed=TUPLES,
    rpath=TUPLES,
    runpath=TUPLES,
    undefined=SETS,
    exported=SETS,
    requires=st.dictionaries(NAMES, SETS, max_size=3),
    provides=SETS,
    program=st.booleans(),
)
FILES = st.builds(
    File,
    SIZES,
    st.none() | NAMES,
    st.booleans(),
    st.none() | ELFS,
    st.lists(GROUPS, max_size=2).map(tuple),
    st.none() | NAMES,
)
TABLES = st.dictionaries(NAMES, FILES, max_size=4)
LICENCES = st.builds(Licence, st.none() | NAMES, st.none() | NAMES, TUPLES)
IMPORTS = st.lists(
    st.builds(OptionalImport, NAMES, NAMES, st.integers(1, 9), st.booleans(), st.booleans()), max_size=2
).map(tuple)
WORDS = st.text("abcé_1", min_size=1, max_size=4)
MODULES = st.dictionaries(
    NAMES, st.builds(Module, st.frozensets(WORDS, max_size=3), TUPLES, st.booleans(), st.booleans()), max_size=3
)
REQUIRED_NAMES = st.lists(
    st.builds(RequiredName, NAMES, st.integers(1, 9), NAMES, st.integers(1, 9), st.booleans()), max_size=2
).map(tuple)
RELEASES = st.none() | st.builds(OsRelease, NAMES, NAMES, NAMES)
DEBS = st.dictionaries(NAMES, st.builds(InstalledDeb, NAMES, NAMES, NAMES, NAMES, st.none() | TUPLES), max_size=3)


@given(
    st.builds(Package, NAMES, NAMES, TABLES, TUPLES, TUPLES, TUPLES, LICENCES, TUPLES, IMPORTS, MODULES, REQUIRED_NAMES)
)
def test_a_package_comes_back_as_it_was(package: Package) -> None:
    assert facts.package(facts.packed(package)) == package


def test_a_package_with_half_a_surrogate_pair_comes_back_as_it_was() -> None:
    package = Package("demo", "1.0", {"demo/_C.so": File(1, elf=Elf(62))}, requires=("x\ud800",))
    assert facts.package(facts.packed(package)) == package


@given(
    st.builds(
        SystemLibraries, TABLES, st.dictionaries(NAMES, NAMES, max_size=3), TUPLES, st.none() | FILES, DEBS, RELEASES
    )
)
def test_a_base_comes_back_as_it_was(system: SystemLibraries) -> None:
    assert facts.system(facts.packed(system)) == system


@given(TABLES)
def test_equal_facts_are_equal_bytes(files: dict[str, File]) -> None:
    one = Package("demo", "1.0", files)
    other = replace(one, files=dict(sorted(files.items(), reverse=True)))
    assert facts.packed(one) == facts.packed(other)


@given(TABLES)
def test_a_package_is_packed_of_the_texts_of_its_files(files: dict[str, File]) -> None:
    texts = {path: facts.file_text(file) for path, file in files.items()}
    package = Package("demo", "1.0", files, tags=("py3-none-any",))
    assert facts.packed_package(replace(package, files={}), texts) == facts.packed(package)
    assert texts == {}


SAMPLES = {
    "library.so": make_elf(
        ["libc.so.6"], ["_ZN2at4noneEv"], ["PyInit_it"], "$ORIGIN", "$ORIGIN/../lib", {"libc.so.6": ["GLIBC_2.34"]},
        ["OWN_1"],
        make_fatbin(
            [[CodeTarget("sass", 90, "a"), CodeTarget("ptx", 90, "", (8, 8))], [CodeTarget("sass", 100, "f")]]
        ),
        soname="library.so.1", weak=["maybe"], relfatbin=make_fatbin([[CodeTarget("sass", 80)]]),
    ),
    "unexported.so": make_elf(undefined=["a"], hashes=["gnu-empty"]),
    "bare.so": make_elf(undefined=["a"], fatbin=make_fatbin([[CodeTarget("sass", 75)]]), sections=False),
    "program": make_elf(["libc.so.6"], interpreter="/lib64/ld.so"),
    "other.so": make_elf(machine=AARCH64),
    "code.cubin": make_cubin(CodeTarget("sass", 120, "a")),
    "code.fatbin": make_fatbin([[CodeTarget("sass", 86)]]),
    "code.ptx": b".version 8.7\n.target sm_90a\n",
    "cut.so": make_elf(exported=["a"])[:700],
    "text": b"nothing",
}  # fmt: skip


def test_who_changes_what_readers_say_raises_the_number_of_their_format(tmp_path: Path) -> None:
    """Else what an older imagegen has kept goes on to count.

    If this fails, and what the readers now say is right: raise FACTS_FORMAT, and write here what the test then finds.
    """
    files = {name: examine(data, size=len(data)) for name, data in SAMPLES.items()}
    root = {
        "etc/ld.so.conf": b"/opt/lib\n",
        "opt/lib/libc.so.6": SAMPLES["library.so"], "opt/lib/cut.so": SAMPLES["cut.so"],
        "usr/lib/liba.so": SAMPLES["unexported.so"], "usr/lib/libarm.so": SAMPLES["other.so"],
        "lib64": To("usr/lib"), "usr/bin/python3": SAMPLES["program"],
    }  # fmt: skip
    environment = {"LD_LIBRARY_PATH": "/usr/lib"}
    system = from_directories(on_disk(tmp_path, root), environment=environment, interpreter="/usr/bin/python3")
    sources = {
        "demo/__init__.py": b"from .a import *\nfrom vllm import LLM",
        "demo/a.py": b"def f():\n    import vllm.b",
    }
    required = (
        RequiredName("vllm.LLM", 1, "demo/__init__.py", 2, True),
        RequiredName("vllm.b", 2, "demo/a.py", 2, False),
    )
    names = {"exports": exports(sources), "required_names": required}
    known = (Package("demo", "1.0", files, ("torch",), ("cp311-cp311-linux_x86_64",), **names), system)
    digest = hashlib.sha256(b"".join(zstandard.decompress(facts.packed(each)) for each in known)).hexdigest()
    assert (facts.FACTS_FORMAT, digest[:16]) == (9, "2db03b8c067f4a0a")
