"""Stacks and variants: what a cell is made of for its choice of values."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagegen import spec as matrix
from imagegen.cli.app import App
from imagegen.compat import Fact, Facts
from imagegen.core.errors import IncompatibleError
from imagegen.spec import Cell
from imagegen.spec.cell_facts import in_cell
from tests.support.golden import Golden
from tests.support.matrix_samples import SHIPPED, SMALL, complaint, load

STACKS = """\
stacks:
  first:
    description: d
    components:
      torch: {version: "==2.10.0", because: of the first stack}
      numpy: {version: ">=1", because: of the first stack}
    env:
      A: {value: first, because: b}
      B: {value: first, because: b}
    variants:
      - when: {set: [newest]}
        components: {numpy: {version: ">=2", because: newest has it}}
        env: {B: {value: newest, because: b}}
  second:
    description: d
    components: {tool: {because: of the second stack}}
    env: {A: {value: second, because: b}}
components:
  tool:
    description: d
    git:
      v1:
        {url: "https://example.org/tool", commit: "1111111111111111111111111111111111111111",
         tree: "2222222222222222222222222222222222222222", version: "1.0", build_requires: ["setuptools==84.2.1"]}
axes:
  set: {description: s, values: [verified, newest], default: verified}
bases:
  other: {description: d, kind: registry, image: "registry.example.org:5000/a/b:1.0", system: sys}
images:
  stacked:
    description: d
    purpose: p
    base: deb
    stacks: [first, second]
    axes: {python: ["3.11", "3.12"], set: [verified, newest]}
    components:
      torch: {version: "==2.13.0", because: of the image}
    variants:
      - when: {python: ["3.12"]}
        base: other
      - when: {python: ["3.12"], set: [newest]}
        without: [torch]
        components: {tool: {git: v1, extras: [gui, cli], because: a commit}}
"""


def cell(folder: Path, name: str) -> Cell:
    return load(folder, SMALL, STACKS).select(name)[0]


def specifiers(cell: Cell) -> dict[str, str]:
    return {each.component.name: each.specifier for each in cell.requirements}


def test_what_comes_later_wins(tmp_path: Path) -> None:
    default = cell(tmp_path, "stacked")
    assert specifiers(default) == {"torch": "==2.13.0", "numpy": ">=1", "tool": ""}
    assert {each.name: each.value for each in default.env} == {"A": "second", "B": "first"}
    assert (default.base.name, default.base.glibc) == ("deb", "2.36")


def test_search_paths_are_joined_and_the_images_directories_come_first(tmp_path: Path, golden: Golden) -> None:
    """A driver's directory of a stack stays where an image or a base names directories of its own."""
    text = STACKS.replace("value: second, because: b}", "value: second, because: b}, PATH: {value: /s, because: s}")
    text = text.replace("value: newest, because: b}", 'value: newest, because: b}, PATH: {value: "/s:/v", because: v}')
    own = SMALL.replace("bases:\n  deb:\n", "bases:\n  deb:\n    env: {PATH: {value: /b, because: b}}\n")
    extending = "  own:\n    extends: stacked\n    env: {PATH: {value: /o::/s, because: o}}\n"
    removing = extending.replace("own", "bare").replace("    env", "    without: [PATH]\n    env")
    loaded = load(tmp_path, own, text + extending + removing)

    def path(cell: str) -> tuple[str, str]:
        (variable,) = (each for each in loaded.select(cell)[0].env if each.name == "PATH")
        return variable.value, variable.because

    assert path("stacked") == ("/s:/b", "s b")
    golden.check(path("stacked-cpu-py311-newest"), path("own"))
    assert path("bare") == ("/o:/s:/b", "o b")


def test_variants_apply_where_all_their_axes_agree(tmp_path: Path) -> None:
    newest = cell(tmp_path, "stacked-cpu-py311-newest")
    assert specifiers(newest) == {"torch": "==2.13.0", "numpy": ">=2", "tool": ""}
    assert {each.name: each.value for each in newest.env} == {"A": "second", "B": "newest"}
    python = cell(tmp_path, "stacked-cpu-py312")
    assert (python.base.name, python.base.image) == ("other", "registry.example.org:5000/a/b:1.0")
    both = cell(tmp_path, "stacked-cpu-py312-newest")
    assert specifiers(both) == {"numpy": ">=2", "tool": ""}
    assert {each.component.name: each.git and each.git.commit for each in both.requirements}["tool"] == "1" * 40
    assert next(each.pep508 for each in both.requirements if each.git) == "tool[cli,gui]"


def test_an_edit_of_a_variant_moves_the_cells_it_speaks_of(tmp_path: Path) -> None:
    before = load(tmp_path, SMALL, STACKS)
    after = load(tmp_path, SMALL, STACKS.replace("newest has it", "newest wants it"))
    moved = {one.id for one, other in zip(before.cells(), after.cells(), strict=True) if one.inputs != other.inputs}
    assert moved == {"stacked-cpu-py311-newest", "stacked-cpu-py312-newest"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("        base: other", "        bass: other", '1.yaml:40:9: unknown key "bass"'),
        ("stacks: [first, second]", "stacks: [first, sekond]", 'there is no stack "sekond"'),
        ("set: [newest]}\n        components", "sett: [newest]}\n        components", 'there is no axis "sett"'),
        ('python: ["3.12"]}\n        base', 'python: ["3.13"]}\n        base', 'value of the python axis "3.13"'),
        ("base: other", "base: another", '1.yaml:40:15: there is no base "another"'),
        ("without: [torch]", "without: [torhc]", 'there is no component "torhc"'),
        ("git: v1, extras", "git: v2, extras", 'there is no commit of tool "v2"'),
        ("git: v1, extras", "index: pipy, extras", 'there is no index "pipy"'),
        ("kind: registry", "kind: debian", "a base of kind debian has `suite`, and no `image`"),
        ("b:1.0", "b", "image: must match"),
        ("because: newest has it", "", '1.yaml:12:22: the key "because" is missing'),
        ('commit: "1111', 'commit: "main', "git.v1.commit: must match"),
    ],
)
def test_a_fault_is_reported_with_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in STACKS
    assert complaint(tmp_path / "sound", SMALL, STACKS) == ""
    assert expected in complaint(tmp_path / "faulty", SMALL, STACKS.replace(old, new))


def test_an_image_with_cuda_says_for_which_gpus(tmp_path: Path, golden: Golden) -> None:
    wide = SMALL.replace("purpose: p", "purpose: p\n    axes: {cuda: [cpu, cu130]}")
    assert load(tmp_path, wide).select("small-cu130-py311")[0].gpus[0].capability == "9.0"
    assert load(tmp_path, wide).select("small")[0].gpus == ()
    golden.check(complaint(tmp_path / "without", wide.replace("    gpus: [sm_90]\n", "")))


def test_a_variant_replaces_the_gpus(tmp_path: Path, golden: Golden) -> None:
    wide = SMALL.replace("purpose: p", "purpose: p\n    axes: {cuda: [cpu, cu130, cu128]}")
    wide = wide.replace("[cpu, cu130], default", "[cpu, cu130, cu128], default")
    variant = "    variants: [{when: {cuda: [cu128]}, gpus: [sm_120]}]\n"
    wide = wide.replace("    gpus: [sm_90]\n", f"    gpus: [sm_90]\n{variant}")
    wide += '  sm_120: {capability: "12.0", family: blackwell, source: s}\n'
    found = {cell.cuda: [gpu.name for gpu in cell.gpus] for cell in load(tmp_path, wide).cells()}
    assert found == {"cpu": [], "cu130": ["sm_90"], "cu128": ["sm_120"]}
    golden.check(complaint(tmp_path / "b", wide.replace("gpus: [sm_120]", "gpus: [sm_121]")))


def test_a_version_may_have_other_entry_points(tmp_path: Path) -> None:
    text = SMALL.replace("numpy: {description: n}", "numpy: {description: n, entry_points: [numpy.start]}")
    older = text.replace("numpy: {because: n}", "numpy: {because: n, entry_points: [numpy.begin]}")
    found = [load(tmp_path / each, one).all_cells[0] for each, one in (("a", text), ("b", older))]
    assert [cell.declarations.entry_points["numpy"] for cell in found] == [("numpy.start",), ("numpy.begin",)]
    assert found[0].inputs == found[1].inputs  # no lock depends on it


RULES = """\
rules:
  no-numpy-2:
    {when: {torch: "==2.13.0"}, conflict: {numpy: ">=2"}, because: b, source: s, date: "2026-11-20", severity: error,
     evidence: measured, kind: breaks, fix: f}
"""


def test_a_rule_that_an_image_accepts_only_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For this image alone, and only if there is such a rule."""
    refused = SMALL.replace("numpy: {because: n}", 'numpy: {version: ">=2", because: n}') + RULES
    accepted = refused.replace("    gpus: [sm_90]", "    gpus: [sm_90]\n    accepts: {no-numpy-2: it works}")
    assert "no-such-rule" in complaint(
        tmp_path / "unknown", accepted.replace("accepts: {no-numpy-2", "accepts: {no-such-rule")
    )
    for name, text, weight in (("refused", refused, "error"), ("accepted", accepted, "warning")):
        loaded = load(tmp_path / name, text)
        (cell,) = loaded.select("small")
        app = App({}, tmp_path)
        vars(app.session.matrices)["matrix"] = loaded
        versions = {"torch": Fact.exactly("2.13.0"), "numpy": Fact.exactly("2.3.5")}
        facts = in_cell(Facts(versions, {}, {}, closed=True), cell)
        if weight == "error":
            with pytest.raises(IncompatibleError):
                app.session.judge.require_compatible(cell, facts)
        else:
            app.session.judge.require_compatible(cell, facts)
            assert [conflict.severity for conflict in app.session.judge.verdict(facts).conflicts] == ["warning"]
            app.session.judge.print_warnings(explain=False)
            assert capsys.readouterr().err.startswith(f"warning: {cell.id}: no-numpy-2;")


def test_an_override_has_one_meaning(tmp_path: Path) -> None:
    override = '    gpus: [sm_90]\n    overrides: {numpy: {version: "<2", because: b}, dion: {omit: true, because: b}}'
    (cell,) = load(tmp_path / "sound", text := SMALL.replace("    gpus: [sm_90]", override)).select("small")
    assert [(each.package, each.specifier) for each in cell.overrides] == [("dion", None), ("numpy", "<2")]
    assert cell.declarations.overrides == {"dion": None, "numpy": "<2"}
    (plain,) = load(tmp_path / "plain", SMALL).select("small")
    assert cell.inputs.keys() - plain.inputs.keys() == {"overrides"}
    assert complaint(tmp_path / "both", text.replace("omit: true", 'omit: true, version: "<2"'))


@pytest.mark.parametrize(
    "fields",
    [
        "url: https://example.org/numpy-2.0-py3-none-any.whl",
        f"sha256: {'a' * 64}",
        f"url: https://example.org/numpy.zip, sha256: {'a' * 64}",
        f"url: file:///numpy-2.0-py3-none-any.whl, sha256: {'a' * 64}",
        f"url: https://me:pw@example.org/numpy-2.0-py3-none-any.whl, sha256: {'a' * 64}",
        f"url: https://example.org/numpy-2.0-py3-none-any.whl, sha256: {'a' * 64}, index: wheels-cpu",
    ],
)
def test_a_malformed_address_of_a_wheel_is_an_error(fields: str, tmp_path: Path) -> None:
    sound = f"url: https://example.org/numpy-2.0-py3-none-any.whl, sha256: {'a' * 64}"
    entry = "numpy: {%s, because: n}"
    assert complaint(tmp_path / "sound", SMALL.replace("numpy: {because: n}", entry % sound)) == ""
    assert complaint(tmp_path / "faulty", SMALL.replace("numpy: {because: n}", entry % fields))


def test_every_shipped_image_for_gpus_finds_a_driver_that_is_mounted() -> None:
    """GKE, COS and Vertex mount it at /usr/local/nvidia; images for the CPU do not change."""
    for each in matrix.load([SHIPPED]).all_cells:
        values = {variable.name: variable.value.split(":") for variable in each.env}
        for_gpus = each.axes["cuda"] != "cpu"
        for name in ("LD_LIBRARY_PATH", "LIBRARY_PATH"):
            assert (values.get(name, [])[:2] == ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]) is for_gpus
        assert ("/usr/local/nvidia/bin" in values.get("PATH", [])) is for_gpus
        assert "TRITON_LIBCUDA_PATH" not in values  # Triton would look nowhere else
