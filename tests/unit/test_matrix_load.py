"""Loading of matrices: valid files become cells; all faults are reported with place, reason and fix."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from imagegen import spec as matrix
from imagegen.core.data import MAX_SOURCE_FILE
from imagegen.core.errors import MOST, MatrixErrors
from imagegen.core.types import EnvValue, Text
from imagegen.spec.schema import MatrixFile
from tests.support.golden import Golden
from tests.support.matrix_samples import RULE, SHIPPED, SMALL, complaint, large, load


def test_the_shipped_matrix_has_the_images_of_the_field() -> None:
    loaded = matrix.load([SHIPPED])
    cells = {image: loaded.select(image)[0] for image in loaded.defaults}
    assert {image: cell.id.removeprefix(f"{image}-") for image, cell in cells.items()} == {
        "arpo-vllm": "cu126-py311",
        "blackwell-sglang": "cu130-py311",
        "blackwell-vllm": "cu130-py311",
        "cpu-grpo": "cpu-py311",
        "hopper-sglang": "cu130-py311",
        "hopper-vllm": "cu130-py311",
        "nemo-rl": "cu130-py313-nvidia",
        "openrlhf": "cu130-py312",
        "prime-rl": "cu128-py312",
        "sb3-maskable": "cpu-py311",
        "skyrl": "cu130-py312",
        "slime": "cu130-py312",
        "verl-enhanced-vllm": "cu124-py311",
        "trl-vllm": "cu130-py311",
        "verl06-sglang": "cu128-py311",
        "verl06-vllm": "cu128-py311",
    }
    torches = {
        (each.specifier, each.index, each.component.local["cpu"])
        for cell in cells.values()
        for each in cell.requirements
        if each.component.name == "torch" and cell.cuda == "cpu"
    }
    assert torches == {("==2.13.0", "pytorch-cpu", "cpu")}  # one torch, so that both images share its layer
    assert cells["cpu-grpo"].base == cells["sb3-maskable"].base
    assert cells["cpu-grpo"].indexes["pypi"].url is None
    assert {variable.name for variable in cells["cpu-grpo"].env} >= {"WANDB_MODE", "PYTHONFAULTHANDLER"}
    for cell in loaded.cells():
        variables = {variable.name: variable.value for variable in cell.env}
        assert "OMP_NUM_THREADS" not in variables
        patience = {name: int(variables.get(name, 10)) for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")}
        assert all((seconds > 10) == (cell.image != "sb3-maskable") for seconds in patience.values()), cell.id
        if cell.gpus:
            assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
            assert variables["TORCH_CUDA_ARCH_LIST"].split() == [gpu.capability for gpu in cell.gpus]
    antlr = next(each for each in cells["sb3-maskable"].sdists if each.package == "antlr4-python3-runtime")
    assert antlr.sdist is not None
    assert antlr.sdist.build_requires == ("setuptools==84.2.1",)


def test_the_shipped_schema_is_what_the_code_gives(golden: Callable[[str, str], None]) -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **MatrixFile.model_json_schema()}
    golden("../../matrices/schema.json", json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


def test_every_file_of_the_matrix_names_the_schema() -> None:
    files = sorted([*SHIPPED.rglob("*.yaml"), *(SHIPPED.parent / "wheels").glob("*.yaml")])
    for file in files:
        head = file.read_text(encoding="utf-8").splitlines()[0]
        named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", head)
        assert named, file
        assert (file.parent / named[1]).resolve() == (SHIPPED / "schema.json").resolve()
    assert files


def _edit(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("system:", "sistem:", ['0.yaml:13:5: unknown key "sistem"', 'did you mean "system"?']),
        ("    system: sys\n", "", ['0.yaml:9:3: the key "system" is missing']),
        ("system: sys", "system: sis", ['0.yaml:13:13: there is no system "sis"', 'did you mean "sys"?']),
        ('"3.11", "3.12"', "3.10", ["0.yaml:6:37: 3.10 needs quotes", "as a float", 'write "3.10"']),
        ("images:", "image:", ['0.yaml:18:1: unknown key "image"', 'did you mean "images"?']),
        ("base: deb\n", "base: dbe\n", ['0.yaml:22:11: there is no base "dbe"', 'did you mean "deb"?']),
        ("numpy: {because: n}", "numpy: {}", ['0.yaml:25:7: the key "because" is missing']),
        (
            "numpy: {because: n}",
            "nunpy: {git: v1}",
            ['0.yaml:25:15: there is no component "nunpy"', 'did you mean "numpy"?'],
        ),
        ("numpy: {because: n}", "num.py: {}", ['0.yaml:25:7: "num.py" is neither a component', "num-py"]),
        ("  numpy: {description: n}", "  np: {description: n, package: numpy}", ['"numpy" is the component "np"']),
        ("index: {cpu: wheels-cpu}", "index: {gpu: wheels-cpu}", ["0.yaml:16:35: there is no value of the cuda axis"]),
        ("index: {cpu: wheels-cpu}", "index: {cpu: wheels}", ['0.yaml:16:40: there is no index "wheels"']),
        ('"==2.13.0"', '"=2.13"', ["0.yaml:24:24: images.small.components.torch.version:", "PEP 440"]),
        ('"==2.13.0"', '">=3,<2"', ['no version satisfies ">=3,<2"']),
        ('"==2.13.0"', '"===2.13.0"', ["=== compares text"]),
        ('"==2.13.0"', "no", ["0.yaml:24:24: no needs quotes", "as a bool"]),
        ('"https://example.org/cpu"', '"https://u:p@example.org/cpu"', ["0.yaml:3:46: indexes.wheels-cpu.url"]),
        (
            "{description: the default}",
            '{description: d, url: "https://example.org"}',
            ["url comes from the environment"],
        ),
        (
            ', url: "https://example.org/cpu"',
            "",
            ['0.yaml:3:3: the index "wheels-cpu" needs a url', "fix: ", "IMAGEGEN_INDEX_WHEELS_CPU"],
        ),
        (
            '"https://example.org/cpu"',
            '"file:///srv/wheels"',
            ["0.yaml:3:46: indexes.wheels-cpu.url: must be an http or https address"],
        ),
        ("/usr/bin/python3.11", "/usr/../bin/python", ["0.yaml:31:68: interpreters.sys-3.11.path"]),
        ("default: cpu}", "default: cu12}", ['0.yaml:5:3: axes.cuda: the default "cu12" is not among the values']),
        ("[linux/amd64, linux/arm64], default: linux/amd64", "[amd64], default: amd64", ["looks like"]),
        ("python3: the interpreter", '"python3; evil": x', ["0.yaml:14:16: bases.deb.packages.python3; evil:"]),
        (
            "description: t,",
            'description: "t\\n# RUN evil",',
            ["0.yaml:16:24: components.torch.description", "one line"],
        ),
        ("description: t,", '"t": &a x, "u": *a,', ["0.yaml:16:16: anchors and aliases are not used here"]),
        ("description: t,", "description: !!python/object:os.system x,", ["0.yaml:16:24: tags are not used here"]),
        ("numpy: {because: n}", "torch: {because: n}", ['0.yaml:25:7: the key "torch" is given twice', "0.yaml:24:7"]),
        ("because: n}", "because: n", ["0.yaml:26:9: this is not valid YAML"]),
        ("  numpy: {description: n}", "  python: {description: n}", ['"python" cannot be a component']),
        ("numpy: {description: n}", "np: {description: n, package: torch}", ['already belongs to the component "np"']),
        ("description: n}", "description: n, package: Num_Py}", ["components.numpy.package"]),
        ("purpose: p", "purpose: p\n    axes: {cuda: [cu12]}", ['no value of the cuda axis "cu12"', 'mean "cu130"?']),
        ("gpus: [sm_90]", "gpus: [h100]", ['there is no gpu "h100"', "fix: h100 is sm_90: write sm_90"]),
        ("gpus: [sm_90]", "gpus: [sm_91]", ['there is no gpu "sm_91"', 'did you mean "sm_90"?']),
        ("purpose: p", "purpose: p\n    axes: {cudo: [cpu]}", ['there is no axis "cudo"', 'did you mean "cuda"?']),
        (
            "purpose: p",
            'purpose: p\n    env: {A: {value: "x\\nRUN y", because: b}}',
            ["images.small.env.A.value", "line breaks"],
        ),
        ("purpose: p", 'purpose: p\n    env: {A: {value: "$(x)", because: b}}', ["must not contain $"]),
        (
            "purpose: p",
            "purpose: p\n    env: {PATH: {value: x, because: b}}",
            ['PATH is a list of absolute directories, and "x" is not absolute'],
        ),
        (
            "purpose: p",
            "purpose: p\n    env: {VIRTUAL_ENV: {value: x, because: b}}",
            ["VIRTUAL_ENV is set by the image's own layout"],
        ),
        ("purpose: p", "purpose: p\n    env: {A=B: {value: x, because: b}}", ["0.yaml:22:11: images.small.env.A=B"]),
        ("description: n}", "description: n, override: true}", ['0.yaml:17:27: "numpy" overrides nothing']),
    ],
)
def test_a_fault_is_reported_with_its_place_and_remedy(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    assert complaint(tmp_path, SMALL) == ""
    complaints = complaint(tmp_path, _edit(SMALL, old, new))
    for part in expected:
        assert part in complaints


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    source: https://example.org/1\n", "", '1.yaml:2:3: the key "source" is missing'),
        ('    conflict: {numpy: ">=2"}\n', "", "1.yaml:2:3: rules.old-torch: a rule has either `then` or `conflict`"),
        ("    because", '    then: {numpy: "<2"}\n    because', "a rule has either `then` or `conflict`"),
        ('{numpy: ">=2"}', '{torch: ">=2"}', "torch: stands on both sides"),
        ('{torch: "<2.3"}', "{}", "1.yaml:3:5: rules.old-torch.when"),
        ('{torch: "<2.3"}', '{torhc: "<2.3"}', '1.yaml:3:12: there is no component "torhc"'),
        ('{torch: "<2.3"}', '{torch: "2.3"}', "1.yaml:3:19: when.torch:"),
        ('{torch: "<2.3"}', '{glibc: "+cpu"}', 'when.glibc: "+cpu" is not a local version label'),
        ('{torch: "<2.3"}', '{glibc: "<3 +cpu"}', 'when.glibc: "+cpu" is not a local version label'),
        ('{torch: "<2.3"}', '{torch: "<2.3 +cu_12"}', 'when.torch: "+cu_12" is not a local version label'),
        ('{torch: "<2.3"}', '{torch: "2.3 +cpu"}', 'when.torch: "2.3" is not a PEP 440 version specifier'),
        ('    conflict: {numpy: ">=2"}\n', "    same: [nunpy]\n", '1.yaml:4:12: there is no component "nunpy"'),
        ('    conflict: {numpy: ">=2"}\n', "    same: [torch]\n", "torch: stands on both sides"),
        ("    because", "    unless: {nunpy: '>=2'}\n    because", '1.yaml:5:14: there is no component "nunpy"'),
        ("    because", "    unless: {torch: '>=2'}\n    because", "torch: stands on both sides"),
        ("    because", "    same: [numpy]\n    because", "a rule has either `then` or `conflict` or `same`"),
        (
            '{torch: "<2.3"}\n    conflict: {numpy: ">=2"}',
            '{cuda: ">=12"}\n    same: [numpy]',
            "`when` names the one component",
        ),
        ('{torch: "<2.3"}', "{cuda: cu131}", 'when.cuda: "cu131" is not a PEP 440 version specifier'),
        ('"2026-11-20"', '"20 Nov"', "1.yaml:7:11: rules.old-torch.date"),
        ("severity: error", "severity: fatal", "1.yaml:8:15: rules.old-torch.severity: 'fatal' is not one of"),
        ("kind: breaks", "kind: explodes", "rules.old-torch.kind: 'explodes' is not one of"),
        ("kind: breaks", "kind: degrades", "a rule of kind `degrades`"),
        ("measured", "guessed", "rules.old-torch.evidence: 'guessed' is not one of"),
    ],
)
def test_a_faulty_rule_is_a_load_error(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert complaint(tmp_path, SMALL, RULE) == ""
    assert expected in complaint(tmp_path, SMALL, _edit(RULE, old, new))


def test_all_errors_of_all_files_come_at_once_and_in_order(tmp_path: Path, golden: Golden) -> None:
    broken = _edit(_edit(SMALL, "system:", "sistem:"), "numpy: {because: n}", "nunpy: {git: v1}")
    complaints = complaint(
        tmp_path, broken, _edit(RULE, "severity: error", "severity: fatal"), "images: {x: {base: dbe}}"
    )
    places = re.findall(r"^(\d\.yaml:\d+:\d+): ", complaints, re.MULTILINE)
    assert places == sorted(places, key=lambda text: [int(n) for n in re.findall(r"\d+", text)])
    for part in ('"sistem"', '"system" is missing', '"nunpy"', "fatal", '"dbe"', '"purpose" is missing'):
        assert part in complaints
    golden.check(complaints)


def test_files_that_cannot_be_read(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "x.yaml").write_bytes(b"images: {}\n# \xff\n")
    (tmp_path / "y.yml").write_bytes(b"images: {}\n\x07\n")
    (tmp_path / "z.yaml").symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(MatrixErrors) as raised:
        matrix.load([tmp_path, tmp_path / "nowhere"])
    complaints = str(raised.value)
    for part in ("x.yaml:2: the file is not UTF-8", "y.yml:2: the file holds", "nowhere: no matrix here"):
        assert part in complaints
    golden.check(complaints)


def _repeat(head: str, entry: str) -> str:
    return head + "".join(entry.format(number=each) for each in range(3 * MOST))


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a file with 300 faults of a kind: unknown sections or keys, entries without fields, keys given twice, anchors, "
    "numbers without quotes, overrides of nothing, names that nothing defines",
    "100 are explained, each with its line, and how many more there are",
)
@pytest.mark.parametrize(
    ("text", "beside"),
    [
        (_repeat("", "s{number}: a\n"), 0),
        (_repeat("", "images: {{}}\n"), -1),
        (_repeat("components:\n", "  c{number}:\n"), 0),
        (_repeat("components:\n  c:\n    description: d\n", "    k{number}: a\n"), 0),
        (_repeat("components:\n  c:\n    description: d\n    imports:\n", "    - &a{number} b\n"), 0),
        (_repeat("components:\n  c:\n    description: d\n    imports:\n", "    - {number}\n"), 0),
        (_repeat("components:\n", "  c{number}: {{description: d, override: true}}\n"), 0),
        (large(3 * MOST, named="not.known"), -4),
    ],
)
def test_faults_are_explained_up_to_a_number(tmp_path: Path, text: str, beside: int) -> None:
    """`beside` is how many fewer faults the text has, less the four of a file that lacks every axis and pypi."""
    with pytest.raises(MatrixErrors) as raised:
        load(tmp_path, text)
    assert len(raised.value.errors) == MOST
    assert raised.value.omitted == 2 * MOST + 4 + beside
    assert len(str(raised.value)) < 100_000


def test_a_file_that_people_write_has_an_upper_length(tmp_path: Path) -> None:
    load(tmp_path, SMALL + "#" * (MAX_SOURCE_FILE - len(SMALL)))
    with pytest.raises(MatrixErrors) as raised:
        load(tmp_path, SMALL + "#" * (MAX_SOURCE_FILE - len(SMALL) + 1))
    assert str(tmp_path / "0.yaml") in [error.where for error in raised.value.errors]


@pytest.mark.fault(
    "Matrices, rules, locks",
    "an image with 40 values on each of five axes: 100 million cells",
    "refused at its `axes`",
)
def test_an_image_has_an_upper_number_of_cells(tmp_path: Path) -> None:
    values = ", ".join(f"v{each}" for each in range(40))
    axes = "".join(f"  a{each}: {{description: a, values: [{values}], default: v0}}\n" for each in range(5))
    offered = "".join(f"      a{each}: [{values}]\n" for each in range(5))
    text = SMALL.replace("bases:\n", f"{axes}bases:\n", 1).replace("    gpus: [", f"    axes:\n{offered}    gpus: [")
    with pytest.raises(MatrixErrors) as raised:
        load(tmp_path, text)
    (error,) = raised.value.errors
    assert (error.where.line, error.exit_code) == (text[: text.index("    axes:\n")].count("\n") + 1, 65)


def test_a_later_directory_adds_and_overrides_openly(tmp_path: Path, golden: Golden) -> None:
    load(tmp_path / "a", SMALL)
    own = tmp_path / "b"
    own.mkdir()
    (own / "x.yaml").write_text("components:\n  numpy: {description: mine}\n  scipy: {description: s}\n")
    with pytest.raises(MatrixErrors) as raised:
        matrix.load([tmp_path / "a", own])
    golden.check(raised.value)
    assert f"{tmp_path}/a/0.yaml:17:3" in str(raised.value)
    (own / "x.yaml").write_text("components:\n  numpy: {description: mine, imports: [numpy], override: true}\n")
    (cell,) = matrix.load([tmp_path / "a", own]).cells()
    assert [each.component.description for each in cell.requirements] == ["mine", "t"]
    complaints = complaint(tmp_path / "c", SMALL, "components:\n  numpy: {description: again, override: true}\n")
    golden.check(complaints)


def test_an_identical_entry_of_a_later_directory_is_the_same_entry(tmp_path: Path, golden: Golden) -> None:
    """Only a different one clashes, and one directory defines each name once, identical or not."""
    first = load(tmp_path / "a", SMALL, RULE)
    load(tmp_path / "b", SMALL, RULE)
    assert matrix.load([tmp_path / "a", tmp_path / "b"]) == first
    (tmp_path / "b/0.yaml").write_text(_edit(SMALL, "numpy: {description: n}", "numpy: {description: other}"))
    with pytest.raises(MatrixErrors) as raised:
        matrix.load([tmp_path / "a", tmp_path / "b"])
    golden.check(
        [(each.what, each.where.file) for each in raised.value.errors], complaint(tmp_path / "c", SMALL, SMALL)
    )


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ("description: d\n    kind", "description: other\n    kind", []),
        ("{python3: the interpreter}", "{python3: another reason}", []),
        ("{python3: the interpreter}", "{python3: the interpreter, less: l}", ["base"]),
        ('"==2.13.0"', '"==2.13.1"', ["image"]),
        ("because: n}", "because: m}", ["image"]),
        ("{cpu: wheels-cpu}", "{cpu: wheels-cpu, cu130: wheels-cpu}", []),
        ("example.org/cpu", "example.org/other", ["index wheels-cpu"]),
        ("local: {cpu: cpu}", "local: {cpu: cpu2}", ["component torch"]),
        ('"<2.3"', '"<2.4"', []),
        ("fix: f", "fix: g", []),
    ],
)
def test_an_edit_moves_the_inputs_that_it_concerns(tmp_path: Path, old: str, new: str, moved: list[str]) -> None:
    before = load(tmp_path / "a", SMALL + RULE).cells()[0].inputs
    after = load(tmp_path / "b", _edit(SMALL + RULE, old, new)).cells()[0].inputs
    assert sorted(name for name in before | after if before.get(name) != after.get(name)) == moved
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in before.values())


@given(st.text())
def test_text_that_passes_cannot_leave_its_line(text: str) -> None:
    for kind in (Text, EnvValue):
        try:
            TypeAdapter(kind).validate_python(text)
        except ValidationError:
            continue
        assert len(text.splitlines()) <= 1
        assert not re.search("[\x00-\x1f\x7f-\x9f]", text)


def _loads_or_complains(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.yaml").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
        try:
            matrix.load([Path(folder)])
        except MatrixErrors as errors:
            assert str(errors)  # noqa: PT017


WORDS = ["images", "rules", "components", "a", "torch", "3.10", "null", "true", "~", "é", "\x00"]
SIGNS = [": ", ":\n  ", "\n", "\n    ", "- ", *"{}[],&*\"'#\t", "<<: ", "!!x ", "|\n", "? ", "---\n"]
YAMLISH = st.lists(st.sampled_from(WORDS + SIGNS), max_size=30).map("".join)


@given(YAMLISH | st.text(max_size=40))
def test_no_text_makes_the_loader_raise_anything_else(text: str) -> None:
    _loads_or_complains(text)


@given(st.integers(0, 2**32))
def test_no_damage_to_a_sound_matrix_makes_the_loader_raise_anything_else(seed: int) -> None:
    chance = random.Random(seed)
    text = SMALL + RULE
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(text))
        patch = chance.choice(["", "{", "]", "null", "[a]", "3.1", "\n", ": ", "x", "{a: b}", '"'])
        text = text[:start] + patch + text[start + chance.choice([0, 1, 5, 20]) :]
    _loads_or_complains(text)


def test_deep_nesting_is_refused_before_it_costs_anything(tmp_path: Path, golden: Golden) -> None:
    golden.check(complaint(tmp_path, "[" * 500))
