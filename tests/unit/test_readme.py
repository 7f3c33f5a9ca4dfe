"""The README is correct: its matrix loads, its commands, options, targets and links exist."""

from __future__ import annotations

import functools
import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest

from imagegen import spec as matrix
from imagegen.app.states import MEANINGS, cell_state
from imagegen.checks.smoke.table import applicable
from imagegen.cli.commands import cli
from imagegen.compat import CellAnswer, MetadataCache, load_table
from imagegen.compat.knowledge import Knowledge
from imagegen.core.data import shipped
from imagegen.core.progress import human
from imagegen.image.layers.plan import SUPPORT
from imagegen.lock import local_tags
from imagegen.run.smoke import parts
from imagegen.spec.cell_facts import cell_answers
from tests.support.matrix_samples import shipped_matrix
from tests.support.shipped_locks import NAMES, shipped_lock

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name not in ("internals", "reference")]
COMMAND = re.compile(r"^    (?:\$ )?(imagegen [a-z].*)$", re.MULTILINE)
LINES = [line for path in (ROOT / "README.md", *PAGES) for line in COMMAND.findall(path.read_text())]


def test_the_example_is_a_matrix(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(# matrices/.*?)```", README, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(textwrap.dedent(example))
    (cell,) = matrix.load([shipped("matrices"), tmp_path]).select("my-rl")
    assert {need.component.name for need in cell.requirements} == {"torch", "transformers", "pip"}


def test_commands_and_options_exist() -> None:
    for line in LINES:
        words = shlex.split(line, comments=True)
        command, context = cli.get_command(click.Context(cli), words[1]), click.Context(cli)
        while isinstance(command, click.Group):
            command = command.get_command(context, words[2])
            del words[2]
        assert command is not None, line
        options = {word for word in words if word.startswith("-")}
        assert options <= {option for parameter in command.params for option in parameter.opts}, line


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
def _standings() -> dict[str, CellAnswer]:
    loaded = shipped_matrix()
    cells = [loaded.select(image)[0] for image in loaded.defaults]
    library = MetadataCache(lambda package: load_table([shipped("matrices")], package))
    return cell_answers(cells, Knowledge(loaded.rules, library))


def test_the_states_are_explained() -> None:
    assert re.findall(r"^- `([a-z ]+)`: (.*)$", README, re.MULTILINE) == list(MEANINGS.items())


def test_figures_are_those_of_the_locks() -> None:
    small, flagship = shipped_lock("cpu-grpo-cpu-py311"), shipped_lock("blackwell-vllm-cu130-py311")
    assert small.record and flagship.record
    size, tag = sum(layer.size for layer in small.record.layers), local_tags(small)[1]
    checks = applicable(parts(small))
    skipped = sum(check.device == "cuda" for check in checks)
    for page in (README, *((ROOT / "docs" / name).read_text() for name in ("index.md", "tutorials/first-image.md"))):
        assert f"fetching {len(small.wheels)} wheels" in page
        assert f"from {len(small.debs)} packages" in page
        assert f"load {tag}: {human(size)}\n" in page
        assert f"{len(checks) - skipped} pass, {skipped} skip\n" in page
        assert f"    {small.record.digest}\n" in page
    layers = flagship.record.layers
    total = human(sum(layer.size for layer in layers))
    assert f"# {len(flagship.wheels)} wheels, {len(layers)} layers, {total}\n" in README
    nightly = (ROOT / "docs/tutorials/publish-nightly.md").read_text()
    assert f"image     {small.record.digest}\n" in nightly
    assert f"{len(small.record.layers)} layers, {human(size)}: " in nightly
    records = [record for name in NAMES if (record := shipped_lock(name).record)]
    support = [layer.size for record in records for layer in record.layers if layer.name == SUPPORT]
    assert max(support) < 65_000  # as README, publish.md and decision 2 say


def test_make_targets_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text()
        if path.name != "CHANGELOG.md":
            for target in re.findall(r"`make ([a-z][a-z-]*)|^    make ([a-z][a-z-]*)", text, re.MULTILINE):
                assert re.search(rf"^{''.join(target)}:", makefile, re.MULTILINE), (path.name, target)
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
            target = path.parent / link if link else path
            assert target.exists(), (path.name, link)
            assert not anchor or anchor in _anchors(target.read_text()), (path.name, link, anchor)


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
