"""Licences in METADATA are read as they are stated."""

from __future__ import annotations

import email.parser

import pytest

from imagegen.audit.licence import read_licence
from imagegen.audit.model import Licence

CASES = {
    "an expression": ("License-Expression: MIT OR  Apache-2.0", Licence("MIT OR Apache-2.0")),
    "a name": ("License: BSD", Licence(text="BSD")),
    "a text, as setuptools indents it": ("License: MIT\n     \n     Permission", Licence(text="MIT\n\nPermission")),
    "a text, as the old rules have it": ("License: MIT\n       |Permission is", Licence(text="MIT\nPermission is")),
    "classifiers": (
        "Classifier: License :: OSI Approved :: MIT License\nClassifier: Topic :: Software",
        Licence(classifiers=("OSI Approved :: MIT License",)),
    ),
    "what tools write for nothing": ("License: UNKNOWN", Licence()),
    "nothing": ("Summary: it works", Licence()),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), CASES.values(), ids=list(CASES))
def test_what_is_stated(fields: str, expected: Licence) -> None:
    assert (
        read_licence(email.parser.HeaderParser().parsestr(f"Name: demo\n{fields}\n\nLicense: in the README\n"))
        == expected
    )
