"""verl-config: a made-up verl is walked as the real one is, and what is absent is judged by its extras."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import imagegen.smoke

HOME = Path(imagegen.smoke.__file__).parent
sys.path.insert(0, str(HOME))  # as in a container, where the folder `suite` is copied to

from suite.checks import verl_config  # noqa: E402
from suite.lazy import Import, imports_of  # noqa: E402
from suite.program import Findings, Spec  # noqa: E402

METADATA = """Metadata-Version: 2.1
Name: verl
Version: 0.9.1
Provides-Extra: core
Requires-Dist: Queue_Of.Tensors>=0.1; extra == "core"
Requires-Dist: pyzmqx; extra == 'core'
Requires-Dist: space-bridge==1; extra == "core"
Requires-Dist: verl[core]; extra == "engine"
"""
MODULES = {
    "verl/__init__.py": "",
    "verl/entry.py": """
import json
from verl import tools
try:
    import guarded_away
except ImportError:
    guarded_away = None
if TYPE_CHECKING := False:
    import for_type_checkers

def run():
    import queue_of_tensors
    from .deep import inner
    import clearml_like
    from space.bridge import convert
""",
    "verl/tools.py": "def f():\n    from json import no_such_name\n",
    "verl/deep/__init__.py": "",
    "verl/deep/inner.py": "class Inner:\n    def g(self):\n        if self:\n            import zmqx\n",
    "verl/broken.py": "from json import no_such_name\n",
    "space/present.py": "",  # a namespace package, as megatron is
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, code in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    (tmp_path / "verl-0.9.1.dist-info").mkdir()
    (tmp_path / "verl-0.9.1.dist-info" / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def walk(*starts: Import, omits: dict[str, str] | None = None) -> tuple[Findings, verl_config.Walk, verl_config.Absent]:
    findings = Findings()
    absent = verl_config.Absent(Spec("cpu", "", "", {}, {}, {}, (), omits or {}, {"pyzmqx": "zmqx"}))
    walked = verl_config.Walk(absent, findings)
    for start in starts:
        walked.visit(start, "the entry point")
    return findings, walked, absent


@pytest.mark.usefixtures("site")
def test_what_extras_name_is_missed_and_the_rest_is_optional() -> None:
    findings, walked, absent = walk(Import("verl.entry"))
    assert set(findings.wrong) == {"queue_of_tensors", "space.bridge", "zmqx"}
    assert "verl.entry:12" in findings.wrong["queue_of_tensors"]
    assert "verl.deep.inner:4" in findings.wrong["zmqx"]
    assert absent.optional == {"clearml_like"}
    assert walked.visited == {"verl.entry", "verl", "verl.tools", "verl.deep", "verl.deep.inner"}
    assert list(walked.mismatches) == ["json"], "a function that is never called may be for another release"


@pytest.mark.usefixtures("site")
def test_what_the_matrix_omits_is_no_fault() -> None:
    omits = {"queue-of-tensors": "a", "pyzmqx": "b", "space-bridge": "c"}
    findings, _, absent = walk(Import("verl.entry"), omits=omits)
    assert findings.wrong == {}
    assert absent.omitted == set(omits)


@pytest.mark.usefixtures("site")
def test_an_empty_module_in_the_place_of_an_absent_one_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verl does so with vllm in an image with SGLang."""
    monkeypatch.setitem(sys.modules, "zmqx", ModuleType("zmqx"))
    start = Import("zmqx.context")
    assert set(walk(start)[0].wrong) == {"zmqx"}
    assert walk(start, omits={"pyzmqx": "b"})[2].omitted == {"pyzmqx"}


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("start", [Import("verl.broken"), Import("verl.deep.inner", ("Gone",)), Import("verl.gone")])
def test_a_start_that_cannot_be_imported_is_a_fault(start: Import) -> None:
    findings, walked, _ = walk(start)
    assert set(findings.wrong) == {start.module}
    assert walked.visited == set()


@pytest.mark.usefixtures("site")
def test_classes_are_found_wherever_a_configuration_names_them() -> None:
    values = {"a": {"_target_": "verl.deep.inner.Inner"}, "b": ["verl.x.Y", "verl.not_a_class", "other.Class", 3]}
    assert list(verl_config.named_classes(values)) == [Import("verl.deep.inner", ("Inner",)), Import("verl.x", ("Y",))]
    findings, walked, _ = walk(Import("verl.deep.inner", ("Inner",)), omits={"pyzmqx": "b"})
    assert (findings.wrong, walked.visited) == ({}, {"verl.deep.inner"})


@pytest.mark.usefixtures("site")
def test_imports_carry_lines_and_absolute_names() -> None:
    found = {(each.module, each.names, each.line) for each in imports_of("verl.entry")}
    assert ("verl.deep", ("inner",), 13) in found
    assert {module for module, _, _ in found} == {
        "json", "verl", "queue_of_tensors", "verl.deep", "clearml_like", "space.bridge",
    }  # fmt: skip
    assert list(imports_of("math")) == [], "not Python"
