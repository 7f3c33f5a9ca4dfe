"""Count ten sentence patterns that make a text hard to read, in Markdown pages and in Python sources.

    python tools/sentences.py docs README.md     # counts, and rates per 1,000 words
    python tools/sentences.py -v docs            # each hit with file and line
    python tools/sentences.py --code imagegen    # docstrings, comments and messages

Markdown: code blocks, code spans, tables, headings and addresses of links do not count. Python: programs that run in
containers do not count, because their bytes are keys.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# What to write instead is in the comment.
PATTERNS = {
    "alone": r"(?<!stand )(?<!stands )(?<!leave )(?<!left )\balone\b",  # only
    "beside": r"\bbeside\b",  # next to, with, in addition to
    "that of": r"\bth(?:at|ose) of\b",  # the noun again
    "splice": r"(?<=[\w)'\"]): (?-i:it|they|the|there)\b",  # because, so, or a new sentence
    "free what": r"\bwhat (?!\w+:)",  # a noun; indirect questions ("shows what it does") do not count
    "in place of": r"\bin place of\b",  # instead of
    "is no": r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b)",  # is not a
    "where": r", where\b",  # if
    "Of": r"(?-i:\bOf\b)",  # the subject first
    "as it stands": r"\bas (?:it stands|they stand|it is|they are)\b",  # unchanged
}
_PATTERN = re.compile("|".join(f"({pattern})" for pattern in PATTERNS.values()), re.IGNORECASE)
# Words before an indirect question.
_ASKING = re.compile(
    r"\b(?:about|affects?|and|asks?|checks?|clear|decides?|defines?|depends? on|describes?|describing|determines?"
    r"|documents?|exactly|explains?|knows?|known|learn|lists?|measures?|names?|notes?|on|or|prints?|records?|recorded"
    r"|reports?|says?|see|shows?|shown|states?|tells?|understand) $",
    re.IGNORECASE,
)
_TERM = re.compile(r"\*\*[^*]+\*\*(?: \(`\))?")  # of a list of definitions
_WORD = re.compile(r"[A-Za-z][\w'-]*")


@dataclass(frozen=True)
class Prose:
    """A paragraph of a file, with its line breaks; `line` is the number of its first line."""

    path: Path
    line: int
    text: str


@dataclass(frozen=True)
class Hit:
    """An occurrence of a pattern, with the words around it."""

    pattern: str
    path: Path
    line: int
    excerpt: str


def markdown_prose(path: Path) -> Iterator[Prose]:
    """Yield the paragraphs and list items of a Markdown page, without code, tables, headings and addresses."""
    lines: list[str] = []
    start = 0
    fenced = False
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        is_fence = line.lstrip().startswith(("```", "~~~"))
        fenced ^= is_fence
        code = is_fence or fenced or (line.startswith("    ") and not lines)
        item = re.match(r"\s*(?:[-*+]|\d+\.) ", line)
        if lines and (code or item or not line.strip() or line.startswith(("#", "|", "<!--"))):
            yield Prose(path, start, _without_code(" ".join(lines)))
            lines = []
        if not code and line.strip() and not line.startswith(("#", "|", "<!--")):
            start = start if lines else number
            lines.append(line[item.end() :] if item else line.strip())


def python_prose(path: Path) -> Iterator[Prose]:
    """Yield the docstrings, comments and messages of a Python module.

    A message is a string with a space between two words, other than a docstring. A value in an f-string counts as a
    code span.
    """
    source = path.read_text()
    for line, comment in _comments(source):
        yield Prose(path, line, _without_code(comment))
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            docstring := ast.get_docstring(node)
        ):
            skipped.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield Prose(path, node.body[0].lineno, _without_code(docstring))
        elif id(node) not in skipped and (message := _message(node)):
            skipped.update(id(part) for part in ast.walk(node))
            yield Prose(path, node.lineno, _without_code(" ".join(message.split())))  # type: ignore[attr-defined]


def _message(node: ast.AST) -> str:
    match node:
        case ast.JoinedStr(values=values):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in values)
        case ast.Constant(value=str(text)):
            pass
        case _:
            return ""
    return text if re.search(r"[a-z`] [a-z`]", text) else ""


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment with its line; consecutive lines of comments are one."""
    first, last = 0, -1
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1 and lines:
            yield first, "\n".join(lines)
            lines = []
        first, last = (first if lines else token.start[0]), token.start[0]
        lines.append(token.string.lstrip("#! "))
    if lines:
        yield first, "\n".join(lines)


def _without_code(text: str) -> str:
    text = re.sub(r"(`+).*?\1", lambda span: "`" + "\n" * span[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def hits(prose: Prose) -> Iterator[Hit]:
    """Yield the occurrences of the patterns in a paragraph."""
    text = prose.text.replace("\n", " ")
    for match in _PATTERN.finditer(text):
        pattern = list(PATTERNS)[(match.lastindex or 1) - 1]
        before, after = text[: match.start()], text[match.start() :]
        if pattern == "free what" and (_ASKING.search(before) or re.match(r"[^.;:]*\?", after)):
            continue
        if pattern == "splice" and _TERM.fullmatch(before):
            continue
        line = prose.line + prose.text.count("\n", 0, match.start())
        yield Hit(pattern, prose.path, line, f"{before[-40:]}{after[:50]}")


def count_words(paragraphs: Iterable[Prose]) -> int:
    """Return the number of words of some paragraphs."""
    return sum(len(_WORD.findall(prose.text)) for prose in paragraphs)


def rates(paragraphs: Iterable[Prose]) -> dict[str, float]:
    """Return how often each pattern occurs in 1,000 words."""
    paragraphs = list(paragraphs)
    words = count_words(paragraphs) or 1
    counts = Counter(hit.pattern for prose in paragraphs for hit in hits(prose))
    return {pattern: 1000 * counts[pattern] / words for pattern in PATTERNS}


def files_under(paths: Iterable[Path], suffix: str) -> list[Path]:
    """Return the files with a suffix that paths name, or that lie in directories that paths name."""
    files = {file for path in paths for file in (path.rglob(f"*{suffix}") if path.is_dir() else [path])}
    return sorted(file for file in files if "checks" not in file.parts)


def main() -> None:
    """Print counts and rates, and with -v each hit."""
    parser = argparse.ArgumentParser(description="Count ten sentence patterns that make a text hard to read.")
    parser.add_argument("paths", nargs="+", type=Path, help="files or directories")
    parser.add_argument("--code", action="store_true", help="read Python sources, not Markdown")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each hit")
    arguments = parser.parse_args()
    read: Callable[[Path], Iterator[Prose]] = python_prose if arguments.code else markdown_prose
    paragraphs = [
        prose for path in files_under(arguments.paths, ".py" if arguments.code else ".md") for prose in read(path)
    ]
    occurrences = [hit for prose in paragraphs for hit in hits(prose)]
    if arguments.verbose:
        for hit in occurrences:
            print(f"{hit.path}:{hit.line}: {hit.pattern}: {hit.excerpt}")
    counts = Counter(hit.pattern for hit in occurrences)
    print(f"{count_words(paragraphs)} words")
    for pattern, rate in rates(paragraphs).items():
        print(f"{pattern:14}{counts[pattern]:6}{rate:8.2f} per 1,000 words")


if __name__ == "__main__":
    main()
