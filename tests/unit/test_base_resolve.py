"""What apt says, read: packages, Release files, mirrors."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.base.apt import parse_release
from imagegen.base.mirrors import mirrors, parse_targets
from imagegen.base.model import Deb
from imagegen.base.resolve import parse_uris, resolve
from imagegen.config import Settings
from imagegen.errors import BaseError
from imagegen.matrix.model import Base
from imagegen.progress import Quiet
from tests.timing import within

ROOTS = {"debian": "http://mirror.example/debian", "debian-security": "http://mirror.example/debian/security"}
TEXT = st.text("abz019.+~-", min_size=1, max_size=12)


def settings(tmp_path: Path, **env: str) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path), "PATH": str(tmp_path), **env})


def line(deb: Deb) -> str:
    """As apt-get --print-uris writes it: epochs and underscores quoted in the file name, more in the URI."""
    fields = "_".join(quote(part, safe="+~") for part in (deb.name, deb.version, deb.architecture))
    return f"'{ROOTS[deb.archive]}/{quote(deb.path)}' {fields}.deb {deb.size} SHA256:{deb.sha256}"


@st.composite
def packages(draw: st.DrawFn) -> list[Deb]:
    debs = []
    for name in draw(st.lists(TEXT, unique=True, max_size=5)):
        version = draw(st.one_of(TEXT, TEXT.map(lambda version: f"1:{version}")))
        digest = draw(st.text("0123456789abcdef", min_size=64, max_size=64))
        archive = draw(st.sampled_from(sorted(ROOTS)))
        path = f"pool/main/{name}/{name}_{version.removeprefix('1:')}_amd64.deb"
        debs.append(Deb(name, version, "amd64", digest, draw(st.integers(0, 10**9)), archive, path))
    return debs


@given(packages())
def test_packages_are_read_back_as_apt_wrote_them(debs: list[Deb]) -> None:
    text = "".join(f"{line(deb)}\n" for deb in debs)
    assert parse_uris(text, ROOTS) == tuple(sorted(debs, key=lambda deb: deb.name))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("'http://mirror.example/debian/a.deb' a_1_amd64.deb 5 MD5Sum:00", "unknown form"),
        ("Reading package lists...", "unknown form"),
        (f"'http://other.example/a.deb' a_1_amd64.deb 5 SHA256:{'0' * 64}", "none of the archives"),
    ],
)
def test_other_lines_are_refused(text: str, why: str) -> None:
    with pytest.raises(BaseError, match=why):
        parse_uris(text, ROOTS)


def test_a_release_file_gives_its_code_name_and_date() -> None:
    text = "-----BEGIN PGP SIGNED MESSAGE-----\n\nCodename: bookworm\nDate: Sat, 11 Jul 2026 10:16:37 UTC\n"
    assert parse_release(text) == ("bookworm", "2026-07-11T10:16:37Z")


@pytest.mark.parametrize("text", ["", "Codename: bookworm\n", "Codename: bookworm\nDate: yesterday\n"])
def test_a_release_file_without_a_date_is_refused(text: str) -> None:
    with pytest.raises(BaseError, match="no code name or date"):
        parse_release(text)


def test_a_release_file_with_a_long_line_takes_no_longer() -> None:
    with within(2), pytest.raises(BaseError):
        parse_release("Date: a" + " " * 1_000_000 + "b\n")


def test_only_debians_own_archives_count_as_mirrors() -> None:
    text = (
        "Ubuntu\tUbuntu\thttp://ubuntu.example/\n"
        "Debian\tDebian\tcdrom://x/\n"
        "Debian\tDebian\thttp://one.example/debian/\n"
        "Debian\tDebian\thttp://two.example/debian/\n"
        "Debian\tDebian-Security\tfile:///srv/security\n"
        "\n"
    )
    assert parse_targets(text) == {"debian": "http://one.example/debian/", "debian-security": "file:///srv/security"}


def test_settings_come_before_the_host(tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text(
        "#!/bin/sh\nprintf 'Debian\\tDebian\\thttp://h.example/d/\\nDebian\\tDebian-Security\\thttp://h.example/s/\\n'"
    )
    apt.chmod(0o755)
    found = mirrors(settings(tmp_path, IMAGEGEN_DEBIAN_MIRROR="http://mine.example/d/"))
    assert found == {"debian": "http://mine.example/d", "debian-security": "http://h.example/s"}


def test_an_unknown_mirror_names_the_variable_to_set(tmp_path: Path) -> None:
    with pytest.raises(BaseError) as caught:
        mirrors(settings(tmp_path, IMAGEGEN_DEBIAN_MIRROR="http://mine.example/d"))
    assert "IMAGEGEN_DEBIAN_SECURITY_MIRROR" in str(caught.value.fix)
    assert "IMAGEGEN_DEBIAN_MIRROR" not in str(caught.value.fix)


def test_another_kind_of_base_is_refused(tmp_path: Path) -> None:
    base = Base("x", "oci", "bookworm", None, "debian12", "2.36", {}, "")
    with pytest.raises(BaseError, match="unknown kind 'oci'"):
        resolve(base, settings(tmp_path), Quiet())


def test_what_cannot_be_a_package_never_reaches_apt(tmp_path: Path) -> None:
    packages = {"--purge": "", "python3-": "", "g++": "", "libc6:i386": "", "apt=1.0": ""}
    base = Base("x", "debian", "bookworm", None, "debian12", "2.36", packages, "")
    with pytest.raises(BaseError) as caught:
        resolve(base, settings(tmp_path), Quiet())
    assert "'--purge', 'python3-', 'libc6:i386', 'apt=1.0'" in caught.value.what
