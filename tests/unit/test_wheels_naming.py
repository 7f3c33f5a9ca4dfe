"""The statements of wheels' file names, and the cells that they contradict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit import torch_exports
from imagegen.wheels.naming import WheelRequirement, mismatch, read
from tests.support.required_wheels import NEED, TAGS

# Real names: Dao-AILab's, mjun0812's, TransformerEngine's, xformers' and plain ones.
NAMES = [
    (f"flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-{TAGS}", ("2.8", "12", True)),
    (f"flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-{TAGS}", ("2.6", "12", False)),
    (f"flash_attn-2.5.8+cu118torch2.3cxx11abiFALSE-{TAGS}", ("2.3", "11.8", False)),
    (f"flash_attn-2.8.3+cu130torch2.11-{TAGS}", ("2.11", "13.0", None)),
    ("flash_attn_3-3.0.0+cu130torch2.11gite2743ab-cp39-abi3-linux_x86_64.whl", ("2.11", "13.0", None)),
    (f"causal_conv1d-1.6.2.post1+cu13torch2.10cxx11abiTRUE-{TAGS}", ("2.10", "13", True)),
    (f"transformer_engine_torch-2.9.0+cu13torch2.11.0+cu130cxx11abiTRUE-{TAGS}", ("2.11", "13.0", True)),
    (f"xformers-0.0.32+pt28cu128-{TAGS}", ("2.8", "12.8", None)),
    ("sgl_kernel-0.3.21+cu130-cp310-abi3-manylinux2014_x86_64.whl", (None, "13.0", None)),
    (f"flash_attn-2.8.3-{TAGS}", (None, None, None)),
    ("torch-2.10.0-3-cp311-cp311-manylinux_2_28_x86_64.whl", (None, None, None)),
]


@pytest.mark.parametrize(("filename", "parsed"), NAMES, ids=[name for name, _ in NAMES])
def test_real_names_are_read(filename: str, parsed: tuple[str | None, str | None, bool | None]) -> None:
    found = read(filename)
    assert found
    assert (found.torch, found.cuda, found.new_abi) == parsed
    assert found.version.local is None


def test_a_name_with_two_labels_becomes_one_that_installers_take() -> None:
    """No version of PEP 440 has two plus signs, and TransformerEngine's own setup.py renames the file as well."""
    found = read(f"transformer_engine_torch-2.9.0+cu13torch2.11.0+cu130cxx11abiTRUE-{TAGS}")
    assert found and found.filename == f"transformer_engine_torch-2.9.0-{TAGS}"
    kept = read(f"flash_attn-2.8.3+cu130torch2.11-{TAGS}")
    assert kept and kept.filename == f"flash_attn-2.8.3+cu130torch2.11-{TAGS}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x.whl",
        "flash_attn-2.8.3.tar.gz",
        "flash_attn-2.8.3-cp311-cp311.whl",
        "a-+-b-c-d.whl",
        "a-1-py3-none-any.x/../y.whl",
        "a-1-py3-none-any.\x1b[m.whl",
    ],
)
def test_what_is_no_wheel_is_none(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("filename", "need", "why"),
    [
        (f"flash_attn-2.8.3+cu130torch2.11-{TAGS}", NEED, None),
        (f"flash_attn-2.8.3-{TAGS}", NEED, None),
        (f"flash_attn-2.8.3+cu13torch2.11cxx11abiTRUE-{TAGS}", NEED, None),
        (f"flash_attn-2.8.3+cu130torch2.8-{TAGS}", NEED, "built for torch 2.8, the cell has 2.11"),
        (f"flash_attn-2.8.3+cu12torch2.11-{TAGS}", NEED, "built for CUDA 12, torch is for 13.0"),
        (
            f"flash_attn-2.8.3+cu13torch2.11cxx11abiFALSE-{TAGS}",
            NEED,
            "built with the old C++ ABI, torch has the new one",
        ),
        (
            "flash_attn-2.8.3+cu130torch2.11-cp312-cp312-linux_x86_64.whl",
            NEED,
            "for Python 3.12, the cell has 3.11",
        ),
        (
            "flash_attn-2.8.3-cp313-cp313t-linux_x86_64.whl",
            NEED,
            "for free-threaded Python 3.13, the cell has 3.11",
        ),
        (
            "flash_attn-2.8.3-cp311-cp311-win_amd64.whl",
            NEED,
            "for win_amd64, the cell is x86_64-manylinux_2_36",
        ),
        (
            "flash_attn-2.8.3-cp311-cp311-manylinux_2_39_x86_64.whl",
            NEED,
            "for manylinux_2_39_x86_64, the cell is x86_64-manylinux_2_36",
        ),
        ("flash_attn-2.8.3-cp312-abi3-linux_x86_64.whl", NEED, "for Python 3.12 or newer, the cell has 3.11"),
        (f"flash_attn-2.8.3+rocm63torch2.11-{TAGS}", NEED, "for ROCm"),
        (
            f"flash_attn-2.8.3+cu130torch2.11-{TAGS}",
            replace(NEED, torch=None),
            "built for torch 2.11, the cell has none",
        ),
        (f"flash_attn-2.8.3+cu130-{TAGS}", replace(NEED, cuda=None), "built for CUDA 13.0, the cell has none"),
        (f"demo-1+cpu-{TAGS}", NEED, "for the CPU alone"),
        (f"demo-1+cpu-{TAGS}", replace(NEED, cuda=None), None),
        # Minor releases of one CUDA run each other's code: what a driver lacks for it, the audit says.
        (f"flash_attn-2.8.3+cu129torch2.8-{TAGS}", replace(NEED, torch="2.8.0+cu128", cuda="12.8"), None),
    ],
)
def test_a_name_contradicts_a_cell_in_one_clause(filename: str, need: WheelRequirement, why: str | None) -> None:
    parsed = read(filename)
    assert parsed
    assert mismatch(parsed, need) == why


@pytest.mark.parametrize(
    ("torch", "new"), [("2.6.0", False), ("2.6.0+cu124", False), ("2.6.0+cu126", True), ("2.7.1", True), (None, None)]
)
def test_the_abi_of_torch_is_known_by_its_release(torch: str | None, new: bool | None) -> None:
    assert replace(NEED, torch=torch).new_abi is new


def test_the_abi_of_torch_is_what_its_symbols_say() -> None:
    index = torch_exports.shipped()
    new = 0
    for name, releases in index.names.items():
        if "__cxx11" in name:
            new |= releases
    for place, release in enumerate(index.releases):
        assert replace(NEED, torch=release).new_abi is bool(new >> place & 1), release


MINORS = st.tuples(st.integers(1, 2), st.integers(0, 30))
MAJORS = st.integers(11, 14)


@given(
    torch=MINORS, cuda=MAJORS, minor=st.integers(0, 9) | st.none(), abi=st.booleans() | st.none(), full=st.booleans()
)
def test_every_convention_says_what_it_was_made_of(
    torch: tuple[int, int], cuda: int, minor: int | None, abi: bool | None, full: bool
) -> None:
    """Official names, mjun0812's and TransformerEngine's, each made as its project makes it."""
    number = f"{torch[0]}.{torch[1]}"
    exact = f"{cuda}{'' if minor is None else minor}"
    built = f"{number}.0+cu{exact}" if full else number
    label = f"cu{cuda if full else exact}torch{built}{'' if abi is None else f'cxx11abi{str(abi).upper()}'}"
    parsed = read(f"demo-1.0+{label}-{TAGS}")
    assert parsed
    assert (parsed.torch, parsed.new_abi, parsed.package, str(parsed.version)) == (number, abi, "demo", "1.0")
    assert parsed.cuda == (f"{cuda}" if minor is None else f"{cuda}.{minor}")
    same = replace(NEED, torch=f"{number}.1", cuda=f"{cuda}.0")
    why = mismatch(parsed, same)
    assert why is None or (abi is not None and abi is not same.new_abi and "C++ ABI" in why)
    assert "torch" in str(mismatch(parsed, replace(same, torch=f"{torch[0]}.{torch[1] + 1}.0")))
    assert "CUDA" in str(mismatch(parsed, replace(same, cuda=f"{cuda + 1}.0")))


@given(
    st.text(max_size=60)
    | st.from_regex(r"[a-z]{1,5}-[0-9.+a-z]{1,20}-cp3[0-9]{1,2}-[a-z0-9]{1,6}-[a-z_0-9.]{1,20}\.whl")
)
def test_any_text_is_read_or_refused_quietly(text: str) -> None:
    parsed = read(text)
    if parsed:
        mismatch(parsed, NEED)
