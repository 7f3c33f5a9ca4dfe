"""The reference pages: generated ones match the code, written tables are complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import yaml

from imagegen.cli.commands import cli
from imagegen.image.layers.image_config import LABEL
from imagegen.trust.documents import KINDS
from imagegen.trust.provenance import BUILD_TYPE
from tests.support.reference_pages import leaves, pages

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
SOURCES = [path for path in sorted((ROOT / "imagegen").rglob("*.py")) if "checks" not in path.parts]
PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_gives(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"../../docs/reference/{name}", PAGES[name])


def strings() -> Iterator[str]:
    """Yield each string constant of the sources that is not a docstring."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_variable_is_listed() -> None:
    settings = ast.parse((ROOT / "imagegen/core/config.py").read_text())
    own = {text for text in strings() if re.fullmatch(r"_?IMAGEGEN_[A-Z_]+", text)}
    read = {each.value for each in ast.walk(settings) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    names = own | {text for text in read if re.fullmatch(r"[A-Z]+(_[A-Z]+)+_?", text)}
    assert len(names) > 20
    assert names <= set(re.findall(r"`(\w+?)(?:<|=|`)", (REFERENCE / "environment.md").read_text()))


def test_every_command_with_json_is_listed() -> None:
    names = {name for name, command in leaves(cli, "imagegen") if any("--json" in each.opts for each in command.params)}
    assert set(re.findall(r"^\| `(imagegen [a-z ]+)`", (REFERENCE / "json.md").read_text(), re.MULTILINE)) == names


def test_every_label_is_listed() -> None:
    text = (ROOT / "imagegen/image/layers/image_config.py").read_text().replace("{LABEL}", LABEL)
    names = {name.rstrip(".") for name in re.findall(r'"((?:dev\.imagegen|org\.opencontainers)\.[\w.]+)', text)}
    assert len(names) > 8
    assert names - {LABEL.rstrip(".")} == set(
        re.findall(r"^\| `([\w.]+?)(?:\.NAME)?`", (REFERENCE / "labels.md").read_text(), re.MULTILINE)
    )


def test_every_attestation_is_listed() -> None:
    rows = {(kind.name, kind.media_type, kind.predicate) for kind in KINDS.values() if kind.predicate}
    page = (REFERENCE / "attestations.md").read_text()
    assert rows <= set(re.findall(r"^\| (\w+) \| `([^`]+)` \| `([^`]+)` \|$", page, re.MULTILINE))
    assert BUILD_TYPE in page


def test_the_site_has_every_page() -> None:
    def pages_of(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from pages_of(each)

    listed = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))


def test_the_index_links_every_page() -> None:
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([^)#]+)", (docs / "index.md").read_text()))
    own = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    decisions = {name for name in own if re.match(r"adr/\d", name)}  # adr/index.md lists these
    assert linked == own - decisions - {"index.md"}


@pytest.mark.parametrize(("name", "command"), [("imagegen", cli), *leaves(cli, "imagegen")])
def test_no_help_shows_a_sign_that_is_for_click(name: str, command: click.Command) -> None:
    """Click reads a backspace as "do not wrap"; in a raw docstring it is two characters."""
    text = command.get_help(click.Context(command, info_name=name))
    assert [line for line in text.splitlines() if "\\" in line or not (line + " ").isprintable()] == []
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.name)
def test_no_page_shows_a_control_character(page: Path) -> None:
    assert not re.search(r"(?m)^\\b|[\x00-\x08]", page.read_text())
