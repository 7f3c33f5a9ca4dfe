"""The catalogue of findings: complete, well formed, and what docs/reference/findings.md says."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from imagegen.audit import finding_texts
from imagegen.audit.model import Severity
from imagegen.core.errors import UsageError
from tests.support import finding_ids
from tests.support.golden import Golden

AUDIT = Path(finding_texts.__file__).parent


def test_every_id_has_an_entry_and_every_entry_an_id() -> None:
    ids = {name for path in sorted(AUDIT.rglob("*.py")) for name in finding_ids.of(path)}
    assert ids == set(finding_texts.catalogue())


def test_ids_are_followed_to_where_they_stand(tmp_path: Path, golden: Golden) -> None:
    module = tmp_path / "check.py"
    module.write_text("""
def check(subject):
    yield Finding(Severity.ERROR, "straight", "p")
    for severity, name in ((Severity.ERROR, "looped"), (Severity.INFO, "looped-too")):
        yield _of(severity, name)
    chosen = "this" if subject else "that"
    yield Finding(Severity.INFO, id=chosen)
    yield notes.add(Severity.ERROR, "noted")
    yield Finding(*judged(subject))

def judged(subject):
    return Severity.ERROR, "returned"

def _of(severity, name):
    return Finding(severity, name)

class Notes:
    def add(self, severity, id_):
        return Finding(severity, id_)
""")
    assert finding_ids.of(module) == {"straight", "looped", "looped-too", "this", "that", "noted", "returned"}
    module.write_text("def check(subject):\n    yield Finding(Severity.ERROR, subject.name)\n")
    with pytest.raises(AssertionError) as caught:
        finding_ids.of(module)
    golden.check(caught.value)


def test_entries_are_sentences_with_a_source() -> None:
    for name, entry in finding_texts.catalogue().items():
        assert not entry.title.endswith("."), name
        for text in (entry.meaning, entry.fix):
            assert text.endswith("."), (name, text)
        assert len(entry.title) <= 80, name


def test_an_entry_is_found_by_its_id_and_a_near_one_is_offered(golden: Golden) -> None:
    assert finding_texts.explain("unreadable").severity is Severity.WARNING
    with pytest.raises(UsageError) as failed:
        finding_texts.explain("unredable")
    golden.check(failed.value)
    with pytest.raises(UsageError) as failed:
        finding_texts.explain("")
    golden.check(failed.value)


ENTRY = "{severity: error, title: T, meaning: M., fix: F., source: S}"


def changed(old: str, new: str) -> dict[str, str]:
    return {"a.yaml": "one: " + ENTRY.replace(old, new)}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (changed("M.", "N.") | {"b.yaml": f"one: {ENTRY}"}, "b.yaml: one is in another file too"),
        ({"a.yaml": f"One: {ENTRY}"}, "One is not an id"),
        (changed("error", "fatal"), "'fatal' is not a valid Severity"),
        (changed("F.", '" "'), "is empty"),
        (changed("F.", '"\\e[2J"'), "holds the control character"),
        (changed("fix: F., ", ""), "one has the fields severity, title, meaning, source"),
        (changed("source", "sauce"), "one has the fields severity, title, meaning, fix, sauce"),
        ({"a.yaml": "- one"}, "a.yaml is not a mapping"),
    ],
)
def test_what_is_wrong_with_entries_is_found(
    files: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(finding_texts, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)):
        finding_texts.catalogue.__wrapped__()


HEAD = """\
# Findings

The findings of `imagegen audit`, each with its meaning, fix and source. The severity is the usual one; a finding may
state another. `imagegen audit --explain ID` shows the same text. `make findings` writes this page from
imagegen/audit/data/findings.

"""


def page() -> str:
    entries = finding_texts.catalogue()
    rows = "".join(
        f"| [{name}](#{name}) | {entry.severity} | {plain(entry.title)} |\n" for name, entry in entries.items()
    )
    text = f"{HEAD}| id | severity | |\n|---|---|---|\n{rows}"
    for name, entry in entries.items():
        meaning = f"{entry.title} ({entry.severity}). {entry.meaning}"
        paragraphs = [f"## {name}", meaning, f"What helps: {entry.fix}", f"Source: {entry.source}"]
        text += "".join(f"\n{folded(plain(paragraph))}\n" for paragraph in paragraphs)
    return text


def folded(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def plain(text: str) -> str:
    """`text` as Markdown that shows it as it is; backticks stay what they are."""
    pieces = text.split("`")
    return "`".join(re.sub(r"([*<|])", r"\\\1", piece) if n % 2 == 0 else piece for n, piece in enumerate(pieces))


def test_the_page_of_findings_is_what_the_catalogue_says(golden: Callable[[str, str], None]) -> None:
    golden("../../docs/reference/findings.md", page())
