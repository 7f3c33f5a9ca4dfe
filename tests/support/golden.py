"""Golden files: the texts that tests expect; `pytest --update-golden` writes them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from imagegen.core.errors import ImagegenError

DIRECTORY = Path(__file__).parents[1] / "golden"
OUTPUT = DIRECTORY / "output"  # one file a test module, with the texts that its tests check
_HEADER = re.compile(r"^==> (.*) <==\n", re.MULTILINE)
_DIGEST = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{40})(?![0-9a-f])|(?<=sha256:)[0-9a-f]{8,63}")


def render(value: object) -> str:
    """Return a value as text: the code of an error before its message, elements of a collection one a line."""
    match value:
        case ImagegenError():
            return f"{value.code}\n{value}"
        case Mapping():
            return "\n".join(f"{key}: {element}" for key, element in value.items())
        case str() | BaseException():
            return str(value)
        case set() | frozenset():
            return "\n".join(sorted(map(str, value)))
        case Iterable():
            return "\n".join(map(str, value))
    return str(value)


def stable(text: str, names: Mapping[str, object]) -> str:
    """Return `text` with placeholders for values that vary: those of `names`, digests, ports, seconds and today."""
    original = text
    for name, value in sorted(names.items(), key=lambda item: -len(str(item[1]))):
        text = text.replace(str(value), f"{{{name}}}")
    if text != original:  # the width of columns varies too
        text = re.sub(r"(?<=\S) {3,}(?=\S)|^ {9,}", "  ", text, flags=re.MULTILINE)
    digests = dict.fromkeys(_DIGEST.findall(text))
    for number, digest in enumerate(digests, 1):
        text = re.sub(rf"(?<![0-9a-f]){digest}(?![0-9a-f])", f"{{digest {number}}}", text)
    text = re.sub(r"\b(127\.0\.0\.1|localhost):\d{4,5}\b", r"\1:{port}", text)
    text = re.sub(r"(\{base\}/[a-z_]+)\d+", r"\1", text)  # pytest counts the directories of one name
    text = re.sub(r"(?<![\d.])\d+\.\d+ s\b", "{seconds} s", text)
    return re.sub(rf"\b{datetime.now(UTC):%Y-%m-%d}([T ][\d:.]+Z?)?|(?<= at )\d\d:\d\d:\d\d\b", "{now}", text)


def sections(text: str) -> dict[str, str]:
    """Return the sections of a golden file by their names."""
    _, *fields = _HEADER.split(text)
    return dict(zip(fields[::2], fields[1::2], strict=True))


class Golden:
    """The golden files of a test."""

    def __init__(self, item: pytest.Item, *, is_update: bool, names: Mapping[str, object]) -> None:
        self.name = item.name
        self.file = OUTPUT / item.path.parent.name / f"{item.path.stem}.txt"
        self.is_update = is_update
        self.names = names
        self.checks = 0

    def __call__(self, name: str, text: str) -> None:
        """Compare `text` with the file `name` of tests/golden/."""
        path = DIRECTORY / name
        if self.is_update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        _compare(path.read_text(encoding="utf-8"), text, str(path))

    def check(self, *values: object, **names: object) -> None:
        """Compare values with the next section of this test in the golden file of its module.

        Each of `names` is the name of a placeholder for a text that varies.
        """
        text = stable("\n".join(render(value).rstrip("\n") for value in values), {**names, **self.names})
        assert not _HEADER.search(text)
        text += "\n"
        self.checks += 1
        name = self.name if self.checks == 1 else f"{self.name} ({self.checks})"
        recorded = sections(self.file.read_text(encoding="utf-8")) if self.file.exists() else {}
        if self.is_update:
            recorded = self._with(recorded, name, text)
        _compare(recorded.get(name, ""), text, f"{self.file}: {name}")

    def _with(self, recorded: Mapping[str, str], name: str, text: str) -> dict[str, str]:
        """Write and return the sections with this one, and without those after it of an earlier state of the test."""
        later = re.compile(rf"{re.escape(self.name)}(?: \((\d+)\))?")
        sections = {
            key: section
            for key, section in recorded.items()
            if not (match := later.fullmatch(key)) or int(match[1] or 1) < self.checks
        } | {name: text}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(
            "".join(f"==> {key} <==\n{section}" for key, section in sorted(sections.items())), encoding="utf-8"
        )
        return sections


def _compare(recorded: str, text: str, where: str) -> None:
    if recorded != text:
        lines = difflib.unified_diff(recorded.splitlines(), text.splitlines(), where, "this run", lineterm="")
        pytest.fail("\n".join([*lines, "`pytest --update-golden` rewrites it; read the diff"]), pytrace=False)
