"""tools.harvest --imports: names that imports of releases need of others, read from the wheels of an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagegen.compat import import_names
from imagegen.compat.import_names import ImportNames
from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.net.package_index import IndexLink
from imagegen.core.progress import Quiet
from tests.support.package_index import Index, Offer, zipped
from tools.harvest.__main__ import command
from tools.harvest.imports import ImportHarvest
from tools.harvest.wheel_modules import Cache, WheelModules

WHEELS = {
    ("peft", "0.1"): {
        "peft/__init__.py": b"from .auto import Auto\n",
        "peft/auto.py": b"from transformers import Old\ntry: from transformers import No\nexcept ImportError: pass\n",
        "peft/command.py": b"from transformers import Command\n",
    },
    ("peft", "0.2"): {
        "peft-0.2.data/purelib/peft/__init__.py": b"""
import transformers
from packaging.version import parse
if parse(transformers.__version__) >= parse("5.0"):
    from .new import New
if parse(transformers.__version__) < parse("4.57"):
    raise ImportError
""",
        "peft-0.2.data/purelib/peft/new.py": b"from transformers import Newest\n",
    },
    ("transformers", "4.57.0"): {"transformers/__init__.py": b"class Old: pass"},
    ("transformers", "5.0.0"): {
        "transformers/__init__.py": b"sys.modules[__name__] = _LazyModule(define_import_structure('models'))",
        "transformers/models/new.py": b"class New: pass",
    },
    ("transformers", "5.1.0"): {
        "transformers/__init__.py": b"sys.modules[__name__] = _LazyModule(define_import_structure('models'))",
        "transformers/models/new.py": b"class Newest: pass",
    },
    ("packaging", "24.0"): {"packaging/version.py": b"def parse(text): pass"},
}


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    offers: dict[str, list[Offer]] = {}
    for (name, version), members in WHEELS.items():
        filename = f"{name}-{version}-py3-none-any.whl"
        index.wheel(filename, zipped(members))
        offers.setdefault(name, []).append(Offer(filename))
    offers["transformers"].append(Offer("transformers-4.56.0.tar.gz"))
    for name, lines in offers.items():
        index.page(name, *lines)
    yield index
    index.close()


def harvest(index: Index, home: Path) -> ImportNames:
    settings = Settings.from_environment({"HOME": str(home), "PIP_INDEX_URL": index.url})
    (table,) = ImportHarvest(["packaging", "peft", "transformers"], settings, Quiet(), home / "cache").read(
        ["peft"], ""
    )
    return table


def test_imports_are_followed_and_compared_release_by_release(index: Index, tmp_path: Path) -> None:
    table = harvest(index, tmp_path)
    rows = [(row.name, row.path, row.line, row.required_by, row.lacked_by) for row in table.names]
    assert rows == [
        ("", "peft/__init__.py", 7, ("==0.2",), ("<4.57.0",)),
        ("transformers.Newest", "peft/new.py", 1, ("==0.2",), (">=5.0.0,<5.1.0",)),
        ("transformers.Old", "peft/auto.py", 1, ("==0.1",), (">=5.0.0",)),
    ]
    assert table.examined("0.2", "transformers", "5.1.0")
    assert not table.examined("0.2", "transformers", "4.56.0")


def test_a_module_that_is_not_a_file_is_missing_unless_code_registers_it(index: Index, tmp_path: Path) -> None:
    files: dict[str, bytes] = {
        "a/__init__.py": b"import b as c\ndef __getattr__(name): return 1",
        "a/d/__init__.py": b"sys.modules['a.d.e'] = 1",
    }
    link = IndexLink("a-1-py3-none-any.whl", f"{index.url.removesuffix('/simple')}/files/a-1-py3-none-any.whl", "1")
    index.wheel("a-1-py3-none-any.whl", zipped(files))
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    with (
        Client(settings) as client,
        closing(Cache(None)) as cache,
        closing(WheelModules(cache, client, link)) as modules,
    ):
        assert modules.missing("a.c.X", 2) == "a.c"
        assert modules.missing("a.c", 1) is None
        assert modules.missing("a.d.e", 3) is None


def test_a_second_run_reads_no_wheel(index: Index, tmp_path: Path) -> None:
    first = harvest(index, tmp_path)
    index.requested.clear()
    assert harvest(index, tmp_path) == first
    assert not [path for _, path, _ in index.requested if path.endswith(".whl")]


def test_a_wheel_that_is_none_is_not_examined(index: Index, tmp_path: Path) -> None:
    index.wheel("transformers-5.0.0-py3-none-any.whl", b"no archive")
    assert not harvest(index, tmp_path).examined("0.1", "transformers", "5.0.0")


def test_the_command_writes_a_file_once(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setattr("tools.harvest.__main__.metadata.names", lambda _: ["packaging", "peft", "transformers"])
    arguments = ["--project", str(tmp_path), "--imports", "peft", "--json"]
    results = [CliRunner().invoke(command, arguments, standalone_mode=False) for _ in range(2)]
    assert ['"written": true' in result.output for result in results] == [True, False]
    assert import_names.load([tmp_path / "matrices"], "peft")
