"""Numbers of thousands of digits, for which Python's int() raises a ValueError of its own: a refusal like any other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from imagegen.app.find_wheel import parse_component
from imagegen.app.nightly.releases import is_file_of
from imagegen.audit import catalogue
from imagegen.audit.contents import satisfies
from imagegen.audit.libraries import node_order
from imagegen.audit.readers.wheel import Wheel
from imagegen.compare.difference import goes_back
from imagegen.core import types
from imagegen.core.errors import MatrixErrors, UsageError, WheelError
from imagegen.core.net import package_index, wheel_metadata
from imagegen.core.net.page import Page
from imagegen.core.net.status import size_of
from imagegen.index_metadata import releases as harvested
from imagegen.lock import find_links, resolution_inputs
from imagegen.lock.debian_versions import version_key
from imagegen.lock.sdist import require_pure_wheel
from imagegen.lock.wheels import parse_release
from imagegen.spec import recipe_entries
from imagegen.wheels import naming
from imagegen.wheels.remote_wheelhouse import is_plain_name
from tests.support.matrix_samples import SMALL, load
from tests.support.wheels import FILENAME, make_wheel
from tools.harvest import torch_exports

DIGITS = "9" * (sys.int_info.default_max_str_digits + 700)
WHEEL = f"demo-{DIGITS}-py3-none-any.whl"
SDIST = f"demo-{DIGITS}.tar.gz"


@pytest.mark.fault(
    "Wheels", "METADATA or a file name with a version of 5,000 digits", "refused like any other that is no version"
)
def test_a_wheel_of_such_a_version_is_refused(tmp_path: Path) -> None:
    text = f"Metadata-Version: 2.1\nName: demo\nVersion: {DIGITS}\n"
    with pytest.raises(WheelError):
        Wheel(make_wheel(tmp_path, {}, metadata={"METADATA": text}), FILENAME)
    for name in (WHEEL, f"demo-1-{DIGITS}-py3-none-any.whl"):
        with pytest.raises(WheelError):
            Wheel(tmp_path / "demo.whl", name)
        with pytest.raises(WheelError):
            require_pure_wheel("demo", "1", name, b"", "its build")


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a version, specifier or requirement with a number of 5,000 digits",
    "refused like any other that is none",
)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (types.PackageVersion, DIGITS),
        (types.CanonicalVersion, DIGITS),
        (types.Specifier, f"=={DIGITS}"),
        (types.RequirementText, f"demo=={DIGITS}"),
        (types.RequirementText, f"demo; python_version < '{DIGITS}'"),
        (types.ExactPin, f"demo=={DIGITS}"),
    ],
)
def test_matrices_and_locks_refuse_it(kind: Any, text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(text)


def test_the_error_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(MatrixErrors) as raised:
        load(tmp_path, SMALL.replace('"==2.13.0"', f'"=={DIGITS}"'))
    (error,) = raised.value.errors
    assert error.where.line == SMALL[: SMALL.index('"==2.13.0"')].count("\n") + 1


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda: torch_exports.parse_wheel_name(WHEEL), UsageError),
        (lambda: parse_component(f"demo=={DIGITS}"), UsageError),
        (lambda: parse_release(WHEEL), ValueError),
        (lambda: parse_release(SDIST), ValueError),
        (lambda: harvested.read_requires_python(f">={DIGITS}"), ValueError),
        (lambda: wheel_metadata.parse(f"Name: demo\nVersion: {DIGITS}\n".encode(), "demo", "1"), ValueError),
    ],
)
def test_what_is_asked_for_or_harvested_is_refused(ask: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        ask()


@pytest.mark.fault("Network", "an index with file names whose versions have 5,000 digits", "they are skipped")
@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda: resolution_inputs.release_of(WHEEL), "0.dev0"),
        (lambda: find_links.is_wheel_of(WHEEL, "demo", "1"), False),
        (lambda: is_file_of(WHEEL, "demo"), False),
        (lambda: is_file_of(SDIST, "demo"), False),
        (lambda: recipe_entries.is_sdist_of(SDIST, "demo", "1"), False),
        (lambda: naming.read(WHEEL), None),
        (lambda: is_plain_name("demo-1-py3-none-any.whl", "demo", DIGITS), False),
        (lambda: goes_back("1", DIGITS), False),
        (lambda: satisfies(DIGITS, ">=1"), False),
        (lambda: size_of(DIGITS), None),
        (lambda: size_of("1" * 18), int("1" * 18)),
        (lambda: catalogue.cuda_major(f"libcudart.so.{DIGITS}"), None),
        (lambda: catalogue.oldest_releases([f"GLIBC_2.{DIGITS}"]), None),
        (lambda: min([f"GLIBC_2.{DIGITS}", "GLIBC_2.4"], key=node_order), "GLIBC_2.4"),
        (lambda: version_key(f"{DIGITS}:1") > version_key(f"{DIGITS[1:]}:1"), True),
    ],
)
def test_what_others_list_is_skipped(ask: Callable[[], object], answer: object) -> None:
    assert ask() == answer


@pytest.mark.parametrize("suffix", ["-py3-none-any.whl", ".tar.gz"])
def test_the_other_files_of_such_a_page_are_listed(suffix: str) -> None:
    names = [f"demo-{version}{suffix}" for version in ("1", DIGITS)]
    html = "".join(f'<a href="https://files/{name}">{name}</a>' for name in names)
    files = [{"filename": name, "url": f"https://files/{name}", "hashes": {}} for name in names]
    document = json.dumps({"meta": {"api-version": "1.0"}, "name": "demo", "files": files})
    for body in (html, document):
        client = SimpleNamespace(page=lambda url, accept="", body=body: Page(url, body.encode()))
        assert names[0] in [link.filename for link in package_index.project(client, "https://index", "demo")]
