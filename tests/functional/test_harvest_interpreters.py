"""tools.harvest --interpreters: a release's SHA256SUMS becomes entries of matrices/interpreters.yaml."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen import spec as matrix
from imagegen.cli import main
from imagegen.spec.foundation import InterpreterFile
from tests.support import command_line
from tests.support.http_server import Loopback
from tests.support.matrix_samples import SHIPPED
from tools.harvest.__main__ import command
from tools.harvest.interpreters import parse

RELEASE = "20270101"
TAIL = "unknown-linux-gnu-install_only_stripped.tar.gz"


def line(digit: str, version: str, machine: str = "x86_64", tail: str = TAIL, release: str = RELEASE) -> str:
    return f"{digit * 64}  cpython-{version}+{release}-{machine}-{tail}\n"


SUMS = (
    line("1", "3.9.30") + line("2", "3.12.15") + line("3", "3.12.9") + line("4", "3.12.15", "aarch64")
    + line("5", "3.12.15", tail="unknown-linux-musl-install_only_stripped.tar.gz") + line("6", "3.15.0a1")
    + line("7", "3.12.15", tail="unknown-linux-gnu-install_only.tar.gz") + line("8", "3.12.16", release="20260101")
    + line("9", "3.16.0") + "no line\n"
)  # fmt: skip


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served" / RELEASE).mkdir(parents=True)
    (tmp_path / "served" / RELEASE / "SHA256SUMS").write_text(SUMS)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = Loopback(partial(Quiet, directory=str(tmp_path / "served")))
    yield f"http://{server.host}/"
    server.close()


Run = Callable[..., tuple[object, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, address: str) -> Run:
    command_line.keep_signals(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", address)
    (tmp_path / "project/matrices").mkdir(parents=True)

    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["imagegen", "--project", str(tmp_path / "project"), *arguments])
        with pytest.raises(SystemExit) as ended:
            main(command)
        return ended.value.code, capsys.readouterr().out

    return run


def test_the_newest_of_each_minor_version_is_taken() -> None:
    first, second = parse(SUMS, RELEASE)
    assert (first.name, first.version, second.name) == ("standalone-3.12", "3.12.15", "standalone-3.16")
    path = f"{RELEASE}/cpython-3.12.15%2B{RELEASE}"
    assert first.files == {
        "linux/amd64": InterpreterFile(f"{path}-x86_64-{TAIL}", "2" * 64),
        "linux/arm64": InterpreterFile(f"{path}-aarch64-{TAIL}", "4" * 64),
    }


def test_a_release_becomes_entries_that_override_those_shipped(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "project/matrices/interpreters.yaml"
    path.write_text("interpreters:\n  standalone-3.12:\n    override: true\n    x: y\n  mine-3.1:\n    z: y\n")
    code, out = run("--interpreters", RELEASE, "--json")
    assert code == 0
    result = {"release": RELEASE, "versions": ["3.12.15", "3.16.0"], "path": str(path), "written": True}
    assert json.loads(out) == result
    text = path.read_text()
    assert (text.count("standalone-3.12:"), text.count("override: true"), text.count("z: y")) == (1, 1, 1)
    path.write_text(text.replace("  mine-3.1:\n    z: y\n", ""))
    found = matrix.load([SHIPPED, path.parent]).interpreters
    assert (found["standalone-3.12"].version, found["standalone-3.12"].release) == ("3.12.15", RELEASE)
    assert found["standalone-3.16"].files["linux/amd64"].sha256 == "9" * 64
    assert found["standalone-3.11"].release == "20260814"


def test_an_unchanged_release_leaves_the_file_as_it_is(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "project/matrices/interpreters.yaml"
    assert run("--interpreters", RELEASE)[0] == 0
    path.write_text(path.read_text().replace('date: "20', 'date: "19'))
    before = path.read_bytes()
    code, out = run("--interpreters", RELEASE, "--json")
    assert (code, json.loads(out)["written"], path.read_bytes()) == (0, False, before)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--interpreters", "19990101"), 68), (("--interpreters", RELEASE, "torch"), 64),
     (("--interpreters", RELEASE, "--torch-exports", "2.16.0"), 64)],
)  # fmt: skip
def test_what_cannot_be_harvested_is_refused(run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    assert run(*arguments)[0] == code
    assert not list((tmp_path / "project/matrices").iterdir())


def test_a_release_that_lists_nothing_of_use_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "served" / RELEASE / "SHA256SUMS").write_text("no such line\n")
    assert run("--interpreters", RELEASE)[0] == 68


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_any_text_is_read(sums: str) -> None:
    assert list(parse(sums, RELEASE)) == []
