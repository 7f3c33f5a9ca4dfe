"""Installed environments as subjects of an audit: good ones, odd ones, hostile ones."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagegen.audit import contents
from imagegen.audit.model import Package, Subject
from imagegen.core.errors import UsageError
from imagegen.core.progress import Quiet
from imagegen.image.inventory import site_subject
from tests.support.elf_files import make_elf
from tests.support.file_trees import Things, To, below, on_disk, site_of
from tests.support.golden import Golden

VENV = "lib/python3.11/site-packages"
MODULE = make_elf(undefined=["PyList_New"])


class Said(Quiet):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def audited(root: Path, tree: Things, directory: str = VENV, said: Said | None = None) -> Subject:
    on_disk(root, tree)
    return site_subject.site_subject(root / directory, (), said or Said())


def by_name(subject: Subject) -> Mapping[str, Package]:
    assert len({package.name for package in subject.packages}) == len(subject.packages)
    return {package.name: package for package in subject.packages}


def test_distributions_are_what_their_records_say(tmp_path: Path) -> None:
    files = site_of(demo={"demo/__init__.py": b"x", "demo/_c.so": MODULE, "../../../bin/demo": b"#!", "gone.py": b""})
    tree = {f"{VENV}/{name}": data for name, data in files.items() if name != "gone.py"}
    tree[f"{VENV}/demo-1.0.dist-info/RECORD"] = (
        b"demo/__init__.py,sha256=LXEWQrcmsEQBYnyp-6wy9chTD7GQPMTbAiWHF5IaSIE,1\ndemo/_c.so,md5=abc,\n"
        b"../../../bin/demo,,\ngone.py,,\ndemo/__pycache__/__init__.cpython-311.pyc,,\n"
    )
    tree[f"{VENV}/demo/__pycache__/__init__.cpython-311.pyc"] = b"code"
    (package,) = audited(tmp_path, tree).packages
    assert (package.name, package.version, package.requires) == ("demo", "1.0", ("x>1",))
    assert package.tags == ("cp311-cp311-linux_x86_64",)
    info = {f"demo-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")}
    assert package.files.keys() == {"demo/__init__.py", "demo/_c.so", "../../../bin/demo", *info}
    assert package.files["demo/__init__.py"].sha256 == (
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    )
    module = package.files["demo/_c.so"]
    assert module.elf is not None and module.elf.undefined == {"PyList_New"}
    assert module.sha256 is None
    assert package.files["../../../bin/demo"].executable


def test_unowned_files_are_packages_by_their_directory(tmp_path: Path) -> None:
    files = {
        **site_of(demo={"demo/a.py": b""}),
        "demo/left.so": MODULE,
        "other/_c.so": MODULE,
        "one.py": b"",
        "two.py": b"",
    }
    packages = by_name(audited(tmp_path, below(VENV, files)))
    assert {name: set(package.files) for name, package in packages.items() if name != "demo"} == {
        "(unowned)": {"one.py", "two.py"}, "(unowned) demo": {"demo/left.so"}, "(unowned) other": {"other/_c.so"}
    }  # fmt: skip


def test_old_distributions_own_what_their_names_say(tmp_path: Path) -> None:
    files = {
        "old-2.0.egg-info/PKG-INFO": b"Name: Old\nVersion: 2.0\n",
        "old-2.0.egg-info/installed-files.txt": b"../old/a.py\n../../../../bin/old\n../../../../../../etc/passwd\n",
        "old/a.py": b"", "old/mine.so": MODULE,
        "debian-3.egg-info": b"Name: debian\nVersion: 3\n", "debian/b.so": MODULE,
        "numpy-1.dist-info/METADATA": b"Name: numpy\nVersion: 1\n", "numpy-1.dist-info/top_level.txt": b"numpy\n_np\n",
        "numpy/c.so": MODULE, "_np.cpython-311-x86_64-linux-gnu.so": MODULE, "_np2.so": MODULE,
    }  # fmt: skip
    packages = by_name(audited(tmp_path, {**below(VENV, files), "bin/old": b""}))
    assert packages["old"].files.keys() >= {"old/a.py", "../../../bin/old"}
    assert not any("passwd" in path for path in packages["old"].files)
    assert "debian/b.so" in packages["debian"].files
    assert packages["numpy"].files.keys() >= {"numpy/c.so", "_np.cpython-311-x86_64-linux-gnu.so"}
    assert set(packages) == {"old", "debian", "numpy", "(unowned)", "(unowned) old"}


def test_one_directory_under_two_names_counts_once(tmp_path: Path) -> None:
    tree = {
        **below(VENV, site_of(demo={"demo/_c.so": MODULE})), "lib64": To("lib"),
        f"{VENV}/alias": To("demo"), f"{VENV}/linked.so": To("demo/_c.so"),
    }  # fmt: skip
    subject = audited(tmp_path, tree)
    assert audited(tmp_path, {}, "lib64/python3.11/site-packages").packages == subject.packages
    assert {path for package in subject.packages for path, file in package.files.items() if file.elf} == {
        "demo/_c.so", "linked.so"
    }  # fmt: skip


def test_editable_installs_are_named(tmp_path: Path, golden: Golden) -> None:
    files = site_of(mine={"__editable__.mine.pth": b"/src"}, other={"other.py": b""})
    files["mine-1.0.dist-info/direct_url.json"] = b'{"url": "file:///src", "dir_info": {"editable": true}}'
    files["other-1.0.dist-info/direct_url.json"] = b'{"url": "file:///src", "dir_info": {}}'
    said = Said()
    audited(tmp_path, below(VENV, files), said=said)
    golden.check(said.lines)


@pytest.mark.parametrize(
    ("tree", "directory", "python"),
    [
        ({"lib/python3.12/site-packages/": None}, "lib/python3.12/site-packages", "3.12"),
        ({"target/_c.cpython-310-x86_64-linux-gnu.so": MODULE}, "target", "3.10"),
        ({"target/_c.cpython-310-x86_64-linux-gnu.so": b"", "target/_c.cpython-311-x86_64-linux-gnu.so": b""},
         "target", None),
        ({"usr/lib/python3/dist-packages/_c.cpython-311-x86_64-linux-gnu.so": MODULE},
         "usr/lib/python3/dist-packages", "3.11"),
    ],
)  # fmt: skip
def test_the_python_is_known_by_the_path_or_by_the_modules(
    tree: Things, directory: str, python: str | None, tmp_path: Path
) -> None:
    demo = site_of(("py3-none-any",), demo={"demo.py": b""})
    assert audited(tmp_path, {**tree, **below(directory, demo)}, directory).python == python


def test_modules_for_another_python_do_not_hide_which_one_it_is(tmp_path: Path) -> None:
    """Some bring modules for 3.10 alone, whatever Python they are installed for (torchao), others one for each."""
    modules = {f"gemm/_c.cpython-{each}-x86_64-linux-gnu.so": MODULE for each in (310, 311, 312)}
    odd = {"ao/_c.cpython-310-x86_64-linux-gnu.so": MODULE}
    own = {"numpy/_c.cpython-312-x86_64-linux-gnu.so": MODULE}
    tree = below("target", site_of(("py3-none-any",), ao=odd, gemm=modules, numpy=own, six={"six.py": b""}))
    assert audited(tmp_path / "one", tree, "target").python is None  # as many say 3.10 as say 3.12
    tree |= below("target", site_of(("cp312-cp312-linux_x86_64",), torch={"torch.py": b""}))
    assert audited(tmp_path / "two", tree, "target").python == "3.12"
    tree |= below("target", site_of(("cp39-abi3-linux_x86_64",), other={"other.py": b""}))
    tree |= below("target", site_of(("cp311-cp311-linux_x86_64",), left={"left.py": b""}))
    assert audited(tmp_path / "three", tree, "target").python is None  # as many wheels are for 3.11
    tree |= below("target", site_of(("cp312-cp312-linux_x86_64",), more={"more.py": b""}))
    assert audited(tmp_path / "four", tree, "target").python == "3.12"


def test_the_system_is_that_of_the_root_around(tmp_path: Path) -> None:
    """For a mounted image, and for Debian's own Python in it."""
    program = make_elf(needed=["libc.so.6"], exported=["Py_Initialize"], interpreter="/lib64/ld.so")
    tree = {
        "etc/os-release": To("../usr/lib/os-release"),
        "usr/lib/libc.so.6": make_elf(soname="its own"),
        "usr/bin/python3": To("python3.11"),
        "usr/bin/python3.11": program,
        **below("usr/local/lib/python3.11/dist-packages", site_of(demo={"demo.py": b""}, both={"both.py": b"1"})),
        **below("usr/lib/python3/dist-packages", site_of(apt={"apt/_c.so": MODULE}, both={"both.py": b"2"})),
    }
    subject = audited(tmp_path, tree, "usr/local/lib/python3.11/dist-packages")
    assert subject.system is not None and subject.system.interpreter is not None
    assert [file.elf.soname for file in subject.system.libraries.values() if file.elf] == ["its own"]
    packages = by_name(subject)
    assert set(packages) == {"demo", "apt", "both"}
    assert "../../../../lib/python3/dist-packages/apt/_c.so" in packages["apt"].files
    assert "both.py" in packages["both"].files


def test_modules_that_no_python_uses_have_no_system(tmp_path: Path, golden: Golden) -> None:
    said = Said()
    subject = audited(tmp_path, below("target", site_of(demo={"demo.py": b""})), "target", said)
    assert subject.system is None
    golden.check(said.lines)


@pytest.mark.fault("Audits", "an environment holds odd names, pipes, cut files", "findings, and nothing is followed")
def test_what_lies_in_an_environment_is_taken_for_what_it_is(tmp_path: Path) -> None:
    files = site_of(demo={"demo/a.so": MODULE, "demo/pipe.so": MODULE, "demo/cut.so": MODULE, "demo/locked.so": MODULE})
    files["demo-1.0.dist-info/RECORD"] += b"/etc/passwd,,\n../../../../../../../etc/hostname,,\n,,\nx\ndemo,,\n"
    tree = {**below(VENV, files), f"{VENV}/demo/loop": To("."), f"{VENV}/evil-1.dist-info/METADATA": b"\xff\0\n",
            f"{VENV}/evil-1.dist-info/RECORD": b'"' + b"a" * 200_000 + b"\n",
            f"{VENV}/passwd": To("/etc/passwd"), f"{VENV}/huge": To("/dev/zero")}  # fmt: skip
    on_disk(tmp_path, tree)
    demo = tmp_path / VENV / "demo"
    (demo / "pipe.so").unlink()
    os.mkfifo(demo / "pipe.so")
    (demo / "cut.so").write_bytes(MODULE[:80])
    os.rename(os.fsencode(demo / "a.so"), os.path.join(os.fsencode(demo), b"a\xff\x1b.so"))
    packages = by_name(audited(tmp_path, {}))
    assert packages["demo"].files["demo/cut.so"].unreadable
    assert "demo/pipe.so" not in packages["demo"].files
    assert not any("etc" in path for path in packages["demo"].files)
    assert "demo/a\\xff\x1b.so" in packages["(unowned) demo"].files
    assert packages["evil"].files["evil-1.dist-info/RECORD"].unreadable
    assert "".join(path for package in packages.values() for path in package.files).encode()


@pytest.mark.parametrize(
    ("directory", "why"), [("missing", "not a directory"), ("loop", "not a directory"), ("", "nothing is installed")]
)
def test_where_nothing_is_installed_is_an_error(directory: str, why: str, tmp_path: Path) -> None:
    on_disk(tmp_path, {**below(VENV, site_of(demo={"demo.py": b""})), "loop": To("loop")})
    with pytest.raises(UsageError, match=why) as raised:
        site_subject.site_subject(tmp_path / directory, (), Said())
    assert directory or str(raised.value.fix).endswith(VENV)


_BASE, _OVER = b"the base's", b"of the one that lies over it"


@pytest.mark.parametrize(
    ("requires", "there", "clashes"),
    [
        (b"Base[gpu]==1.0", (_OVER, _OVER), False),
        (b"base", (_BASE, _BASE), True),  # installed in the wrong order
        (b"base", (_OVER, _BASE), True),  # a part of each
        (b"based", (_OVER, _OVER), True),  # the intended owner is not known
    ],
)
def test_what_lies_over_a_package_that_it_requires_is_no_clash(
    tmp_path: Path, requires: bytes, there: tuple[bytes, bytes], clashes: bool
) -> None:
    tree: dict[str, bytes] = {f"{VENV}/m/{name}.py": data for name, data in zip("ab", there, strict=True)}
    for name, content, wants in (("base", _BASE, b"numpy"), ("over", _OVER, requires)):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        info = f"{VENV}/{name}-1.0.dist-info"
        tree[f"{info}/METADATA"] = b"Name: %s\nVersion: 1.0\nRequires-Dist: %s\n" % (name.encode(), wants)
        tree[f"{info}/RECORD"] = b"".join(
            b"m/%s.py,sha256=%s,%d\n" % (each, digest, len(content)) for each in (b"a", b"b")
        )
    found = [finding.id for finding in contents.check(audited(tmp_path, tree))]
    assert found == ["file-clash"] * clashes
