"""`imagegen import` and `init` as users run them: what is printed, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagegen.projects import requirements
from tests.support.command_line import Run
from tests.support.golden import Golden

UV_LOCK = 'version = {}\nrequires-python = ">=3.11"\n'


def test_import_prints_what_the_entry_lacks(run: Run, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==2.3.5\ngit+https://token@example.org/b.git#egg=b\n")
    ended = run("import", str(tmp_path / "requirements.txt"), "--name", "my-rl")
    assert ended.code == 0
    assert "requirements.txt:2" in ended.out
    assert "token" not in ended.out
    golden.check(ended.out)
    assert "my-rl-cpu-py311" in run("list", "my-rl").out


def test_import_prints_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==2.3.5\n-e .\n")
    ended = run("import", str(tmp_path / "requirements.txt"), "--name", "my-rl", "--json")
    document = json.loads(ended.out)
    assert (document["cell"], document["packages"], document["missing"]) == ("my-rl-cpu-py311", 1, 1)
    assert [each["package"] for each in document["omissions"]] == [True]


def test_final_stages_that_were_not_chosen_are_named(run: Run, tmp_path: Path, golden: Golden) -> None:
    text = "FROM debian:12 AS base\nRUN pip install numpy\nFROM base AS tests\nFROM base\n"
    (tmp_path / "Dockerfile").write_text(text)
    ended = run("import", str(tmp_path / "Dockerfile"), "--name", "my-rl")
    assert "(--target STAGE): tests\n" in ended.out
    (tmp_path / "Dockerfile").write_text(f"{text}FROM scratch AS status\n")  # as NVIDIA-NeMo/RL has one
    ended = run("import", str(tmp_path / "Dockerfile"), "--name", "my-rl")
    assert (ended.code, ended.out) == (81, "")
    golden.check(ended.err)
    ended = run("import", str(tmp_path / "Dockerfile"), "--name", "my-rl", "--target", "tests", "--json")
    assert json.loads(ended.out)["other_stages"] == ["2", "status"]


def test_init_imports_the_first_file_of_the_project(run: Run, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    ended = run("init", "--name", "my-rl")
    assert ended.code == 0
    assert "Dockerfile" in ended.err
    assert (tmp_path / "matrices/my-rl.yaml").read_text().count("#") > 3


def test_memory_that_runs_out_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    monkeypatch.setattr(requirements, "read_text", lambda *_: exec("raise MemoryError"))
    ended = run("import", str(tmp_path / "requirements.txt"), "--name", "my-rl")
    assert ended.code == 82
    assert "error[memory]: `imagegen import`" in ended.err
    assert "requirements.RequirementsReader.read" in ended.err


@pytest.mark.parametrize(
    ("name", "content", "options", "exit_code", "code"),
    [
        ("requirements.txt", "numpy\n--frobnicate\n", [], 81, "project-malformed"),
        (
            "requirements.txt",
            f"a --hash=sha256:{'a' * 64}\na --hash=sha256:{'b' * 64}\n",
            [],
            81,
            "project-malformed",
        ),
        ("requirements.txt", "-e .\n", [], 81, "project-malformed"),
        ("pyproject.toml", f"[project]\n{'a.' * 100_000}a = 1\n", [], 81, "project-malformed"),
        ("pylock.toml", f"lock-version = {'9' * 5000}\n", [], 81, "project-malformed"),
        ("uv.lock", UV_LOCK.format(1) + f"x.{'y.' * 50_000}z = 1\n", [], 67, "lock-uv-lock-malformed"),
        ("requirements.txt", "numpy\n", ["--extra", "x"], 64, "usage-option-conflict"),
        ("requirements.txt", "numpy\n", ["--target", "x"], 64, "usage-option-conflict"),
        ("Dockerfile", "FROM debian:12\n", ["--extra", "x"], 64, "usage-option-conflict"),
        ("Dockerfile", "FROM debian:12 AS a\n", ["--target", "x"], 64, "usage-unknown-stage"),
        ("uv.lock", UV_LOCK.format(2), [], 67, "lock-uv-lock-malformed"),
        ("uv.lock", UV_LOCK.format(1), [], 81, "project-malformed"),
        ("pylock.toml", 'lock-version = "9.0"\n', [], 81, "project-malformed"),
        ("pyproject.toml", '[project]\nname = "x"\ndynamic = ["dependencies"]\n', [], 81, "project-malformed"),
        ("environment.yml", "dependencies:\n  - numpy=1|2\n", [], 81, "project-malformed"),
        ("setup.py", "", [], 64, "usage-unknown-file"),
        ("requirements.txt", None, [], 81, "project-unreadable"),
    ],
)
def test_bad_input_is_an_error_with_its_place(
    run: Run, tmp_path: Path, name: str, content: str | None, options: list[str], exit_code: int, code: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    before = sorted((tmp_path / "matrices").iterdir())
    ended = run("import", str(tmp_path / name), "--name", "my-rl", *options)
    assert ended.code == exit_code
    assert ended.err.startswith(f"error[{code}]: ")
    assert name in ended.err
    assert ended.out == ""
    assert sorted((tmp_path / "matrices").iterdir()) == before
