"""`imagegen why --lock`: the answer about all pins of a file, with their lines, and what was not examined."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.app.import_project import Selection
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.app.why_file import answer_about_file
from imagegen.core.progress import Quiet
from imagegen.index_metadata import on_demand
from tests.support.command_line import Run
from tests.support.golden import Golden

PROJECT = {"vllm": "0.11.0", "torch": "2.9.1", "some-unknown": "1.0"}


@pytest.fixture(autouse=True)
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Return the packages that the index is asked about, one list a request; it has none."""
    requests: list[list[str]] = []

    def look_up(requested: Mapping[str, str], *_: object, **__: object) -> dict[str, Any]:
        requests.append(list(requested))
        return {}

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(on_demand, "look_up", look_up)
    return requests


def uv_lock(
    versions: Mapping[str, str],
    direct: Sequence[str] | None = None,
    *,
    python: str = ">=3.11",
    markers: Mapping[str, str] | None = None,
    manifest: str = "",
) -> str:
    """Return a uv.lock with these packages; `direct` (default: all) are those that the project requires itself."""
    direct = list(versions) if direct is None else list(direct)
    transitive = [name for name in versions if name not in direct]
    lines = ["version = 1", "revision = 3", f'requires-python = "{python}"', "", manifest]

    def edges(names: Sequence[str]) -> str:
        rows = (
            f'{{ name = "{name}"' + (f', marker = "{markers[name]}"' if name in (markers or {}) else "") + " }"
            for name in names
        )
        return f"dependencies = [{', '.join(rows)}]"

    packages = {
        name: [f'version = "{version}"', 'source = { registry = "https://index.example/simple" }']
        for name, version in versions.items()
    }
    packages["my-rl"] = ['version = "0.1"', 'source = { virtual = "." }', edges(direct)]
    if direct and transitive:
        packages[direct[0]].append(edges(transitive))
    for name, rows in packages.items():
        lines += ["[[package]]", f'name = "{name}"', *rows, ""]
    return "\n".join(lines)


def ask(run: Run, path: Path, *words: str) -> tuple[object, dict[str, Any]]:
    ended = run("why", "--lock", str(path), *words, "--json")
    return ended.code, json.loads(ended.out)


def without_dates(text: str) -> str:
    """Return an answer without the lines whose dates change when metadata is harvested."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("   source: "))


def lines_of(document: Mapping[str, Any], rule: str) -> dict[str, list[str]]:
    """Return the lines of each pin of the conflict with this rule."""
    return next(conflict["places"] for conflict in document["conflicts"] if conflict["rule"] == rule)


def test_a_lock_is_answered_with_lines_and_what_was_not_examined(run: Run, tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "uv.lock"
    path.write_text(uv_lock(PROJECT))
    ended = run("why", "--lock", "uv.lock")
    assert (ended.code, ended.err) == (1, "")
    golden.check(without_dates(ended.out))
    code, document = ask(run, path)
    assert (code, document["verdict"], document["file"]["examined"]) == (1, "incompatible", 2)
    text = path.read_text().splitlines()
    places = lines_of(document, "scan:vllm-0.11.0:torch")
    for name, (place,) in places.items():
        file, _, line = place.rpartition(":")
        assert (file, text[int(line)]) == ("uv.lock", f'name = "{name}"')
    assert set(places) == {"vllm", "torch"}
    assert [package["name"] for package in document["file"]["not_examined"]["packages"]] == ["some-unknown"]


def test_a_lock_without_a_conflict_has_none(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    path.write_text(uv_lock({**PROJECT, "torch": "2.8.0"}))
    code, document = ask(run, path)
    assert (code, document["verdict"], document["nearest"]) == (0, "compatible", [])


def test_words_change_the_file_and_say_what_it_runs_on(run: Run, tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "uv.lock"
    path.write_text(uv_lock(PROJECT))
    assert ask(run, path, "--set", "torch=2.8.0")[0] == 0
    assert ask(run, path, "torch==2.8.0")[0] == 0
    path.write_text(uv_lock({"torch": "2.6.0"}))
    assert ask(run, path, "H100")[0] == 0
    code, document = ask(run, path, "RTX 5090")
    assert (code, document["question"]["requested"]["gpu"]) == (1, "==sm_120")
    assert {"cuda-blackwell"} <= {conflict["rule"] for conflict in document["conflicts"]}
    golden.check(run("why", "--lock", "uv.lock", "--set", "torch=2.5.0", "RTX 5090").out.partition("\n")[0])


def test_a_proposal_keeps_only_what_the_project_requires_itself(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    versions = {"vllm": "0.11.0", "trl": "0.24.0", "torch": "2.8.0", "xformers": "0.0.32.post1", "depyf": "0.19.0"}
    path.write_text(uv_lock(versions, ["vllm", "trl"]))
    assert ask(run, path)[0] == 0
    code, document = ask(run, path, "--set", "vllm=0.12.0")
    assert code == 1
    assert {"trl": "==0.27.0"} in [combination["changes"] for combination in document["nearest"]]
    assert all("--lock" not in combination["command"] for combination in document["nearest"])


@pytest.mark.parametrize("word", ["py312", "python==3.12", "python==3.12.4", "python>=3.12"])
def test_markers_hold_for_the_python_and_the_platform_of_the_question(run: Run, tmp_path: Path, word: str) -> None:
    path = tmp_path / "uv.lock"
    markers = {"vllm": "python_full_version >= '3.12'", "torch": "platform_machine == 'x86_64'"}
    path.write_text(uv_lock(PROJECT, markers=markers))
    assert "vllm" not in ask(run, path)[1]["question"]["requested"]
    requested = ask(run, path, word)[1]["question"]["requested"]
    assert {"vllm", "torch"} <= requested.keys()
    assert requested["python"].startswith((">=3.12", "==3.12"))
    assert "torch" not in ask(run, path, word, "aarch64")[1]["question"]["requested"]


def test_an_override_of_the_project_is_no_refusal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    versions = {"trl": "0.24.0", "transformers": "4.55.0"}
    path.write_text(uv_lock(versions))
    assert ask(run, path)[1]["kind"] == "pip-refuses"
    path.write_text(
        uv_lock(versions, manifest='[manifest]\noverrides = [{ name = "transformers", specifier = "==4.55.0" }]\n')
    )
    assert ask(run, path)[0] == 0


def test_releases_that_are_not_known_are_named(run: Run, tmp_path: Path, requests: list[list[str]]) -> None:
    path = tmp_path / "uv.lock"
    path.write_text(uv_lock({"vllm": "99.0", "depyf": "99.0"}, ["vllm"]))
    code, document = ask(run, path)
    assert (code, document["verdict"]) == (2, "unknown")
    assert [release["name"] for release in document["file"]["not_examined"]["releases"]] == ["depyf", "vllm"]
    path.write_text(uv_lock({"trl": "0.24.0", "depyf": "99.0"}, ["trl"]))
    assert ask(run, path)[0] == 0
    assert {name for names in requests for name in names} == {"vllm"}


def test_the_index_is_asked_about_few_packages(run: Run, tmp_path: Path, requests: list[list[str]]) -> None:
    path = tmp_path / "requirements.txt"
    names = [f"unknown-{number}" for number in range(200)]
    path.write_text("\n".join(f"{name}==1.0" for name in names) + "\ntorch==2.8.0\n")
    code, document = ask(run, path)
    assert (code, document["file"]["examined"], requests) == (0, 1, [])
    assert len(document["file"]["not_examined"]["packages"]) == 200
    path.write_text("unknown-1==1.0\nunknown-2==1.0\ntorch==2.8.0\n")
    code, document = ask(run, path)
    assert (code, document["file"]["examined"]) == (0, 1)
    assert sorted({name for names in requests for name in names}) == ["unknown-1", "unknown-2"]
    requests.clear()
    (tmp_path / "uv.lock").write_text(uv_lock({"unknown-1": "1.0", "torch": "2.8.0"}))
    assert ask(run, tmp_path / "uv.lock")[0] == 0
    assert requests == []


def test_requirements_have_their_own_lines_and_index(run: Run, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "base.txt").write_text("# the server\nvllm==0.11.0\n")
    index = "--extra-index-url https://download.pytorch.org/whl/cu126"
    (tmp_path / "requirements.txt").write_text(f"{index}\n-r base.txt\ntorch==2.6.0\ngit+https://example.org/a/b\n")
    code, document = ask(run, tmp_path / "requirements.txt")
    assert code == 1
    places = {"torch": ["requirements.txt:3"], "vllm": ["base.txt:2"]}
    assert lines_of(document, "scan:vllm-0.11.0:torch") == places
    assert document["question"]["requested"]["cuda"] == "==12.6"
    golden.check(without_dates(run("why", "--lock", "requirements.txt").out))


def test_a_pylock_is_answered(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pylock.toml"
    packages = "".join(
        f'[[packages]]\nname = "{name}"\nversion = "{version}"\nindex = "https://index.example/simple"\n'
        f'[[packages.wheels]]\nname = "{name.replace("-", "_")}-{version}-py3-none-any.whl"\n'
        f'url = "https://example.org/{name.replace("-", "_")}-{version}-py3-none-any.whl"\n'
        f'hashes = {{ sha256 = "{"0" * 64}" }}\n'
        for name, version in PROJECT.items()
    )
    path.write_text(f'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">=3.12"\n{packages}')
    code, document = ask(run, path)
    assert (code, document["question"]["requested"]["python"]) == (1, "==3.12")
    assert lines_of(document, "scan:vllm-0.11.0:torch") == {"torch": ["pylock.toml:12"], "vllm": ["pylock.toml:4"]}


@pytest.mark.parametrize(
    ("base", "requested"),
    [
        ("nvcr.io/nvidia/pytorch:25.05-py3", {"base": "==nvidia/pytorch:25.05", "python": "==3.12"}),
        ("nvidia/cuda:12.8.1-devel-ubuntu20.04", {"base": "==ubuntu20.04", "python": "==3.11"}),
        ("vllm/vllm-openai:v0.11.0", {"vllm": "==0.11.0", "python": "==3.11"}),
        ("example.org/anything:latest", {"python": "==3.11"}),
    ],
)
def test_a_dockerfile_is_answered_on_its_base(run: Run, tmp_path: Path, base: str, requested: dict[str, str]) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN pip install transformers==4.57.1\n")
    document = ask(run, tmp_path / "Dockerfile")[1]
    assert document["question"]["requested"] == {"transformers": "==4.57.1", **requested}


def test_a_torch_of_the_base_that_pip_replaces_is_no_pin(run: Run, tmp_path: Path) -> None:
    text = "FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel\nRUN pip install {}\n"
    (tmp_path / "Dockerfile").write_text(text.format("vllm==0.11.0"))
    code, document = ask(run, tmp_path / "Dockerfile")
    assert (code, "torch" in document["question"]["requested"]) == (0, False)
    (tmp_path / "Dockerfile").write_text(text.format("trl==0.24.0"))
    code, document = ask(run, tmp_path / "Dockerfile")
    assert (code, document["question"]["requested"]["cuda"]) == (0, "==12.4")


def test_a_wheel_at_an_address_is_the_build_of_its_label(run: Run, tmp_path: Path) -> None:
    url = "https://github.com/vllm-project/vllm/releases/download/v0.26.0/vllm-0.26.0{}-cp38-abi3-manylinux_2_28_x86_64.whl"
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.11.0+cu128\nvllm==0.26.0\n")
    assert "scan:vllm-0.26.0:cuda" in {rule["rule"] for rule in ask(run, path)[1]["conflicts"]}
    for label, is_read in (("+cu129", True), ("+git02105d46c", False), ("", False)):
        path.write_text(f"torch==2.11.0+cu128\nvllm @ {url.format(label)}\n")
        code, document = ask(run, path)
        assert (code, document["question"]["requested"]["vllm"]) == (0, f"==0.26.0{label}")
        assert [release["name"] for release in document["file"]["not_examined"]["releases"]] == ["vllm"] * (not is_read)


def test_only_pins_of_other_packages_conflict(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    path.write_text(uv_lock({"torch": "2.11.0+cu128", "nvidia-cuda-nvcc-cu12": "12.9.86"}, ["torch"]))
    code, document = ask(run, path)
    assert (code, document["nearest"]) == (1, [])


def test_a_build_for_the_cpu_is_no_conflict(run: Run, tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock({"torch": "2.11.0+cpu", "transformers": "4.57.1"}))
    assert ask(run, tmp_path / "uv.lock")[0] == 0
    assert ask(run, tmp_path / "uv.lock", "H100")[0] == 1


@pytest.mark.parametrize(
    ("name", "content", "options", "exit_code", "code"),
    [
        ("uv.lock", None, [], 81, "project-unreadable"),
        ("no.lock", None, [], 81, "project-unreadable"),
        ("uv.lock", "version = 1\nrequires-python = '>=3.11'\n[[package", [], 67, "lock-uv-lock-malformed"),
        ("uv.lock", uv_lock({}), [], 81, "project-malformed"),
        ("uv.lock", uv_lock(PROJECT), ["python==3.10"], 81, "project-mismatch"),
        ("uv.lock", uv_lock(PROJECT), ["odd"], 64, "usage-option-conflict"),
        ("uv.lock", uv_lock(PROJECT), ["--target", "x"], 64, "usage-option-conflict"),
        ("uv.lock", uv_lock(PROJECT), ["--extra", "x"], 67, "lock-uv-lock-mismatch"),
        ("requirements.txt", "# nothing\n", [], 81, "project-malformed"),
        ("requirements.txt", "torch==2.8.0\ntorch==2.9.0\n", [], 81, "project-malformed"),
        ("poetry.lock", "", [], 64, "usage-unknown-file"),
        ("a.json", "{}", [], 64, "usage-unknown-file"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_with_its_place(
    run: Run, tmp_path: Path, name: str, content: str | None, options: list[str], exit_code: int, code: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    ended = run("why", "--lock", str(tmp_path / name), *options)
    assert (ended.code, ended.out) == (exit_code, "")
    assert ended.err.startswith(f"error[{code}]: ")


def test_a_tool_that_writes_another_kind_is_named(run: Run, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "poetry.lock").write_text("")
    golden.check(run("why", "--lock", "poetry.lock").err)
    (tmp_path / "uv.lock").write_text(uv_lock(PROJECT))
    ended = run("why", "--lock", ".")
    assert (ended.code, ended.err.startswith("error[usage-directory]: ")) == (64, True)
    assert "uv.lock" in ended.err


def test_extras_and_groups_need_a_file(run: Run) -> None:
    ended = run("why", "torch", "--extra", "gpu")
    assert (ended.code, ended.err.startswith("error[usage-option-conflict]: ")) == (64, True)


@given(st.data())
def test_the_order_of_lines_decides_nothing(data: st.DataObject) -> None:
    requirements = ["vllm==0.11.0", "torch==2.9.1", "trl==0.24.0", "transformers==4.40.0", "numpy<2", "unknown"]
    lines = data.draw(st.permutations(requirements))
    versions = dict(data.draw(st.permutations(sorted(PROJECT.items()))))
    files = {
        "requirements.txt": ("\n".join(requirements), "\n".join(lines)),
        "uv.lock": (uv_lock(PROJECT), uv_lock(versions)),
    }
    for name, texts in files.items():
        first, second = (answer_in_short(name, text) for text in texts)
        assert first == second


@cache
def answer_in_short(name: str, text: str) -> object:
    """Return the verdict, the rules of the conflicts, and the changes of the proposals for a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        file_answer = answer_about_file(session(), path, Selection(), (), (), "")
    explanation, nearest = file_answer.answer.explanation, file_answer.answer.nearest
    rules = [[rule.id for rule in conflict.rules] for conflict in explanation.conflicts]
    unknown = [pin.package for pin in file_answer.unknown]
    return explanation.answer, rules, [combination.changes for combination in nearest], unknown


@cache
def session() -> Session:
    return Session(ProjectContext({"HOME": tempfile.gettempdir()}, Path(tempfile.gettempdir()), Quiet()))
