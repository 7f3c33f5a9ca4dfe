"""The audit resolves small libraries made for this test as this machine's loader does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagegen.audit import libraries, symbols
from imagegen.audit.closure import How, Loader
from imagegen.audit.elf import read
from imagegen.audit.model import File, Package, Subject, SystemLibraries
from tests.support.elf_files import make_elf

pytestmark = pytest.mark.integration

# Loads each named file in its own child process, and prints the loader's messages and the mapped files.
PROGRAM = """
import ctypes, json, os, sys
for line in sys.stdin:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    error = ""
    try:
        ctypes.CDLL(line.strip(), os.RTLD_NOW)
    except OSError as failed:
        error = str(failed)
    with open("/proc/self/maps") as maps:
        mapped = sorted({row.split(None, 5)[5].strip() for row in maps if row.count("/")})
    print(json.dumps([error, mapped]), flush=True)
    os._exit(0)
"""


@dataclass
class RealLoader:
    process: subprocess.Popen[str]

    def load(self, path: Path) -> tuple[str, list[str]]:
        """(ld.so's error or "", the mapped files)."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        error, mapped = json.loads(self.process.stdout.readline())
        return error, mapped


@pytest.fixture(scope="module")
def real() -> Iterator[RealLoader]:
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        yield RealLoader(process)
        assert process.stdin
        process.stdin.close()


def write(top: Path, files: Mapping[str, dict[str, Any]]) -> Subject:
    """The files in a directory, and as a subject over a base that has nothing."""
    found = {}
    for path, made in files.items():
        content = make_elf(**made)
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(content)
        found[path] = File(len(content), elf=read(content))
    return Subject("test", (Package("made", "1", found),), SystemLibraries({}), "3.11")


CASES: dict[str, tuple[dict[str, dict[str, Any]], str, str]] = {
    # files (the first is loaded), what ld.so says, what the audit finds
    "alone": ({"a.so": {}}, "", ""),
    "rpath": ({"a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN/lib"}, "lib/link-b.so": {}}, "", ""),
    "runpath": ({"a.so": {"needed": ["link-b.so"], "runpath": "${ORIGIN}/lib"}, "lib/link-b.so": {}}, "", ""),
    "an rpath is inherited": (
        {
            "a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN/lib"},
            "lib/link-b.so": {"needed": ["link-c.so"]},
            "lib/link-c.so": {},
        },
        "",
        "",
    ),
    "a runpath is not": (
        {
            "a.so": {"needed": ["link-b.so"], "runpath": "$ORIGIN/lib"},
            "lib/link-b.so": {"needed": ["link-c.so"]},
            "lib/link-c.so": {},
        },
        "link-c.so: cannot open shared object file",
        "elsewhere",
    ),
    "a runpath voids an rpath": (
        {"a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN/lib", "runpath": "$ORIGIN/none"}},
        "link-b.so: cannot open shared object file",
        "missing-library",
    ),
    "a runpath voids an rpath for what lies below, too": (
        {
            "a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN/lib", "runpath": "$ORIGIN/lib"},
            "lib/link-b.so": {"needed": ["link-c.so"]},
            "lib/link-c.so": {},
        },
        "link-c.so: cannot open shared object file",
        "elsewhere",
    ),
    "a soname that is loaded": (
        {
            "a.so": {"needed": ["link-b.so", "link-real.so"], "rpath": "$ORIGIN"},
            "link-b.so": {"soname": "link-real.so"},
        },
        "",
        "",
    ),
    "missing": (
        {"a.so": {"needed": ["link-gone.so"]}},
        "link-gone.so: cannot open shared object file",
        "missing-library",
    ),
    "undefined": ({"a.so": {"undefined": ["link_gone"]}}, "undefined symbol: link_gone", "undefined-symbol"),
    "undefined below": (
        {"a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN"}, "link-b.so": {"undefined": ["link_gone"]}},
        "undefined symbol: link_gone",
        "undefined-symbol",
    ),
    "weak": ({"a.so": {"weak": ["link_gone"]}}, "", ""),
    "defined by who asks": (
        {
            "a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN", "exported": ["link_mine"]},
            "link-b.so": {"undefined": ["link_mine"]},
        },
        "",
        "underlinked",  # the library alone would not load, and nothing says that it is never loaded alone
    ),
    "underlinked": (
        {"a.so": {"undefined": ["link_there"]}, "b.so": {"exported": ["link_there"]}},
        "undefined symbol: link_there",
        "underlinked",
    ),
    "a version node": (
        {
            "a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN", "verneed": {"link-b.so": ["LINK_1"]}},
            "link-b.so": {"soname": "link-b.so", "verdef": ["LINK_1"]},
        },
        "",
        "",
    ),
    "a version node that is missing": (
        {
            "a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN", "verneed": {"link-b.so": ["LINK_2"]}},
            "link-b.so": {"soname": "link-b.so", "verdef": ["LINK_1"]},
        },
        "version `LINK_2' not found",
        "library-too-old",
    ),
    "no version nodes at all": (
        {
            "a.so": {"needed": ["link-b.so"], "rpath": "$ORIGIN", "verneed": {"link-b.so": ["LINK_2"]}},
            "link-b.so": {"soname": "link-b.so"},
        },
        "",
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_audit_says_what_the_loader_does(case: str, tmp_path: Path, real: RealLoader) -> None:
    files, says, finds = CASES[case]
    subject = write(tmp_path, files)
    error, _ = real.load(tmp_path / next(iter(files)))
    assert says in error and bool(error) is bool(says)
    loader = Loader(subject)
    found = {finding.id for check in (libraries.check, symbols.check) for finding in check(loader)}
    if finds == "elsewhere":  # within a package no finding: what lies there it may load itself
        hows = {one.how for library in loader.libraries for one in loader.closure(library).resolutions}
        assert How.ELSEWHERE in hows and found == set()
    else:
        assert found == ({finds} if finds else set())


NAMES = [f"link-{letter}.so" for letter in "pqrs"]
PLACES = st.lists(st.sampled_from(["$ORIGIN", "$ORIGIN/../x", "$ORIGIN/../y"]), max_size=2, unique=True)
SYMBOLS = st.lists(st.sampled_from(["link_1", "link_2", "link_3"]), max_size=2, unique=True)


@st.composite
def elfs(draw: st.DrawFn) -> dict[str, Any]:
    exported = draw(SYMBOLS)
    return {
        "needed": draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True)),
        "soname": draw(st.none() | st.sampled_from(NAMES)),
        "rpath": ":".join(draw(PLACES)) or None,
        "runpath": ":".join(draw(PLACES)) or None,
        "exported": exported,
        "undefined": [name for name in draw(SYMBOLS) if name not in exported],
    }


FILES = st.dictionaries(st.builds("{}/{}".format, st.sampled_from("xy"), st.sampled_from(NAMES)), elfs(), min_size=1)


@settings(derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=FILES)
def test_any_files_load_as_the_closure_says(
    files: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, real: RealLoader
) -> None:
    top = tmp_path_factory.mktemp("made")
    loader = Loader(write(top, files))
    for root in loader.libraries:
        closure = loader.closure(root)
        error, mapped = real.load(top / root.path)
        gone = [one.name for one in closure.resolutions if one.how in {How.MISSING, How.ELSEWHERE}]
        exported = frozenset().union(*(library.elf.exported for library in closure.libraries))
        undefined = [name for library in closure.libraries for name in library.elf.undefined - exported]
        if gone:
            assert "cannot open shared object file" in error
        elif undefined:
            assert "undefined symbol" in error
        else:
            assert not error
            assert [path for path in mapped if path.startswith(f"{top}/")] == sorted(
                str(top / library.path) for library in closure.libraries
            )
