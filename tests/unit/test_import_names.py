"""matrices/imports/*.json: names that imports need, the releases that lack them, the file, and the rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.audit.api.conditions import PYTHON, VersionTest
from imagegen.compat import import_names
from imagegen.compat.api import api_rules
from imagegen.compat.import_names import ImportNames
from imagegen.compat.package_names import SharedName
from imagegen.core.data import shipped
from tools.harvest.imports import NeededName, Needs, Provider, RefusedVersion, rows, undecided
from tools.harvest.names_files import dump_imports

HUB = ["0.24.0", "0.25.0", "1.0.0", "1.1.0"]
DIRECTORY = shipped("matrices")


def provider_of(name: str) -> str | None:
    return {"huggingface_hub": "hub", "hub": "hub", "numpy": "numpy"}.get(name.partition(".")[0])


def hub(**missing: str) -> dict[str, Provider]:
    """Return a provider; `missing` maps the last part of a name to the releases that lack it, with spaces."""
    lacked = {
        release: {
            (f"huggingface_hub.{name}", 1): f"huggingface_hub.{name}" for name in missing if release in missing[name]
        }
        for release in HUB
    }
    return {"hub": Provider(HUB, ["0.1", *HUB], lacked)}


def needs(name: str, *tests: VersionTest) -> Needs:
    return Needs((NeededName(f"huggingface_hub.{name}", 1, "gradio/oauth.py", 7, tests),))


def spans(needs: dict[str, Needs], **missing: str) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    found = rows(needs, hub(**missing), provider_of)
    return [(row.name.rpartition(".")[2], row.required_by, row.lacked_by) for row in found]


def test_a_name_has_spans_of_releases_on_both_sides() -> None:
    by_release = {"4.0": needs("HfFolder"), "4.1": needs("HfFolder"), "5.0": needs("HfApi")}
    assert spans(by_release, HfFolder="1.0.0 1.1.0") == [("HfFolder", (">=4.0,<=4.1",), (">=1.0.0",))]


def test_a_name_that_every_release_lacks_is_left_out() -> None:
    assert spans({"4.0": needs("computed")}, computed=" ".join(HUB)) == []


def test_a_version_test_is_asked_of_each_release() -> None:
    newer = VersionTest("huggingface_hub", ">=", "0.25")
    assert spans({"4.0": needs("New", newer)}, New="0.24.0 0.25.0") == [("New", ("==4.0",), (">=0.25.0,<1.0.0",))]
    older = VersionTest("huggingface_hub", "<", "0.25")
    assert spans({"4.0": needs("Old", older)}, Old="1.0.0 1.1.0") == []


def test_a_version_test_of_a_third_package_leaves_the_name_out() -> None:
    assert spans({"4.0": needs("New", VersionTest("numpy", ">=", "2"))}, New="0.24.0") == []


def test_one_name_stands_for_all_that_fail_with_the_same_releases() -> None:
    both = Needs((*needs("Few").names, *needs("Many").names))
    assert spans({"4.0": both}, Few="0.24.0", Many="0.24.0 0.25.0") == [("Many", ("==4.0",), ("<1.0.0",))]


def test_a_missing_module_counts_for_the_names_in_it() -> None:
    needed = NeededName("huggingface_hub.errors.X", 2, "a.py", 1)
    key = (needed.name, 2)
    lacked = {"0.24.0": {key: "huggingface_hub.errors"}, "0.25.0": {key: needed.name}, "1.0.0": {}, "1.1.0": {}}
    (row,) = rows({"4.0": Needs((needed,))}, {"hub": Provider(HUB, HUB, lacked)}, provider_of)
    assert (row.name, row.module, row.lacked_by) == ("huggingface_hub.errors.X", False, ("<1.0.0",))


def test_releases_that_were_not_read_count_between_two_that_lack_the_name() -> None:
    provider = Provider(["0.2", "0.4", "0.6"], ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"], {})
    assert provider.spans(["0.2", "0.4"]) == ("<0.5",)
    assert provider.spans(["0.4"]) == (">=0.4,<0.5",)
    assert provider.spans(["0.4", "0.6"]) == (">=0.4",)


def test_a_refusal_is_a_span_of_all_published_releases() -> None:
    refusal = RefusedVersion("a.py", 3, (VersionTest("huggingface_hub", "<", "0.25"),))
    third = RefusedVersion("a.py", 4, (VersionTest("huggingface_hub", ">", "1"), VersionTest("numpy", "<", "2")))
    (row,) = rows({"4.0": Needs((), (refusal, third))}, hub(), provider_of)
    assert (row.provider, row.name, row.line, row.lacked_by) == ("hub", "", 3, ("<0.25.0",))


def test_own_releases_and_python_decide_their_tests() -> None:
    def installed(name: str) -> Version | None:
        return Version("4.0") if name == "gradio" else None

    new, old = VersionTest("gradio", ">=", "4"), VersionTest("gradio", "<", "4")
    other = VersionTest("torch", "<", "2.6")
    assert undecided([new, other, other], installed) == (other,)
    assert undecided([old, other], installed) is None
    assert undecided([VersionTest(PYTHON, ">=", "3.10")], installed) == ()
    assert undecided([VersionTest(PYTHON, ">=", "3.12")], installed) is None


SPECIFIERS = st.lists(st.sampled_from(["<0.5", ">=0.4,<0.5", "==0.6"]), max_size=2).map(tuple)
TEXTS = st.text(max_size=6)
ROWS = st.builds(
    SharedName, TEXTS, TEXTS, st.booleans(), TEXTS, st.integers(1, 9), st.just(True), SPECIFIERS, SPECIFIERS
)


@given(TEXTS, st.lists(ROWS, max_size=3), SPECIFIERS, st.dictionaries(TEXTS, SPECIFIERS, max_size=2))
def test_what_is_written_is_read(
    name: str, names: list[SharedName], releases: tuple[str, ...], providers: dict[str, tuple[str, ...]]
) -> None:
    table = ImportNames(name, "2026-11-28", releases, providers, tuple(sorted(names)))
    assert import_names.parse(dump_imports(table)) == table


@given(st.binary(max_size=50) | st.sampled_from([b"[]", b"{}", b'{"names": 1}', b'{"names": {"a": [[1]]}}']))
def test_another_file_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them
        import_names.parse(raw)


def test_a_pair_is_examined_if_both_releases_were_read() -> None:
    table = ImportNames("gradio", "", (">=4.0,<=4.2", "==4.4"), {"hub": (">=0.24.0,<=1.1.0",)})
    assert table.examined("4.1", "hub", "1.0.0")
    assert table.examined("4.1", "numpy", "1.26.4")  # which it does not import
    assert not table.examined("4.3", "hub", "1.0.0")
    assert not table.examined("4.1", "hub", "1.2.0")
    assert table.examined("4.4", "hub", "0.25.0+local")
    assert not table.examined("4.2rc1", "hub", "1.0.0")


def test_rules_say_what_an_import_needs_and_refuses(tmp_path: Path) -> None:
    rest = ("gradio/oauth.py", 7, True, ("==4.0",))
    missing = SharedName("hub", "huggingface_hub.HfFolder", False, *rest, (">=1.0.0",))
    refused = SharedName("hub", "", False, *rest, ("<0.25.0",))
    path = import_names.path_of(tmp_path, "gradio")
    path.parent.mkdir()
    path.write_bytes(dump_imports(ImportNames("gradio", "2026-11-28", names=(missing, refused))))
    by_id = {rule.id: rule for rule in api_rules([tmp_path], "gradio")}
    assert set(by_id) == {"api-gradio-hub-HfFolder", "api-gradio-hub-version"}
    assert {rule.severity for rule in by_id.values()} == {"error"}
    assert by_id["api-gradio-hub-version"].conflict == {"hub": "<0.25.0"}


def test_shipped_files_are_as_they_would_be_written_and_small() -> None:
    size = 0
    for name in import_names.names([DIRECTORY]):
        raw = import_names.path_of(DIRECTORY, name).read_bytes()
        assert dump_imports(import_names.parse(raw)) == raw
        size += len(raw)
    assert 0 < size < 1 << 20
