"""An image that imagegen built gives an entry with all of its pins; engines are read as `audit` reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from tests.support.machines import Built, Place

pytestmark = pytest.mark.integration


def test_all_pins_are_recovered(cpu_grpo: Built, machine: Place, tmp_path: Path) -> None:
    place = Place(tmp_path, machine.docker_host)
    found = json.loads(place.call("import", f"oci:{machine.root}/cpu-grpo", "--name", "again", "--json").stdout)
    # Nothing is known of most of its packages.
    assert (found["missing"], found["omissions"], found["answer"]) == (0, [], "unknown")
    image = yaml.safe_load((tmp_path / "matrices/again.yaml").read_text())["images"]["again"]
    pins = {name: each["version"].removeprefix("==") for name, each in image["components"].items()}
    assert pins == {each.name: Version(each.version).public for each in cpu_grpo.lock.packages}
    assert image["axes"] == {"cuda": ["cpu"], "python": ["3.11"]}
    assert set(image["env"]) == {each.name for each in cpu_grpo.lock.env}
    assert not image.keys() & {"packages", "config"}
