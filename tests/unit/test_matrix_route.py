"""PyPI gives torch where its build is for the cell's CUDA, as harvested metadata states; else PyTorch's index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from imagegen.compat import Fact, Facts, evaluate_on_gpus, metadata
from imagegen.core.errors import Location, MatrixErrors
from imagegen.lock.resolution_inputs import pep508
from imagegen.spec.model import Cell
from tests.support.matrix_samples import SHIPPED, SMALL, load, shipped_matrix

BUILDS = {"2.6.0": "12.4", "2.7.1": "12.6", "2.8.0": "12.8", "2.10.0": "12.8", "2.11.0": "13.0", "2.15.0": "13.2"}
LABELS = ("cpu", "cu126", "cu128", "cu130")
TABLES = "index: {{{}}}, local: {{{}}}, pypi_build: torch".format(
    ", ".join(f"{each}: wheels-{each}" for each in LABELS),
    ", ".join(f"{each}: {each}" for each in LABELS),
)
INDEXES = "".join(f'  wheels-{each}: {{description: d, url: "https://example.org/{each}"}}\n' for each in LABELS)


def routed(folder: Path, torch: str, cuda: str, vision: str = '{version: "==0.1", because: v}') -> Cell:
    """The cell of a small matrix whose torch is asked for as `torch` says: `version: "==2.8.0"`."""
    text = SMALL.replace(
        "  torch: {description: t, index: {cpu: wheels-cpu}, local: {cpu: cpu}}",
        f"  torch: {{description: t, {TABLES}}}\n  vision: {{description: v, {TABLES}}}",
    )
    text = text.replace('  wheels-cpu: {description: cpu builds, url: "https://example.org/cpu"}\n', INDEXES)
    text = text.replace("[cpu, cu130], default", "[cpu, cu126, cu128, cu130], default")
    text = text.replace("purpose: p", f"purpose: p\n    axes: {{cuda: [{cuda}]}}")
    text = text.replace(
        'torch: {version: "==2.13.0", because: t}', f"torch: {{{torch}, because: t}}\n      vision: {vision}"
    )
    versions = {version: {"requires": [], "cuda": build} for version, build in BUILDS.items()}
    harvested = {"package": "torch", "index": "pypi", "read": "2026-11-21", "versions": versions}
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / "torch.json").write_text(json.dumps(harvested))
    return load(folder, text).all_cells[0]


@pytest.mark.parametrize(
    ("torch", "cuda", "index", "label"),
    [
        ("==2.8.0", "cu128", "pypi", None),
        ("==2.11.0", "cu130", "pypi", None),
        ("==2.7.1", "cu126", "pypi", None),
        ("==2.7.1", "cu128", "wheels-cu128", "cu128"),  # PyPI's is for another CUDA
        ("==2.10.0", "cu130", "wheels-cu130", "cu130"),
        ("==2.15.0", "cu130", "wheels-cu130", "cu130"),
        ("==2.16.0", "cu130", "wheels-cu130", "cu130"),  # not harvested: PyTorch's own index has every build
        ("==2.8.0", "cpu", "wheels-cpu", "cpu"),
        ("", "cpu", "wheels-cpu", "cpu"),  # of PyPI's Linux wheels none is for the CPU alone
        (">=2.8,<2.11", "cu128", "pypi", None),
        ("~=2.8.0", "cu128", "pypi", None),
        ("==2.15.*", "cu126", "wheels-cu126", "cu126"),
        (">=2.16", "cu128", "wheels-cu128", "cu128"),
    ],
)
def test_the_route_follows_from_the_builds_that_are_on_pypi(
    torch: str, cuda: str, index: str, label: str | None, tmp_path: Path
) -> None:
    cell = routed(tmp_path / "m", f'version: "{torch}"', cuda)
    requested = {each.component.name: each for each in cell.requirements}
    assert (requested["torch"].index, requested["torch"].label) == (index, label)
    assert (requested["vision"].index, requested["vision"].label) == (index, label)
    assert pep508(requested["vision"]) == ("vision==0.1" if label is None else f"vision==0.1+{label}")
    assert set(cell.indexes) == {"pypi", index}


@pytest.mark.parametrize("torch", [">=2.8", "", ">=2.6,<2.9", "<2.11", ">=2.8,!=2.11.0,!=2.15.0"])
def test_an_ambiguous_range_is_refused_with_its_place(torch: str, tmp_path: Path) -> None:
    with pytest.raises(MatrixErrors) as raised:
        routed(tmp_path / "m", f'version: "{torch}"', "cu128")
    errors = raised.value.errors
    assert [
        (Path(str(each.where.file)).name, bool(each.fix)) for each in errors if isinstance(each.where, Location)
    ] == [("0.yaml", True)]


def test_an_index_that_is_named_is_taken(tmp_path: Path) -> None:
    named = routed(tmp_path / "a", 'version: ">=2.8", index: wheels-cu128', "cu128")
    assert {(each.index, each.label) for each in named.requirements if each.component.name != "numpy"} == {
        ("wheels-cu128", "cu128")
    }
    default = routed(tmp_path / "b", 'version: ">=2.8", index: pypi', "cu128")
    assert {(each.index, each.label) for each in default.requirements} == {("pypi", None)}


def test_a_change_of_the_route_moves_the_lock_and_a_new_release_does_not(tmp_path: Path) -> None:
    before = routed(tmp_path / "a", 'version: "==2.8.0"', "cu128")
    BUILDS["2.15.1"] = "13.2"
    try:
        assert routed(tmp_path / "b", 'version: "==2.8.0"', "cu128").inputs == before.inputs
        BUILDS["2.8.0"] = "12.9"
        after = routed(tmp_path / "c", 'version: "==2.8.0"', "cu128").inputs
    finally:
        del BUILDS["2.15.1"]
        BUILDS["2.8.0"] = "12.8"
    moved = {name for name in before.inputs.keys() | after.keys() if before.inputs.get(name) != after.get(name)}
    assert moved == {"image", "component torch", "component vision", "index wheels-cu128"}


def test_rules_admit_every_build_that_the_harvest_saw_on_pypi() -> None:
    harvested = metadata.load([SHIPPED], "torch")
    assert harvested
    rules = shipped_matrix().rules
    builds = {version: each.cuda for version, each in harvested.releases.items() if each.cuda}
    assert len(set(builds.values())) >= 5
    for version, cuda in builds.items():
        facts = Facts({"torch": Fact.exactly(version)}, {"cuda": Fact.exactly(cuda)}, {}, closed=False)
        verdict = evaluate_on_gpus([each for each in rules if each.names <= {"torch", "cuda"}], facts)
        assert not verdict.conflicts, (version, cuda)


def test_every_cell_with_torch_from_pypi_has_the_build_of_its_cuda() -> None:
    harvested = metadata.load([SHIPPED], "torch")
    assert harvested
    seen = set()
    for cell in shipped_matrix().all_cells:
        for each in cell.requirements:
            if each.component.name == "torch" and each.index == "pypi":
                admitted = [one for one in harvested.releases.values() if one.version in SpecifierSet(each.specifier)]
                if cell.platform == "linux/arm64":  # `cuda` is that of the wheel for x86-64
                    required = [Requirement(text) for one in admitted for text in one.requires or ()]
                    arm64 = [
                        one
                        for one in required
                        if not one.marker or metadata.holds(str(one.marker), "3.11.2", "aarch64", "")
                    ]
                    needs_cuda = any(one.name.startswith(("nvidia-", "cuda-")) for one in arm64)
                    assert needs_cuda == (cell.cuda != "cpu"), cell.id
                    continue
                assert {one.cuda for one in admitted} == {cell.cuda_version}, cell.id
                seen.add(cell.cuda)
    assert seen >= {"cu124", "cu126", "cu128", "cu130"}
