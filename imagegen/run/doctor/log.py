"""Explain a log with the known messages, the messages of rules and the undefined symbols; report the rest."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from packaging.utils import canonicalize_name

from imagegen.checks.preflight.model import Finding
from imagegen.compat.models import Models
from imagegen.compat.rule import Rule
from imagegen.core.text import counted
from imagegen.run.doctor.messages import explain_messages
from imagegen.run.doctor.symbols import explain_symbols

LONGEST_LOG = 16 << 20  # characters of a log that are read
UNKNOWN = "unknown"  # the level of a log, or of a traceback in it, without an explanation
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_LONGEST = 20_000  # characters of a traceback that are examined, from its start and before its end
_MOST = 20  # tracebacks that are examined
_SHOWN = 3  # tracebacks, rules and versions in a finding
_CLASS = re.compile(r"\w{1,60}(?:Error|Exception): ")
# torch==2.8.0+cu128, "vllm 0.11.0", "torch version: 2.8.0", flash_attn-2.8.3.dist-info; CUDA and the driver likewise
_VERSION = re.compile(
    r"(?<![\w.-])([A-Za-z][A-Za-z0-9_.-]{0,60}?)(?:==|-|:? ?[Vv]ersion:? |[ :]{1,2})v?(\d{1,4}(?:\.\d{1,8}){1,3}"
    r"(?:(?:a|b|rc|\.post|\.dev)\d{1,4})?(?:\+[A-Za-z0-9]{1,20}(?:\.[A-Za-z0-9]{1,20}){0,4})?)(?![\w])"
)


def explain_log(
    log: str, models: Models, rules: Sequence[Rule] = (), packages: Collection[str] = (), machine: str | None = None
) -> list[Finding]:
    """Return the findings about a log, explanations first, then the part without explanation.

    Args:
        log: the text.
        models: the model types, which messages name.
        rules: the rules whose messages are searched.
        packages: normalised names whose versions in the log become part of a suggested question.
        machine: the processor of the machine that wrote the log, if it is known.
    """
    explained = [*explain_symbols(log, machine=machine), *_explain(log, models, rules)]
    unknown = unexplained(log, models, rules)
    if explained and not unknown:
        return explained
    text = f"no explanation is known for {unknown or 'it'}"
    return [*explained, Finding("log", UNKNOWN, text, _question(log, packages))]


def _explain(log: str, models: Models, rules: Sequence[Rule]) -> list[Finding]:
    return [*explain_messages(log, models), *explain_rules(log, rules)]


def explain_rules(log: str, rules: Sequence[Rule]) -> Iterator[Finding]:
    """Yield a finding for each message of rules that is in the log, unless a known message explains it."""
    plain = " ".join(log.split())
    by_message: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.message:
            by_message.setdefault(" ".join(_CLASS.sub("", rule.message, count=1).split()), []).append(rule)
    for message, meant in by_message.items():
        if message in plain and not explain_messages(message, Models("")):
            shown = meant[:_SHOWN]
            text = " Or: ".join(f"{rule.reason} [{rule.id}; {rule.source}, {rule.date}]" for rule in shown)
            yield Finding("log", "error", text, " Or: ".join(dict.fromkeys(rule.fix for rule in shown)))


def unexplained(log: str, models: Models, rules: Sequence[Rule]) -> str:
    """Describe the tracebacks of a log that have no explanation; return "" if there are none."""
    lines: list[str] = []
    for number, (text, line) in enumerate(_tracebacks(log)):
        if number < _MOST and line not in lines and not (_explain(text, models, rules) or [*explain_symbols(text)]):
            lines.append(line)
    if not lines:
        return ""
    ellipsis = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return f"{counted(len(lines), 'traceback')}: {'; '.join(lines[:_SHOWN])}{ellipsis}"


def _tracebacks(log: str) -> Iterator[tuple[str, str]]:
    """Yield each distinct traceback, with the tracebacks that it is chained to, and the line of its exception."""
    starts = [match.start() for match in _TRACEBACK.finditer(log)]
    first: int | None = None
    seen: set[str] = set()
    for start, end in pairwise([*starts, len(log)]):
        first = start if first is None else first
        if end < len(log) and any(text in log[start:end] for text in _CHAINED):
            continue
        line, stop = _exception(log, start, end)
        if line not in seen:
            seen.add(line)
            text = log[first:stop]
            yield text if len(text) <= 2 * _LONGEST else f"{text[:_LONGEST]}\n{text[-_LONGEST:]}", line
        first = None


def _exception(log: str, start: int, end: int) -> tuple[str, int]:
    """Return the line of the exception of a traceback, and the position at which its message ends.

    It is the first line that is not indented further than the word "Traceback", which may stand behind a prefix.
    """
    prefix = start - (log.rfind("\n", 0, start) + 1)
    position = start
    for line in log[start : min(end, start + 10 * _LONGEST)].splitlines(keepends=True):
        body = line[prefix:] if position != start else ""
        if body.strip() and not body[0].isspace():
            return body.strip()[:200], min(end, position + len(line) + 500)
        position += len(line)
    return "a traceback that is cut off", min(end, position)


def _question(log: str, packages: Collection[str]) -> str:
    """Return a suggestion: `imagegen why` with the versions that the log names."""
    versions: dict[str, str] = {}
    for match in _VERSION.finditer(log):
        name = canonicalize_name(match[1])
        if name in packages:
            versions.setdefault(name, match[2])
        elif name in ("cuda", "driver"):
            versions.setdefault(name, ".".join(match[2].split(".")[:2]))
    words = " ".join(f"{name}=={version}" for name, version in versions.items())
    if words:
        return f"`imagegen why {words}` answers about the versions that the text names"
    return "`imagegen why` with the versions of its packages, as in `imagegen why torch==2.8.0 vllm==0.11.0`"
