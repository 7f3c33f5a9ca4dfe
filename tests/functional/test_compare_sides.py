"""Operands of a comparison as users write them: a cell, a lock, a lock of a commit, an image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from imagegen import lock as locks
from imagegen.cli import main
from imagegen.compare import references
from imagegen.compare.references import OperandSources
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, LockError, UsageError
from imagegen.core.git.log import commit_of, file_at
from imagegen.core.net import Client
from imagegen.core.store import Store
from imagegen.lock.model import PATCHED, Lock, WheelPatch
from imagegen.oci.documents import INDEX_TYPE, MANIFEST_TYPE, Descriptor, Platform, write_image_index
from imagegen.trust.documents import NUMERICS
from tests.support import command_line
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.published_image import Published, made
from tests.support.registry_server import StandIn
from tests.support.signing_keys import PUBLIC
from tests.support.tiny_lock import LOCK

CELL = LOCK.cell
TIMES = ("2026-11-19T00:00:00Z", "2026-11-20T00:00:00Z")


@dataclass
class Here:
    """A project in a repository: its lock was another in the first commit."""

    places: OperandSources
    project: Path
    lock: Lock


def git(project: Path, *arguments: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(project), "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(["git", *arguments], cwd=project, env=env, check=True, capture_output=True, text=True).stdout


def env_of(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "PATH": os.environ["PATH"]}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("repository")
    git(project, "init", "-q", "-b", "main")
    for as_of in TIMES:
        locks.write(replace(LOCK, as_of=as_of), project / "locks" / f"{CELL}.toml")
        git(project, "add", "-A")
        git(project, "commit", "-qm", as_of)
    return project


@pytest.fixture
def here(repository: Path, tmp_path: Path) -> Here:
    project = tmp_path / "project"
    shutil.copytree(repository, project)
    settings = Settings.from_environment(env_of(tmp_path))
    path = project / "locks" / f"{CELL}.toml"
    lock = locks.read(path)

    def cell(word: str) -> str | None:
        return CELL if word in ("tiny", CELL) else None

    def locked(_: str) -> tuple[Lock | None, Path]:
        return locks.read(path) if path.exists() else None, path

    store = Store(tmp_path / "store")
    places = OperandSources(
        project, settings, store, Client(settings, attempts=1), cell, locked, lambda: ["tiny", CELL], lambda *_: None
    )
    return Here(places, project, lock)


def test_a_cell_a_file_and_a_commit(here: Here) -> None:
    path = here.project / "locks" / f"{CELL}.toml"
    for text in ("tiny", CELL, str(path), "HEAD:tiny", "main:tiny", f"main:locks/{CELL}.toml"):
        side = references.read(text, here.places)
        assert side.lock == here.lock
        assert side.name == text
    before = references.read("HEAD~1:tiny", here.places)
    assert before.lock
    assert before.lock.as_of == "2026-11-19T00:00:00Z"
    commit = git(here.project, "rev-parse", "HEAD~1").strip()
    assert before.source == f"{CELL}.toml at {commit[:12]}"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("tinny", UsageError, 'is not a cell, a lock or an image\n  fix: did you mean "tiny"'),
        ("qqqq", UsageError, "or an image\n  fix: write an image with its registry: ghcr.io"),
        ("sha256:12", UsageError, '"sha256:12" is not a digest'),
        ("locks/nope.toml", LockError, "there is no lock file locks/nope.toml"),
        ("main:locks/nope.toml", LockError, "there is no lock file main:locks/nope.toml"),
        ("nope.toml", LockError, "there is no lock file nope.toml"),
        ("./nope", LockError, "there is no lock file ./nope"),
        ("HEAD~7:tiny", UsageError, 'no revision "HEAD~7"'),
        ("--output=x:tiny", UsageError, "no revision"),
        ("127.0.0.1:1/a/b", FetchError, "names no tag"),
        ("oci:/nonexistent", FetchError, "is not an OCI layout"),
        ("sha256:" + "0" * 64, FetchError, "the store has no blob"),
    ],
)
def test_what_is_not_there(text: str, error: type[Exception], words: str, here: Here) -> None:
    with pytest.raises(error, match=words):
        references.read(text, here.places)


@pytest.mark.parametrize(
    "revision", ["HEAD@{1.week.ago}", "main@{2026-11-19 10:00:00}", "@{yesterday}", "HEAD@{now}~1"]
)
def test_a_date_is_refused_since_git_looks_it_up_in_this_clones_history(revision: str, here: Here) -> None:
    git(here.project, "reflog", "expire", "--expire=now", "--all")
    git(here.project, "reset", "-q", "HEAD")  # as in a fresh clone
    with pytest.raises(UsageError) as raised:
        references.read(f"{revision}:tiny", here.places)
    assert "git rev-list -1 --before=" in str(raised.value.fix)


def test_an_entry_of_the_reflog_and_an_upstream_are_no_dates(here: Here) -> None:
    git(here.project, "config", "branch.main.remote", ".")
    git(here.project, "config", "branch.main.merge", "refs/heads/main")
    for name in ("HEAD@{0}", "main@{u}", "@{UPSTREAM}"):
        assert references.read(f"{name}:tiny", here.places).lock == here.lock
    with raises("usage-unknown-revision"):
        references.read("HEAD@{99}:tiny", here.places)


def test_a_cell_that_had_no_lock_then(here: Here) -> None:
    git(here.project, "rm", "-q", f"locks/{CELL}.toml")
    git(here.project, "commit", "-qm", "gone")
    with raises("lock-missing"):
        references.read("HEAD:tiny", here.places)
    with raises("lock-missing"):
        references.read("tiny", here.places)


def test_a_repository_runs_nothing(here: Here) -> None:
    """Reading a revision of an untrusted repository starts nothing that its configuration names."""
    mark = here.project / "ran"
    for name in ("core.fsmonitor", "diff.x.textconv", "filter.x.smudge", "core.pager"):
        git(here.project, "config", name, f"touch {mark}")
    (here.project / ".git/info/attributes").write_text("* diff=x filter=x\n")
    assert references.read("HEAD:tiny", here.places).lock
    assert not mark.exists()
    assert commit_of(here.project.parent, "HEAD", here.places.settings.env) is None
    assert file_at(here.project, "HEAD", "locks", here.places.settings.env) is None


@pytest.fixture
def published(here: Here) -> Iterator[Published]:
    with closing(StandIn()) as registry:
        lock, built = made(here.lock, here.places.store)
        yield Published(registry, lock, built, here.places.store)


def test_an_image_that_only_the_projects_lock_explains(here: Here, published: Published, golden: Golden) -> None:
    side = references.read(published.reference, here.places)
    assert side.lock == here.lock
    golden.check(side.source)
    assert [part.digest for part in side.layers or ()] == [each.digest for each in published.image.layers]
    locks.write(replace(here.lock, as_of="2026-11-18T00:00:00Z"), here.project / "locks" / f"{CELL}.toml")
    bare = references.read(published.reference, here.places)
    golden.check(bare.source)
    assert bare.lock is None


def test_the_image_of_a_platform_of_an_index(here: Here, published: Published) -> None:
    """Both sides may be images of one tag."""
    other = replace(here.lock, axes={**here.lock.axes, "platform": "linux/arm64"})
    beside = Published(published.registry, *made(other, here.places.store), here.places.store)
    images = {"linux/amd64": published.image, "linux/arm64": beside.image}
    index = write_image_index(
        {name: Descriptor(MANIFEST_TYPE, each.digest, len(each.manifest)) for name, each in images.items()}
    )
    published.registry.documents[published.manifest("1")] = INDEX_TYPE, index
    for name, image in images.items():
        assert references.read(published.reference, here.places, Platform(*name.split("/"))).digest == image.digest
    assert references.read(published.reference, here.places).digest == published.image.digest
    alone = f"{published.reference.removesuffix(':1')}@{published.image.digest}"
    for text in (published.reference, alone):
        with raises("fetch-wrong-platform"):
            references.read(text, here.places, Platform("linux", "riscv64"))
    with raises("usage-unknown-platform"):
        references.read("tiny", here.places, Platform("linux", "arm64"))
    assert references.read("tiny", here.places, Platform("linux", "amd64")).lock == here.lock


def test_a_layout_of_several_images(here: Here, published: Published, tmp_path: Path) -> None:
    name = published.layout(tmp_path / "out")
    assert references.read(name, here.places).digest == published.image.digest
    index = json.loads((tmp_path / "out/index.json").read_text())
    other = replace(here.lock, as_of="2026-11-18T00:00:00Z")
    _, second = made(other, here.places.store)
    for data in (second.manifest, second.config):
        digest = here.places.store.write(data).removeprefix("sha256:")
        (tmp_path / "out/blobs/sha256" / digest).write_bytes(data)
    entry = {**index["manifests"][0], "digest": second.digest, "size": len(second.manifest)}
    index["manifests"].append(entry | {"annotations": {"org.opencontainers.image.ref.name": "second"}})
    (tmp_path / "out/index.json").write_text(json.dumps(index))
    with raises("fetch-not-found"):
        references.read(name, here.places)
    assert references.read(f"{name}@{second.digest}", here.places).digest == second.digest
    with raises("fetch-not-found"):
        references.read(f"{name}@sha256:{'1' * 64}", here.places)
    (tmp_path / "out/index.json").write_text('{"manifests": 1}')
    with raises("fetch-not-a-layout"):
        references.read(name, here.places)


def measured(image: str) -> bytes:
    """The document of a result on an H200, of the image with this digest."""
    row = {"operation": "matmul", "implementation": "torch", "dtype": "float32", "sha256": "0", "samples": [1.0]}
    details = {"format": 1, "device": {"name": "H200", "driver": None}, "versions": {}, "operations": [row]}
    return json.dumps({"image": image, "results": {"H200": details}}).encode()


Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    for name, value in env_of(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command_line.keep_signals(monkeypatch)

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["imagegen", "--project", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run


def test_the_commands(run: Run, published: Published, tmp_path: Path, golden: Golden) -> None:
    """Through the command line: two lock files, and an image without an attached lock."""
    names = []
    for number, as_of in enumerate(("2026-11-19T00:00:00Z", "2026-11-20T00:00:00Z")):
        wheels = published.lock.wheels[number:]
        names.append(str(tmp_path / f"{number}.toml"))
        locks.write(replace(published.lock, as_of=as_of, wheels=wheels, record=None), Path(names[-1]))
    code, out, _ = run("diff", *names)
    assert code == 0
    first = published.lock.wheels[0]
    assert out.startswith(f"{first.name} {first.version} is gone")
    code, out, _ = run("diff", *names, "--json")
    result = json.loads(out)
    assert (result["same"], result["packages"][0]["name"], result["before"]["cell"]) == (False, first.name, CELL)
    *others, last = published.lock.wheels[1:]
    patch = WheelPatch("patches/a.patch", "1" * 64, 1, "It is broken.")
    file = replace(last.file, sha256="2" * 64, index=PATCHED, path=None)
    patched = replace(last, file=file, original=last.file, patches=(patch,))
    names.append(str(tmp_path / "patched.toml"))
    locks.write(replace(published.lock, wheels=(*others, patched), record=None), Path(names[-1]))
    code, out, _ = run("diff", *names[1:])
    assert out.startswith(f"{last.name} {last.version}: patches/a.patch is new")
    (row,) = (line for line in out.splitlines() if line.startswith(f"  {last.name}"))
    assert "patches/a.patch is new" in row
    for word, said in (("cpu-grpo", "is a cell, not an image"), (names[0], "is a file, not an image")):
        code, _, err = run("verify", word)
        assert (code, said in err) == (64, True)
    code, _, err = run("verify", "cpu-grop")
    golden.check(err)
    assert code == 64
    code, out, _ = run("verify", published.reference)
    assert code == 1
    golden.check(out)
    code, out, _ = run("verify", published.reference, "--json", "--no-layers")
    result = json.loads(out)
    assert (code, result["good"], result["digest"]) == (1, False, published.image.digest)
    golden.check(result["steps"])
    published.attach("numerics", NUMERICS.media_type, measured(published.image.digest))
    code, out, _ = run("diff", published.reference, published.reference, "--json")
    assert [each["equal"] for each in json.loads(out)["numerics"]["compared"]] == [1]
    code, out, _ = run("diff", published.reference, names[0])
    golden.check(out)
    assert code == 0
    published.attach("numerics", NUMERICS.media_type, measured("sha256:" + "7" * 64))
    code, out, _ = run("diff", published.reference, published.reference, "--json")
    assert json.loads(out)["numerics"] is None
    code, _, err = run("verify", published.reference, "--key", str(tmp_path / "none.pem"))
    golden.check(err)
    assert (code, "publish.yaml" in err) == (64, False)
    (tmp_path / "key.pem").write_text(PUBLIC)
    code, out, _ = run("verify", published.reference, "--key", str(tmp_path / "key.pem"))
    assert code == 1
    golden.check(out)
    code, out, _ = run("verify", published.reference, "--rebuild", "--no-layers")
    golden.check(out)
