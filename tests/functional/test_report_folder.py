"""The directory of a report, and git's history of its locks."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen import lock
from imagegen.app import lock_history, site
from imagegen.app.lock_difference import LockSummary, LockVerdict
from imagegen.app.lock_history import History
from imagegen.app.nightly import changes
from imagegen.app.nightly.changes import ChangelogSection
from imagegen.app.nightly.propose import RejectedUpdate
from imagegen.compare.difference import ComparisonFacts
from imagegen.core.git import log
from imagegen.lock.model import Lock
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.tiny_lock import LOCK

ONE = {"index.html": b"one", "cells/a.html": b"a"}
TWO = {"index.html": b"two"}


def there(directory: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert files.pop(site.MARK)
    return files


@pytest.mark.parametrize("exchanging", [True, False], ids=["exchange", "no exchange"])
def test_a_report_takes_the_place_of_an_earlier_one(
    exchanging: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanging:  # as on a file system without it
        monkeypatch.setattr(site, "RENAME_EXCHANGE", 1 << 30)
    directory = tmp_path / "new" / "site"
    site.replace_report(directory, ONE)
    assert there(directory) == ONE
    site.replace_report(directory, TWO)
    assert there(directory) == TWO
    assert [path.name for path in directory.parent.iterdir()] == ["site"]
    assert directory.stat().st_mode & 0o777 == 0o755


def test_an_empty_folder_will_do_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "site").symlink_to("real")
    site.replace_report(tmp_path / "site", ONE)
    site.replace_report(tmp_path / "site", TWO)
    assert (tmp_path / "site").is_symlink()
    assert there(tmp_path / "real") == TWO


@pytest.mark.parametrize("mark", [None, b"{}", b"[", b'{"files": ["index.html"]}'])
def test_what_no_report_wrote_is_not_touched(mark: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    (tmp_path / "CNAME").write_text("images.example.com")
    if mark:
        (tmp_path / site.MARK).write_bytes(mark)
    with raises("store-foreign-file") as failed:
        site.replace_report(tmp_path, ONE)
    assert "CNAME" in str(failed.value.why)
    assert (tmp_path / "index.html").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with raises("store-output-is-file"):
        site.replace_report(tmp_path / "file", ONE)


def test_who_cannot_finish_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "site"
    site.replace_report(directory, ONE)

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with raises("store-disk-full"):
        site.replace_report(directory, TWO)
    assert there(directory) == ONE
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_what_a_killed_run_left_goes(tmp_path: Path) -> None:
    (tmp_path / ".imagegen-tmp-abcdefgh").mkdir()
    site.replace_report(tmp_path / "site", ONE)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


Commit = Callable[[Lock | str, str], None]
NEXT = replace(LOCK, as_of="2026-11-27T00:00:00Z", wheels=tuple(each for each in LOCK.wheels if each.name != "numpy"))


@pytest.fixture
def committed(tmp_path: Path) -> Commit:
    """Commits a lock, or a text in its place, on a day."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    names = {f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    (tmp_path / "locks").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, env=env, check=True)

    def commit(content: Lock | str, day: str) -> None:
        path(tmp_path).write_text(content if isinstance(content, str) else lock.dumps(content))
        dates = {"GIT_AUTHOR_DATE": f"{day}T12:00:00Z", "GIT_COMMITTER_DATE": f"{day}T12:00:00Z"}
        for arguments in (["add", "."], ["commit", "-qm", "x"]):
            subprocess.run(["git", *arguments], cwd=tmp_path, env=env | names | dates, check=True)

    return commit


def path(root: Path) -> Path:
    return root / "locks" / "tiny-cpu-py311.toml"


def history(root: Path, now: Lock, *sections: ChangelogSection) -> History:
    folder = root / "locks"
    commits = log.commits(folder, path(root).name, 100, os.environ)
    versions = lock_history.read_versions(path(root), now, commits, os.environ)
    verdicts = [LockVerdict("no known conflict") if each.lock else None for each in versions]
    cut = log.shallow(folder, os.environ)
    return lock_history.history_of(versions, verdicts, sections, ComparisonFacts(), cut=cut)


def steps(root: Path, now: Lock, *sections: ChangelogSection) -> list[tuple[str, bool, tuple[str, ...]]]:
    found = history(root, now, *sections)
    return [(step.date, step.commit is not None, step.lines) for step in found.steps]


def test_history_is_what_git_has_and_what_is_not_committed(committed: Commit, tmp_path: Path) -> None:
    committed(LOCK, "2026-11-21")
    first = ("2026-11-21", True, ("locked for the first time",))
    assert steps(tmp_path, LOCK) == [first]
    later = ("numpy 2.4.6 is gone", "about 1 kB to pull")
    assert steps(tmp_path, NEXT) == [("2026-11-27", False, later), first]
    committed(NEXT, "2026-11-28")
    assert steps(tmp_path, NEXT) == [("2026-11-28", True, later), first]
    name = lock.inputs_hash(NEXT).removeprefix("sha256:")[:8]
    section = ChangelogSection("2026-11-27", "tiny-cpu-py311", "00000000", name, ("it \\<moved\\> \\*",))
    assert steps(tmp_path, NEXT, section) == [("2026-11-28", True, ("it <moved\\> *",)), first]


def test_a_lock_of_another_form_is_said_to_be_one(committed: Commit, tmp_path: Path, golden: Golden) -> None:
    committed("version = 0\n", "2026-11-21")
    committed(LOCK, "2026-11-22")
    (_, _, (new,)), (_, _, (old,)) = steps(tmp_path, LOCK)
    golden.check(new, old)


def test_the_page_shows_the_newest_steps(committed: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_history, "LONGEST", 1)
    committed(LOCK, "2026-11-21")
    committed(NEXT, "2026-11-28")
    found = history(tmp_path, NEXT)
    assert [step.date for step in found.steps] == ["2026-11-28"]
    assert found.older


def test_a_shallow_clone_does_not_know_what_was_first(committed: Commit, tmp_path: Path, golden: Golden) -> None:
    committed(LOCK, "2026-11-21")
    committed(NEXT, "2026-11-28")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{tmp_path}", str(clone)], check=True)
    golden.check(steps(clone, NEXT))
    found = history(clone, NEXT)
    assert found.missing
    assert [step.page for step in found.steps] == [""]


def test_no_repository_has_no_history(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "locks").mkdir()
    assert steps(tmp_path, LOCK) == []
    section = ChangelogSection("2026-11-27", "tiny-cpu-py311", "00000000", "11111111", ("torch is newer",))
    golden.check(steps(tmp_path, LOCK, section))


def test_a_change_has_a_page_of_its_day_and_a_number(committed: Commit, tmp_path: Path) -> None:
    committed(LOCK, "2026-11-21")
    committed(NEXT, "2026-11-21")
    committed(LOCK, "2026-11-28")
    again, gone, first = history(tmp_path, LOCK).steps
    assert [each.page for each in (again, gone, first)] == ["2026-11-28", "2026-11-21-2", ""]
    assert first.difference is None
    assert gone.difference and gone.lock and first.commit
    assert gone.difference.since == first.commit
    (numpy,) = gone.difference.packages
    assert (numpy.name, numpy.before, numpy.after, numpy.step, numpy.growth) == (
        "numpy", "2.4.6", None, "removed", -1000,
    )  # fmt: skip
    assert gone.difference.before.size == (gone.lock.size or 0) + 1000
    (pending, *_) = history(tmp_path, NEXT).steps
    assert (pending.page, pending.pending) == ("uncommitted", True)


def test_a_section_gives_a_page_where_git_gives_no_lock(committed: Commit, tmp_path: Path) -> None:
    committed("version = 0\n\n[[wheel]]\nsize = 5\n\n[wheel.sdist]\nsize = 9\n", "2026-11-21")
    committed(NEXT, "2026-11-28")
    name = lock.inputs_hash(NEXT).removeprefix("sha256:")[:8]
    section = ChangelogSection("2026-11-27", "tiny-cpu-py311", "0" * 8, name, ("numpy stays 2.4.6, not 3.0: trl \\<4",))
    new, old = history(tmp_path, NEXT, section).steps
    assert (new.page, new.difference, old.page) == ("2026-11-28", None, "")
    assert new.rejected == (RejectedUpdate("numpy", "2.4.6", "3.0", "trl <4"),)
    assert old.lock == LockSummary(5, 0, None)
    (tmp_path / "elsewhere" / "locks").mkdir(parents=True)
    (tmp_path / ".git").rename(tmp_path / "git")
    found = history(tmp_path / "elsewhere", NEXT, section)
    assert found.missing
    (alone,) = found.steps
    assert (alone.page, alone.lock, alone.rejected) == ("2026-11-27", None, new.rejected)


def test_a_repository_runs_nothing(committed: Commit, tmp_path: Path) -> None:
    committed(LOCK, "2026-11-21")
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "gpg.program", "core.sshCommand", "diff.external"):
        subprocess.run(["git", "config", name, str(program)], cwd=tmp_path, check=True)
    subprocess.run(["git", "config", "log.showSignature", "true"], cwd=tmp_path, check=True)
    assert steps(tmp_path, LOCK)
    assert not (tmp_path / "ran").exists()


def test_the_mark_names_the_files(tmp_path: Path) -> None:
    site.replace_report(tmp_path / "site", ONE)
    assert json.loads((tmp_path / "site" / site.MARK).read_bytes())["files"] == sorted(ONE)


@given(st.text(st.characters(codec="utf-8")))
def test_a_changelog_section_is_read_as_it_was_before_it_became_markdown(words: str) -> None:
    assert changes.plain(re.sub(r"([\\`*<\[])", r"\\\1", words)) == words
