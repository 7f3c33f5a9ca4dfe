"""The lock of a tiny image, and hostile values for each of its fields."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from imagegen.lock.model import (
    Lock,
    LockedBase,
    LockedDeb,
    LockedFile,
    LockedGpus,
    LockedSdist,
    LockedWheel,
)
from imagegen.spec.model import EnvVar
from tests.support.interpreters import LOCKED

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)


def wheel(name: str, version: str, sha256: str, index: str = "pypi", **more: Any) -> LockedWheel:
    file = LockedFile(f"{name.replace('-', '_')}-{version}-py3-none-any.whl", 1000, sha256, index)
    return LockedWheel(name, version, file, **{"via": (), **more})


LOCK = Lock(
    cell="tiny-cpu-py311",
    image="tiny",
    axes={"cuda": "cpu", "python": "3.11", "platform": "linux/amd64"},
    inputs={"image": A},
    uv=wheel("uv", "0.13.8", D),
    as_of="2026-11-20T00:00:00Z",
    interpreter=LOCKED,
    base=LockedBase(
        "debian12",
        "debian",
        "bookworm",
        {"debian/bookworm": "2026-11-20T08:13:05Z", "debian-security/bookworm-security": "2026-11-20T08:13:05Z"},
        (LockedDeb("adduser", "3.134", "all", 10, B, "debian", "pool/main/a/adduser/adduser_3.134_all.deb"),),
    ),
    wheels=(
        wheel(
            "antlr4-python3-runtime",
            "4.9.3",
            A,
            via=("hydra-core",),
            sdist=LockedSdist(
                LockedFile("antlr4-python3-runtime-4.9.3.tar.gz", 5, C, "pypi"), (wheel("wheel", "1.0", C),)
            ),
        ),
        wheel("hydra-core", "1.3.2", B, because="The configuration of every example."),
        wheel("numpy", "2.4.6", B, via=("torch", "trl")),
        wheel("torch", "2.13.0+cpu", C, "pytorch-cpu", because="The newest that every part allows."),
    ),
    env=(
        EnvVar("GREETING", 'say "$HOME" \\ #1', "Quoting is shown to whoever reads the golden file."),
        EnvVar("LANG", "en_US.UTF-8", "A lock has the last word."),
    ),
)
TAG = "imagegen/tiny:cpu-py311"
HOSTILE = (
    *("REQUIREMENTS", "IMAGEGEN", "RUN evil", "$(evil)", "`evil`", "${HOME}", "$HOME", "; evil", "&& evil", "| evil"),
    *("\\", '"', "'", "#", "# syntax=evil", "escape=`", "{{ lock.cell }}", "{% raw %}", "%}", "{#", "<<EOF", '<<"X"'),
    *(
        "\n",
        "\r\n",
        "\nRUN evil\n",
        "\nREQUIREMENTS\n",
        "\nIMAGEGEN\n",
        "\x00",
        "\t",
        "\x0b",
        "\x85",
        "\u2028",
        "\u2029",
    ),
    *(" ", " #", " --hash=sha256:0", "\u00a0", "\ufeff", "=", "==", "/", "../", "-", "é", "\U0001f40d"),
)
VISIBLE = tuple(piece for piece in HOSTILE if not re.search(r"[\x00-\x1f\x85\u2028\u2029\ufeff]", piece))


# One line of anything that can be seen: what a lock's free texts may hold.
LINE = st.lists(
    st.one_of(
        st.sampled_from(VISIBLE),
        st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=5),
    ),
    max_size=8,
).map("".join)


def leaves(table: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a table that is none itself."""
    entries = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in entries:
        yield from leaves(value, (*path, key)) if isinstance(value, dict | list) else [(*path, key)]


def with_leaf(table: Any, path: tuple[str | int, ...], value: object) -> Any:
    """A copy of the table with another value at `path`; the last key of a mapping of names takes the value as key."""
    changed = copy.deepcopy(table)
    inside = functools.reduce(lambda part, key: part[key], path[:-1], changed)
    inside[path[-1]] = value
    return changed


GPUS = LockedGpus(("9.0", "12.0"), "580.65.06")
CUDA = replace(LOCK, cell="tiny-cu130-py311", axes={**LOCK.axes, "cuda": "cu130"}, gpu=GPUS)
