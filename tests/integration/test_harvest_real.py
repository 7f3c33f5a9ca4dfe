"""A harvest from the real index agrees with what is shipped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.compat.metadata import load
from imagegen.core.config import Settings
from imagegen.core.data import shipped
from tools.harvest.metadata import harvest

pytestmark = pytest.mark.integration


def test_a_package_states_what_it_stated_when_it_was_harvested(settings: Settings) -> None:
    known = load([shipped("matrices")], "mbridge")
    assert known
    (found,) = harvest([known], settings, "2026-11-21")
    # New releases come and old ones may be yanked, but what a release needs does not change.
    assert set(found.releases) >= set(known.releases)
    for version, release in known.releases.items():
        assert replace(found.releases[version], yanked=release.yanked) == release
