"""Libraries of imagegen: each brings only the modules that are listed here, and runs without the rest of imagegen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import imagegen
from imagegen.audit.model import CodeTarget
from tests.support.elf_files import make_elf, make_fatbin
from tests.support.wheels import make_wheel

PACKAGE = Path(imagegen.__file__).parent
# Modules of compat that answer questions with the shipped matrices, above imagegen.spec and imagegen.wheels.
ANSWERS = {
    "imagegen.compat.__main__",
    "imagegen.compat.answer_text",
    "imagegen.compat.answers",
    "imagegen.compat.witness",
}
# Library -> all modules of imagegen outside of it, without "imagegen.", that any of its modules imports.
BRINGS = {
    "audit": "core core.deferred core.errors core.gpu core.image_format core.layer_tar core.layer_tree "
    "core.matrix_entry core.stopping core.temporary core.text core.types core.validation core.zip_archive",
    "checks": "",
    "compat": "audit audit.api audit.api.conditions audit.api.exports audit.api.getattrs audit.api.import_time "
    "audit.api.lookup audit.api.required audit.api.source audit.api.uses audit.capability audit.catalogue "
    "audit.demangle audit.gpu audit.lists audit.model audit.tags core core.compiled core.data core.deferred "
    "core.errors core.gpu core.matrix_entry core.strict core.text core.types core.validation core.wheel_target oci "
    "oci.documents",
    "projects": "compat compat.harvested compat.metadata compat.rule core core.config core.data core.deferred "
    "core.errors core.gpu core.matrix_entry core.net core.net.address core.net.package_index core.net.page core.text "
    "core.toml core.types core.validation core.wheel_target oci oci.documents spec spec.foundation spec.model",
}
ENV = {**os.environ, "UV_OFFLINE": "1", "PYTHONPATH": str(PACKAGE.parent)}
PROBE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*(name for name in sys.modules if name.partition(".")[0] == "imagegen"))
"""


def modules_of(library: str) -> list[str]:
    """Return the modules of a library, without programs that run in containers and need their packages."""
    paths = (PACKAGE / library).rglob("*.py") if library != "checks" else [PACKAGE / library / "__init__.py"]
    names = (".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths)
    return sorted({name.removesuffix(".__init__") for name in names} - ANSWERS)


def run(*arguments: str | Path, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=ENV, cwd=directory
    )


def make_module(directory: Path, *targets: CodeTarget) -> Path:
    module = make_elf(fatbin=make_fatbin([list(targets)]), exported=["PyInit__c"])
    return make_wheel(directory, {"demo/_c.abi3.so": module, "demo/__init__.py": b""})


@pytest.mark.parametrize("library", sorted(BRINGS))
def test_library_brings_only_these_modules_when_imported(library: str) -> None:
    loaded = run("-c", PROBE, *modules_of(library))
    assert loaded.returncode == 0, loaded.stderr
    prefix = f"imagegen.{library}."
    names = {name for name in loaded.stdout.split() if not f"{name}.".startswith(prefix)} - {"imagegen"}
    assert names == {f"imagegen.{name}" for name in BRINGS[library].split()}


@pytest.mark.parametrize("library", ["compat", "projects"])
def test_library_imports_only_its_modules_that_are_needed_when_imported_alone(library: str) -> None:
    loaded = run("-c", PROBE, f"imagegen.{library}")
    assert set(loaded.stdout.split()) <= {"imagegen", f"imagegen.{library}", "imagegen.core", "imagegen.core.deferred"}


@pytest.mark.parametrize("library", sorted(BRINGS))
def test_example_of_readme_runs(library: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (PACKAGE / library / "README.md").read_text(), re.DOTALL)
    make_wheel(tmp_path, {"demo/__init__.py": b""}, filename="demo-1.0-cp311-cp311-linux_x86_64.whl")
    (tmp_path / "requirements.txt").write_text("torch==2.9.1\n")
    ran = run("-c", example, directory=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_audit_reports_findings_when_code_is_missing(tmp_path: Path) -> None:
    wheel = make_module(tmp_path, CodeTarget("sass", 90))
    text = run("-m", "imagegen.audit", wheel, "--gpu", "sm_120")
    assert text.returncode == 1, text.stderr
    assert "  error    gpu-code-missing: demo/_c.abi3.so\n    no code that runs on sm_120\n" in text.stdout
    assert text.stdout.splitlines()[-1].endswith("not on sm_120")
    output = run("-m", "imagegen.audit", wheel, "--gpu", "12.0", "--json")
    (report,) = json.loads(output.stdout)
    assert (output.returncode, report["passed"], report["gpus"]) == (1, False, {"sm_120": False})


def test_audit_passes_when_code_is_there(tmp_path: Path) -> None:
    passed = run("-m", "imagegen.audit", make_module(tmp_path, CodeTarget("sass", 120)), "--gpu", "sm_120", "--all")
    assert (passed.returncode, passed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["gone.whl"], "usage-no-file"),
        ([__file__], "usage-not-a-wheel"),
        ([], "usage"),
        (["gone.whl", "--gpu", "H100"], "usage-unknown-name"),
    ],
)
def test_audit_has_exit_code_of_the_command_when_usage_is_wrong(arguments: list[str], code: str) -> None:
    refused = run("-m", "imagegen.audit", *arguments)
    assert (refused.returncode, refused.stdout) == (64, "")
    assert refused.stderr.startswith(f"error[{code}]: ")


def test_compat_answers_as_why_does() -> None:
    text = run("-m", "imagegen.compat", "torch==2.9.1", "vllm==0.11.0")
    assert (text.returncode, text.stderr) == (1, "")
    assert text.stdout.startswith("conflict (breaks): torch==2.9.1, vllm==0.11.0\n")
    output = run("-m", "imagegen.compat", "torch==2.9.1", "--json")
    answer = json.loads(output.stdout)
    assert (output.returncode, answer["verdict"], answer["state"]) == (0, "compatible", None)
    unknown = run("-m", "imagegen.compat", "there-is-no-such-package==1")
    assert (unknown.returncode, unknown.stdout.partition(":")[0]) == (2, "unknown")


def test_compat_answers_without_locks_images_and_use_cases() -> None:
    program = (
        "import imagegen.compat.__main__ as main, sys; main.main(['torch==2.9.1', 'vllm==0.11.0']); print(*sys.modules)"
    )
    modules = run("-c", program).stdout.splitlines()[-1].split()
    names = {name.split(".")[1] for name in modules if name.startswith("imagegen.")}
    assert names == {"audit", "checks", "compat", "core", "index_metadata", "oci", "spec", "wheels"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "usage-nothing-named"),
        (["2.8"], "usage-invalid-value"),
        (["model==qwen3", "model==llama", "vllm"], "usage-several-models"),
        (["torch==x"], "usage-invalid-value"),
        (["--no-such-option"], "usage"),
    ],
)
def test_compat_has_exit_code_of_the_command_when_usage_is_wrong(arguments: list[str], code: str) -> None:
    refused = run("-m", "imagegen.compat", *arguments)
    assert (refused.returncode, refused.stdout) == (64, "")
    assert refused.stderr.startswith(f"error[{code}]: ")
