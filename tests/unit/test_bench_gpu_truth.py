"""bench/gpu_truth.py: predictions for each setting of the driver's compiler, and the comparison with codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import gpu_truth

ISA = (9, 0)
SAMPLES = Path(__file__).parents[1] / "samples" / "gpu_truth"


@pytest.mark.parametrize(
    ("mix", "default", "no_jit", "forced"),
    [
        ("90", "sass", "sass", "no"),
        ("ptx80", "ptx", "no", "ptx"),
        ("90 ptx90", "sass", "sass", "ptx"),
        ("90 ptx80@9.2", "sass", "sass", "no"),
        ("80 ptx80@9.1", "no", "no", "no"),
        ("90a ptx90a", "sass", "sass", "ptx"),
        ("100f ptx100f", "no", "no", "no"),
    ],
)
def test_each_mode_leaves_its_kind_of_code(mix: str, default: str, no_jit: str, forced: str) -> None:
    predicted = {mode: gpu_truth.predict(mix, mode, "9.0", ISA) for mode in gpu_truth.MODES}
    assert predicted == {"default": default, "no JIT": no_jit, "forced JIT": forced}


def test_names_of_samples_are_unique() -> None:
    names = [sample.name for sample in gpu_truth.samples()]
    assert len(names) == len(set(names)) > 200


@pytest.mark.parametrize(
    ("file", "mode", "codes"),
    [
        ("90.cubin", "default", [209]),  # predicted to run
        ("80.cubin", "default", [0]),  # predicted not to
        ("90.ptx", "no JIT", [0]),
        ("lib90_100.so", "default", [209, 0]),  # the containers the other way round
        ("lib90_100.so", "default", [gpu_truth.CRASH]),
    ],
)
def test_one_other_code_is_found(file: str, mode: str, codes: list[int]) -> None:
    assert gpu_truth.compare(observed())
    wrong = observed()
    wrong["codes"][mode][file] = codes
    assert not gpu_truth.compare(wrong)


def test_an_older_libcuda_that_starts_is_found() -> None:
    own = {"library": "the driver's own", "cuInit": 0, "version": 13000, "exit": 0}
    older = {"library": "libcuda.so.550.163.01", "cuInit": 803, "version": 12040, "exit": 0}
    assert gpu_truth.compare({**observed(), "libcuda": [own, older]})
    assert not gpu_truth.compare({**observed(), "libcuda": [own, {**older, "cuInit": 0}]})


def predicted(name: str, mix: str, mode: str) -> str:
    return gpu_truth.predict(mix, mode, "9.0", ISA, bare=name.endswith(".cubin"))


def test_forced_compilation_leaves_bare_machine_code() -> None:
    assert predicted("90.cubin", "90", "forced JIT") == "sass"
    assert predicted("90.fatbin", "90", "forced JIT") == "no"


def test_an_h200_does_what_is_predicted() -> None:
    recorded = json.loads((SAMPLES / "h200-580.159.04.json").read_text())
    assert [len(codes) for codes in recorded["codes"].values()] == [211] * 3
    assert gpu_truth.compare(recorded)


def observed() -> dict[str, Any]:
    """Return codes of a driver that does what is predicted."""
    samples = {sample.name: sample.containers for sample in gpu_truth.samples()}
    codes = {
        mode: {
            name: [0 if predicted(name, mix, mode) != "no" else 209 for mix in samples[name]]
            for name in ("80.cubin", "90.cubin", "90.ptx", "lib90_100.so")
        }
        for mode in gpu_truth.MODES
    }
    return {"gpu": "H200", "driver": "580.159.04", "capability": "9.0", "codes": codes, "libcuda": []}
