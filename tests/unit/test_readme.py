"""What the README shows works: its matrix loads, its commands, options, targets and links exist."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import click
import pytest

from imagegen import matrix
from imagegen.cli.commands import cli
from imagegen.data import shipped

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TABLE = re.findall(r"^\| `imagegen (.+?)` \| (.*) \|$", README, re.MULTILINE)


def test_the_example_is_a_matrix(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(# matrices/.*?)```", README, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(textwrap.dedent(example))
    (cell,) = matrix.load([shipped("matrices"), tmp_path]).select("my-rl")
    assert {need.component.name for need in cell.requirements} == {"torch", "transformers", "pip"}


@pytest.mark.parametrize(("line", "text"), TABLE, ids=[line for line, _ in TABLE])
def test_commands_and_options_exist(line: str, text: str) -> None:
    name, *rest = line.replace("\\|", " ").split()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    parameters = list(command.params)
    if isinstance(command, click.Group):
        names = command.list_commands(click.Context(command))
        assert set(rest) == set(names)
        parts = [command.get_command(click.Context(command), each) for each in names]
        parameters += [parameter for part in parts if part for parameter in part.params]
    known = {option for parameter in parameters for option in parameter.opts}
    used = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", f"{line} {text}"))
    assert used <= known


def test_every_command_is_in_the_table() -> None:
    assert {line.split()[0] for line, _ in TABLE} == set(cli.list_commands(click.Context(cli)))


def test_make_targets_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    documents = {path: path.read_text() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")}
    for path, text in documents.items():
        for target in re.findall(r"\bmake ([a-z][a-z-]*)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (path.name, target)
        for link in re.findall(r"\]\((?!http)([^)]+)\)", text):
            assert (ROOT / link).exists(), (path.name, link)
