"""kill -9 of a publish before any operation on a file, or any request: the next one completes it."""

from __future__ import annotations

import logging
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from imagegen.app.comparison import verify_image
from imagegen.compare import references
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store.upkeep import check
from imagegen.oci.documents import digest_of
from imagegen.trust.project import load
from tests.support.forked_kills import run_in_child
from tests.support.publish_engines import Engines
from tests.support.publishing_team import Team, stand_in_engines, team_at, writable_registry

registry = pytest.fixture(writable_registry)
engines = pytest.fixture(stand_in_engines)
team = pytest.fixture(team_at)

_POINTS = 40  # operations before which a publish is killed; it has some 430, and survives each of these kills


def tags(team: Team) -> dict[str, str]:
    """Return the digest of the manifest that each tag names."""
    start = "/v2/acme/rl/demo/manifests/"
    named = {path.removeprefix(start): data for path, (_, data) in team.registry.documents.items() if start in path}
    return {tag: digest_of(data) for tag, data in named.items() if not tag.startswith("sha256")}


@pytest.mark.slow
@pytest.mark.fault(
    "Killed and damaged",
    "kill -9 of a publish before any of its operations on files, or of its requests to the registry",
    "tags name whole images; the next publish gives the same digest, and verify finds nothing wrong",
)
def test_a_publish_survives_its_killing(
    team: Team,
    engines: Engines,
    tmp_path: Path,
) -> None:
    before, lock = team.lock(b"x = 1\n"), team.lock(b"x = 2\n", b"y = 1\n")
    first = team.machine("first", before).publish(before)
    documents = dict(team.registry.documents)
    log = tmp_path / "log"
    ended, operations = run_in_child(partial(team.machine("counted", lock).publish, lock), log)
    assert ended == 0
    reference = team.machine("reference", lock).publish(lock)
    died: Counter[str] = Counter()
    for number in range(1, len(operations) + 1, len(operations) // _POINTS + 1):
        team.registry.documents = dict(documents)
        machine = team.machine("killed", lock)
        ended, done = run_in_child(partial(machine.publish, lock), log, number)
        assert ended in (-signal.SIGKILL, 0)
        died[done[-1].partition(" ")[2].partition(" ")[0]] += 1
        assert set(tags(team).values()) <= {first.digest, reference.digest}, done[-1]
        assert check(machine.store, Quiet(), repair=False) == []
        assert machine.publish(lock).digest == reference.digest, done[-1]
        assert {tags(team)[tag] for tag in first.moved_tags} == {reference.digest}, done[-1]
        with Client(machine.session.project.settings) as client:
            name = f"{team.registry.host}/acme/rl/demo:latest"
            source, tag = references.locate(name, machine.store, client, machine.session.project.settings)
            verdict = verify_image("demo", source, tag, client, Quiet(), load(team.root)).verdict
        assert verdict.good, (done[-1], verdict.sentence)
        shutil.rmtree(team.root / "killed")
    logging.getLogger(__name__).info("%d kills, before %s", sum(died.values()), dict(died))
