"""The answer of `imagegen why --lock` as text and as a document for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from imagegen.app.why_file import FileAnswer
from imagegen.compat.answer_text import as_dict, as_text
from imagegen.core.text import counted, shown
from imagegen.projects.model import PackagePin

_LISTED = 8  # packages on one line


def file_answer_as_text(answer: FileAnswer) -> str:
    """Return the verdict, the conflicts with the lines of the pins, and the packages that were not examined."""
    texts = {name: ", ".join(map(str, locations)) for name, locations in answer.locations.items()}
    conflicts = tuple(
        replace(conflict, facts={name: _with_location(text, texts.get(name)) for name, text in conflict.facts.items()})
        for conflict in answer.answer.explanation.conflicts
    )
    explanation = replace(answer.answer.explanation, conflicts=conflicts)
    verdict, *blocks = as_text(answer.answer._replace(explanation=explanation)).split("\n\n")
    facts, total = answer.answer.question.facts, len(answer.recovered.pins) + len(answer.omissions)
    python, platform = facts.versions["python"].text, facts.names["platform"]
    verdict += f"\n  examined: {answer.examined} of {counted(total, 'package')}, for Python {python} on {platform}"
    return "\n\n".join([verdict, *blocks, *_block(_not_examined(answer)), *_block(_not_chosen(answer))])


def _with_location(text: str, location: str | None) -> str:
    return f"{text} ({location})" if location else text


def _block(lines: Iterable[str]) -> list[str]:
    return ["\n".join(block)] if (block := list(lines)) else []


def _not_examined(answer: FileAnswer) -> Iterator[str]:
    """Yield a line for each group of packages that were not examined."""
    groups = [
        ("package", "of which nothing is known here", [pin.package for pin in answer.unknown]),
        ("release", "not known here", [f"{pin.package}{pin.specifier}" for pin in answer.unread]),
    ]
    reasons = dict.fromkeys(omission.why for omission in answer.omissions)
    for reason in reasons:
        omissions = [omission for omission in answer.omissions if omission.why == reason]
        groups.append(
            (
                "statement",
                reason,
                [f"{omission.what.partition(' of ')[0]} ({omission.place})" for omission in omissions],
            )
        )
    for noun, reason, names in groups:
        if names:
            suffix = f" and {len(names) - _LISTED} more (--json lists all)" if len(names) > _LISTED else ""
            yield f"not examined: {counted(len(names), noun)}, {reason}: {', '.join(names[:_LISTED])}{suffix}"


def _not_chosen(answer: FileAnswer) -> Iterator[str]:
    if answer.recovered.other_extras:
        yield f"extras not chosen (--extra NAME): {', '.join(answer.recovered.other_extras)}"
    if answer.recovered.other_stages:
        yield f"final stages not chosen (--target STAGE): {', '.join(answer.recovered.other_stages)}"


def file_answer_as_dict(answer: FileAnswer) -> dict[str, Any]:
    """Return the document of `imagegen why --json` with the file's lines and the packages that were not examined."""
    document, locations = as_dict(answer.answer), answer.locations
    for conflict in document["conflicts"]:
        conflict["places"] = {name: _texts(locations[name]) for name in conflict["components"] if name in locations}
    file = answer.answer.question.file
    return {
        **document,
        "file": {
            "path": file and file.path,
            "packages": len(answer.recovered.pins) + len(answer.omissions),
            "examined": answer.examined,
            "not_examined": {
                "packages": [_pin(pin) for pin in answer.unknown],
                "releases": [_pin(pin) for pin in answer.unread],
                "statements": [
                    {"where": str(omission.place), "what": shown(omission.what), "why": shown(omission.why)}
                    for omission in answer.omissions
                ],
            },
            "other_extras": list(answer.recovered.other_extras),
            "other_stages": list(answer.recovered.other_stages),
        },
    }


def _pin(pin: PackagePin) -> dict[str, Any]:
    return {"name": pin.package, "specifier": pin.specifier, "places": _texts(pin.places)}


def _texts(locations: Iterable[object]) -> list[str]:
    return [str(location) for location in locations]
