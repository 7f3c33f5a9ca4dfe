"""Parsing of apt's data: packages, Release files, mirrors."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.core.progress import Quiet
from imagegen.image.base.apt import list_name, parse_release
from imagegen.image.base.mirrors import mirrors, parse_targets, roots
from imagegen.image.base.resolution import parse_uris, resolve
from imagegen.lock.distributions import archive_at, release
from imagegen.lock.foundation import LockedDeb
from imagegen.spec.foundation import Base
from tests.support.errors import raises
from tests.support.timing import within

ROOTS = {"debian": "http://mirror.example/debian", "debian-security": "http://mirror.example/debian/security"}
DEBIAN = ("debian", "debian-security")
TEXT = st.text("abz019.+~-", min_size=1, max_size=12)


def settings(tmp_path: Path, **env: str) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path), "PATH": str(tmp_path), **env})


def line(deb: LockedDeb) -> str:
    """Return a line of apt-get --print-uris: epochs and underscores quoted in the file name, more in the URI."""
    fields = "_".join(quote(part, safe="+~") for part in (deb.name, deb.version, deb.architecture))
    return f"'{ROOTS[deb.archive]}/{quote(deb.path)}' {fields}.deb {deb.size} SHA256:{deb.sha256}"


@st.composite
def packages(draw: st.DrawFn) -> list[LockedDeb]:
    debs = []
    for name in draw(st.lists(TEXT, unique=True, max_size=5)):
        version = draw(st.one_of(TEXT, TEXT.map(lambda version: f"1:{version}")))
        digest = draw(st.text("0123456789abcdef", min_size=64, max_size=64))
        archive = draw(st.sampled_from(sorted(ROOTS)))
        path = f"pool/main/{name}/{name}_{version.removeprefix('1:')}_amd64.deb"
        debs.append(LockedDeb(name, version, "amd64", draw(st.integers(0, 10**9)), digest, archive, path))
    return debs


@given(packages())
def test_packages_are_read_back_as_apt_wrote_them(debs: list[LockedDeb]) -> None:
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


def test_a_flat_archive_has_no_code_name() -> None:
    assert parse_release("Origin: NVIDIA\nDate: Sat, 11 Jul 2026 10:16:37 UTC\n") == ("", "2026-07-11T10:16:37Z")


@pytest.mark.parametrize("text", ["", "Codename: bookworm\n", "Codename: bookworm\nDate: yesterday\n"])
def test_a_release_file_without_a_date_is_refused(text: str) -> None:
    with raises("base-apt-failed"):
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
    found = mirrors(DEBIAN, settings(tmp_path, IMAGEGEN_DEBIAN_MIRROR="http://mine.example/d/"))
    assert found == {"debian": "http://mine.example/d", "debian-security": "http://h.example/s"}


def test_an_unknown_mirror_names_the_variable_to_set(tmp_path: Path) -> None:
    with pytest.raises(BaseError) as caught:
        mirrors(DEBIAN, settings(tmp_path, IMAGEGEN_DEBIAN_MIRROR="http://mine.example/d"))
    assert "IMAGEGEN_DEBIAN_SECURITY_MIRROR" in str(caught.value.fix)
    assert "IMAGEGEN_DEBIAN_MIRROR" not in str(caught.value.fix)


def test_an_archive_is_served_by_its_own_variable_its_hosts_or_itself(tmp_path: Path) -> None:
    cuda = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
    uris = {"ubuntu": "http://archive.ubuntu.com/ubuntu", archive_at(cuda): cuda}
    assert roots(uris, settings(tmp_path)) == uris
    found = roots(uris, settings(tmp_path, IMAGEGEN_APT_MIRROR_ARCHIVE_UBUNTU_COM="https://m.example/u/",
        IMAGEGEN_APT_MIRROR_DEVELOPER_DOWNLOAD_NVIDIA_COM="https://m.example/nvidia"))  # fmt: skip
    assert found == {
        "ubuntu": "https://m.example/u/ubuntu",
        archive_at(cuda): "https://m.example/nvidia/compute/cuda/repos/ubuntu2204/x86_64",
    }
    both = settings(tmp_path, IMAGEGEN_UBUNTU_MIRROR="file:///u", IMAGEGEN_APT_MIRROR_ARCHIVE_UBUNTU_COM="http://x/")
    assert roots({"ubuntu": uris["ubuntu"]}, both) == {"ubuntu": "file:///u"}


def test_an_archive_has_one_name_whatever_address_an_image_has_for_it() -> None:
    for uri in ("http://archive.ubuntu.com/ubuntu/", "https://security.ubuntu.com/ubuntu"):
        assert archive_at(uri) == "ubuntu"
    assert archive_at("http://security.debian.org/debian-security") == "debian-security"
    assert archive_at("https://other.example/ubuntu/") == "other.example/ubuntu"


def test_a_package_of_a_flat_archive_has_a_plain_path() -> None:
    text = f"'http://x.example/r/./a_1_amd64.deb' a_1_amd64.deb 5 SHA256:{'0' * 64}"
    (deb,) = parse_uris(text, {"x.example/r": "http://x.example/r"})
    assert deb.path == "a_1_amd64.deb"


def test_only_code_names_of_the_table_are_releases() -> None:
    assert (release("trixie").name, release("noble").name) == ("trixie", "noble")
    for name in ("stable", "sid", ""):
        with pytest.raises(BaseError):
            release(name)


def test_another_kind_of_base_is_refused(tmp_path: Path) -> None:
    base = Base("x", "oci", "bookworm", None, "debian12", "2.36", {}, "")
    with raises("base-unknown-kind"):
        resolve(base, "linux/amd64", settings(tmp_path), Quiet())


def test_what_cannot_be_a_package_never_reaches_apt(tmp_path: Path) -> None:
    packages = {"--purge": "", "python3-": "", "g++": "", "libc6:i386": "", "apt=1.0": ""}
    base = Base("x", "debian", "bookworm", None, "debian12", "2.36", packages, "")
    with pytest.raises(BaseError) as caught:
        resolve(base, "linux/amd64", settings(tmp_path), Quiet())
    assert "'--purge', 'python3-', 'libc6:i386', 'apt=1.0'" in caught.value.what


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("http://ftp.debian.org/debian/dists/bookworm/InRelease", "ftp.debian.org_debian_dists_bookworm_InRelease"),
        ("http://h.example:8080/a_b~c/InRelease", "h.example:8080_a%5fb%7ec_InRelease"),
        ("file:/srv/mirror/./Release", "_srv_mirror_._Release"),
    ],
)
def test_lists_are_found_under_the_names_that_apt_gives_them(uri: str, name: str) -> None:
    assert list_name(uri) == name
