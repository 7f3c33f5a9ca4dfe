"""What the README shows works: its matrix loads, its commands, options, targets and links exist."""

from __future__ import annotations

import functools
import re
import textwrap
from pathlib import Path

import click
import pytest

from imagegen.cli.commands import cli
from imagegen.core.data import shipped
from imagegen.plan import matrix
from imagegen.plan import rules as compat
from imagegen.plan.matrix import metadata
from imagegen.plan.rules import Standing
from imagegen.plan.state import MEANINGS, cell_state
from tests.unit.matrix_samples import shipped_matrix
from tests.unit.shipped_locks import NAMES, shipped_lock

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


_FAMILIES = ("ampere", "ada", "hopper", "blackwell")
_BLOCK = re.compile(r"(<!-- images: .*? -->\n)(.*?)(<!-- /images -->)", re.DOTALL)


def test_the_table_of_images_is_what_matrix_and_locks_say(request: pytest.FixtureRequest) -> None:
    rows = "".join(map(_row, shipped_matrix().defaults))
    table = f"| image | what it is | GPUs | CUDA | Python | state |\n|---|---|---|---|---|---|\n{rows}"
    if request.config.getoption("--update-golden"):
        (ROOT / "README.md").write_text(_BLOCK.sub(lambda found: found[1] + table + found[3], README))
    found = _BLOCK.search((ROOT / "README.md").read_text())
    assert found and found[2] == table, "`make tables` rewrites it; read the diff"


def _row(image: str) -> str:
    """An image's default cell. Its state is that of the repository: a test is recorded in a store."""
    (cell,) = shipped_matrix().select(image)
    locked = shipped_lock(cell.id) if cell.id in NAMES else None
    families = {gpu.family for gpu in cell.gpus}
    gpus = ", ".join(family.capitalize() for family in _FAMILIES if family in families)
    assert not families - set(_FAMILIES)
    columns = (f"`{image}`", cell.description, gpus or "none", cell.cuda_version or "none", cell.python)
    return f"| {' | '.join(columns)} | {cell_state(_standings()[cell.id], locked).name} |\n"


@functools.cache
def _standings() -> dict[str, Standing]:
    loaded = shipped_matrix()
    cells = [loaded.select(image)[0] for image in loaded.defaults]
    library = compat.Library(lambda package: metadata.load([shipped("matrices")], package))
    return compat.standings(cells, loaded.rules, library)


def test_the_states_are_explained() -> None:
    assert re.findall(r"^- `([a-z ]+)`: (.*)$", README, re.MULTILINE) == list(MEANINGS.items())


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
