"""Ask `imagegen doctor --log` about messages from threads, and count right and wrong explanations.

    python bench/log_truth.py [--list]

Reads bench/log_truth/messages.yaml and asks one message at a time, with the rules that the command loads. An
explanation is right if its id is one of the kinds of the message; one wrong explanation makes the answer wrong.
--list also prints the messages that are not explained rightly.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import yaml

from imagegen import compat, spec
from imagegen.checks.preflight.model import Finding
from imagegen.compat import import_names, package_names
from imagegen.compat.models import Models
from imagegen.compat.rule import Rule
from imagegen.core.data import shipped
from imagegen.run.doctor.log import explain_log
from imagegen.run.doctor.symbols import SYMBOLS

MESSAGES = Path(__file__).parent / "log_truth/messages.yaml"
DRAWS = ("first", "later", "last", "held", "final")
_ID = re.compile(r"\[([\w:.+-]+);")


@dataclass(frozen=True)
class Message:
    """A message of a thread. `kinds` are globs over the ids of right explanations; without one there is none."""

    source: str
    kinds: tuple[str, ...]
    message: str

    def judge(self, findings: Sequence[Finding]) -> str:
        """Return "right", "wrong" or "not known" for the findings about the message."""
        ids = [name for finding in findings if finding.severity == "error" for name in ids_of(finding)]
        if not ids:
            return "not known"
        return "right" if all(any(fnmatchcase(name, kind) for kind in self.kinds) for name in ids) else "wrong"


def ids_of(finding: Finding) -> list[str]:
    """Return the ids that a finding about a log names."""
    return ["torch-abi"] if finding.check == SYMBOLS else _ID.findall(finding.text)


def messages(draw: str) -> list[Message]:
    """Return the messages of a draw."""
    entries = yaml.safe_load(MESSAGES.read_bytes())[draw]
    return [Message(entry["source"], tuple(entry["kinds"]), entry["message"]) for entry in entries]


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules with messages, as `imagegen doctor --log` loads them."""
    directories = [shipped("matrices"), shipped("wheels")]
    users = sorted({*package_names.names(directories), *import_names.names(directories)})
    names = [rule for user in users for rule in compat.api_rules(directories, user)]
    return (*spec.load(directories).rules, *names)


def judged(draw: str) -> Iterator[tuple[Message, str]]:
    """Yield each message of a draw with the verdict on its answer."""
    for message in messages(draw):
        yield message, message.judge(explain_log(f"{message.message}\n", Models(""), rules()))


def main() -> None:
    """Print the counts of each draw."""
    for draw in DRAWS:
        verdicts = list(judged(draw))
        counts = Counter(verdict for _, verdict in verdicts)
        print(
            f"{draw}: {len(verdicts)} messages,",
            ", ".join(f"{counts[name]} {name}" for name in ("right", "wrong", "not known")),
        )
        for message, verdict in verdicts if "--list" in sys.argv else ():
            if verdict != "right":
                print(f"  {verdict}: {message.source}: {message.message[:100]}")


if __name__ == "__main__":
    main()
