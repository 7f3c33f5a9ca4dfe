"""`imagegen nightly`: what it prints, and what it answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from imagegen import lock
from imagegen.app.nightly import changes, update
from imagegen.app.nightly.propose import Proposal
from imagegen.app.publisher import PublishJob
from imagegen.app.session import Session
from imagegen.cli import nightly_command
from imagegen.cli.app import App
from imagegen.core.data import shipped
from imagegen.core.errors import FetchError, Location, TrustError
from imagegen.spec.model import Cell
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.nightly_project import Toy
from tests.support.signing_keys import PUBLIC
from tests.support.wheelhouse_machine import Machine


class Project(Machine):
    """A project with two locked cells of one image, and one that is not locked; `toys` say what is new for each."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "")
        self.toys = {name: Toy(root / f"toy-{name}", torch="", peft="<3") for name in ("a", "b", "c")}
        for name, toy in self.toys.items():
            toy.cell = replace(toy.cell, id=name)
            toy.first = replace(toy.first, cell=name)
        for name in ("a", "b"):
            lock.write(self.toys[name].first, root / "locks" / f"{name}.toml")
        self.toys["a"].releases["peft"] += ["2", "3"]

    def app_with_cells(self) -> App:
        app = self.app
        cells = tuple(toy.cell for toy in self.toys.values())
        app.session.matrices.matrix = SimpleNamespace(  # type: ignore[assignment]
            all_cells=cells,
            image_places={cell.image: Location(shipped("matrices") / "x.yaml") for cell in cells},
            cells=lambda: cells,
            select=lambda pattern, **_: [each for each in cells if pattern in ("*", each.id)],
            on_platforms=lambda cell, platforms: cells[:2],
        )
        return app

    def nightly(self, *arguments: str) -> tuple[int, str, str]:
        return self.run(nightly_command.command, *arguments, app=self.app_with_cells())

    def version(self, name: str) -> str:
        locked = lock.read(self.root / "locks" / f"{name}.toml")
        return next(each.version for each in locked.packages if each.name == "peft")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path)

    def propose(session: Session, time: str, _: object, cell: Cell) -> Proposal:
        if cell.id == "b" and not project.toys["b"].releases:
            raise FetchError("an index does not answer", fix="try again")
        return replace(project.toys[cell.id].propose(session.lock_files.find(cell)), as_of=time)

    monkeypatch.setattr(update, "propose_cell", propose)
    return project


def test_updates_are_printed_and_written(project: Project, golden: Golden) -> None:
    code, out, _ = project.nightly("--propose-only", "--as-of", "2026-06-09")
    assert code == 0
    head, _, table = out.partition("\n\ncell ")
    written = (project.root / "locks" / changes.FILE).read_text()
    assert head.strip() in written
    assert "## 2026-06-09 a\n" in written
    assert "- peft 1 -> 2\n" in written
    golden.check(written)
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["a", "proposed"], ["b", "unchanged"]]
    assert project.version("a") == "2"


def test_a_terminal_gets_no_markup(project: Project, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(nightly_command, "writes_to_terminal", lambda: True)
    _, out, _ = project.nightly("--propose-only", "--as-of", "2026-06-09")
    assert out.startswith("2026-06-09 a\n  peft 1 -> 2\n")
    golden.check(out)
    assert not set("#\\") & set(out) and "<!--" not in out


def test_the_same_again_leaves_everything(project: Project) -> None:
    project.nightly("--propose-only", "--as-of", "2026-06-09")
    before = {path: path.read_bytes() for path in (project.root / "locks").iterdir()}
    code, out, _ = project.nightly("a", "--propose-only", "--as-of", "2026-06-09", "--json")
    (sections,) = json.loads(out)
    assert (code, sections["result"], sections["proposal"]["changed"], sections["proposal"]["moved"]) == (
        0,
        "unchanged",
        False,
        [],
    )
    assert sections["proposal"]["held"][0]["newer"] == "3"
    assert {path: path.read_bytes() for path in (project.root / "locks").iterdir()} == before


def test_a_cell_that_fails_is_named_and_the_others_go_on(project: Project, golden: Golden) -> None:
    project.toys["b"].releases = {}
    code, out, said = project.nightly("--propose-only", "--json", "--as-of", "2026-06-09")
    assert code == 1, said
    sections = {each["cell"]: each for each in json.loads(out)}
    assert {name: each["result"] for name, each in sections.items()} == {"a": "proposed", "b": "failed"}
    golden.check(sections["b"]["error"], said)
    code, out, said = project.nightly("--propose-only", "--as-of", "2026-06-09")
    assert "b     failed" in out
    golden.check(said)


@pytest.mark.parametrize("option", [["--no-test"], ["--require-gpu"], ["--to", "ghcr.io/acme/rl"], ["--key", "k"]])
def test_a_proposal_alone_takes_no_word_about_publishing(project: Project, option: list[str]) -> None:
    with raises("usage-option-conflict"):
        project.nightly("--propose-only", *option)


def test_a_time_that_has_not_come(project: Project) -> None:
    with raises("lock-cutoff-in-future"):
        project.nightly("--propose-only", "--as-of", "2999-01-01")


def test_gpus_cannot_be_required_of_no_checks(project: Project) -> None:
    with raises("usage-option-conflict"):
        project.nightly("--no-test", "--require-gpu")


def test_where_nothing_is_locked(project: Project) -> None:
    for path in (project.root / "locks").iterdir():
        path.unlink()
    with raises("lock-missing"):
        project.nightly("--propose-only")


def test_a_cell_without_a_lock_is_skipped(project: Project) -> None:
    with raises("lock-missing"):
        project.nightly("c", "--propose-only")


def test_an_unusable_key_is_reported_before_anything_is_resolved(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "propose_cell", lambda *_: pytest.fail("it was resolved"))
    untrusted, locked = project.root / "stranger.key", project.root / "locked.key"
    plain = serialization.NoEncryption(), serialization.BestAvailableEncryption(b"another")
    for path, encryption in zip((untrusted, locked), plain, strict=True):
        private = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8
        path.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, encryption))
        path.chmod(0o600)
    (project.root / "release.pub").write_text(PUBLIC)
    (project.root / "publish.yaml").write_text("publish: {keys: {release: release.pub}}\n")
    for name, said in (
        (project.root / "none.key", "the signing key cannot be read"),
        (locked, "the signing key cannot be opened"),
        (untrusted, "publish.yaml does not name this signing key"),
    ):
        with pytest.raises(TrustError, match=said):
            project.nightly("--to", "ghcr.io/acme/rl", "--key", str(name))


def test_the_images_of_an_index_are_updated_together(project: Project) -> None:
    code, out, _ = project.nightly("a", "--platform", "all", "--propose-only", "--json")
    assert (code, [each["cell"] for each in json.loads(out)]) == (0, ["a", "b"])
    (project.root / "locks/b.toml").unlink()
    with raises("lock-missing", where=str(project.root / "locks/b.toml")):
        project.nightly("a", "--platform", "all", "--propose-only")
    with raises("lock-missing", where=str(project.root / "locks/b.toml")):  # not left out without a word
        project.nightly("--platform", "all", "--propose-only")


@pytest.mark.parametrize(
    ("standing", "test", "answer"),
    [
        ({"fixed": 1, "nightly": 1}, True, True),
        ({"fixed": 1, "nightly": 0}, True, False),
        ({"fixed": 1, "nightly": 0}, False, True),
        ({"fixed": None}, False, False),
    ],
)
def test_published_is_what_all_tags_of_the_run_stand_for(
    project: Project, standing: dict[str, int | None], test: bool, answer: bool
) -> None:
    made = project.toys["a"].first
    assert made.record
    digests = {1: made.record.digest, 0: "sha256:" + "9" * 64, None: None}
    tags = SimpleNamespace(immutable="fixed", mutable=("nightly",))
    cell = project.toys["a"].cell
    publisher = SimpleNamespace(
        session=project.app.session,
        options=SimpleNamespace(test=test),
        jobs=lambda _: [PublishJob(cell, made, tags, expected=made.record.digest)],
        reference=lambda image: image,
        repository=lambda *_: SimpleNamespace(resolve_tag=lambda tag: digests[standing[tag]]),
    )
    found = update.is_published(publisher, [(cell, made)])  # type: ignore[arg-type]
    assert found is answer
