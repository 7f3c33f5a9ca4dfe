"""A small report with everything that a page can show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from imagegen.app import site_report
from imagegen.app.lock_difference import LockDifference, LockSummary, LockVerdict, OtherChange, PackageChange
from imagegen.app.lock_history import History, LockChange
from imagegen.app.nightly.propose import RejectedUpdate
from imagegen.app.packages import LockedPackage
from imagegen.app.states import CellState
from imagegen.app.unlocked import UnlockedCell
from imagegen.audit.model import Finding, Severity
from imagegen.audit.report import AuditReport
from imagegen.compat.rule import Rule
from imagegen.core.gpu import Gpu
from imagegen.image.layers import Size
from imagegen.lock.model import LockedGpus, Record, RecordedLayer
from imagegen.run.smoke.report import CheckResult, SmokeReport
from imagegen.spec.model import Cell
from tests.support.matrix_samples import SMALL, load
from tests.support.tiny_lock import LOCK

GPU = Gpu("sm_120", "12.0", "blackwell", ("RTX 5090", "RTX PRO 6000"))
_LAYERS = (
    RecordedLayer("base", 44_000_000, "sha256:d0", "sha256:i0", "sha256:k0"),
    RecordedLayer("torch", 213_000_000, "sha256:d1", "sha256:i1", "sha256:k1"),
)
RECORD = Record(1, "zstd", "sha256:" + "e" * 64, _LAYERS)
AUDIT = AuditReport(
    "tiny-gpu",
    (
        Finding(Severity.ERROR, "undefined-symbol", "torch 2.13.0", "torch/lib/libtorch.so", "no symbol c10::<T>::f"),
        Finding(Severity.INFO, "native-code-untagged", "numpy 2.4.6", None, "its tag says any"),
    ),
    (),
    {},
    4,
    9,
)
SMOKE = SmokeReport(
    "sha256:" + "e" * 64,
    "tiny-gpu",
    (
        CheckResult("imports", "pass", 1.5),
        CheckResult("nccl", "skip", 0.0, "no GPU here"),
        CheckResult("compiler", "pass", 2.0, details={"note": "without a cache"}),
    ),
)


OLD = Rule("old-rule", {"torch": "<2"}, {}, {"numpy": ">=2"}, "b", "s", "2026-01-01", "error", "measured", "f")


REFUSED = LockVerdict("conflict", rules=("torch-numpy",), reason="torch 2.12 refuses <numpy> 2.")
NOW = LockSummary(840_000_000, 1, LockVerdict("no known conflict", rules=("old-gpu",), reason="It is slow there."))
BEFORE = LockSummary(630_000_000, 0, REFUSED)
HISTORY = History(
    (
        LockChange(
            "2026-11-20",
            None,
            ("torch 2.12.0 -> 2.13.0 brings numpy 2.4.6", "210 MB to pull", "trl stays 1.0, not 2.0: numpy <2"),
            pending=True,
            page="uncommitted",
            rejected=(RejectedUpdate("trl", "1.0", "2.0", "numpy <2"),),
            lock=NOW,
            difference=LockDifference(
                "0123456789abcdef",
                BEFORE,
                (
                    PackageChange("torch", "2.12.0", "2.13.0", "minor", 600_000_000, 800_000_000, "The framework."),
                    PackageChange("numpy", None, "2.4.6", "added", None, 20_000_000, "with torch"),
                    PackageChange("pandas", "3.0", None, "removed", 10_000_000, None),
                    PackageChange("deep-ep", "1.0", "1.1", "minor", 1_000, None),
                ),
                (
                    OtherChange("base", "base", "debian12", "debian13"),
                    OtherChange("Debian package", "adduser", None, "3.134"),
                ),
            ),
        ),
        LockChange(
            "2026-11-13",
            "0123456789abcdef",
            ("the same packages in other layers",),
            page="2026-11-13-2",
            lock=BEFORE,
            difference=LockDifference("fedcba9876543210", BEFORE, (), ()),
        ),
        LockChange("2026-11-13", "fedcba9876543210", ("numpy is newer",), page="2026-11-13", lock=BEFORE),
        LockChange("2026-11-06", "0011223344556677", ("no lock",), lock=LockSummary(600_000_000)),
    ),
    older=True,
)


def cell(folder: Any, **changes: Any) -> Cell:
    (first, *_) = load(folder, SMALL).select("small")
    return replace(first, **changes)


def report(folder: Any, reason: str = "torch 2.0 cannot go with numpy 2.") -> site_report.SiteReport:
    """Four cells: one with a GPU and all that can be known, one that is locked and no more, and two without a lock: one
    that may work and one that cannot.
    """
    axes = {"cuda": "cu130", "python": "3.11", "platform": "linux/amd64"}
    base = cell(folder)
    gpu = replace(base, id="tiny-gpu", image="tiny", purpose="To see <all> of a page.", axes=axes, gpus=(GPU,))
    cpu = replace(base, id="tiny-cpu-py311", image="tiny", gpus=())
    free = replace(gpu, id="tiny-gpu-py312", axes={**axes, "python": "3.12"}, omits={"wandb": "Nothing logs."})
    bad = replace(base, id="worse-cpu", image="worse", gpus=())
    locked = replace(LOCK, cell="tiny-gpu", record=RECORD, gpu=LockedGpus(("12.0",), "580.65.06"))
    shared = replace(LOCK, record=replace(RECORD, layers=_LAYERS[:1]))
    sizes = tuple(Size(layer.name, layer.size, 2 * layer.size) for layer in _LAYERS)
    whole = site_report.CellReport(
        cell=gpu,
        lock=locked,
        stale=("component torch",),
        layers=sizes,
        history=HISTORY,
        smoke=SMOKE.as_dict(),
        audit=AUDIT.as_dict(),
        tag="imagegen/tiny:gpu",
        remote=("ghcr.io/acme/rl/tiny:latest", "ghcr.io/acme/rl/tiny:2026.11.20-torch2.13.0-cu130-py311-1a2b3c4d"),
        downloads={"lock": ("tiny-gpu.toml", b"version = 1\n"), "SBOM": ("tiny-gpu.cdx.json", b"{}")},
    )
    alone = site_report.CellReport(
        cell=cpu,
        lock=shared,
        stale=(),
        layers=(Size("base", 44_000_000, None), Size("torch", None, None)),
        history=History(missing="the lock is in no git repository"),
        smoke=None,
        audit=None,
        tag="imagegen/tiny:cpu-py311",
    )
    states = {
        "tiny-gpu": CellState("tested", "1 of 3 smoke checks were skipped."),
        "tiny-cpu-py311": CellState("unknown", "No release of it is known."),
        "tiny-gpu-py312": CellState("no known conflict"),
        "worse-cpu": CellState("conflict", reason),
    }
    return site_report.SiteReport(
        cells=(gpu, cpu, free, bad),
        states=states,
        sheets=(whole, alone),
        unlocked=(
            UnlockedCell(free, ("https://example.org/x86-64.tar.gz",), ("tiny-gpu", "tiny-cpu-py311")),
            UnlockedCell(bad, (), ()),
        ),
        packages=(
            LockedPackage("numpy", "2.4.6", "", None, None, "index ours", None, ("tiny-gpu",)),
            LockedPackage(
                "torch",
                "2.13.0",
                "BSD-3-Clause",
                "2026-07-03",
                140,
                "PyPI",
                "https://deps.dev/pypi/torch/2.13.0",
                ("tiny-gpu", "tiny-cpu-py311") * 2,
            ),
        ),
        descriptions={"tiny": "Small images.", "worse": "Another."},
        unconfirmed=(OLD,),
    )
