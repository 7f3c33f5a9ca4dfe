"""The commands that resolve, against indexes that give no upload times: PyTorch's alias and one of the project's."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from imagegen import lock
from imagegen.cli import lock_command, nightly_command
from imagegen.cli.app import App
from imagegen.image import base
from tests.support.http_server import Folder
from tests.support.machines import committed
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.integration
CELL = "mine-cpu-py311"
MATRIX = """\
indexes:
  ours: {{description: D., url: "{url}/ours"}}
components:
  mypkg: {{description: D.}}
images:
  mine:
    description: D.
    purpose: P.
    base: debian12
    components:
      pip: {{because: It comes from PyPI.}}
      mypkg: {{index: ours, because: It comes from an index of ours.}}
      torch: {{version: "==2.13.0", because: It comes from PyTorch's index.}}
"""


def publish(root: Path, name: str, version: str) -> None:
    """Add a wheel to the page of its project, with its hash and without an upload time."""
    root.mkdir(parents=True, exist_ok=True)
    filename, info = f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    digest = hashlib.sha256(make_wheel(root, {}, filename=filename, info=info).read_bytes()).hexdigest()
    with (root / "index.html").open("a") as page:
        page.write(f'<a href="{filename}#sha256={digest}">{filename}</a>\n')


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Folder]:
    publish(tmp_path / "index/pytorch/torch", "torch", "2.13.0+cpu")
    publish(tmp_path / "index/ours/mypkg", "mypkg", "0.3.0")
    server = Folder(tmp_path / "index")
    yield server
    server.close()


def test_lock_upgrade_and_nightly(index: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "matrices").mkdir(parents=True)
    (project / "matrices/mine.yaml").write_text(MATRIX.format(url=index.url))
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_FIND_LINKS": "", "UV_FIND_LINKS": ""}
    env["IMAGEGEN_INDEX_PYTORCH_CPU"] = f"{index.url}/pytorch"
    monkeypatch.setattr(base, "resolve", lambda *_: committed("cpu-grpo-cpu-py311").base)

    def run(command: click.Command, *arguments: str) -> str:
        ended = CliRunner().invoke(command, ["mine", *arguments], obj=App(env, project))
        assert ended.exit_code == 0, (ended.stderr, ended.exception)
        return ended.stdout

    def locked() -> dict[str, tuple[str, str]]:
        wheels = lock.read(project / "locks" / f"{CELL}.toml").wheels
        return {wheel.name: (wheel.file.index, wheel.version) for wheel in wheels if wheel.name != "pip"}

    run(lock_command.command, "--upgrade")
    assert locked() == {"mypkg": ("ours", "0.3.0"), "torch": ("pytorch-cpu", "2.13.0+cpu")}
    publish(tmp_path / "index/ours/mypkg", "mypkg", "0.4.0")
    (outcome,) = json.loads(run(nightly_command.command, "--propose-only", "--json"))
    assert outcome["result"] == "proposed"
    assert locked() == {"mypkg": ("ours", "0.4.0"), "torch": ("pytorch-cpu", "2.13.0+cpu")}
    publish(tmp_path / "index/ours/mypkg", "mypkg", "0.5.0")
    run(lock_command.command, "--upgrade")
    assert locked() == {"mypkg": ("ours", "0.5.0"), "torch": ("pytorch-cpu", "2.13.0+cpu")}
