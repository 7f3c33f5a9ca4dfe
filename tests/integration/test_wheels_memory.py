"""The throttle against truth: nvcc under a memory limit is killed, named, planned, halved, and goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import imagegen.checks.worker.build as worker
from imagegen.core import sandbox
from imagegen.spec.recipe import Cost
from imagegen.wheels.throttle import BuildJob, JobPlan, halved, learned, machine, plan

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make control groups"),
]

LIMIT = 850_000_000  # bytes; one of the heavy units below takes some 410, three at once do not fit
UNITS = 5
REQUIREMENTS = ["setuptools==80.9.0", "wheel==0.45.1", "ninja==1.13.0", "packaging==25.0"]
NVCC = ["nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-runtime==13.0.96"]

# As torch's BuildExtension does it: all objects by one run of ninja, the link by setuptools.
SETUP = """
import os, subprocess
from pathlib import Path
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class BuildExtension(build_ext):
    def build_extension(self, extension):
        self.compiler.compile = self.by_ninja
        self.compiler.src_extensions.append(".cu")
        super().build_extension(extension)

    def by_ninja(self, sources, output_dir=None, **rest):
        folder = Path(output_dir).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        includes = " ".join(f"-I{place}" for place in self.include_dirs)
        lines = ["ninja_required_version = 1.3"]
        lines += ["cuda_cflags = -O3 -Xcompiler -fPIC -gencode arch=compute_90,code=sm_90"]
        depfile = "--generate-dependencies-with-compile --dependency-output $out.d"
        lines += ["rule cuda_compile", "  depfile = $out.d", "  deps = gcc"]
        lines += [f"  command = nvcc {depfile} $cuda_cflags -c $in -o $out"]
        lines += ["rule compile", f"  command = g++ -O2 -fPIC {includes} -c $in -o $out"]
        objects = [str(folder / (Path(source).stem + ".o")) for source in sources]
        for source, object in zip(sources, objects):
            rule = "cuda_compile" if source.endswith(".cu") else "compile"
            lines.append(f"build {object}: {rule} {Path(source).resolve()}")
        (folder / "build.ninja").write_text("\\n".join(lines) + "\\n")
        subprocess.run(["ninja", "-v", "-j", os.environ["MAX_JOBS"]], cwd=folder, check=True)
        return objects

sources = sorted(map(str, Path("csrc").glob("*.c*")))
extensions = [Extension("heavy", sources)]
setup(name="heavy", version="1.0", packages=[], ext_modules=extensions, cmdclass={"build_ext": BuildExtension})
"""
MODULE = """
#include <Python.h>
static PyModuleDef heavy = {PyModuleDef_HEAD_INIT, "heavy", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_heavy() { return PyModule_Create(&heavy); }
"""
LIGHT = "__global__ void light(int *x) { x[0] += 1; }\n"


def heavy(number: int) -> str:
    """A million initialised numbers: little time, much memory for each of nvcc's front ends."""
    lines = ["#define D0 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,"]
    lines += [f"#define D{n + 1} {' '.join([f'D{n}'] * 10)}" for n in range(5)]
    lines += [f"__device__ int table{number}[] = {{ D5 0 }};"]
    lines += [f"__global__ void kernel{number}(int *x) {{ x[0] += table{number}[x[1]]; }}"]
    return "\n".join(lines) + "\n"


@dataclass
class Bench:
    """Sources in a folder, and the worker under the limit."""

    folder: Path
    spec: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)

    def run(self, jobs: int) -> dict[str, Any]:
        """The worker's last word."""
        (self.folder / "throttle.json").write_text(json.dumps({"jobs": jobs, "threads": 1}))
        (self.folder / "spec.json").write_text(json.dumps(self.spec))
        options = {name: str(self.folder / name) for name in ("sources", "work", "out")}
        files = {"spec": str(self.folder / "spec.json"), "throttle": str(self.folder / "throttle.json")}
        words = [word for name, value in (options | files).items() for word in (f"--{name}", value)]
        return self.limited(words)

    def probe(self) -> dict[str, Any]:
        return self.limited(["probe"])

    def limited(self, words: list[str]) -> dict[str, Any]:
        groups = sandbox.make_cgroups(sandbox.Limits(LIMIT))
        assert groups, "no control group could be made"
        for group in groups:
            if (group / "memory.oom.group").exists():
                (group / "memory.oom.group").write_text("0")  # the worker is to see its compilers die
        try:
            command = [*sandbox.enter_cgroups(groups), sys.executable, "-I", str(worker.__file__), *words]
            said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
        finally:
            sandbox.remove_cgroups(groups)
        mark = "@imagegen "
        found = [json.loads(line.removeprefix(mark)) for line in said.splitlines() if line.startswith(mark)]
        self.events += found
        assert found, said
        last: dict[str, Any] = found[-1]
        return last

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "out/record.json").read_text())
        return found


def download(names: list[str], folder: Path) -> list[Path]:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    subprocess.run([*command, *names], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which nvcc is found: this machine's, else NVIDIA's wheels."""
    if shutil.which("nvcc"):
        return {"PATH": os.environ["PATH"]}
    folder = tmp_path_factory.mktemp("toolkit")
    for wheel in download(NVCC, tmp_path_factory.mktemp("wheels")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    for program in folder.glob("nvidia/cu13/**/bin/*"):
        program.chmod(0o755)
    return {"PATH": os.environ["PATH"], "CUDA_HOME": str(folder / "nvidia/cu13")}


@pytest.fixture(scope="session")
def requirements(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return download(REQUIREMENTS, tmp_path_factory.mktemp("requirements"))


@pytest.fixture
def bench(tmp_path: Path, requirements: list[Path], toolkit: dict[str, str]) -> Iterator[Bench]:
    sources = tmp_path / "sources"
    sources.mkdir()
    files = {"setup.py": SETUP, "csrc/a_module.cpp": MODULE, "csrc/b_light.cu": LIGHT}
    files |= {f"csrc/heavy{number}.cu": heavy(number) for number in range(UNITS - 2)}
    with tarfile.open(sources / "heavy-1.0.tar.gz", "w:gz") as tar:
        for name, content in files.items():
            (tmp_path / "member").write_text(content)
            tar.add(tmp_path / "member", f"heavy-1.0/{name}")
    for wheel in requirements:
        (sources / wheel.name).symlink_to(wheel)
    spec = {"format": 2, "name": "heavy", "version": "1.0", "source": "heavy-1.0.tar.gz", "units": UNITS}
    spec |= {"build_requires": [wheel.name for wheel in requirements], "modules": ["heavy"], "epoch": 1_700_000_000}
    yield Bench(tmp_path, {**spec, "env": toolkit, "jobs": "MAX_JOBS", "threads": None})
    shutil.rmtree(tmp_path / "work", ignore_errors=True)


def within(bench: Bench, cost: Cost, cores: int) -> JobPlan:
    """The plan for what the worker sees under the limit, with as many cores as it likes."""
    seen = machine(bench.probe())
    assert seen.limited and seen.memory == pytest.approx(LIMIT, abs=4096)
    return plan(BuildJob(cost), replace(seen, cores=cores))


@pytest.mark.fault(
    "Wheels", "a compile takes more memory than its control group has", "named, with the program; objects are kept"
)
def test_too_many_jobs_are_killed_and_the_planned_ones_pass(bench: Bench) -> None:
    naive = bench.run(UNITS)
    assert (naive["event"], naive["cause"]) == ("failed", "memory"), naive
    assert naive["process"] in ("cudafe++", "cicc", "cc1plus", "nvcc") and "want of memory" in naive["what"]
    shutil.rmtree(bench.folder / "work")

    roomy = Cost(UNITS, 3.0, 300_000_000, 420_000_000, "measured with one job")
    planned = within(bench, roomy, cores=UNITS)
    assert (planned.jobs, planned.warning) == (1, None)
    done = bench.run(planned.jobs)
    assert (done["event"], done["done"], done["total"]) == ("done", UNITS, UNITS), done
    assert bench.record["memory"] <= planned.memory <= LIMIT
    assert learned(bench.record, 1, "here").largest <= planned.largest
    said = [event["done"] for event in bench.events if event["event"] == "progress"]
    assert said[-1] == UNITS


def test_a_plan_that_fails_is_halved_and_keeps_its_objects(bench: Bench) -> None:
    tried: JobPlan | None = within(bench, Cost(UNITS, 3.0, 50_000_000, 60_000_000, "far too little"), cores=UNITS)
    assert tried and tried.jobs >= 4
    attempts = []
    while tried:
        attempts.append(bench.run(tried.jobs))
        if attempts[-1]["event"] == "done":
            break
        assert attempts[-1]["cause"] == "memory", attempts[-1]
        tried = halved(tried)
    assert len(attempts) > 1 and attempts[-1]["event"] == "done"
    assert sum(attempt["compiled"] for attempt in attempts) == UNITS, "a unit was compiled again"
    assert attempts[-1]["compiled"] < UNITS
    assert len(bench.record["runs"]) == len(attempts)


def test_a_wheel_built_twice_is_the_same(bench: Bench) -> None:
    wheels = []
    for _ in range(2):
        assert bench.run(1)["event"] == "done"
        wheels.append((bench.record["sha256"], bench.record["size"]))
        shutil.rmtree(bench.folder / "out")
    assert wheels[0] == wheels[1]
