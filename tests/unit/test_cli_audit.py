"""imagegen audit as people type it: what is refused, what is explained, and how it ends."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from imagegen.app.audit_subjects import lock_source
from imagegen.audit.finding_texts import catalogue
from imagegen.audit.model import CodeGroup, CodeTarget, Elf, File, Package, Subject
from imagegen.image.inventory import site_subject
from tests.support.command_line import Run
from tests.support.golden import Golden

ROOT = Path(__file__).parents[2]
FORMS = "name a cell (`imagegen list`), wheels, --image REF or --site-packages DIR"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), f"no subject of an audit is named\n  fix: {FORMS}"),
        (("--gpu", "sm_90"), f"no subject of an audit is named\n  fix: {FORMS}"),
        (("cpu-grop",), 'no image or cell matches "cpu-grop"\n  fix: did you mean "cpu-grpo"?'),
        (("x/y:1",), 'no image or cell matches "x/y:1"\n  fix: `--image x/y:1` audits an image'),
        (("cpu-grpo", "odd"), "cpu-grpo odd are several cells\n  fix: name one cell, or a glob such as"),
        (("cpu-grpo", "--image", "a"), "an audit has one subject, and cpu-grpo and --image a are several"),
        (
            ("--image", "a", "--site-packages", "b"),
            "and --image a and --site-packages b are several\n  fix: run an audit for each",
        ),
        (
            ("cpu-grpo", "--torch", "2.8.0"),
            "--torch is only for wheels, because the other subjects include torch\n  fix: ",
        ),
        (("--image", "a", "--torch", "2.8.0"), "--torch is only for wheels"),
        (("nothing-1-py3-none-any.whl",), "there is no file nothing-1-py3-none-any.whl\n  fix: name wheels that are"),
        (("nothing-1-py3-none-any.whl", "--torch", "x"), "there is no file"),
        (("--site-packages", "nowhere"), "nowhere is not a directory"),
        (("cpu-grpo", "--gpu", "sm_09"), 'there is no GPU "sm_09"\n  fix: '),
        (("cpu-grpo", "--gpu", "RTX 509"), 'there is no GPU "RTX 509"\n  fix: did you mean "RTX 5090"?'),
        (("cpu-grpo", "--gpu", "sm_90"), "cpu-grpo-cpu-py311 is for no GPU\n  fix: leave out --gpu and --driver"),
        (("cpu-grpo", "--driver", "new"), '--driver "new" is not a version of a driver\n  fix: write it as nvidia-smi'),
        (
            ("cpu-grpo", "--sarif", "/nonexistent/x"),
            "/nonexistent/x: the report cannot be written\n  why: No such file",
        ),
        (("--explain", "unredable"), 'there is no finding "unredable"\n  fix: did you mean "unreadable"?'),
        (("cpu-grpo", "--explain"), "--explain and --error explain a text, without an audit"),
        (("--nonsense",), "no such option"),
    ],
)
def test_what_cannot_be_audited_is_refused_with_what_would_be_right(
    arguments: tuple[str, ...],
    said: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("audit", *arguments)
    assert (ended.code, ended.out) == (64, "")
    assert ended.err.startswith("error[usage")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_files_that_are_no_wheels_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken-1-py3-none-any.whl").write_text("x")
    (tmp_path / "empty").mkdir()
    ended = run("audit", "notes.txt")
    assert (ended.code, ended.err.partition(": ")[0]) == (64, "error[usage-not-a-wheel]")
    ended = run("audit", "broken-1-py3-none-any.whl", "--torch", "two")
    assert (ended.code, ended.err.partition(": ")[0]) == (64, "error[usage-invalid-value]")
    ended = run("audit", "broken-1-py3-none-any.whl")
    assert (ended.code, ended.out) == (71, "")
    assert ended.err.startswith("error[wheel")
    ended = run("audit", "empty")
    assert ended.err.startswith("error[usage-directory]: ")
    assert "`--site-packages empty`" in ended.err
    ended = run("audit", "--site-packages", "empty")
    assert (ended.code, ended.out) == (64, "")
    golden.check(ended.err)


def test_an_id_is_explained(run: Run) -> None:
    ended = run("audit", "--explain", "unreadable")
    entry = catalogue()["unreadable"]
    expected = [f"unreadable ({entry.severity}): {entry.title}", f"  {entry.meaning}", f"  fix: {entry.fix}"]
    assert (ended.code, ended.out.splitlines()) == (0, [*expected, f"  source: {entry.source}"])
    (found,) = json.loads(run("audit", "--explain", "unreadable", "--json").out).items()
    assert found == ("unreadable", {**asdict(entry), "severity": entry.severity.value})


def test_without_an_id_all_are_listed(run: Run) -> None:
    for arguments in (("--explain",), ("--explain", "--all")):
        listed = [line.split()[0] for line in run("audit", *arguments).out.splitlines()]
        assert listed == list(catalogue())
    assert list(json.loads(run("audit", "--explain", "--json").out)) == list(catalogue())


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment of one package, with a library that is cut off."""
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    files = {
        "odd-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n",
        "odd-1.0.dist-info/RECORD": b"odd/_C.so,,\nodd-1.0.dist-info/METADATA,,\nodd-1.0.dist-info/RECORD,,\n",
        "odd/_C.so": b"\x7fELF\x02\x01\x01" + bytes(40),
    }
    for name, content in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)
    return site


def test_warnings_are_printed_and_do_not_count(run: Run, site: Path, tmp_path: Path, golden: Golden) -> None:
    ended = run("audit", "--site-packages", str(site), "--gpu", "RTX 5090", "--sarif", str(tmp_path / "x.sarif"))
    assert ended.code == 0
    first, second, *_, last = ended.out.splitlines()
    assert (first, second) == ("odd 1.0", "  warning  unreadable: odd/_C.so")
    golden.check(last, ended.err)
    (finding,) = json.loads((tmp_path / "x.sarif").read_text())["runs"][0]["results"]
    assert (finding["ruleId"], finding["level"]) == ("unreadable", "warning")
    (report,) = json.loads(run("audit", "--site-packages", str(site), "--json").out)
    assert (report["passed"], report["counts"]) == (True, {"error": 0, "warning": 1, "info": 0})
    assert report["findings"][0]["path"] == "odd/_C.so"


def test_an_error_is_exit_code_1(run: Run, site: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    code = CodeGroup((CodeTarget("sass", 90),), 1, (100,))
    package = Package("odd", "1.0", {"odd/_C.abi3.so": File(500, elf=Elf(machine=62), code=(code,))})
    monkeypatch.setattr(site_subject, "site_subject", lambda *_, **__: Subject("made up", (package,)))
    for options, exit_code in ((["--gpu", "H100"], 0), (["--gpu", "blackwell", "--json"], 1)):
        assert run("audit", "--site-packages", str(site), *options).code == exit_code
    lines = run("audit", "--site-packages", str(site), "--gpu", "sm_120").out.splitlines()
    assert lines[1] == "  error    gpu-code-missing: odd/_C.abi3.so"
    golden.check(lines[-1])


@pytest.mark.parametrize("name", ["cpu-grpo-cpu-py311", "blackwell-vllm-cu130-py311"])
def test_sarif_points_at_the_lines_of_a_lock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    path = ROOT / "locks" / f"{name}.toml"
    source = lock_source(path)
    assert source
    assert source.path == f"locks/{name}.toml"
    lines = path.read_text().splitlines()
    for package, line in source.lines.items():
        name, version = package.split(" ")
        assert lines[line - 1 : line + 1] == [f'name = "{name}"', f'version = "{version}"']
    assert len(source.lines) == sum(line == "[[wheel]]" for line in lines)
    monkeypatch.chdir(ROOT / "tests")
    assert lock_source(path) is None
