"""flash-attn from its sdist by imagegen's plan and worker, estimate beside reality; then its results beside torch's.

    python bench/flash_attn_build.py build flash_attn-2.8.3.tar.gz FOLDER [--architectures 90] [--memory GiB] [--jobs N]
    python bench/flash_attn_build.py check FOLDER

`build` needs nvcc, a C++ compiler, torch, setuptools, pydantic and PyYAML, and no network; stopped and started again
it goes on from what is compiled. `check` needs a GPU: forward and backward in bf16 against torch's attention in
float32, and ends with 1 where they differ by more than bf16 explains. --memory is for machines that get their memory
while it is used, --jobs in place of the plan.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from imagegen.spec.recipe import Cost  # noqa: E402
from imagegen.wheels.throttle import BuildJob, budget, duration, machine, plan  # noqa: E402

WORKER = ROOT / "imagegen/checks/worker/build.py"
SHA256 = "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d"
COST = Cost(73, 220.0, 4_650_000_000, 7_040_000_000, "16 cores, 125 GiB, nvcc 13.0.88, torch 2.11.0+cu130, 2026-11-20")
MARK = "@imagegen "
ERROR = 1e-2  # relative, of norms; bf16 has 8 bits: 2e-3 was seen forward


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    build_parser = commands.add_parser("build")
    build_parser.add_argument("sdist", type=Path)
    build_parser.add_argument("folder", type=Path)
    build_parser.add_argument("--architectures", default="90", help='as flash-attn has them: "90;120"')
    build_parser.add_argument("--memory", type=float, help="GiB that may be used")
    build_parser.add_argument("--jobs", type=int)
    check_parser = commands.add_parser("check")
    check_parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    return build(options) if options.command == "build" else check(options.folder)


def build(options: argparse.Namespace) -> int:
    if hashlib.sha256(options.sdist.read_bytes()).hexdigest() != SHA256:
        print(f"{options.sdist} is not flash_attn-2.8.3.tar.gz", file=sys.stderr)
        return 2
    probe = _events([sys.executable, "-I", str(WORKER), "probe"])[-1]
    if options.memory:
        probe |= {"memory": int(options.memory * 2**30), "available": int(options.memory * 2**30)}
    work = BuildJob(COST, architectures=len(options.architectures.split(";")), threads=True)
    planned = plan(work, machine(probe))
    if options.jobs:
        planned = replace(planned, jobs=options.jobs, threads=1)
    print(f"the machine: {probe}; may be planned with: {budget(machine(probe)) / 1e9:.1f} GB")
    print(planned.sentence("flash-attn"), flush=True)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(_spec(options.sdist.name, options.architectures)))
    (folder / "throttle.json").write_text(json.dumps({"jobs": planned.jobs, "threads": planned.threads}))
    command = [sys.executable, "-I", str(WORKER), "--spec", str(folder / "spec.json")]
    command += ["--sources", str(options.sdist.resolve().parent), "--throttle", str(folder / "throttle.json")]
    start = time.monotonic()
    last = _events([*command, "--work", str(folder / "work"), "--out", str(folder / "out")], show=True)[-1]
    if last["event"] != "done":
        return 1
    record = json.loads((folder / "out/record.json").read_text())
    print("| | planned | real |\n|---|---|---|")
    print(f"| units | {planned.units} | {record['units']} |")
    wall = f"{record['seconds']:.0f} s in {len(record['runs'])} run(s), the last {time.monotonic() - start:.0f} s"
    print(f"| time | {planned.seconds or 0:.0f} s ({duration(planned.seconds or 1)}) | {wall} |")
    print(f"| all compilers together | {planned.memory / 1e9:.1f} GB | {record['memory'] / 1e9:.1f} GB |")
    print(f"| the largest | {planned.largest / 1e9:.2f} GB | {record['largest'] / 1e9:.2f} GB ({record['process']}) |")
    each = record["unit_seconds"]
    mean = each["sum"] / record["units"]
    print(f"| seconds of a unit | {COST.seconds:.0f} | {mean:.0f}, at most {each['longest']:.0f} |")
    print(f"wheel: {record['wheel']}, {record['size'] / 1e6:.1f} MB, sha256 {record['sha256']}")
    return 0


def _spec(source: str, architectures: str) -> dict[str, Any]:
    nvcc = shutil.which("nvcc")
    home = os.environ.get("CUDA_HOME") or (str(Path(nvcc).resolve().parents[1]) if nvcc else "/usr/local/cuda")
    return {
        "format": 2,
        "name": "flash-attn",
        "version": "2.8.3",
        "source": source,
        "build_requires": [],
        "env": {
            "CUDA_HOME": home,
            "PATH": os.environ["PATH"],
            "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
            "FLASH_ATTN_CUDA_ARCHS": architectures,
        },
        "jobs": "MAX_JOBS",
        "threads": "NVCC_THREADS",
        "modules": ["flash_attn_2_cuda"],
        "units": COST.units,
        "epoch": 1755000000,
    }


def _events(command: Sequence[str], *, show: bool = False) -> list[dict[str, Any]]:
    """Return the worker's events, and print them as short lines."""
    events = [{"event": "failed", "what": "the worker said nothing"}]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if not line.startswith(MARK):
                print(line, end="")
                continue
            event = json.loads(line.removeprefix(MARK))
            events.append(event)
            if show and event["event"] == "progress":
                print(
                    f"{event['seconds']:7.0f} s  {event['done']}/{event['total']}  now {event['memory'] / 1e9:.1f} GB, "
                    f"peak {event['peak'] / 1e9:.1f}, largest {event['largest'] / 1e9:.2f} ({event['process']})",
                    flush=True,
                )
            elif show:
                print(json.dumps(event), flush=True)
    return events


def check(folder: Path) -> int:
    import torch

    wheel = next((folder / "out").glob("flash_attn-*.whl"))
    place = folder / "installed"
    shutil.rmtree(place, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    sys.path.insert(0, str(place))
    from flash_attn import flash_attn_func

    print(f"{wheel.name} on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| head size | causal | forward | dq | dk | dv |\n|---|---|---|---|---|---|")
    bad = False
    for size in (64, 128):
        for causal in (False, True):
            errors = _errors(torch, flash_attn_func, size, causal=causal)
            bad |= not all(error < ERROR for error in errors)
            print(f"| {size} | {causal} | {' | '.join(f'{error:.1e}' for error in errors)} |")
    print("differs by more than bf16 explains" if bad else f"all below {ERROR:g}")
    return int(bad)


def _errors(torch: Any, flash_attn_func: Any, size: int, *, causal: bool) -> list[float]:
    """Relative errors of the result and the three gradients, against float32."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(size)
    inputs = [torch.randn(2, 1024, 8, size, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    upstream = torch.randn(2, 1024, 8, size, device="cuda", dtype=torch.bfloat16)
    ours = [each.clone().requires_grad_() for each in inputs]
    result = flash_attn_func(*ours, causal=causal)
    result.backward(upstream)
    exact = [each.float().requires_grad_() for each in inputs]
    with sdpa_kernel(SDPBackend.MATH):
        swapped = [each.transpose(1, 2) for each in exact]
        wanted = torch.nn.functional.scaled_dot_product_attention(*swapped, is_causal=causal).transpose(1, 2)
        wanted.backward(upstream.float())
    pairs = [(result, wanted), *((a.grad, b.grad) for a, b in zip(ours, exact, strict=True))]
    return [float((a.float() - b).norm() / b.norm()) for a, b in pairs]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
