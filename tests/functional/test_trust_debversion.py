"""Versions sort as dpkg sorts them."""

from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from imagegen.lock.debian_versions import version_key as key

# Ascending, from deb-version(7) and from the archive.
ASCENDING = [
    *("~~", "~~a", "~", ""),
    *(
        "1.0~beta1~svn1245",
        "1.0~beta1",
        "1.0-0~",
        "1.0",
        "1.0-0.1",
        "1.0-1~deb12u1",
        "1.0-1",
        "1.0-1+b1",
        "1.0-1+deb12u1",
    ),
    *("1.0-10", "1.0a", "1.0+dfsg-1", "1.0.0", "1.2", "1.10", "a", "1:0.1", "2:0"),
]
EQUAL = [("1.0", "0:1.0"), ("1.0", "1.0-0"), ("1.0", "1.00"), ("a", "a0"), ("1.01-01", "1.1-1")]
TEXTS = st.text("0019az~+.", max_size=6).map("1{}".format)  # dpkg wants a digit first
EPOCHS = st.sampled_from(["", "0:", "1:"])
REVISIONS = st.just("") | st.text("019a~+.", min_size=1, max_size=4).map("-{}".format)
VERSIONS = st.tuples(EPOCHS, TEXTS, REVISIONS).map("".join)


def test_the_manuals_order() -> None:
    assert sorted(set(ASCENDING), key=key) == ASCENDING
    assert len({key(each) for each in ASCENDING}) == len(ASCENDING)
    for one, other in EQUAL:
        assert key(one) == key(other)


@settings(max_examples=8)
@given(st.lists(st.tuples(VERSIONS, VERSIONS), min_size=20, max_size=20))
def test_dpkg_agrees(pairs: list[tuple[str, str]]) -> None:
    program = 'while read -r a b; do dpkg --compare-versions "$a" lt "$b" && echo 1 || echo 0; done'
    text = "".join(f"{one} {other}\n" for one, other in pairs)
    said = subprocess.run(["sh", "-c", program], input=text, capture_output=True, text=True, check=True).stdout.split()
    assert [int(key(one) < key(other)) for one, other in pairs] == [int(each) for each in said]


@given(st.text(), st.text())
def test_any_text_has_its_place(one: str, other: str) -> None:
    assert (key(one) < key(other)) + (key(one) == key(other)) + (key(one) > key(other)) == 1
