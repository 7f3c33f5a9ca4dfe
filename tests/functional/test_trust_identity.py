"""Trusted identities: bundles of the stand-in, honest, of other signers, and tampered with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import TrustError, UntrustedSignerError
from imagegen.trust import statement
from imagegen.trust.identities import Identities
from imagegen.trust.project import Identity, Project
from imagegen.trust.signers import Trust
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.sigstore_server import ISSUER, STATEMENT, SUBJECT, Sigstore
from tests.support.sigstore_services import b64

PULL = "acme/images/.github/workflows/nightly.yml@refs/pull/7/merge"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def sigstore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sigstore]:
    stand_in = Sigstore(tmp_path_factory.mktemp("sigstore"))
    yield stand_in
    stand_in.close()


@pytest.fixture(scope="module")
def honest(sigstore: Sigstore) -> bytes:
    return sign(sigstore)


@pytest.fixture(scope="module")
def stamping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sigstore]:
    stand_in = Sigstore(tmp_path_factory.mktemp("stamping"))
    stand_in.stamps()
    yield stand_in
    stand_in.close()


@pytest.fixture(scope="module")
def stamped(stamping: Sigstore) -> bytes:
    return sign(stamping)


def sign(sigstore: Sigstore, **misbehaviour: Any) -> bytes:
    """Sign as the library alone does, which does not check whether the bundle would be trusted."""
    from sigstore.dsse import Statement
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.sign import Signer, SigningContext

    places = {
        "workflow": sigstore.claims,
        "repository": sigstore.claims,
        "issuer": sigstore.claims,
        "logged": sigstore.rekor,
    }
    spelled = {"logged": "skew"}
    before = [(places[name], spelled.get(name, name), value) for name, value in misbehaviour.items()]
    honest = [(place, name, getattr(place, name)) for place, name, _ in before]
    for place, name, value in before:
        setattr(place, name, value)
    try:
        context = SigningContext.from_trust_config(ClientTrustConfig.from_json(sigstore.config.read_text()))
        token = IdentityToken(sigstore.claims.token(sigstore.tokens, "sigstore"))
        return Signer(token, context).sign_dsse(Statement(STATEMENT)).to_json().encode()
    finally:
        for place, name, value in honest:
            setattr(place, name, value)


def verified(sigstore: Sigstore, bundle: bytes, config: Path | None = None) -> tuple[str, bytes]:
    return Identities((Identity("ci", ISSUER, SUBJECT, config or sigstore.config),)).signer_of(bundle)


def changed(bundle: bytes, change: Change) -> bytes:
    document = json.loads(bundle)
    change(document)
    return json.dumps(document).encode()


def test_an_honest_bundle_names_who_signed_and_what(
    sigstore: Sigstore, honest: bytes, stamping: Sigstore, stamped: bytes
) -> None:
    for instance, bundle in ((sigstore, honest), (stamping, stamped)):
        assert verified(instance, bundle) == ("ci", STATEMENT)
        trust = Trust(Project(identities=(Identity("ci", ISSUER, SUBJECT, instance.config),)))
        assert trust.signer_of(bundle) == ("ci", statement.read(STATEMENT))
        with pytest.raises(UntrustedSignerError):
            Trust(Project()).signer_of(bundle)


@pytest.mark.parametrize(
    ("misbehaviour", "said"),
    [
        ({"workflow": "acme/images/.github/workflows/other.yml@refs/heads/main"}, "other.yml@refs/heads/main"),
        ({"workflow": PULL}, "refs/pull/7/merge"),
        ({"issuer": "https://token.example"}, "the certificate's issuer is https://token.example; "),
    ],
)
def test_other_identities_are_untrusted(sigstore: Sigstore, misbehaviour: dict[str, Any], said: str) -> None:
    with pytest.raises(UntrustedSignerError) as caught:
        verified(sigstore, sign(sigstore, **misbehaviour))
    assert said in str(caught.value) and f"names ci ({SUBJECT}, {ISSUER})" in str(caught.value)


@pytest.mark.fault(
    "Trust",
    "a certificate for a workflow, repository, owner, branch or tag whose name resembles the trusted one",
    "untrusted: names are compared exactly",
)
@pytest.mark.parametrize(
    "workflow",
    [
        "acme/images-evil/.github/workflows/nightly.yml@refs/heads/main",
        "acme/images/.github/workflows/nightly.yml@refs/heads/main-evil",
        "acme/images/.github/workflows/nightly.yml@refs/tags/main",
        "acme/images/.github/workflows/nightly.yml@main",
        "acme/images/.github/workflows/nightly.yml",
        "evil/acme/images/.github/workflows/nightly.yml@refs/heads/main",
        "ACME/images/.github/workflows/nightly.yml@refs/heads/main",
        "acme/images/.github/workflows/nightly.yml@refs/heads/main/",
        "acme/images/./.github/workflows/nightly.yml@refs/heads/main",
        "acme/images/.github/workflows/nightly%2Eyml@refs/heads/main",
    ],
)
def test_names_that_resemble_the_trusted_one_are_untrusted(sigstore: Sigstore, workflow: str) -> None:
    with pytest.raises(UntrustedSignerError):
        verified(sigstore, sign(sigstore, workflow=workflow))


@pytest.mark.fault(
    "Trust",
    "another owner's repository calls the trusted workflow, which then signs what that repository holds",
    "untrusted: the certificate names the repository of the run",
)
def test_a_run_of_another_owners_repository_is_untrusted(sigstore: Sigstore) -> None:
    """A reusable workflow's certificate has the workflow as its subject, whatever repository calls it (fulcio,
    docs/oidc.md).
    """
    assert verified(sigstore, sign(sigstore, repository="acme/training")) == ("ci", STATEMENT)
    for repository in ("evil/images", "acme-evil/images", "acm/images"):
        with pytest.raises(UntrustedSignerError):
            verified(sigstore, sign(sigstore, repository=repository))


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (-2, "before its certificate is valid, so the clocks of certificate authority and log differ"),
        (12, "after its certificate had expired"),
    ],
)
def test_a_signature_out_of_its_certificates_minutes_is_refused(
    sigstore: Sigstore, minutes: int, said: str, golden: Golden
) -> None:
    with pytest.raises(TrustError) as caught:
        verified(sigstore, sign(sigstore, logged=timedelta(minutes=minutes)))
    golden.check(caught.value)
    assert said in str(caught.value)


def _payload(document: dict[str, Any]) -> None:
    other = STATEMENT.replace(b"ab" * 32, b"cd" * 32)
    document["dsseEnvelope"]["payload"] = b64(other)


def _no_log(document: dict[str, Any]) -> None:
    document["verificationMaterial"]["tlogEntries"] = []


def _no_certificate(document: dict[str, Any]) -> None:
    document["verificationMaterial"]["publicKey"] = {"hint": "x"}
    del document["verificationMaterial"]["certificate"]


def _entry(document: dict[str, Any]) -> dict[str, Any]:
    (entry,) = document["verificationMaterial"]["tlogEntries"]
    assert isinstance(entry, dict)
    return entry


def _other_entry(document: dict[str, Any]) -> None:
    _entry(document)["inclusionProof"]["hashes"].reverse()


def _unpromised(document: dict[str, Any]) -> None:
    del _entry(document)["inclusionPromise"]


def _later(document: dict[str, Any]) -> None:
    _entry(document)["integratedTime"] = str(int(_entry(document)["integratedTime"]) + 60)


def _type(document: dict[str, Any]) -> None:
    document["dsseEnvelope"]["payloadType"] = "text/plain"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_payload, "the statement was altered after it was signed"),
        (_type, "the statement was altered after it was signed"),
        (_no_log, "the signature is not in a log"),
        (_no_certificate, "it is not a Sigstore bundle with a certificate"),
        (_other_entry, "the log that the trust root names did not sign this entry"),
        (_unpromised, "bundle must contain an inclusion promise or signed timestamp"),
        (_later, "the log that the trust root names did not sign this entry"),
    ],
)
def test_tampering_is_named(sigstore: Sigstore, honest: bytes, change: Change, said: str) -> None:
    with pytest.raises(TrustError) as caught:
        verified(sigstore, changed(honest, change))
    assert said in str(caught.value), str(caught.value)


def test_a_time_stamp_that_is_none_is_refused(stamping: Sigstore, stamped: bytes, golden: Golden) -> None:
    def change(document: dict[str, Any]) -> None:
        document["verificationMaterial"]["timestampVerificationData"]["rfc3161Timestamps"][0]["signedTimestamp"] = (
            "AA=="
        )

    with pytest.raises(TrustError) as caught:
        verified(stamping, changed(stamped, change))
    golden.check(caught.value)


def test_another_entry_of_the_same_log_is_of_another_signature(
    sigstore: Sigstore, honest: bytes, golden: Golden
) -> None:
    other = json.loads(sign(sigstore))["verificationMaterial"]["tlogEntries"]

    def change(document: dict[str, Any]) -> None:
        document["verificationMaterial"]["tlogEntries"] = other

    with pytest.raises(TrustError) as caught:
        verified(sigstore, changed(honest, change))
    golden.check(caught.value)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (("certificateAuthorities", 0), "the trust root does not name the certificate authority"),
        (("ctlogs", 0), "its certificate is not in a certificate log that the trust root names"),
        (("tlogs", 0), "the log that the trust root names did not sign this entry"),
    ],
)
def test_each_part_of_another_instance_is_not_trusted(
    sigstore: Sigstore, honest: bytes, tmp_path: Path, path: tuple[str, int], said: str
) -> None:
    config, other = sigstore.trust(), Sigstore(tmp_path)
    other.close()
    config["trustedRoot"][path[0]] = other.trust()["trustedRoot"][path[0]]
    (tmp_path / "mixed.json").write_text(json.dumps(config))
    with pytest.raises(TrustError) as caught:
        verified(sigstore, honest, tmp_path / "mixed.json")
    assert said in str(caught.value)


def test_of_two_instances_the_one_that_knows_the_certificate_counts(
    sigstore: Sigstore, honest: bytes, tmp_path: Path
) -> None:
    other = Sigstore(tmp_path)
    other.close()
    both = [Identity("theirs", ISSUER, SUBJECT, other.config), Identity("ours", ISSUER, SUBJECT, sigstore.config)]
    assert Identities(both).signer_of(honest)[0] == Identities(both[::-1]).signer_of(honest)[0] == "ours"


def test_sigstores_own_root_comes_with_the_library(
    honest: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where the library keeps what it fetched
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(TrustError) as caught:
        Identities((Identity("ci", ISSUER, SUBJECT),)).signer_of(honest)
    golden.check(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "the trust root cannot be read"),
        ("{", "it is not a ClientTrustConfig of Sigstore"),
        (
            "{}",
            "it is not a ClientTrustConfig of Sigstore\n  why: mediaType: Field required; trustedRoot: Field required",
        ),
        ("\udcff", "it is not a ClientTrustConfig of Sigstore"),
    ],
)
def test_a_trust_root_that_is_none_is_named(honest: bytes, tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "root.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TrustError, match=said) as caught:
        Identities((Identity("ci", ISSUER, SUBJECT, tmp_path / "root.json"),)).signer_of(honest)
    assert str(tmp_path / "root.json") in str(caught.value)


def test_a_project_without_identities_needs_no_library_and_trusts_none(honest: bytes) -> None:
    with raises("trust-untrusted-signer"):
        Identities(()).signer_of(honest)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    return [path] if entries is None else [leaf for key, each in entries for leaf in _leaves(each, (*path, key))]


@given(data=st.data())
def test_whatever_is_altered_is_refused_or_says_the_same(
    stamping: Sigstore, stamped: bytes, data: st.DataObject
) -> None:
    """Some of a bundle says nothing that counts (a name of the log's key in its checkpoint); the rest is covered."""
    document = json.loads(stamped)
    path = data.draw(st.sampled_from(_leaves(document)))
    place = document
    for key in path[:-1]:
        place = place[key]
    text = str(place[path[-1]])
    at = data.draw(st.integers(0, len(text) - 1))
    mutants = st.sampled_from(
        [text[:at] + data.draw(st.characters()) + text[at + 1 :], text[:at], b64(data.draw(st.binary(max_size=40)))]
    )
    place[path[-1]] = data.draw(mutants | st.none() | st.integers() | st.just([]) | st.just({}))
    with suppress(TrustError):
        assert verified(stamping, json.dumps(document).encode()) == ("ci", STATEMENT)


_ODD = st.none() | st.integers() | st.sampled_from([[], {}, "", {"tlogEntries": 1}, {"tlogEntries": [{}]}])
_NAMES = st.sampled_from(["mediaType", "verificationMaterial", "dsseEnvelope"])


@given(st.binary(max_size=60) | (_ODD | st.dictionaries(_NAMES, _ODD)).map(lambda value: json.dumps(value).encode()))
def test_what_is_no_bundle_is_refused(sigstore: Sigstore, data: bytes) -> None:
    with raises("trust-bundle-malformed"):
        verified(sigstore, data)
