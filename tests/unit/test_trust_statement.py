"""Statements and the JSON they are made of: one reading, for everybody."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import TrustError
from imagegen.trust import statement, strict_json
from imagegen.trust.documents import SBOM, SIGNATURE
from imagegen.trust.statement import InTotoStatement
from tests.support.errors import raises

IMAGE = "sha256:" + "a1" * 32
OTHER = "sha256:" + "b2" * 32
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


def test_what_is_signed_of_an_image_alone() -> None:
    written = statement.write(IMAGE, SIGNATURE)
    assert json.loads(written) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {"sha256": "a1" * 32}}],
        "predicateType": "https://sigstore.dev/cosign/sign/v1",
        "predicate": {},
    }
    assert statement.read(written) == InTotoStatement((IMAGE,), SIGNATURE, b"{}")


@given(OBJECTS)
def test_a_document_stands_in_its_statement_as_it_is(document: dict[str, object]) -> None:
    content = json.dumps(document, indent=1).encode() + b"\n"
    written = statement.write(IMAGE, str(SBOM.predicate), content)
    assert content.strip() in written
    found = statement.read(written)
    assert found.subjects == (IMAGE,)
    assert statement.same(content, found.predicate)
    respelled = json.dumps(dict(reversed(document.items())), ensure_ascii=True).encode()
    assert statement.same(respelled, found.predicate)


@given(OBJECTS, OBJECTS)
def test_documents_are_the_same_where_they_say_the_same(one: dict[str, object], other: dict[str, object]) -> None:
    predicate = statement.read(statement.write(IMAGE, SIGNATURE, json.dumps(one).encode())).predicate
    # repr tells 1 from True, and the sign of zero and 1.0 from 1, which JSON need not.
    alike = repr(sorted(one.items())).replace(".0", "") == repr(sorted(other.items())).replace(".0", "")
    if alike:
        assert statement.same(json.dumps(other).encode(), predicate)
    elif one != other:
        assert not statement.same(json.dumps(other).encode(), predicate)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"a": 1}', b'{"a":1.0}', True),
        (b'{"a": 1.50}', b'{"a":1.5}', True),
        (b'{"a": "\\u00e9<"}', '{"a":"é\\u003c"}'.encode(), True),
        (b'{"a": 1}', b'{"a":true}', False),
        (b'{"a": 0}', b'{"a":false}', False),
        (b'{"a": null}', b"{}", False),
        (b'{"a": 12345678901234567890}', b'{"a":12345678901234567891}', False),
        (b'{"a": []}', b'{"a":{}}', False),
        (b'{"a": 1, "a": 1}', b'{"a":1}', False),
    ],
)
def test_what_is_the_same(one: bytes, other: bytes, same: bool) -> None:
    assert statement.same(one, strict_json.canonical(strict_json.parse(other))) is same


def written(**changes: object) -> bytes:
    document = json.loads(statement.write(IMAGE, SIGNATURE)) | changes
    return json.dumps({name: value for name, value in document.items() if value != "-"}).encode()


def test_cosigns_older_statements_are_read() -> None:
    names = [{"name": "ghcr.io/acme/rl", "digest": {"sha256": "b2" * 32}}, {"digest": {"sha256": "a1" * 32}}]
    found = statement.read(written(_type="https://in-toto.io/Statement/v0.1", subject=names, predicate=None))
    assert found == InTotoStatement((OTHER, IMAGE), SIGNATURE, b"{}")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is not JSON"),
        (b"[]", "it is not a JSON object"),
        (b'{"_type": "x", "_type": "y"}', '"_type" is given twice'),
        (b"\xff\xfe{\x00}\x00", "it is not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "it is not JSON"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": 1e999}', "the number 1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "it is not JSON"),
        (b'{"a":' * 100_000, "it is nested too deeply"),
        (b" " * (strict_json.MAX_SIZE + 1), "and the limit is"),
        (
            written(_type="https://in-toto.io/Statement/v2"),
            "its _type is 'https://in-toto.io/Statement/v2'",
        ),
        (written(_type="-"), "its _type is None"),
        (written(predicateType=""), "its predicateType is ''"),
        (written(predicateType=["a"]), "its predicateType is ['a']"),
        (written(predicate=[1]), "its predicate is not a JSON object"),
        (written(subject=[]), "its subject is not a list of 1 to 100 entries"),
        (written(subject=[{"digest": {"sha256": "a1" * 32}}] * 101), "its subject is not a list"),
        (written(subject={"digest": {}}), "its subject is not a list"),
        (written(subject=[{"digest": {"sha512": "a1" * 64}}]), "one of its subjects has no sha256 digest"),
        (written(subject=[{"digest": {"sha256": "A1" * 32}}]), "one of its subjects has no sha256 digest"),
        (written(subject=[{"digest": {"sha256": 1}}]), "one of its subjects has no sha256 digest"),
        (written(subject=["sha256:" + "a1" * 32]), "one of its subjects has no sha256 digest"),
    ],
)
def test_what_is_no_statement(data: bytes, why: str) -> None:
    with pytest.raises(TrustError) as caught:
        statement.read(data)
    assert caught.value.what == "the signed statement cannot be read"
    assert why in str(caught.value.why)


@pytest.mark.parametrize("predicate", [b"[]", b"{", b'{"a": 1, "a": 2}', b'{"a": Infinity}', b'{}, "predicate": {}'])
def test_what_others_would_read_otherwise_is_not_signed(predicate: bytes) -> None:
    with raises("trust-statement-unsignable"):
        statement.write(IMAGE, SIGNATURE, predicate)


@given(st.binary())
def test_any_bytes_are_a_statement_or_an_error(data: bytes) -> None:
    with pytest.raises(TrustError):
        statement.read(data)
