"""imagegen wheels find, over the shipped matrix, recipes and catalogue, on a machine without network."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from functools import cache
from pathlib import Path

import click
import pytest

from imagegen import spec as matrix
from imagegen.app.matrices import Matrices
from imagegen.audit.model import CodeTarget
from imagegen.cli import commands, wheels_find
from imagegen.core.data import shipped
from imagegen.spec.recipe import Architectures, LocalSource
from tests.support.command_line import Run
from tests.support.elf_files import make_elf, make_fatbin
from tests.support.golden import Golden
from tests.support.wheels import make_wheel

WHY = "compiled for this cell, since no wheel fits; 1 whose name does cannot be reached"
CELL = "blackwell-vllm-cu130-py311"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Register the command's group alone, and set addresses without a listener."""
    group = click.Group("wheels", commands={"find": wheels_find.find_wheels})
    module = types.ModuleType("imagegen.cli.wheels_command")
    module.command = group  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "imagegen.cli.wheels_command", module)
    monkeypatch.setitem(commands.COMMANDS, "wheels", "Wheels.")
    (tmp_path / "links").mkdir()
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(Matrices, "matrix", _matrix())


@cache
def _matrix() -> matrix.Matrix:
    """Once for all of these tests: it takes a second."""
    return matrix.load([shipped("matrices"), shipped("wheels")])


def test_a_cell_without_the_component_is_answered_all_the_same(run: Run, tmp_path: Path, golden: Golden) -> None:
    ended = run("wheels", "find", "flash-attn", "--cell", "blackwell-vllm")
    assert ended.code == 0
    golden.check(ended.err)
    first, missed, address, otherwise, head, *rows, last, where = ended.out.splitlines()
    golden.check(first)
    assert (missed.split()[0], "cores" in otherwise) == ("1", True)  # what decides comes before the candidates
    assert address.startswith("  https://github.com/")
    assert head.split() == ["file", "fits", "place", "why"]
    found = [" ".join(row.split()) for row in rows]
    assert found[1] == f"{tmp_path / 'links'} no find-links has no wheel of flash-attn 2.8.3"
    assert found[3].startswith("flash_attn-2.8.3+cu130torch2.11-cp311-cp311-manylinux_2_24_x86_64")
    golden.check(found, last)
    assert where == "  recipe flash-attn"


def test_json_has_every_candidate_and_the_choice(run: Run) -> None:
    ended = run("wheels", "find", "flash-attn", "--cell", f"{CELL}-flash-attn", "--json")
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert (found["component"], found["version"], found["cell"]) == ("flash-attn", "2.8.3", f"{CELL}-flash-attn")
    assert (found["python"], found["torch"], found["cuda"]) == ("3.11", "2.11.0", "13.0")
    assert found["choice"] == found["candidates"][-1]
    catalogued = [each for each in found["candidates"] if each["place"] == "catalogue"]
    assert len(catalogued) == 15
    assert sum(each["sha256"] is not None for each in catalogued) == 14


def test_what_serves_is_chosen_and_the_rest_is_not_fetched(run: Run, tmp_path: Path, golden: Golden) -> None:
    name = "flash_attn-2.8.3+cu130torch2.11-cp311-cp311-linux_x86_64.whl"
    files = {"flash_attn/__init__.py": b""}
    flash_attn(tmp_path / "links", name, files)
    ended = run("wheels", "find", "flash-attn", "--cell", CELL)  # as setup.py makes one with CUDA disabled
    golden.check(ended.out)
    code = make_fatbin([[CodeTarget("sass", 100)], [CodeTarget("sass", 120)]])
    path = flash_attn(tmp_path / "links", name, files | {"flash_attn_2_cuda.so": make_elf(fatbin=code)})
    ended = run("wheels", "find", "flash-attn", "--cell", CELL)
    assert ended.code == 0
    *_, last, where = ended.out.splitlines()
    assert where == f"  {path.as_uri()}"
    golden.check(last, ended.out)


def flash_attn(directory: Path, name: str, files: dict[str, bytes]) -> Path:
    metadata = {"METADATA": "Metadata-Version: 2.1\nName: flash_attn\nVersion: 2.8.3\n"}
    return make_wheel(directory, files, filename=name, info="flash_attn-2.8.3.dist-info", metadata=metadata)


def test_without_a_lock_the_matrix_pins_give_the_torch(run: Run) -> None:
    ended = run("wheels", "find", "flash-attn", "--cell", "verl-enhanced-vllm-cu124-py310-flash-attn", "--json")
    found = json.loads(ended.out)
    assert (found["torch"], found["cuda"]) == ("2.6.0", "12.4")
    assert [each["file"] for each in found["candidates"] if each["place"] == "catalogue"] == [
        "flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"
    ]
    assert ended.code == (0 if found["choice"] else 1)


def test_a_cell_that_asks_for_a_build_gets_no_wheel(run: Run, golden: Golden) -> None:
    ended = run("wheels", "find", "flash-attn", "--cell", f"{CELL}-flash-attn-source")
    golden.check(ended.out)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"architectures": Architectures("ARCHS", ";", {"9.0": "90"})},
            "flash-attn 2.8.3 cannot be compiled for 10.0, 10.3, 12.0, 12.1: its recipe knows the compute",
        ),
        ({"releases": {"2.8.3": LocalSource(Path("/absent/flash-attn"))}}, "/absent/flash-attn is not there"),
    ],
)
def test_a_recipe_that_cannot_serve_the_cell_is_no_source_build(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, object],
    why: str,
) -> None:
    recipe = replace(_matrix().recipes["flash-attn"], **changed)  # type: ignore[arg-type]
    monkeypatch.setattr(Matrices, "matrix", replace(_matrix(), recipes={**_matrix().recipes, "flash-attn": recipe}))
    ended = run("wheels", "find", "flash-attn", "--cell", CELL)
    assert ended.code == 1
    assert f"no source build {why}" in " ".join(ended.out.split())
    assert ended.out.splitlines()[-1].startswith(f"choice: none, so the cell cannot have it: {why}")


@pytest.mark.parametrize("name", ["flash_attn", "Flash.Attn", "flash-attn == 2.8.3"])
def test_a_name_is_taken_however_it_is_spelled(run: Run, name: str) -> None:
    ended = run("wheels", "find", name, "--cell", CELL)
    assert (ended.code, ended.out.partition(" for ")[0]) == (0, "flash-attn 2.8.3")


def test_another_version_can_be_asked_about(run: Run, golden: Golden) -> None:
    ended = run("wheels", "find", "flash-attn==2.7.4.1", "--cell", f"{CELL}-flash-attn")
    assert ended.out.startswith(f"flash-attn 2.7.4.1 for {CELL}-flash-attn: ")
    golden.check(ended.err, ended.out)
    assert ended.code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("flash-atn", "blackwell-vllm"), 64, 'there is no component "flash-atn"'),
        (("flash-attn>=2", "blackwell-vllm"), 64, "a version of it as NAME==VERSION"),
        (("flash-attn==two", "blackwell-vllm"), 64, "a version of it as NAME==VERSION"),
        (("numpy", "blackwell-vllm"), 64, "numpy needs no compiler"),
        (("transformer_engine", "blackwell-vllm"), 64, "name transformer-engine-torch, which needs one"),
        (("flash-attn", "blakwell-vllm"), 64, 'did you mean "blackwell-vllm"?'),
        (("flash-attn", "blackwell-*"), 64, "cells"),
        (("flash-attn", "cpu-grpo"), 64, "cpu-grpo-cpu-py311 is only for the CPU"),
        (("deep-ep", "blackwell-vllm"), 67, "no version of deep-ep is known"),
    ],
)
def test_what_cannot_be_asked_is_refused(run: Run, arguments: tuple[str, str], code: int, what: str) -> None:
    ended = run("wheels", "find", arguments[0], "--cell", arguments[1])
    assert (ended.code, ended.out) == (code, "")
    assert what in ended.err
