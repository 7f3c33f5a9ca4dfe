"""A strict reader of Dockerfiles: what BuildKit's parser makes of a text, and nothing guessed.

Source: Dockerfile reference ("Parser directives", "Escape", "Here-documents", "Environment replacement") and
frontend/dockerfile/parser/parser.go of BuildKit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#\s*[a-zA-Z][a-zA-Z0-9]*\s*=")
_CONTINUED = re.compile(r"([^\\])\\[ \t]*$|^\\[ \t]*$")
_HEREDOC = re.compile(r"<<(-?)([\"']?)([A-Za-z0-9_]+)\2")


@dataclass(frozen=True)
class Instruction:
    """One instruction with its here-documents' bodies, each line with its newline."""

    name: str
    value: str
    documents: tuple[str, ...] = ()


def instructions(text: str) -> list[Instruction]:
    """Raises AssertionError where a text is not plainly one list of instructions."""
    lines = text.split("\n")
    assert lines.pop() == "", "the last line has no newline"
    assert not _DIRECTIVE.match(lines[0]), "a parser directive"
    found = []
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while match := _CONTINUED.search(line):
            line = line[: match.start() + len(match[1] or "")] + lines[position]
            position += 1
        name, _, value = line.partition(" ")
        assert re.fullmatch(r"[A-Z]+", name), f"no instruction: {line!r}"
        documents = []
        for dash, quote, word in _HEREDOC.findall(value) if name in ("RUN", "COPY", "ADD") else ():
            assert quote, "the shell would expand the document"
            assert not dash, "tabs would go"
            end = lines.index(word, position)
            documents.append("".join(f"{each}\n" for each in lines[position:end]))
            position = end + 1
        found.append(Instruction(name, value, tuple(documents)))
    return found


def assignment(value: str) -> tuple[str, str]:
    """The one name and value that ENV or LABEL sets; a `$` that would be replaced is refused."""
    match = re.fullmatch(r'([A-Za-z0-9_.-]+)="((?:[^"\\$]|\\["\\$])*)"', value)
    assert match, f"not one quoted assignment: {value!r}"
    return match[1], re.sub(r"\\(.)", r"\1", match[2])
