"""What is known of packages and bases, as bytes: nothing is lost, and equal facts are equal bytes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from imagegen.audit import facts
from imagegen.audit.model import CodeGroup, Elf, File, Package, System, Target

NAMES = st.text(st.characters(exclude_characters="\0"), max_size=8)
SETS = st.frozensets(NAMES, max_size=4)
TUPLES = st.lists(NAMES, max_size=3).map(tuple)
ISA = st.none() | st.tuples(st.integers(1, 9), st.integers(0, 9))
TARGETS = st.builds(Target, st.sampled_from(["sass", "ptx"]), st.integers(0, 999), st.sampled_from(["", "a", "f"]), ISA)
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


@settings(max_examples=30)
@given(st.builds(Package, NAMES, NAMES, TABLES, TUPLES, TUPLES, TUPLES))
def test_a_package_comes_back_as_it_was(package: Package) -> None:
    assert facts.package(facts.packed(package)) == package


@settings(max_examples=30)
@given(st.builds(System, TABLES, st.dictionaries(NAMES, NAMES, max_size=3), TUPLES, st.none() | FILES))
def test_a_base_comes_back_as_it_was(system: System) -> None:
    assert facts.system(facts.packed(system)) == system


@settings(max_examples=30)
@given(TABLES)
def test_equal_facts_are_equal_bytes(files: dict[str, File]) -> None:
    one = Package("demo", "1.0", files)
    other = replace(one, files=dict(sorted(files.items(), reverse=True)))
    assert facts.packed(one) == facts.packed(other)
