"""requirements.txt: pip is the oracle of lines and comments; what is required is recovered, the rest is named."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.req.req_file import preprocess

from imagegen.core.errors import ProjectFileError
from imagegen.projects import requirements
from imagegen.projects.model import MarkerTarget, Recovered

HERE = Path("elsewhere/requirements.txt")  # beside no pyproject.toml


def recover(text: str, path: Path = HERE) -> Recovered:
    return requirements.parse(text, path).recover(MarkerTarget("3.11"))


def pins(found: Recovered) -> dict[str, str]:
    return {pin.package: pin.specifier for pin in found.pins}


# No "$": pip expands variables in the same step.
TEXTS = st.text(st.sampled_from("ab=1 .-\\#\n\t\r;'\""), max_size=80)


@given(TEXTS)
def test_lines_are_joined_and_comments_stripped_as_pip_does(text: str) -> None:
    ours = list(requirements.logical_lines(text))
    theirs = [(number, line.strip()) for number, line in preprocess(text) if line.strip()]
    assert ours == theirs


NAMES = st.from_regex(r"[a-z]{1,8}(-[a-z0-9]{1,5})?", fullmatch=True)
VERSIONS = st.from_regex(r"(0|[1-9][0-9]?)(\.(0|[1-9][0-9]?)){0,2}", fullmatch=True)
ENDINGS = st.sampled_from(["", " ", "  # a comment", " \\\n   ", " \\\n  --hash=sha256:" + "a" * 64])


@given(st.dictionaries(NAMES, st.tuples(VERSIONS, ENDINGS, st.booleans()), min_size=1, max_size=6))
def test_each_pin_is_recovered_with_its_line(wanted: dict[str, tuple[str, str, bool]]) -> None:
    text, line, expected = "", 1, {}
    for name, (version, ending, comment) in wanted.items():
        rows = ("# why\n" if comment else "") + f"{name} == {version}{ending}\n"
        expected[name] = (f"=={version}", line + comment)
        text += rows
        line += rows.count("\n")
    found = {pin.package: (pin.specifier, pin.places[0].line) for pin in recover(text).pins}
    assert found == expected


@given(st.text(max_size=60) | TEXTS)
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ProjectFileError):
        assert all(pin.places[0].line for pin in recover(text).pins)


def test_markers_extras_and_labels() -> None:
    found = recover(
        'a[x,y_z]>=1,<2 ; python_version >= "3.11"\n'
        'b==1; sys_platform == "win32"\n'
        "torch==2.8.0+cu128 --hash=sha256:" + "0" * 64 + "\n"
        "c===3.0\n"
    )
    assert pins(found) == {"a": "<2,>=1", "torch": "==2.8.0+cu128", "c": "==3.0"}
    assert found.pins[0].extras == ("x", "y-z")
    assert found.other_platforms == 1


def test_files_that_are_named_are_read_from_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/more.txt").write_text("b\n-c bounds.txt\n")
    (tmp_path / "sub/bounds.txt").write_text("b<2\na!=1.5\nunused==1\n")
    found = recover("a>=1\n-r sub/more.txt\n", tmp_path / "requirements.txt")
    assert pins(found) == {"a": ">=1,!=1.5", "b": "<2"}
    places = [(Path(str(each.file)).name, each.line) for each in found.pins[1].places]
    assert places == [("more.txt", 1), ("bounds.txt", 1)]
    (unused,) = found.omissions
    assert "unused" in unused.what
    assert not unused.is_package


def test_indexes_are_kept_with_their_lines() -> None:
    found = recover("-i https://a.example/simple\n--extra-index-url=https://b.example/whl/cu128\na\n")
    assert {address: place.line for address, place in found.indexes.items()} == {
        "https://a.example/simple": 1,
        "https://b.example/whl/cu128": 2,
    }


@pytest.mark.parametrize(
    ("line", "is_package"),
    [
        ("-e .", True),
        ("./local", True),
        ("git+https://example.org/a.git@main#egg=a", True),
        ("a @ git+https://example.org/a.git@main", True),
        ("a @ https://example.org/a-1.tar.gz", True),
        ("https://example.org/a-1.zip", True),
        ("-r https://example.org/requirements.txt", True),
        ("a==${VERSION}", True),
        ("--find-links https://example.org/wheels", False),
        ("--pre", False),
        ("--no-binary :all:", False),
    ],
)
def test_lines_that_an_entry_cannot_express_are_named(line: str, is_package: bool) -> None:
    (omission,) = recover(f"\n{line}\n").omissions
    assert (omission.place.line, omission.is_package) == (2, is_package)
    assert omission.why
    assert omission.fix


@pytest.mark.parametrize("line", ["a @ {}", "{}"])
def test_a_wheel_gives_its_release_and_its_address_is_named(line: str) -> None:
    address = "https://example.org/a/a-1.2+cu12-cp311-cp311-linux_x86_64.whl"
    found = recover(line.format(address))
    assert pins(found) == {"a": "==1.2"}
    assert [each.is_package for each in found.omissions] == [False]


def test_no_credentials_are_shown() -> None:
    found = recover("a @ https://user:secret@example.org/a-1.tar.gz\ngit+https://token@example.org/b.git\n")
    assert "secret" not in str(found.omissions)
    assert "token" not in str(found.omissions)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb ==\n", 2),
        ("a==1\na==2\n", 2),
        ("--frobnicate\n", 1),
        ("a --hash\n", 1),
        ("a==1 --hash=md5:" + "0" * 32, 1),
        ("a==1 --hash=sha256:xyz", 1),
        (f"a==1 --hash=sha256:{'a' * 64}\na==1 --hash=sha256:{'b' * 64}\n", 2),
        ("-r missing.txt\n", 1),
        ("a ; python_version > \n", 1),
        ('a "\n', 1),
        ("--pre=1\n", 1),
    ],
)
def test_malformed_files_are_refused_with_the_line(text: str, line: int) -> None:
    with pytest.raises(ProjectFileError) as raised:
        recover(text)
    assert raised.value.code.startswith("project-")
    assert raised.value.where.line == line


def test_all_errors_of_a_file_are_reported_at_once() -> None:
    with pytest.raises(ProjectFileError) as raised:
        recover("a ==\nc\nb ==\n")
    assert [each["where"] for each in raised.value.as_dict()["errors"]] == [f"{HERE}:1", f"{HERE}:3"]


def test_files_that_name_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    (tmp_path / "b.txt").write_text("-r a.txt\n")
    with pytest.raises(ProjectFileError) as raised:
        requirements.read(tmp_path / "a.txt")
    assert raised.value.code == "project-malformed"
