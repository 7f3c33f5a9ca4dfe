"""verl-config: a made-up verl is walked as the real one is, and what is absent is judged by its extras."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import imagegen.checks

HOME = Path(imagegen.checks.__file__).parent
sys.path.insert(0, str(HOME))  # as in a container, where the folder `suite` is copied to

from smoke.checks import verl_config  # noqa: E402
from smoke.checks.verl_config import Import, imports_of  # noqa: E402
from smoke.program import Findings, Spec  # noqa: E402

METADATA = """Metadata-Version: 2.1
Name: verl
Version: 0.9.1
Provides-Extra: core
Requires-Dist: Queue_Of.Tensors>=0.1; extra == "core"
Requires-Dist: pyzmqx; extra == 'core'
Requires-Dist: space-bridge==1; extra == "core"
Requires-Dist: kernels-of-others; extra == "core"
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
    "kernels_of_others/cute.py": "",  # part of another distribution, as sgl-kernel has a folder flash_attn
    "verl/kernels.py": "def f():\n    from kernels_of_others.padding import pad\n",
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
def test_a_folder_of_another_distribution_does_not_hide_that_one_is_missing() -> None:
    assert set(walk(Import("verl.kernels"))[0].wrong) == {"kernels_of_others.padding"}
    assert walk(Import("verl.kernels"), omits={"kernels-of-others": "a"})[2].omitted == {"kernels-of-others"}


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


def spec(release: str, *engines: str) -> Spec:
    return Spec("cpu", "", "", {}, {"verl": release, **dict.fromkeys(engines, "1.0")}, {})


@pytest.mark.parametrize(
    ("release", "modules"),
    [
        ("0.3.0.post1", {"verl.workers.fsdp_workers"}),
        ("0.4.1", {"verl.workers.fsdp_workers"}),
        ("0.6.1", {"verl.workers.fsdp_workers", "verl.workers.engine.fsdp"}),
        ("0.7.1", {"verl.workers.fsdp_workers", "verl.workers.engine.fsdp"}),
        ("0.8.0", {"verl.workers.engine.fsdp"}),
        ("0.9.1", {"verl.workers.engine.fsdp"}),
    ],
)
def test_each_release_has_its_own_workers(release: str, modules: set[str]) -> None:
    assert {each.module for each in verl_config.workers(spec(release))} == modules
    both = {each.module for each in verl_config.workers(spec(release, "megatron-core"))}
    assert both == modules | {name.replace("fsdp", "megatron") for name in modules}


def test_rollouts_before_the_registry_are_named_by_their_modules() -> None:
    found = [each for name in verl_config.ROLLOUTS for each in verl_config.rollout_classes(spec("0.4.1"), name)]
    assert found == [
        Import("verl.workers.rollout.vllm_rollout", ("vLLMRollout",)),
        Import("verl.workers.rollout.sglang_rollout", ("SGLangRollout",)),
    ]


@pytest.mark.parametrize(("mode", "wrong"), [("spmd", set()), ("customized", {"vllm_mode"}), (None, set())])
def test_code_for_another_vllm_is_a_fault(mode: str | None, wrong: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("verl.workers.rollout.vllm_rollout")
    if mode:
        module.vllm_mode = mode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    findings = Findings()
    verl_config.expect_spmd(findings)
    assert set(findings.wrong) == wrong


def test_a_loss_that_a_release_should_have_and_lacks_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("verl.trainer.ppo.core_algos")
    module.POLICY_LOSS_REGISTRY = {"vanilla": print}  # type: ignore[attr-defined]
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    findings = Findings()
    verl_config.expect_loss("vanilla", findings)
    verl_config.expect_loss("gspo", findings)
    assert set(findings.wrong) == {"gspo"}


def test_a_gpu_has_a_name_only_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_available=lambda: False, get_device_name=len)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    with verl_config.named_gpu():
        assert torch.cuda.get_device_name() == ""
    assert torch.cuda.get_device_name is len
