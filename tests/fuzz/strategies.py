"""Wheels whose archives lie here and there, for hypothesis and, through it, for atheris."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzz.crooked import Crooked, Part, wheel, zip64
from tests.support.wheels import INFO

_NUMBER = st.one_of(st.sampled_from([0, 1, 8, 0x801, 0xFFFF, 0xFFFFFFFF]), st.integers(0, 200))
_NAME = st.one_of(
    st.sampled_from(["demo/x.py", "demo/X.py", "demo", "demo/", "a/../b", "demo-1.0.data/scripts/python", "é"]),
    st.sampled_from([f"demo-1.0.data/{rest}" for rest in ("data/lib64/x", "data/bin", "purelib/demo/x.py", "x")]),
    st.text(max_size=8),
)
_EXTRA = st.one_of(
    st.just(b""), st.binary(max_size=12), st.lists(st.integers(0, 300), max_size=3).map(lambda each: zip64(*each))
)
_LIE = st.dictionaries(st.sampled_from(["crc", "packed", "size", "offset"]), _NUMBER, max_size=2)
_FIELDS = st.builds(
    lambda numbers, small, rest: {**numbers, **small, **rest},
    _LIE,
    st.dictionaries(st.sampled_from(["method", "flags", "mode"]), st.integers(0, 0xFFFF), max_size=1),
    st.fixed_dictionaries({}, optional={"extra": _EXTRA, "name": st.binary(max_size=6)}),
)
_PART = st.builds(
    Part,
    name=_NAME,
    data=st.one_of(st.binary(max_size=20), st.just(b"#!python\n"), st.just(bytes(3000))),
    stored=st.booleans(),
    streamed=st.booleans(),
    mode=st.sampled_from([0, 0o100644, 0o100755, 0o120777, 0o40755]),
    local=_FIELDS | st.just({}),
    central=_FIELDS | st.just({}),
    before=st.sampled_from([b"", b"", b"", b"PK"]),
    behind=st.sampled_from([b"", b"", b"", b"\0" * 12]),
    repeat=st.sampled_from([1, 1, 1, 2]),
)
_END = st.dictionaries(st.sampled_from(["count", "size", "start", "disk"]), st.integers(0, 0xFFFF))
_WIDE_END = st.dictionaries(st.sampled_from(["count", "size", "start", "at", "length"]), _NUMBER)


def _crooked(parts: list[Part], scripts: str, **lies: object) -> Crooked:
    points = Part(f"{INFO}/entry_points.txt", f"[console_scripts]\n{scripts}".encode())
    return wheel(*parts, points, **lies)


CROOKED = st.builds(
    _crooked,
    st.lists(_PART, max_size=3),
    st.text("ab.:=[]\n ;'python", max_size=30),
    wide=st.booleans(),
    end=st.just({}) | _END,
    wide_end=st.just({}) | _WIDE_END,
    comment=st.binary(max_size=4),
)
