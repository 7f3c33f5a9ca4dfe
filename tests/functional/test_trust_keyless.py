"""Signing without a key in GitHub Actions, against the stand-in for GitHub and Sigstore."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import TrustError
from imagegen.core.net.client import Client
from imagegen.trust.identities import Identities
from imagegen.trust.keyless import Clock, Keyless, keyless
from imagegen.trust.project import Identity, Project
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.sigstore_server import (
    CERTIFICATE,
    ENTRIES,
    ISSUER,
    REQUEST_TOKEN,
    STAMP,
    STATEMENT,
    SUBJECT,
    TILED,
    TOKEN,
    Fault,
    Sigstore,
)


@pytest.fixture
def sigstore(tmp_path: Path) -> Iterator[Sigstore]:
    stand_in = Sigstore(tmp_path)
    yield stand_in
    stand_in.close()


@pytest.fixture
def client() -> Iterator[Client]:
    settings = Settings.from_environment({"HOME": "/nonexistent"})
    with Client(settings, attempts=1, timeout=(2.0, 2.0)) as client:
        yield client


def project(sigstore: Sigstore, subject: str = SUBJECT) -> Project:
    return Project(identities=(Identity("ci", ISSUER, subject, sigstore.config),))


class RecordingClock(Clock):
    def __init__(self, pauses: list[float]) -> None:
        self.pauses = pauses

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def signer(sigstore: Sigstore, client: Client, pauses: list[float] | None = None, **more: Any) -> Keyless:
    found = keyless(
        project(sigstore), sigstore.env, client, clock=RecordingClock([] if pauses is None else pauses), **more
    )
    assert found
    return found


def refusal(sigstore: Sigstore, client: Client) -> str:
    """Return the error where nothing is signed; it never contains the secrets."""
    with pytest.raises(TrustError) as caught:
        signer(sigstore, client).sign(STATEMENT)
    said = str(caught.value)
    assert REQUEST_TOKEN not in said and sigstore.token not in said
    return said


@pytest.mark.parametrize(("version", "entries"), [(1, ENTRIES), (2, TILED)])
def test_what_a_run_signs_is_trusted_offline_and_one_certificate_serves(
    sigstore: Sigstore, client: Client, version: int, entries: str
) -> None:
    sigstore.stamps(version)
    made = signer(sigstore, client)
    statements = [STATEMENT, STATEMENT.replace(b',"name":"image"', b"")]  # in-toto lets a subject have no name
    bundles = [made.sign(each) for each in statements]
    assert made.name == "ci"
    requested = list(sigstore.requests)
    names = Identities(project(sigstore).identities)
    assert [names.signer_of(bundle) for bundle in bundles] == [("ci", each) for each in statements]
    assert statements[0] != statements[1]
    assert sigstore.requests == requested == [TOKEN, CERTIFICATE, STAMP, entries, STAMP, entries]
    material = json.loads(bundles[0])["verificationMaterial"]
    assert len(material["tlogEntries"]) == 1 and material["timestampVerificationData"]["rfc3161Timestamps"]


def test_certificates_and_tokens_that_end_soon_are_asked_for_anew(sigstore: Sigstore, client: Client) -> None:
    sigstore.fulcio.lifetime, sigstore.claims.lifetime = timedelta(seconds=50), timedelta(seconds=50)
    made = signer(sigstore, client)
    assert [Identities(project(sigstore).identities).signer_of(made.sign(STATEMENT))[0] for _ in range(2)] == ["ci"] * 2
    assert sigstore.requests == [TOKEN, *[TOKEN, CERTIFICATE, ENTRIES] * 2]


@pytest.mark.parametrize("absent", ["ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"])
def test_a_job_without_the_permission_gets_its_name(sigstore: Sigstore, client: Client, absent: str) -> None:
    env = {name: value for name, value in sigstore.env.items() if name != absent}
    with raises("trust-no-permission") as caught:
        keyless(project(sigstore), env, client)
    assert "id-token: write" in str(caught.value.fix)


def test_there_is_no_signer_outside_of_actions_or_for_a_project_without_identities(
    sigstore: Sigstore, client: Client
) -> None:
    assert keyless(project(sigstore), {}, client) is None
    assert keyless(Project(), sigstore.env, client) is None
    assert not sigstore.requests


@pytest.mark.parametrize("workflow", ["release.yml@refs/heads/main", "nightly.yml@refs/pull/7/merge"])
def test_a_run_that_the_project_does_not_name_publishes_nothing(
    sigstore: Sigstore, client: Client, workflow: str, golden: Golden
) -> None:
    sigstore.claims.workflow = f"acme/images/.github/workflows/{workflow}"
    said = refusal(sigstore, client)
    golden.check(said)
    assert sigstore.requests == [TOKEN]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(403), "HTTP status 403"),
        (Fault(500), "HTTP status 500"),
        (Fault(200, b"{}"), "GitHub's identity token cannot be read"),
        (Fault(200, b'{"value": "a.b.c"}'), "GitHub's identity token cannot be read"),
        (Fault(200, b'{"value": 7}'), "GitHub's identity token cannot be read"),
        (Fault(200, b"[]"), "GitHub's identity token cannot be read"),
    ],
)
def test_a_token_that_is_refused_or_none_is_named(sigstore: Sigstore, client: Client, fault: Fault, said: str) -> None:
    sigstore.faults[TOKEN] = fault
    assert said in refusal(sigstore, client)


@pytest.mark.parametrize(("hours", "side"), [(1, "behind"), (-1, "ahead of")])
def test_a_clock_that_is_wrong_is_named(sigstore: Sigstore, client: Client, hours: int, side: str) -> None:
    sigstore.claims.skew = timedelta(hours=hours)
    assert f"this machine's clock is {side} GitHub's" in refusal(sigstore, client)


@pytest.mark.parametrize(
    ("path", "fault", "said"),
    [
        (
            CERTIFICATE,
            Fault(400, b'{"code": 3, "message": "no such issuer"}'),
            "Fulcio.*HTTP status 400: no such issuer",
        ),
        (CERTIFICATE, Fault(403, b"<html>"), "Fulcio.*HTTP status 403$"),
        (CERTIFICATE, Fault(500), "Fulcio.*HTTP status 500"),
        (CERTIFICATE, Fault(200, b"{}"), "Fulcio.*missing certificate chain"),
        (ENTRIES, Fault(400, b'{"code": 400, "message": "bad entry"}'), "Rekor.*HTTP status 400: bad entry"),
        (ENTRIES, Fault(503), "Rekor.*HTTP status 503"),
        (ENTRIES, Fault(201, b"no JSON"), "Rekor.*Expecting value"),
    ],
)
def test_services_that_refuse_or_fail_are_named(
    sigstore: Sigstore, client: Client, path: str, fault: Fault, said: str
) -> None:
    sigstore.faults[path] = fault
    found = refusal(sigstore, client)
    assert re.search(said, found, re.DOTALL), found
    assert sigstore.requests.count(path) == (3 if fault.status >= 500 else 1)


def test_what_passes_is_asked_again(sigstore: Sigstore, client: Client) -> None:
    sigstore.faults = {CERTIFICATE: Fault(502, times=2), ENTRIES: Fault(429, times=1)}
    pauses: list[float] = []
    assert signer(sigstore, client, pauses).sign(STATEMENT)
    assert pauses == [1.0, 4.0, 1.0]


def test_a_log_that_is_down_is_named(sigstore: Sigstore, client: Client, golden: Golden) -> None:
    config = sigstore.trust()
    config["signingConfig"]["rekorTlogUrls"][0]["url"] = "http://127.0.0.1:9"
    sigstore.config.write_text(json.dumps(config))
    said = refusal(sigstore, client)
    golden.check(said)
    assert "Connection refused" in said


def test_a_service_that_says_nothing_is_not_waited_for(sigstore: Sigstore, client: Client, golden: Golden) -> None:
    sigstore.faults[CERTIFICATE] = Fault(200, silence=5.0)
    with raises("trust-service-unavailable") as caught:
        signer(sigstore, client, patience=0.05).sign(STATEMENT)
    golden.check(caught.value)


def test_an_identity_token_that_is_said_back_is_not_shown(sigstore: Sigstore, client: Client) -> None:
    made = signer(sigstore, client)
    sigstore.faults[CERTIFICATE] = Fault(400, json.dumps({"message": f"bad {sigstore.token}"}).encode())
    with raises("trust-service-unavailable") as caught:
        made.sign(STATEMENT)
    assert sigstore.token not in str(caught.value)


def test_a_signature_that_verification_would_reject_is_not_made(
    sigstore: Sigstore, client: Client, golden: Golden
) -> None:
    sigstore.fulcio.skew = timedelta(minutes=2)  # not yet valid when it is logged
    too_early = refusal(sigstore, client)
    sigstore.fulcio.skew, sigstore.claims.issuer = timedelta(0), ISSUER
    sigstore.fulcio.said = "https://github.com/acme/other/.github/workflows/nightly.yml@refs/heads/main"
    golden.check(too_early, refusal(sigstore, client))


def test_without_the_library_the_command_that_brings_it_is_named(
    sigstore: Sigstore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = signer(sigstore, client).sign(STATEMENT)
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with raises("trust-sigstore-missing"):
        signer(sigstore, client)
    with raises("trust-sigstore-missing"):
        Identities(project(sigstore).identities).signer_of(bundle)
