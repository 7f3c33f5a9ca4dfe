"""The sources of an image's apt, in both forms, and its keyrings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import BaseError, Location
from imagegen.image.base.sources_list import (
    AptSuite,
    keys_of,
    parse_deb822,
    parse_lines,
    read_preferences,
    read_sources,
    trusted_keys,
)
from tests.support.golden import Golden
from tests.support.timing import within

UBUNTU = """\
Types: deb
URIs: http://archive.ubuntu.com/ubuntu/
Suites: noble noble-updates noble-backports
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

## Ubuntu security updates.
Types: deb deb-src
URIs: http://security.ubuntu.com/ubuntu/
Suites: noble-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBFufwdoBEADv
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://gone.example/debian
Suites: x
Components: main
Enabled: no
"""
NVIDIA = (
    "deb [arch=amd64 signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] "
    "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/ /\n"
)
WORD = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
ENTRY = st.builds(
    AptSuite,
    uri=st.builds("https://{}.example/{}".format, WORD, WORD),
    suite=WORD,
    components=st.lists(WORD, min_size=1, max_size=3, unique=True).map(tuple),
    signed_by=st.sampled_from(["", "/usr/share/keyrings/a.gpg", "0123456789ABCDEF0123456789ABCDEF01234567"]),
    valid_until=st.booleans(),
    where=st.just(Location("/f", 1)),
)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def line(entry: AptSuite) -> str:
    options = [f"signed-by={entry.signed_by}"] if entry.signed_by else []
    options += [] if entry.valid_until else ["check-valid-until=no"]
    brackets = f"[{' '.join(options)}] " if options else ""
    return f"deb {brackets}{entry.uri} {entry.suite} {' '.join(entry.components)}\n"


def stanza(entry: AptSuite) -> str:
    return (
        f"Types: deb\nURIs: {entry.uri}/\nSuites: {entry.suite}\nComponents: {' '.join(entry.components)}\n"
        f"Signed-By: {entry.signed_by}\nCheck-Valid-Until: {'yes' if entry.valid_until else 'no'}\n"
    )


def plain(entries: list[AptSuite | str]) -> list[object]:
    return [(e.uri, e.suite, e.components, e.signed_by, e.valid_until) for e in entries if isinstance(e, AptSuite)]


@given(st.lists(ENTRY, max_size=5))
def test_both_forms_say_the_same(entries: list[AptSuite]) -> None:
    lines = "# comment\n\n" + "".join(line(entry) + "deb-src http://x.example/ y z # source\n" for entry in entries)
    stanzas = "\n".join(stanza(entry) for entry in entries)
    assert plain(list(parse_lines(lines, "/f"))) == plain(list(entries))
    assert plain(list(parse_deb822(stanzas, "/f"))) == plain(list(entries))


@given(st.text("deb []=\n\thttps://a.Types:URISuites-#/.", max_size=200))
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    for parse in (parse_lines, parse_deb822):
        found: list[AptSuite | str] = []
        place: object = Location("/f", 1)
        try:
            found = list(parse(text, "/f"))
        except BaseError as error:
            place = error.where
        assert isinstance(place, Location)
        assert 1 <= (place.line or 0) <= len(text.splitlines()) + 1
        assert all(isinstance(each, str) or each.uri.startswith(("http://", "https://")) for each in found)


def test_ubuntus_form_has_pockets_components_and_a_key_of_its_own(golden: Golden) -> None:
    first, *others = parse_deb822(UBUNTU, "/etc/apt/sources.list.d/ubuntu.sources")
    assert first == AptSuite(
        "http://archive.ubuntu.com/ubuntu",
        "noble",
        ("main", "universe", "restricted", "multiverse"),
        "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
        True,
        Location("/etc/apt/sources.list.d/ubuntu.sources", 1),
    )
    assert [each.suite for each in others if isinstance(each, AptSuite)] == [
        "noble-updates",
        "noble-backports",
        "noble-security",
    ]
    last = others[-1]
    assert isinstance(last, AptSuite)
    golden.check(last.signed_by)
    assert last.where == Location("/etc/apt/sources.list.d/ubuntu.sources", 8)


def test_a_flat_archive_has_no_components() -> None:
    (found,) = parse_lines(NVIDIA, "/f")
    assert isinstance(found, AptSuite)
    assert (found.suite, found.components) == ("/", ())
    assert list(parse_lines(NVIDIA, "/f", "arm64")) == []


@pytest.mark.parametrize(
    "uri", ["cdrom:[x]/", "file:/etc", "copy:/srv", "mirror+https://m.example/list", "tor+http://x"]
)
def test_what_cannot_be_fetched_is_left_out(uri: str) -> None:
    assert list(parse_lines(f"deb {uri} bookworm main\n", "/f")) == [uri]


@pytest.mark.parametrize(
    "text",
    [
        "deb http://x.example/debian\n",  # no suite
        "deb http://x.example/debian bookworm\n",  # no component
        "deb http://x.example/debian ./ main\n",  # a flat archive with one
        "deb http://x.example/../etc bookworm main\n",
        "deb http://x.example/debian ../x/ \n",
        "deb http://user:password@x.example/debian bookworm main\n",
        "deb [signed-by] http://x.example/debian bookworm main\n",
        "deb http://x.example/debian boo$(uname) main\n",
        "debs http://x.example/debian bookworm main\n",
    ],
)
def test_a_line_that_apt_would_not_take_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(BaseError) as caught:
        list(parse_lines("\n" + text, "/etc/apt/sources.list"))
    assert caught.value.where == Location("/etc/apt/sources.list", 2)


@pytest.mark.fault(
    "Matrices, rules, locks", "a line of a base's sources.list on which a pattern would backtrack", "refused at once"
)
@pytest.mark.parametrize("suite", ["a" * 50_000 + "!", "a/" * 20_000 + "!", "./" + "a./" * 20_000, "a" * 50_000 + "//"])
def test_a_long_suite_is_refused_at_once(suite: str) -> None:
    with within(2), pytest.raises(BaseError) as caught:
        list(parse_lines(f"deb http://x.example/debian {suite} main\n", "/etc/apt/sources.list"))
    assert caught.value.where == Location("/etc/apt/sources.list", 1)


def test_trusted_means_nothing(tmp_path: Path) -> None:
    """An image's word that an archive need not be signed is not taken: apt gets no such option."""
    (found,) = parse_lines("deb [trusted=yes allow-insecure=yes] http://x.example/d s main\n", "/f")
    assert isinstance(found, AptSuite)
    assert found.signed_by == ""


def test_a_tree_is_read_as_its_own_apt_would(tmp_path: Path) -> None:
    made = tree(
        tmp_path / "tree",
        {
            "etc/apt/sources.list": "deb http://a.example/d s main\ndeb http://a.example/d/ s contrib main\n",
            "etc/apt/sources.list.d/b.sources": UBUNTU,
            "etc/apt/sources.list.d/c.list": NVIDIA + "deb cdrom:[x]/ s main\n",
            "etc/apt/sources.list.d/d.list.save": "nonsense",
            "etc/apt/trusted.gpg.d/one.gpg": "key",
            "etc/apt/preferences.d/pin": "Package: *",
            "etc/apt/preferences.d/old.bak": "x",
        },
    )
    entries, others = read_sources(made, "amd64")
    assert [(each.uri.partition("://")[2].partition(".")[0], each.suite, len(each.components)) for each in entries] == [
        ("a", "s", 2), ("archive", "noble", 4), ("archive", "noble-updates", 4), ("archive", "noble-backports", 4),
        ("security", "noble-security", 1), ("developer", "/", 0),
    ]  # fmt: skip
    assert others == ["cdrom:[x]/"]
    assert trusted_keys(made) == {"one.gpg": b"key"}
    assert read_preferences(made) == {"pin": b"Package: *"}
    assert read_sources(tmp_path, "amd64") == ([], [])


def test_keys_are_the_images_own(tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(b"of the host")
    made = tree(tmp_path / "tree", {"usr/share/keyrings/a.gpg": "binary", "usr/share/keyrings/b.asc": "-----BEGIN"})
    (made / "usr/share/keyrings/out.gpg").symlink_to(outside)

    def entry(signed_by: str) -> AptSuite:
        return AptSuite("http://x.example/d", "s", ("main",), signed_by, True, Location("/f", 3))

    paths = "/usr/share/keyrings/a.gpg, /usr/share/keyrings/b.asc"
    assert keys_of(entry(paths), made) == {"0.gpg": b"binary", "1.asc": b"-----BEGIN"}
    assert keys_of(entry(""), made) == ""
    fingerprint = "0123456789ABCDEF0123456789ABCDEF01234567"
    assert keys_of(entry(fingerprint), made) == fingerprint
    armored = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nx\n-----END PGP PUBLIC KEY BLOCK-----"
    assert keys_of(entry(armored), made) == {"inline.asc": armored.encode()}
    for wrong in ("/usr/share/keyrings/none.gpg", "/usr/share/keyrings/out.gpg", "../etc/shadow"):
        with pytest.raises(BaseError) as caught:
            keys_of(entry(wrong), made)
        assert caught.value.where == Location("/f", 3)
