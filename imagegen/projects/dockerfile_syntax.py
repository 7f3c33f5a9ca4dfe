"""Dockerfiles and the shell commands in them as words with line numbers; nothing runs.

Sources: Dockerfile reference ("Parser directives", "Escape", "Here-documents", "Environment replacement") and
frontend/dockerfile/parser/parser.go of BuildKit; POSIX.1-2024, "Shell Command Language", for words and operators.
"""

from __future__ import annotations

import io
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from imagegen.core.errors import Location
from imagegen.projects.model import malformed

INSTRUCTIONS = frozenset(
    [
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ]
)
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*+(.+)")
_HEREDOC = re.compile(r"(?<!<)<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2")
_VARIABLE = re.compile(r"\\\$|\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^{}]*))?\})")
# A comment begins where a word may; a # within a word, in quotes or behind a backslash begins none.
_QUOTED_OR_COMMENT = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"?|\\.|(?<![^\s;&|()])(?P<comment>\#[^\n]*)""", re.DOTALL)
_LONGEST_ARGUMENT = 1 << 17  # bytes of a shell's script or a variable: Linux's MAX_ARG_STRLEN
MAX_EXPANDED = 1 << 20  # characters that replace the variables of a Dockerfile
_OPERATORS = frozenset({";", "&", "&&", "|", "||", "(", ")", ";;", "\n"})
_REDIRECTION = re.compile(r"[&|]*[<>][<>&|]*")
_OPENING, _CLOSING = frozenset({"if", "case", "for", "while", "until"}), frozenset({"fi", "esac", "done"})
_RESERVED = _OPENING | _CLOSING | {"then", "else", "elif", "do", "{", "}", "!", "time"}


@dataclass(frozen=True)
class Piece:
    """The text of one line of a file."""

    line: int
    text: str


@dataclass(frozen=True)
class Instruction:
    """An instruction: its name in capitals, its value by lines, and the lines of its here-documents."""

    name: str
    line: int
    pieces: tuple[Piece, ...]
    document: tuple[Piece, ...] = ()

    @property
    def value(self) -> str:
        """The value with its continuation lines joined."""
        return "".join(piece.text for piece in self.pieces).strip()


@dataclass(frozen=True)
class Command:
    """A simple command of a shell: its words with variables replaced, and the line of each.

    `is_conditional`: whether it runs is known only when it runs. `unknown` are variables that have no known value.
    `output` is the file that its output is written to, "" where it is none. `source` are the words of the command whose
    output it reads.
    """

    words: tuple[str, ...]
    lines: tuple[int, ...]
    is_conditional: bool = False
    unknown: tuple[str, ...] = ()
    output: str = ""
    source: tuple[str, ...] = ()


def parse(text: str, path: Path) -> list[Instruction]:
    """Return the instructions of a Dockerfile. Raises ProjectFileError with the line that BuildKit rejects too."""
    lines = text.splitlines()
    escape = _escape(lines)
    instructions: list[Instruction] = []
    position = 0
    while position < len(lines):
        if not lines[position].strip() or lines[position].lstrip().startswith("#"):
            position += 1
            continue
        start = position
        pieces, position = _joined(lines, position, escape)
        name, _, arguments = pieces[0].text.strip().partition(" ")
        name = name.upper()
        if name not in INSTRUCTIONS:
            raise malformed(f"{name[:40]!r} is not an instruction of a Dockerfile", Location(path, start + 1))
        pieces[0] = Piece(pieces[0].line, arguments)
        document: list[Piece] = []
        if name in ("RUN", "COPY", "ADD"):
            for dash, _, word in _HEREDOC.findall("".join(piece.text for piece in pieces)):
                body, position = _document(lines, position, word, bool(dash), Location(path, start + 1))
                document += body
        instructions.append(Instruction(name, start + 1, tuple(pieces), tuple(document)))
    return instructions


def _escape(lines: list[str]) -> str:
    for line in lines:
        directive = _DIRECTIVE.fullmatch(line.strip())
        if not directive:
            break
        if directive[1].lower() == "escape":
            return directive[2]
    return "\\"


def _joined(lines: list[str], position: int, escape: str) -> tuple[list[Piece], int]:
    """Return the lines of an instruction, without comments and escapes, and the position behind them."""
    pieces: list[Piece] = []
    while position < len(lines):
        line, number = lines[position], position + 1
        position += 1
        if pieces and (not line.strip() or line.lstrip().startswith("#")):
            continue  # BuildKit leaves these out of an instruction
        stripped = line.rstrip()
        if not stripped.endswith(escape):
            pieces.append(Piece(number, line))
            break
        pieces.append(Piece(number, stripped[: -len(escape)]))
    return pieces, position


def _document(
    lines: list[str], position: int, word: str, strips_tabs: bool, where: Location
) -> tuple[list[Piece], int]:
    body: list[Piece] = []
    while position < len(lines):
        line = lines[position].lstrip("\t") if strips_tabs else lines[position]
        position += 1
        if line == word:
            return body, position
        body.append(Piece(position, f"{line}\n"))
    raise malformed(f"the here-document {word!r} does not end", where, fix=f"add a line that consists of {word}")


class Variables(dict[str, str]):
    """The values of ARG and ENV. All texts that they give are bounded together: `ENV A=$A$A` doubles a value."""

    _remaining = MAX_EXPANDED

    def expand(self, text: str, unknown: list[str], where: Location) -> str:
        """Return a text with $NAME, ${NAME}, ${NAME:-default} and ${NAME:+other} replaced; unknown names are appended.

        Raises ProjectFileError, at `where`, for more than MAX_EXPANDED characters in all.
        """

        def replaced(match: re.Match[str]) -> str:
            value = self._value(match, unknown)
            self._remaining -= len(value)
            if self._remaining < 0:
                why = f"the values that replace variables have more than {MAX_EXPANDED:,} characters in all"
                raise malformed("the variables are too long", where, why)
            return value

        return _VARIABLE.sub(replaced, text)

    def _value(self, match: re.Match[str], unknown: list[str]) -> str:
        name = match[1] or match[2]
        if name is None:
            return "$"
        value, operator, other = self.get(name), match[3], match[4] or ""
        is_set = bool(value) if operator and operator[0] == ":" else value is not None
        if operator and operator.endswith("-"):
            return value or "" if is_set else other
        if operator:
            return other if is_set else ""
        if value is None:
            unknown.append(name)
        return value or ""


def assignments(instruction: Instruction, path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield names and values of ARG, ENV and LABEL, variables not yet replaced; None for an ARG without a default.

    Raises ProjectFileError for quotes that do not end, and for more text than a process can get.
    """
    text = instruction.value
    _require_short(len(text), Location(path, instruction.line))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise malformed("a quote does not end", Location(path, instruction.line), str(error)) from error
    if instruction.name != "ARG" and words and "=" not in words[0]:
        name, _, value = text.partition(" ")
        yield name, value.strip()
        return
    for word in words:
        name, has_value, value = word.partition("=")
        yield name, value if has_value else None


def _require_short(length: int, where: Location) -> None:
    if length > _LONGEST_ARGUMENT:
        why = f"Linux passes no argument or variable of more than {_LONGEST_ARGUMENT:,} bytes"
        raise malformed("an instruction is too long", where, why, "split it, or copy a script")


def commands(pieces: tuple[Piece, ...], variables: Variables, path: Path) -> Iterator[Command]:
    """Yield the simple commands of a shell script.

    Raises ProjectFileError for quotes that do not end, and for more text than a shell can get.
    """
    depth = 0
    source: tuple[str, ...] = ()
    words: list[tuple[str, int]] = []
    _require_short(sum(len(piece.text) for piece in pieces), Location(path, pieces[0].line if pieces else None))
    for token, line in (*_tokens(pieces, path), ("\n", pieces[-1].line if pieces else 0)):
        if token not in _OPERATORS:
            words.append((token, line))
            continue
        start = 0
        while start < len(words) and (word := words[start][0]) in _RESERVED:
            depth = max(0, depth + (word in _OPENING) - (word in _CLOSING))
            start = len(words) if word in ("for", "case") else start + 1
        command = _command(words[start:], variables, depth > 0, path)
        if command:
            yield replace(command, source=source)
        source = command.words if command and token == "|" else ()  # noqa: S105 - a token of a shell
        words = []


def _tokens(pieces: tuple[Piece, ...], path: Path) -> Iterator[tuple[str, int]]:
    """Yield words and operators, each with its line; comments are left out."""
    text = _QUOTED_OR_COMMENT.sub(_blank, "".join(piece.text for piece in pieces))
    ends = list(accumulate(len(piece.text) for piece in pieces))
    stream = io.StringIO(text)
    lexer = shlex.shlex(stream, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    while True:
        try:
            token = lexer.get_token()
        except ValueError as error:
            line = pieces[0].line if pieces else None
            raise malformed("a quote of a shell command does not end", Location(path, line), str(error)) from error
        if token is None:
            return
        token_line = pieces[min(bisect_left(ends, stream.tell() - 1), len(pieces) - 1)].line
        is_end = "\n" in token and not token.strip("\n;&|()")
        yield "\n" if is_end else token, token_line


def _blank(match: re.Match[str]) -> str:
    """Return blanks instead of a comment or an escaped newline, and other text unchanged, so that positions stay."""
    return " " * len(match[0]) if match["comment"] or match[0] == "\\\n" else match[0]


def _command(words: list[tuple[str, int]], variables: Variables, is_conditional: bool, path: Path) -> Command | None:
    unknown: list[str] = []
    expanded_words: list[tuple[str, int]] = []
    output = ""
    skip = is_output = False
    for word, line in words:
        if _REDIRECTION.fullmatch(word):
            is_output = word in (">", ">>", ">|")
            if expanded_words and expanded_words[-1][0] in ("1", "2"):  # a file descriptor
                is_output &= expanded_words.pop()[0] == "1"
            skip = True
        elif skip:
            output = variables.expand(word, unknown, Location(path, line)) if is_output else output
            skip = False
        else:
            expanded = variables.expand(word, unknown, Location(path, line))
            expanded_words += [
                (text, line)
                for text in (expanded.split() if "$" in word and not re.search(r"\s", word) else [expanded])
            ]
    if not expanded_words:
        return None
    lines = tuple(line for _, line in expanded_words)
    return Command(tuple(word for word, _ in expanded_words), lines, is_conditional, tuple(unknown), output)
