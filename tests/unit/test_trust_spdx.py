"""From what packages state to SPDX expressions: only what is sure, and all else in their own words."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression

from imagegen.audit.model import Licence
from imagegen.trust import licences
from imagegen.trust.licences import Terms, data

MIT, APACHE, BSD = (f"OSI Approved :: {each} License" for each in ("MIT", "Apache Software", "BSD"))
MIT_TEXT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
HEADED = f"MIT License\n\nCopyright (c) 2021 Somebody, Inc.\n\n{MIT_TEXT}"
# Each as a package on PyPI states it.
SURE = {
    "an expression": (Licence("mit OR apache-2.0"), "MIT OR Apache-2.0", True),
    "an expression beats old fields": (Licence("MIT", "GPL", (BSD,)), "MIT", True),
    "an expression in the old field": (Licence(text="BSD-3-Clause", classifiers=(BSD,)), "BSD-3-Clause", True),
    "a name that only one has": (Licence(text="Apache License, Version 2.0"), "Apache-2.0", False),
    "a classifier that only one has": (Licence(classifiers=(MIT,)), "MIT", False),
    "a classifier that fits": (Licence(text="Apache 2.0", classifiers=("OSI Approved", APACHE)), "Apache-2.0", False),
    "a whole licence": (Licence(text=HEADED), "MIT", False),
    "a whole licence in other lines": (Licence(text="\n".join(textwrap.wrap(MIT_TEXT, 70))), "MIT", False),
    "one of NVIDIA's": (
        Licence(text="LicenseRef-NVIDIA-Proprietary", classifiers=("Other/Proprietary License",)),
        "LicenseRef-NVIDIA-Proprietary",
        True,
    ),
}
OWN, ABOVE, BARE = "MIT License\nDo no evil.", f"Only at home.\n{MIT_TEXT}", "Copyright me\nBe kind"
UNSURE = {
    "a family": (Licence(text="BSD", classifiers=(BSD,)), ("BSD", "BSD License"), None),
    "a family by classifier": (Licence(classifiers=(APACHE,)), ("Apache Software License",), None),
    "two that may be a choice": (
        Licence(classifiers=(APACHE, MIT)),
        ("Apache Software License", "MIT License"),
        None,
    ),
    "a contradiction": (Licence(text="Apache 2.0", classifiers=(BSD,)), ("Apache 2.0", "BSD License"), None),
    "proprietary, it says besides": (
        Licence(text="Apache 2.0", classifiers=("Other/Proprietary License",)),
        ("Apache 2.0", "Other/Proprietary License"),
        None,
    ),
    "no expression": (Licence("MIT AND"), ("MIT AND",), None),
    "more than the licence": (Licence(text=f"{HEADED}\nAnd pay me."), ("MIT License",), f"{HEADED}\nAnd pay me."),
    "another licence under its title": (Licence(text=OWN), ("MIT License",), OWN),
    "terms above the licence": (Licence(text=ABOVE), ("Only at home.",), ABOVE),
    "a text without a title": (Licence(text=BARE, classifiers=(BSD,)), ("BSD License",), BARE),
    "nothing": (Licence(), (), None),
}  # fmt: skip


@pytest.mark.parametrize(("stated", "expression", "declared"), SURE.values(), ids=list(SURE))
def test_what_is_sure(stated: Licence, expression: str, declared: bool) -> None:
    assert licences.wheel_terms(stated) == Terms(expression, declared=declared)


@pytest.mark.parametrize(("stated", "names", "text"), UNSURE.values(), ids=list(UNSURE))
def test_what_is_not_sure_keeps_its_words(stated: Licence, names: tuple[str, ...], text: str | None) -> None:
    found = licences.wheel_terms(stated)
    assert (found.expression, found.names, found.text) == (None, names, text)


@pytest.mark.parametrize("depth", [200, 300, 7000])
def test_an_expression_that_is_nested_deeply_is_not_sure(depth: int) -> None:
    for expression in ("MIT AND (" * depth, "MIT AND (" * depth + "MIT" + ")" * (depth - 1)):
        found = licences.wheel_terms(Licence(expression))
        assert (found.expression, found.names) == (None, (expression[:200],))


def test_apaches_licence_is_known_with_and_without_its_appendix() -> None:
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    assert licences.wheel_terms(Licence(text=text)).expression == "Apache-2.0"
    assert licences.wheel_terms(Licence(text=text.partition("APPENDIX")[0])).expression == "Apache-2.0"
    assert licences.wheel_terms(Licence(text=text.replace("perpetual", "yearly"))).expression is None


DEBIAN = {
    "one": (["GPL-2+"], "GPL-2.0-or-later"),
    "all count": (["Expat", "GPL-2+"], "GPL-2.0-or-later AND MIT"),
    "a choice among them": (["Expat", "GPL-2 or BSD-3-clause"], "(GPL-2.0-only OR BSD-3-Clause) AND MIT"),
    "a choice alone": (["GPL-1+ or BSD-3-clause"], "GPL-1.0-or-later OR BSD-3-Clause"),
    "one that is no SPDX licence": (["Expat", "Beerware-ish"], None),
    "one of many names": (["MIT"], None),
    "commas are for people": (["GPL-1+ or Expat, and ISC"], None),
    "an exception": (["GPL-3+ with Bison exception"], None),
    "none": ([], None),
}


@pytest.mark.parametrize(("names", "expression"), DEBIAN.values(), ids=list(DEBIAN))
def test_debian_packages(names: list[str], expression: str | None) -> None:
    found = licences.deb_terms(names)
    assert found.expression == expression
    assert found.names == (() if expression else tuple(names))


@given(
    st.builds(
        Licence, st.none() | st.text(), st.none() | st.text(min_size=1), st.lists(st.text(), max_size=3).map(tuple)
    )
)
@example(Licence(text="\r"))
def test_anything_may_be_stated(stated: Licence) -> None:
    found = licences.wheel_terms(stated)
    assert found.expression is None or canonicalize_license_expression(found.expression) == found.expression


@given(
    st.lists(st.sampled_from([*data("spdx")["debian"], "ISC", "Zlib or GPL-2", "and", "or", "A and or B"]), max_size=4)
)
def test_any_short_names_give_an_expression_or_themselves(names: list[str]) -> None:
    found = licences.deb_terms(names)
    assert found.names == tuple(names) or canonicalize_license_expression(str(found.expression)) == found.expression


def test_all_ids_of_the_data_are_of_spdx() -> None:
    known = data("spdx")
    ids = {*known["names"].values(), *(each["is"] for each in known["texts"]), *filter(None, known["debian"].values())}
    ids |= {each for several in known["classifiers"].values() for each in several if "*" not in each}
    for each in ids:
        assert canonicalize_license_expression(each) == each
