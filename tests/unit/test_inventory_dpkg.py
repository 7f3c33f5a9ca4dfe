"""Installed Debian packages as dpkg lists them, and the licences that copyright files name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit.model import InstalledDeb, OsRelease
from imagegen.image.inventory import system
from imagegen.image.inventory.disk import Disk
from tests.support.file_trees import To, on_disk

STATUS = b"""\
Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc
Version: 2.36-9+deb12u14
Description: library
 Version: 9 of the text is no field

Package: cpp
Status: install ok installed
Architecture: amd64
Source: gcc-defaults (1.203)
Version: 4:12.2.0-3

Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.13.dfsg-1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
License: LGPL-2.1+

Files: *
Copyright: 1995 somebody
License: GPL-2+ or
 This line is of the text

# a remark
Files: debian/*
License: Expat

License: GFDL-1.3
 a text that no file needs
"""


def test_what_dpkg_has_is_reported_with_its_source(tmp_path: Path) -> None:
    root = {
        "var/lib/dpkg/status": STATUS,
        "usr/share/doc/libc6/copyright": COPYRIGHT.encode(),
        "usr/share/doc/cpp": To("libc6"),
        "usr/share/doc/zlib1g/copyright": b"This is zlib.\n",
    }
    assert system.installed(Disk(on_disk(tmp_path, root))) == {
        "libc6": InstalledDeb(
            "2.36-9+deb12u14", "amd64", "glibc", "2.36-9+deb12u14", ("Expat", "GPL-2+ or", "LGPL-2.1+")
        ),
        "cpp": InstalledDeb("4:12.2.0-3", "amd64", "gcc-defaults", "1.203", ("Expat", "GPL-2+ or", "LGPL-2.1+")),
        "zlib1g": InstalledDeb("1:1.2.13.dfsg-1", "amd64", "zlib1g", "1:1.2.13.dfsg-1", ()),
    }


def test_a_package_without_a_copyright_file_has_none(tmp_path: Path) -> None:
    found = system.installed(Disk(on_disk(tmp_path, {"var/lib/dpkg/status": STATUS})))
    assert {deb.licences for deb in found.values()} == {None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n', OsRelease("debian", "12", "bookworm")),
        (b"NAME='Wolfi'\nID=wolfi\n", OsRelease("wolfi", "", "")),
        (b"VERSION_ID=3\n", None),
        (b"\xff=", None),
    ],
)
def test_a_system_says_what_it_is(text: bytes, expected: OsRelease | None, tmp_path: Path) -> None:
    tree = Disk(on_disk(tmp_path, {"usr/lib/os-release": text, "etc/os-release": To("../usr/lib/os-release")}))
    assert system.release(tree) == expected


def test_a_tree_without_dpkg_has_no_packages(tmp_path: Path) -> None:
    assert system.installed(Disk(on_disk(tmp_path, {"etc/os-release": b"ID=alpine\n"}))) == {}


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert system.licences(text) == () or text.lstrip().lower().startswith(("format:", "#"))
    system.licences(f"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n{text}")
