"""A base of Debian 13, whose apt has no sources.list and whose Python is 3.13: an image on it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import lock
from imagegen.core.sandbox import Sandbox
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.lock.model import LockedInterpreter
from tests.support.project import Project

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CELL = "demo-cpu-py313"
MATRIX = """\
components:
  demo: {description: A wheel of a few bytes., imports: [demo]}
images:
  demo:
    description: Small.
    purpose: Tests.
    base: debian13
    axes: {python: ["3.13"]}
    components: {demo: {because: Tests.}}
    packages: {numactl: Binds ranks to sockets.}
"""


def test_an_image_on_debian_13(engine: Engine, tmp_path: Path) -> None:
    here = Project(tmp_path / "here")
    here.env["PIP_INDEX_URL"] = (here.root / "index").as_uri()
    (here.root / "matrices" / "demo.yaml").write_text(MATRIX)
    start = lock.read(here.lock)  # which has uv's wheel, that no index here serves
    here.lock.unlink()
    path = here.root / "locks" / f"{CELL}.toml"
    python = LockedInterpreter("debian13-3.13", "3.13", "/usr/bin/python3.13")
    lock.write(replace(start, cell=CELL, axes={**start.axes, "python": "3.13"}, interpreter=python), path)
    with here.start("lock", "demo", "--upgrade-base", "--record") as process:  # it makes the base: longer than `run`
        _, stderr = process.communicate(timeout=900)
    assert process.returncode == 0, stderr
    locked = lock.read(path)
    assert locked.interpreter.version.startswith("3.13.")
    assert locked.base.suite == "trixie"
    assert set(locked.base.archives) == {"debian/trixie", "debian/trixie-updates", "debian-security/trixie-security"}
    assert locked.added
    assert {each.suite for each in locked.added.archives} == {"trixie", "trixie-updates"}
    assert locked.record
    assert [layer.name for layer in locked.record.layers][:3] == ["base", "packages", "venv"]
    store = Store(here.root / "cache/imagegen/store")
    (tree,) = [each for each in (store.root / "rootfs").iterdir() if (each / "usr/bin/numactl").exists()]
    updated = Sandbox(tree).run(["apt-get", "update", "--print-uris"], timeout=60).decode()
    for suite in ("trixie", "trixie-updates", "trixie-security"):
        assert f"/dists/{suite}/InRelease" in updated

    tag = "imagegen-test/debian13:1"
    engine.load(store, locked.record.digest, tag)
    try:
        with engine.container(tag) as container:
            program = "import demo, ssl, sqlite3, sys; print(*sys.version_info[:2], demo.ANSWER)"
            assert container.exec(["python", "-c", program]).stdout == b"3 13 42\n"
            assert container.exec(["dpkg", "--audit"]).stdout == b""
            assert container.exec(["dpkg", "--verify", "numactl"]).exit_code == 0
    finally:
        engine.client.images.remove(tag, force=True)
