"""The audit's `api-import` findings and the imports of installed sets of packages: confusion tables.

    python bench/import_truth.py [--misses]
    python bench/import_truth.py --run WORKDIR [CASE...]

Without --run, prints the tables from the recorded results, and nothing is installed. With --run, installs each set of
bench/import_truth/cases.yaml in an environment of its own, imports its modules, audits its site-packages, and records
the outcome in bench/import_truth/results.json. It needs `uv`, and Python 3.11 and 3.12 for it to find.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).with_suffix("")
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "MPLBACKEND": "agg", "LANG": "C.UTF-8"}
IMPORT = "import importlib, sys; importlib.import_module(sys.argv[1])"
IMPORT_ALL = """
import contextlib, importlib, sys
for name in sys.argv[2:]:
    with contextlib.suppress(BaseException):
        importlib.import_module(name)
        print(name, file=open(sys.argv[1], "a"))
"""
# What a machine lacks, not a set of packages: another package that the set leaves out, or a library.
ABSENT = re.compile(r"No module named '(\w+)'|cannot open shared object file|cannot load library")
# Modules that belong to Python or to a package of the set, in other releases.
OF_PACKAGES = {"attrs", "audioop", "cgi", "distutils", "imp", "pkg_resources", "pyaudioop"}
NOT_THIS = re.compile(r"^(?:_.*|test|tests|testing|bin|docs?|examples?|benchmarks?|scripts|setup|conftest|tools?)$")


def run(work: Path, names: list[str]) -> None:
    """Install, import and audit the named cases, or those without a result."""
    cases, results = read_cases(), read_results()
    selected = [name for name in cases if name in names or (not names and name not in results)]
    with ThreadPoolExecutor(2) as pool:
        pending = {pool.submit(measure, work, name, cases[name]): name for name in selected}
        for future in as_completed(pending):
            name, result = pending[future], future.result()
            if result:
                results[name] = result
                text = json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False)
                (DATA / "results.json").write_text(text + "\n")
            print(name, verdict(result) if result else "not installed", flush=True)


def measure(work: Path, name: str, case: dict[str, Any]) -> dict[str, Any] | None:
    """Return the packages, imports and findings of a case; None if its packages cannot be installed."""
    environment = work / name
    python = environment / "bin/python"
    previous = read_results().get(name) if "--again" in sys.argv and python.exists() else None
    try:
        if not previous and not install(environment, name, case):
            return None
        site = Path(output(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
        installed = {dist.name.lower(): dist.version for dist in distributions(path=[str(site)])}
        modules = case.get("import") or top_level(site)
        imports = previous["imports"] if previous else imported_all(python, modules, work / f"{name}.imported")
        audit = subprocess.run(
            [sys.executable, "-c", "from imagegen.cli import main; main()", "audit", "--site-packages", site, "--json"],
            capture_output=True, text=True, check=False, env=os.environ | {"TMPDIR": str(work)},
        )  # fmt: skip
        findings = [
            {key: finding[key] for key in ("severity", "package", "path", "evidence", "details")}
            for finding in read_findings(audit.stdout)
            if finding["id"] == "api-import"
        ]
        result = {"packages": installed, "imports": imports, "findings": findings}
        named = [*errors(result), *parts(result)]
        imports |= {module: imported(python, module) for module in named if module not in imports}
        return result
    finally:
        if "--keep" not in sys.argv:
            shutil.rmtree(environment, ignore_errors=True)


def read_findings(text: str) -> list[dict[str, Any]]:
    return [finding for subject in json.loads(text) for finding in subject["findings"]]


def install(environment: Path, name: str, case: dict[str, Any]) -> bool:
    """Install the requirements of a case. What is pinned replaces the requirements of other packages."""
    environment.parent.mkdir(parents=True, exist_ok=True)
    pins = [requirement for requirement in case["packages"] if "==" in requirement]
    absent = [f"{package} ; sys_platform == 'never'" for package in case.get("without", ())]
    overrides = environment.parent / f"{name}.overrides"
    overrides.write_text("\n".join([*(re.sub(r"\[.*?\]", "", pin) for pin in pins), *absent]) + "\n")
    command = ["uv", "pip", "install", "-q", "-p", str(environment), "--overrides", str(overrides)]
    command += ["--only-binary", ":all:"]
    command += [word for package in case.get("build", ()) for word in ("--no-binary", package)]
    if before := case.get("before"):
        command += ["--exclude-newer", str(before)]
        for pin in pins:
            command += ["--exclude-newer-package", re.sub(r"[=\[].*", "=2099-01-01", pin)]
    subprocess.run(["uv", "venv", "-q", "--clear", "-p", str(case.get("python", "3.11")), str(environment)], check=True)
    installed = subprocess.run([*command, *case["packages"]], capture_output=True, text=True, check=False)
    if installed.returncode:
        print(f"{name}: {installed.stderr[-600:]}", file=sys.stderr)
    return installed.returncode == 0


def top_level(site: Path) -> list[str]:
    """Return the public top-level modules of all packages."""
    names = {
        path.name.partition(".")[0]
        for path in site.iterdir()
        if path.suffix in {".py", ".so"} or (path.is_dir() and path.suffix == "" and any(path.glob("__init__.*")))
    }
    return sorted(name for name in names if name.isidentifier() and not NOT_THIS.match(name))


def imported_all(python: Path, modules: list[str], log: Path) -> dict[str, str]:
    """Return the outcome of each import. A module that fails among others is imported again in a process of its own."""
    log.write_text("")
    if len(modules) > 3:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([python, "-c", IMPORT_ALL, log, *modules], capture_output=True, check=False, env=ENVIRONMENT,
                           stdin=subprocess.DEVNULL, timeout=600, cwd="/")  # fmt: skip
    succeeded = log.read_text().split()
    return {module: "ok" if module in succeeded else imported(python, module) for module in modules}


def imported(python: Path, module: str) -> str:
    """Return "ok", or the last line of the error and the file and line that raised it."""
    try:
        process = subprocess.run(
            [python, "-c", IMPORT, module], capture_output=True, text=True, errors="replace", check=False,
            env=ENVIRONMENT, stdin=subprocess.DEVNULL, timeout=300, cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "timeout"
    if process.returncode == 0:
        return "ok"
    if process.returncode < 0:
        return f"signal {-process.returncode}"
    raised = re.findall(r'File ".*?/site-packages/(.*?)", line (\d+)', process.stderr)
    errors = re.findall(
        r"^(\w[\w.]*(?:Error|Exception|Warning|Exit|Interrupt)\w*: .*|\w[\w.]*Error)$", process.stderr, re.MULTILINE
    )
    message = re.sub(r"\(/.*?site-packages/", "(", errors[-1] if errors else process.stderr.strip()[-200:])[:300]
    return f"{message} [{':'.join(raised[-1]) if raised else ''}]"


def output(*command: object) -> str:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout.strip()


def read_cases() -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "cases.yaml").read_text())
    return cases


def read_results() -> dict[str, dict[str, Any]]:
    path = DATA / "results.json"
    results: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return results


def errors(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the errors by the module whose import they say fails."""
    return {reached(finding): finding for finding in result["findings"] if finding["severity"] == "error"}


def parts(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the warnings and notes by the module of an optional part whose import they say fails."""
    return {reached(finding): finding for finding in result["findings"] if finding["severity"] != "error"}


def reached(finding: dict[str, Any]) -> str:
    return str(finding["details"][0]).removeprefix("reached by import ").partition(" > ")[0]


def verdict(result: dict[str, Any]) -> str:
    """Return whether imports of the set fail, and whether the audit says so."""
    named = errors(result)
    if any(result["imports"].get(module) == "ok" for module in named):
        return "FALSE ERROR"
    broken = [text for text in result["imports"].values() if text != "ok"]
    if named:
        return "found"
    if all((absent := ABSENT.search(text)) and absent[1] not in OF_PACKAGES for text in broken):
        return "sound"
    return "missed"


def main(*, misses: bool) -> None:
    cases, results = read_cases(), read_results()
    for group, is_new in (("pairs", False), ("pairs, not looked at before", True)):
        pairs = [name for name in cases if name in results and not name.startswith("sound")]
        names = [name for name in pairs if bool(cases[name].get("new")) == is_new]
        print(group, dict(Counter(verdict(results[name]) for name in names)))
    optional = [result["imports"][module] for result in results.values() for module in parts(result)]
    print(f"findings about optional parts: {len(optional)}, of which {optional.count('ok')} false")
    names = [name for name in cases if name in results and name.startswith("sound")]
    packages = [len(results[name]["packages"]) for name in names]
    imports = [text for name in names for text in results[name]["imports"].values()]
    outcomes = dict(Counter(verdict(results[name]) for name in names))
    print("sets", outcomes, f"{min(packages)} to {max(packages)} packages each")
    print(f"imports of sets: {len(imports)}, {imports.count('ok')} succeed")
    for name, result in results.items():
        if misses and (outcome := verdict(result)) not in ("found", "sound"):
            print(f"\n{outcome}: {name}: {[text for text in result['imports'].values() if text != 'ok']}")
            for finding in errors(result).values():
                print(f"    {finding['package']}: {finding['path']}: {finding['evidence']}")
        for module, finding in parts(result).items():
            if misses and result["imports"][module] == "ok":
                print(f"\nfalse part: {name}: {module}: {finding['evidence']}")


if __name__ == "__main__":
    if "--run" in sys.argv:
        arguments = [
            argument for argument in sys.argv[sys.argv.index("--run") + 1 :] if argument not in ("--keep", "--again")
        ]
        run(Path(arguments[0]), arguments[1:])
    else:
        main(misses="--misses" in sys.argv)
