"""The command line's manners: streams, exit codes, terminals of every kind. What commands do is tested elsewhere."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagegen.checks.preflight.model import Gpu, Machine
from imagegen.compat.rule import Rule
from imagegen.compat.verdict import Conflict, Verdict
from imagegen.core.progress import Terminal
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.run.doctor.fabric import Host
from imagegen.run.smoke.report import CheckResult, SmokeReport
from tests.support import command_line
from tests.support.command_line import Run
from tests.support.golden import Golden
from tests.support.matrix_samples import shipped_matrix


def test_the_doctor_says_what_stands_in_the_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    ended = run("doctor", "odd", "--json")
    (found,) = json.loads(ended.out)
    assert (ended.code, found["cell"], found["well"]) == (1, "odd-cpu-py311", False)
    assert found["findings"][0]["check"] == "engine"
    ended = run("doctor")
    assert ended.code == 1
    assert "error    engine" in ended.out
    assert run("doctor", "odd", "--container", "x").code == 64


def test_the_doctor_measures_the_fabric_where_there_are_gpus_and_the_image(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code is 1 where NCCL fails, and 0 without GPUs, without an engine and without the image."""
    requested: list[str] = []
    result = CheckResult("fabric-cuda", "fail", 1.0, "NCCL takes sockets")

    def smoke_run(_: object, ref: str, *__: object, only: list[str], **___: object) -> SmokeReport:
        requested.append(ref)
        assert only == ["fabric-cuda"]
        return SmokeReport(ref, "", (result,))

    def checks(*arguments: str) -> tuple[object, dict[str, str]]:
        ended = run("doctor", "--fabric", "--json", *arguments)
        (found,) = json.loads(ended.out)
        return ended.code, {row["name"]: row["status"] for row in found["checks"]}

    monkeypatch.setattr("imagegen.run.smoke.runner.run", smoke_run)
    monkeypatch.setattr("imagegen.run.doctor.fabric.gather", lambda: Host(Machine({}, place="host")))
    assert checks("hopper-vllm") == (0, {"gpus": "warning", "links": "-", "rdma": "note", "transport": "-"})
    assert checks()[0] == 0
    two = Machine({}, place="host", driver="580.159.04", gpus=(Gpu("NVIDIA H200", "9.0"),) * 2)
    monkeypatch.setattr("imagegen.run.doctor.fabric.gather", lambda: Host(two))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    assert (checks("hopper-vllm")[1]["transport"], requested) == ("note", [])
    engine: Any = SimpleNamespace(image_digest=lambda _: None)
    monkeypatch.setattr(Engine, "connect", lambda *_: nullcontext(engine))
    assert (checks("hopper-vllm")[1]["transport"], requested) == ("note", [])
    engine.image_digest = lambda _: "sha256:0"
    code, found = checks("hopper-vllm")
    assert (code, found["transport"], len(requested)) == (1, "error", 1)
    assert (checks("cpu-grpo")[1]["transport"], checks("odd")[1]["transport"], len(requested)) == ("note", "note", 1)
    assert run("doctor", "--fabric", "--container", "x").code == 64


def test_warnings_follow_the_result_and_are_explained_where_a_lock_is_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    because = "All of it is slow."
    rule = Rule("slow", {"torch": ""}, {}, {"python": ">=3"}, because, "s", "d", "warning", "measured", "f")
    verdict = Verdict("compatible", (Conflict((rule,), {"python": "3.11"}),))
    monkeypatch.setattr("imagegen.compat.evaluate.judge", lambda *_: verdict)
    monkeypatch.setattr(command_line, "RESULTS", {})  # other tests share the verdict of the rules
    said: list[tuple[str, bool]] = []
    monkeypatch.setattr(Terminal, "say", lambda _, text: said.append((text, bool(sys.stdout.getvalue()))))
    assert run("render", "cpu-grpo").code == 0
    ((text, after),) = said
    assert (after, "cpu-grpo-cpu-py311" in text, "slow" in text, rule.because in text) == (True, True, True, False)
    assert len(text.splitlines()) == 1
    said.clear()
    assert run("show", "cpu-grpo").code == 0
    ((text, after),) = said
    assert (after, text.count(rule.because)) == (True, 1)
    assert f"torch: {rule.because}" in text  # which package "it" is


def test_what_a_matrix_says_is_text_and_no_markup(run: Run) -> None:
    ended = run("list", "odd*")
    assert ended.code == 0
    assert "uvicorn[standard]" in ended.out
    assert "[red]as this one is[/red]" in ended.out


def test_a_project_has_recipes_of_its_own(run: Run, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "mine.yaml").write_text("recipes:\n  flash-attn:\n    modules: []\n")
    ended = run("list", "odd")
    assert ended.code == 65
    golden.check(ended.err)
    (tmp_path / "wheels" / "mine.yaml").unlink()
    assert run("list", "odd").code == 0  # people keep wheels in a directory of this name


def test_a_pipe_gets_a_line_for_each_cell(run: Run) -> None:
    lines = run("list", "verl06-*").out.splitlines()
    assert len(lines) == 1 + len(json.loads(run("list", "verl06-*", "--json").out))


@pytest.mark.parametrize("command", ["list", "matrix"])
def test_cells_are_whole_where_a_terminal_is_narrow(run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ids = {each["cell"] for each in json.loads(run("list", "*-vllm-*flash-attn-source*", "--json").out)}
    out = run(command, "*-vllm-*flash-attn-source*").out
    assert ids <= set(out.split())
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_list_of_one_image_states_its_purpose_once(run: Run) -> None:
    purpose = json.loads(run("list", "arpo-vllm", "--json").out)[0]["purpose"]
    assert run("list", "arpo-vllm*").out.count(purpose) == 1


def test_what_many_packages_need_names_some_of_them(run: Run) -> None:
    (locked,) = json.loads(run("show", "hopper-vllm", "--json").out)
    via = max((each["via"] for each in locked["wheels"] if not each["because"]), key=len)
    out = run("show", "hopper-vllm").out
    assert len(via) > 5
    assert f"{', '.join(via[:5])} and {len(via) - 5} more" in out
    assert max(map(len, out.splitlines())) < 400


def test_show_names_what_an_image_leaves_out(run: Run) -> None:
    (cell,) = shipped_matrix().select("verl06-vllm")
    assert {"flash-attn", "nvidia-cuda-nvcc-cu12"} <= cell.omits.keys()
    lines = " ".join(run("show", "verl06-vllm").out.split())
    assert all(f"without {name} ({because})" in lines for name, because in cell.omits.items())


def test_show_prints_the_locks_that_there_are_and_names_the_cells_without_one(run: Run) -> None:
    states = {each["cell"]: each["locked"] for each in json.loads(run("list", "*-sglang*", "--json").out)}
    ended = run("show", "*-sglang*", "--json")
    assert ended.code == 0
    assert {each["cell"] for each in json.loads(ended.out)} == {cell for cell, state in states.items() if state != "no"}
    missing = [cell for cell, state in states.items() if state == "no"]
    assert missing[0] in ended.err
    assert f"{len(missing)} cells" in ended.err
    assert run("show", "odd*").code == 67  # none is locked


def test_show_prints_what_is_known_of_a_cell_without_a_lock(run: Run) -> None:
    ended = run("show", "cpu-grpo-cpu-py313")
    assert ended.code == 67
    assert "error[lock-missing]" in ended.err
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert any(line.startswith("torch ==2.13.0, index pytorch-cpu ") for line in lines)
    assert any(line.startswith("no known conflict: ") for line in lines)
    assert "locked cell of the same image: cpu-grpo-cpu-py311" in lines
    assert run("show", "cpu-grpo-cpu-py313", "--json").out == ""


@pytest.mark.parametrize("option", [["--project", "x"], ["--project=x"], ["--debug"], ["--version"]])
@pytest.mark.parametrize("command", [["list"], ["wheels", "list"], ["store", "size"]])
def test_an_option_of_imagegen_itself_has_a_fix_that_says_where_it_goes(
    run: Run, command: list[str], option: list[str]
) -> None:
    ended = run(*command, *option)
    assert ended.code == 64
    assert f"fix: imagegen {option[0].partition('=')[0]}" in ended.err
    assert run(*command, "--projekt", "x").err.count("fix:") == 1


@pytest.mark.parametrize(
    ("command", "help_of"),
    [
        (("mirror", "cpu-grpo", "--to"), "imagegen mirror"),
        (("report", "-o"), "imagegen report"),
        (("wheels", "build", "apex", "--cell"), "imagegen wheels build"),
        (("--project",), "imagegen"),
    ],
)
def test_an_option_without_its_value_points_to_the_help_of_its_command(
    run: Run, command: tuple[str, ...], help_of: str
) -> None:
    ended = run(*command)
    assert ended.code == 64
    assert f"fix: see `{help_of} --help`" in ended.err


def test_a_log_is_explained_for_the_platform_of_a_cell(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("x.so: undefined symbol: _ZN3c105neverEv\n")
    found = []
    for cell in ("cpu-grpo", "cpu-grpo-cpu-py311-linux-arm64"):
        ended = run("doctor", cell, "--log", str(tmp_path / "train.log"))
        assert ended.code == 1
        found.append(" for aarch64 exports it" in " ".join(ended.out.split()))
    assert found == [False, True]
    assert run("doctor", "--log", str(tmp_path / "train.log"), "--fabric").code == 64


@pytest.mark.parametrize(("text", "code"), [("no kernel image is available for execution on the device", 1), ("x", 2)])
def test_a_message_is_read_from_stdin(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int
) -> None:
    (tmp_path / "log").write_text(text)
    for command in (("audit", "--error", "-"), ("doctor", "--log", "-")):
        with (tmp_path / "log").open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert run(*command).code == code
    for command in (("audit", "--error"), ("doctor", "--log")):
        assert run(*command, text).code == run(*command, str(tmp_path / "log")).code == code
    outputs = [json.loads(run(*command, text, "--json").out) for command in (("audit", "--error"), ("doctor", "--log"))]
    assert outputs[0] == outputs[1]
    assert run("doctor", "--log", "train.log").code == run("doctor", "--log", f"{tmp_path}/none").code == 64


def test_without_a_pattern_each_image_is_shown_once(run: Run) -> None:
    ended = run("list", "--all")
    images = [each["image"] for each in json.loads(run("list", "--all", "--json").out)]
    assert [line.split()[0] for line in ended.out.splitlines()[1:]] == images
    assert len(set(images)) == len(images)
    more = len(shipped_matrix().cells()) + 1 - len(images)
    assert f"{more} more cells" in ended.err


def test_what_an_image_weighs_is_shown_as_far_as_it_is_known(run: Run) -> None:
    (weight,) = json.loads(run("show", "cpu-grpo", "--size", "--json").out)
    torch = next(each for each in weight["packages"] if each["name"] == "torch")
    assert torch["packed"] > 100e6
    assert torch["unpacked"] is None  # nothing of it was ever fetched here
    assert weight["shared"]["sb3-maskable-cpu-py311"][1] > 100e6
    text = run("show", "cpu-grpo", "--size").out
    assert text.startswith("cpu-grpo-cpu-py311: ")
    assert "compressed; unpacked: not known" in text.splitlines()[0]


def test_a_width_that_is_asked_for_holds_on_a_pipe_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, run("list").out.splitlines())) <= 60


def test_show_gives_one_json_document_for_many_cells(run: Run) -> None:
    shown = json.loads(run("show", "[cs][pb][u3]-*[!4]", "--json").out)
    assert [each["cell"] for each in shown] == ["cpu-grpo-cpu-py311", "sb3-maskable-cpu-py311"]


def test_errors_are_sentences_on_stderr_with_their_code(run: Run, golden: Golden) -> None:
    ended = run("show", "cpu-grop")
    assert (ended.code, ended.out) == (64, "")
    assert ended.err.startswith("error[usage-unknown-cell]: ")
    golden.check(ended.err)
    assert run("show", "odd").code == 67
    assert run("nonsense").code == 64
    assert run("lock").code == 64


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("build", "cpu-grop"), 64, "usage-unknown-cell"),
        (("build", "nothing*"), 64, "usage-unknown-cell"),
        (("build", "cpu-grpo", "--output", "tar:x"), 64, "usage-invalid-value"),
        (("build",), 64, "missing argument"),
        (("frobnicate",), 64, "usage-unknown-command"),
        (("lock", "cpu-grpo", "--upgrade-package", "nonesuch"), 67, "lock-unknown-package"),
        (("lock", "cpu-grpo", "--as-of", "yesterday"), 67, "lock-cutoff-invalid"),
        (("--project", "gone", "list"), 64, "does not exist"),
    ],
)
def test_bad_input_gets_a_sentence(run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_are_for_those_who_want_them(run: Run, monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert ("\x1b" in run("show", "nope").err) is not bool(no_color)


def test_a_terminal_that_lacks_characters_gets_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert run("list").code == 0
    assert b":smile: \\u2026 [red]" in raw.getvalue()


def test_a_dockerfile_is_utf_8_wherever_it_goes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert run("render", "cpu-grpo").code == 0
    assert raw.getvalue().decode("utf-8").startswith("#")
    assert b"\\u" not in raw.getvalue()


def test_render_and_lock_check_speak_json(run: Run) -> None:
    (rendered,) = json.loads(run("render", "cpu-grpo", "--json").out)
    assert rendered == {"cell": "cpu-grpo-cpu-py311", "dockerfile": run("render", "cpu-grpo").out}
    (checked,) = json.loads(run("lock", "cpu-grpo", "--check", "--json").out)
    assert checked["changed"] is False
    assert checked["digest"].startswith("sha256:")


def test_a_report_that_cannot_be_written_is_reported_before_the_checks(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "absent" / "junit.xml"
    ended = run("test", "cpu-grpo", "--junit", str(file))
    assert ended.code == 64
    assert str(file) in ended.err


def test_gc_keeps_what_locks_name_and_says_what_it_freed(run: Run, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache/imagegen/store")
    lock = json.loads(run("show", "cpu-grpo", "--json").out)[0]
    kept = [store.path(f"sha256:{each['file']['sha256']}") for each in (lock["uv"], lock["wheels"][0])]
    other = store.path(store.write(b"nobody asks for this"))
    for path in (*kept, other):
        path.touch()
        os.utime(path, (0, 0))
    assert json.loads(run("store", "gc", "--json").out)["freed"] > 0
    assert not other.exists()
    assert all(path.exists() for path in kept)


def test_one_broken_lock_does_not_hide_the_other_cells(run: Run, tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "locks" / "odd-cpu-py311.toml"
    path.parent.mkdir()
    path.write_text('version = 1\nfrob = "x"\n')
    ended = run("list", "--all", "--json")
    assert ended.code == 0
    locked = {each["cell"]: each["locked"] for each in json.loads(ended.out)}
    assert locked["odd-cpu-py311"] == "broken"
    assert locked["cpu-grpo-cpu-py311"] == "recorded"
    golden.check(ended.err)
    assert "delete it" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("lock", "cpu-grpo", "--check", "--upgrade"),
        ("lock", "cpu-grpo", "--check", "--record"),
        ("build", "cpu-grpo", "--no-test", "--require-gpu"),
        ("build", "*", "--output", "oci:x"),
        ("build", "cpu-grpo", "--output", "tar:x"),
    ],
)
def test_options_that_contradict_each_other_are_refused(run: Run, arguments: tuple[str, ...], tmp_path: Path) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (64, "")
    assert "fix: " in ended.err
    assert not (tmp_path / "x").exists()


@pytest.mark.fault(
    "Killed and damaged",
    "blobs of the store are damaged, and `imagegen store check` reads them all",
    "each is named by what it is and for which images, with the commands that remove it and make it again",
)
def test_a_damaged_blob_is_reported_with_its_remedy(run: Run, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache" / "imagegen" / "store")
    lock = json.loads(run("show", "cpu-grpo", "--json").out)[0]
    wheel = store.path(f"sha256:{lock['wheels'][0]['file']['sha256']}")
    untrusted = store.path(store.write(b"whole"))
    untrusted.chmod(0o644)
    for path in (wheel, untrusted):
        path.write_bytes(b"other")
    ended = run("store", "check")
    assert ended.code == 1
    assert str(wheel) in ended.err
    (line,) = (
        line
        for line in ended.err.splitlines()
        if line.startswith(f"damaged: {lock['wheels'][0]['file']['filename']} of ")
    )
    assert "cpu-grpo-cpu-py311" in line
    assert "damaged: a blob that no lock" in ended.err
    assert "store check --repair" in ended.err
    assert "`imagegen build cpu-grpo-cpu-py311`" in ended.err
    assert wheel.exists()
    found = {each["digest"]: each["part_of"] for each in json.loads(run("store", "check", "--json").out)}
    assert list(found.values()).count({}) == 1
    assert run("store", "check", "--repair").code == 0
    assert not wheel.exists()
    assert not untrusted.exists()
    assert run("store", "check").code == 0
