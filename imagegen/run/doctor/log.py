"""Explain a log with the known messages, the messages of rules and the undefined symbols; report the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.audit.capability import releases
from imagegen.checks.preflight.model import Finding
from imagegen.compat.models import Models
from imagegen.compat.rule import Rule
from imagegen.core.text import counted
from imagegen.run.doctor.messages import find_messages, version_patterns
from imagegen.run.doctor.symbols import explain_symbols, symbols_of_torch

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
    r"(?<![\w.-])([A-Za-z][A-Za-z0-9_.-]{0,60}?)(?:==|-|:? ?[Vv]ersion:? |:? {1,40}|:)v?(\d{1,4}(?:\.\d{1,8}){1,3}"
    r"(?:(?:a|b|rc|\.post|\.dev)\d{1,4})?(?:\+[A-Za-z0-9]{1,20}(?:\.[A-Za-z0-9]{1,20}){0,4})?)(?![\w])"
)


def explain_log(
    log: str,
    models: Models,
    rules: Sequence[Rule] = (),
    packages: AbstractSet[str] = frozenset(),
    machine: str | None = None,
) -> list[Finding]:
    """Return the findings about a log: explanations, then the part without explanation, or the versions to ask about.

    Args:
        log: the text.
        models: the model types, which messages name.
        rules: the rules whose messages are searched.
        packages: normalised names whose versions in the log become part of a suggested question.
        machine: the processor of the machine that wrote the log, if it is known.
    """
    explained = _explain(log, models, rules, machine)
    words = _words(log, packages)
    question = f"`imagegen why {words or 'torch==2.8.0 vllm==0.11.0'}`"
    unknown = unexplained(log, models, rules)
    if not explained or unknown:
        effects = [message for message, _ in find_messages(log, effect=True)]
        text = "; ".join([f"no explanation is known for {unknown or 'it'}", *(effect.meaning for effect in effects)])
        about = "answers about the versions that the text names" if words else "with the versions of your packages"
        fix = "; ".join([*(effect.fix for effect in effects), f"{question} {about}"])
        return [*explained, Finding("log", UNKNOWN, text, fix)]
    note = Finding("log", "note", "the text names versions", f"{question} says whether they work together")
    return [*explained, note] if words else explained


def _explain(log: str, models: Models, rules: Sequence[Rule], machine: str | None = None) -> list[Finding]:
    """Return all explanations; a general one only for lines without the message of a rule."""
    meant = _rules_in(log, rules)
    fitting = {text: [rule for rule in about if _is_named(rule, log)] for text, about in meant.items()}
    findings = [*explain_symbols(log, machine=machine)]
    for message, match in find_messages(log):
        texts = [text for text in meant if message.general and text in _line(log, match.start(), match.end())]
        if not any(fitting[text] for text in texts):
            finding = message.explain(match, models)
            spans = {f"{name} {span}" for text in texts for rule in meant[text] for name, span in rule.conflict.items()}
            lacking = f"not {' or '.join(sorted(spans))}, which lacks it; " if spans else ""
            findings.append(finding._replace(fix=lacking + finding.fix))
    return findings + [_explain_rules(about) for about in fitting.values() if about]


def _is_named(rule: Rule, log: str) -> bool:
    """Return whether the log names the packages of a rule about imported names, which other packages import too."""
    plain = log.replace("_", "-")
    return not rule.id.startswith("api-") or any(
        re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", plain) for name in rule.when
    )


def _rules_in(log: str, rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    """Return the messages of rules that are in the log, with the rules.

    A known message that is not general explains its line; then the line must also name the packages of the rule.
    """
    plain = " ".join(log.split())
    by_message: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.message:
            by_message.setdefault(" ".join(_CLASS.sub("", rule.message, count=1).split()), []).append(rule)
    meant: dict[str, list[Rule]] = {}
    for message, candidates in by_message.items():
        if message in plain and not symbols_of_torch(message):
            fitting = candidates
            if any(not entry.general for entry, _ in find_messages(message)):
                lines = [line.replace("_", "-") for line in log.splitlines() if message in " ".join(line.split())]
                fitting = [rule for rule in candidates if any(name in line for name in rule.leaders for line in lines)]
            meant |= {message: fitting} if fitting else {}
    return meant


def _explain_rules(rules: Sequence[Rule]) -> Finding:
    shown = rules[:_SHOWN]
    text = " Or: ".join(f"{rule.reason} [{rule.id}; {rule.source}, {rule.date}]" for rule in shown)
    return Finding("log", "error", text, " Or: ".join(dict.fromkeys(rule.fix for rule in shown)))


def _line(log: str, start: int, end: int) -> str:
    """Return the lines around a part of the log, with single spaces."""
    stop = log.find("\n", end)
    return " ".join(log[log.rfind("\n", 0, start) + 1 : stop if stop >= 0 else len(log)].split())


def unexplained(log: str, models: Models, rules: Sequence[Rule]) -> str:
    """Describe the tracebacks of a log without an explanation, except effects; return "" if there are none."""
    lines: list[str] = []
    for number, (text, line) in enumerate(_tracebacks(log)):
        if number >= _MOST:
            break
        if line not in lines and not any(find_messages(line, effect=True)) and not _explain(text, models, rules):
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


def _words(log: str, packages: AbstractSet[str]) -> str:
    """Return the versions that the log names as words of a question: "torch==2.8.0 gpu==sm_120"."""
    versions: dict[str, str] = {}
    for match in _VERSION.finditer(log):
        name: str = canonicalize_name(match[1])
        if name in packages:
            versions.setdefault(name, match[2])
        elif name == "driver" or (name == "cuda" and "ersion" not in match[0]):  # nvidia-smi's is the driver's
            versions.setdefault(name, ".".join(match[2].split(".")[:2]))
    for name, pattern in version_patterns().items():
        if version := re.search(pattern, log):
            versions.setdefault(name, version[1])
    if number := versions.pop("driver-cuda", ""):  # 12020 is CUDA 12.2, which came with a branch of drivers
        cuda = Version(f"{int(number) // 1000}.{int(number) % 1000 // 10}")
        drivers = [release.driver for release in releases() if Version(release.cuda) <= cuda]
        versions.setdefault("driver", drivers[-1].partition(".")[0])
    if versions and not packages & versions.keys():
        versions = {"torch": "VERSION", **versions}
    return " ".join(f"{name}=={version}" for name, version in versions.items())
