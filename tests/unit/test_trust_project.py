"""publish.yaml: what it says, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagegen.core.errors import MOST, MatrixError, MatrixErrors
from imagegen.trust.project import Identity, Key, Project, load
from tests.support.golden import Golden


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "publish.yaml").write_text(text)
    return tmp_path


def test_a_project_without_the_file_trusts_no_signer(tmp_path: Path) -> None:
    assert load(tmp_path) == Project()


@pytest.mark.parametrize("both", [False, True])
def test_a_misspelt_file_is_refused(both: bool, tmp_path: Path, golden: Golden) -> None:
    path = (write(tmp_path, "publish: {}") if both else tmp_path) / "publish.yml"
    path.symlink_to("nowhere")
    with pytest.raises(MatrixError) as caught:
        load(tmp_path)
    golden.check(caught.value)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("target", ["nowhere", "/nowhere/publish.yaml", "publish.yaml"])
def test_a_link_that_leads_nowhere_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "publish.yaml").symlink_to(target)
    with pytest.raises(MatrixError) as caught:
        load(tmp_path)
    assert caught.value.where == str(tmp_path / "publish.yaml")


def test_all_of_it_is_read(tmp_path: Path) -> None:
    text = """
publish:
  to: ghcr.io/acme/rl
  source: https://github.com/acme/images
  keys: {release: keys/release.pub}
  identities:
    ci: {issuer: https://token.example, subject: https://github.com/acme/images/nightly.yml@refs/heads/main}
    own: {issuer: https://gitlab.example, subject: ci, trust_root: keys/sigstore.json}
"""
    found = load(write(tmp_path, text))
    assert found == Project(
        "ghcr.io/acme/rl",
        "https://github.com/acme/images",
        (Key("release", tmp_path / "keys/release.pub"),),
        (
            Identity("ci", "https://token.example", "https://github.com/acme/images/nightly.yml@refs/heads/main"),
            Identity("own", "https://gitlab.example", "ci", tmp_path / "keys/sigstore.json"),
        ),
    )


@pytest.mark.fault(
    "Trust",
    "publish.yaml has 300 unknown keys",
    "100 are explained, each with its line, and how many more there are",
)
def test_faults_are_explained_up_to_a_number(tmp_path: Path) -> None:
    text = "publish:\n" + "".join(f"  k{each}: a\n" for each in range(3 * MOST))
    with pytest.raises(MatrixErrors) as caught:
        load(write(tmp_path, text))
    assert (len(caught.value.errors), caught.value.omitted) == (MOST, 2 * MOST)


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    text = """publish:
  sorce: https://github.com/acme/images
  identities:
    ci: {issuer: https://token.example}
"""
    with pytest.raises(MatrixErrors) as caught:
        load(write(tmp_path, text))
    said = str(caught.value)
    for part in ('publish.yaml:2:3: unknown key "sorce"', 'did you mean "source"?', "publish.yaml:4:5: the key"):
        assert part in said, said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "publish:\n",
            "1:9: publish: must be a mapping (`name: ...` lines), and is empty\n  fix: known here: to, source",
        ),
        ("publish: ghcr.io\n", "1:10: publish: must be a mapping (`name: ...` lines), and is 'ghcr.io'\n  fix: known"),
        (
            "- publish\n",
            "1:1: the file: must be a mapping (`name: ...` lines), and is a list\n  fix: known here: publish",
        ),
        ("publish:\n  keys: a.pub\n", "2:9: publish.keys: must be a mapping (`name: ...` lines), and is 'a.pub'"),
        ("publish:\n  identities: {ci: x}\n", "and is 'x'\n  fix: known here: issuer, subject, trust_root"),
    ],
)
def test_another_shape_is_described(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(MatrixErrors) as caught:
        load(write(tmp_path, text))
    assert said in str(caught.value)


def test_an_address_with_a_password_is_no_source(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(MatrixErrors) as caught:
        load(write(tmp_path, "publish:\n  source: https://me:secret@github.com/acme/images\n"))
    golden.check(caught.value)


@pytest.mark.parametrize("path", ["/etc/hostname", "../key.pub", "linked.pub", "linked/key.pub"])
@pytest.mark.parametrize("entry", ["keys: {k: %s}", "identities: {i: {issuer: a, subject: b, trust_root: %s}}"])
def test_a_file_outside_of_the_project_is_refused(path: str, entry: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "key.pub").write_text("secret")
    (project / "linked.pub").symlink_to(tmp_path / "key.pub")
    (project / "linked").symlink_to(tmp_path)
    write(project, f"publish:\n  {entry % path}\n")
    with pytest.raises(MatrixError) as caught:
        load(project)
    assert (caught.value.code, str(caught.value.where).split(":")[1]) == ("matrix-unreadable", "2")
