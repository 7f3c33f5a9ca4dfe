"""Every module of every declared component imports, alone and in company, and so does what they hold compiled."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from smoke import elf, runner, stub
from smoke.program import Details, Findings, Spec, step
from smoke.table import Check

PATIENCE = 600  # seconds for one process; a cold disk is slow
STRAY = frozenset({"benchmarks", "docs", "examples", "scripts", "test", "tests"})  # installed by mistake
ABREAST = 4  # processes at a time, each up to 1 GB


def check(spec: Spec) -> Details:
    """Components and extension modules in processes of their own, where a death has a name; then all components in one.

    Where there is no driver, what asks for libcuda.so.1 gets a stand-in (see smoke.stub), and the details say so.
    """
    findings = Findings()
    imports = {**spec.imports, **{name: modules_of(name) for name in spec.undeclared}}
    if not any(imports.values()):  # an image of a lock file alone
        imports = {name: modules_of(name) for name in unrequired(spec.versions)}
    modules = [name for names in imports.values() for name in names]
    findings.expect("any", bool(modules), "the lock's components declare no modules: nothing was proven")
    extensions = {
        os.path.relpath(path, spec.prefix): path
        for package in sorted({name.partition(".")[0] for name in modules})
        for path in sorted(linked_with_driver(package, spec.prefix))
    }
    jobs = {component: list(names) for component, names in sorted(imports.items()) if names}
    # One for each: a package holds the same operators for several GPUs, and two of those abort in one process.
    jobs |= {name: [str(path)] for name, path in extensions.items()}
    with tempfile.TemporaryDirectory() as folder:
        driver = stub.driver_here()
        functions = [] if driver else stub.write(Path(folder), driver_functions(extensions.values()))
        step(f"{len(jobs)} processes")
        with ThreadPoolExecutor(min(ABREAST, len(os.sched_getaffinity(0)))) as pool:
            results = list(pool.map(lambda job: alone(spec, *job, "" if driver else folder), jobs.items()))
        for result in results:
            findings.expect(result["check"], result["status"] == "pass", f"{result['check']}: {result['reason']}")
        leaning = [result["check"] for result in results if result["stub"]]
        step("all of them in one process")
        together = _run(spec, "together", _ordered(spec, modules), folder if leaning else "")
        findings.expect("together", together["status"] == "pass", f"in one process: {together['reason']}")
    details: Details = {"modules": modules, "compiled": list(extensions)}
    if leaning:
        details["stub"] = {"library": stub.LIBRARY, "functions": functions, "for": leaning}
        details["note"] = note(leaning, extensions, len(functions))
    return findings.done(details)


def unrequired(distributions: Collection[str]) -> list[str]:
    """Return those of the installed distributions that no other one of them requires; all, if each is required.

    Requirements of extras do not count: an extra that was asked for is not known here.
    """
    lines = [
        line for name in distributions for line in importlib.metadata.requires(name) or () if "extra ==" not in line
    ]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", line)[0]).lower() for line in lines}
    return sorted(set(distributions) - names or distributions)


def modules_of(distribution: str) -> list[str]:
    """Return the modules of an installed distribution, read off its files: the topmost packages and modules.

    Private ones (_x), and those that projects install by mistake (tests, docs), are left out.
    """
    suffixes = (".py", *importlib.machinery.EXTENSION_SUFFIXES)
    files = [file.parts for file in importlib.metadata.distribution(distribution).files or ()]
    packages = {parts[:-1] for parts in files if parts[-1] == "__init__.py" and len(parts) > 1}
    topmost = {parts for parts in packages if not any(parts[:end] in packages for end in range(1, len(parts)))}
    names = [parts[0] for parts in files if len(parts) == 1]
    single = {(name.removesuffix(suffix),) for name in names for suffix in suffixes if name.endswith(suffix)}
    return sorted(
        ".".join(parts)
        for parts in topmost | single
        if all(part.isidentifier() and not part.startswith("_") for part in parts) and parts[0] not in STRAY
    )


def note(leaning: Sequence[str], extensions: Collection[str], functions: int) -> str:
    """Return one line on what the stub library was needed for."""
    parts = [name for name in leaning if name not in extensions]
    compiled = len(leaning) - len(parts)
    counts = [*parts, *([f"{compiled} compiled modules"] if compiled else [])]
    return f"against a stub {stub.LIBRARY} of {functions} functions (cuInit ...): {', '.join(counts)}"


def alone(spec: Spec, name: str, targets: list[str], folder: str) -> dict[str, Any]:
    """The answer of a process of its own; `stub` says whether it needed the stand-in in `folder` ("": none)."""
    targets = _ordered(spec, targets)
    result = _run(spec, name, targets, "")
    leans = bool(folder) and result["status"] == "fail" and stub.LIBRARY in result["reason"]
    return {**(_run(spec, name, targets, folder) if leans else result), "stub": leans}


def _ordered(spec: Spec, targets: Sequence[str]) -> list[str]:
    """Return the modules with torch first, where the image has it: extension modules are linked with what it loads.

    pip comes last: before Python 3.12, importing it makes a later import of setuptools fail.
    """
    first = ["torch"] if "torch" in spec.versions else []
    return sorted(dict.fromkeys([*first, *targets]), key=lambda name: name == "pip")


def _run(spec: Spec, name: str, targets: Sequence[str], folder: str) -> dict[str, Any]:
    path = ":".join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
    before = ["env", f"LD_LIBRARY_PATH={path}"] if folder else []
    argv = [*before, sys.executable, "-m", "smoke.importing", name, spec.prefix, *targets]
    return runner.run(Check(name, "imports", "", PATIENCE), argv)


def linked_with_driver(package: str, prefix: str) -> Iterator[Path]:
    """A package's extension modules for this interpreter that are linked with the driver's library.

    A package may catch the error of such a module and go on without it: only loading the module itself shows it.
    """
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        for path in Path(folder).rglob("*.so") if folder.startswith(f"{prefix}/") else ():
            if not any(path.name.endswith(suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES):
                continue
            if ".cpython-" in path.name and not path.name.endswith(importlib.machinery.EXTENSION_SUFFIXES[0]):
                continue  # of another interpreter
            read = elf.dynamic(path)
            if stub.LIBRARY in read.needed and f"PyInit_{path.name.partition('.')[0]}" in read.defined:
                yield path


def driver_functions(extensions: Iterable[Path]) -> set[str]:
    """The driver's functions that these modules name."""
    return {name for path in extensions for name in elf.dynamic(path).undefined if re.match(r"cu[A-Z]", name)}
