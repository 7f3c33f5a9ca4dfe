"""GPU code in files: containers, cubins, PTX, and what is wrong with them."""

from __future__ import annotations

import struct

import pytest

from imagegen.audit import fatbin
from imagegen.audit.examine import concerns, examine
from imagegen.audit.model import CodeGroup, CodeTarget, File
from imagegen.audit.window import Unreadable
from tests.support.elf_files import make_cubin, make_elf, make_entry, make_fatbin
from tests.support.golden import Golden

SM80, SM90, SM90A = CodeTarget("sass", 80), CodeTarget("sass", 90), CodeTarget("sass", 90, "a")
SM100F, PTX90 = CodeTarget("sass", 100, "f"), CodeTarget("ptx", 90, "", (8, 7))


def code(data: bytes) -> tuple[CodeGroup, ...]:
    return fatbin.groups(data, [(0, len(data))])


def test_containers_are_grouped_by_what_they_are_for() -> None:
    data = make_fatbin([[SM90, SM80], [SM90A], [SM80, SM90], [PTX90, SM100F]], bytes(8))
    assert code(data) == (
        CodeGroup((PTX90, SM100F), 1, (88, 72)),
        CodeGroup((SM80, SM90), 2, (144, 144)),
        CodeGroup((SM90A,), 1, (72,)),
    )


@pytest.mark.parametrize("flags", [0, 0x2000, 0x8000, 0x1000000])
def test_compressed_code_is_read_by_its_header(flags: int) -> None:
    found = code(make_fatbin([[SM90, PTX90]], flags=flags))
    assert [group.targets for group in found] == [(PTX90, SM90)]


def test_two_pieces_for_one_target_count_as_one_container() -> None:
    assert code(make_fatbin([[SM90, SM90]], bytes(8))) == (CodeGroup((SM90,), 1, (144,)),)


def test_what_no_driver_takes_does_not_count() -> None:
    body = make_entry(SM90, b"for the linker", kind=8)
    lto = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    assert code(lto + make_fatbin([[]]) + make_fatbin([[SM80]], bytes(8))) == (CodeGroup((SM80,), 1, (72,)),)


def test_padding_and_other_bytes_between_containers_are_passed_over() -> None:
    one = make_fatbin([[SM90]], bytes(8))
    for gap in (bytes(8), bytes(56), bytes(4096), b"\x50\xed\x55\xba" * 20, bytes(3 << 20)):
        assert code(gap + one + gap + one + gap) == (CodeGroup((SM90,), 2, (144,)),)


@pytest.mark.parametrize("gap", [0, 8, 64, 5000])
def test_code_that_was_not_kept_is_not_missed(gap: int) -> None:
    """A streaming reader keeps headers only; the groups are those of the whole file."""
    payload = bytes(range(256)) * 64
    data = make_elf(fatbin=bytes(gap) + make_fatbin([[SM90, PTX90], [SM80]], payload), exported=["f"])
    holes, at = [], 0
    while (at := data.find(payload, at)) >= 0:
        holes.append((at, at + len(payload)))
        at += len(payload)
    assert len(holes) == 3
    kept = bytearray(data)
    for start, end in holes:
        kept[start:end] = bytes(end - start)
    assert examine(kept, size=len(data), holes=holes) == examine(data, size=len(data))


def test_what_was_not_kept_cannot_hide_anything(golden: Golden) -> None:
    """A header that makes a streaming reader skip the symbols makes the file unreadable, and not sound."""
    data = make_elf(needed=["libevil.so"], undefined=["a"])
    dynstr = data.index(b"libevil.so")
    found = examine(data, size=len(data), holes=[(dynstr, dynstr + 4)])
    assert found.elf is None
    golden.check(str(found.unreadable))
    inside = make_elf(fatbin=make_fatbin([[SM90], [SM80]]))
    second = inside.index(struct.pack("<I", 0xBA55ED50), inside.index(struct.pack("<I", 0xBA55ED50)) + 1)
    hidden = examine(inside, size=len(inside), holes=[(second - 8, second + 100)])
    assert (hidden.code, hidden.elf is not None) == ((), True)
    golden.check(str(hidden.unreadable))


ONE = make_fatbin([[SM90]], bytes(64))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (ONE[:-1], "ends beyond its section"),
        (ONE[:16], "ends beyond its section"),
        (ONE[:12], "its GPU code"),
        (ONE[:8] + struct.pack("<Q", 40) + ONE[16:56], "ends within its header"),
        (ONE[:8] + struct.pack("<Q", 2**64 - 1) + ONE[16:], "ends beyond its section"),
        (ONE[:20] + struct.pack("<I", 0) + ONE[24:], "a header of 0 bytes"),
        (ONE[:20] + struct.pack("<I", 2**32 - 1) + ONE[24:], "ends beyond its container"),
        (ONE[:24] + struct.pack("<Q", 2**64 - 1) + ONE[32:], "ends beyond its container"),
        (ONE[:44] + struct.pack("<I", 0) + ONE[48:], "for sm_0"),
        (ONE[:44] + struct.pack("<I", 2**32 - 1) + ONE[48:], "for sm_4294967295"),
    ],
)
def test_damage_is_reported(data: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        code(data)


def test_the_number_of_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(fatbin, "MOST_ENTRIES", 10)
    assert code(make_fatbin([[SM90]] * 5))[0].count == 5
    for many in ([[SM90]] * 6, [[]] * 11, [[SM90] * 10]):
        with pytest.raises(Unreadable) as caught:
            code(make_fatbin(many))
        golden.check(caught.value)


@pytest.mark.parametrize("abi", [7, 8])
@pytest.mark.parametrize("target", [SM80, SM90, SM90A, CodeTarget("sass", 120, "a")], ids=str)
def test_a_cubin_that_is_a_file(target: CodeTarget, abi: int) -> None:
    data = make_cubin(target, abi)
    found = examine(data, size=len(data))
    assert found.code == (CodeGroup((target,), 1, (len(data),)),)
    assert found.elf is not None
    assert found.elf.machine == 190


def test_a_cubin_says_in_a_note_that_it_is_for_a_family() -> None:
    data = make_cubin(CodeTarget("sass", 100), note=b"Build cuda_13.0\0-arch sm_100f -m 64 \0")
    assert fatbin.cubin(data).targets == (SM100F,)
    plain = make_cubin(SM90A, note=b"-arch sm_90 -m 64\0")
    assert fatbin.cubin(plain).targets == (SM90,)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (make_cubin(SM90, 6), "ABI 6"),
        (make_cubin(CodeTarget("sass", 1)), "for sm_1"),
        (make_cubin(SM90)[:50], "its header"),
    ],
)
def test_a_cubin_that_is_none(data: bytes, why: str) -> None:
    found = examine(data, size=len(data))
    assert found.code == ()
    assert why in str(found.unreadable)


PTX = b"//\n// Generated by NVIDIA NVVM Compiler\n//\n\n.version 8.7\n.target sm_90a\n.address_size 64\n"


def test_ptx_and_fat_binaries_that_are_files() -> None:
    assert examine(PTX, size=len(PTX)).code == (CodeGroup((CodeTarget("ptx", 90, "a", (8, 7)),), 1, (len(PTX),)),)
    data = make_fatbin([[SM90], [SM80]], bytes(8))
    assert examine(data, size=len(data)).code == code(data)


@pytest.mark.parametrize(
    ("data", "concerned"),
    [
        (PTX, True),
        (ONE, True),
        (make_elf(), True),
        (make_cubin(SM90), True),
        (b"", False),
        (b"// a comment\nint main() {}\n", False),
        (b"import torch\n.version 8.7\n.target sm_90\n", False),
        (b"\x7fEL", False),
    ],
)
def test_only_some_files_concern_the_readers(data: bytes, *, concerned: bool) -> None:
    assert concerns(data) == concerned
    if not concerned:
        assert examine(data, size=len(data), sha256="ab", executable=True) == File(len(data), "ab", executable=True)


def test_what_could_be_read_of_a_damaged_file_stands_beside_the_reason(golden: Golden) -> None:
    data = make_elf(needed=["libm.so.6"], fatbin=make_fatbin([[SM90]])[:-8])
    found = examine(data, size=len(data))
    assert found.elf is not None
    assert found.elf.needed == ("libm.so.6",)
    assert found.code == ()
    golden.check(str(found.unreadable))
