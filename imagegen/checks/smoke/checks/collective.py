"""Processes reduce, gather and train in step: gloo with two on the CPU, NCCL with one per GPU, two at most."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
from smoke.program import Details, Findings, Spec, step
from torch import distributed as dist
from torch import nn
from torch.multiprocessing import spawn
from torch.nn.parallel import DistributedDataParallel

PATIENCE = timedelta(seconds=60)
ROWS = 8  # of the batch that the ranks share


def check(spec: Spec) -> Details:
    world = min(2, torch.cuda.device_count()) if spec.device == "cuda" else 2
    backend = "nccl" if spec.device == "cuda" else "gloo"
    # A container without a network has only this interface; elsewhere it serves one host just as well.
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"})
    with tempfile.TemporaryDirectory() as folder:
        step(f"{backend}, {world} processes")
        spawn(rank_main, (world, backend, spec.device, folder), nprocs=world)
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("rank-*.json"))]
    findings = Findings()
    findings.expect("finished", len(reports) == world, f"{len(reports)} of {world} processes finished")
    for report in reports:
        for name in report["wrong"]:
            findings.expect(name, False, f"rank {report['rank']}: {name} gave other numbers")
    details: Details = {"backend": backend, "world_size": world}
    if backend == "nccl":
        details["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return findings.done(details)


def rank_main(rank: int, world: int, backend: str, device_type: str, folder: str) -> None:
    """One process. It leaves a report, so that a silent death is not taken for agreement."""
    torch.set_num_threads(1)
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device_type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, f"file://{folder}/store", PATIENCE, world, rank)
    try:
        wrong = [*collectives(rank, world, device), *data_parallel(rank, world, device)]
        dist.barrier()
    finally:
        dist.destroy_process_group()
    report = {"rank": rank, "wrong": wrong}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(report), encoding="utf-8")
    # Threads of gloo may abort a process whose interpreter shuts down, after all that is checked here: 1 of 75 runs,
    # three side by side (torch 2.13, 2026-11-26). https://github.com/pytorch/pytorch/pull/179291 describes it.
    os._exit(0)


def collectives(rank: int, world: int, device: torch.device) -> list[str]:
    """Return which of all_reduce, broadcast and all_gather is wrong, on numbers whose result is exact."""
    mine = torch.arange(1000, dtype=torch.float32, device=device) * (rank + 1)
    base = torch.arange(1000, dtype=torch.float32, device=device)
    wrong = []
    total = mine.clone()
    dist.all_reduce(total)
    if not torch.equal(total, base * (world * (world + 1) // 2)):
        wrong.append("all_reduce")
    first = mine.clone()
    dist.broadcast(first, src=0)
    if not torch.equal(first, base):
        wrong.append("broadcast")
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine)
    if not all(torch.equal(part, base * (other + 1)) for other, part in enumerate(parts)):
        wrong.append("all_gather")
    return wrong


def data_parallel(rank: int, world: int, device: torch.device) -> list[str]:
    """DistributedDataParallel's gradient over shares of a batch must be the whole batch's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    batch = torch.randn(ROWS, 16).to(device)
    model(batch).square().mean().backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    parallel = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    parallel(batch[rank::world]).square().mean().backward()
    # Means of halves against the mean of the whole, in float32: a few roundings of 2**-24.
    same = all(torch.allclose(p.grad, g, rtol=1e-4, atol=1e-6) for p, g in zip(model.parameters(), whole))  # noqa: B905
    return [] if same else ["DistributedDataParallel"]
