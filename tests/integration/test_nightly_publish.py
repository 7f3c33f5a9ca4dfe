"""A frozen week that `imagegen nightly` publishes to a real registry, Debian's docker-registry."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imagegen import lock
from imagegen.cli import lock_command, nightly_command
from imagegen.cli.app import App
from imagegen.image import base
from imagegen.run.smoke import report as smoke
from imagegen.run.smoke import runner as smoke_checks
from imagegen.trust.project import FILE
from tests.support.docker_registry import PASSWORD, USER, login, serving
from tests.support.machines import Debian
from tests.support.nightly_week import LONG_AGO, day
from tests.support.publish_engines import Engines
from tests.support.registry_proxy import Way
from tests.support.registry_server import MANIFEST
from tests.support.upload_index import PackageIndex
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.integration

CELL = "week-cpu-py311"
MATRIX = """\
images:
  week:
    description: Two components, and what one of them needs.
    purpose: Tests.
    base: debian12
    components:
      heavy: {because: It is what the others stand beside.}
      engine: {because: It is what fails.}
  week-other:
    extends: week
    description: The same, and its own release of a component.
    components:
      engine: {version: "<0.2", because: Its releases exclude those of the other image.}
  week-both:
    description: Both side by side.
    purpose: Tests.
    environments:
      week: {cell: week-cpu-py311, because: Tests.}
      other: {cell: week-other-cpu-py311, because: Tests.}
    default: week
components:
  heavy: {description: Made here.}
  engine: {description: Made here.}
"""


class Weekdays:
    """A project with a toy index, a key and a registry. `passes` is what the smoke checks say."""

    def __init__(self, root: Path, way: Way, debian: Debian) -> None:
        self.root, self.way, self.debian = root, way, debian
        self.project, self.home, self.passes = root / "project", root / "home", True
        (self.project / "matrices").mkdir(parents=True)
        (self.project / "matrices" / "week.yaml").write_text(MATRIX)
        login(self.home, way.host)
        self.index = PackageIndex(root / "index")
        self.index.wheel("uv", importlib.metadata.version("uv"))
        self._sign()

    def _sign(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        plain = serialization.NoEncryption()
        self.key = self.root / "release.key"
        self.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        self.key.chmod(0o600)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        (self.project / "release.pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
        (self.project / FILE).write_text("publish: {keys: {release: release.pub}}\n")

    def wheel(self, name: str, version: str, *requires: str, on: str = LONG_AGO, weight: int = 0) -> None:
        """A wheel that installs, uploaded at the time."""
        needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
        texts = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"}
        files = {f"{name}/__init__.py": f"VERSION = {version!r}\n".encode()}
        if weight:
            files[f"{name}/data.bin"] = os.urandom(weight)
        made = make_wheel(
            self.root, files, filename=f"{name}-{version}-py3-none-any.whl", info=f"{name}-{version}.dist-info",
            metadata=texts,
        )  # fmt: skip
        self.index.add(name, made.name, made.read_bytes(), on)

    def store(self, name: str) -> Path:
        return self.root / name / "imagegen" / "store"

    def app(self, machine: str) -> App:
        env = {
            "HOME": str(self.home), "DOCKER_CONFIG": str(self.home), "PATH": os.environ["PATH"],
            "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self.index.root.as_uri(),
            "XDG_CACHE_HOME": str(self.root / machine),
        }  # fmt: skip
        return App(env, self.project)

    def lock(self, number: int, image: str = "week") -> None:
        """`imagegen lock` on this day of the week."""
        ended = CliRunner().invoke(lock_command.command, [image, "--as-of", day(number)], obj=self.app("one"))
        assert ended.exit_code == 0, (ended.stderr, ended.exception)

    def nightly(self, number: int, machine: str = "one", code: int = 0) -> dict[str, Any]:
        """`imagegen nightly` on this day of the week; what it tells of the cell."""
        return self.nightly_of("week", number, machine, code)[CELL]

    def nightly_of(self, pattern: str, number: int, machine: str = "one", code: int = 0) -> dict[str, dict[str, Any]]:
        self.way.requested.clear()
        line = [pattern, "--to", f"{self.way.host}/acme", "--as-of", day(number), "--key", str(self.key), "--json"]
        ended = CliRunner().invoke(nightly_command.command, line, obj=self.app(machine))
        assert ended.exit_code == code, (ended.stderr, ended.exception)
        return {each["cell"]: each for each in json.loads(ended.stdout)}

    @property
    def written(self) -> list[str]:
        """Return the paths of the last run's requests that change something in the registry."""
        return [path for method, path in self.way.requested if method in ("POST", "PUT", "PATCH", "DELETE")]

    def locked(self) -> dict[str, str]:
        made = lock.read(self.project / "locks" / f"{CELL}.toml")
        return {each.name: each.version for each in made.wheels}

    def stands(self, tag: str = "nightly", image: str = "week") -> str | None:
        url = f"http://{self.way.host}/v2/acme/{image}/manifests/{tag}"
        answer = requests.head(url, auth=(USER, PASSWORD), headers={"Accept": MANIFEST}, timeout=60)
        return answer.headers["Docker-Content-Digest"] if answer.ok else None

    def layers(self, digest: str) -> set[str]:
        url = f"http://{self.way.host}/v2/acme/week/manifests/{digest}"
        manifest = requests.get(url, auth=(USER, PASSWORD), headers={"Accept": MANIFEST}, timeout=60).json()
        return {layer["digest"] for layer in manifest["layers"]}


@pytest.fixture
def week(debian: Debian, docker_registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Weekdays]:
    engines = Engines()
    monkeypatch.setattr("imagegen.app.publish.Engine", engines)
    monkeypatch.setattr(base, "resolve", lambda *_: debian.locked)
    with serving(docker_registry, tmp_path / "hub") as hub:
        way = Way(hub)
        week = Weekdays(tmp_path, way, debian)
        shutil.copytree(debian.store.root, week.store("one"), copy_function=os.link, symlinks=True)

        def checked(_: object, digest: str, *__: object, **___: object) -> smoke.SmokeReport:
            return smoke.SmokeReport(
                digest, CELL, (smoke.CheckResult("imports", "pass" if week.passes else "fail", 0.1),)
            )

        monkeypatch.setattr(smoke_checks, "run", checked)
        yield week
        way.close()


def test_each_day_what_came_is_published_and_the_same_day_again_sends_nothing(week: Weekdays) -> None:
    week.wheel("heavy", "1.0", weight=2_000_000)
    week.wheel("engine", "0.1", "light")
    week.wheel("light", "1.0")
    week.wheel("light", "1.1", on=day(2, 9))
    week.wheel("engine", "0.2", "light", on=day(4, 9))
    week.wheel("engine", "0.3", "light", "extra", on=day(5, 9))
    week.wheel("extra", "1.0")

    week.lock(1)
    first = week.nightly(1)
    assert (first["result"], week.stands()) == ("published", first["digest"])
    assert week.locked() == {"heavy": "1.0", "engine": "0.1", "light": "1.0"}

    second = week.nightly(2)
    assert (second["result"], week.stands()) == ("published", second["digest"])
    assert week.locked() == {"heavy": "1.0", "engine": "0.1", "light": "1.1"}
    assert second["proposal"]["moved"][0] == "light 1.0 -> 1.1"
    assert len(week.layers(second["digest"]) - week.layers(first["digest"])) == 2, "its group, and what the support has"

    for number, machine in ((2, "one"), (3, "empty")):
        again = week.nightly(number, machine)
        assert (again["result"], again["digest"], week.written) == ("unchanged", second["digest"], []), number

    week.passes = False
    before = (week.project / "locks" / f"{CELL}.toml").read_bytes()
    failed = week.nightly(4, code=1)
    assert (failed["result"], failed["error"]["what"]) == ("failed", "smoke checks failed: imports")
    assert week.stands() == second["digest"], "no tag has moved"
    assert (week.project / "locks" / f"{CELL}.toml").read_bytes() == before

    week.passes = True
    last = week.nightly(5)
    assert (last["result"], week.stands()) == ("published", last["digest"])
    assert week.locked() == {"heavy": "1.0", "engine": "0.3", "extra": "1.0", "light": "1.1"}
    made = lock.read(week.project / "locks" / f"{CELL}.toml")
    assert made.record and made.record.digest == last["digest"]


@pytest.mark.slow
def test_an_image_with_several_environments_is_published_after_its_cells(week: Weekdays) -> None:
    week.wheel("heavy", "1.0", weight=2_000_000)
    week.wheel("engine", "0.1")
    week.wheel("engine", "0.2", on=day(2, 9))
    week.wheel("light", "1.0")
    week.lock(1, "week-both")
    both, other = "week-both-cpu-py311", "week-other-cpu-py311"
    first = week.nightly_of("week-*", 1)
    assert [(name, each["result"]) for name, each in first.items()] == [
        (CELL, "published"),
        (other, "published"),
        (both, "published"),
    ]
    assert week.stands(image="week-both") == first[both]["digest"]

    second = week.nightly_of("week-*", 2)
    assert {name: each["result"] for name, each in second.items()} == {
        CELL: "published",
        other: "unchanged",
        both: "published",
    }
    assert (second[both]["proposal"]["moved"][0], week.stands(image="week-both")) == (
        "engine 0.1 -> 0.2",
        second[both]["digest"],
    )
    again = week.nightly_of("week-both", 2)
    assert (again[both]["result"], again[both]["digest"], week.written) == ("unchanged", second[both]["digest"], [])
