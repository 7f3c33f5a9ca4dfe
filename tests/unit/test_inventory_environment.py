"""The directories of modules that a program uses, found in file trees without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagegen.image.inventory.environments import Environment, all_sites, environment_of_path, environment_of_program
from tests.support.file_trees import Things, To, below, layered, site_of

DEMO = site_of(demo={"demo.py": b""})
SYSTEM: Things = {
    "usr/bin/python3": To("python3.11"), "usr/bin/python3.11": b"", "bin": To("usr/bin"),
    **below("usr/lib/python3/dist-packages", DEMO), **below("usr/local/lib/python3.11/dist-packages", DEMO),
}  # fmt: skip
VENV: Things = {
    "venv/bin/python": To("/bin/python3"), "venv/lib64": To("lib"), **below("venv/lib/python3.11/site-packages", DEMO),
}  # fmt: skip
OWN = ("/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages")
INSIDE = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("tree", "variables", "sites"),
    [
        ({}, {}, OWN),
        ({}, {"PATH": "relative:/bin"}, OWN),
        (VENV, {"PATH": "/venv/bin:/bin"}, OWN),  # a link into a prefix without pyvenv.cfg is no venv
        ({**VENV, "venv/pyvenv.cfg": b"home = /bin\nversion = 3.11\n"}, {"PATH": "/venv/bin:/bin"}, (INSIDE,)),
        ({**VENV, "venv/pyvenv.cfg": b"Include-System-Site-Packages = TRUE\nhome=/bin\n"}, {"PATH": "/venv/bin"},
         (INSIDE, *OWN)),
        ({**below("src", DEMO), "work/file": b""}, {"PYTHONPATH": "/work:/src:/missing"}, (*OWN, "/src")),
        ({"conda/bin/python": To("python3.12"), "conda/bin/python3.12": b"",
          **below("conda/lib/python3.12/site-packages", DEMO)}, {"PATH": "/conda/bin"},
         ("/conda/lib/python3.12/site-packages",)),
        ({"opt/bin/python": b"", **below("opt/lib/python3.9/site-packages", DEMO),
          **below("opt/lib/python3.10/site-packages", DEMO)}, {"PATH": "/opt/bin"},
         ("/opt/lib/python3.10/site-packages",)),
    ],
)  # fmt: skip
def test_what_a_program_imports_from(
    tree: Things, variables: dict[str, str], sites: tuple[str, ...], tmp_path: Path
) -> None:
    found = environment_of_path(layered(tmp_path, {**SYSTEM, **tree}), variables)
    assert isinstance(found, Environment) and found.sites == sites


def test_no_program_has_no_environment(tmp_path: Path) -> None:
    tree = layered(tmp_path, {"bin/python": To("nothing"), "bin/sh": b"", "opt/bin/python": b""})
    assert environment_of_path(tree, {}) is None
    assert environment_of_program(tree, "/opt/bin/python") is None


def test_each_directory_with_distributions_is_found_once(tmp_path: Path) -> None:
    found = all_sites(layered(tmp_path, {**SYSTEM, **VENV, "x/site-packages/only.py": b"", "alias": To("/venv")}))
    assert found == sorted([INSIDE, *OWN])
