"""The shipped recipes against the package index: sources by hash, what they require, patches that fit them."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagegen.core.config import Settings
from imagegen.core.net import Client, package_index
from imagegen.core.wheel_target import WheelTarget
from imagegen.spec.recipe import Recipe, SdistFile
from tests.support.matrix_samples import shipped_matrix_and_recipes

pytestmark = pytest.mark.integration

MATRIX = shipped_matrix_and_recipes()
OLDEST_GLIBC = 35  # of the bases of kind registry; Debian's is newer


def sdist(recipe: Recipe, version: str, settings: Settings) -> bytes:
    """The bytes that the index serves for a release, which must be those that the recipe means."""
    source = recipe.releases[version]
    assert isinstance(source, SdistFile)
    url, client = package_index.url_of(package_index.DEFAULT, settings), Client(settings)
    assert url
    links = package_index.project(client, url, recipe.component)
    (link,) = (link for link in links if link.filename == source.filename)
    assert link.sha256 in (source.sha256, None)
    content = client.get(link.url)
    assert (len(content), hashlib.sha256(content).hexdigest()) == (source.size, source.sha256)
    return content


@pytest.mark.parametrize(
    ("name", "version"),
    [
        (name, version)
        for name, recipe in sorted(MATRIX.recipes.items())
        for version, source in recipe.releases.items()
        if isinstance(source, SdistFile)
    ],
)
def test_a_source_is_what_its_recipe_says(name: str, version: str, settings: Settings, tmp_path: Path) -> None:
    recipe = MATRIX.recipes[name].of(version)
    with tarfile.open(fileobj=io.BytesIO(sdist(recipe, version, settings))) as archive:
        root = archive.getnames()[0].split("/")[0]
        stated = archive.extractfile(f"{root}/PKG-INFO")
        assert stated
        said = message_from_bytes(stated.read())
        for script in ("setup.py", "build_tools/pytorch.py"):
            if f"{root}/{script}" in archive.getnames():
                archive.extract(f"{root}/{script}", tmp_path, filter="data")
    assert (canonicalize_name(said["Name"]), said["Version"]) == (name, version)
    requires = {str(Requirement(each)) for each in said.get_all("Requires-Dist", [])}
    if name == "transformer-engine-torch":  # the wheel names the core of the CUDA that it is built with, the sdist one
        requires = {each.replace("_cu12==", "_cu13==") for each in requires}
    assert {str(Requirement(each)) for each in recipe.requires} == requires
    for patch in recipe.patches:
        subprocess.run(["git", "apply", "--check", str(patch.path)], cwd=tmp_path / root, check=True)


def test_every_build_requirement_is_a_wheel_for_every_python(settings: Settings) -> None:
    url, client = package_index.url_of(package_index.DEFAULT, settings), Client(settings)
    assert url
    for pin in sorted({pin for recipe in MATRIX.recipes.values() for pin in recipe.build_requires}):
        requested = Requirement(pin)
        files = [(each.filename, each) for each in package_index.project(client, url, requested.name)]
        (version,) = (each.version for each in requested.specifier)
        named = [(name, link) for name, link in files if name.split("-")[1] == version]
        for python in MATRIX.axes["python"]:
            assert WheelTarget(python, "x86_64", OLDEST_GLIBC).best(named), f"{pin} for Python {python}"
