"""Model types: the file, the tables of the packages' sources, and what `why` makes of them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from imagegen.cli.commands import cli
from imagegen.compat import models as model_types
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata
from imagegen.compat.model_types import model_type_rules, one_model_type
from imagegen.compat.models import Models
from imagegen.core.config import Settings
from imagegen.core.data import shipped
from imagegen.core.errors import FetchError, MatrixError, UsageError
from imagegen.core.progress import Quiet
from tests.support.package_index import Index, Offer
from tools.harvest import model_types as harvested

TABLE = Models(
    "2026-11-22",
    {"transformers": "4.45.0", "vllm": "0.7.0"},
    {"transformers": "a", "vllm": "b"},
    {
        "llama": {"transformers": "4.45.0", "vllm": "0.7.0"},
        "ministral3": {"transformers": "5.0.0", "vllm": "0.20.0"},
        "aimv2": {"transformers": "4.54.0"},
    },
)
TYPES = {
    "4.50.0": b'CONFIG_MAPPING_NAMES = OrderedDict([("llama", "LlamaConfig")])\n',
    "4.51.0": b'CONFIG_MAPPING_NAMES = OrderedDict[str, str]([("llama", "L"), ("qwen3", "Q")])\n',
    "5.0.0": b'CONFIG_MAPPING_NAMES: dict = {"llama": "L", "qwen3": "Q", "bert": "B"}\n',
}
CLASSES = b"""
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict([("llama", "LlamaForCausalLM"), ("qwen3", ("Qwen3ForCausalLM", "O"))])
MODEL_FOR_MASKED_LM_MAPPING_NAMES = OrderedDict([("bert", "BertForMaskedLM")])
"""
REGISTRY = {
    "0.8.0": b'_TEXT_GENERATION_MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}\n',
    "0.8.5": b'_A_MODELS = {"LlamaForCausalLM": ("l", "L")}\n_B_MODELS = {**_A_MODELS, "Qwen3ForCausalLM": ("q",)}\n',
}


@given(st.dictionaries(st.text(max_size=8), st.dictionaries(st.sampled_from(model_types.PACKAGES), st.just("1.2.3"))))
def test_what_is_written_is_read(first: dict[str, dict[str, str]]) -> None:
    table = Models("2026-11-22", {"vllm": "0.7.0"}, {"vllm": "x"}, first)
    assert model_types.parse(harvested.dumps(table)) == table


WRONG = [b"[]", b'{"read": 1}', b'{"read": "", "since": {"a": "b"}, "source": {}, "models": {}}']


@given(st.binary(max_size=200) | st.sampled_from(WRONG))
def test_another_file_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them
        model_types.parse(raw)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert model_types.load([tmp_path]).first == {}
    (tmp_path / model_types.FILE).write_text("{")
    with pytest.raises(MatrixError) as caught:
        model_types.load([tmp_path])
    assert model_types.FILE in str(caught.value.where)


def test_the_shipped_table_knows_what_people_met() -> None:
    table = model_types.load([shipped("matrices")])
    assert table.first["qwen3"]["transformers"] == "4.51.0"
    assert table.first["ministral3"]["transformers"] == "5.0.0"
    assert harvested.dumps(table) == (shipped("matrices") / model_types.FILE).read_bytes()


def test_a_type_asks_for_the_first_release_that_knows_it() -> None:
    found = {each.id: (dict(each.conflict), each.severity) for each in model_type_rules(TABLE, "ministral3")}
    assert found == {
        "model-ministral3-transformers": ({"transformers": "<5.0.0"}, "error"),
        "model-ministral3-vllm": ({"vllm": "<0.20.0"}, "warning"),
    }
    assert list(model_type_rules(TABLE, "llama")) == [], "the oldest release that was read knows it"
    assert [each.conflict for each in model_type_rules(TABLE, "aimv2")] == [{"transformers": "<4.54.0"}]
    assert list(model_type_rules(TABLE, "nothing")) == []


def test_words_about_models_are_distinguished_from_the_others() -> None:
    words = ("model==qwen3", "vllm==0.11.0", "model = qwen3", "model", "modelscope==1.0")
    assert one_model_type(words) == ("qwen3", ("vllm==0.11.0", "model", "modelscope==1.0"), ())
    assert one_model_type((), ("model=llama", "torch==2.9")) == ("llama", (), ("torch==2.9",))


def release(version: str) -> ReleaseMetadata:
    return ReleaseMetadata(version, None, "", (), ())


def test_the_first_releases_are_read_in_the_wheels(index: Index, tmp_path: Path) -> None:
    auto = "transformers/models/auto"
    wheels = {
        ("transformers", version): {
            f"{auto}/{'auto_mappings' if version == '5.0.0' else 'configuration_auto'}.py": source,
            f"{auto}/modeling_auto.py": CLASSES,
        }
        for version, source in TYPES.items()
    } | {("vllm", version): {"vllm/model_executor/models/registry.py": source} for version, source in REGISTRY.items()}
    offers: dict[str, list[Offer]] = {"transformers": [], "vllm": []}
    for (name, version), members in wheels.items():
        filename = f"{name}-{version}-py3-none-any.whl"
        index.wheel(filename, zipped(members))
        offers[name].append(Offer(filename))
    for name, lines in offers.items():
        index.page(name, *lines)
    packages = {
        name: PackageReleases(name, "pypi", None, None, (), {each: release(each) for each in versions})
        for name, versions in (("transformers", TYPES), ("vllm", REGISTRY))
    }
    settings = Settings.from_environment({"HOME": str(tmp_path), "PIP_INDEX_URL": index.url})
    found = harvested.read(packages, settings, "2026-11-22", Quiet())
    assert found.since == {"transformers": "4.50.0", "vllm": "0.8.0"}
    assert found.first == {
        "bert": {"transformers": "5.0.0"},
        "llama": {"transformers": "4.50.0", "vllm": "0.8.0"},
        "qwen3": {"transformers": "4.51.0", "vllm": "0.8.5"},
    }


def test_a_wheel_that_is_none_is_an_error(index: Index, tmp_path: Path) -> None:
    index.wheel("vllm-0.8.5-py3-none-any.whl", b"no archive")
    index.page("vllm", Offer("vllm-0.8.5-py3-none-any.whl"))
    index.page("transformers")
    packages = {"transformers": PackageReleases("transformers", "pypi", None, None, (), {})}
    packages["vllm"] = PackageReleases("vllm", "pypi", None, None, (), {"0.8.5": release("0.8.5")})
    settings = Settings.from_environment({"HOME": str(tmp_path), "PIP_INDEX_URL": index.url})
    with pytest.raises(FetchError):
        harvested.read(packages, settings, "", Quiet())


def zipped(members: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)
    return data.getvalue()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("transformers==4.56.1", "vllm==0.11.0", "model==ministral3"), 1),
        (("transformers==4.56.1", "vllm==0.11.0", "model==qwen3"), 0),
        (("vllm==0.11.0", "model==nothing3"), 2),
        (("model==qwen3",), 0),
        (("model==nothing3",), 2),
        (("sb3-maskable", "--set", "model=qwen3"), 0),
    ],
)
def test_why_knows_model_types(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    ended = CliRunner().invoke(cli, ["--project", str(tmp_path), "why", *words], standalone_mode=False)
    assert ended.return_value == code
    assert "model" in ended.output


def test_why_takes_one_model_type(tmp_path: Path) -> None:
    ended = CliRunner().invoke(cli, ["--project", str(tmp_path), "why", "model==a", "model==b"], standalone_mode=False)
    assert isinstance(ended.exception, UsageError)
