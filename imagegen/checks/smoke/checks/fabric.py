"""NCCL over all GPUs of the host: the transport that it takes, its sums, its bandwidth, and what it lacked.

NVLink multicast (NVLS) stays off unless the environment enables it: it does the sums in the switch, and a bus bandwidth
with it cannot be compared with that of the links.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
from smoke import fabric
from smoke.fabric import Log, last_warning, parse
from smoke.program import Details, Failed, Findings, Spec, step
from torch import distributed as dist
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, spawn

PATIENCE = timedelta(seconds=60)
SIZES = (1 << 20, 1 << 24, 1 << 27, 1 << 30)  # bytes of a message
LONGEST = 20  # all-reduces that are timed for one size
SECONDS = 1.0  # about as long for one size
SHARE = 4  # a message takes at most this part of the free memory
DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV"}


def check(spec: Spec) -> Details:
    around = surroundings()
    world = torch.cuda.device_count() if spec.device == "cuda" else 2
    step(f"all-reduce over {world} GPUs")
    with tempfile.TemporaryDirectory() as folder:
        failure = ""
        try:
            spawn(rank_main, (world, spec.device, folder), nprocs=world)
        except (ProcessExitedException, ProcessRaisedException) as error:
            failure = str(error).strip().splitlines()[-1]
        lines = [
            line
            for path in sorted(Path(folder).glob("nccl-*.log"))
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("rank-*.json"))]
    log = parse(lines)
    if failure:
        found = [asdict(note) for note in fabric.notes(log, around, None, None)]
        reason = "; ".join(note["text"] for note in found) or last_warning(lines) or failure
        raise Failed(f"NCCL fails: {reason}", {"error": failure, "notes": found, **facts(log, around)})
    return judge(log, around, world, reports)


def judge(log: Log, around: fabric.Surroundings, world: int, reports: list[Details]) -> Details:
    """Return the details; raise Failed for wrong sums, missing ranks, and sockets that the user did not ask for."""
    findings = Findings()
    findings.expect("finished", len(reports) == world, f"{len(reports)} of {world} processes finished")
    for report in reports:
        for size in report["wrong"]:
            findings.expect("sum", False, f"rank {report['rank']}: the sum of {size} bytes is wrong")
    for name, text in fabric.wrong(log, around.environment).items():
        findings.expect(name, False, text)
    bandwidths = {int(size): value for size, value in reports[0]["bandwidth"].items()} if reports else {}
    expected = fabric.link(log, reports[0]["capability"]) if reports else None
    measured = bandwidths[max(bandwidths)] if bandwidths else None
    found = fabric.notes(log, around, expected, measured)
    sentences = [f"{note.text} ({note.fix})" for note in found]
    if world == 1:
        sentences.append("there is one GPU: no transport between GPUs was tried")
    return findings.done(
        {
            "gpus": world,
            **facts(log, around),
            "bus_bandwidth": {str(size): round(value, 2) for size, value in bandwidths.items()},  # GB/s
            "link": {"name": expected[0], "bandwidth": round(expected[1], 1)} if expected else None,
            "notes": [asdict(note) for note in found],
            **({"note": "; ".join(sentences)} if sentences else {}),
        }
    )


def facts(log: Log, around: fabric.Surroundings) -> Details:
    """Return the log and the container's surroundings for JSON."""
    return {"nccl": asdict(log), "container": {**asdict(around), "environment": dict(around.environment)}}


def surroundings() -> fabric.Surroundings:
    """Return what this container has; reads /sys/class/infiniband, /dev/infiniband, /dev/shm and the limits."""
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None  # noqa: S108
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return fabric.Surroundings(
        {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
        tuple(sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))),
        tuple(sorted(path.name for path in Path("/dev/infiniband").glob("uverbs*"))),
        shm and shm.f_frsize * shm.f_blocks,
        None if limit == resource.RLIM_INFINITY else limit,
    )


def rank_main(rank: int, world: int, device_type: str, folder: str) -> None:
    """One process: sums and times of each size, in a report that it leaves in `folder` beside NCCL's log."""
    os.environ.update({**DEBUG, "NCCL_DEBUG_FILE": f"{folder}/nccl-{rank}.log"})
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    cuda = device_type == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", f"file://{folder}/store", PATIENCE, world, rank)
    try:
        wrong, bandwidth = measure(rank, world, device)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    major, minor = torch.cuda.get_device_capability(device) if cuda else (0, 0)
    report = {"rank": rank, "wrong": wrong, "bandwidth": bandwidth, "capability": 10 * major + minor}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(report), encoding="utf-8")


def measure(rank: int, world: int, device: torch.device) -> tuple[list[int], dict[int, float]]:
    """Return the sizes (bytes) whose sum is wrong, and size -> bus bandwidth (GB/s); with one rank no bandwidth."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else SHARE << 24
    free = int(agreed(-free, device) * -1)  # the least of all ranks: they must do the same
    wrong, bandwidth = [], {}
    for size in SIZES:
        if SHARE * size > free:
            continue
        data = torch.full((size // 4,), float(rank + 1), device=device)
        dist.all_reduce(data)
        if not bool((data == world * (world + 1) / 2).all()):
            wrong.append(size)
        data.zero_()  # sums of sums would soon be infinite
        once = agreed(timed(data, 1), device)
        count = max(1, min(LONGEST, int(SECONDS / once)))
        seconds = agreed(timed(data, count), device) / count
        if world > 1:
            bandwidth[size] = fabric.bus_bandwidth(size, seconds, world)
    return wrong, bandwidth


def timed(data: torch.Tensor, count: int) -> float:
    """Return the seconds that `count` all-reduces take on this rank."""
    synchronize(data)
    start = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(data)
    synchronize(data)
    return time.perf_counter() - start


def synchronize(data: torch.Tensor) -> None:
    if data.is_cuda:
        torch.cuda.synchronize(data.device)


def agreed(value: float, device: torch.device) -> float:
    """Return the largest value of all ranks."""
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return float(shared)
