"""imagegen.audit is a library: what it brings along is listed here, and it runs without the rest of imagegen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import imagegen.audit
from imagegen.audit.model import CodeTarget
from tests.support.elf_files import make_elf, make_fatbin
from tests.support.wheels import make_wheel

# All modules of imagegen outside imagegen.audit that any module of it imports.
CORE = {
    "imagegen",
    "imagegen.core",
    "imagegen.core.deferred",
    "imagegen.core.errors",
    "imagegen.core.layer_tar",
    "imagegen.core.stopping",
    "imagegen.core.temporary",
    "imagegen.core.text",
    "imagegen.core.gpu",
    "imagegen.core.image_format",
    "imagegen.core.matrix_entry",
    "imagegen.core.types",
    "imagegen.core.validation",
    "imagegen.core.zip_archive",
}
PACKAGE = Path(imagegen.audit.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parents[1]).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
PROBE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*(name for name in sys.modules if name.partition(".")[0] == "imagegen"))
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def make_module(directory: Path, *targets: CodeTarget) -> Path:
    module = make_elf(fatbin=make_fatbin([list(targets)]), exported=["PyInit__c"])
    return make_wheel(directory, {"demo/_c.abi3.so": module, "demo/__init__.py": b""})


def test_audit_brings_only_these_modules_when_imported() -> None:
    loaded = run("-c", PROBE, *MODULES)
    assert loaded.returncode == 0, loaded.stderr
    names = {name for name in loaded.stdout.split() if not f"{name}.".startswith("imagegen.audit.")}
    assert names == CORE


def test_module_reports_findings_when_code_is_missing(tmp_path: Path) -> None:
    wheel = make_module(tmp_path, CodeTarget("sass", 90))
    text = run("-m", "imagegen.audit", wheel, "--gpu", "sm_120")
    assert text.returncode == 1, text.stderr
    assert "  error    gpu-code-missing: demo/_c.abi3.so\n    no code that runs on sm_120\n" in text.stdout
    assert text.stdout.splitlines()[-1].endswith("not on sm_120")
    output = run("-m", "imagegen.audit", wheel, "--gpu", "12.0", "--json")
    (report,) = json.loads(output.stdout)
    assert (output.returncode, report["passed"], report["gpus"]) == (1, False, {"sm_120": False})


def test_module_passes_when_code_is_there(tmp_path: Path) -> None:
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
def test_module_has_exit_code_of_the_command_when_usage_is_wrong(arguments: list[str], code: str) -> None:
    refused = run("-m", "imagegen.audit", *arguments)
    assert (refused.returncode, refused.stdout) == (64, "")
    assert refused.stderr.startswith(f"error[{code}]: ")
