"""tools.harvest --api: names that packages share, read by ranges from the wheels of an index."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagegen.compat import package_names as api
from imagegen.compat.package_names import SharedName
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, UsageError
from imagegen.core.progress import Quiet
from tests.support.package_index import Index, Offer, zipped
from tools.harvest import api as harvested
from tools.harvest.__main__ import command

ROLLOUT = "trl/trainer/grpo_trainer.py"
SERVE = "trl/scripts/vllm_serve.py"
WHEELS = {
    ("trl", "0.25.0"): {
        "trl/__init__.py": b"",
        "trl/trainer/__init__.py": b"",
        ROLLOUT: b"if is_vllm_available():\n    from vllm.params import Guided, LLM\n",
    },
    ("trl", "0.27.0"): {
        "trl-0.27.0.data/purelib/trl/__init__.py": b"",
        f"trl-0.27.0.data/purelib/{ROLLOUT}": b"""
try:
    from vllm.params import Guided
except ImportError:
    pass
def new():
    from transformers import New
""",
        f"trl-0.27.0.data/purelib/{SERVE}": b"def main():\n    from vllm.server import run\n    run(port=1)\n",
    },
    ("vllm", "0.11.0"): {
        "vllm/__init__.py": b"",
        "vllm/params.py": b"from .names import *",
        "vllm/names.py": b"Guided = LLM = 1",
    },
    ("vllm", "0.12.0"): {
        "vllm/__init__.py": b"",
        "vllm/params.py": b"class LLM: pass",
        "vllm/server.py": b"def run(): pass",
    },
    ("vllm", "0.13.0"): {
        "vllm/__init__.py": b"",
        "vllm/params.py": b"class LLM: pass",
        "vllm/server.py": b"from .entry import run",
        "vllm/entry.py": b"def run(port): pass",
    },
    ("transformers", "5.0.0"): {
        "transformers/__init__.py": b"sys.modules[__name__] = _LazyModule(define_import_structure('models'))",
        "transformers/models/new.py": b"class New: pass",
    },
    ("transformers", "4.57.0"): {"transformers/__init__.py": b"", "transformers/old.so": b"\x7fELF"},
}


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    offers: dict[str, list[Offer]] = {}
    for (name, version), members in WHEELS.items():
        filename = f"{name}-{version}-py3-none-any.whl"
        index.wheel(filename, zipped(members))
        offers.setdefault(name, []).append(Offer(filename))
    for name, lines in offers.items():
        index.page(name, *lines)
    yield index
    index.close()


def test_names_are_compared_release_by_release(index: Index, tmp_path: Path) -> None:
    settings = Settings.from_environment({"HOME": str(tmp_path), "PIP_INDEX_URL": index.url})
    (found,) = harvested.read(["trl"], settings, "2026-11-24", Quiet())
    assert found.names == (
        SharedName("transformers", "transformers.New", False, ROLLOUT, 7, False, ("==0.27.0",), ("<5.0.0",)),
        SharedName("vllm", "vllm.params.Guided", False, ROLLOUT, 2, True, ("==0.25.0",), (">=0.12.0",)),
        SharedName("vllm", "vllm.server", True, SERVE, 2, False, ("==0.27.0",), ("<0.12.0",)),
        SharedName("vllm", "vllm.server.run", False, SERVE, 3, False, ("==0.27.0",), (">=0.12.0,<0.13.0",), "port"),
    )
    assert {name: list(wheels) for name, wheels in found.wheels.items()} == {
        "trl": ["0.25.0", "0.27.0"],
        "transformers": ["4.57.0", "5.0.0"],
        "vllm": ["0.11.0", "0.12.0", "0.13.0"],
    }


def test_a_wheel_that_is_none_is_an_error(index: Index, tmp_path: Path) -> None:
    index.wheel("vllm-0.12.0-py3-none-any.whl", b"no archive")
    settings = Settings.from_environment({"HOME": str(tmp_path), "PIP_INDEX_URL": index.url})
    with pytest.raises(FetchError):
        harvested.read(["trl"], settings, "", Quiet())


def test_the_command_writes_a_file_once(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    arguments = ["--project", str(tmp_path), "--api", "trl", "--json"]
    ended = [CliRunner().invoke(command, arguments, standalone_mode=False) for _ in range(2)]
    assert ['"written": true' in each.output for each in ended] == [True, False]
    found = api.load([tmp_path / "matrices"], "trl")
    assert found
    assert (len(found.names), found.read) == (4, str(dt.datetime.now(dt.UTC).date()))


@pytest.mark.parametrize("options", [["numpy"], ["--models"], ["--verdicts"]])
def test_the_command_needs_packages_that_import_others_and_no_other_kind(tmp_path: Path, options: list[str]) -> None:
    arguments = ["--project", str(tmp_path), "--api", *options]
    assert isinstance(CliRunner().invoke(command, arguments, standalone_mode=False).exception, UsageError)
