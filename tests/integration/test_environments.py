"""Two environments whose requirements exclude each other, in one image in Docker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.engine import Engine
from tests.support.machines import Place, digest_of
from tests.support.registry_server_writes import Writable

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MATRIX = """\
images:
  old:
    description: An old release.
    purpose: Tests.
    base: debian12
    components: {packaging: {version: "==24.1", because: Tests.}, pip: {version: "==26.1", because: Tests.}}
  new:
    extends: old
    description: A newer release.
    components: {packaging: {version: "==25.0", because: Tests.}}
    env: {MODE: {value: "it is new", because: Tests.}}
  several:
    description: Both.
    purpose: Tests.
    environments:
      old: {cell: old-cpu-py311, because: Tests.}
      new: {cell: new-cpu-py311, because: Tests.}
    default: old
"""
TAG = "imagegen/several:cpu-py311"
SITE = "lib/python3.11/site-packages"
PRINT = "python -c 'import packaging, sys; print(packaging.__version__, sys.prefix)'"


@pytest.fixture(scope="module")
def project(machine: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("several") / "project"
    (root / "matrices").mkdir(parents=True)
    (root / "matrices/several.yaml").write_text(MATRIX)
    place = Place(root, machine.docker_host)
    machine.cache.mkdir(exist_ok=True)
    place.cache.symlink_to(machine.cache)
    place.run("lock", "several", "--record")
    return place


@pytest.fixture(scope="module")
def built(project: Place) -> dict[str, object]:
    """The result of the build, whose smoke checks ran in both environments."""
    (found,) = json.loads(project.run("build", "several", "--json").stdout)
    result: dict[str, object] = found
    return result


def shell(engine: Engine, script: str) -> list[str]:
    line = engine.docker_run_line(TAG, "bash", "-c", script)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()


def test_the_checks_of_each_environment_passed(built: dict[str, object]) -> None:
    report = built["report"]
    assert isinstance(report, dict)
    assert report["passed"]
    passed = {each["check"] for each in report["checks"] if each["status"] == "pass"}
    assert {
        f"{name}: {check}" for name in ("old", "new") for check in ("imports", "pip-check", "environment")
    } <= passed


def test_the_report_is_kept(built: dict[str, object], project: Place) -> None:
    (listed,) = json.loads(project.run("list", "several", "--json").stdout)
    assert listed["state"] == "tested"
    again = project.run("build", "several", "--no-test")
    assert digest_of(again) == built["digest"]


@pytest.fixture(scope="module")
def registry() -> Iterator[Writable]:
    registry = Writable()
    registry.referrers = True
    yield registry
    registry.close()


def test_it_is_published_and_verified(built: dict[str, object], project: Place, registry: Writable) -> None:
    (published,) = json.loads(project.run("publish", "several", "--to", f"{registry.host}/rl", "--json").stdout)
    assert (published["digest"], published["proof"]["from"]) == (built["digest"], "this store")
    name = f"{registry.host}/rl/several:latest"
    for options in ((), ("--rebuild",)):
        verdict = json.loads(project.run("verify", name, "--json", *options).stdout)
        steps = {step["name"]: step["outcome"] for step in verdict["steps"]}
        assert verdict["good"], verdict
        assert steps["SBOM"] == steps["provenance"] == steps["audit"] == steps["smoke report"] == "pass"
    assert steps["rebuild"] == "pass"
    compared = json.loads(project.run("diff", "several", name, "--json").stdout)
    assert (compared["same"], compared["after"]["cell"]) == (True, "several-cpu-py311")


def test_its_squashfs_holds_each_environment(built: dict[str, object], project: Place, tmp_path: Path) -> None:
    file = tmp_path / "several.sqsh"
    assert digest_of(project.run("export", "several", "--squashfs", str(file))) == built["digest"]
    listed = subprocess.run(["unsquashfs", "-l", str(file)], capture_output=True, text=True, check=True).stdout
    for prefix in ("opt/venv", "opt/venvs/new"):
        assert f"squashfs-root/{prefix}/{SITE}/packaging/__init__.py" in listed


def test_it_runs_without_an_engine(built: dict[str, object], project: Place, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    assert digest_of(project.run_tool("export", "several", "-o", str(directory), "--no-audit")) == built["digest"]
    program = [sys.executable, str(directory / "run_image.py")]
    script = f"{PRINT}; . /opt/venvs/new/bin/activate; {PRINT}"
    shown = subprocess.run([*program, "exec", "sh", "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.strip().splitlines()[-2:] == ["24.1 /opt/venv", "25.0 /opt/venvs/new"]
    path = f"{SITE}/pip/__init__.py"
    assert (directory / "root/opt/venv" / path).samefile(directory / "root/opt/venvs/new" / path)
    subprocess.run([*program, "test"], check=True)
    read = json.loads(project.run_tool("results", "several", str(directory / "results.json"), "--json").stdout)
    report = built["report"]
    assert isinstance(report, dict)
    assert read["passed"]
    assert [each["check"] for each in read["checks"]] == [each["check"] for each in report["checks"]]


def test_the_checks_run_again(built: dict[str, object], project: Place) -> None:
    again = json.loads(project.run("test", "several", "--json").stdout)
    report = built["report"]
    assert isinstance(report, dict)
    assert [each["check"] for each in again["checks"]] == [each["check"] for each in report["checks"]]
    assert (again["passed"], again["image"]) == (True, f"{TAG}-{again['image'].rpartition('-')[2]}")


@pytest.mark.usefixtures("built")
def test_each_environment_has_its_version_and_settings(engine: Engine) -> None:
    script = f"{PRINT}; . /opt/venvs/new/bin/activate; {PRINT}; echo $MODE; . /opt/venv/bin/activate; {PRINT}"
    old, new = "24.1 /opt/venv", "25.0 /opt/venvs/new"
    assert shell(engine, script) == [old, new, "it is new", old]


@pytest.mark.usefixtures("built")
def test_a_shared_file_is_one_file_and_names_itself_where_it_is_imported(engine: Engine) -> None:
    code = "import pip._internal.cli.main as m, sys; print(m.main.__code__.co_filename, m.__cached__)"
    path = f"{SITE}/pip/_internal/cli/main.py"
    found = shell(
        engine,
        f"stat -c '%h %i' /opt/venv/{path} /opt/venvs/new/{path}; "
        f'/opt/venvs/new/bin/python -v -c "{code}" 2>&1 | grep -e ^/opt -e "wrote.*cli/main"; '
        f"head -1 /opt/venvs/new/bin/pip",
    )
    assert found[0] == found[1]
    assert found[0].startswith("2 ")
    assert found[2].split() == [
        f"/opt/venvs/new/{path}",
        f"/opt/venvs/new/{SITE}/pip/_internal/cli/__pycache__/main.cpython-311.pyc",
    ]
    assert found[3:] == ["#!/opt/venvs/new/bin/python"]


@pytest.mark.usefixtures("built")
def test_a_change_below_one_prefix_does_not_reach_the_other(engine: Engine) -> None:
    path = f"{SITE}/pip/__init__.py"
    found = shell(
        engine, f"echo X >> /opt/venv/{path}; tail -1 /opt/venv/{path}; grep -c ^X /opt/venvs/new/{path}; true"
    )
    assert found == ["X", "0"]


def test_a_build_from_a_mirror_alone_gives_the_recorded_digest(
    built: dict[str, object], project: Place, tmp_path: Path
) -> None:
    at = str(tmp_path / "mirror")
    filled = json.loads(project.run("mirror", "several", "--to", at, "--json").stdout)
    assert len(filled["names"]) == len(set(filled["names"])) == 3
    through = ("unshare", "--net")
    other = Place(tmp_path / "another" / "directory", None, 0o077, "Pacific/Auckland", through, {"IMAGEGEN_MIRROR": at})
    for name in ("matrices", "locks"):
        (other.root / name).mkdir(parents=True)
        for path in (project.root / name).iterdir():
            (other.root / name / path.name).write_bytes(path.read_bytes())
    assert digest_of(other.run("build", "several", "--output", "oci:image")) == built["digest"]
