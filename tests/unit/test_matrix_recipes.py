"""Loading of recipes: valid ones become the Recipe of a cell; faults are reported before anything compiles."""

from __future__ import annotations

import hashlib
import random
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.core.errors import MatrixErrors
from imagegen.core.git.submodule import Submodule
from imagegen.spec.model import EnvVar
from imagegen.spec.recipe import Architectures, Commit, Cost, LocalSource, Patch, SdistFile
from tests.support.golden import Golden
from tests.support.matrix_samples import SMALL, shipped_matrix_and_recipes

PATCH = b"--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-a\n+b\n"
DIGEST = hashlib.sha256(PATCH).hexdigest()
STACK = """\
components:
  fast: {description: f, compiled: true}
images:
  gpu:
    description: d
    purpose: p
    base: deb
    gpus: [sm_90]
    axes: {cuda: [cu130]}
    components: {fast: {version: ">=1.0", because: b}, torch: {because: t}}
  plain: {description: d, purpose: p, base: deb, components: {torch: {because: t}}}
"""
RECIPE = f"""\
recipes:
  fast:
    releases:
      "1.0":
        sdist: {{file: fast-1.0.tar.gz, sha256: {"a" * 64}, size: "1234"}}
      "1.1":
        git:
          url: https://example.org/fast
          commit: {"1a" * 20}
          tree: {"2a" * 20}
          ref: v1.1
          submodules:
            - {{path: third/b, url: "https://example.org/b", commit: {"3a" * 20}, tree: {"4a" * 20}}}
            - {{path: third/a, url: "https://example.org/a", commit: {"5a" * 20}, tree: {"6a" * 20}}}
        requires: [torch, einops]
        patches: []
      "0.9":
        path: ../fast/src
    requires: [torch]
    build_requires: [setuptools==81.0.0, ninja==1.13.2]
    against: [torch]
    patches:
      - {{file: patches/fast.patch, sha256: {DIGEST}, because: p}}
    env:
      FAST_FORCE_BUILD: {{value: "TRUE", because: e}}
    architectures:
      variable: FAST_ARCHS
      separator: ";"
      names: {{"9.0": "90", "12.0": "120"}}
    modules: [fast_cuda]
    jobs: MAX_JOBS
    threads: NVCC_THREADS
    toolkit: ">=11.7"
    cost: {{units: "73", seconds: "220.5", memory: 4.65 GB, largest: 7 GB, source: m}}
    source: s
"""
BLACKWELL = 'gpus:\n  sm_120: {capability: "12.0", family: blackwell, products: [RTX 5090], source: s}\n'


def project(root: Path, recipe: str = RECIPE) -> list[Path]:
    """A project's two directories: its matrices, and the recipe with its patch."""
    for name in ("matrices", "wheels/patches"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "matrices/a.yaml").write_text(SMALL)
    (root / "matrices/b.yaml").write_text(STACK)
    (root / "matrices/c.yaml").write_text(BLACKWELL)
    (root / "wheels/r.yaml").write_text(recipe)
    (root / "wheels/patches/fast.patch").write_bytes(PATCH)
    return [root / "matrices", root / "wheels"]


def complaint(root: Path, recipe: str) -> str:
    with pytest.raises(MatrixErrors) as raised:
        matrix.load(project(root, recipe))
    return str(raised.value).replace(f"{root}/", "")


def edit(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def test_a_recipe_is_read_completely(tmp_path: Path) -> None:
    recipe = matrix.load(project(tmp_path)).recipes["fast"]
    modules = (
        Submodule("third/a", "https://example.org/a", "5a" * 20, "6a" * 20),
        Submodule("third/b", "https://example.org/b", "3a" * 20, "4a" * 20),
    )
    assert recipe.releases == {
        "1.0": SdistFile("fast-1.0.tar.gz", "a" * 64, 1234),
        "1.1": Commit("https://example.org/fast", "1a" * 20, "2a" * 20, "v1.1", modules),
        "0.9": LocalSource(tmp_path / "../fast/src"),
    }
    assert (recipe.component, recipe.requires, recipe.against) == ("fast", ("torch",), ("torch",))
    assert recipe.build_requires == ("setuptools==81.0.0", "ninja==1.13.2")
    assert recipe.patches == (Patch(tmp_path / "wheels/patches/fast.patch", DIGEST, "p"),)
    assert recipe.env == (EnvVar("FAST_FORCE_BUILD", "TRUE", "e"),)
    assert recipe.architectures == Architectures("FAST_ARCHS", ";", {"9.0": "90", "12.0": "120"})
    assert (recipe.modules, recipe.jobs, recipe.threads) == (("fast_cuda",), "MAX_JOBS", "NVCC_THREADS")
    assert recipe.toolkit == ">=11.7"
    assert recipe.cost == Cost(73, 220.5, 4_650_000_000, 7_000_000_000, "m")


def test_a_release_may_differ_from_its_recipe(tmp_path: Path) -> None:
    recipe = matrix.load(project(tmp_path)).recipes["fast"]
    plain, other = recipe.of("1.0"), recipe.of("1.1")
    assert (plain.requires, plain.patches) == (recipe.requires, recipe.patches)
    assert (other.requires, other.patches) == (("torch", "einops"), ())
    assert (list(other.releases), other.of("1.1")) == (["1.1"], other)
    assert (recipe.of("2.0").releases, recipe.of("2.0").requires) == ({}, recipe.requires)


def test_a_cell_has_the_recipes_of_its_own_components(tmp_path: Path) -> None:
    loaded = matrix.load(project(tmp_path))
    (gpu,), (plain,) = loaded.select("gpu"), loaded.select("plain")
    assert gpu.recipes == {"fast": loaded.recipes["fast"]}
    assert plain.recipes == {}
    assert "recipe fast" in gpu.inputs
    assert not [name for name in plain.inputs if name.startswith("recipe")]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  fast:\n", "  fsat:\n", ['wheels/r.yaml:2:3: there is no component "fsat"', 'did you mean "fast"?']),
        ("  fast:\n", "  torch:\n", ['r.yaml:2:3: the component "torch" needs no compiler', "compiled: true"]),
        ("[fast_cuda]", "[]", ["r.yaml:30:14: recipes.fast.modules:", "at least 1"]),
        ("    modules: [fast_cuda]\n", "", ["r.yaml:2:3:", "either `modules` or a `prefix`"]),
        ("[fast_cuda]", "[fast_cuda, fast_cuda]", ['r.yaml:30:26: modules: "fast_cuda" is listed twice']),
        ("against: [torch]", "against: [torch, torch]", ['r.yaml:21:22: against: "torch" is listed twice']),
        (
            "ninja==1.13.2]",
            "Setuptools==80.9.0]",
            ['r.yaml:20:42: build_requires: "setuptools" is listed twice'],
        ),
        ("against: [torch]", "against: [ninja]", ['r.yaml:20:42: "ninja" is among `against` too']),
        ("ninja==1.13.2", "ninja>=1.13", ["r.yaml:20:42: recipes.fast.build_requires.1:", "is not an exact pin"]),
        ('"9.0": "90"', '"9.1": "90"', ['r.yaml:29:15: no GPU has the compute capability "9.1"', "9.0, 12.0"]),
        ('"9.0": "90"', '"9.0": "$(id)"', ["r.yaml:29:22: recipes.fast.architectures.names.9.0: must match"]),
        ('separator: ";"', 'separator: "&"', ["r.yaml:28:18: recipes.fast.architectures.separator:"]),
        ("FAST_FORCE_BUILD:", "MAX_JOBS:", ["r.yaml:25:7: recipes.fast.env.MAX_JOBS:"]),
        ("FAST_FORCE_BUILD:", "PATH:", ["r.yaml:25:7:", "PATH is set by the machine that builds"]),
        ("FAST_FORCE_BUILD:", "SOURCE_DATE_EPOCH:", ["r.yaml:25:7: recipes.fast.env.SOURCE_DATE_EPOCH:"]),
        ("jobs: MAX_JOBS", "jobs: FAST_FORCE_BUILD", ["r.yaml:2:3:", "FAST_FORCE_BUILD: a variable is for one thing"]),
        ("threads: NVCC_THREADS", "threads: MAX_JOBS", ["r.yaml:2:3:", "MAX_JOBS: a variable is for one thing"]),
        ("jobs: MAX_JOBS", "jobs: FAST_ARCHS", ["r.yaml:2:3:", "FAST_ARCHS: a variable is for one thing"]),
        (DIGEST, "b" * 64, ["r.yaml:23:44: the patch", "is another than the recipe's", f'write "{DIGEST}"']),
        (
            "patches/fast.patch",
            "patches/gone.patch",
            ["r.yaml:23:16: the patch", "gone.patch cannot be read", "No such"],
        ),
        (
            "because: p}\n",
            f"because: p}}\n      - {{file: patches/other/fast.patch, sha256: {DIGEST}, because: p}}\n",
            ['r.yaml:24:16: patches: "fast.patch" is listed twice'],
        ),
        (
            "        patches: []\n",
            "        patches:\n" + 2 * f"          - {{file: patches/fast.patch, sha256: {DIGEST}, because: p}}\n",
            ['r.yaml:18:20: patches: "fast.patch" is listed twice'],
        ),
        ("patches/fast.patch", "../fast.patch", ["r.yaml:23:16: recipes.fast.patches.0.file: must match"]),
        ("patches/fast.patch", "/etc/passwd", ["r.yaml:23:16: recipes.fast.patches.0.file: must match"]),
        ("path: ../fast/src", "path: /opt/fast", ["r.yaml:18:15: recipes.fast.releases.0.9.path: must match"]),
        ("fast-1.0.tar.gz", "fast-1.2.tar.gz", ["r.yaml:5:23: fast-1.2.tar.gz is not an sdist of fast 1.0"]),
        ("fast-1.0.tar.gz", "slow-1.0.tar.gz", ["r.yaml:5:23: slow-1.0.tar.gz is not an sdist of fast 1.0"]),
        ("fast-1.0.tar.gz", "fast-1.0.zip", ["r.yaml:5:23: recipes.fast.releases.1.0.sdist.file: must match"]),
        ('size: "1234"', "size: 1234", ["r.yaml:5:", "1234 needs quotes", "as an integer"]),
        ('"1.1":\n', '"1.1.0-1":\n', ["r.yaml:6:7:", 'write the normalised version "1.1.0.post1"']),
        (
            "        path: ../fast/src\n",
            "        requires: []\n",
            ["r.yaml:17:7:", "either `sdist` or `git` or `path`"],
        ),
        ("path: third/b", "path: ../b", ["r.yaml:13:22: recipes.fast.releases.1.1.git.submodules.0.path: must match"]),
        ("1a" * 20, "1a" * 19, ["r.yaml:9:19: recipes.fast.releases.1.1.git.commit: must match"]),
        ('">=11.7"', '"11.7"', ["r.yaml:33:14: recipes.fast.toolkit:", "PEP 440"]),
        ("4.65 GB", "4.65", ["r.yaml:34:", "4.65 needs quotes"]),
        ("4.65 GB", "4650 MB", ["r.yaml:34:", "recipes.fast.cost.memory: must match"]),
        (
            "requires: [torch]",
            'requires: ["torch @ https://example.org/x"]',
            ["r.yaml:19:16:", "by URL is not allowed"],
        ),
        ("    source: s\n", "", ['r.yaml:2:3: the key "source" is missing']),
        ("    jobs:", "    job:", ['r.yaml:31:5: unknown key "job"', 'did you mean "jobs"?']),
    ],
)
def test_a_fault_is_reported_with_its_place_and_remedy(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    complaints = complaint(tmp_path, edit(RECIPE, old, new))
    for part in expected:
        assert part in complaints


def test_the_sources_of_a_compiled_component_stand_in_its_recipe_alone(tmp_path: Path, golden: Golden) -> None:
    directories = project(tmp_path)
    commit = (
        f'{{url: "https://example.org/f", commit: {"1a" * 20}, tree: {"2a" * 20}, version: "1.0", build_requires: []}}'
    )
    (tmp_path / "matrices/b.yaml").write_text(edit(STACK, "compiled: true", f"compiled: true, git: {{v1: {commit}}}"))
    with pytest.raises(MatrixErrors) as caught:
        matrix.load(directories)
    golden.check(caught.value)


def test_only_what_needs_a_compiler_can_come_from_source(tmp_path: Path, golden: Golden) -> None:
    directories = project(tmp_path)
    before = matrix.load(directories).select("gpu")[0]
    (tmp_path / "matrices/b.yaml").write_text(
        edit(STACK, 'fast: {version: ">=1.0"', 'fast: {from_source: true, version: ">=1.0"')
    )
    after = matrix.load(directories).select("gpu")[0]
    assert {each.component.name: each.from_source for each in after.requirements} == {"fast": True, "torch": False}
    assert {name for name in after.inputs if after.inputs[name] != before.inputs[name]} == {"image"}
    (tmp_path / "matrices/b.yaml").write_text(
        edit(STACK, "fast: {version", "numpy: {from_source: true, because: n}, fast: {version")
    )
    with pytest.raises(MatrixErrors) as caught:
        matrix.load(directories)
    golden.check(caught.value)


def test_a_later_directory_replaces_a_recipe_openly(tmp_path: Path, golden: Golden) -> None:
    first, second = project(tmp_path / "shipped"), tmp_path / "own/wheels"
    second.mkdir(parents=True)
    own = edit(RECIPE, "      - {file: patches/fast.patch, ", "      - {file: own.patch, ")
    (second / "own.patch").write_bytes(PATCH)
    (second / "r.yaml").write_text(own)
    with pytest.raises(MatrixErrors) as caught:
        matrix.load([*first, second])
    golden.check(caught.value)
    (second / "r.yaml").write_text(edit(own, "    requires: [torch]\n", "    requires: [torch]\n    override: true\n"))
    recipe = matrix.load([*first, second]).recipes["fast"]
    assert recipe.patches[0].path == second / "own.patch"
    assert recipe.releases["0.9"] == LocalSource(tmp_path / "own/../fast/src")  # from the project that says it
    line = own.splitlines().index("        path: ../fast/src") + 1
    assert str(recipe.where).endswith("own/wheels/r.yaml:2:3")
    assert str(recipe.releases["0.9"].where).endswith(f"own/wheels/r.yaml:{line}:15")


def test_a_directory_of_wheels_may_hold_other_things(tmp_path: Path, golden: Golden) -> None:
    directories = project(tmp_path)
    (tmp_path / "wheels/r.yaml").unlink()
    (tmp_path / "wheels/fast-1.0-py3-none-any.whl").write_bytes(b"")
    (tmp_path / "wheels/catalogue").mkdir()
    (tmp_path / "wheels/catalogue/third.yaml").write_text("catalogue: {}\n")
    assert matrix.load(directories).recipes == {}
    (tmp_path / "wheels/more/catalogue").mkdir(parents=True)
    (tmp_path / "wheels/more/catalogue/x.yaml").write_text("catalogue: {}\n")
    with pytest.raises(MatrixErrors) as caught:
        matrix.load(directories)
    golden.check(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ("sha256: " + "a" * 64, "sha256: " + "b" * 64, True),
        ("[torch, einops]", "[torch]", True),
        ("setuptools==81.0.0", "setuptools==80.9.0", True),
        ("against: [torch]", "against: [torch, numpy]", True),
        ('value: "TRUE"', 'value: "1"', True),
        ('"9.0": "90"', '"9.0": "90a"', True),
        ("[fast_cuda]", "[fast_cuda, fast_c]", True),
        ('toolkit: ">=11.7"', 'toolkit: ">=12"', True),
        ('"12.0": "120"', '"12.0": "120f"', False),  # a GPU that the cell is not for
        ("path: ../fast/src", "path: ../fast/other", False),  # a release that the cell may not take
        ("because: e", "because: of another reason", False),
        ("because: p}", "because: of another reason}", False),
        ('units: "73"', 'units: "74"', False),
        ("source: s\n", "source: another\n", False),
        ("threads: NVCC_THREADS", "threads: FAST_THREADS", False),
    ],
)
def test_an_edit_moves_the_cells_whose_wheel_it_changes(tmp_path: Path, old: str, new: str, *, moved: bool) -> None:
    before = matrix.load(project(tmp_path / "a")).select("gpu")[0].inputs
    after = matrix.load(project(tmp_path / "b", edit(RECIPE, old, new))).select("gpu")[0].inputs
    assert {name for name in before if before[name] != after[name]} == ({"recipe fast"} if moved else set())


PREFIX = """\
    prefix:
      commands: [[make, "-j{jobs}"], [make, install, "DESTDIR={destdir}"]]
      files: [bin/fast]
"""


def test_a_prefix_takes_the_place_of_modules(tmp_path: Path) -> None:
    text = edit(edit(RECIPE, "    modules: [fast_cuda]\n", PREFIX), "    jobs: MAX_JOBS\n", "")
    recipe = matrix.load(project(tmp_path / "a", text)).recipes["fast"]
    assert (recipe.modules, recipe.jobs) == ((), "MAX_JOBS")
    old, new = recipe.of("1.0"), recipe.of("1.1")
    assert [len(each.patches) for each in (old, new)] == [2, 1]  # the recipe's own, and the one that adds a backend
    assert old.of("1.0") == old
    assert len({each.patches[-1].sha256 for each in (old, new)}) == 2
    other = matrix.load(project(tmp_path / "b", edit(text, "bin/fast", "bin/slow")))
    inputs = [matrix.load(project(tmp_path / "a", text)).select("gpu")[0].inputs, other.select("gpu")[0].inputs]
    assert {name for name in inputs[0] if inputs[0][name] != inputs[1][name]} == {"recipe fast"}


def test_a_recipe_with_modules_and_a_prefix(tmp_path: Path, golden: Golden) -> None:
    golden.check(complaint(tmp_path, RECIPE + PREFIX))


@given(st.integers(0, 2**32))
def test_no_damage_to_a_sound_recipe_makes_the_loader_raise_anything_else(seed: int) -> None:
    chance = random.Random(seed)
    text = RECIPE
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(text))
        patch = chance.choice(["", "{", "]", "null", "[a]", "3.1", "\n", ": ", "x", "{a: b}", '"', "..", "/"])
        text = text[:start] + patch + text[start + chance.choice([0, 1, 5, 20]) :]
    with tempfile.TemporaryDirectory() as folder:
        try:
            matrix.load(project(Path(folder), text))
        except MatrixErrors as errors:
            assert str(errors)  # noqa: PT017


SHIPPED = shipped_matrix_and_recipes()


def test_the_shipped_recipes_are_those_of_the_field() -> None:
    assert sorted(SHIPPED.recipes) == [
        "apex",
        "causal-conv1d",
        "flash-attn",
        "gdrcopy",
        "grouped-gemm",
        "mamba-ssm",
        "nccl-tests",
        "nv-grouped-gemm",
        "transformer-engine-torch",
        "ucx",
    ]
    for cell in SHIPPED.cells():
        for package, recipe in cell.recipes.items():
            (requested,) = (each for each in cell.requirements if each.component.package == package)
            versions = [each for each in recipe.releases if Requirement(requested.pep508).specifier.contains(each)]
            assert versions, f"{cell.id} asks for {requested.pep508}"
    source = {cell.id for cell in SHIPPED.cells() if any(each.from_source for each in cell.requirements)}
    chosen = {cell.id for cell in SHIPPED.cells() if cell.axes["attention"] == "flash-attn-source"}
    trainers = {"openrlhf-cu130-py312", "skyrl-cu130-py312"}  # they import flash-attn: there is no cell without it
    assert source == {*chosen, *trainers}


@pytest.mark.parametrize("name", sorted(SHIPPED.recipes))
def test_a_shipped_recipe_covers_what_the_matrix_and_the_audit_know(name: str) -> None:
    recipe = SHIPPED.recipes[name]
    built_for = {gpu.capability for cell in SHIPPED.cells() for gpu in cell.gpus}
    assert recipe.architectures is None or set(recipe.architectures.names) >= built_for
    known = yaml.safe_load((shipped("imagegen") / "audit/data/extensions.yaml").read_text())
    rules = {each: rule for key, rule in known.items() for each in (key, *rule.get("also", ()))}
    files = {module.rpartition(".")[2] for module in recipe.modules}
    if rule := rules.get(name):
        assert files >= set(rule.get("all", ()))
        assert not rule.get("any") or files & set(rule["any"])
    assert recipe.prefix or "torch" in recipe.against
    for version in recipe.releases:
        for each in recipe.of(version).requires:
            assert canonicalize_name(Requirement(each).name) != name
