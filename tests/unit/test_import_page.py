"""The example of docs/how-to/start-from-what-you-have.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagegen.app.import_project import FILES, Selection, import_project
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.progress import Quiet

pytestmark = pytest.mark.usefixtures("shared_results")
PAGE = (Path(__file__).parents[2] / "docs/how-to/start-from-what-you-have.md").read_text(encoding="utf-8")


def test_the_example_gives_the_image_of_the_page(tmp_path: Path) -> None:
    (example,) = re.findall(r"```text\n# requirements.txt\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "requirements.txt").write_text(example)
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path, Quiet()))
    imported = import_project(session, tmp_path / "requirements.txt", "my-rl", Selection())
    assert (imported.cell.base.name, imported.cell.cuda) == ("debian12-gpu", "cu128")
    assert [pin.package for pin in imported.found.pins] == ["torch", "vllm"]
    assert [each.what.split()[0] for each in imported.omissions] == ["rewards"]


def test_the_dockerfile_gives_the_image_of_the_page(tmp_path: Path) -> None:
    (example,) = re.findall(r"```text\n# Dockerfile\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "Dockerfile").write_text(example)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "app"\n')
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy/serve.sh").write_text("#!/bin/sh\n")
    (tmp_path / "deploy/serve.sh").chmod(0o755)
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path, Quiet()))
    imported = import_project(session, tmp_path / "Dockerfile", "my-rl", Selection())
    cell = imported.cell
    assert cell.cuda == "cu128"
    assert [each.component.package for each in cell.requirements] == ["app", "torch", "trl"]
    assert [each.path for each in cell.copies] == ["/usr/local/bin/serve.sh"]
    assert [each.name for each in cell.config] == ["entrypoint", "user", "workdir"]
    assert (list(cell.packages), [each.port for each in cell.ports]) == (["ffmpeg"], ["8000/tcp"])
    assert [each.place.line for each in imported.omissions] == [1, 4, 7]


def test_the_page_names_the_files_of_init_in_their_order() -> None:
    (listed,) = re.findall(r"`init` imports the first of (.*?), and names", PAGE, re.DOTALL)
    assert tuple(re.findall(r"`([\w.]+)`", listed)) == FILES
